"""The traffic file: what it may say, and what each mistake is answered with."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from kvplan.engines.deployment import Deployment, EngineVersion, MediaLimit
from kvplan.engines.options import rows
from kvplan.errors import InputError
from kvplan.profiles.loader import list_names
from kvplan.simulation.deployment import plan_deployment
from kvplan.traffic.arrival_processes import Diurnal, Gamma, OnOff, Poisson, Ramp, Recorded
from kvplan.traffic.distributions import Choice, Choices, Constant, Lognormal, Quantiles
from kvplan.traffic.file.deployment import DeploymentShape, OwnShape
from kvplan.traffic.file.template import TEMPLATE, template_for
from kvplan.traffic.load import load_traffic, parse_traffic
from kvplan.traffic.prefixes import SharedPrefix
from kvplan.traffic.spec import KvPool, Limit, RetryAfter, StepCost, Traffic
from tests.models import LLAMA_CONFIG

CLASS = "traffic.classes.0"
MINIMAL = """\
traffic:
  duration: 60s
  classes:
    - name: chat
      rate: 6/s
      prompt_tokens: {lognormal: {p50: 1020, p95: 4083}}
      output_tokens: 129
"""


def parse(text: str) -> Traffic:
    return parse_traffic(text, file="mix.yaml")


def complaint(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse(text)
    return caught.value


def test_a_minimal_file() -> None:
    traffic = parse(MINIMAL)
    (entry,) = traffic.classes
    assert (entry.rate_per_s, entry.arrivals, entry.max_tokens) == (6.0, Poisson(), Constant(value=0))
    assert (entry.prompt_tokens, entry.output_tokens) == (Lognormal(p50=1020, p95=4083), Constant(value=129))
    assert (traffic.duration_s, traffic.seed, traffic.reservation_quantile) == (60.0, 0, 0.95)
    assert (traffic.admission.policy, traffic.admission.safety_fraction) == ("worst_case", 1.0)


def test_every_block_of_the_file() -> None:
    traffic = parse(
        """\
model: org/name
deployment:
  gpu_memory: [79.18GiB, 80GB]
  replicas: 2
  router: least_reserved
  max_model_len: 32768
  gpu_memory_utilization: 0.92
  prefix_caching: false
  kv_pool: {blocks: 2588, block_tokens: 16}
  service: {base_s: 0.008, prefill_token_s: 25e-6, decode_sequence_s: 4.0e-5, kv_token_s: 4e-8}
admission:
  policy: worst_case_default_cap
  safety_fraction: 0.9
  default_max_tokens: 2048
  concurrency: 256
  retry_after: {seconds: 2}
traffic:
  duration: 30m
  seed: 7
  ramp: {start: 1, end: 3}
  classes:
    - name: a
      rate: 90/min
      arrivals: {gamma: {cv: 2.5}}
      prompt_tokens: {uniform: {min: 10, max: 20}}
      output_tokens: {histogram: {edges: [0, 100, 200], shares: [0.25, 0.75]}}
      max_tokens: {choices: [{unset: true, share: 0.55}, {value: 4096, share: 0.45}]}
      timeout: 600s
      cancel_share: 0.02
    - name: b
      rate: 2/h
      arrivals: {on_off: {on: 20s, off: 40s, off_share: 0.1}}
      prompt_tokens: {quantiles: {p0: 1, p50: 100, p100: 900}}
      output_tokens: {exponential: {mean: 200, max: 4000}}
      max_tokens: {value: 1024}
    - name: c
      rate: 1/s
      arrivals: {diurnal: {period: 12h, peak_to_mean: 1.8, peak_at: 3h}}
      prompt_tokens: 5
      output_tokens: 5
    - name: d
      rate: 1/s
      arrivals: {recorded: {step: 1m, counts: [3, 0.5, 9], cv: 1.5}}
      prompt_tokens: 500
      output_tokens: {uniform: {min: 10, max: 20}}
      length_correlation: -0.4
      shared_prefix: {tokens: 300, groups: 4, lifetime: 5m}
reservation_quantile: 0.99
limits:
  refused_share: {max: 0.01}
  worst_case_reservations:
    - {class: a, min: 40}
    - {class: b, min: 10}
  kv_pool_bytes: {min: 40GiB}
"""
    )
    deployment, (a, b, c, d) = traffic.deployment, traffic.classes
    assert deployment.gpu_memory_bytes == (85018877624, 80 * 10**9)
    assert deployment.kv_pool == KvPool(blocks=2588, block_tokens=16)
    assert deployment.service == StepCost(base_s=0.008, prefill_token_s=25e-6, decode_sequence_s=4e-5, kv_token_s=4e-8)
    assert traffic.admission.retry_after == RetryAfter(seconds=2.0, jitter_share=0.0)
    assert traffic.ramp == Ramp(start=1, end=3)
    assert (a.rate_per_s, b.rate_per_s, a.timeout_s) == (1.5, 2 / 3600, 600.0)
    assert (a.arrivals, b.arrivals, c.arrivals) == (
        Gamma(cv=2.5),
        OnOff(on_s=20, off_s=40, off_share=0.1),
        Diurnal(period_s=43200, peak_to_mean=1.8, peak_at_s=10800),
    )
    assert a.max_tokens == Choices(choices=(Choice(value=0, share=0.55), Choice(value=4096, share=0.45)))
    assert d.arrivals == Recorded(step_s=60.0, counts=(3.0, 0.5, 9.0), cv=1.5)
    assert d.length_correlation == -0.4
    assert d.shared_prefix == SharedPrefix(tokens=Constant(value=300), groups=4, lifetime_s=300.0)
    assert b.prompt_tokens == Quantiles(points=((0.0, 1.0), (0.5, 100.0), (1.0, 900.0)))
    assert traffic.limits == (
        Limit(name="refused_share", maximum=0.01, line=50),
        Limit(name="worst_case_reservations", minimum=40, class_name="a", line=52),
        Limit(name="worst_case_reservations", minimum=10, class_name="b", line=53),
        Limit(name="kv_pool_bytes", minimum=40 * 2**30, line=54),
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "message", "hint"),
    [
        ("rate: 6/s", "rat: 6/s", 5, CLASS + ".rat", "unknown key 'rat'", "did you mean 'rate'?"),
        ("rate: 6/s", "rate: -6/s", 5, CLASS + ".rate", "not a rate", "per unit of time"),
        ("rate: 6/s", "rate: 0/s", 5, CLASS + ".rate", "is zero", None),
        ("rate: 6/s", "rate: 6", 5, CLASS + ".rate", "6 has no unit", "unit: 6/s"),
        ("rate: 6/s", "rate: .nan", 5, CLASS + ".rate", ".nan is not a finite number", None),
        ("p50: 1020", "p50: .inf", 6, CLASS + ".prompt_tokens.lognormal.p50", "not a finite number", None),
        ("p50: 1020", "p50: -3", 6, CLASS + ".prompt_tokens.lognormal.p50", "greater than or equal to 1", None),
        ("p50: 1020", "p50: 9000", 6, CLASS + ".prompt_tokens.lognormal", "below p50", None),
        ("p50: 1020, ", "", 6, CLASS + ".prompt_tokens.lognormal.p50", "is missing", None),
        ("{lognormal: {p50: 1020, p95: 4083}}", "{}", 6, CLASS + ".prompt_tokens", "exactly one of", None),
        ("output_tokens: 129", "output_tokens: 0", 7, CLASS + ".output_tokens", "or equal to 1", None),
        ("output_tokens: 129", "output_tokens: true", 7, CLASS + ".output_tokens", "not true", None),
        ("      output_tokens: 129\n", "", 4, CLASS, "output_tokens missing", None),
        ("duration: 60s", "duration: 60", 2, "traffic.duration", "60 has no unit", "unit: 60s"),
        ("duration: 60s", "duration: 60 parsecs", 2, "traffic.duration", "not a duration", "250ms, 30s"),
        ("  duration: 60s\n", "", 1, "traffic", "the key 'duration' is missing", "30m"),
        ("", "rate: 7/s", 6, CLASS + ".rate", "appears twice (first on line 5)", None),
        ("", "client: no-such-client", 6, CLASS + ".client", "not a known client", ""),
        ("", "shared_prefix: {groups: 2}", 6, CLASS + ".shared_prefix.tokens", "is missing", None),
        ("", "shared_prefix: {tokens: 9, groups: 0}", 6, CLASS + ".shared_prefix.groups", "to 1", None),
        ("", "shared_prefix: {tokens: 9, lifetime: 0s}", 6, CLASS + ".shared_prefix.lifetime", "longer than 0 s", None),
        ("", "shared_prefix: {token: 9}", 6, CLASS + ".shared_prefix.token", "unknown", "'tokens'"),
        ("", "length_correlation: 2", 6, CLASS + ".length_correlation", "equal to 1", None),
        ("", "arrivals: {recorded: {step: 1s, counts: [0, 0]}}", 6, CLASS + ".arrivals.recorded", "no arrival", None),
        ("traffic:", "deployment: {gpu: h1000}", 1, "deployment.gpu", "not a known GPU", "nearest"),
        ("traffic:", "admission: {safety_fraction: 1.5}", 1, "admission.safety_fraction", "not 1.5", None),
        ("traffic:", "limits: {refusd_share: {max: 1}}", 1, "limits.refusd_share", "unknown", "refused_share"),
        ("traffic:", "limits: {refused_share: {}}", 1, "limits.refused_share", "give min or max", None),
        ("traffic:", "limits: {preemptions: []}", 1, "limits.preemptions", "must be a block of keys, not []", None),
        ("traffic:", "limits: {preemptions: {min: 5, max: 1}}", 1, "limits.preemptions", "at least 5 and", None),
        ("traffic:", "limits: {kv_pool_bytes: {min: 4}}", 1, "limits.kv_pool_bytes", "no unit", "40GiB"),
        ("traffic:", "limits: {ttft_p99_s: {class: x, max: 1}}", 1, "limits.ttft_p99_s", "no class 'x'", "chat"),
        ("traffic:", "deployment: {engine: vlm}", 1, "deployment.engine", "not an engine", "one of vllm"),
        ("", "arrivals: posson", 6, CLASS + ".arrivals", "'posson' is not", "'poisson'?"),
        ("", "arrivals: {gamma: 2}", 6, CLASS + ".arrivals.gamma", "keys, not 2", None),
        ("", "hash_block_tokens: 9", 4, CLASS, "belong to a trace", None),
        ("", "max_tokens: {choices: []}", 6, CLASS + ".max_tokens.choices", "1 or more", None),
        ("traffic:", "trafic: 1", 1, "trafic", "unknown key 'trafic'", "did you mean 'traffic'?"),
    ],
)
def test_mistakes_are_answered_with_their_place(
    old: str, new: str, line: int, key: str, message: str, hint: str | None
) -> None:
    """``new`` in the place of ``old``: behind the rate where that is empty, and above ``traffic:``."""
    new = {"": f"rate: 6/s\n      {new}", "traffic:": f"{new}\ntraffic:"}.get(old, new)
    old = old or "rate: 6/s"
    assert old in MINIMAL
    error = complaint(MINIMAL.replace(old, new, 1))
    assert (error.file, error.line, error.key) == ("mix.yaml", line, key)
    assert message in error.message
    assert hint is None or hint in (error.hint or "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b\n", "no keys and values"),
        ("just words", "no keys and values"),
        ("traffic:\n\tduration: 5s\n", "a tab is used for indentation"),
        ("traffic: [1, 2\n", "not valid YAML"),
        ("traffic: {duration: 5s, classes: []}\n", "1 or more entries"),
        ("traffic: null\n", "block of keys"),
        ("a: &x [*x]\n", "nested too deeply"),
        ("traffic: !!python/object:os.system {}\n", "is not supported"),
        ("traffic: !!python/name:os.system\n", "is not supported"),
        ("\x00", "not valid YAML"),
    ],
)
def test_files_that_are_not_traffic_files(text: str, message: str) -> None:
    assert message in complaint(text).message


def test_aliases_of_aliases_are_not_written_out() -> None:
    """Nine lists, each of nine times the one before, would be 9⁹ = 387,420,489 words."""
    names = "abcdefghi"
    laughs = "".join(f"{name}: &{name} [{', '.join(9 * [f'*{before}'])}]\n" for before, name in pairwise(names))
    error = complaint("a: &a [x, x, x, x, x, x, x, x, x]\n" + laughs)
    assert "more than 200,000 values" in error.message
    assert error.line is not None


@pytest.mark.parametrize("law", ["lognormal: {p50: 1.0e-320, p95: 100}", "exponential: {mean: 0.001}"])
def test_a_typical_length_is_a_token_at_least(law: str) -> None:
    error = complaint(MINIMAL.replace("lognormal: {p50: 1020, p95: 4083}", law))
    assert (error.line, "greater than or equal to 1" in error.message) == (6, True)


@pytest.mark.parametrize("name", ["a\\nb", "\\e[2J", "\\u202e"])
def test_a_name_can_be_printed(name: str) -> None:
    error = complaint(MINIMAL.replace("name: chat", f'name: "{name}"'))
    assert (error.line, "cannot be printed" in error.message) == (4, True)


def test_shares_must_sum_to_one() -> None:
    text = MINIMAL + "      max_tokens: {choices: [{unset: true, share: 0.5}, {value: 10, share: 0.4}]}\n"
    error = complaint(text)
    assert "shares sum to 0.9, not 1" in error.message
    assert error.line == 8


def test_only_max_tokens_can_be_unset() -> None:
    text = MINIMAL.replace("output_tokens: 129", "output_tokens: {choices: [{unset: true, share: 1.0}]}")
    assert "only max_tokens can be unset" in complaint(text).message


def test_two_classes_of_one_name() -> None:
    error = complaint(MINIMAL + MINIMAL.split("classes:\n")[1])
    assert "two classes are called 'chat'" in error.message
    assert error.line == 8


def test_a_folder_a_missing_and_a_huge_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        load_traffic(tmp_path)
    with pytest.raises(InputError, match="no traffic file 'cha'") as caught:
        load_traffic("cha")
    assert "chat" in (caught.value.hint or "")
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * (4 * 2**20 + 1))
    with pytest.raises(InputError, match="is larger than 4 MiB"):
        load_traffic(huge)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("model: Müller".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        load_traffic(latin)


def test_a_trace_is_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    file = tmp_path / "mix.yaml"
    file.write_text("traffic: {classes: [{name: r, trace: t.csv, scale: 2.0, max_tokens: {value: 9}}]}\n")
    traffic = load_traffic(file)
    assert traffic.duration_s is None
    assert traffic.classes[0].trace is not None
    assert (traffic.classes[0].trace.path, traffic.classes[0].trace.scale) == (str(tmp_path / "t.csv"), 2.0)
    file.write_text("traffic: {classes: [{name: r, trace: u.csv}]}\n")
    with pytest.raises(InputError, match="there is no trace") as caught:
        load_traffic(file)
    assert (caught.value.line, caught.value.key) == (1, "traffic.classes.0.trace")
    file.write_text("traffic: {classes: [{name: r, trace: t.csv, rate: 6/s}]}\n")
    with pytest.raises(InputError, match="a replayed trace brings its own rate"):
        load_traffic(file)


def test_overrides_are_validated_like_the_file() -> None:
    traffic = parse_traffic(
        MINIMAL, file="mix.yaml", overrides={"safety_fraction": 0.8, "max_model_len": 4096, "traffic.seed": 3}
    )
    assert (traffic.admission.safety_fraction, traffic.deployment.max_model_len, traffic.seed) == (0.8, 4096, 3)
    with pytest.raises(InputError, match=r"less than or equal to 1, not 2\.0"):
        parse_traffic(MINIMAL, file="mix.yaml", overrides={"safety_fraction": 2.0})
    with pytest.raises(InputError, match="not a key of a traffic file"):
        parse_traffic(MINIMAL, file="mix.yaml", overrides={"safety": 2.0})


@pytest.mark.parametrize("name", ["traffic..seed", ".seed", "traffic.", "."])
def test_an_override_names_every_part_of_its_path(name: str) -> None:
    with pytest.raises(InputError, match="has an empty part") as caught:
        parse_traffic(MINIMAL, file="mix.yaml", overrides={name: 5})
    assert caught.value.key == name


def test_an_override_stands_for_every_word_of_its_option() -> None:
    said = "deployment: {gpu_memory_utilization: 0.9, pp_layers: [3, 4]}\n" + MINIMAL
    given = {"mem_fraction_static": 0.8, "pp_layers": "5, 2", "kv_dtype": "bf16"}
    deployment = parse_traffic(said, file="mix.yaml", overrides=given).deployment
    assert (deployment.memory_utilization, deployment.pipeline_layers) == (Fraction(8, 10), (5, 2))
    assert deployment.kv_dtype == "bfloat16"


def test_an_entry_of_a_list_is_overridden_by_its_number() -> None:
    assert parse_traffic(MINIMAL, file="m", overrides={f"{CLASS}.rate": "3/s"}).classes[0].rate_per_s == 3
    for key, message in (
        ("traffic.classes.rate", "'rate' is not an entry of that list"),
        ("traffic.classes.1.rate", "'1' is not an entry of that list"),
        ("traffic.duration.s", "there is no 's' inside a single value"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            parse_traffic(MINIMAL, file="m", overrides={key: 3})
        assert caught.value.key == key
        assert caught.value.hint == (
            "give an entry by its number: 0 chat" if "classes" in key else "kvplan explain traffic"
        )


def test_every_option_of_a_deployment_is_a_key_of_the_file() -> None:
    keys = {key for row in rows() for key in row.keys}
    assert keys == set(DeploymentShape.model_fields) - set(OwnShape.model_fields)
    for key in keys:
        assert f"unknown key '{key}x'" in complaint(f"deployment: {{{key}x: 1}}\n" + MINIMAL).message


def test_options_of_fit_reach_the_engine() -> None:
    said = """\
deployment:
  engine: sglang
  pp_layers: [20, 12]
  speculative_method: draft_model
  speculative_tokens: 3
  draft_model: meta-llama/Llama-3.2-1B-Instruct
  max_loras: 2
  max_lora_rank: 64
  limit_mm_per_prompt: {image: 2, video: {count: 1, tokens: 9000}, audio: 0}
  kv_memory: 10GiB
  kv_offload: 20GiB
  mem_fraction_static: 0.85
  kv_unified: true
  swa_full: true
  swa_full_tokens_ratio: 0.8
  mamba_full_memory_ratio: 0.9
  weights_bytes: 16GB
"""
    asked = plan_deployment(parse(said + MINIMAL).deployment, offline=True)
    assert asked.draft_model is not None
    assert asked.draft_model.id == "meta-llama/Llama-3.2-1B-Instruct"
    assert replace(asked, draft_model=None) == Deployment(
        engine=EngineVersion(name="sglang"),
        pipeline_parallel=2,
        pipeline_layers=(20, 12),
        speculative_method="draft_model",
        speculative_tokens=3,
        lora_slots=2,
        lora_rank=64,
        media_limits=(
            MediaLimit(modality="image", items=2),
            MediaLimit(modality="video", items=1, item_tokens=9000),
            MediaLimit(modality="audio", items=0),
        ),
        kv_memory_bytes=10 * 2**30,
        kv_offload_bytes=20 * 2**30,
        memory_utilization=Fraction(85, 100),
        kv_unified=True,
        swa_full=True,
        window_pool_ratio=Fraction(8, 10),
        state_pool_ratio=Fraction(9, 10),
        weight_bytes=16 * 10**9,
    )


@pytest.mark.parametrize(
    ("said", "key", "message", "hint"),
    [
        ("tensor_parallel: two", "tensor_parallel", "must be a whole number, not 'two'", None),
        ("tensor_parallel: 1.5", "tensor_parallel", "must be a whole number, not 1.5", None),
        ("kv_dtype: 8", "kv_dtype", "must be text, not 8", None),
        ("kv_dtype: true", "kv_dtype", "must be text, not true", None),
        ("kv_dtype: ''", "kv_dtype", "must be text, not ''", None),
        ("enforce_eager: yes please", "enforce_eager", "must be true or false, not 'yes please'", None),
        ("pp_layers: {a: 1}", "pp_layers", "must be a list, not {a: 1}", None),
        ("kv_pool: 12GiB", "kv_pool", "must be a block of keys, not '12GiB'", None),
        ("mem_fraction_static: 1.5", "mem_fraction_static", "must be less than or equal to 1, not 1.5", None),
        ("gpu_memory_utilization: 90 %", "gpu_memory_utilization", "90 % is not a share", "not a percentage: 0.9"),
        ("other_processes: 12", "other_processes", "12 is 12 bytes", "add the unit: other_processes: 12GiB"),
        ("gpu_memory: [80GiB, 81]", "gpu_memory", "81 is 81 bytes", "gpu_memory: 81GiB"),
        ("{weights_bytes: 1GiB, weight_bytes: 1GiB}", "weight_bytes", "set the same option", "one of them"),
    ],
)
def test_a_wrong_value_is_reported_by_its_key_in_the_file(said: str, key: str, message: str, hint: str | None) -> None:
    block = said if said.startswith("{") else f"\n  {said}"
    error = complaint(f"deployment: {block}\n" + MINIMAL)
    assert (error.key, error.line) == (f"deployment.{key}", 1 if said.startswith("{") else 2)
    assert message in error.message
    assert hint is None or hint in (error.hint or "")


@pytest.mark.parametrize(
    ("old", "new", "key", "hint"),
    [
        ("max_tokens: {unset: true}", "max_tokens: unset", f"{CLASS}.max_tokens", "{unset: true}"),
        ("output_tokens: 100", "output_tokens: 1_000", f"{CLASS}.output_tokens", "a whole number, or"),
        ("limits: {}", "limits: {refused_share: 0.05}", "limits.refused_share", "refused_share: {max: 0.05}"),
    ],
)
def test_a_value_where_a_block_is_wanted_is_shown_as_one(old: str, new: str, key: str, hint: str) -> None:
    text = (
        "traffic: {duration: 60s, classes: [{name: a, rate: 6/s, prompt_tokens: 100, output_tokens: 100, "
        "max_tokens: {unset: true}}]}\nlimits: {}\n"
    )
    assert old in text
    error = complaint(text.replace(old, new))
    assert error.key == key
    assert hint in (error.hint or "")


def test_more_replicas_than_any_site_has_are_refused() -> None:
    assert "less than or equal to 10000" in complaint("deployment: {replicas: 1000000000}\n" + MINIMAL).message


def test_a_pool_is_given_once() -> None:
    error = complaint("deployment: {kv_memory: 1GiB, kv_pool: {blocks: 9}}\n" + MINIMAL)
    assert "give one of them" in error.message


@pytest.mark.parametrize("name", list_names("traffic"))
def test_bundled_mixes_load(name: str) -> None:
    traffic = load_traffic(name)
    assert traffic.limits
    assert "\nsources:\n" in Path(traffic.file).read_text(encoding="utf-8")


def test_periods_too_short_to_draw_are_refused() -> None:
    text = MINIMAL.replace("rate: 6/s", "rate: 1/h\n      arrivals: {on_off: {on: 1ms, off: 1ms}}").replace(
        "60s", "30d"
    )
    assert "periods in one run" in complaint(text).message
    text = MINIMAL.replace("rate: 6/s", "rate: 1/h\n      arrivals: {diurnal: {period: 1ms}}").replace("60s", "30d")
    assert complaint(text).line == 6


def test_the_template_is_written_for_ranks_and_a_window() -> None:
    deployment = parse_traffic(
        template_for(
            "meta-llama/Llama-3.1-70B-Instruct", "h200", None, tensor_parallel=4, max_model_len="16k", offline=True
        ),
        file="x",
    ).deployment
    assert (deployment.tensor_parallel, deployment.max_model_len) == (4, 16_000)
    alone = parse_traffic(template_for(None, None, None, tensor_parallel=2, offline=True), file="x").deployment
    assert (alone.tensor_parallel, alone.gpu_name, alone.max_model_len) == (2, "h100", 32_768)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (("Qwen/Qwen3-32B", "h100", None), ("Qwen/Qwen3-32B", "h100", "vllm", 1, 32768, 256)),
        # 61 GiB of weights in 41 GiB: two GPUs; a window of 1,024 is all that GPT-2 has (its config's n_positions)
        (("Qwen/Qwen3-32B", "l40s", "vllm@0.20"), ("Qwen/Qwen3-32B", "l40s", "vllm@0.20", 2, 32768, 256)),
        (("openai-community/gpt2", None, None), ("openai-community/gpt2", "h100", "vllm", 1, 1024, 256)),
        # llama.cpp splits its window among its slots, so it keeps its own number of them
        ((None, "4090", "llama.cpp"), ("meta-llama/Llama-3.1-8B-Instruct", "4090", "llama.cpp", 1, 32768, None)),
    ],
)
def test_the_template_is_written_for_a_model_a_gpu_and_an_engine(
    given: tuple[str | None, ...], found: tuple[object, ...]
) -> None:
    text = template_for(*given, offline=True)
    traffic, deployment = parse_traffic(text, file="x"), parse_traffic(text, file="x").deployment
    assert found == (
        traffic.model,
        deployment.gpu_name,
        str(deployment.engine),
        deployment.tensor_parallel,
        deployment.max_model_len,
        deployment.max_num_seqs,
    )
    assert text.count("\n") == TEMPLATE.count("\n")
    assert max(map(len, text.splitlines())) <= 80


def test_a_template_for_an_unknown_gpu_or_engine_is_refused() -> None:
    for given, word in (((None, "h1000", None), "h1000"), ((None, None, "trition"), "trition")):
        with pytest.raises(InputError, match=word):
            template_for(*given, offline=True)


def test_a_model_of_any_name_is_quoted_where_yaml_needs_it(tmp_path: Path) -> None:
    folder = tmp_path / "my model: #1"
    folder.mkdir()
    config = LLAMA_CONFIG | {"num_hidden_layers": 2, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    traffic = parse_traffic(template_for(str(folder), "l4", None, offline=True), file="x")
    assert (traffic.model, traffic.deployment.max_model_len) == (str(folder), 4096)
