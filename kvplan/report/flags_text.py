"""The engine's flags alone, to be copied: a shell command, or the arguments of a Kubernetes container.

A flag and its value are two arguments, which every engine takes; llama.cpp does not read ``--flag=value``.
"""

import json
import shlex
from collections.abc import Sequence
from itertools import takewhile


def text(words: Sequence[str], form: str, model_id: str) -> str:
    """``words`` as a shell command over several lines, or what follows its program as YAML: ``args`` from the model on,
    and ``env``. The program is the image's own entry point, so it is only said.

    >>> print(text(["LIST=20,12 vllm serve org/m", "--max-model-len 4096"], "k8s", "org/m"), end="")
    # a container that runs: vllm serve
    args:
      - "org/m"
      - "--max-model-len"
      - "4096"
    env:
      - name: "LIST"
        value: "20,12"
    """
    if form == "cli":
        return " \\\n  ".join(words) + "\n"
    spoken = shlex.split(" ".join(words))
    variables = list(takewhile(lambda word: "=" in word, spoken))
    command = spoken[len(variables) :]
    program = list(takewhile(lambda word: word != model_id and not word.startswith("--"), command))
    lines = [f"# a container that runs: {shlex.join(program)}", *_items("args", command[len(program) :])]
    if variables:
        lines.append("env:")
        for name, _, value in (variable.partition("=") for variable in variables):
            lines += [f"  - name: {json.dumps(name)}", f"    value: {json.dumps(value)}"]
    return "".join(f"{line}\n" for line in lines)


def _items(key: str, values: Sequence[str]) -> list[str]:
    return [f"{key}:", *(f"  - {json.dumps(value)}" for value in values)] if values else [f"{key}: []"]
