"""How pipeline stages share out decoder layers."""

from collections.abc import Sequence

from kvplan.errors import InputError


def stage_layers(layers: int, stages: int, sizes: Sequence[int] | None = None) -> tuple[range, ...]:
    """The decoder layers of each stage: ``sizes`` where given, else equal shares, the remainder one each to the stages
    before the last.

    The last stage also holds the final norm and the head, so it gets none of the remainder.
    Source: vLLM 0.33, ``get_pp_indices`` (sizes: ``VLLM_PP_LAYER_PARTITION``).

    >>> [len(stage) for stage in stage_layers(34, 4)]
    [8, 9, 9, 8]
    >>> stage_layers(64, 2, (56, 8))
    (range(0, 56), range(56, 64))
    """
    if stages > layers:
        raise InputError(
            f"pipeline parallelism {stages} is more than the model's {layers} layers",
            hint=f"give every stage a layer: {layers} stages at most",
            key="pipeline_parallel",
        )
    if sizes is None:
        sizes = [layers // stages] * stages
        for place in range(2, layers % stages + 2):
            sizes[-place] += 1
    elif len(sizes) != stages or sum(sizes) != layers or min(sizes) < 1:
        raise InputError(
            f"stages of {', '.join(map(str, sizes))} layers do not share out {layers} layers over {stages} stages",
            hint="one number of layers for each stage, all layers together",
            key="pipeline_layers",
        )
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))
