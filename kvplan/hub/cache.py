"""The Hub's cache on disk, and the facts that kvplan keeps beside it.

Reading the layout (``models--org--name/refs``, ``snapshots``) needs no third-party import, so a cached model costs
little more than opening its config.json.
"""

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from kvplan.checkpoint import Checkpoint, read_folder
from kvplan.errors import InputError

_COMMIT = re.compile(r"[0-9a-f]{40}")


def _folder(name: str) -> Path:
    """``name`` with variables and ``~`` expanded; ``~`` stays for a user without a home folder (in a container)."""
    path = Path(os.path.expandvars(name))
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def hub_home() -> Path:
    """``HF_HOME`` or its default, as in huggingface_hub's ``constants.py``."""
    home = os.environ.get("HF_HOME")
    if home is None:
        home = str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface")
    return _folder(home)


def hub_cache_folder() -> Path:
    """Where the Hub client keeps repositories: ``HF_HUB_CACHE``, else ``HF_HOME/hub``."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return _folder(given) if given else hub_home() / "hub"


def is_set(*variables: str) -> bool:
    """Whether the first of ``variables`` that is not empty says yes, as huggingface_hub reads its switches."""
    value = next((found for name in variables if (found := os.environ.get(name))), "")
    return value.upper() in {"1", "ON", "YES", "TRUE"}


def is_offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` (or ``TRANSFORMERS_OFFLINE``) is set."""
    return is_set("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def cached_file(model_id: str, file: str, revision: str | None) -> Path | None:
    """A file that ``hf download`` left in the cache, or None."""
    folder = hub_cache_folder() / _folder_name(model_id)
    found = folder / "snapshots" / (_commit(folder, revision) or "-") / file
    return found if found.is_file() else None


def cached_facts(model_id: str, revision: str | None) -> tuple[Checkpoint, str] | None:
    """The cached facts at ``revision`` and their commit, or None."""
    kept = _kept_facts(model_id, revision)
    config = cached_file(model_id, "config.json", revision)
    if config is None:
        return kept
    snapshot, commit = config.parent, config.parent.name
    totals = None
    if kept is not None and kept[1] == commit and kept[0].weight_bytes is not None:
        totals = kept[0].parameters, kept[0].weight_bytes
    found = read_folder(snapshot, totals)
    if totals is None and found.weight_bytes is not None:
        keep_facts(model_id, revision, found, commit)  # so that the headers of many shards are read once
    return found, commit


def keep_facts(model_id: str, revision: str | None, facts: Checkpoint, commit: str) -> None:
    """Keeps the Hub's answer in its cache folder for other libraries' assets, where that can be written."""
    path = _kept_path(model_id, revision)
    partial = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"commit": commit, **asdict(facts)}), encoding="utf-8")
        partial.replace(path)
    except OSError:  # on a full or read-only disk the next run asks the Hub again
        return


def _kept_facts(model_id: str, revision: str | None) -> tuple[Checkpoint, str] | None:
    try:
        found = json.loads(_kept_path(model_id, revision).read_text(encoding="utf-8"))
        commit = found.pop("commit")
        return Checkpoint(**found), str(commit)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, or not written by kvplan
        return None


def _kept_path(model_id: str, revision: str | None) -> Path:
    assets = os.environ.get("HF_ASSETS_CACHE") or os.environ.get("HUGGINGFACE_ASSETS_CACHE")
    folder = _folder(assets) if assets else hub_home() / "assets"
    return folder / "kvplan" / _folder_name(model_id) / f"{quote(revision or 'main', safe='')}.json"


def _folder_name(model_id: str) -> str:
    return f"models--{model_id.replace('/', '--')}"


def _commit(folder: Path, revision: str | None) -> str | None:
    """The commit of a branch, tag or commit in this cache, or None."""
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    try:
        commit = (folder / "refs" / (revision or "main")).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not _COMMIT.fullmatch(commit):
        raise InputError(
            f"the cache has no commit for {revision or 'main'} in this file",
            hint="remove it; the next run fetches it again",
            file=str(folder / "refs" / (revision or "main")),
        )
    return commit
