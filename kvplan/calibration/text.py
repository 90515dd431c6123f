"""A calibration as the text of its file."""

from kvplan.calibration.compare import Calibration
from kvplan.calibration_file import FLAGS, PARALLELISM, SETTINGS, WORDS, is_said

_HEADER = (
    "# kvplan calibration: what one start-up log taught.\n"
    "# kvplan fit|simulate|check|recommend … --calibration FILE (deployment.calibration in a traffic file) reproduces\n"
    "# that start; with other settings the same corrections (bytes per GPU, logged − planned) are added to the terms\n"
    "# planned for them.\n"
)


def calibration_text(found: Calibration, source: str) -> str:
    """The file's text. ``source`` names the log."""
    import yaml

    asked, start = found.deployment, found.start
    said = ((name, getattr(asked, name)) for name in (*SETTINGS, *FLAGS, *WORDS))
    settings: dict[str, object] = {name: value for name, value in said if is_said(name, value)}
    document: dict[str, object] = {
        "engine": str(asked.engine),
        "model": found.planned.model.id,
        "source": f"{source}, lines {start.first_line} to {start.last_line}",
        **{name: getattr(asked, name) for name in PARALLELISM},
        "gpu": None if asked.gpu is None else asked.gpu.name,
        "gpu_memory_bytes": asked.gpu_memory_bytes[0] if asked.gpu_memory_bytes else None,
        "memory_utilization": None if asked.memory_utilization is None else str(asked.memory_utilization),
        "settings": settings,
        "corrections": dict(found.corrections),
        "kv_bytes": found.kv_bytes_logged,
    }
    return _HEADER + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
