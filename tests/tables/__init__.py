"""Tables of kvplan against recorded facts: the README prints them, and tests judge them.

``python -m tests.tables.NAME [FOLDER]`` prints one; the facts are read from ../shared/data unless a folder is named.
"""

from collections.abc import Sequence
from pathlib import Path

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def folder_of(arguments: Sequence[str]) -> Path:
    """The folder that the arguments of a script name, else ``DATA``."""
    return next((Path(argument) for argument in arguments if Path(argument).is_dir()), DATA)
