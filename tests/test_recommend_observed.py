"""A scrape of /metrics: read as the format says, and what it teaches the safety fraction."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.recommend import recommend
from kvplan.recommend.observed import observe
from kvplan.recommend.prometheus import read_metrics
from kvplan.recommend.results import Constraints, ObservedUse, SafetyAnswer
from kvplan.simulation.backend import Backend, build_backend
from tests.test_recommend import mix

# The names and the shape of vLLM's own exposition; the figures are made up: 100 requests of 1,000 + 200 tokens whose
# caps are 2,000 in the mean, so 120,000 of 300,000 reserved tokens are used.
VLLM = """\
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a \\"quoted\\", name"} 0.31
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="951",gpu_memory_utilization="0.92"} 1.0
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:request_prompt_tokens_sum{model_name="m"} 100000.0
vllm:request_prompt_tokens_count{model_name="m"} 100.0
vllm:request_generation_tokens_bucket{le="100.0",model_name="m"} 20.0
vllm:request_generation_tokens_bucket{le="500.0",model_name="m"} 99.0
vllm:request_generation_tokens_bucket{le="1000.0",model_name="m"} 100.0
vllm:request_generation_tokens_bucket{le="+Inf",model_name="m"} 100.0
vllm:request_generation_tokens_sum{model_name="m"} 20000.0
vllm:request_generation_tokens_count{model_name="m"} 100.0
vllm:request_params_max_tokens_sum{model_name="m"} 200000.0
vllm:request_params_max_tokens_count{model_name="m"} 100.0
"""
GATEWAY = """\
kvplan_admitted_total 10
kvplan_observed_reserved_tokens_total 10000
kvplan_observed_used_tokens_total 4000 1700000000000
kvplan_used_share_bucket{le="0.4"} 5
kvplan_used_share_bucket{le="1.0"} 9
kvplan_used_share_bucket{le="+Inf"} 10
kvplan_used_share_sum 5
kvplan_used_share_count 10
"""


def answer(**terms: float) -> SafetyAnswer:
    taken = {"look_ahead_share": 0.0, "budget_band_share": 0.1, "token_count_share": 0.0, **terms}
    return SafetyAnswer(
        safety_fraction=0.9, risk_free_fraction=1.0, terms=taken, binds="the budget's band", reason="", seeds=10
    )


def backend() -> Backend:
    return replace(build_backend(mix()), kv_bytes=1000, kv_bytes_low=900)


def observed(tmp_path: Path, text: str, *, sequences: int = 9) -> ObservedUse:
    path = tmp_path / "metrics.txt"
    path.write_text(text, encoding="utf-8")
    return observe(path, backend=backend(), safety=answer(), limits=Constraints(), worst_case_sequences=sequences)


def test_the_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(VLLM + "broken line\nnan_value NaN\n\n" + GATEWAY, encoding="utf-8")
    metrics = read_metrics(path)
    assert metrics.label("vllm:kv_cache_usage_perc", "model_name") == 'a "quoted", name'
    assert metrics.total("vllm:num_preemptions") == 3
    assert metrics.total("nan_value") is None
    lengths = metrics.histogram("vllm:request_generation_tokens")
    assert lengths is not None
    assert lengths.edges == ((100.0, 20.0), (500.0, 99.0), (1000.0, 100.0), (inf, 100.0))
    assert lengths.mean == 200
    assert lengths.above(500) == pytest.approx(0.01)
    assert (lengths.least_edge(0.01), lengths.least_edge(0.0)) == (500, 1000)
    assert lengths.above(50) == 1.0


def test_the_engine_s_blocks_take_the_place_of_the_band(tmp_path: Path) -> None:
    found = observed(tmp_path, VLLM)
    assert found.source == "vLLM"
    assert found.requests == 100
    assert (found.reserved_tokens, found.used_tokens, found.used_share) == (300_000, 120_000, 0.4)
    assert found.pool_blocks == 951
    assert found.safety_fraction == 0.95  # 950 of 1,000 planned usable blocks; the band of 10 % is gone
    assert "5.0% smaller than planned" in found.binds
    assert (found.output_cap_tokens, found.kv_usage_share, found.preemptions) == (500, 0.31, 3)
    # σ ≤ √(0.4 × 0.6) = 0.4899; three deviations over 9 sequences: 0.4 + 3 × 0.4899 / 3 = 0.8899
    assert found.overbooking_fraction == pytest.approx(0.95 / 0.8899, rel=1e-4)
    larger = observed(tmp_path, VLLM.replace("951", "1200"))
    assert (larger.safety_fraction, larger.binds[:7]) == (1.0, "nothing")


def test_the_gateway_counts_for_itself(tmp_path: Path) -> None:
    found = observed(tmp_path, GATEWAY)
    assert (found.source, found.requests, found.used_share) == ("kvplan gateway", 10, 0.4)
    assert found.safety_fraction == 0.9  # no blocks among them: the band stays
    assert found.over_reserved_share == pytest.approx(0.1)
    assert any("undercounted" in note for note in found.notes)
    assert found.overbooking_fraction is not None
    both = observed(tmp_path, VLLM + GATEWAY)
    assert (both.source, both.reserved_source) == ("vLLM and kvplan gateway", "kvplan gateway's reservations")
    assert both.safety_fraction == 0.95


def test_sglang_s_names(tmp_path: Path) -> None:
    text = 'sglang:token_usage{model_name="m"} 0.5\nsglang:max_total_num_tokens{model_name="m"} 14400\n'
    found = observed(tmp_path, text)
    assert (found.source, found.kv_usage_share, found.pool_blocks) == ("SGLang", 0.5, 900)
    assert found.used_share is None
    assert found.overbooking_fraction is None
    assert found.safety_fraction == 0.89  # 899 of 1,000


def test_sglang_s_counters_stand_in_for_histograms_that_are_off(tmp_path: Path) -> None:
    """Names and labels of SGLang 0.5.23: lengths are counters unless it was asked for histograms."""
    text = """\
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 30000
sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 10000
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 8000
sglang:num_requests_total{is_streaming="true",model_name="m"} 30
sglang:num_requests_total{is_streaming="false",model_name="m"} 10
sglang:num_retracted_requests_total{model_name="m"} 2
"""
    found = observed(tmp_path, text)
    assert (found.requests, found.prompt_mean_tokens, found.output_mean_tokens) == (40, 1000, 200)
    assert (found.preemptions, found.output_cap_tokens) == (2, None)
    by_size = observed(
        tmp_path,
        text + 'sglang:generation_tokens_histogram_bucket{le="+Inf"} 4\n'
        "sglang:generation_tokens_histogram_sum 400\nsglang:generation_tokens_histogram_count 4\n",
    )
    assert by_size.output_mean_tokens == 100


def test_what_the_gateway_really_prints_is_read(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    from kvplan.gateway.metrics import GatewayMetrics

    class Shelf:
        capacity, reserved = 100, 0

    metrics = GatewayMetrics(Shelf())  # type: ignore[arg-type]
    for used in (100, 300):
        metrics.note_admission(1000, 0.01)
        metrics.note_release(2.0, 1000, used, None)
    metrics.note_admission(1000, 0.01)
    metrics.note_release(2.0, 1000, None, "client")  # whose use was not told: on neither side
    found = observed(tmp_path, metrics.text().decode())
    assert (found.source, found.requests) == ("kvplan gateway", 2)
    assert (found.reserved_tokens, found.used_tokens, found.used_share) == (2000, 400, 0.2)


@pytest.mark.parametrize(
    ("text", "complaint"), [("", "holds no Prometheus metrics"), ("python_info 1\n", "no metrics of vLLM")]
)
def test_other_files_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        observed(tmp_path, text)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_metrics(tmp_path / "none.txt")
    with pytest.raises(InputError, match="this is a folder, not a file"):
        read_metrics(tmp_path)
    with pytest.raises(InputError, match="a device or pipe"):
        read_metrics(Path("/dev/zero"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_metrics(tmp_path / "binary")


def test_the_search_runs_at_the_observed_fraction(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(VLLM, encoding="utf-8")
    found = recommend(mix(), seeds=1, workers=1, observed=path)
    assert found.observed is not None
    assert found.safety.safety_fraction == 1.0
    assert found.safety_fraction == found.observed.safety_fraction == 0.95
    assert 0.95 in [point.safety_fraction for point in found.fractions]
