"""``kvplan fit``: where the memory goes, how large the KV pool is, how many worst-case requests fit."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvplan.cli import options
from kvplan.cli.failures import tell
from kvplan.cli.grouped import grouped
from kvplan.cli.output import remark, show_report, write_data
from kvplan.errors import InputError, UnsupportedModelError

if TYPE_CHECKING:
    from kvplan.capacity import Fit, RequestShape
    from kvplan.engines.base import MediaLimit

_EXIT_CODES = {"fits": 0, "does_not_fit": 1, "cannot_tell": UnsupportedModelError.exit_code}

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan fit Qwen/Qwen3-32B --gpu h100 --tp 2 --prompt 4000 --max-tokens 1024"


def run(
    context: typer.Context,
    model: options.ModelReference,
    gpu: options.Gpu = None,
    engine: options.Engine = "vllm",
    tensor_parallel: options.TensorParallel = 1,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = None,
    kv_dtype: options.KvDtype = "auto",
    prompt: Annotated[
        list[int] | None, typer.Option("--prompt", metavar="N", help="A request to reserve; repeatable.")
    ] = None,
    max_tokens: Annotated[
        list[int] | None, typer.Option("--max-tokens", metavar="M", help="Its cap; without one, the window's rest.")
    ] = None,
    safety_fraction: options.SafetyFraction = 1.0,
    gpu_memory: options.GpuMemory = None,
    utilization: options.Utilization = None,
    kv_memory: Annotated[
        str | None, typer.Option("--kv-memory", metavar="BYTES", help="The KV pool of one GPU: no budget.")
    ] = None,
    calibration: options.Calibration = None,
    flags: Annotated[
        Literal["cli", "k8s"] | None, typer.Option("--flags", help="Print only the engine's flags.")
    ] = None,
    format: options.Format = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
    pipeline_parallel: options.PipelineParallel = 1,
    data_parallel: options.DataParallel = 1,
    context_parallel: options.ContextParallel = 1,
    pp_layers: Annotated[
        str | None, grouped(options.PARALLEL, "--pp-layers", metavar="N,N", help="Layers of each pipeline stage.")
    ] = None,
    max_num_batched_tokens: options.MaxNumBatchedTokens = None,
    hybrid_manager: options.HybridManager = True,
    enforce_eager: Annotated[bool, grouped(options.ENGINE, "--enforce-eager", help="No CUDA graphs.")] = False,
    async_scheduling: options.AsyncScheduling = None,
    prefix_caching: options.PrefixCaching = None,
    chunked_prefill: Annotated[
        bool | None,
        grouped(options.ENGINE, "--chunked-prefill/--no-chunked-prefill", help="Prompts in several steps."),
    ] = None,
    kv_offload: Annotated[
        str | None, grouped(options.ENGINE, "--kv-offload", metavar="BYTES", help="KV in the host's memory (exit 5).")
    ] = None,
    block_size: options.BlockSize = None,
    utilization_word: options.UtilizationWords = None,
    expert_parallel: Annotated[
        bool, grouped(options.ENGINE, "--expert-parallel", "--enable-expert-parallel", help="Whole experts on ranks.")
    ] = False,
    tokens: Annotated[
        str | None, grouped("load", "--tokens", metavar="N,N", help="Reserve requests of these lengths.")
    ] = None,
    speculative_tokens: Annotated[
        int, grouped("load", "--speculative-tokens", metavar="N", help="Tokens guessed ahead.")
    ] = 0,
    speculative_method: Annotated[
        str | None,
        grouped("load", "--speculative-method", metavar="NAME", help="How: ngram, mtp, draft_model or eagle."),
    ] = None,
    draft_model: Annotated[
        str | None, grouped("load", "--draft-model", metavar="MODEL", help="The model that guesses ahead.")
    ] = None,
    limit_mm_per_prompt: Annotated[
        str | None,
        grouped("load", "--limit-mm-per-prompt", metavar="JSON", help='Most items: {"image": 2}; 0 leaves them out.'),
    ] = None,
    weights_bytes: options.WeightsBytes = None,
    max_loras: Annotated[int, grouped("load", "--max-loras", metavar="N", help="LoRA adapters loaded at once.")] = 0,
    max_lora_rank: Annotated[
        int, grouped("load", "--max-lora-rank", metavar="RANK", help="The largest rank of an adapter.")
    ] = 16,
    cache_type_k: options.CacheTypeK = None,
    cache_type_v: options.CacheTypeV = None,
    kv_unified: Annotated[
        bool | None,
        grouped(options.LLAMA_CPP, "--kv-unified/--no-kv-unified", help="One KV buffer for all slots."),
    ] = None,
    swa_full: Annotated[bool, grouped(options.LLAMA_CPP, "--swa-full", help="Windows at full size.")] = False,
    window_pool_ratio: Annotated[
        float | None,
        grouped("sglang", "--swa-full-tokens-ratio", metavar="X", help="Window pool's tokens per full token."),
    ] = None,
    state_pool_ratio: Annotated[
        float | None,
        grouped("sglang", "--mamba-full-memory-ratio", metavar="X", help="State pool per byte of KV."),
    ] = None,
) -> int:
    """Where the GPU's memory goes and how many requests fit. Exit 1: it does not."""
    from kvplan.calibration_file import apply_calibration, load_calibration
    from kvplan.capacity import fit
    from kvplan.engines import parse_engine
    from kvplan.engines.base import Deployment
    from kvplan.engines.devices import check_pool
    from kvplan.sources import read_model

    folder = options.profiles_folder(profiles)
    shapes = _shapes(prompt or (), max_tokens or (), options.parse_counts(tokens, "--tokens"))
    learnt = None if calibration is None else load_calibration(calibration)
    device = None
    known = gpu or (learnt.gpu if learnt is not None else None)
    if known is not None:
        from kvplan.profiles.loader import load_gpu

        device = load_gpu(known, extra_folder=folder)
    elif gpu_memory is None and kv_memory is None and (learnt is None or learnt.gpu_memory_bytes is None):
        raise InputError(
            "fit needs a GPU",
            hint="--gpu h100 (kvplan list gpus), or --gpu-memory 79.18GiB, or --kv-memory 40GiB",
            key="gpu",
        )
    share = utilization if utilization_word is None else utilization_word
    stages = tuple(options.parse_counts(pp_layers, "--pp-layers")) or None
    deployment = Deployment(
        engine=parse_engine(engine),
        gpu=device,
        gpu_memory_bytes=options.parse_gpu_memory(gpu_memory),
        tensor_parallel=options.positive(tensor_parallel, "--tensor-parallel"),
        pipeline_parallel=options.positive(pipeline_parallel, "--pipeline-parallel")
        if stages is None or pipeline_parallel > 1
        else len(stages),
        pipeline_layers=stages,
        data_parallel=options.positive(data_parallel, "--data-parallel"),
        context_parallel=options.positive(context_parallel, "--context-parallel"),
        expert_parallel=expert_parallel,
        kv_dtype=kv_dtype,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        max_model_len=options.positive_or_none(max_model_len, "--max-model-len"),
        max_num_seqs=options.positive_or_none(max_num_seqs, "--max-num-seqs"),
        max_num_batched_tokens=options.positive_or_none(max_num_batched_tokens, "--max-num-batched-tokens"),
        memory_utilization=None if share is None else options.parse_share(share, "--gpu-memory-utilization"),
        async_scheduling=async_scheduling,
        prefix_caching=prefix_caching,
        chunked_prefill=chunked_prefill,
        hybrid_kv_cache_manager=hybrid_manager,
        block_size=options.positive_or_none(block_size, "--block-size"),
        enforce_eager=enforce_eager,
        speculative_tokens=options.not_negative(speculative_tokens, "--speculative-tokens"),
        speculative_method=speculative_method,
        lora_slots=options.not_negative(max_loras, "--max-loras"),
        lora_rank=options.positive(max_lora_rank, "--max-lora-rank"),
        media_limits=_media_limits(limit_mm_per_prompt),
        kv_offload_bytes=None if kv_offload is None else options.parse_amount(kv_offload, "--kv-offload"),
        kv_memory_bytes=None if kv_memory is None else options.parse_amount(kv_memory, "--kv-memory"),
        kv_unified=kv_unified,
        swa_full=swa_full,
        window_pool_ratio=options.parse_ratio(window_pool_ratio, "--swa-full-tokens-ratio"),
        state_pool_ratio=options.parse_ratio(state_pool_ratio, "--mamba-full-memory-ratio"),
        weight_bytes=None if weights_bytes is None else options.parse_amount(weights_bytes, "--weights-bytes"),
    )
    check_pool(deployment)
    fraction = options.parse_share(safety_fraction, "--safety-fraction")
    try:
        spec = read_model(model, offline=offline, profiles_folder=folder)
        if learnt is not None:
            deployment = apply_calibration(deployment, learnt, spec.id)
        if draft_model is not None:
            draft = read_model(draft_model, offline=offline, profiles_folder=folder)
            deployment = replace(deployment, draft_model=draft)
        result = fit(spec, deployment, shapes, fraction)
    except UnsupportedModelError as error:
        if format != "json":
            raise
        from kvplan.report.fit_json import refusal

        write_data(refusal(model, error))
        tell(error)
        return error.exit_code
    _print(result, flags, format, shlex.join(["kvplan", *context.obj]))
    return _EXIT_CODES[result.verdict]


def _media_limits(text: str | None) -> "tuple[MediaLimit, ...] | None":
    """VLLM's own JSON: a number of items, or ``{"count": 10, "tokens": 16384}`` where the tokens of one are known."""
    if text is None:
        return None
    from kvplan.engines.base import MediaLimit

    wrong = InputError(
        f"--limit-mm-per-prompt {text!r} does not say how many items of what",
        hint="""write it like '{"image": 2, "video": 0}'""",
        key="limit_mm_per_prompt",
    )
    try:
        said = json.loads(text)
    except ValueError as error:
        raise wrong from error
    limits = []
    for sort, value in said.items() if isinstance(said, dict) else [("", None)]:
        items, tokens = (value.get("count", 1), value.get("tokens")) if isinstance(value, dict) else (value, None)
        if type(items) is not int or items < 0 or not (tokens is None or (type(tokens) is int and tokens > 0)):
            raise wrong
        limits.append(MediaLimit(sort=sort, items=items, item_tokens=tokens))
    return tuple(limits)


def _print(result: "Fit", flags: str | None, format: str, command: str) -> None:
    from kvplan.flags import engine_flags
    from kvplan.remedies import smallest_changes

    if format == "json":
        show_report("fit", "json", result, engine_flags(result), smallest_changes(result))
    elif flags is not None:
        from kvplan.flags import command_words
        from kvplan.report.flags_text import text as flags_text

        for finding in result.findings:
            if finding.severity != "info":
                remark(finding.severity, finding.message, finding.hint)
        write_data(flags_text(command_words(result), engine_flags(result), flags))
    else:
        show_report("fit", "text", result, smallest_changes(result), command)


def _shapes(prompts: Sequence[int], caps: Sequence[int], lengths: Sequence[int]) -> tuple["RequestShape", ...]:
    """The shapes to reserve: the n-th prompt with the n-th cap, and one for every length of ``--tokens``."""
    from kvplan.capacity import RequestShape

    if len(caps) > len(prompts):
        raise InputError(
            f"{len(caps)} × --max-tokens for {len(prompts)} × --prompt",
            hint="give each cap its prompt",
            key="max_tokens",
        )
    padded = [*caps, *[None] * (len(prompts) - len(caps))]
    pairs = [
        RequestShape(
            name=f"{prompt:,} + {'window' if cap is None else f'{cap:,}'}", prompt_tokens=prompt, max_output_tokens=cap
        )
        for prompt, cap in zip(prompts, padded, strict=True)
    ]
    return (
        *pairs,
        *(RequestShape(name=f"{n:,} tokens", prompt_tokens=n - 1, max_output_tokens=1) for n in lengths if n > 1),
    )
