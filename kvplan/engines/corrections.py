"""What a start-up log taught about a budget: bytes by which terms differ, added to any plan of the same deployment."""

from collections.abc import Sequence
from dataclasses import replace

from kvplan.engines.base import Budget, BudgetTerm

LOG_ROUNDING_BYTES = 1 << 23
"""Half width of the band that is left: engines print GiB with two digits, and one start differs from the next."""


def corrected(budget: Budget, corrections: Sequence[tuple[str, int]]) -> Budget:
    """``budget`` with each named term changed by its bytes; a name that it has not becomes a term of its own.

    KV memory changes by the sum of what lies inside the fraction, so the budget's law holds as before.
    """
    if not corrections:
        return budget
    added = dict(corrections)
    terms = [
        replace(term, bytes=term.bytes + added.pop(term.name), formula=f"{term.formula}; corrected by a log")
        if term.name in added
        else term
        for term in budget.terms
    ]
    terms += [BudgetTerm(name=name, bytes=amount, formula="from a log") for name, amount in added.items()]
    before = sum(term.bytes for term in budget.terms if term.inside_fraction)
    change = sum(term.bytes for term in terms if term.inside_fraction) - before
    left = budget.kv_bytes - change
    return replace(
        budget,
        terms=tuple(terms),
        kv_bytes=left,
        kv_bytes_low=left - LOG_ROUNDING_BYTES,
        kv_bytes_high=left + LOG_ROUNDING_BYTES,
    )
