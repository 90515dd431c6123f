"""``kvplan model``: what one token and one sequence of a model cost."""

from kvplan.cli.options import (
    CacheTypeK,
    CacheTypeV,
    ContextParallel,
    DataParallel,
    Engine,
    Format,
    KvDtype,
    MaxModelLen,
    ModelReference,
    Offline,
    PipelineParallel,
    Profiles,
    TensorParallel,
    Tokens,
    parse_counts,
    positive,
    positive_or_none,
    profiles_folder,
)
from kvplan.cli.output import show_report

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan model Qwen/Qwen3-32B --tp 2 --kv-dtype fp8 --tokens 1024,8192"


def run(
    model: ModelReference,
    engine: Engine = "vllm",
    tensor_parallel: TensorParallel = 1,
    pipeline_parallel: PipelineParallel = 1,
    data_parallel: DataParallel = 1,
    context_parallel: ContextParallel = 1,
    kv_dtype: KvDtype = "auto",
    cache_type_k: CacheTypeK = None,
    cache_type_v: CacheTypeV = None,
    max_model_len: MaxModelLen = None,
    tokens: Tokens = None,
    format: Format = "text",
    offline: Offline = False,
    profiles: Profiles = None,
) -> int:
    """What one token and one sequence of a model cost, layer kind by layer kind."""
    from kvplan.engines import parse_engine
    from kvplan.engines.base import Deployment
    from kvplan.pricing import price
    from kvplan.sources import read_model

    counts = parse_counts(tokens, "--tokens")
    deployment = Deployment(
        engine=parse_engine("llama.cpp" if cache_type_k or cache_type_v else engine),
        tensor_parallel=positive(tensor_parallel, "--tensor-parallel"),
        pipeline_parallel=positive(pipeline_parallel, "--pipeline-parallel"),
        data_parallel=positive(data_parallel, "--data-parallel"),
        context_parallel=positive(context_parallel, "--context-parallel"),
        kv_dtype=kv_dtype,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        max_model_len=positive_or_none(max_model_len, "--max-model-len"),
    )
    spec = read_model(model, offline=offline, profiles_folder=profiles_folder(profiles))
    show_report("model", format, price(spec, deployment, counts))
    return 0
