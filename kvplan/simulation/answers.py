"""Requests that ask for several answers: one row per sequence for the kernel, one row per request for everyone else.

vLLM splits such a request at its door into sequences of their own with the same prompt, which share the prompt's full
blocks where prefix caching is on (vLLM 0.33, ``v1/engine/parallel_sampling.py``). The ledger holds one reservation.
"""

from dataclasses import replace

import numpy as np

from kvplan.engines.base import CacheLayout
from kvplan.errors import InputError
from kvplan.simulation.types import Integers, Outcome, RequestRows, Requests

_ASKED = ("arrival_s", "prompt_tokens", "cap_tokens", "charge", "refused_for_good", "client", "time_out_s", "cancel_s")


def fan_out(requests: Requests, answers: Integers, answer_tokens: Integers, layout: CacheLayout) -> Requests:
    """A row for each of the ``answers`` of every request, side by side; ``answer_tokens`` are their lengths in order.

    Prompts of one request are marked as shared in the blocks that they fill, those of different requests as different.
    """
    if requests.chain is not None:
        raise InputError(
            "requests for several answers and a trace that marks shared prefixes cannot be played together",
            hint="simulate them apart",
            key="n",
        )
    parent = np.repeat(np.cumsum(answers) - answers, answers)
    columns = {name: np.repeat(getattr(requests, name), answers) for name in (*_ASKED, "client_draw", "server_draw")}
    block = layout.groups[0].block_tokens  # chains are followed only where this is the one group
    blocks = np.where(answers > 1, requests.prompt_tokens // block, 0)
    first = np.repeat(np.cumsum(blocks) - blocks, answers)
    length = np.repeat(blocks, answers)
    start = np.concatenate(([0], np.cumsum(length)))
    return replace(
        requests,
        **columns,
        output_tokens=answer_tokens,
        parent=parent,
        chain=np.repeat(first - start[:-1], length) + np.arange(start[-1]),
        chain_start=start,
        chain_tokens=block,
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
