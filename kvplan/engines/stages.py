"""How pipeline stages share out decoder layers."""

from kvplan.errors import InputError


def stage_layers(layers: int, stages: int) -> tuple[range, ...]:
    """The decoder layers of each stage: equal shares, the remainder one each to the stages before the last.

    The last stage also holds the final norm and the head, so it gets none of the remainder.
    Source: vLLM 0.33, ``get_pp_indices``.

    >>> [len(stage) for stage in stage_layers(34, 4)]
    [8, 9, 9, 8]
    """
    if stages > layers:
        raise InputError(
            f"pipeline parallelism {stages} is more than the model's {layers} layers",
            hint=f"give every stage a layer: {layers} stages at most",
            key="pipeline_parallel",
        )
    sizes = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        sizes[-place] += 1
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))
