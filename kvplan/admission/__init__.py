"""Admission is a promise about the future: a request enters only if what it may become still fits.

The ledger and the policies here are used as they stand by the gateway and mirrored by the simulation's kernel.
"""

from kvplan.admission.ledger import Ledger
from kvplan.admission.policies import (
    DEFAULT_STRATEGIES,
    PROMPT_EXCEEDS_WINDOW,
    RESERVATION_EXCEEDS_POOL,
    STRATEGIES,
    Ask,
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
    "Ask",
    "DrainEstimate",
    "Ledger",
    "Strategy",
    "charge",
    "effective_cap",
    "permanent_refusal",
    "promised_blocks",
    "retry_after_s",
    "whole_seconds",
]
