"""``kvplan compare``: which GPU and parallelism is the smallest that carries it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvplan.cli import options
from kvplan.cli.files import check_free
from kvplan.cli.output import progress_bar, show_report
from kvplan.engines.option_types import read_kv_type, read_share, read_tokens
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.compare import ShapeLoad
    from kvplan.traffic.spec import Traffic

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan compare Qwen/Qwen3-32B --gpu h100 --gpu l40s --prompt 4000 --max-tokens 1024 --concurrency 40"


def run(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Models; by default the traffic file's.")
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option("--gpu", metavar="NAME", help="A kind of GPU; repeatable.")] = None,
    traffic: Annotated[
        str | None, typer.Option("--traffic", metavar="TRAFFIC", help="The load: a traffic file, or a bundled mix.")
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(
            "--prompt", metavar="N", parser=options.tokens("--prompt"), help="The load: prompt tokens of a request."
        ),
    ] = None,
    max_tokens: Annotated[int | None, options.MAX_TOKENS] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", help="How many of them at once; by default 1.")
    ] = None,
    safety_fraction: options.SafetyFraction = None,
    tensor_parallel: Annotated[
        str,
        typer.Option(
            "--tensor-parallel", "--tp", metavar="N,N", show_default=False, help="GPUs that share a layer: 1,2,4,8."
        ),
    ] = "1,2,4,8",
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", metavar="TYPE,TYPE", show_default=False, help="KV types: auto,fp8.")
    ] = "auto",
    max_model_len: Annotated[
        str | None,
        typer.Option("--max-model-len", "--context", metavar="N,N", help="Windows; by default what the load needs."),
    ] = None,
    replicas: Annotated[
        str | None, typer.Option("--replicas", metavar="N,N", help="Engines behind one router.")
    ] = None,
    engine: options.Engine = "vllm",
    price: options.Price = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", metavar="N", help="Runs of the traffic per candidate.")
    ] = None,
    workers: options.Workers = None,
    cluster: options.Cluster = None,
    output: options.Output = None,
    force: options.Force = False,
    format: Annotated[
        Literal["text", "json", "csv"],
        typer.Option("--format", show_default=False, help="For people, programs, spreadsheets."),
    ] = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Find the smallest GPU and parallelism that carries a load. Exit 1: none does."""
    from kvplan.compare import DEFAULT_SEEDS, compare
    from kvplan.engines import parse_engine
    from kvplan.profiles.loader import load_gpu
    from kvplan.sources import read_model

    folder = options.profiles_folder(profiles)
    if output is not None:
        check_free(output, force=force)
    if not gpu:
        raise InputError("compare needs GPUs", hint="--gpu h100 --gpu l40s (kvplan list gpus)", key="gpu")
    load = _load(traffic, prompt, max_tokens, concurrency, safety_fraction, folder)
    names = list(models or ()) or _model_of(load)
    kinds = list({profile.name: profile for profile in (load_gpu(name, extra_folder=folder) for name in gpu)}.values())
    asked = {
        "tensor_parallel": options.counts_or_none(tensor_parallel, "--tensor-parallel"),
        "windows": tuple(
            read_tokens(each, "--max-model-len") for each in (max_model_len or "").split(",") if max_model_len
        ),
        "replicas": options.counts_or_none(replicas, "--replicas"),
    }
    prices = options.parse_prices(price or [], profiles_folder=folder)
    runs = options.positive_or_none(seeds, "--seeds") or DEFAULT_SEEDS
    processes = options.positive_or_none(workers, "--workers")
    version = parse_engine(engine)
    specs = [read_model(name, offline=offline, profiles_folder=folder) for name in dict.fromkeys(names)]
    with progress_bar("comparing") as step:
        result = compare(
            specs,
            kinds,
            load,
            **asked,
            kv_dtypes=_kv_types(kv_dtype),
            engine=version,
            prices_per_hour=prices,
            seeds=runs,
            workers=processes,
            cluster=cluster,
            profiles_folder=folder,
            progress=step,
        )
    show_report("compare", format, result, output=output, force=force)
    return 0 if result.smallest is not None else 1


def _load(
    traffic: str | None,
    prompt: int | None,
    max_tokens: int | None,
    concurrency: int | None,
    safety_fraction: float | None,
    folder: Path | None,
) -> "ShapeLoad | Traffic":
    """The traffic file, or the shape: one of them."""
    if traffic is not None:
        if prompt is not None or max_tokens is not None or concurrency is not None:
            raise InputError(
                "--traffic and --prompt, --max-tokens or --concurrency cannot be combined",
                hint="give one of them",
                key="traffic",
            )
        from kvplan.traffic.load import load_traffic

        return load_traffic(traffic, profiles_folder=folder)
    if prompt is None and max_tokens is not None:
        raise InputError("--max-tokens needs --prompt", hint="--prompt 4000", key="prompt")
    from kvplan.compare import ShapeLoad

    return ShapeLoad(
        prompt_tokens=prompt,
        max_output_tokens=max_tokens,
        concurrency=options.positive_or_none(concurrency, "--concurrency") or 1,
        safety_fraction=read_share(1 if safety_fraction is None else safety_fraction, "--safety-fraction"),
    )


def _kv_types(text: str) -> tuple[str, ...]:
    words = (word.strip() for word in text.split(","))
    return tuple(dict.fromkeys(read_kv_type(word, "--kv-dtype") for word in words if word)) or ("auto",)


def _model_of(load: "ShapeLoad | Traffic") -> list[str]:
    model: str | None = getattr(load, "model", None)
    if model is None:
        raise InputError("no model was named", hint="kvplan compare org/name --gpu h100", key="model")
    return [model]
