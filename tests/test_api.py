"""``import kvplan``: typed names, fetched when used."""

import re
import subprocess
import sys
from fractions import Fraction

import pytest

import kvplan
from kvplan import api


def test_every_name_is_there() -> None:
    kvplan.read_model  # noqa: B018 - the first use fetches all names
    for name in api.__all__:
        assert getattr(kvplan, name) is getattr(api, name)
    assert set(api.__all__) <= set(dir(kvplan))


def test_import_star_and_help_name_everything() -> None:
    """In a process of its own, where nothing was used before."""
    code = "from kvplan import *; print(callable(simulate)); import pydoc, kvplan; print(pydoc.render_doc(kvplan))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True\n")
    shown = re.sub(".\b", "", done.stdout)
    assert [name for name in api.__all__ if name not in shown] == []


def test_importing_the_package_loads_nothing_and_a_function_wins_over_the_package_of_its_name() -> None:
    """``kvplan.check`` is also a package: whoever asks for it first gets the function."""
    code = (
        "import sys, kvplan; print(sorted(n for n in sys.modules if n.startswith(('kvplan', 'numpy', 'yaml')))); "
        "print(callable(kvplan.check), callable(kvplan.recommend), callable(kvplan.compare))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['kvplan']", "True True True"]


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'red_model'; it has .*read_model"):
        kvplan.red_model  # noqa: B018


def test_options_from_python_are_answered_as_from_the_command() -> None:
    """Adapters of recurrent layers are not counted; a method that does not exist is not known; a draft model is
    priced."""
    hybrid = kvplan.read_model("Qwen/Qwen3.5-9B", offline=True)
    assert kvplan.fit(hybrid, kvplan.deploy("h100", max_loras=2)).verdict == "cannot_tell"
    model, draft = (kvplan.read_model(f"Qwen/Qwen3-{size}", offline=True) for size in ("32B", "0.6B"))
    with pytest.raises(kvplan.UnsupportedModelError, match="'medusa' is not modelled"):
        kvplan.fit(model, kvplan.deploy("h100", speculative_tokens=2, speculative_method="medusa"))
    guessing = kvplan.fit(model, kvplan.deploy("h200", speculative_tokens=2, draft_model=draft))
    assert guessing.plan.layout.bytes_per_block == 92 * 65_536


def test_the_line_from_a_model_to_a_plan() -> None:
    model = kvplan.read_model("Qwen/Qwen3-32B", offline=True)
    planned = kvplan.fit(model, kvplan.deploy("h100", tensor_parallel=2))
    assert planned.verdict == "fits"
    assert kvplan.engine_flags(planned)["--tensor-parallel-size"] == 2
    with pytest.raises(kvplan.InputError):
        kvplan.deploy("h1000")


def test_a_deployment_takes_every_key_of_a_traffic_file() -> None:
    asked = kvplan.deploy("h100", engine="sglang@0.5", mem_fraction_static=0.8, pp_layers=[20, 12], kv_dtype="bf16")
    assert (asked.memory_utilization, asked.pipeline_layers, asked.pipeline_parallel) == (Fraction(4, 5), (20, 12), 2)
    assert (str(asked.engine), asked.kv_dtype) == ("sglang@0.5", "bfloat16")
    assert kvplan.deploy("h100", prefix_caching=None, max_num_seqs=None) == kvplan.deploy("h100")
    draft = kvplan.read_model("Qwen/Qwen3-0.6B", offline=True)
    assert kvplan.deploy(draft_model="Qwen/Qwen3-0.6B", offline=True) == kvplan.deploy(draft_model=draft)
    for wrong, hint in (
        ({"tensor_paralel": 2}, "did you mean 'tensor_parallel'?"),
        ({"tensor_parallel": "two"}, "tensor_parallel 8"),
        ({"prefix_caching": "no"}, "give prefix_caching true or false"),
        ({"kv_memory": "40"}, "add the unit: kv_memory 40GiB"),
        ({"gpu_memory_utilization": 90}, "a share, not a percentage: 0.9"),
        ({"gpu_memory_utilization": 0.8, "mem_fraction_static": 0.8}, "give one of them"),
    ):
        with pytest.raises(kvplan.InputError) as caught:
            kvplan.deploy("h100", **wrong)
        assert caught.value.hint == hint


def test_a_release_that_is_not_named_is_the_one_that_was_checked() -> None:
    from kvplan.engines import engine_of
    from kvplan.engines.sglang.classes import CHECKED_RELEASE as SGLANG
    from kvplan.engines.vllm.releases import CHECKED_RELEASE as VLLM

    assert (engine_of("vllm").default_release, engine_of("sglang").default_release) == (VLLM, SGLANG)
