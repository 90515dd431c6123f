"""The calibration file: what a log or run measured, for plans of the same model, engine, GPU and parallelism."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvplan.engines.deployment import Deployment, EngineVersion
from kvplan.engines.option_types import GPU, read_count, read_engine, read_word
from kvplan.engines.options import is_asked, rows
from kvplan.errors import InputError
from kvplan.files import read_small_text

PARALLELISM = ("tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel")
SETTINGS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "weight_bytes",
    "speculative_tokens",
    "async_scheduling",
    "prefix_caching",
    "enforce_eager",
    "performance_mode",
    "kv_unified",
    "kv_dtype",
    "cache_type_k",
    "cache_type_v",
    "speculative_method",
)
"""Options of a deployment that a log can state, besides the parallelism and the share of memory."""
_HINT = "kvplan calibrate LOG writes a new one"
_LARGEST_BYTES = 2**20
_FASTEST = 1.5
"""The largest efficiency: GPUs boost above the clock that their data sheet's peak is based on."""


@dataclass(frozen=True, kw_only=True)
class CalibrationFile:
    """The contents of a calibration file.

    ``settings`` apply where a plan does not give its own. ``corrections`` are bytes per GPU, logged − planned, by the
    name of a budget's term. ``efficiency_share`` is the roofline's one constant, from a measured run (``efficiency``
    in the file); null without one.
    """

    engine: EngineVersion
    model: str
    source: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    context_parallel: int = 1
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    memory_utilization: Fraction | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    corrections: tuple[tuple[str, int], ...] = ()
    kv_bytes: int | None = None
    efficiency_share: float | None = None

    @property
    def device(self) -> dict[str, object]:
        """The engine and the GPU, for a plan that names none."""
        return {"engine": self.engine} | ({} if self.gpu is None else {"gpu": self.gpu})


def settings_of(deployment: Deployment) -> dict[str, object]:
    """The settings of a calibration that ``deployment`` gives."""
    return {name: getattr(deployment, name) for name in SETTINGS if is_asked(deployment, name)}


def file_text(found: CalibrationFile, header: str) -> str:
    """The file as YAML under the comment ``header``, without keys that have no value."""
    import yaml

    share = found.memory_utilization
    written = {
        **vars(found),
        "engine": str(found.engine),
        "memory_utilization": None if share is None else str(share),
        "corrections": dict(found.corrections),
    }
    written["efficiency"] = written.pop("efficiency_share")
    given = {key: value for key, value in written.items() if value not in (None, {})}
    return header + yaml.safe_dump(given, sort_keys=False, allow_unicode=True)


def load_calibration(path: Path) -> CalibrationFile:
    """The calibration in ``path``. Raises InputError that names the key which is wrong."""
    from kvplan.profiles.reader import line_of, read_mapping

    text = read_small_text(path, hint=_HINT, max_bytes=_LARGEST_BYTES)
    try:
        return _read(read_mapping(text, str(path)))
    except InputError as error:
        error.hint, error.file = _HINT, str(path)
        error.line = error.line or line_of(text, (error.key or "").partition(".")[0])
        raise


def _wrong(message: str, key: str) -> InputError:
    return InputError(message, hint=_HINT, key=key)


def _read(document: Mapping[str, object]) -> CalibrationFile:
    for key in ("engine", "model"):
        if document.get(key) is None:
            raise _wrong(f"the calibration does not say its {key}", key)
    values: dict[str, Any] = {}
    for key, value in document.items():
        if key not in _READERS:
            raise _wrong(f"{key!r} is not a key of a calibration", key)
        if value is not None:
            values[key] = _READERS[key](value, key)
    return CalibrationFile(efficiency_share=values.pop("efficiency", None), **values)


def _read_share(value: object, key: str) -> Fraction:
    """A share in (0, 1], also as a ratio of whole numbers: ``9/10``."""
    try:
        share = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise _wrong(f"{key} {value!r} is not a share in (0, 1]", key)
    return share


def _read_efficiency(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _FASTEST:
        raise _wrong(f"{key} {value!r} is not a share above 0 and at most {_FASTEST}", key)
    return float(value)


def _read_corrections(value: object, key: str) -> tuple[tuple[str, int], ...]:
    found = _read_mapping(value, key)
    for name, amount in found.items():
        if isinstance(amount, bool) or not isinstance(amount, int):
            raise _wrong(f"{key}.{name} {amount!r} is not whole bytes", key)
    return tuple(found.items())  # type: ignore[arg-type]


def _read_settings(value: object, key: str) -> dict[str, object]:
    options = {row.field: row.option.type for row in rows() if row.field in SETTINGS}
    found = _read_mapping(value, key)
    for name in found:
        if name not in options:
            raise _wrong(f"{key}.{name} is not a setting that a log can state", key)
    return {name: options[name].read(item, f"{key}.{name}") for name, item in found.items()}


def _read_mapping(value: object, key: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong(f"{key} {value!r} is not a mapping of names to values", key)
    return value


_READERS: Mapping[str, Callable[..., object]] = {
    "engine": read_engine,
    "model": read_word,
    "source": read_word,
    **dict.fromkeys(PARALLELISM, read_count),
    "gpu": GPU.read,
    "gpu_memory_bytes": read_count,
    "memory_utilization": _read_share,
    "settings": _read_settings,
    "corrections": _read_corrections,
    "kv_bytes": read_count,
    "efficiency": _read_efficiency,
}


def apply_calibration(deployment: Deployment, found: CalibrationFile, model_id: str | None = None) -> Deployment:
    """``deployment`` with the calibration's corrections, and its settings where the deployment leaves them open.

    Raises InputError where the calibration is of another engine, model, GPU or parallelism.
    """
    if deployment.engine.name != found.engine.name:
        raise _of_another("engine", found.engine.name, deployment.engine.name)
    if model_id is not None and _base_name(model_id) != _base_name(found.model):
        raise _of_another("model", found.model, model_id)
    of_memory = bool(found.corrections) or found.gpu_memory_bytes is not None  # a measured step is of any device
    if of_memory and deployment.gpu is not None and found.gpu not in (None, deployment.gpu.name):
        raise _of_another("GPU", found.gpu, deployment.gpu.name)
    for name in PARALLELISM:
        asked, known = getattr(deployment, name), getattr(found, name)
        if asked not in (1, known) or (asked == 1 and known != 1 and deployment.gpus > 1):
            raise _of_another("parallelism", f"{name} {known}", asked)
    filled: dict[str, object] = {name: getattr(found, name) for name in PARALLELISM}
    filled |= {name: value for name, value in found.settings.items() if not is_asked(deployment, name)}
    if deployment.gpu_memory_bytes is None and found.gpu_memory_bytes is not None:
        filled["gpu_memory_bytes"] = (found.gpu_memory_bytes,)
    if deployment.memory_utilization is None:
        filled["memory_utilization"] = found.memory_utilization
    if deployment.engine.release is None:
        filled["engine"] = found.engine
    return replace(deployment, **filled, corrections=found.corrections)  # type: ignore[arg-type]


def _of_another(what: str, known: object, asked: object) -> InputError:
    return InputError(
        f"the calibration is of {known}, the plan of {asked}",
        hint=f"calibrate with a log of the {what} that you plan",
        key="calibration",
    )


def _base_name(model_id: str) -> str:
    return model_id.partition("@")[0].rstrip("/").rpartition("/")[2].lower()
