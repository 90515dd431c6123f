"""Slices of a device that have no file of their own: NVIDIA vGPUs by their type, MIG slices by the driver's name, and
Apple machines by their memory."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from kvplan.errors import InputError
from kvplan.profiles.kinds import GpuProfile
from kvplan.units import GIB, MIB

_MIG = re.compile(r"(?P<card>.+)-mig-(?P<slice>\d+g\.(?P<gib>\d+)gb)")
_FORM = re.compile(r"-(sxm|pcie|nvl)$")
"""The form factor of a card; its slices have the same names in each."""
_VGPU = re.compile(r"(?P<card>[a-z0-9-]+?)-(?P<gib>\d+)[cq]")
_VGPU_CARDS = {"a100": "a100-40gb-sxm", "a100d": "a100-80gb-sxm", "a100x": "a100-80gb-pcie"}
"""Cards with another name in vGPU types: there A100 is the one with 40 GB, and A100D the one with 80."""
_VGPU_SOURCE = "https://docs.nvidia.com/ai-enterprise/ (total frame buffer for vGPUs: max-reserved-fb)"
_WHOLE_ONLY = re.compile(r"rtx-[2-5]0[5-9]0-.*|gb10|jetson-.*|.*-mig-.*")
"""GeForce cards, systems on a chip and MIG slices, which have no vGPUs."""
_STACKED = re.compile(r"[abgv]?(a100|a30|h100|h20|h200|gh200|b200|b300|gb200|gb300|v100)-.*")
"""Cards with HBM, where error correction takes no memory."""
_TURING_COMPRESSION_MIB = {("t4", 16): 28, ("rtx-8000", 12): 32, ("rtx-8000", 16): 64, ("rtx-8000", 24): 96}
"""What Turing keeps besides, by card and GB of the type (same source)."""
_NOMINAL = re.compile(r".*-(\d+)gb(?:-.*)?")
"""The GB that a card is sold with, by which vGPU types are counted."""

_MAC = re.compile(r"(?P<chip>m\d+(?:-(?:pro|max|ultra))?)-(?P<gib>\d+)gb")
_LARGE_MAC_GIB = 32
"""Above it Metal recommends a larger share, see ``_mac``."""


def sliced(name: str, load: Callable[[str], GpuProfile]) -> GpuProfile | None:
    """The slice that ``name`` means, of a device that ``load`` finds; None where it is not the name of a slice.

    Raises InputError for a slice that is larger than the device.
    """
    if found := _MAC.fullmatch(name):
        return _mac(load(found["chip"]), int(found["gib"]))
    if found := _MIG.fullmatch(name):
        card = load(found["card"])
        whole = _FORM.sub("", card.name)
        if whole.endswith(f"-{found['gib']}gb"):
            return card
        part = f"{whole}-mig-{found['slice']}"
        return None if part == name else load(part)
    if found := _VGPU.fullmatch(name):
        card = load(_VGPU_CARDS.get(found["card"], found["card"]))
        return _vgpu(card, found["card"], int(found["gib"]), name) if _is_shared(card) else None
    return None


def _is_shared(card: GpuProfile) -> bool:
    return card.vendor == "nvidia" and not _WHOLE_ONLY.fullmatch(card.name)


def _vgpu(card: GpuProfile, word: str, gib: int, name: str) -> GpuProfile:
    """A vGPU, whose memory is the frame buffer of its type without the reserved part.

    reserved = size / 16 + 16 MiB + size / 16 for error correction without HBM + 128 MiB / vGPUs that fit on the card,
    and a few MiB on Turing. L40S-24Q: 24,576 − 1,536 − 16 − 1,536 − 64 = 21,424 MiB.
    """
    nominal = _NOMINAL.fullmatch(card.name)
    whole = int(nominal[1]) if nominal else math.ceil(card.memory_bytes / GIB)
    if not 1 <= gib <= whole:
        raise InputError(
            f"{name!r} is larger than a {card.name}", hint=f"up to {word}-{whole}q, of {whole} GB", key="gpu"
        )
    size = gib * 1024
    correction = 0 if _STACKED.fullmatch(card.name) else Fraction(size, 16)
    turing = _TURING_COMPRESSION_MIB.get((word, gib), 0)
    reserved = Fraction(size, 16) + 16 + correction + Fraction(128, whole // gib) + turing
    return replace(
        card,
        name=name,
        memory_bytes=int((size - reserved) * MIB),
        sources=(*card.sources, _VGPU_SOURCE),
        aliases=(),
        link_bytes_per_s=None,
        notes=f"{gib} GB of a {card.name}; bandwidth and compute are the whole card's, which vGPUs share in time",
    )


def _mac(chip: GpuProfile, gib: int) -> GpuProfile:
    """A machine of ``gib`` GiB. Its memory is the most that Metal recommends: 2/3 of up to 32 GiB, 3/4 of more.

    llama.cpp's logs: 10,922.67 MiB of 16 GiB, 21,845.34 of 32, 49,152 of 64, 73,728 of 96.
    """
    largest = next(size for size in (8, 16, 24, *range(32, 1024, 4)) if _working_set(size) >= chip.memory_bytes)
    if not 8 <= gib <= largest:
        raise InputError(
            f"no {chip.name} has {gib} GB", hint=f"up to {chip.name}-{largest}gb, or --gpu-memory 96GiB", key="gpu"
        )
    return replace(chip, name=f"{chip.name}-{gib}gb", memory_bytes=_working_set(gib), aliases=())


def _working_set(gib: int) -> int:
    return int(gib * GIB * (Fraction(2, 3) if gib <= _LARGE_MAC_GIB else Fraction(3, 4)))
