"""``kvplan model``: what one token and one sequence of a model cost."""

from typing import Any

from kvplan.cli import options
from kvplan.cli.deployment_options import flag_of, takes_deployment
from kvplan.cli.output import show_report

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan model Qwen/Qwen3-32B --tp 2 --kv-dtype fp8 --tokens 1024,8192"


@takes_deployment(
    "engine",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "context_parallel",
    "kv_dtype",
    "cache_type_k",
    "cache_type_v",
    "max_model_len",
)
def run(
    model: options.ModelReference,
    asked: dict[str, Any],
    tokens: options.Tokens = None,
    format: options.Format = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Price one token and one sequence of a model, by kind of layer."""
    from kvplan.engines.options import deployment_of, read_options
    from kvplan.pricing import price
    from kvplan.sources import read_model

    counts = options.lengths(tokens, "--tokens")
    if "cache_type_k" in asked or "cache_type_v" in asked:
        asked.setdefault("engine", "llama.cpp")
    deployment = deployment_of(read_options(asked, {key: flag_of(key) for key in asked}))
    spec = read_model(model, offline=offline, profiles_folder=options.profiles_folder(profiles))
    show_report("model", format, price(spec, deployment, counts))
    return 0
