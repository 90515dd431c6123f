"""The ledger and the policies on small hand-worked values."""

import asyncio
import threading

import pytest

from kvplan.admission import (
    DEFAULT_STRATEGIES,
    STRATEGIES,
    DrainEstimate,
    Ledger,
    RequestSize,
    charge,
    effective_cap,
    promised_blocks,
    retry_after_s,
    whole_seconds,
)


def test_a_reservation_is_released_once() -> None:
    ledger = Ledger(5)
    assert ledger.try_reserve(1, 5)
    assert (ledger.release(1), ledger.release(1), ledger.release("other")) == (True, False, False)
    assert (ledger.reserved, ledger.free, ledger.holders) == (0, 5, 0)


def test_an_id_that_holds_a_reservation_cannot_reserve_again() -> None:
    ledger = Ledger(5)
    assert ledger.try_reserve(1, 1)
    with pytest.raises(ValueError, match="already holds"):
        ledger.try_reserve(1, 1)
    assert ledger.reserved == 1


def test_negative_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        Ledger(-1)
    ledger = Ledger(1)
    with pytest.raises(ValueError, match="create room"):
        ledger.try_reserve(1, -1)
    assert ledger.try_reserve(1, 1)
    with pytest.raises(ValueError, match="create room"):
        ledger.shrink(1, -1)


def test_a_reservation_shrinks_and_never_grows() -> None:
    ledger = Ledger(10)
    assert ledger.try_reserve("a", 8)
    assert (ledger.shrink("a", 9), ledger.shrink("a", 3), ledger.shrink("b", 1)) == (False, True, False)
    assert (ledger.weight_of("a"), ledger.free) == (3, 7)


def test_the_context_manager_releases_after_an_exception() -> None:
    ledger = Ledger(1)
    with ledger.reserve("a", 1) as admitted, ledger.reserve("b", 1) as second:
        assert (admitted, second) == (True, False)

    def fail() -> None:
        with ledger.reserve("a", 1):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert ledger.free == 1


def test_threads_that_race_never_overcommit() -> None:
    ledger = Ledger(7)
    seen_above: list[int] = []

    def work(worker: int) -> None:
        for turn in range(400):
            holder, weight = (worker, turn), 1 + (worker + turn) % 4
            if ledger.try_reserve(holder, weight):
                if ledger.reserved > 7:
                    seen_above.append(ledger.reserved)
                assert ledger.release(holder)
                assert not ledger.release(holder)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (seen_above, ledger.reserved, ledger.holders) == ([], 0, 0)


def test_coroutines_cancelled_at_any_await_leave_nothing_behind() -> None:
    ledger = Ledger(3)

    async def serve(holder: int) -> None:
        with ledger.reserve(holder, 1) as admitted:
            if admitted:
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    async def storm() -> None:
        tasks = [asyncio.create_task(serve(holder)) for holder in range(30)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(storm())
    assert ledger.reserved == 0


@pytest.mark.parametrize(
    ("asked", "default", "cap"),
    [(None, None, 900), (None, 100, 100), (50, 100, 50), (5_000, None, 900), (None, 5_000, 900)],
)
def test_effective_cap(asked: int | None, default: int | None, cap: int) -> None:
    assert effective_cap(100, asked, 1_000, default) == cap


def test_promised_blocks_reads_the_fraction_as_written() -> None:
    # floor(26,568 × 0.90) = floor(23,911.2); 10 × 0.7 = 7 exactly
    assert [
        promised_blocks(26_569, 0.9),
        promised_blocks(11, 0.7),
        promised_blocks(11, 1.0),
        promised_blocks(1, 1.0),
    ] == [
        23_911,
        7,
        10,
        0,
    ]


def test_every_strategy_charges_what_it_says() -> None:
    size = RequestSize(prompt_tokens=1_000, cap_tokens=4_096, expected_output_tokens=451)
    charged = {name: charge(strategy, size, lambda tokens: -(-tokens // 16)) for name, strategy in STRATEGIES.items()}
    assert charged == {
        "worst_case": 319,  # ceil((1,000 + 4,096) / 16) = ceil(318.5)
        "worst_case_default_cap": 319,
        "prompt_only": 63,  # ceil(62.5)
        "concurrency": 1,
        "none": 0,
        "ratio": 242,  # 1,000 + ceil(2,867.2) = 3,868 → ceil(241.75)
        "quantile": 91,  # 1,451 → ceil(90.7)
        "engine_queue": 0,
    }
    assert set(DEFAULT_STRATEGIES) <= set(STRATEGIES)


def test_the_drain_is_the_rate_of_releases() -> None:
    """Little's law: 400 reserved, each unit for 10 s, come back at 40 a second; an idle hour changes nothing."""
    drain = DrainEstimate(unknown_s=3.0, longest_s=60.0)
    assert drain.wait_s(missing=5, weight=5, reserved=400, now_s=0.0) == 3.0
    for _ in range(2_000):
        drain.released(4, held_s=10.0, reserved=400)
    assert drain.wait_s(missing=80, weight=80, reserved=400, now_s=200.0) == pytest.approx(2.0)
    assert drain.wait_s(missing=80, weight=80, reserved=400, now_s=10_000.0) == pytest.approx(2.0)
    assert drain.wait_s(missing=80, weight=80, reserved=0, now_s=20_000.0) == 60.0


def test_the_mean_hold_follows_one_turnover_of_the_ledger() -> None:
    """After everything reserved came back once, 1 − 1/e of the way to a new hold is gone, more or less."""
    drain = DrainEstimate()
    drain.released(1, held_s=100.0, reserved=1_000)
    for _ in range(1_000):
        drain.released(1, held_s=10.0, reserved=1_000)
    told_s = drain.wait_s(missing=1_000, weight=1_000, reserved=1_000, now_s=0.0)
    assert told_s == pytest.approx(10.0 + 90.0 / 2.718, rel=0.001)


def test_refused_requests_are_given_staggered_waits() -> None:
    drain = DrainEstimate(unknown_s=3.0, longest_s=60.0)
    drain.released(4, held_s=10.0, reserved=400)  # 40 a second
    told = [drain.wait_s(missing=80, weight=80, reserved=400, now_s=199.9) for _ in range(3)]
    assert told == [pytest.approx(2.0, rel=0.01), pytest.approx(4.0, rel=0.01), pytest.approx(6.0, rel=0.01)]
    assert [drain.wait_s(missing=400, weight=400, reserved=400, now_s=199.9) for _ in range(9)][-1] == 60.0
    assert drain.wait_s(missing=1, weight=1, reserved=400, now_s=200.0) > 59.0


def test_each_promise_is_of_a_whole_reservation() -> None:
    """Those who lack little come one by one too: each takes its whole reservation of 80, not the 10 it lacked."""
    drain = DrainEstimate()
    drain.released(4, held_s=10.0, reserved=400)
    told = [drain.wait_s(missing=10, weight=80, reserved=330, now_s=5.0) for _ in range(3)]
    assert told == [pytest.approx(100 / 330 + turn * 800 / 400) for turn in range(3)]


def test_retry_after_stays_where_clients_honour_it() -> None:
    assert retry_after_s(100.0, jitter_share=0.25, draw=0.0) == 48.0  # 60 / 1.25: the spread ends at 60
    assert retry_after_s(100.0, jitter_share=0.25, draw=1.0) == 60.0
    assert retry_after_s(100.0, jitter_share=0.0, draw=0.99) == 60.0
    assert [whole_seconds(seconds) for seconds in (0.0, 1.0, 1.01)] == [1, 1, 2]
