"""Looks up entries of the catalogues by name, and opens only the file of the one that is asked for.

Folders are searched in this order: the one given, ``KVPLAN_PROFILES``, the wheel's, the checkout's.
"""

import json
import os
import re
from difflib import get_close_matches
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TypeVar

from kvplan.errors import InputError, unreadable
from kvplan.files import read_small_text
from kvplan.profiles.kinds import BundledModel, ClientProfile, GpuProfile

Profile = TypeVar("Profile", GpuProfile, ClientProfile, BundledModel)

CATALOGUES = ("gpus", "engines", "models", "clients", "traffic")
ALIASES_FILE = "aliases.json"
NESTED_IN = " > "
"""Between the names of nested retry loops, the outermost first."""
_MAX_TRIES = 2**31  # the simulation counts them in 32 bits
_LONGEST_NAME = 200  # no file system keeps more than 255 bytes
_PACKAGE = Path(__file__).resolve().parent.parent
_VENDOR_WORDS = re.compile(r"^(nvidia|amd|intel|apple|geforce|tesla|quadro|instinct|grid)-")


def profile_folders(extra_folder: str | Path | None = None) -> tuple[Path, ...]:
    """The folders that are searched, in order. Raises InputError where a folder that the user named does not exist."""
    folders = []
    for given, name in ((extra_folder, "--profiles"), (os.environ.get("KVPLAN_PROFILES"), "KVPLAN_PROFILES")):
        if given:
            folder = Path(given)
            if not folder.is_dir():
                raise InputError(
                    f"{name}: {folder} is not a folder",
                    hint="it must have gpus/, models/, clients/ or traffic/ with one YAML file for each entry",
                    file=str(folder),
                )
            folders.append(folder)
    own = (_PACKAGE / "_profiles", _PACKAGE.parent / "profiles")
    return (*folders, *(folder for folder in own if folder.is_dir()))


def load_gpu(name: str, *, extra_folder: str | Path | None = None) -> GpuProfile:
    """The GPU called ``name``: its file name, an alias, the name that the driver prints, or a slice of one of these.

    >>> load_gpu("h100").name, load_gpu("NVIDIA H100 80GB HBM3").name, load_gpu("NVIDIA L40S-24Q").name
    ('h100-80gb-sxm', 'h100-80gb-sxm', 'l40s-24q')
    >>> load_gpu("NVIDIA A100-SXM4-40GB MIG 3g.20gb").name
    'a100-40gb-mig-3g.20gb'
    """
    plain = plain_name(name)
    path = _find("gpus", plain, extra_folder)
    if path is None:
        from kvplan.profiles.slices import sliced

        part = sliced(plain, lambda whole: _load(GpuProfile, "gpus", plain_name(whole), name, extra_folder))
        if part is not None:
            return part
    return _load(GpuProfile, "gpus", plain, name, extra_folder)


def load_client(name: str, *, extra_folder: str | Path | None = None) -> ClientProfile:
    """The client library called ``name``."""
    return _load(ClientProfile, "clients", plain_name(name), name, extra_folder)


def load_retry_loops(name: str, *, extra_folder: str | Path | None = None) -> tuple[ClientProfile, ...]:
    """The client called ``name``, or several clients whose retry loops are nested, the outermost first.

    >>> [loop.name for loop in load_retry_loops("langchain-retry > openai-python")]
    ['langchain-retry', 'openai-python']
    """
    loops = tuple(load_client(one, extra_folder=extra_folder) for one in name.split(NESTED_IN))
    for around, within in pairwise(loops):
        if within.tries is None:
            raise InputError(
                f"{within.name} never gives up, so {around.name} around it never acts",
                hint=f"name {within.name} alone",
                key="client",
            )
    if prod(loop.tries or 1 for loop in loops) >= _MAX_TRIES:
        raise InputError(f"{name}: too many tries", hint="name fewer loops", key="client")
    return loops


def load_model_facts(model_id: str, *, extra_folder: str | Path | None = None) -> BundledModel | None:
    """The bundled facts of a Hub id (in any case), or None."""
    wanted = f"{model_id.replace('/', '--')}.yaml"
    for folder in profile_folders(extra_folder) if len(wanted) <= _LONGEST_NAME else ():
        path = folder / "models" / wanted
        if not _is_file(path):
            path = next((file for file in _files(folder, "models") if file.name.lower() == wanted.lower()), path)
        if _is_file(path):
            return _read(BundledModel, path)
    return None


def traffic_path(name: str, *, extra_folder: str | Path | None = None) -> Path | None:
    """The file of the bundled traffic mix ``name``, or None."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        return None
    paths = (folder / "traffic" / f"{name}.yaml" for folder in profile_folders(extra_folder))
    return next((path for path in paths if _is_file(path)), None)


def list_names(catalogue: str, *, extra_folder: str | Path | None = None) -> tuple[str, ...]:
    """The names in a catalogue, sorted; a model's is its Hub id."""
    if catalogue not in CATALOGUES:
        raise InputError(f"there is no catalogue {catalogue!r}", hint=f"catalogues: {', '.join(CATALOGUES)}")
    names = {file.stem for folder in profile_folders(extra_folder) for file in _files(folder, catalogue)}
    if catalogue == "models":
        names = {name.replace("--", "/", 1) for name in names}
    return tuple(sorted(names, key=str.lower))


def nearest_names(catalogue: str, name: str, *, extra_folder: str | Path | None = None) -> tuple[str, ...]:
    """At most five names of a catalogue that resemble ``name``, or that have an alias that does."""
    names = {known.lower(): known for known in list_names(catalogue, extra_folder=extra_folder)}
    short = {known.rpartition("/")[2]: known for known in names} if catalogue == "models" else {}
    wanted = name.lower()
    near = get_close_matches(wanted, list(names), 5, 0.5)
    near += [short[found] for found in get_close_matches(wanted.rpartition("/")[2], list(short), 5, 0.6)]
    if catalogue == "gpus":
        known_as: dict[str, str] = {}
        for folder in profile_folders(extra_folder):
            known_as = {**_aliases(folder, catalogue), **known_as}
        near = [known_as[found].lower() for found in get_close_matches(wanted, list(known_as), 5, 0.7)] + near
    inside = [known for known in names if wanted and wanted in known]
    whole_first = sorted(dict.fromkeys([*inside, *near]), key=lambda known: "-mig-" in known and "mig" not in wanted)
    return tuple(names[found] for found in whole_first)[:5]


def plain_name(name: str) -> str:
    """A name as aliases are stored: lower case, with dashes, without the vendor's name and without brackets.

    >>> plain_name("NVIDIA GeForce RTX 4090"), plain_name("NVIDIA A100-SXM4-80GB"), plain_name("GB10 (DGX Spark)")
    ('rtx-4090', 'a100-sxm4-80gb', 'gb10')
    """
    plain = re.sub(r"[\s_/]+", "-", re.sub(r"\(.*?\)", "", name).strip().lower())
    while _VENDOR_WORDS.match(plain):
        plain = _VENDOR_WORDS.sub("", plain)
    return plain


def alias_table(folder: Path, catalogue: str) -> dict[str, str]:
    """Every alias of a folder's GPUs → the name of its file, read from the files themselves."""
    if catalogue != "gpus":
        return {}
    profiles = [_read(GpuProfile, file) for file in _files(folder, catalogue)]
    return {plain_name(alias): profile.name for profile in profiles for alias in profile.aliases}


def _files(folder: Path, catalogue: str) -> list[Path]:
    try:
        return sorted((folder / catalogue).glob("*.yaml"))
    except OSError as error:
        raise unreadable(folder / catalogue, error) from error


def _is_file(path: Path) -> bool:
    """Whether ``path`` is a file; InputError for a folder that may not be entered."""
    try:
        return path.is_file()
    except OSError as error:
        raise unreadable(path.parent, error) from error


def _aliases(folder: Path, catalogue: str) -> dict[str, str]:
    """The alias table: from a generated file in kvplan's own folder, else read from the user's few files."""
    generated = folder / catalogue / ALIASES_FILE
    if _is_file(generated) and folder.parent in (_PACKAGE, _PACKAGE.parent):
        table: dict[str, str] = json.loads(generated.read_text(encoding="utf-8"))
        return table
    return alias_table(folder, catalogue)


def _find(catalogue: str, plain: str, extra_folder: str | Path | None) -> Path | None:
    """The file of a catalogue whose name or alias is ``plain``."""
    for folder in profile_folders(extra_folder) if len(plain) <= _LONGEST_NAME else ():
        path = folder / catalogue / f"{plain}.yaml"
        if not _is_file(path):
            path = folder / catalogue / f"{_aliases(folder, catalogue).get(plain, plain)}.yaml"
        if _is_file(path):
            return path
    return None


def _load(kind: type[Profile], catalogue: str, plain: str, name: str, extra_folder: str | Path | None) -> Profile:
    path = _find(catalogue, plain, extra_folder)
    if path is not None:
        return _read(kind, path)
    thing = {"gpus": "GPU", "clients": "client"}[catalogue]
    near = ", ".join(nearest_names(catalogue, plain, extra_folder=extra_folder))
    more = " (or give its memory, as in --gpu-memory 44.4GiB)" if catalogue == "gpus" else ""
    hint = f"nearest: {near}{more}" if near else f"kvplan list {catalogue}{more}"
    raise InputError(f"{name!r} is not a known {thing}", hint=hint, key=thing.lower())


def _read(kind: type[Profile], path: Path) -> Profile:
    from kvplan.profiles.reader import read_profile  # not at the top, so that a Hub or local model never imports YAML

    text = read_small_text(path, hint="a profile is a short YAML file, as in kvplan's own folder of profiles")
    profile = read_profile(kind, text, str(path))
    if isinstance(profile, BundledModel):
        key, own_name = "id", profile.id.replace("/", "--")
    else:
        key, own_name = "name", profile.name
    if own_name != path.stem:
        raise InputError(
            f"{key} {own_name!r} differs from the file's name",
            hint=f"rename the file to {own_name}.yaml",
            file=str(path),
            key=key,
        )
    return profile
