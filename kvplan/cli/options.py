"""Options that several commands share, each written once."""

from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvplan.cli.grouped import grouped
from kvplan.errors import InputError
from kvplan.units import parse_bytes, parse_seconds

TextOrJson = Literal["text", "json"]

Format = Annotated[TextOrJson, typer.Option("--format", show_default=False, help="Text for people, JSON for programs.")]
Offline = Annotated[bool, typer.Option("--offline", help="Local files, cache and bundled facts only.")]
Profiles = Annotated[
    Path | None, typer.Option("--profiles", metavar="DIR", help="Search this folder of profiles first.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file.")]

PARALLEL = "parallel"
ENGINE = "engine"
LLAMA_CPP = "llama"
RUNS = "runs"
FILE = "file"
"""Groups of rarer options."""
LEAST_BYTES = 2**20
"""No pool, GPU or checkpoint is smaller."""

ModelReference = Annotated[
    str, typer.Argument(metavar="MODEL", help="Hub id[@revision], folder, config.json or .gguf.")
]
TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel", "--tp", metavar="N", show_default=False, help="GPUs that share a layer.")
]
PipelineParallel = Annotated[
    int, grouped(PARALLEL, "--pipeline-parallel", "--pp", metavar="N", help="Stages that share the layers.")
]
DataParallel = Annotated[
    int, grouped(PARALLEL, "--data-parallel", "--dp", metavar="N", help="Attention replicas, each with a KV pool.")
]
ContextParallel = Annotated[
    int, grouped(PARALLEL, "--context-parallel", "--dcp", metavar="N", help="Ranks that share a sequence's tokens.")
]
KvDtype = Annotated[
    str, typer.Option("--kv-dtype", metavar="TYPE", show_default=False, help="auto, bfloat16, fp8, ... (its word).")
]
MaxModelLen = Annotated[
    int | None, typer.Option("--max-model-len", "--context", metavar="N", help="The engine's window, in tokens.")
]
SafetyFraction = Annotated[
    float, typer.Option("--safety-fraction", metavar="SHARE", show_default=False, help="Share of the pool to promise.")
]
Tokens = Annotated[str | None, typer.Option("--tokens", metavar="N,N", help="Price these lengths.")]

Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        show_default=False,
        metavar="NAME[@VERSION]",
        help="vllm, sglang, tensorrt-llm, llama.cpp, tgi.",
    ),
]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="The kind of GPU (kvplan list gpus).")]
GpuMemory = Annotated[
    str | None, typer.Option("--gpu-memory", metavar="BYTES,...", help="As the driver says, for all or per rank.")
]
Utilization = Annotated[
    float | None, typer.Option("--gpu-memory-utilization", metavar="SHARE", help="The engine's share of the memory.")
]
UtilizationWords = Annotated[
    float | None,
    grouped(
        ENGINE,
        "--mem-fraction-static",
        "--free-gpu-memory-fraction",
        "--cuda-memory-fraction",
        metavar="X",
        help="Other engines' words for --gpu-memory-utilization.",
    ),
]
MaxNumSeqs = Annotated[int | None, typer.Option("--max-num-seqs", metavar="N", help="Sequences at once.")]
MaxNumBatchedTokens = Annotated[
    int | None, grouped(ENGINE, "--max-num-batched-tokens", metavar="N", help="Tokens of one step.")
]
AsyncScheduling = Annotated[
    bool | None, grouped(ENGINE, "--async-scheduling/--no-async-scheduling", help="Two batches in flight.")
]
PrefixCaching = Annotated[
    bool | None, grouped(ENGINE, "--prefix-caching/--no-prefix-caching", help="Keep the KV of finished prompts.")
]
HybridManager = Annotated[
    bool,
    grouped(
        ENGINE,
        "--hybrid-kv-cache-manager/--no-hybrid-kv-cache-manager",
        help="Page windows and states apart.",
    ),
]
BlockSize = Annotated[int | None, grouped(ENGINE, "--block-size", metavar="TOKENS", help="Tokens of a block.")]
CacheTypeK = Annotated[str | None, grouped(LLAMA_CPP, "--cache-type-k", metavar="TYPE", help="Type of the keys.")]
CacheTypeV = Annotated[str | None, grouped(LLAMA_CPP, "--cache-type-v", metavar="TYPE", help="Type of the values.")]
WeightsBytes = Annotated[
    str | None, grouped("load", "--weights-bytes", metavar="BYTES", help="The weights, all ranks together.")
]
Calibration = Annotated[Path | None, typer.Option("--calibration", metavar="FILE", help="What kvplan calibrate wrote.")]

TrafficReference = Annotated[
    str, typer.Argument(metavar="TRAFFIC", help="A traffic file, or a bundled mix (kvplan list traffic).")
]
Seeds = Annotated[int | None, typer.Option("--seeds", metavar="N", help="Runs, each with its own seed.")]
Seed = Annotated[int | None, grouped(RUNS, "--seed", metavar="N", help="The first seed.")]
Scale = Annotated[float, typer.Option("--scale", metavar="X", show_default=False, help="Traffic times X.")]
Workers = Annotated[int | None, grouped(RUNS, "--workers", metavar="N", help="Processes; without it, one a core.")]
Cluster = Annotated[
    str | None, grouped(RUNS, "--cluster", metavar="tcp://HOST:PORT", help="Play the runs on this Dask scheduler.")
]
Price = Annotated[
    list[str] | None, typer.Option("--price", metavar="GPU=AMOUNT", help="Of one GPU an hour; repeatable.")
]


def profiles_folder(folder: Path | None) -> Path | None:
    """``folder``, if it is one."""
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder} is not a folder", hint="--profiles names a folder with gpus/, models/, …")
    return folder


def positive(value: int, option: str) -> int:
    """``value``, if it counts something."""
    if value < 1:
        raise InputError(f"{option} {value} is not a positive number", hint=f"give {option} 1 or more", key=option)
    return value


def positive_or_none(value: int | None, option: str) -> int | None:
    """``value``, if it counts something or was not given."""
    return None if value is None else positive(value, option)


def not_negative(value: int, option: str) -> int:
    """``value``, if it is a count."""
    if value < 0:
        raise InputError(f"{option} {value} is below zero", hint=f"give {option} 0 or more", key=option)
    return value


def parse_ratio(value: float | None, option: str) -> Fraction | None:
    """A ratio above zero, exact as written."""
    if value is None:
        return None
    if not 0 < value < inf:
        raise InputError(f"{option} {value:g} is not above zero", hint=f"such as {option} 0.8", key=option)
    return Fraction(str(value))


def parse_counts(text: str | None, option: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, separated by commas, such as ``1024,8192``."""
    if text is None:
        return ()
    counts = []
    for word in text.split(","):
        number = word.strip().replace("_", "")
        if not number.isdecimal() or int(number) < 1:
            raise InputError(f"{option} {text!r}: {word!r} is not a whole number from 1 on", hint=f"{option} 8,16")
        counts.append(int(number))
    return tuple(counts)


def parse_gpu_memory(text: str | None) -> tuple[int, ...] | None:
    """Bytes of one rank, or of each, separated by commas."""
    return None if text is None else tuple(parse_amount(word, "--gpu-memory") for word in text.split(","))


def parse_amount(text: str, option: str) -> int:
    """Bytes with a unit, or a plain number of bytes; so few are a number whose unit was forgotten.

    >>> parse_amount("1GiB", "--kv-memory"), parse_amount("2097152", "--kv-memory")
    (1073741824, 2097152)
    """
    plain = text.strip().isdecimal()
    try:
        amount = int(text) if plain else parse_bytes(text)
    except InputError as error:
        error.key = option
        raise
    if amount <= 0:
        raise InputError(f"{option} {text}: nothing fits in no memory", hint=f"{option} 10GiB", key=option)
    if plain and amount < LEAST_BYTES:
        raise InputError(f"{option} {text} is {text} bytes", hint=f"say its unit: {option} {text}GiB", key=option)
    return amount


def parse_share(value: float, option: str) -> Fraction:
    """A share in (0, 1], exact as written: 0.92 is 92/100, not the float beside it."""
    if not 0 < value <= 1:
        raise InputError(f"{option} {value:g} is not a share", hint="give a number above 0 and at most 1", key=option)
    return Fraction(str(value))


def parse_time(text: str, option: str) -> float:
    """Seconds above zero; a wrong value is reported with its option.

    >>> parse_time("90s", "--grace")
    90.0
    """
    try:
        seconds = parse_seconds(text)
    except InputError as error:
        error.key = option
        raise
    if not seconds > 0:
        raise InputError(f"{option} {text} is not above zero", hint=f"{option} 30s", key=option)
    return seconds
