"""Requests for several answers (``n``): one row per sequence in the kernel, one row per request everywhere else.

vLLM splits such a request into separate sequences with the same prompt, which share the prompt's full blocks where
prefix caching is on (vLLM 0.33, ``v1/engine/parallel_sampling.py``). The ledger holds one reservation for all.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from kvplan.simulation.types import Integers, Outcome, RequestRows, Requests

_ASKED = ("arrival_s", "prompt_tokens", "cap_tokens", "charge", "refused_for_good", "client", "time_out_s", "cancel_s")


def fan_out(requests: Requests, answers: Integers, answer_tokens: Integers) -> Requests:
    """One row for each of the ``answers`` of every request, in order; ``answer_tokens`` are their lengths.

    Answers of one request share its whole prompt: its chain of ids, or a single new id where it has none.
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
    index = np.repeat(np.repeat(first, answers) - offsets[:-1], length) + np.arange(offsets[-1])
    return replace(
        requests,
        **columns,
        output_tokens=answer_tokens,
        parent=parent,
        chain=np.concatenate((chain, fresh))[index],
        chain_start=offsets,
    )


def merge_sequences(rows: RequestRows, parent: Integers) -> RequestRows:
    """One row per request again: its first token is the earliest, its end is that of the last answer.

    A request is completed when all its answers are; preemptions and tokens are sums.
    """
    start = np.flatnonzero(parent == np.arange(len(parent)))
    admitted = rows.replica[start] >= 0
    outcome = rows.outcome[start].copy()
    for fate in (
        Outcome.COMPLETED,
        Outcome.CANCELLED,
        Outcome.TIMED_OUT,
        Outcome.UNFINISHED,
    ):  # the last that applies counts
        outcome[admitted & np.logical_or.reduceat(rows.outcome == fate, start)] = fate
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
