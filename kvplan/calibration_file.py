"""The calibration file: what one log taught, for plans of the same model and engine on the same GPU and parallelism."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from kvplan.engines.base import Deployment, EngineVersion
from kvplan.errors import InputError, unreadable

PARALLELISM = ("tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel")
SETTINGS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "weight_bytes",
    "speculative_tokens",
)
FLAGS = ("async_scheduling", "prefix_caching", "enforce_eager", "kv_unified")
WORDS = ("kv_dtype", "cache_type_k", "cache_type_v", "speculative_method")
_HOW = "kvplan calibrate LOG writes one anew"
_FASTEST = 1.5
"""The largest efficiency: cards boost above the clock that their data sheet's peak is of."""
_OPTIONAL = {
    "source",
    "gpu",
    "gpu_memory_bytes",
    "kv_bytes",
    "memory_utilization",
    "efficiency",
    "corrections",
    "settings",
}
_KNOWN = {"engine", "model", *PARALLELISM, *_OPTIONAL}


@dataclass(frozen=True, kw_only=True)
class CalibrationFile:
    """A calibration as read from its file. ``settings`` fill in what a plan does not say itself.

    ``efficiency_share`` is the roofline's one constant, from a measured run; null where none was compared.
    """

    engine: EngineVersion
    model: str
    corrections: tuple[tuple[str, int], ...]
    settings: Mapping[str, object]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    context_parallel: int = 1
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    memory_utilization: Fraction | None = None
    kv_bytes: int | None = None
    efficiency_share: float | None = None
    source: str | None = None


def is_said(name: str, value: object) -> bool:
    """Whether a setting is asked for, rather than left to the engine.

    >>> is_said("kv_dtype", "auto"), is_said("speculative_tokens", 0), is_said("prefix_caching", False)
    (False, False, True)
    """
    left = value is None or value == "auto" or (name in SETTINGS and value == 0)
    return not left and not (name == "enforce_eager" and value is False)


def load_calibration(path: Path) -> CalibrationFile:
    """The calibration in ``path``; InputError names the key that is wrong."""
    import yaml

    from kvplan.engines import parse_engine

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        raise InputError(f"{path} is not YAML", hint=_HOW, file=str(path), line=line) from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is not a calibration", hint=_HOW, file=str(path))
    for key in document:
        if key not in _KNOWN:
            raise InputError(
                f"{key!r} is not a key of a calibration",
                hint="take it out, or write the file anew: kvplan calibrate LOG",
                file=str(path),
                key=str(key),
            )
    engine, model = document.get("engine"), document.get("model")
    if not isinstance(engine, str) or not isinstance(model, str):
        key = "engine" if not isinstance(engine, str) else "model"
        raise InputError(
            f"{path} does not say its {key}", hint="write it anew: kvplan calibrate LOG", file=str(path), key=key
        )
    reader = _Reader(document=document, file=str(path))
    return CalibrationFile(
        engine=parse_engine(engine),
        model=model,
        corrections=tuple(sorted(reader.numbers("corrections").items())),
        settings=reader.settings(),
        **{name: reader.whole(name) or 1 for name in PARALLELISM},
        gpu=document["gpu"] if isinstance(document.get("gpu"), str) else None,
        gpu_memory_bytes=reader.whole("gpu_memory_bytes"),
        memory_utilization=reader.share("memory_utilization"),
        kv_bytes=reader.whole("kv_bytes"),
        efficiency_share=reader.rate("efficiency"),
        source=document["source"] if isinstance(document.get("source"), str) else None,
    )


@dataclass(frozen=True, kw_only=True)
class _Reader:
    document: Mapping[str, object]
    file: str

    def wrong(self, key: str, value: object, wanted: str) -> InputError:
        return InputError(f"{key} is {value!r}, not {wanted}", hint=_HOW, file=self.file, key=key)

    def whole(self, key: str) -> int | None:
        value = self.document.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise self.wrong(key, value, "a whole number above 0")
        return value

    def share(self, key: str) -> Fraction | None:
        value = self.document.get(key)
        if value is None:
            return None
        try:
            share = Fraction(str(value))
        except (ValueError, ZeroDivisionError) as error:
            raise self.wrong(key, value, "a share") from error
        if not 0 < share <= 1:
            raise self.wrong(key, value, "a share in (0, 1]")
        return share

    def rate(self, key: str) -> float | None:
        value = self.document.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _FASTEST:
            raise self.wrong(key, value, f"a share above 0 and at most {_FASTEST}")
        return float(value)

    def numbers(self, key: str) -> dict[str, int]:
        value = self.document.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(
            isinstance(name, str) and isinstance(amount, int) and not isinstance(amount, bool)
            for name, amount in value.items()
        ):
            raise self.wrong(key, value, "terms with whole bytes")
        return value

    def settings(self) -> dict[str, object]:
        value = self.document.get("settings")
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong("settings", value, "settings with values")
        for name, item in value.items():
            known = name in (*SETTINGS, *FLAGS, *WORDS)
            right = (
                (isinstance(item, int) and not isinstance(item, bool) and item > 0)
                if name in SETTINGS
                else isinstance(item, bool)
                if name in FLAGS
                else isinstance(item, str)
            )
            if not known or not right:
                raise self.wrong(f"settings.{name}", item, "a setting that a log can say")
        return value


def apply_calibration(deployment: Deployment, found: CalibrationFile, model_id: str | None = None) -> Deployment:
    """``deployment`` with the calibration's corrections; what it leaves open is as the log had it.

    Raises InputError where the calibration is of another engine, model, device or parallelism.
    """
    if deployment.engine.name != found.engine.name:
        raise InputError(
            f"the calibration is of {found.engine.name}, the plan of {deployment.engine.name}",
            hint="calibrate with a log of the engine that you plan",
            key="calibration",
        )
    if model_id is not None and _base_name(model_id) != _base_name(found.model):
        raise InputError(
            f"the calibration is of {found.model}, the plan of {model_id}",
            hint="calibrate with a log of the model that you plan",
            key="calibration",
        )
    of_memory = bool(found.corrections) or found.gpu_memory_bytes is not None  # a measured step is of any device
    if of_memory and deployment.gpu is not None and found.gpu not in (None, deployment.gpu.name):
        raise InputError(
            f"the calibration is of {found.gpu}, the plan of {deployment.gpu.name}",
            hint="calibrate with a log of the same device",
            key="calibration",
        )
    for name in PARALLELISM:
        asked, known = getattr(deployment, name), getattr(found, name)
        if asked not in (1, known) or (asked == 1 and known != 1 and deployment.gpus > 1):
            raise InputError(
                f"the calibration is of {name} {known}, the plan of {asked}",
                hint="calibrate with a log of the same parallelism",
                key="calibration",
            )
    filled: dict[str, object] = {name: getattr(found, name) for name in PARALLELISM}
    filled |= {name: value for name, value in found.settings.items() if not is_said(name, getattr(deployment, name))}
    if deployment.gpu_memory_bytes is None and found.gpu_memory_bytes is not None:
        filled["gpu_memory_bytes"] = (found.gpu_memory_bytes,)
    if deployment.memory_utilization is None:
        filled["memory_utilization"] = found.memory_utilization
    if deployment.engine.release is None:
        filled["engine"] = found.engine
    return replace(deployment, **filled, corrections=found.corrections)  # type: ignore[arg-type]


def _base_name(model_id: str) -> str:
    return model_id.partition("@")[0].rstrip("/").rpartition("/")[2].lower()
