"""Expected outputs kept in files. ``KVPLAN_UPDATE_GOLDEN=1 pytest`` writes them anew; then read the difference."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def check_golden(name: str, text: str) -> None:
    """``golden/<name>`` holds ``text``."""
    check_file(GOLDEN / name, text)


def check_file(path: Path, text: str) -> None:
    """The file holds ``text``."""
    if os.environ.get("KVPLAN_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing: {_HOW}"
    assert text == path.read_text(encoding="utf-8"), f"{path} is not what is generated: {_HOW}"


_HOW = "KVPLAN_UPDATE_GOLDEN=1 pytest writes it anew, with this test's file for that file alone"
