"""Comparing: the smallest that carries a load, in order, each loser with its reason; text, JSON and CSV."""

import csv
import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvplan.capacity import fit
from kvplan.check.results import LimitResult, Reading
from kvplan.cli import main
from kvplan.compare import DEFAULT_LIMITS, compare
from kvplan.compare.results import Candidate, Choice, Comparison, ShapeLoad, Verdict
from kvplan.engines.deployment import Deployment
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.profiles.loader import load_gpu
from kvplan.report.compare import csv as compare_csv
from kvplan.report.compare import json as compare_json
from kvplan.report.compare import load_words, reason
from kvplan.report.compare import text as compare_text
from kvplan.report.page import render
from kvplan.sources import read_model
from kvplan.traffic.load import parse_traffic
from kvplan.traffic.spec import Traffic
from tests.golden_files import check_golden

TRAFFIC = """\
model: meta-llama/Llama-3.1-8B-Instruct
deployment:
  gpu: h100
  max_model_len: 8192
  service: {base_s: 9, prefill_token_s: 0, decode_sequence_s: 0, kv_token_s: 0}
admission: {default_max_tokens: 256}
traffic:
  duration: 30s
  seed: 5
  classes:
    - name: chat
      rate: 4/s
      prompt_tokens: {lognormal: {p50: 500, p95: 2000}}
      output_tokens: {lognormal: {p50: 60, p95: 200}}
limits:
  refused_share: {max: 0.05}
  longest_window_tokens: {min: 8192}
"""
CHAT = ShapeLoad(prompt_tokens=4000, max_output_tokens=1000, concurrency=20)


@pytest.fixture(scope="module")
def llama() -> ModelSpec:
    return read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)


@pytest.fixture(scope="module")
def traffic() -> Traffic:
    return parse_traffic(TRAFFIC, file="traffic.yaml")


def _compare(llama: ModelSpec, load: ShapeLoad | Traffic, *gpus: str, **options: object) -> Comparison:
    return compare([llama], [load_gpu(name) for name in gpus], load, workers=1, **options)  # type: ignore[arg-type]


def test_the_smallest_has_the_least_memory_and_every_loser_a_reason(llama: ModelSpec) -> None:
    found = _compare(llama, CHAT, "h100", "l4", "4090")
    carriers = [one for one in found.candidates if one.carries]
    assert found.smallest is carriers[0]
    sizes = [one.choice.memory_bytes for one in carriers]
    assert sizes == sorted(sizes)
    assert [one.carries for one in found.candidates] == sorted((one.carries for one in found.candidates), reverse=True)
    assert len(found.candidates) == 3 * 4
    for one in found.candidates:
        assert bool(reason(one, found)) is (one is not found.smallest)


def test_of_cards_with_the_same_memory_the_one_that_holds_more_comes_first(llama: ModelSpec) -> None:
    """79.18 and 79.25 GiB are both 80 GB cards; the A100's steps are of 2,048 tokens, which leaves more for KV."""
    found = _compare(llama, CHAT, "h100", "a100-80", tensor_parallel=[1])
    held = [one.sequences for one in found.candidates if one.sequences is not None]
    assert [one.choice.gpu.name for one in found.candidates] == ["a100-80gb-sxm", "h100-80gb-sxm"]
    assert held == sorted(held, reverse=True)


def test_a_candidate_is_what_the_plan_says(llama: ModelSpec) -> None:
    """The same worst cases as ``fit`` with the window that the shape needs: 5,000 tokens, in whole 1,024s."""
    found = _compare(llama, CHAT, "l4", tensor_parallel=[2])
    (one,) = found.candidates
    planned = fit(llama, Deployment(gpu=load_gpu("l4"), tensor_parallel=2, max_model_len=5120), CHAT.shapes)
    assert (one.max_model_len, one.sequences) == (5120, planned.reservations[0].sequences)
    assert one.kv_pool_bytes == planned.plan.kv_bytes
    assert one.carries is (planned.reservations[0].sequences >= 20)


def test_a_price_puts_the_cheapest_first(llama: ModelSpec) -> None:
    prices = {"h100-80gb-sxm": 2.0, "l4-24gb": 0.9}
    found = _compare(llama, CHAT, "h100", "l4", prices_per_hour=prices)
    assert found.by_price
    assert found.smallest is not None
    costs = [one.price_per_hour for one in found.candidates if one.carries]
    assert costs == sorted(cost for cost in costs if cost is not None)
    assert found.smallest.price_per_hour == min(cost for cost in costs if cost is not None)
    partly = _compare(llama, CHAT, "h100", "l4", prices_per_hour={"h100-80gb-sxm": 2.0})
    assert not partly.by_price


def test_an_impossible_split_is_an_answer_with_its_reason(llama: ModelSpec) -> None:
    """32 query heads: 3 ranks cannot share them. V100s have no fp8."""
    found = _compare(llama, CHAT, "h100", tensor_parallel=[3])
    assert found.smallest is None
    (one,) = found.candidates
    assert (one.verdict, one.sequences) == ("impossible", None)
    assert "3 does not divide" in reason(one, found)


def test_a_prompt_beyond_the_window_is_impossible(llama: ModelSpec) -> None:
    found = _compare(llama, CHAT, "h100", tensor_parallel=[1], windows=[2048])
    assert found.candidates[0].verdict == "impossible"


def test_windows_and_kv_types_are_tried(llama: ModelSpec) -> None:
    found = _compare(
        llama, ShapeLoad(), "4090", tensor_parallel=[1], kv_dtypes=["auto", "fp8"], windows=[8192, 65536, 500_000]
    )
    told = {(one.choice.kv_dtype, one.max_model_len): one.carries for one in found.candidates}
    assert told[("auto", 8192)]
    assert not told[("auto", 65536)]
    assert told[("fp8", 65536)]
    assert {window for _, window in told} == {8192, 65536, 131072}  # the model's own is the longest


def test_replicas_multiply_what_fits(llama: ModelSpec) -> None:
    found = _compare(llama, CHAT, "l4", tensor_parallel=[1], replicas=[1, 2, 4])
    one, two, four = sorted(found.candidates, key=lambda each: each.choice.replicas)
    assert one.sequences is not None
    assert (two.sequences, four.sequences) == (2 * one.sequences, 4 * one.sequences)
    assert four.choice.gpus == 4


def test_the_safety_fraction_is_of_the_pool(llama: ModelSpec) -> None:
    whole = _compare(llama, CHAT, "h100", tensor_parallel=[1]).candidates[0].sequences
    half = ShapeLoad(prompt_tokens=4000, max_output_tokens=1000, safety_fraction=Fraction(1, 2))
    found = _compare(llama, half, "h100", tensor_parallel=[1]).candidates[0].sequences
    assert whole is not None
    assert found in (whole // 2, whole // 2 - 1)


def test_traffic_is_held_to_its_limits(llama: ModelSpec) -> None:
    """At 8 requests a second one L4 refuses more than the limit in both seeds; everything larger may carry it."""
    crowd = parse_traffic(TRAFFIC.replace("rate: 4/s", "rate: 8/s"), file="traffic.yaml")
    found = _compare(llama, crowd, "h100", "4090", "l4", tensor_parallel=[1, 2], seeds=2)
    assert found.smallest is not None
    assert any("its measured step time" in note for note in found.notes)
    assert all(one.broken == () for one in found.candidates if one.carries)
    (one,) = (one for one in found.candidates if not one.carries)
    assert (one.choice.gpu.name, one.choice.gpus, one.verdict) == ("l4-24gb", 1, "limits_broken")
    assert (one.figures["refused_share"] or 0) > 0.05
    assert reason(one, found).startswith("refused_share")


def test_traffic_without_limits_is_held_to_few_refusals(llama: ModelSpec) -> None:
    free = parse_traffic(TRAFFIC.partition("limits:")[0], file="traffic.yaml")
    found = _compare(llama, free, "h100", tensor_parallel=[1], seeds=1)
    assert isinstance(found.load, Traffic)
    assert found.load.limits == DEFAULT_LIMITS
    assert any("no limits" in note for note in found.notes)


def test_a_mistake_in_the_file_is_an_error_not_an_answer(llama: ModelSpec) -> None:
    """A limit on costs without a price: no candidate can be judged, and the file is named."""
    text = TRAFFIC.replace("refused_share: {max: 0.05}", "cost_per_hour: {max: 5}")
    with pytest.raises(InputError, match="cost_per_hour cannot be judged") as caught:
        _compare(llama, parse_traffic(text, file="traffic.yaml"), "h100", "l40s", tensor_parallel=[1], seeds=1)
    assert caught.value.file == "traffic.yaml"


def test_processes_give_the_same_answer(llama: ModelSpec, traffic: Traffic) -> None:
    gpus = [load_gpu("h100"), load_gpu("4090")]
    told = [
        [(one.choice.gpu.name, one.verdict, one.figures) for one in found.candidates]
        for found in (
            compare([llama], gpus, traffic, tensor_parallel=[1], seeds=2, workers=workers) for workers in (1, 2)
        )
    ]
    assert told[0] == told[1]


def test_nothing_to_compare_is_a_mistake(llama: ModelSpec) -> None:
    with pytest.raises(InputError, match="nothing to compare"):
        compare([llama], [], ShapeLoad())


@pytest.fixture
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traffic.yaml").write_text(TRAFFIC, encoding="utf-8")


SHAPE = (
    "compare", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--gpu", "4090", "--prompt", "4000",
    "--max-tokens", "1000", "--concurrency", "20", "--offline", "--workers", "1",
)  # fmt: skip


def _run(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(list(arguments)) == code
    return capsys.readouterr().out


@pytest.fixture
def by_hand(llama: ModelSpec) -> Comparison:
    """One candidate of each verdict, with figures that no plan has made."""

    def candidate(gpu: str, ranks: int, verdict: Verdict, **more: Any) -> Candidate:
        choice = Choice(
            model=llama, gpu=load_gpu(gpu), tensor_parallel=ranks, kv_dtype="auto", max_model_len=5120, replicas=1
        )
        return Candidate(choice=choice, verdict=verdict, max_model_len=5120, **more)

    pool = {"longest_window_tokens": 131072, "concurrency_at_max_model_len": 61.5}
    broken = LimitResult(
        name="refused_share", class_name=None, bound="max", limit=0.01, reading=Reading(value=0.25), certainty="exact",
        passed=False, line=7,
    )  # fmt: skip
    return Comparison(
        load=CHAT,
        candidates=(
            candidate("4090", 2, "carries", kv_pool_bytes=12 * 2**30, sequences=41, price_per_hour=1.0, **pool),
            candidate("h100", 1, "carries", kv_pool_bytes=54 * 2**30, sequences=88, price_per_hour=2.5, **pool),
            candidate("4090", 1, "too_small", detail="holds 8 of 20 at once", kv_pool_bytes=5 * 2**30, sequences=8),
            candidate("l4", 1, "limits_broken", broken=(broken,), kv_pool_bytes=4 * 2**30, price_per_hour=0.7),
            candidate("t4", 1, "does_not_fit", kv_pool_bytes=-(2**30), longest_window_tokens=0),
            candidate("4090", 3, "impossible", detail="tensor parallelism 3 does not divide 32 query heads"),
            candidate("v100", 1, "cannot_tell", detail="fp8 is not known here"),
        ),
        by_price=True,
        notes=("its measured pool is of the file's own hardware and is not used for other GPUs",),
    )


def test_text_shows_who_carries_and_why_the_others_do_not(by_hand: Comparison) -> None:
    shown = render(compare_text(by_hand))
    assert max(map(len, shown.splitlines())) <= 80
    check_golden("cli/compare.txt", shown)


def test_json_whole(by_hand: Comparison) -> None:
    check_golden("cli/compare.json", compare_json(by_hand))


def test_csv_whole(by_hand: Comparison) -> None:
    check_golden("cli/compare.csv", compare_csv(by_hand))


@pytest.mark.usefixtures("_folder")
def test_json_and_csv_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys, 0, *SHAPE, "--tp", "1,2", "--format", "json")
    document = json.loads(shown)
    assert (document["schema"], document["schema_version"]) == ("kvplan.compare", 1)
    assert document["smallest"] == document["candidates"][0]
    rows = list(csv.DictReader(io.StringIO(_run(capsys, 0, *SHAPE, "--tp", "1,2", "--format", "csv"))))
    assert [row["place"] for row in rows] == ["1", "2", "3", "4"]
    for row, one in zip(rows, document["candidates"], strict=True):
        assert (row["gpu"], row["tensor_parallel"], row["carries"]) == (
            one["gpu"], str(one["tensor_parallel"]), str(one["carries"]).lower(),
        )  # fmt: skip
        assert row["reason"] == (one["reason"] or "")


@pytest.mark.usefixtures("_folder")
def test_traffic_on_the_command_line_brings_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(
        capsys, 0, "compare", "--traffic", "traffic.yaml", "--gpu", "h100", "--gpu", "l4", "--tp", "1", "--seeds", "2",
        "--offline", "--workers", "1",
    )  # fmt: skip
    assert max(map(len, shown.splitlines())) <= 80
    assert " is the smallest that carries the traffic of traffic.yaml" in " ".join(shown.split())


def test_the_price_of_a_gpu_that_is_not_compared_is_noted(llama: ModelSpec) -> None:
    found = _compare(llama, CHAT, "h100", prices_per_hour={"l4-24gb": 1.0})
    assert found.notes == ("the price of l4-24gb is not used: no such GPU is compared",)


def test_more_replicas_than_any_site_has_are_refused(llama: ModelSpec) -> None:
    with pytest.raises(InputError, match="1,000,000,000 replicas are more than 10,000"):
        _compare(llama, CHAT, "h100", replicas=(1, 10**9))


def test_the_load_is_worded_in_singular_and_plural() -> None:
    assert load_words(ShapeLoad(concurrency=20)) == "20 requests of the whole window"
    assert load_words(ShapeLoad(concurrency=1)) == "one request of the whole window"


@pytest.mark.usefixtures("_folder")
def test_exit_1_where_nothing_carries_the_load(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(
        capsys, 1, "compare", "meta-llama/Llama-3.1-70B-Instruct", "--gpu", "l4", "--tp", "1", "--offline",
        "--workers", "1",
    )  # fmt: skip
    assert shown.startswith("nothing here carries one request of the whole window")
    assert "does not fit" in shown


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x/y", "--prompt", "5"), "compare needs GPUs"),
        (("--gpu", "h100", "--prompt", "5"), "no model was named"),
        (("x/y", "--gpu", "h100", "--max-tokens", "5"), "--max-tokens needs --prompt"),
        (("--gpu", "h100", "--traffic", "traffic.yaml", "--prompt", "5"), "cannot be combined"),
        (("x/y", "--gpu", "h101", "--prompt", "5"), "h101"),
        (("x/y", "--gpu", "h100", "--prompt", "0"), "--prompt 0"),
        (("x/y", "--gpu", "h100", "--tp", "0"), "--tensor-parallel"),
        (("x/y", "--gpu", "h100", "--price", "2"), "NAME=AMOUNT"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arguments, "--offline"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
