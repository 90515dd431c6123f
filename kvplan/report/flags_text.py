"""The engine's flags alone, to be copied: a shell command, or the arguments of a Kubernetes container."""

import json
from collections.abc import Mapping, Sequence


def text(words: Sequence[str], flags: Mapping[str, object], form: str) -> str:
    """``words`` as a shell command over several lines, or ``flags`` as a YAML list of strings."""
    if form == "cli":
        return " \\\n  ".join(words) + "\n"
    arguments = [flag if value is True else f"{flag}={value}" for flag, value in flags.items()]
    return "args:\n" + "".join(f"  - {json.dumps(argument)}\n" for argument in arguments)
