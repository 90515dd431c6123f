"""A small run of ``tests.gateway_chaos``: nothing is left, and the promise held at every instant."""

import asyncio

from tests.gateway_chaos import run_chaos


def test_nothing_is_left_after_random_misfortune() -> None:
    found = asyncio.run(run_chaos(2000, 100, 60))
    assert found.reserved == found.holders == found.engine_running == 0
    assert found.capacity / 2 < found.peak_reserved <= found.capacity
    assert found.tasks_after <= found.tasks_before
    assert found.sockets_after <= found.sockets_before
    assert {"200", "429", "400", "503", "left", "broken off", "cut", "half", "timed out"} <= set(found.outcomes)
