"""Requests that ask for several answers: one row per sequence for the kernel, one row per request for everyone else.

vLLM splits such a request at its door into sequences of their own with the same prompt, which share the prompt's full
blocks where prefix caching is on (vLLM 0.33, ``v1/engine/parallel_sampling.py``). The ledger holds one reservation.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from kvplan.simulation.types import Integers, Outcome, RequestRows, Requests

_ASKED = ("arrival_s", "prompt_tokens", "cap_tokens", "charge", "refused_for_good", "client", "time_out_s", "cancel_s")


def fan_out(requests: Requests, answers: Integers, answer_tokens: Integers) -> Requests:
    """A row for each of the ``answers`` of every request, side by side; ``answer_tokens`` are their lengths in order.

    Answers of one request share all of its prompt: its chain of ids, or one id of its own where it has none.
    """
    parent = np.repeat(np.cumsum(answers) - answers, answers)
    columns: dict[str, Any] = {
        name: np.repeat(getattr(requests, name), answers) for name in (*_ASKED, "client_draw", "server_draw")
    }
    chain = np.zeros(0, np.int64) if requests.chain is None else requests.chain
    start = np.zeros(len(answers) + 1, np.int64) if requests.chain_start is None else requests.chain_start
    alone = (np.diff(start) == 0) & (answers > 1)
    fresh = int(chain.max(initial=-1)) + 1 + np.arange(int(alone.sum()))
    length = np.repeat(np.where(alone, 1, np.diff(start)), answers)
    first = start[:-1].copy()
    first[alone] = len(chain) + np.arange(len(fresh))
    offsets = np.concatenate(([0], np.cumsum(length)))
    places = np.repeat(np.repeat(first, answers) - offsets[:-1], length) + np.arange(offsets[-1])
    return replace(
        requests,
        **columns,
        output_tokens=answer_tokens,
        parent=parent,
        chain=np.concatenate((chain, fresh))[places],
        chain_start=offsets,
    )


def gathered(rows: RequestRows, parent: Integers) -> RequestRows:
    """One row per request again: let in as one, first token of the first answer that speaks, finished with the last.

    It is completed when all its answers are; preemptions and tokens are sums.
    """
    start = np.flatnonzero(parent == np.arange(len(parent)))
    entered = rows.replica[start] >= 0
    outcome = rows.outcome[start].copy()
    for fate in (Outcome.COMPLETED, Outcome.CANCELLED, Outcome.TIMED_OUT, Outcome.UNFINISHED):  # the last one counts
        outcome[entered & np.logical_or.reduceat(rows.outcome == fate, start)] = fate
    finish_s = np.fmax.reduceat(rows.finish_s, start)
    finish_s[outcome == Outcome.UNFINISHED] = np.nan
    return RequestRows(
        attempts=rows.attempts[start],
        refusals=rows.refusals[start],
        outcome=outcome,
        admitted_s=rows.admitted_s[start],
        scheduled_s=np.fmin.reduceat(rows.scheduled_s, start),
        first_token_s=np.fmin.reduceat(rows.first_token_s, start),
        finish_s=finish_s,
        gave_up_s=rows.gave_up_s[start],
        output_tokens=np.add.reduceat(rows.output_tokens, start),
        preemptions=np.add.reduceat(rows.preemptions, start),
        recomputed_tokens=np.add.reduceat(rows.recomputed_tokens, start),
        replica=rows.replica[start],
    )
