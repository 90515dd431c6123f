"""The catalogues as searchable lists, each row with the figures that tell it apart."""

from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path

from kvplan.errors import InputError
from kvplan.profiles.kinds import BundledModel, ClientProfile, GpuProfile
from kvplan.profiles.loader import list_names, load_client, load_gpu, load_model_facts, plain_name, traffic_path


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """An engine that kvplan plans for. ``about`` is the first paragraph of its own module."""

    name: str
    about: str


@dataclass(frozen=True, kw_only=True)
class TrafficRow:
    """A bundled traffic mix. ``summary`` is its first sentence."""

    name: str
    summary: str


Row = GpuProfile | ClientProfile | BundledModel | EngineRow | TrafficRow


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The rows of one catalogue whose name or alias contains ``search``, out of ``known`` rows."""

    catalogue: str
    search: str
    known: int
    rows: tuple[Row, ...]


def listing(catalogue: str, search: str = "", *, folder: Path | None = None) -> Listing:
    """The rows of a ``catalogue`` in which every word of ``search`` is part of the name or of an alias; where no GPU
    matches, the slice of one that ``search`` names (a vGPU type, a Mac by its memory)."""
    if catalogue == "engines":
        rows = _engines()
    else:
        names = list_names(catalogue, extra_folder=folder)
        rows = tuple(row for name in names if (row := _row(catalogue, name, folder)) is not None)
    words = plain_name(search).split("-") if search else []
    found = tuple(row for row in rows if all(any(word in name for name in _names(row)) for word in words))
    if not found and catalogue == "gpus":
        with suppress(InputError):
            found = (load_gpu(search, extra_folder=folder),)
    return Listing(catalogue=catalogue, search=search, known=len(rows), rows=found)


def _names(row: Row) -> tuple[str, ...]:
    """Every name of ``row``, spelled as search words are."""
    name = row.id if isinstance(row, BundledModel) else row.name
    aliases = row.aliases if isinstance(row, GpuProfile) else ()
    return tuple(plain_name(each) for each in (name, *aliases))


def _row(catalogue: str, name: str, folder: Path | None) -> Row | None:
    """The row of a listed name; None for a file whose name cannot be looked up."""
    if catalogue == "gpus":
        return load_gpu(name, extra_folder=folder)
    if catalogue == "clients":
        return load_client(name, extra_folder=folder)
    if catalogue == "models":
        return load_model_facts(name, extra_folder=folder)
    path = traffic_path(name, extra_folder=folder)
    return None if path is None else TrafficRow(name=name, summary=_opening(path))


def _engines() -> tuple[Row, ...]:
    from kvplan.engines import ENGINES

    return tuple(EngineRow(name=name, about=_about(module)) for name, module in ENGINES.items())


def _about(module: str) -> str:
    """The first paragraph of the engine's module."""
    text = import_module(module).__doc__ or ""
    return " ".join(text.strip().split("\n\n")[0].split())


def _opening(path: Path) -> str:
    """The first sentence of the comment at the top of the file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    text = " ".join(line.removeprefix("#").strip() for line in comment if "$schema" not in line)
    first, _, rest = text.strip().partition(". ")
    return f"{first}." if rest else first
