"""``kvplan fit``: where the memory goes, how large the KV pool is, how many worst-case requests fit."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kvplan.cli import options
from kvplan.cli.deployment_options import flag_of, takes_deployment
from kvplan.cli.failures import tell
from kvplan.cli.help import grouped
from kvplan.cli.output import remark, show_report, write_data
from kvplan.errors import InputError, UnsupportedModelError

if TYPE_CHECKING:
    from fractions import Fraction

    from kvplan.calibration_file import CalibrationFile
    from kvplan.capacity import Fit, RequestShape

_EXIT_CODES = {"fits": 0, "does_not_fit": 1, "cannot_tell": UnsupportedModelError.exit_code}

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan fit Qwen/Qwen3-32B --gpu h100 --tp 2 --prompt 4000 --max-tokens 1024"


@takes_deployment()
def run(
    context: typer.Context,
    model: options.ModelReference,
    asked: dict[str, Any],
    prompt: Annotated[
        list[int] | None,
        typer.Option(
            "--prompt", metavar="N", parser=options.tokens("--prompt"), help="Prompt tokens of a request; repeatable."
        ),
    ] = None,
    max_tokens: Annotated[list[int] | None, options.MAX_TOKENS] = None,
    tokens: Annotated[
        str | None, grouped("load", "--tokens", metavar="N,N", help="Reserve requests of these lengths.")
    ] = None,
    default_max_tokens: Annotated[
        int | None,
        grouped(
            "load",
            "--default-max-tokens",
            metavar="N",
            parser=options.tokens("--default-max-tokens"),
            help="The cap of a request that has none.",
        ),
    ] = None,
    safety_fraction: options.SafetyFraction = None,
    calibration: options.Calibration = None,
    flags: Annotated[
        Literal["cli", "k8s"] | None, typer.Option("--flags", help="Print only the engine's flags.")
    ] = None,
    format: options.Format = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Show where the GPU's memory goes and how many requests fit. Exit 1: no fit."""
    from kvplan.calibration_file import load_calibration
    from kvplan.engines.option_types import read_share
    from kvplan.engines.options import read_options

    folder = options.profiles_folder(profiles)
    prompts, caps = prompt or [], max_tokens or []
    shapes = _shapes(prompts, caps, default_max_tokens, options.lengths(tokens, "--tokens"))
    default_cap = default_max_tokens
    if default_cap is None and len(caps) == len(prompts):
        default_cap = max(caps, default=None)
    learnt = None if calibration is None else load_calibration(calibration)
    named = {} if learnt is None else learnt.device
    wanted = named | read_options(asked, {key: flag_of(key) for key in asked})
    _check_device(wanted, learnt)
    fraction = read_share(1 if safety_fraction is None else safety_fraction, "--safety-fraction")
    try:
        result = _fit(model, wanted, learnt, shapes, fraction, default_cap, offline=offline, folder=folder)
    except UnsupportedModelError as error:
        if format != "json":
            raise
        from kvplan.report.fit_json import refusal

        write_data(refusal(model, error))
        tell(error)
        return error.exit_code
    _print(result, flags, format, shlex.join(["kvplan", *context.obj]))
    return _EXIT_CODES[result.verdict]


def _check_device(wanted: dict[str, Any], learnt: "CalibrationFile | None") -> None:
    """Raises InputError where no memory is known."""
    known = None if learnt is None else learnt.gpu_memory_bytes
    if known is None and all(wanted.get(name) is None for name in ("gpu", "gpu_memory_bytes", "kv_memory_bytes")):
        raise InputError(
            "fit needs a GPU",
            hint="--gpu h100 (kvplan list gpus), or --gpu-memory 79.18GiB, or --kv-memory 40GiB",
            key="gpu",
        )


def _fit(
    model: str,
    wanted: dict[str, Any],
    learnt: "CalibrationFile | None",
    shapes: Sequence["RequestShape"],
    fraction: "Fraction",
    default_cap: int | None,
    *,
    offline: bool,
    folder: Path | None,
) -> "Fit":
    from kvplan.calibration_file import apply_calibration
    from kvplan.capacity import fit
    from kvplan.engines.options import deployment_of
    from kvplan.sources import read_model

    deployment = deployment_of(wanted, offline=offline, profiles_folder=folder)
    spec = read_model(model, offline=offline, profiles_folder=folder)
    if learnt is not None:
        deployment = apply_calibration(deployment, learnt, spec.id)
    return fit(spec, deployment, shapes, fraction, default_cap)


def _print(result: "Fit", flags: str | None, format: str, command: str) -> None:
    from kvplan.flags import engine_flags
    from kvplan.remedies import smallest_changes

    if format == "json":
        show_report("fit", "json", result, engine_flags(result), smallest_changes(result))
    elif flags is not None:
        from kvplan.flags import command_words, served_window
        from kvplan.report.fit_text import flags as flags_text

        for finding in result.findings:
            if finding.severity != "info":
                remark(finding.severity, finding.message, finding.hint)
        if served_window(result) < result.max_model_len:
            window = f"the flags say a window of {served_window(result):,}, not {result.max_model_len:,}"
            remark("warning", window, "it is the longest that fits")
        write_data(flags_text(command_words(result), flags, result.model.id))
    else:
        show_report("fit", "text", result, smallest_changes(result), command)


def _shapes(
    prompts: Sequence[int], caps: Sequence[int], default_cap: int | None, lengths: Sequence[int]
) -> tuple["RequestShape", ...]:
    """The shapes to reserve: the n-th prompt with the n-th cap or the default one, and one for each length in
    ``--tokens``."""
    from kvplan.capacity import RequestShape

    if len(caps) > len(prompts):
        raise InputError(
            f"--max-tokens is given {len(caps)} ×, --prompt only {len(prompts)} ×",
            hint="give a --prompt for each --max-tokens",
            key="max_tokens",
        )
    padded = [*caps, *[default_cap] * (len(prompts) - len(caps))]
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
