"""Tasks over the cores: in their order, with the hardest first, and the compiled kernel only where it pays."""

import pytest

from kvplan.simulation import compiled, tasks
from kvplan.simulation.run import simulate
from kvplan.traffic.load import parse_traffic

TEXT = """\
deployment:
  max_model_len: 512
  max_num_batched_tokens: 512
  kv_pool: {blocks: 101, block_tokens: 16}
  service: {base_s: 0.01, prefill_token_s: 0.0001, decode_sequence_s: 0.0005, kv_token_s: 0.00001}
traffic:
  duration: 600s
  classes:
    - {name: a, rate: 4/s, prompt_tokens: {lognormal: {p50: 60, p95: 200}}, output_tokens: {exponential: {mean: 30}}}
"""
TRAFFIC = parse_traffic(TEXT, file="mix.yaml")


def summary(workers: int) -> list[object]:
    result = simulate(TRAFFIC, strategies=["worst_case", "none", "prompt_only"], seeds=2, workers=workers)
    return [(one.name, [seed.seed for seed in one.seeds], one.e2e_s, one.requests) for one in result.strategies]


def test_results_stay_in_the_order_of_the_strategies_and_seeds() -> None:
    alone = summary(1)
    assert [one[:2] for one in alone] == [  # type: ignore[index]
        ("worst_case", [0, 1]),
        ("none", [0, 1]),
        ("prompt_only", [0, 1]),
    ]
    assert summary(2) == alone


def test_a_long_run_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_LONG_RUN_S", 0.0)
    said: list[str] = []
    simulate(TRAFFIC, strategies=["worst_case", "none"], seeds=2, workers=1, say=said.append)
    assert any("this takes about" in line for line in said)


def test_a_failing_worker_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tasks.run_task

    def broken(task: tasks.Task, say: None = None) -> tasks.TaskResult:
        if task.seed == 1:
            raise RuntimeError("lost")
        return real(task)

    monkeypatch.setattr(tasks, "run_task", broken)
    with pytest.raises(RuntimeError, match="lost"):
        simulate(TRAFFIC, strategies=["worst_case", "none"], seeds=2, workers=1)


@pytest.mark.parametrize(
    ("plain_s", "is_available", "is_kept", "pays"),
    [
        (1.0, True, True, False),
        (10.0, True, True, True),
        (10.0, True, False, False),
        (200.0, True, False, True),
        (200.0, False, False, False),
    ],
)
def test_when_the_compiled_kernel_pays(
    monkeypatch: pytest.MonkeyPatch, plain_s: float, is_available: bool, is_kept: bool, pays: bool
) -> None:
    monkeypatch.setattr(compiled, "is_available", lambda: is_available)
    monkeypatch.setattr(compiled, "is_kept", lambda: is_kept)
    assert tasks._compiling_pays([], plain_s) is pays
