"""What a log and its comparison with the plan leave to say: refused starts, figures that cannot be, and doubts."""

from collections.abc import Iterator, Sequence

from kvplan.capacity import Fit
from kvplan.engine_logs import EngineStart, Refusal
from kvplan.engines import engine_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import Finding
from kvplan.errors import InputError
from kvplan.profiles.kinds import GpuProfile
from kvplan.units import GIB, format_bytes

_ROUNDED_BYTES = GIB // 10
"""What figures of two digits can be off by, summed up."""

_FEW_WEIGHTS = 0.75
"""An 8-bit checkpoint is about half of a 16-bit one, and its embedding is often not quantised."""


def nothing_measured(start: EngineStart) -> InputError:
    """Why there is nothing to compare: the engine refused to start, or the log says too little."""
    for refusal in start.refusals:
        return InputError(
            f"line {refusal.line}: the engine refused to start before it measured anything: {refusal.text[:160]}",
            hint=_remedy(refusal, start) or "start it with the flags of kvplan fit --flags cli",
        )
    return InputError(
        "the log has no figure of this engine's memory",
        hint="give the log from the engine's first line on, at its default log level",
    )


def _remedy(refusal: Refusal, start: EngineStart) -> str | None:
    """What would start, by the engine's own message."""
    if refusal.estimated_max_model_len is not None:
        return f"--max-model-len {refusal.estimated_max_model_len}, as the engine says"
    if refusal.pool_tokens is not None:
        return f"--max-model-len {refusal.pool_tokens}, all that the pool holds"
    if refusal.most_sequences is not None:
        return f"--max-num-seqs {refusal.most_sequences}, as the engine says"
    if refusal.reason == "not_enough_free" and refusal.available_bytes and start.total_bytes:
        most = int(refusal.available_bytes / start.total_bytes * 1000) / 1000
        return f"--gpu-memory-utilization {most:g} at most, or stop the process that holds the memory"
    return None


def log_findings(start: EngineStart, gpu: GpuProfile | None, planned: Fit) -> Iterator[Finding]:
    """Refused starts, what the log does not say, and where the log and the plan are not of the same deployment."""
    for refusal in start.refusals:
        yield Finding(
            code=f"log-refusal-{refusal.reason.replace('_', '-')}",
            severity="error",
            message=f"line {refusal.line}: the engine refused to start: {refusal.text[:160]}",
            hint=_remedy(refusal, start),
        )
    yield from _release_findings(start)
    yield from _device_findings(gpu, planned)
    yield from _weight_findings(start, planned)
    yield from _other_load_findings(start, planned)


def _release_findings(start: EngineStart) -> Iterator[Finding]:
    """Whose rules the plan follows, where the log does not print a release."""
    inferred = start.line_of("v0_release")
    if inferred is not None and start.is_version_inferred and start.version == inferred.value:
        yield Finding(
            code="release-inferred",
            severity="info",
            message=f"the log does not print vLLM's release: line {inferred.line} is of its V0 engine, so the plan is "
            f"that of {start.version}",
            hint=f"--engine {start.engine}@VERSION, or the log from the engine's first line on",
        )
    default_release = engine_of(start.engine).default_release
    if start.version is None and default_release is not None:
        yield Finding(
            code="release-not-in-log",
            severity="info",
            message="the log does not print the engine's release: the plan follows the rules of "
            f"{'.'.join(map(str, default_release))}",
            hint=f"--engine {start.engine}@VERSION, or the log from the engine's first line on",
        )


def _device_findings(gpu: GpuProfile | None, planned: Fit) -> Iterator[Finding]:
    """What the plan assumes of a GPU that the log does not name or measure."""
    if gpu is None:
        yield Finding(
            code="gpu-not-said",
            severity="info",
            message="the log does not name the GPU: settings that it does not print are those of an H100",
            hint="--gpu NAME",
        )
    elif planned.deployment.gpu_memory_bytes is None:
        yield Finding(
            code="total-memory-not-in-log",
            severity="info",
            message=f"the log does not print the total memory: the plan uses that of the {gpu.name}, "
            f"{format_bytes(gpu.memory_bytes)}",
        )


def _weight_findings(start: EngineStart, planned: Fit) -> Iterator[Finding]:
    """Where the log's weights cannot be those planned. llama.cpp's are a file's own, so they may always differ."""
    is_quantised = start.engine != "llama.cpp" and start.quantization is not None
    if is_quantised and planned.model.weights.quantization is None:
        yield Finding(
            code="log-weights-are-quantised",
            severity="warning",
            message=f"the log's weights are quantised ({start.quantization}), those of {planned.model.id} are not",
            hint="name the quantised checkpoint with --model, or give its size: --weights-bytes",
        )
    elif start.engine != "llama.cpp" and start.weight_bytes is not None and planned.deployment.weight_bytes is None:
        yield from _few_weights(start.weight_bytes, planned)


def _other_load_findings(start: EngineStart, planned: Fit) -> Iterator[Finding]:
    """What the engine ran with, or left on the host, that the plan does not."""
    if start.layers_on_gpu is not None and start.layers is not None and start.layers_on_gpu < start.layers:
        yield Finding(
            code="layers-on-the-host",
            severity="warning",
            message=f"{start.layers_on_gpu} of {start.layers} layers are on the GPU: the plan puts all of them there, "
            "so it has more weights than the log",
            hint="--n-gpu-layers 999 loads all of them, where they fit",
        )
    if start.has_speculation and not planned.deployment.speculative_tokens:
        yield Finding(
            code="speculation-in-log",
            severity="warning",
            message="the engine ran with speculative decoding: its figures include a draft's weights and KV",
        )
    if start.has_lora:
        yield Finding(
            code="adapters-in-log",
            severity="warning",
            message="the engine ran with LoRA adapters: its figures include their memory, the plan does not",
        )


def _few_weights(logged_bytes: int, planned: Fit) -> Iterator[Finding]:
    """Weights far below those planned, where the log does not say why."""
    budget = planned.plan.budget
    planned_bytes = 0 if budget is None else sum(term.bytes for term in budget.terms if term.kind == "weight")
    if logged_bytes < _FEW_WEIGHTS * planned_bytes:
        yield Finding(
            code="log-weights-are-few",
            severity="warning",
            message=f"the log's weights are {format_bytes(logged_bytes)}, those planned for {planned.model.id} "
            f"{format_bytes(planned_bytes)} per GPU: the log is of a quantised checkpoint, or of more GPUs than said",
            hint="name the quantised checkpoint with --model, or give its size (--weights-bytes) or the GPUs (--tp)",
        )


def inferred_kv_type(logged: Deployment, planned: Deployment) -> Iterator[Finding]:
    """The KV type of the plan, where the log does not print one."""
    if planned.kv_dtype != logged.kv_dtype:
        yield Finding(
            code="kv-type-inferred",
            severity="info",
            message=f"the log does not print the KV type: its pool is that of {planned.kv_dtype}, not of "
            f"{logged.kv_dtype}",
        )


def overdrawn(logged_bytes: Sequence[int], usable_bytes: int) -> Iterator[Finding]:
    """A term below zero, by more than rounding: the log's figures need more memory than the plan has."""
    missing = -min(logged_bytes, default=0)
    if missing > _ROUNDED_BYTES:
        yield Finding(
            code="log-takes-more-than-there-is",
            severity="warning",
            message=f"the log's own figures are {format_bytes(missing)} more than the {format_bytes(usable_bytes)} "
            "that the plan may use: the log is of a larger GPU, or of another share of its memory",
            hint="--gpu NAME, the GPU that it ran on",
        )
