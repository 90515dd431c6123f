"""The words of a comparison, shared by its formats: what is asked, who a candidate is, why it is where it is."""

from kvplan.compare.results import Candidate, Comparison, ShapeLoad
from kvplan.report.check_words import bound, measured, title
from kvplan.report.numbers import format_bytes, ratio
from kvplan.report.traffic_file import file_name
from kvplan.traffic.spec import Traffic


def load_words(load: ShapeLoad | Traffic) -> str:
    """The load in a few words."""
    if isinstance(load, Traffic):
        return f"the traffic of {file_name(load.file)}"
    if load.prompt_tokens is None:
        many = load.concurrency > 1
        return f"{load.concurrency:,} requests of the whole window" if many else "one request of the whole window"
    cap = "the window's end" if load.max_output_tokens is None else f"{load.max_output_tokens:,}"
    return f"{load.concurrency:,} request{'s' * (load.concurrency > 1)} of {load.prompt_tokens:,} + {cap}"


def hardware(candidate: Candidate) -> str:
    """How many of which GPU, and how they are shared out."""
    choice = candidate.choice
    each = f"{choice.replicas} × {choice.tensor_parallel}" if choice.replicas > 1 else f"{choice.tensor_parallel}"
    return f"{each} × {choice.gpu.name}"


def reason(candidate: Candidate, comparison: Comparison) -> str:
    """Why the candidate loses, or what makes it larger than the smallest; empty for the smallest."""
    smallest = comparison.smallest_of(candidate.choice.model.id)
    if candidate is smallest:
        return ""
    if not candidate.carries:
        return _why_not(candidate)
    assert smallest is not None
    if comparison.by_price and candidate.price_per_hour is not None and smallest.price_per_hour is not None:
        if candidate.price_per_hour > smallest.price_per_hour > 0:
            return f"costs {candidate.price_per_hour / smallest.price_per_hour:.3g} × the smallest"
        return "costs the same"
    times = candidate.choice.memory_bytes / smallest.choice.memory_bytes
    return f"{times:.3g} × the smallest's memory" if times > 1 else "the same hardware"


def _why_not(candidate: Candidate) -> str:
    if candidate.verdict == "limits_broken":
        broken = candidate.broken[0]
        more = f", and {len(candidate.broken) - 1} more" if len(candidate.broken) > 1 else ""
        return f"{title(broken)} {measured(broken)}, limit {bound(broken)}{more}"
    if candidate.verdict == "does_not_fit":
        if candidate.kv_pool_bytes is not None and candidate.kv_pool_bytes < 0:
            return f"does not fit: {format_bytes(-candidate.kv_pool_bytes)} short on each GPU, before any KV"
        return f"does not fit: {candidate.detail}"
    if candidate.verdict == "cannot_tell":
        return f"cannot tell: {candidate.detail}"
    return candidate.detail


def price(candidate: Candidate) -> str:
    """Price of all GPUs an hour."""
    return "-" if candidate.price_per_hour is None else ratio(candidate.price_per_hour)
