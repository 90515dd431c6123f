"""Which source answers for MODEL: a local path, the Hub's cache, the Hub, then the bundled catalogue."""

import re
from dataclasses import replace
from pathlib import Path

from kvplan.checkpoint import Checkpoint, read_folder, read_json_object
from kvplan.errors import InputError, ModelUnavailableError, UnsupportedModelError, unreadable
from kvplan.hub import HubUnavailableError, fetch_facts, fetch_gguf
from kvplan.model import ModelSpec, Source
from kvplan.profiles.kinds import BundledModel
from kvplan.profiles.loader import load_model_facts, nearest_names

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_HUB_GGUF = re.compile(
    r"(?P<model>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)/(?P<file>[^@]+\.gguf)(?:@(?P<revision>.+))?"
)
_HUB_PAGE = re.compile(r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/(?P<id>[^/\s]+/[^/\s?#]+)")
_LOOKS_LOCAL = re.compile(r"^[./~\\]|^[A-Za-z]:\\|\.(json|gguf|safetensors)$|/$|/.*/")


def read_model(
    reference: str,
    *,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
    token: str | None = None,
) -> ModelSpec:
    """The model that ``reference`` names: a folder, a config.json, a .gguf file, or a model or .gguf file on the Hub.

    On the Hub: ``org/name[@revision]`` or ``org/name/file.gguf[@revision]``. A local path uses no network. ``token``
    wins over the environment's.
    """
    if not reference.strip():
        raise InputError("MODEL is empty", hint="give org/name, a folder, a config.json or a .gguf file")
    path = _existing(reference)
    if path is not None:
        return _read_local(path, reference)
    page = _HUB_PAGE.match(reference)
    if page is not None:
        raise InputError(f"{reference!r} is an address, not a Hub id", hint=f"give {page['id']}")
    on_hub = split_gguf_reference(reference)
    if on_hub is not None:
        return _read_hub_gguf(*on_hub, offline=offline, token=token)
    if _LOOKS_LOCAL.search(reference):
        raise InputError(f"there is no file or folder {reference}", hint="check the path", file=reference)
    model_id, revision = split_reference(reference)
    try:
        facts = fetch_facts(model_id, revision=revision, offline=offline, token=token)
    except HubUnavailableError as error:
        return _read_bundled(model_id, revision, error, profiles_folder)
    return _spec(facts, model_id, facts.source)


def _read_hub_gguf(model_id: str, file: str, revision: str | None, *, offline: bool, token: str | None) -> ModelSpec:
    """A GGUF file of a repository: from the cache if it was downloaded, else its header alone."""
    from kvplan.gguf import read_gguf

    found = fetch_gguf(model_id, file, revision=revision, offline=offline, token=token)
    name = "Hub cache" if isinstance(found, Path) else "Hub, the header of"
    return read_gguf(found, model_id=f"{model_id}/{file}", source=Source(name=f"{name} {file}", revision=revision))


def _existing(reference: str) -> Path | None:
    """The file or folder that ``reference`` names, or None."""
    try:
        path = Path(reference).expanduser()
        if not path.is_symlink() or path.exists():
            return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user's home, a zero byte
        return None
    try:
        path.stat()
    except OSError as error:  # a broken or circular link
        raise unreadable(path, error) from error
    return path


def split_reference(reference: str) -> tuple[str, str | None]:
    """The Hub id, and the revision after ``@`` or None.

    >>> split_reference("org/name@refs/pr/1"), split_reference("gpt2")
    (('org/name', 'refs/pr/1'), ('gpt2', None))
    """
    model_id, at, revision = reference.partition("@")
    if not _HUB_ID.fullmatch(model_id) or ".." in model_id or "--" in model_id:
        raise InputError(
            f"{model_id!r} is neither a file nor a Hub id",
            hint="a Hub id is org/name, such as meta-llama/Llama-3.1-8B-Instruct",
        )
    if at and (".." in revision or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", revision)):
        raise InputError(f"{revision!r} is not a revision", hint="give a branch, a tag or a commit after the @")
    return model_id, revision or None


def split_gguf_reference(reference: str) -> tuple[str, str, str | None] | None:
    """Repository, file and revision of ``org/name/file.gguf[@revision]``; None for anything else.

    >>> split_gguf_reference("org/name-GGUF/q4/model-Q4_K_M.gguf@main")
    ('org/name-GGUF', 'q4/model-Q4_K_M.gguf', 'main')
    >>> split_gguf_reference("./model.gguf") is None
    True
    """
    match = _HUB_GGUF.fullmatch(reference)
    if match is None or ".." in reference:
        return None
    return match["model"], match["file"], match["revision"]


def _read_local(path: Path, reference: str) -> ModelSpec:
    """The model at ``path``; errors that only name a key get the file too."""
    try:
        return _read_path(path, reference)
    except (InputError, UnsupportedModelError) as error:
        error.file = error.file or str(path / "config.json" if path.is_dir() else path)
        raise
    except OSError as error:
        raise unreadable(error.filename or path, error) from error


def _read_path(path: Path, reference: str) -> ModelSpec:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                f"the folder {reference} has no config.json",
                hint=_hint_for_folder(path),
                file=str(path / "config.json"),
            )
        return _spec(read_folder(path), reference, Source(name="local folder"))
    if path.suffix.lower() == ".gguf":
        from kvplan.gguf import read_gguf

        return read_gguf(path)
    return _spec(Checkpoint(config=read_json_object(path)), reference, Source(name="local file"))


def _hint_for_folder(folder: Path) -> str:
    """What to give instead of a folder without a config.json."""
    names = sorted(entry.name for entry in folder.iterdir())
    gguf = next((name for name in names if name.endswith(".gguf")), None)
    if gguf is not None:
        return f"it has a GGUF file: give {folder / gguf}"
    if "adapter_config.json" in names:
        return "it has an adapter: give the base model that adapter_config.json names"
    if "params.json" in names:
        return "it has a checkpoint in its vendor's own format: give the config.json of the Transformers format"
    inside = next(iter(sorted(folder.glob("*/config.json"))), None)
    if inside is not None:
        return f"a folder in it has one: give {inside.parent}"
    return "give the folder of one checkpoint, or its config.json"


def _read_bundled(
    model_id: str, revision: str | None, error: HubUnavailableError, profiles_folder: str | Path | None
) -> ModelSpec:
    """The bundled facts if they may stand in for the Hub; else the Hub's error, with similar bundled names."""
    bundled = load_model_facts(model_id, extra_folder=profiles_folder) if error.catalogue_may_answer else None
    if bundled is None:
        near = nearest_names("models", model_id, extra_folder=profiles_folder)
        others = f"; bundled models with a similar name: {', '.join(near)}" if near else ""
        raise ModelUnavailableError(error.message, hint=f"{error.hint}{others}") from error
    if revision is not None:
        raise ModelUnavailableError(
            f"{error.message}; the bundled facts of {model_id} do not state their revision",
            hint=f"leave out @{revision} to use them, or: {error.hint}",
        ) from error
    why = f" ({error.reason})" if error.reason else ""
    try:
        spec = _spec(bundled, bundled.id, Source(name=f"bundled facts{why}", checked=bundled.checked))
    except InputError as wrong:  # the file is the user's own: kvplan's are tested
        wrong.file = f"{bundled.id.replace('/', '--')}.yaml"
        raise
    if error.needs_access:
        spec = replace(spec, notes=(*spec.notes, f"bundled facts are used, because {error.message}; {error.hint}"))
    return spec


def _spec(facts: Checkpoint | BundledModel, model_id: str, source: Source) -> ModelSpec:
    from kvplan.hf_config import read_config

    return read_config(
        facts.config,
        model_id=model_id,
        source=source,
        quantization=facts.quantization,
        parameters=facts.parameters,
        weight_bytes=facts.weight_bytes,
    )
