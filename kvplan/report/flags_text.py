"""The engine's flags alone, to be copied: a shell command, or the arguments of a Kubernetes container.

A flag and its value are two arguments, which every engine takes; llama.cpp does not read ``--flag=value``.
"""

import json
from collections.abc import Mapping, Sequence


def text(words: Sequence[str], flags: Mapping[str, object], form: str) -> str:
    """``words`` as a shell command over several lines, or ``flags`` as a YAML list of strings."""
    if form == "cli":
        return " \\\n  ".join(words) + "\n"
    arguments = [str(word) for pair in flags.items() for word in pair if word is not True]
    return "args:\n" + "".join(f"  - {json.dumps(argument)}\n" for argument in arguments)
