"""Groups of caches that share a block table. All groups draw their blocks from one pool.

Source: vLLM 0.33, ``kv_cache_planning.py``.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from kvplan.engines.vllm.specs import CHUNKED, FULL, LATENT, RING, SLIDING, STATE, PageSpec
from kvplan.errors import InputError, UnsupportedModelError

Group = list[PageSpec]


def make_groups(specs: Sequence[PageSpec], *, hybrid_manager: bool = True, side_by_side: bool = False) -> list[Group]:
    """The groups of a model's caches, in order of their first layer.

    ``side_by_side``: pages of several sizes may lie in one block (DeepSeek-V4), so pages are not made equal. Without
    the hybrid manager, windows and chunks keep every token where there is a full layer.
    """
    if not hybrid_manager:
        specs = _without_windows(specs)
    if not specs:
        return []
    if len({spec.token_demand for spec in specs}) == 1:
        return [list(specs)]
    if side_by_side and len({spec.page_bytes for spec in specs}) > 1:
        return _packed_groups(specs)
    equal = _equal_pages(specs)
    if equal is None:
        return [_as_full(specs)]
    return _dealt_groups(equal)


def _bucketed(specs: Sequence[PageSpec], key: Callable[[PageSpec], Hashable]) -> list[Group]:
    """``specs`` in buckets of equal ``key``, in order of first appearance."""
    buckets: dict[Hashable, Group] = {}
    for spec in specs:
        buckets.setdefault(key(spec), []).append(spec)
    return list(buckets.values())


def _equal_pages(specs: Sequence[PageSpec]) -> list[PageSpec] | None:
    """All pages raised to the largest: by a longer block where the ratio is whole, else by padding; None where neither
    works.

    Worked case: pages of 16 KiB and 32 KiB in blocks of 16 become 32 KiB with blocks of 32 and 16. A state's page is
    always padded, because its bytes do not depend on the block. A latent's page cannot be padded, because its rows must
    stay whole: the caller then lets window layers keep every token, or refuses the model.
    """
    largest = max(spec.page_bytes for spec in specs)
    equal: list[PageSpec] = []
    for spec in specs:
        if spec.page_bytes == largest:
            equal.append(spec)
        elif spec.family == STATE:
            equal.append(replace(spec, page_bytes=largest))
        elif largest % spec.page_bytes == 0:
            equal.append(spec.with_block(spec.block_tokens * (largest // spec.page_bytes)))
        elif spec.family != LATENT:
            equal.append(replace(spec, page_bytes=largest))
        else:
            return None
    return equal


def _as_full(specs: Sequence[PageSpec]) -> Group:
    """One group in which windows keep every token, because latent pages cannot be made equal to theirs."""
    if all(spec.family in (FULL, LATENT, SLIDING) for spec in specs):
        full = _without_windows(specs)
        if len({spec.token_demand for spec in full}) == 1:
            return list(full)
    raise UnsupportedModelError(
        "vLLM refuses this model: the pages of its latent layers do not divide the largest page and cannot be padded",
        hint="kvplan model prices it without an engine",
    )


def _without_windows(specs: Sequence[PageSpec]) -> list[PageSpec]:
    """Windows and chunks as full layers, where there is a full one; InputError where layers still differ."""
    if len({spec.token_demand for spec in specs}) <= 1:
        return list(specs)
    blocks = {spec.block_tokens for spec in specs if spec.keeps_all_tokens}
    windows = {(spec.family, spec.window_tokens) for spec in specs if spec.family in (SLIDING, CHUNKED)}
    promoted = [
        replace(spec.with_block(min(blocks)), family=FULL, window_tokens=None)
        if len(blocks) == 1 and spec.family in (SLIDING, CHUNKED)
        else spec
        for spec in specs
    ]
    if len({spec.token_demand for spec in promoted}) > 1 or len(windows) > 1:
        raise InputError(
            "without the hybrid KV cache manager vLLM refuses this model: its layers do not all keep the same tokens",
            hint="leave the hybrid KV cache manager on",
            key="hybrid_kv_cache_manager",
        )
    return promoted


def _dealt_groups(specs: Sequence[PageSpec]) -> list[Group]:
    """Equal caches form a bucket; each bucket is dealt round-robin into groups of one size.

    Size = the smallest bucket, or the largest if it is less than 1.5 × the smallest (padding then costs little).
    Worked case: 5 full and 29 sliding layers: size 5, 1 full group and ceil(29 / 5) = 6 sliding ones.
    """
    buckets = _bucketed(specs, lambda spec: spec.sameness)
    smallest, largest = min(map(len, buckets)), max(map(len, buckets))
    size = largest if 2 * largest < 3 * smallest else smallest
    groups: list[Group] = []
    for bucket in buckets:
        count = -(-len(bucket) // size)
        groups.extend(bucket[first::count] for first in range(count))
    return groups


def _packed_groups(specs: Sequence[PageSpec]) -> list[Group]:
    """Groups of pages that lie side by side: only balanced buckets are split, into groups of d repeats.

    A bucket is balanced if each of its page sizes has the same number of layers, x. d lies between the largest x of a
    balanced bucket with several page sizes and the largest x of all, where it pads the balanced buckets least (ties:
    the larger). Worked case (DeepSeek-V4-Flash): x = 43, 21, 20; d = 22; the 43 window layers make 22 + 21. States and
    rings are split further, until their group fits the block that the others need (GLM-5.3-Flash: 34 states, 4 groups).
    """
    buckets = _bucketed(specs, lambda spec: spec.token_demand)
    sized = [_bucketed(bucket, lambda spec: spec.page_bytes) for bucket in buckets]
    repeats = [len(sizes[0]) if len({len(one) for one in sizes}) == 1 else None for sizes in sized]
    floor = max((x for x, sizes in zip(repeats, sized, strict=True) if x and len(sizes) > 1), default=0)
    per_group = _least_padding([x for x in repeats if x], floor) if floor else None
    dealt: list[list[Group]] = []
    for bucket, sizes, x in zip(buckets, sized, repeats, strict=True):
        count = -(-x // per_group) if x and per_group else 1
        dealt.append([bucket] if count == 1 else _dealt(list(zip(*sizes, strict=True)), count))
    widest = max(
        (sum(spec.page_bytes for spec in group) for groups in dealt for group in groups if _follows_tokens(group)),
        default=0,
    )
    for place, bucket in enumerate(buckets):
        if widest and not _follows_tokens(bucket):
            least = -(-len(bucket) // max(1, widest // max(spec.page_bytes for spec in bucket)))
            if least > len(dealt[place]):
                dealt[place] = _dealt([(spec,) for spec in bucket], least)
    return [group for groups in dealt for group in groups]


def _dealt(repeats: Sequence[tuple[PageSpec, ...]], count: int) -> list[Group]:
    """``repeats`` dealt round-robin into ``count`` groups."""
    return [[spec for repeat in repeats[first::count] for spec in repeat] for first in range(count)]


def _follows_tokens(group: Sequence[PageSpec]) -> bool:
    """Whether the group's pages hold tokens; states and rings take one page per request."""
    return all(spec.family not in (STATE, RING) for spec in group)


def _least_padding(counts: Sequence[int], floor: int) -> int:
    """The d from ``floor`` to the largest count with the least Σ(ceil(x / d) × d − x); ties: the larger.

    >>> _least_padding([43, 21, 20], 21)
    22
    """
    return min(range(floor, max(counts) + 1), key=lambda d: (sum(-x % d for x in counts), -d))
