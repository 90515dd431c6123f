"""From a traffic file to frozen values: found by path or name, validated, every complaint with its place."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from kvplan.errors import InputError
from kvplan.profiles.loader import list_names, load_gpu, load_loops, traffic_path
from kvplan.traffic.file.places import Places
from kvplan.traffic.file.yaml_text import KeyPath, parse_mapping, read_text
from kvplan.traffic.kinds import Traffic


def load_traffic(
    reference: str | Path, *, profiles_folder: str | Path | None = None, overrides: Mapping[str, object] | None = None
) -> Traffic:
    """The traffic file at a path, on standard input (``-``), or the bundled mix of that name.

    ``overrides`` replaces keys, named alone (``safety_fraction``) or by their section (``traffic.seed``); they are
    validated as if they stood in the file. Raises InputError with file, line, key and the nearest known key.
    """
    path = Path("-") if str(reference) == "-" else _find(str(reference), profiles_folder)
    text = read_text(Path("/dev/stdin") if path == Path("-") else path)
    return parse_traffic(text, file=str(path), profiles_folder=profiles_folder, overrides=overrides)


def parse_traffic(
    text: str,
    *,
    file: str,
    profiles_folder: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Traffic:
    """The traffic that ``text`` describes; traces are looked for beside ``file``."""
    # Not before a file is read: they bring pydantic, which takes longer than most commands.
    from kvplan.traffic.file.complaints import validated
    from kvplan.traffic.file.convert import convert
    from kvplan.traffic.file.overrides import override
    from kvplan.traffic.file.shapes.whole import FileShape

    values, lines = parse_mapping(text, file)
    override(values, overrides or {})
    places = Places(file=file, lines=lines)
    traffic = convert(validated(FileShape, values, places), places)
    _check_names(traffic, places, profiles_folder)
    return traffic


def _find(reference: str, profiles_folder: str | Path | None) -> Path:
    path = Path(reference)
    if path.exists():
        return path
    bundled = traffic_path(reference, extra_folder=profiles_folder)
    if bundled is not None:
        return bundled
    names = list_names("traffic", extra_folder=profiles_folder)
    near = get_close_matches(reference, names, 3, 0.5)
    raise InputError(
        f"there is no traffic file {reference!r}, and no bundled mix of that name",
        hint=f"did you mean {', '.join(near)}?"
        if near
        else f"bundled mixes: {', '.join(names)}; kvplan init writes one",
        file=reference,
    )


def _check_names(traffic: Traffic, places: Places, profiles_folder: str | Path | None) -> None:
    """Names of catalogue entries are looked up at once, so that a misspelt one is reported with its line."""
    gpu = traffic.deployment.gpu_name
    if gpu is not None:
        places.at(("deployment", "gpu"), lambda name: load_gpu(name, extra_folder=profiles_folder), gpu)
    for index, entry in enumerate(traffic.classes):
        path: KeyPath = ("traffic", "classes", index, "client")
        if entry.client is not None:
            places.at(path, lambda name: load_loops(name, extra_folder=profiles_folder), entry.client)
