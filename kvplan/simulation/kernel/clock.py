"""The engine's clock, which is counted, not summed.

Seconds since an engine was last idle = base × steps + prefill × tokens + decode × sequences + kv × context tokens, with
exact integers as factors. So a jump over many steps and one step at a time read the same clock, to the bit.
"""

from math import sqrt

from kvplan.simulation.kernel.state import (
    ALL_DECODES,
    ALL_PREFILL_TOKENS,
    ALL_STEPS,
    BUSY_S,
    COMPUTED,
    CONTEXT_TOKENS,
    DECODES,
    DECODING,
    END_S,
    LATE,
    ORIGIN_S,
    PREFILL_TOKENS,
    START_S,
    STEPS,
    USED_BLOCK_S,
    Cost,
    Ints,
    Reals,
)


def clock(more: int, st: Ints, ck: Reals, cost: Cost) -> float:
    """The end of the batch after ``more`` further batches of plain decoding.

    The n sequences grow by one token each, so k batches attend to k × Σ context + n × k (k + 1) / 2 tokens.
    """
    decoding = st[DECODING]
    return ck[ORIGIN_S] + (
        cost[0] * (st[STEPS] + more)
        + cost[1] * st[PREFILL_TOKENS]
        + cost[2] * (st[DECODES] + decoding * more)
        + cost[3] * (st[CONTEXT_TOKENS] + st[COMPUTED] * more + decoding * more * (more + 1) // 2)
    )


def batches_until(time_s: float, most: int, st: Ints, ck: Reals, cost: Cost) -> int:
    """The fewest further batches of plain decoding, at most ``most``, that end at ``time_s`` or later.

    The root of the quadratic is a first guess; the clock itself decides.
    """
    decoding = st[DECODING]
    growth = 0.5 * cost[3] * decoding
    pace = cost[0] + cost[2] * decoding + cost[3] * st[COMPUTED] + growth
    left = time_s - ck[END_S]
    guess = 0
    if left > 0.0 and pace > 0.0:
        root = 2.0 * left / (pace + sqrt(pace * pace + 4.0 * growth * left))
        guess = most if root >= most else int(root)
    while guess > 0 and clock(guess - 1, st, ck, cost) >= time_s:
        guess -= 1
    while guess < most and clock(guess, st, ck, cost) < time_s:
        guess += 1
    return guess


def go_idle(time_s: float, st: Ints, ck: Reals) -> None:
    """Nothing runs until ``time_s``, from which time is counted anew."""
    ck[BUSY_S] += ck[END_S] - ck[ORIGIN_S]
    st[ALL_STEPS] += st[STEPS]
    st[ALL_PREFILL_TOKENS] += st[PREFILL_TOKENS]
    st[ALL_DECODES] += st[DECODES]
    st[STEPS] = 0
    st[PREFILL_TOKENS] = 0
    st[DECODES] = 0
    st[CONTEXT_TOKENS] = 0
    ck[ORIGIN_S] = time_s
    ck[START_S] = time_s
    ck[END_S] = time_s
    st[LATE] = 1


def add_used_blocks(blocks: float, start_s: float, end_s: float, ck: Reals, cost: Cost) -> None:
    """Add ``blocks`` from ``start_s`` to ``end_s`` to the integral over the watched time."""
    low = max(start_s, cost[4])
    high = min(end_s, cost[5])
    if high > low:
        ck[USED_BLOCK_S] += blocks * (high - low)
