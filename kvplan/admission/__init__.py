"""Admission is a promise about the future: a request is admitted only if it fits even at its worst case.

A ``Strategy`` says what a request is charged, a ``Ledger`` whether that is free, and ``DrainEstimate`` when a refused
client should come back. The gateway uses them as they are; the simulation's kernel does the same arithmetic on arrays.

A pool of 1,001 blocks of 16 tokens, of which one is reserved and 90% are promised, in a window of 32,768 tokens:

>>> ledger = Ledger(promised_blocks(1_001, 0.90))
>>> cap = effective_cap(prompt_tokens=4_000, max_tokens=None, window_tokens=32_768, default_max_tokens=1_024)
>>> size = RequestSize(prompt_tokens=4_000, cap_tokens=cap, expected_output_tokens=200)
>>> weight = charge(STRATEGIES["worst_case_default_cap"], size, lambda tokens: -(-tokens // 16))
>>> weight, permanent_refusal(4_000, 32_768, weight, ledger.capacity)
(314, None)
>>> [ledger.try_reserve(serial, weight) for serial in range(3)], ledger.free
([True, True, False], 272)
"""

from kvplan.admission.ledger import Ledger
from kvplan.admission.policies import (
    DEFAULT_STRATEGIES,
    PROMPT_EXCEEDS_WINDOW,
    RESERVATION_EXCEEDS_POOL,
    STRATEGIES,
    RequestSize,
    Strategy,
    charge,
    effective_cap,
    permanent_refusal,
    promised_blocks,
)
from kvplan.admission.retry_after import DrainEstimate, retry_after_s, whole_seconds

__all__ = [
    "DEFAULT_STRATEGIES",
    "PROMPT_EXCEEDS_WINDOW",
    "RESERVATION_EXCEEDS_POOL",
    "STRATEGIES",
    "DrainEstimate",
    "Ledger",
    "RequestSize",
    "Strategy",
    "charge",
    "effective_cap",
    "permanent_refusal",
    "promised_blocks",
    "retry_after_s",
    "whole_seconds",
]
