"""Law: nothing that is asked for is ignored. On every engine, every option of a deployment changes the answer, is
refused, or is said to be left out."""

from collections.abc import Mapping
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import pytest

from kvplan.capacity import CANNOT_TELL, FITS, Fit, fit
from kvplan.engines import ENGINES, engine_of, every_engine, parse_engine
from kvplan.engines.deployment import Deployment, MediaLimit
from kvplan.engines.options import deployment_of, flag_words, read_options, rows
from kvplan.errors import InputError, KvplanError
from kvplan.model import ModelSpec
from kvplan.profiles.loader import load_gpu
from kvplan.sources import read_model
from kvplan.units import GIB

H100 = load_gpu("h100")
MODELS = {
    name: read_model(name, offline=True)
    for name in (
        "meta-llama/Llama-3.1-8B-Instruct",
        "google/gemma-3-27b-it",
        "openai/gpt-oss-20b",
        "Qwen/Qwen3.5-9B",
        "deepseek-ai/DeepSeek-V3",
    )
}
DRAFT = read_model("meta-llama/Llama-3.2-1B-Instruct", offline=True)

ASKED: Mapping[str, Any] = {
    "gpu": load_gpu("l40s"),
    "gpu_memory_bytes": (700 * GIB,),
    "other_processes_bytes": 500 * GIB,
    "tensor_parallel": 8,
    "pipeline_parallel": 2,
    "pipeline_layers": (31, 1),
    "data_parallel": 2,
    "context_parallel": 2,
    "expert_parallel": True,
    "kv_dtype": "fp8",
    "cache_type_k": "q8_0",
    "cache_type_v": "q8_0",
    "max_model_len": 4096,
    "max_num_seqs": 7,
    "max_num_batched_tokens": 3072,
    "memory_utilization": Fraction(1, 2),
    "async_scheduling": False,
    "prefix_caching": False,
    "chunked_prefill": False,
    "hybrid_kv_cache_manager": False,
    "performance_mode": "throughput",
    "block_size": 64,
    "enforce_eager": True,
    "speculative_tokens": 2,
    "speculative_method": "ngram",
    "draft_model": DRAFT,
    "lora_slots": 4,
    "lora_rank": 64,
    "media_limits": (MediaLimit(modality="image", items=0), MediaLimit(modality="video", items=0)),
    "kv_memory_bytes": 3 * GIB,
    "kv_offload_bytes": 64 * GIB,
    "weight_bytes": 30 * GIB,
    "kv_unified": False,
    "swa_full": True,
    "window_pool_ratio": Fraction(1, 2),
    "state_pool_ratio": Fraction(1, 2),
    "corrections": (("weights", GIB),),
}
"""Option → a value that differs from every engine's default."""

BESIDE: Mapping[str, Mapping[str, Any]] = {
    "lora_rank": {"lora_slots": 4},
    "gpu": {"gpu_memory_bytes": None},
    "pipeline_layers": {"pipeline_parallel": 2},
    "speculative_method": {"speculative_tokens": 2, "speculative_method": "mtp"},
    "draft_model": {"speculative_tokens": 2, "speculative_method": "ngram"},
}
"""What must be asked besides, for the option to mean anything."""

OF_SOME_MODELS = {
    "hybrid_kv_cache_manager": "windows",
    "swa_full": "windows",
    "window_pool_ratio": "windows",
    "state_pool_ratio": "states",
    "block_size": "a hybrid's block follows its state",
    "media_limits": "encoders",
}
"""Options that have an object only in some models, and what that is."""


def without_question(answer: Fit) -> Fit:
    """The answer alone: the deployment that it carries names the option by itself."""
    return replace(answer, deployment=Deployment(data_parallel=answer.deployment.data_parallel))


def is_heeded(engine: str, model: ModelSpec, option: str) -> bool | None:
    """Whether asking for ``option`` changes the answer; None where the model is not planned at all."""
    deployment = replace(
        Deployment(engine=parse_engine(engine), gpu=H100, gpu_memory_bytes=(900 * GIB,), max_model_len=8192),
        **BESIDE.get(option, {}),
    )
    try:
        before = fit(model, deployment)
    except KvplanError:
        if option in BESIDE:
            return True  # what it belongs to is refused
        return None
    if option in BESIDE and before.verdict == CANNOT_TELL:
        return True  # what it belongs to is left out, and that is said
    try:
        after = fit(model, replace(deployment, **{option: ASKED[option]}))
    except KvplanError:
        return True
    return without_question(before) != without_question(after)


@pytest.mark.parametrize("option", [field.name for field in fields(Deployment) if field.name != "engine"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_option_is_used_or_refused(engine: str, option: str) -> None:
    answers = {name: is_heeded(engine, model, option) for name, model in MODELS.items()}
    planned = [heeded for heeded in answers.values() if heeded is not None]
    assert planned, "no model to ask"
    assert any(planned) if option in OF_SOME_MODELS else all(planned), answers


def test_every_field_of_a_deployment_is_an_option() -> None:
    assert {row.field for row in rows()} == {field.name for field in fields(Deployment)} - {"corrections"}
    keys = [key for row in rows() for key in row.keys]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("option", [name for name in ASKED if name != "corrections"])
def test_the_words_for_an_option_ask_for_it(option: str) -> None:
    """Written for a command line and read again, a deployment is the same."""
    asked = Deployment(**{"engine": parse_engine("sglang@0.5"), option: ASKED[option]})
    words, said = list(flag_words(asked)), dict[str, Any]()
    while words:
        word = words.pop(0).removeprefix("--")
        key = word.removeprefix("no-").replace("-", "_")
        option_type = next(row.option.type for row in rows() if row.key == key)
        said[key] = not word.startswith("no-") if option_type.cli_type is bool else option_type.cli_type(words.pop(0))
    given = replace(asked, pipeline_parallel=2) if option == "pipeline_layers" else asked
    assert deployment_of(read_options(said), offline=True) == given


def test_engines_declare_their_rare_options() -> None:
    rare = {row.field for row in rows() if row.option.rare}
    assert frozenset().union(*(engine.has for engine in every_engine())) == rare
    for name in ENGINES:
        engine = engine_of(name)
        assert engine.name == name
        for each in engine.unpriced:
            assert each.option not in rare - engine.has, "refused before it could be left out"


LEAVE_ADAPTERS_OUT = [
    engine.name for engine in every_engine() if any(e.option == "lora_slots" for e in engine.unpriced)
]


@pytest.mark.parametrize("engine", LEAVE_ADAPTERS_OUT)
def test_adapters_from_python_are_answered_as_from_the_command(engine: str) -> None:
    model = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
    answer = fit(model, Deployment(engine=parse_engine(engine), gpu=H100, max_model_len=8192, lora_slots=2))
    assert answer.verdict == CANNOT_TELL
    assert answer.findings[0].code == "max-loras-not-modelled"


TIGHT: tuple[Mapping[str, Any], ...] = (
    {},
    {"gpu_memory_bytes": (24 * GIB,)},
    {"max_num_seqs": 4000, "max_num_batched_tokens": 4096},
    {"other_processes_bytes": 30 * GIB},
    {"kv_memory_bytes": GIB},
    {"lora_slots": 2},
)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_fits_is_what_no_finding_calls_an_error(engine: str) -> None:
    """Nothing that keeps the engine from starting or serving stands beside "fits", and nothing else fails."""
    verdicts = set()
    for model in MODELS.values():
        for asked in TIGHT:
            try:
                answer = fit(model, replace(Deployment(engine=parse_engine(engine), gpu=H100), **asked))
            except KvplanError:
                continue
            errors = [finding for finding in answer.findings if finding.severity == "error"]
            assert (answer.verdict == FITS) == (not errors)
            assert answer.plan.starts or answer.verdict != FITS
            verdicts.add(answer.verdict)
    assert len(verdicts) > 1


def test_an_option_that_only_takes_memory_cannot_make_a_plan_fit() -> None:
    """Adapters of experts are not counted: a plan that fails without them fails; one that fits is not known."""
    experts = MODELS["deepseek-ai/DeepSeek-V3"]
    small = fit(experts, Deployment(gpu=H100, max_model_len=8192, lora_slots=2))
    large = fit(experts, Deployment(gpu=H100, gpu_memory_bytes=(900 * GIB,), max_model_len=8192, lora_slots=2))
    assert (small.verdict, large.verdict) == ("does_not_fit", CANNOT_TELL)
    dense = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
    assert fit(dense, Deployment(gpu=H100, max_model_len=8192, lora_slots=2)).verdict == FITS


def test_another_engines_option_is_an_input_error() -> None:
    model = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
    with pytest.raises(InputError, match=r"kv_unified is an option of llama\.cpp; vllm has no equivalent"):
        fit(model, Deployment(kv_memory_bytes=40 * GIB, kv_unified=False))
