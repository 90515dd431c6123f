"""Expected outputs kept in files. ``KVPLAN_UPDATE_GOLDEN=1 pytest`` writes them anew; then read the difference."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def check_golden(name: str, text: str) -> None:
    """``text`` is what ``golden/<name>`` holds."""
    path = GOLDEN / name
    if os.environ.get("KVPLAN_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing: write it with KVPLAN_UPDATE_GOLDEN=1"
    assert text == path.read_text(encoding="utf-8")
