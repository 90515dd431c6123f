"""Options that several commands share, each written once."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvplan.errors import InputError

TextOrJson = Literal["text", "json"]

Format = Annotated[TextOrJson, typer.Option("--format", help="Text for people, JSON for programs.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never use the network: local files, cache, bundled facts.")]
Profiles = Annotated[
    Path | None, typer.Option("--profiles", metavar="DIR", help="Search this folder of profiles first.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file.")]

ModelReference = Annotated[
    str, typer.Argument(metavar="MODEL", help="Hub id (org/name[@revision]), folder, config.json or .gguf file.")
]
TensorParallel = Annotated[int, typer.Option("--tensor-parallel", "--tp", metavar="N", help="GPUs that share a layer.")]
PipelineParallel = Annotated[
    int, typer.Option("--pipeline-parallel", "--pp", metavar="N", help="Stages that share the layers.")
]
DataParallel = Annotated[
    int, typer.Option("--data-parallel", "--dp", metavar="N", help="Attention replicas, each with a KV pool.")
]
ContextParallel = Annotated[
    int, typer.Option("--context-parallel", "--dcp", metavar="N", help="Ranks that share a sequence's tokens.")
]
KvDtype = Annotated[
    str,
    typer.Option("--kv-dtype", "--kv-cache-dtype", metavar="TYPE", help="auto, bfloat16, fp8, … (the engine's word)."),
]
MaxModelLen = Annotated[
    int | None, typer.Option("--max-model-len", "--context", metavar="TOKENS", help="The engine's window.")
]
Tokens = Annotated[str | None, typer.Option("--tokens", metavar="N,N", help="Price these lengths.")]


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


def parse_counts(text: str | None, option: str) -> tuple[int, ...]:
    """Comma-separated token counts, such as ``1024,8192``."""
    if text is None:
        return ()
    counts = []
    for word in text.split(","):
        number = word.strip().replace("_", "")
        if not number.isdecimal() or int(number) < 1:
            raise InputError(f"{option} {text!r}: {word!r} is not a number of tokens", hint=f"{option} 1024,8192")
        counts.append(int(number))
    return tuple(counts)
