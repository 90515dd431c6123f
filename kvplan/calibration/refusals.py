"""A start that the engine itself refused: what it says would start."""

from kvplan.engine_logs import EngineStart, Refusal
from kvplan.errors import InputError


def nothing_measured(start: EngineStart) -> InputError:
    """Why there is nothing to compare: the engine's own refusal, or a log that says too little."""
    for refusal in start.refusals:
        return InputError(
            f"line {refusal.line}: the engine refused to start before it measured anything: {refusal.text[:160]}",
            hint=way_out(refusal, start) or "start it as kvplan fit --flags says",
        )
    return InputError(
        "the log holds no figure of this engine's memory",
        hint="give the log from the engine's first line on, and at its normal level",
    )


def way_out(refusal: Refusal, start: EngineStart) -> str | None:
    """What the engine's own refusal says would start."""
    if refusal.estimated_max_model_len is not None:
        return f"--max-model-len {refusal.estimated_max_model_len}, as the engine says"
    if refusal.pool_tokens is not None:
        return f"--max-model-len {refusal.pool_tokens}, all that the pool holds"
    if refusal.most_sequences is not None:
        return f"--max-num-seqs {refusal.most_sequences}, as the engine says"
    if refusal.reason == "not_enough_free" and refusal.available_bytes and start.total_bytes:
        most = int(refusal.available_bytes / start.total_bytes * 1000) / 1000
        return f"--gpu-memory-utilization {most:g} at most, or end what holds the memory"
    return None
