"""Runs that are longer than memory should hold: the same answers, from columns on disk, a piece at a time."""

import mmap
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvplan.errors import InputError
from kvplan.simulation.figures import Times, quantiles
from kvplan.simulation.results import Figures, Quantiles, Simulation
from kvplan.simulation.simulate import simulate
from kvplan.traffic import on_disk
from kvplan.traffic.load import parse_traffic
from kvplan.traffic.sample import _trace

FILE = """
deployment:
  kv_pool: {blocks: 700, block_tokens: 16}
  max_model_len: 8192
  max_num_seqs: 16
  service: {base_s: 0.01, prefill_token_s: 2.5e-5, decode_sequence_s: 4.0e-5, kv_token_s: 4.0e-8}
traffic:
  classes:
    - name: t
      trace: TRACE
      client: openai-python
      cancel_share: 0.1
      max_tokens: {choices: [{value: 1024, share: 0.5}, {unset: true, share: 0.5}]}
    - {name: u, trace: TRACE}
"""


def played(folder: Path, order: np.ndarray) -> Simulation:
    rng = np.random.default_rng(3)
    burst = (np.arange(len(order)) >= 400) & (np.arange(len(order)) < 600)
    stamps = np.round(np.cumsum(rng.exponential(np.where(burst, 0.02, 0.4))), 6)
    prompt, output = rng.integers(1, 3000, len(order)), rng.integers(1, 400, len(order))
    trace = folder / "trace.csv"
    rows = [f"{stamps[i]},{prompt[i]},{output[i]},{'ab'[i % 2]}" for i in order.tolist()]
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,class", *rows, ""]))
    _trace.cache_clear()
    traffic = parse_traffic(FILE.replace("TRACE", str(trace)), file=str(folder / "t.yaml"))
    return simulate(traffic, strategies=("worst_case", "none"), seeds=2, workers=1, keep_rows=True)


def times_of(figures: Figures) -> tuple[Quantiles, ...]:
    return figures.queue_s, figures.ttft_s, figures.e2e_s


@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_run_in_pieces_shows_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sorted: bool
) -> None:
    """Every request, count and sum; quantiles to 0.05 %, and the queue's burst to the 2^18th part of the run."""
    order = np.arange(900) if is_sorted else np.random.default_rng(5).permutation(900)
    whole = played(tmp_path, order)
    monkeypatch.setattr(on_disk, "PIECE_ROWS", 128)
    pieced = played(tmp_path, order)
    _trace.cache_clear()
    assert replace(pieced.inputs, assumptions=whole.inputs.assumptions) == whole.inputs
    more = set(pieced.inputs.assumptions) - set(whole.inputs.assumptions)
    assert ["0.05%" in line for line in more] == [True]
    assert whole.reservations == pieced.reservations
    assert whole.stability.sustainable_per_s == pytest.approx(pieced.stability.sustainable_per_s, rel=1e-12)
    for one, other in zip(whole.rows, pieced.rows, strict=True):
        assert isinstance(getattr(other.rows.finish_s.base, "obj", None), mmap.mmap)
        for columns, on_file in ((one.rows, other.rows), (one.requests, other.requests)):
            for name, column in vars(columns).items():
                np.testing.assert_array_equal(getattr(on_file, name), column, err_msg=name)
    for strategy, again in zip(whole.strategies, pieced.strategies, strict=True):
        assert strategy.preemptions > 0 or strategy.refusals > 0
        for mine, theirs in zip(strategy.seeds, again.seeds, strict=True):
            for exact, found in zip((mine.figures, *mine.classes), (theirs.figures, *theirs.classes), strict=True):
                assert (exact.requests, exact.attempts) == (found.requests, found.attempts)
                assert exact.output_tokens_per_s == pytest.approx(found.output_tokens_per_s, rel=1e-12)
                for time, about in zip(times_of(exact), times_of(found), strict=True):
                    assert [*vars(about).values()] == pytest.approx([*vars(time).values()], rel=5.01e-4, abs=1e-9)
            assert mine.load_second_half == pytest.approx(theirs.load_second_half, rel=1e-12)
            assert mine.recovery is not None
            assert theirs.recovery is not None
            assert replace(theirs.recovery, recovery_s=None) == replace(mine.recovery, recovery_s=None)
            assert theirs.recovery.recovery_s == pytest.approx(mine.recovery.recovery_s, abs=400.0 / 2**18)


def test_many_times_are_counted_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their quantiles are within 0.05 %, the mean is exact, and zero stays zero."""
    monkeypatch.setattr(on_disk, "PIECE_ROWS", 100)
    rng = np.random.default_rng(1)
    values = np.where(rng.random(5000) < 0.6, 0.0, rng.lognormal(0.0, 4.0, 5000))
    times = Times()
    for piece in np.split(values, 20):
        times.add(piece)
    exact, found = quantiles(values), times.quantiles()
    assert (found.p50, exact.p50) == (0.0, 0.0)
    assert found.mean == pytest.approx(exact.mean, rel=1e-12)
    assert (found.p90, found.p99) == pytest.approx((exact.p90, exact.p99), rel=5e-4)


def test_a_full_disk_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(InputError, match=r"no room for 8 MiB of a long run in .*: No space left on device") as caught:
        on_disk.zeros(2**20, np.float64)
    assert "TMPDIR" in (caught.value.hint or "")
