"""Log lines whose figures mean something other than they seem to, each with the reason."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.calibration.deployment import release_in
from kvplan.capacity import Fit
from kvplan.engine_logs import EngineStart, Observation
from kvplan.engines.vllm.budget_constants import FIRST_GRAPHS_INSIDE
from kvplan.units import format_bytes

_TORCH_ON_ROCM = (0, 24)
"""0.24 takes the size of a load from what torch allocated, as on CUDA; 0.11 to 0.19 from the device's free memory."""
_SIZES = {"weight_bytes", "kv_bytes", "key_bytes", "free_before_bytes"}


@dataclass(frozen=True, kw_only=True)
class Misleading:
    """A line, and why its figure is not what one would take it for."""

    line: int
    text: str
    reason: str


def misleading_lines(start: EngineStart, fit: Fit | None = None) -> tuple[Misleading, ...]:
    """The misleading lines of one start, in order. ``fit`` is the plan of the same deployment, where there is one."""
    found = list(_of_any_engine(start))
    if start.engine == "vllm":
        found += [*_of_vllm_capacity(start), *_of_vllm_memory(start)]
    elif start.engine == "sglang":
        found += _of_sglang(start, fit)
    return tuple(sorted(found, key=lambda each: each.line))


def _at(seen: Observation | None, reason: str) -> Iterator[Misleading]:
    """One of where a line gave the figure, else none."""
    if seen is not None:
        yield Misleading(line=seen.line, text=seen.text, reason=reason)


def graphs_are_inside(start: EngineStart) -> bool:
    """Whether this start of vLLM subtracts its estimate of CUDA graphs from the pool; the newest releases do."""
    seen, release = start.line_of("graphs_inside"), release_in(start.version)
    if seen is not None:
        return bool(seen.value)
    return release is None or release >= FIRST_GRAPHS_INSIDE


def _of_any_engine(start: EngineStart) -> Iterator[Misleading]:
    profiled, platform = start.line_of("profiled_blocks"), start.line_of("platform")
    if profiled is not None:
        yield from _at(
            profiled, f"graphs were tried with {profiled.value} blocks before there was a pool: not the pool's size"
        )
    if platform is not None:
        yield from _at(
            platform,
            f"it ran on {str(platform.value).upper()}s: pages and blocks are counted as on GPUs, what the engine holds "
            "besides weights and KV is not",
        )
    if start.graph_bytes is not None and start.graph_bytes < 0:
        yield from _at(start.line_of("graph_bytes"), "a negative size: memory was freed while the graphs were captured")


def _of_vllm_capacity(start: EngineStart) -> Iterator[Misleading]:
    window = start.concurrency_tokens
    if start.concurrency and window is not None:
        real = int(start.concurrency * window)  # tokens that requests of a whole window can really hold
        if start.kv_tokens is not None and abs(real - start.kv_tokens) > 0.02 * real:
            yield from _at(
                start.line_of("kv_tokens"),
                f"the two capacity lines disagree, as they do for hybrid models: {start.kv_tokens:,} tokens are "
                f"blocks × block / groups; use concurrency × max_model_len = {real:,}, what requests of the whole "
                "window can hold",
            )
        yield from _at(
            start.line_of("concurrency"),
            f"{start.concurrency:g} requests of the whole window ({window:,} tokens) fit, not how many users: "
            "shorter requests take fewer blocks",
        )
    printed = [item for item in start.observations if item.name == "kv_tokens"]
    if len({(item.rank, item.value) for item in printed}) != len({item.rank for item in printed}):
        yield from _at(
            max(printed, key=lambda item: item.value if isinstance(item.value, int) else 0),
            f"each rank's own capacity is printed; the pool is the smallest's, {start.kv_tokens:,} tokens",
        )


def _of_vllm_memory(start: EngineStart) -> Iterator[Misleading]:
    yield from _gigabytes(start)
    release = release_in(start.version)
    if release is not None and not graphs_are_inside(start):
        yield from _at(
            start.line_of("graph_estimate_bytes"),
            "the estimate is printed, but this start does not subtract it: graphs lie outside the fraction",
        )
    if start.line_of("is_rocm") is not None and (release is None or release < _TORCH_ON_ROCM):
        yield from _at(
            start.line_of("weight_bytes"),
            "on ROCm these releases print everything that left the device's free memory while loading: weights, code "
            "objects and the libraries' own memory, 1% to 2% more than the weights",
        )
    total = start.line_of("total_bytes")
    if total is not None and "x gpu_memory_utilization (" in total.text:
        yield from _at(total, "the utilisation is rounded to two digits here; its product is what was used")
    if start.graph_estimate_bytes:
        yield from _at(
            start.line_of("activation_with_graphs_bytes"),
            "the peak activation printed here includes the graph estimate "
            f"({format_bytes(start.graph_estimate_bytes)}), and weights are printed together with non-torch memory",
        )


def _of_sglang(start: EngineStart, fit: Fit | None) -> Iterator[Misleading]:
    yield from _gigabytes(start)
    word = (start.kv_dtype or "") + ("" if fit is None else fit.plan.kv_types.name)
    if "fp4" in word or "float4" in word:
        yield from _at(
            start.line_of("key_bytes"), "sizes of 4-bit KV leave out the scales: 1 byte for 16 values, an eighth more"
        )
    if start.window_pool_tokens is not None:
        yield from _at(
            start.line_of("kv_tokens"),
            f"the tokens are those of the full-attention layers; window layers have {start.window_pool_tokens:,} of "
            "their own",
        )


def _gigabytes(start: EngineStart) -> Iterator[Misleading]:
    seen = next((item for item in start.observations if item.name in _SIZES and " GB" in item.text), None)
    yield from _at(seen, "GB here means GiB, 7% more bytes than a GB: the size was divided by 2**30")
