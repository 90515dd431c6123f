"""Log lines that say something else than they seem to, each with the reason: what a reader must not take from them."""

from dataclasses import dataclass

from kvplan.calibration.deployment import release_in
from kvplan.capacity import Fit
from kvplan.engine_logs import EngineStart, Observation
from kvplan.engines.vllm.budget_constants import FIRST_GRAPHS_INSIDE
from kvplan.units import format_bytes

_TORCH_ON_ROCM = (0, 24)
"""0.24 takes a load from what torch allocated, as on CUDA; 0.11 to 0.19 from what the device has free."""
_SIZES = {"weight_bytes", "kv_bytes", "key_bytes", "free_before_bytes"}


@dataclass(frozen=True, kw_only=True)
class Misleading:
    """A line, and why its figure is not what one would take it for."""

    line: int
    text: str
    reason: str


def effective_tokens(concurrency: float, window_tokens: int) -> int:
    """Tokens that requests of a whole window can really hold: concurrency × window.

    For a hybrid model the printed token figure of vLLM up to 0.20 is smaller by a factor that depends on its groups.

    >>> effective_tokens(33.04, 32768)
    1082654
    """
    return int(concurrency * window_tokens)


def misleading_lines(start: EngineStart, fit: Fit | None = None) -> tuple[Misleading, ...]:
    """The misleading lines of one start; ``fit`` is the plan of the same deployment, where there is one."""
    checks = (
        _token_figure(start),
        _gigabytes(start),
        _graph_estimate(start),
        _profiled_blocks(start),
        _loaded_on_rocm(start),
        _other_platform(start),
        _every_rank(start),
        _rounded_share(start),
        _joint_peak(start),
        _negative_graphs(start),
        _fp4_sizes(start, fit),
        _window_pool(start),
        _concurrency(start),
    )
    return tuple(sorted((found for found in checks if found is not None), key=lambda found: found.line))


def _at(seen: Observation | None, reason: str) -> Misleading | None:
    return None if seen is None else Misleading(line=seen.line, text=seen.text, reason=reason)


def _is_vllm(start: EngineStart) -> bool:
    return start.engine == "vllm"


def _token_figure(start: EngineStart) -> Misleading | None:
    if not _is_vllm(start) or start.kv_tokens is None or not start.concurrency or start.concurrency_tokens is None:
        return None
    real = effective_tokens(start.concurrency, start.concurrency_tokens)
    if abs(real - start.kv_tokens) <= 0.02 * real:
        return None
    return _at(
        start.line_of("kv_tokens"),
        f"the two capacity lines disagree, as they do for hybrid models: {start.kv_tokens:,} tokens are blocks × "
        f"block / groups; use concurrency × max_model_len = {real:,}, what requests of the whole window can hold",
    )


def _gigabytes(start: EngineStart) -> Misleading | None:
    if start.engine not in ("vllm", "sglang"):
        return None
    seen = next((item for item in start.observations if item.name in _SIZES and " GB" in item.text), None)
    return _at(seen, "what is called GB is divided by 2**30: it is GiB, 7 % more bytes than a GB")


def _graph_estimate(start: EngineStart) -> Misleading | None:
    seen, inside = start.line_of("graph_estimate_bytes"), start.line_of("graphs_inside")
    release = release_in(start.version)
    if not _is_vllm(start) or seen is None or release is None:
        return None
    subtracted = release >= FIRST_GRAPHS_INSIDE if inside is None else bool(inside.value)
    if subtracted:
        return None
    return _at(seen, "the estimate is printed, but this start does not subtract it: graphs lie outside the fraction")


def _profiled_blocks(start: EngineStart) -> Misleading | None:
    seen = start.line_of("profiled_blocks")
    if seen is None:
        return None
    return _at(seen, f"{seen.value} blocks are what graphs were tried with before there was a pool: not its size")


def _loaded_on_rocm(start: EngineStart) -> Misleading | None:
    release, seen = release_in(start.version), start.line_of("weight_bytes")
    rocm = start.line_of("is_rocm")
    if not _is_vllm(start) or rocm is None or seen is None or (release is not None and release >= _TORCH_ON_ROCM):
        return None
    return _at(
        seen,
        "on ROCm these releases print all that left the device while loading: weights, code objects and the libraries' "
        "own memory, 1 % to 2 % above the weights",
    )


def _other_platform(start: EngineStart) -> Misleading | None:
    seen = start.line_of("platform")
    if seen is None:
        return None
    return _at(
        seen,
        f"it ran on {str(seen.value).upper()}s: pages and blocks are counted as on GPUs, what the engine holds beside "
        "weights and KV is not",
    )


def _every_rank(start: EngineStart) -> Misleading | None:
    printed = [item for item in start.observations if item.name == "kv_tokens"]
    by_writer = {(item.rank, item.value) for item in printed}
    if not _is_vllm(start) or len(by_writer) == len({item.rank for item in printed}):
        return None
    largest = max(printed, key=lambda item: item.value if isinstance(item.value, int) else 0)
    return _at(largest, f"each rank's own capacity is printed; the pool is the smallest's, {start.kv_tokens:,} tokens")


def _rounded_share(start: EngineStart) -> Misleading | None:
    seen = start.line_of("total_bytes")
    if not _is_vllm(start) or seen is None or "x gpu_memory_utilization (" not in seen.text:
        return None
    return _at(seen, "the utilisation is rounded to two digits here; its product is what was used")


def _joint_peak(start: EngineStart) -> Misleading | None:
    seen = start.line_of("activation_with_graphs_bytes")
    if seen is None or not start.graph_estimate_bytes:
        return None
    return _at(
        seen,
        f"the peak activation printed here holds the graph estimate ({format_bytes(start.graph_estimate_bytes)}), and "
        "weights are joined with non-torch memory",
    )


def _negative_graphs(start: EngineStart) -> Misleading | None:
    if start.graph_bytes is None or start.graph_bytes >= 0:
        return None
    return _at(start.line_of("graph_bytes"), "a negative size: memory was freed while the graphs were captured")


def _fp4_sizes(start: EngineStart, fit: Fit | None) -> Misleading | None:
    word = (start.kv_dtype or "") + ("" if fit is None else fit.plan.kv_types.name)
    if start.engine != "sglang" or ("fp4" not in word and "float4" not in word):
        return None
    return _at(
        start.line_of("key_bytes"), "sizes of 4-bit KV leave out the scales: 1 byte for 16 values, an eighth more"
    )


def _window_pool(start: EngineStart) -> Misleading | None:
    if start.engine != "sglang" or start.window_pool_tokens is None:
        return None
    return _at(
        start.line_of("kv_tokens"),
        f"the tokens are those of the full-attention layers; window layers have {start.window_pool_tokens:,} of "
        "their own",
    )


def _concurrency(start: EngineStart) -> Misleading | None:
    if not _is_vllm(start) or not start.concurrency or start.concurrency_tokens is None:
        return None
    return _at(
        start.line_of("concurrency"),
        f"{start.concurrency:g} requests of the whole window ({start.concurrency_tokens:,} tokens) fit, not how "
        "many users: shorter requests take fewer blocks",
    )
