"""The search for a cap and a fraction, what comes with it, and the file that is written with them."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.recommend import Advice, recommend, recommended_text, safety_fraction
from kvplan.recommend.advice import engine_metrics, scaling_rules
from kvplan.recommend.caps import broken, candidates, knee, meets, per_class
from kvplan.recommend.results import CapPoint, Constraints, Played
from kvplan.recommend.safety import largest_safe_fraction, look_ahead_share
from kvplan.recommend.sensitivity import variations
from kvplan.simulation.backend import build_backend
from kvplan.traffic.distributions import Choices, Lognormal
from kvplan.traffic.load import load_traffic, parse_traffic
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic

MIX = """\
deployment:
  max_model_len: 2048
  max_num_seqs: 32
  max_num_batched_tokens: 2048
  prefix_caching: false
  kv_pool: {{blocks: {blocks}, block_tokens: 16}}
  service: {{base_s: 0.01, prefill_token_s: 0.00002, decode_sequence_s: 0.0001, kv_token_s: 0.0000001}}
admission: {{policy: {policy}}}
traffic:
  duration: 60s
  seed: 5
  classes:
    - name: a
      rate: {rate}/s
      prompt_tokens: {{lognormal: {{p50: 200, p95: 600}}}}
      output_tokens: {{lognormal: {{p50: 60, p95: 240}}}}
      max_tokens: {caps}
      client: openai-python
"""


def mix(policy: str = "worst_case", *, rate: int = 8, caps: str = "{unset: true}", blocks: int = 1001) -> Traffic:
    return parse_traffic(MIX.format(policy=policy, rate=rate, caps=caps, blocks=blocks), file="mix.yaml")


@pytest.fixture(scope="module")
def found() -> Advice:
    return recommend(mix(), seeds=2, workers=1)


def test_truncation_falls_and_refusal_rises_with_the_cap(found: Advice) -> None:
    caps = [point.default_max_tokens for point in found.caps]
    truncated = [point.truncated_share for point in found.caps]
    refused = [point.played.refused_share for point in found.caps]
    assert caps == sorted(caps)
    assert len(caps) >= 3
    assert truncated == sorted(truncated, reverse=True)
    assert refused == sorted(refused)
    assert truncated[0] > 0.01 > truncated[-1]
    assert found.default_max_tokens in caps
    assert found.safety_fraction == 1.0  # a measured pool, the engine counts, and no drafts
    assert found.feasible
    assert found.failed == ()


def test_a_smaller_share_refuses_more_and_none_preempts(found: Advice) -> None:
    within = [point for point in found.fractions if point.safety_fraction <= 1]
    refused = [point.played.refused_share for point in within]
    assert refused == sorted(refused, reverse=True)
    assert not any(point.played.preemptions for point in within)


def test_the_price_of_safety(found: Advice) -> None:
    price = found.price
    assert price.worst_case_sequences < price.expected_sequences
    assert price.pool_idle_when_full_share is not None
    assert 0 < price.pool_idle_when_full_share < 1
    assert price.pool_idle_share == 1 - found.answer.kv_used_mean_share
    assert price.answer == found.answer


def test_it_is_the_same_each_time(found: Advice) -> None:
    again = recommend(mix(), seeds=2, workers=1)
    for name in ("caps", "fractions", "sensitivity", "check", "price", "fleet", "retry", "engine", "runs"):
        assert getattr(again, name) == getattr(found, name)
    assert recommend(mix(), seeds=2, seed=6, workers=1).caps != found.caps


def test_every_assumption_is_varied(found: Advice) -> None:
    assert [(row.what, row.factor) for row in found.sensitivity] == [
        ("as assumed", 1.0),
        ("share without max_tokens", 0.8),
        ("rate", 0.8),
        ("rate", 1.2),
        ("p95 of answers", 0.8),
        ("p95 of answers", 1.2),
    ]  # more than all cannot be unset
    longer = next(row for row in found.sensitivity if (row.what, row.factor) == ("p95 of answers", 1.2))
    shorter = next(row for row in found.sensitivity if (row.what, row.factor) == ("p95 of answers", 0.8))
    assert shorter.truncated_share <= longer.truncated_share


def test_a_variation_moves_one_thing() -> None:
    traffic = mix(caps="{choices: [{unset: true, share: 0.5}, {value: 64, share: 0.3}, {value: 128, share: 0.2}]}")
    changed = {(one.what, one.factor): one for one in variations(traffic, 1.0)}
    law = changed["share without max_tokens", 1.2].traffic.classes[0].max_tokens
    assert isinstance(law, Choices)
    assert [(one.value, round(one.share, 9)) for one in law.choices] == [(0, 0.6), (64, 0.24), (128, 0.16)]
    answers = changed["p95 of answers", 0.8].traffic.classes[0].output_tokens
    assert isinstance(answers, Lognormal)
    assert (answers.p50, answers.p95) == (60, 192)
    assert changed["rate", 1.2].scale == 1.2
    assert changed["rate", 1.2].traffic == traffic


def test_the_default_changes_nothing_where_all_send_a_cap() -> None:
    found = recommend(mix(caps="64"), seeds=1, workers=1)
    assert found.caps == ()
    assert found.default_max_tokens is None
    assert "changes nothing" in found.knee
    assert found.own_cap_truncated_share > 0.1
    assert found.truncated_share == 0


def test_traffic_that_one_replica_cannot_carry_says_how_many_can() -> None:
    crowd = replace(mix(rate=40, blocks=201), duration_s=20.0)
    found = recommend(crowd, seeds=1, workers=1)
    assert not found.feasible
    assert "refused_share" in [failed.name for failed in found.failed]
    needed = found.fleet.needed
    assert needed is not None
    assert needed > 1
    assert found.fleet.played is not None
    assert found.fleet.played.refused_share <= 0.01
    fewer = recommend(replace(crowd, deployment=replace(crowd.deployment, replicas=needed)), seeds=1, workers=1)
    assert fewer.feasible
    assert fewer.fleet.needed == needed


def test_a_limit_that_no_cap_meets_is_named() -> None:
    endless = replace(mix().classes[0], name="endless", rate_per_s=1.0, output_tokens=Lognormal(p50=1e6, p95=1e6))
    traffic = replace(mix(), classes=(*mix().classes, endless))
    found = recommend(traffic, seeds=1, workers=1)
    assert not found.feasible
    assert ("truncated_share", "no cap meets it") in [(failed.name, failed.needs) for failed in found.failed]
    assert found.fleet.needed is None
    assert found.per_class_unbounded == ("endless",)
    slow = recommend(mix(), seeds=1, workers=1, max_e2e_p99_s=0.05)
    assert "e2e_p99_s" in [failed.name for failed in slow.failed]
    assert slow.fleet.needed is None
    assert "too slow" in slow.fleet.reason


def test_a_policy_that_overcommits_gets_the_fraction_at_which_it_does_not_preempt() -> None:
    found = recommend(mix("prompt_only", rate=16, blocks=201), seeds=1, workers=1, max_refused_share=1.0)
    assert found.policy == "prompt_only"
    assert found.safety_fraction == found.safety.risk_free_fraction < 1.0
    assert "preempts" in found.safety.binds
    assert found.answer.preemptions == 0


def test_a_policy_without_a_ledger_is_replaced_by_one_with() -> None:
    found = recommend(mix("none"), seeds=1, workers=1)
    assert found.policy == "worst_case_default_cap"
    assert "promises nothing" in found.assumptions[0]


def test_constraints_come_from_the_caller_the_file_or_the_default() -> None:
    text = MIX.format(policy="worst_case", rate=2, caps="{unset: true}", blocks=1001)
    traffic = parse_traffic(text + "limits: {refused_share: {max: 0.2}, e2e_p99_s: {max: 40}}\n", file="mix.yaml")
    found = recommend(traffic, seeds=1, workers=1, max_e2e_p99_s=30)
    assert found.constraints == Constraints(max_truncated_share=0.01, max_refused_share=0.2, max_e2e_p99_s=30)
    assert dict(found.constraint_sources) == {
        "truncated_share": "the default",
        "refused_share": "the file's limits",
        "e2e_p99_s": "asked for",
    }


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"max_truncated_share": 2.0}, "between 0 and 1"),
        ({"max_e2e_p99_s": 0.0}, "not above zero"),
        ({"count_error_share": 1.0}, "below 1"),
        ({"scale": 0.0}, "not above zero"),
        ({"seeds": 0}, "at least one seed"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        recommend(mix(), **values)  # type: ignore[arg-type]


def played(**values: float) -> Played:
    figures = {
        **dict.fromkeys((field.name for field in fields(Played)), 0), "refused_interval": (0, 0), "e2e_p99_s": 2.0,
        "kv_used_mean_share": 0.2, "kv_reserved_mean_share": 0.4, **values,
    }  # fmt: skip
    return Played(**figures)  # type: ignore[arg-type]


def point(cap: int, truncated: float, refused: float, limits: Constraints) -> CapPoint:
    figures = played(refused_share=refused)
    return CapPoint(
        default_max_tokens=cap, truncated_share=truncated, played=figures, feasible=meets(figures, truncated, limits)
    )


def curve(limits: Constraints) -> list[CapPoint]:
    shares = ((128, 0.2, 0.0), (256, 0.009, 0.001), (512, 0.002, 0.007), (1024, 0.0, 0.2))
    return [point(cap, truncated, refused, limits) for cap, truncated, refused in shares]


@pytest.mark.parametrize(
    ("truncated", "refused", "chosen"),
    [
        (0.01, 0.01, 512),  # 0.2 + 0.7 against 0.9 + 0.1 of the limits
        (0.01, 0.005, 256),
        (0.005, 0.01, 512),
        (0.001, 0.002, 512),  # none meets both; the worst miss is 3.5 limits, of the others 200, 9 and 100
    ],
)
def test_the_knee_between_two_curves(truncated: float, refused: float, chosen: int) -> None:
    limits = Constraints(max_truncated_share=truncated, max_refused_share=refused)
    assert knee(curve(limits), limits).default_max_tokens == chosen


def test_a_request_that_can_never_be_served_counts_as_refused() -> None:
    limits = Constraints(max_refused_share=0.01)
    assert broken(played(rejected_permanently_share=0.05), 0.0, limits) == [("refused_share", 0.01, 0.05)]
    late = Constraints(max_e2e_p99_s=1.0)
    assert broken(played(), 0.0, late) == [("e2e_p99_s", 1.0, 2.0)]
    assert broken(played(e2e_p99_s=None), 0.0, late) == [("e2e_p99_s", 1.0, None)]  # type: ignore[arg-type]


def test_a_class_without_end_gets_the_overall_cap() -> None:
    traffic = load_traffic("chat")
    drawings = [sample(traffic, 1), sample(traffic, 2)]
    caps, unbounded = per_class(drawings, 32768, Constraints(), 1024)
    assert unbounded == ("endless",)
    assert {one.name: one.default_max_tokens for one in caps}["endless"] == 1024
    assert 512 <= {one.name: one.default_max_tokens for one in caps}["chat"] <= 1024
    assert 1024 in candidates(drawings, 32768, Constraints())


def test_the_terms_of_the_fraction() -> None:
    backend = build_backend(mix())
    assert safety_fraction(backend, count_error_share=0.05)[0] == 0.95
    fraction, terms, binds = safety_fraction(backend, count_error_share=0.05, look_ahead_share=0.1, band_share=0.02)
    assert fraction == 0.83  # 0.9 × 0.98 × 0.95 = 0.8379
    assert terms == {"look_ahead_share": 0.1, "budget_band_share": 0.02, "token_count_share": 0.05}
    assert binds.startswith("draft tokens")
    assert safety_fraction(backend, risk_free=0.6)[2].startswith("above 0.60 ")
    assert look_ahead_share(backend, 0, 9.0) == 0.0
    assert look_ahead_share(backend, 3, 9.0) == 0.1  # 3 drafts take a tenth block
    assert largest_safe_fraction(lambda fraction: fraction <= 0.04) == 0.0


def test_scaling_names_the_engine_s_own_gauges() -> None:
    assert engine_metrics("vllm").kv_usage == "vllm:kv_cache_usage_perc"
    assert engine_metrics("vllm@0.10").kv_usage == "vllm:kv_cache_usage_perc"
    assert engine_metrics("vllm@0.9.2").kv_usage == "vllm:gpu_cache_usage_perc"
    assert engine_metrics("sglang").waiting == "sglang:num_queue_reqs"
    rules = scaling_rules(replace(build_backend(mix()), replicas=4), 0.9, played())
    thresholds = [(rule.metric.partition(" ")[0], rule.direction, rule.threshold) for rule in rules]
    assert thresholds == [
        ("kvplan_ledger_reserved", "out", 0.8),
        ("kvplan_ledger_reserved", "in", 0.6),  # three of four replicas at 0.8
        ("vllm:kv_cache_usage_perc", "out", 0.36),  # 0.2 / 0.4 × 0.9 × 0.8
        ("vllm:num_requests_waiting", "out", 1.0),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "traffic: {}\n",
        "admission: {}\ntraffic: {}\n",
        "admission: {policy: none, safety_fraction: 0.9}  # one line\ntraffic: {}\n",
        "traffic: {}\nadmission:\n    policy: none\n    # a comment\n    default_max_tokens: 64 # here\n",
        "# top\nmodel: a/b\n\ntraffic:\n  classes: []\n",
    ],
)
def test_settings_are_written_where_they_belong(text: str) -> None:
    from kvplan.traffic.file.yaml_text import parse_mapping

    written = recommended_text(text, "mix.yaml", safety_fraction=0.98, default_max_tokens=768)
    before, after = parse_mapping(text, "mix.yaml")[0], parse_mapping(written, "mix.yaml")[0]
    settings = {"safety_fraction": 0.98, "default_max_tokens": 768}
    assert after == {**before, "admission": {**before.get("admission", {}), **settings}}
    for comment in (line.partition("#")[2] for line in text.splitlines() if "#" in line):
        assert comment in written


def test_a_bundled_mix_can_be_written(tmp_path: Path) -> None:
    traffic = load_traffic("chat")
    text = Path(traffic.file).read_text(encoding="utf-8")
    written = recommended_text(text, traffic.file, safety_fraction=0.98, default_max_tokens=768)
    (tmp_path / "mix.yaml").write_text(written, encoding="utf-8")
    again = load_traffic(tmp_path / "mix.yaml")
    assert (again.admission.safety_fraction, again.admission.default_max_tokens) == (0.98, 768)
    assert again.classes == traffic.classes
    kept = recommended_text(text, traffic.file, safety_fraction=0.98, default_max_tokens=None)
    assert "default_max_tokens" not in kept


def test_a_file_that_cannot_be_edited_says_what_to_set() -> None:
    text = "a: &x {policy: none}\nadmission: *x\ntraffic: {}\n"
    with pytest.raises(InputError, match="cannot be edited") as caught:
        recommended_text(text, "mix.yaml", safety_fraction=0.98, default_max_tokens=None)
    assert "admission.safety_fraction: 0.98" in (caught.value.hint or "")
