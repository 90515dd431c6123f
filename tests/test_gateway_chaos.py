"""A small run of ``tests.gateway_chaos``: nothing is left, and the promise held throughout."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvplan.gateway.server import loop_factory
from tests.gateway_chaos import GROWTH_LIMIT_BYTES, Leftovers, run_chaos

CLEAN = Leftovers(
    outcomes={"200": 10, "429": 5},
    elapsed_s=1.0,
    capacity=100,
    peak_reserved=100,
    reserved=0,
    holders=0,
    engine_running=0,
    tasks_before=7,
    tasks_after=7,
    sockets_before=7,
    sockets_after=7,
    warm_bytes=2**20,
    end_bytes=2**20 + GROWTH_LIMIT_BYTES,
)


@pytest.mark.parametrize("factory", [loop_factory(), None], ids=["the gateway's", "asyncio's"])
def test_nothing_is_left_after_random_faults(factory: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        found = runner.run(run_chaos(2000, 200, 60))
    assert found.complaints() == []
    assert {"200", "429", "400", "503", "left", "broken off", "cut", "half", "timed out"} <= set(found.outcomes)


@pytest.mark.parametrize(
    "change",
    [
        {"reserved": 1},
        {"holders": 1},
        {"engine_running": 1},
        {"tasks_after": 8},
        {"sockets_after": 8},
        {"warm_bytes": 0},
        {"end_bytes": 2**20 + GROWTH_LIMIT_BYTES + 1},
        {"outcomes": {"200": 10, "429": 0}},
        {"peak_reserved": 101},
        {"peak_reserved": 89},
    ],
    ids=str,
)
def test_whatever_is_left_is_reported(change: dict[str, Any]) -> None:
    assert CLEAN.complaints() == []
    assert len(replace(CLEAN, **change).complaints()) == 1
