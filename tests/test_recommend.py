"""The search for a cap and a fraction, and the file that is written with them."""

from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.recommend import recommended_text, search
from kvplan.recommend.search import CapPoint, _choose
from kvplan.simulation.results import Recommendation
from kvplan.traffic.load import load_traffic, parse_traffic

MIX = """\
deployment:
  max_model_len: 2048
  max_num_seqs: 32
  max_num_batched_tokens: 2048
  prefix_caching: false
  kv_pool: {{blocks: 1001, block_tokens: 16}}
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
ADVICE = Recommendation(
    safety_fraction=0.98,
    default_max_tokens=768,
    truncated_share=0.0,
    refused_share=None,
    per_class=(),
    binds="",
    reason="",
)


def mix(policy: str, *, rate: int = 8, caps: str = "{unset: true}") -> str:
    return MIX.format(policy=policy, rate=rate, caps=caps)


def test_truncation_falls_and_refusal_rises_with_the_cap() -> None:
    found = search(parse_traffic(mix("worst_case"), file="mix.yaml"), seeds=2, workers=1)
    caps = [point.default_max_tokens for point in found.caps]
    truncated = [point.truncated_share for point in found.caps]
    refused = [point.refused_share for point in found.caps]
    assert caps == sorted(caps)
    assert len(caps) >= 3
    assert truncated == sorted(truncated, reverse=True)
    assert refused == sorted(refused)
    assert truncated[0] > 0.01 > truncated[-1]
    assert found.recommendation.default_max_tokens in caps
    assert found.recommendation.safety_fraction == 1.0
    judged = found.simulation.strategy("worst_case_default_cap")
    assert judged.default_max_tokens == found.recommendation.default_max_tokens
    assert judged.preemptions == 0
    assert found.price.worst_case_sequences < found.price.expected_sequences
    assert 0 < found.price.idle_share < 1


def test_the_default_changes_nothing_where_all_send_a_cap() -> None:
    found = search(parse_traffic(mix("worst_case", caps="64"), file="mix.yaml"), seeds=1, workers=1)
    assert found.caps == ()
    assert "changes nothing" in found.recommendation.reason


def test_a_policy_that_overcommits_gets_the_fraction_at_which_it_does_not_preempt() -> None:
    text = mix("prompt_only", rate=20).replace("blocks: 1001", "blocks: 201")
    found = search(parse_traffic(text, file="mix.yaml"), seeds=3, workers=1)
    assert found.fractions[0].safety_fraction == 1.0
    assert found.fractions[0].preemptions > 0
    assert all(point.preemptions > 0 for point in found.fractions[:-1])
    assert found.recommendation.safety_fraction == found.fractions[-1].safety_fraction < 1.0
    assert "prompt_only" in found.recommendation.binds


def point(cap: int, truncated: float, refused: float) -> CapPoint:
    return CapPoint(
        default_max_tokens=cap,
        truncated_share=truncated,
        refused_share=refused,
        refused_interval=(refused, refused),
        gave_up_share=0.0,
        e2e_p99_s=None,
        output_tokens_per_s=0.0,
        sustainable_per_s=0.0,
    )


def test_the_choice_between_caps() -> None:
    curve = [point(128, 0.2, 0.0), point(256, 0.009, 0.001), point(512, 0.002, 0.008), point(1024, 0.0, 0.2)]
    assert _choose(curve, 0.01, 0.01) == curve[1]
    assert _choose(curve, 0.005, 0.01) == curve[2]
    assert _choose(curve, 0.001, 0.002) == curve[2]  # excess 1 + 3, against 8 + 0, 199 + 0 and 0 + 99
    assert _choose([], 0.1, 0.1) is None


def test_bounds_are_shares() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        search(parse_traffic(mix("worst_case"), file="mix.yaml"), max_truncated_share=2.0)


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
    from kvplan.traffic.yaml_text import parse_mapping

    written = recommended_text(text, "mix.yaml", ADVICE)
    before, after = parse_mapping(text, "mix.yaml")[0], parse_mapping(written, "mix.yaml")[0]
    settings = {"safety_fraction": 0.98, "default_max_tokens": 768}
    assert after == {**before, "admission": {**before.get("admission", {}), **settings}}
    for comment in (line.partition("#")[2] for line in text.splitlines() if "#" in line):
        assert comment in written


def test_a_bundled_mix_can_be_written(tmp_path: Path) -> None:
    traffic = load_traffic("chat")
    text = Path(traffic.file).read_text(encoding="utf-8")
    (tmp_path / "mix.yaml").write_text(recommended_text(text, traffic.file, ADVICE), encoding="utf-8")
    written = load_traffic(tmp_path / "mix.yaml")
    assert (written.admission.safety_fraction, written.admission.default_max_tokens) == (0.98, 768)
    assert written.classes == traffic.classes


def test_a_file_that_cannot_be_edited_says_what_to_set() -> None:
    with pytest.raises(InputError, match="cannot be edited") as caught:
        recommended_text("a: &x {policy: none}\nadmission: *x\ntraffic: {}\n", "mix.yaml", ADVICE)
    assert "admission.safety_fraction: 0.98" in (caught.value.hint or "")
