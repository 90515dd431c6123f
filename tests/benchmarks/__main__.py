"""``python -m tests.benchmarks``: runs the benchmarks, prints every ratio to a rival, and writes them as JSON.

``--markdown`` prints the table of the README; ``--json FILE`` keeps the figures; ``--rivals`` measures other programs
from the package index too, each in an environment of its own; ``--only startup`` runs one of the files.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.comparison import KEPT, line

FOLDER = Path(__file__).parent


def main() -> int:
    """Run, gather, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--only", metavar="NAME", help="startup, simulation or gateway")
    wish = parser.parse_args()
    code, found = measure(FOLDER / f"test_{wish.only}.py" if wish.only else FOLDER, rivals=wish.rivals)
    document = {
        "schema": "kvplan.benchmarks",
        "schema_version": 1,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "comparisons": found,
    }
    if wish.json is not None:
        wish.json.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(markdown(found) if wish.markdown else "\n".join(map(line, found)))
    return code


def measure(place: Path, *, rivals: bool) -> tuple[int, list[dict[str, Any]]]:
    """Pytest's exit code, and what the benchmarks under ``place`` compared."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "benchmarks.json"
        marks = ["-m", "opt_in or not opt_in"] if rivals else []
        command = [sys.executable, "-m", "pytest", str(place), "--benchmark-enable", f"--benchmark-json={kept}", *marks]
        # What pytest prints goes to stderr, so that stdout holds the ratios alone.
        code = subprocess.run(command, cwd=FOLDER.parents[1], stdout=sys.stderr, check=False).returncode
        ran = json.loads(kept.read_text(encoding="utf-8"))["benchmarks"] if kept.is_file() else []
    return code, [each for one in ran for each in one["extra_info"].get(KEPT, [])]


def markdown(found: list[dict[str, Any]]) -> str:
    """The table of the README."""
    rows = [
        f"| {each['what']} | {each['rival']} | {each['ours']:.3g} {each['unit']} | {each['theirs']:.3g} {each['unit']} "
        f"| {each['ratio']:.3g} | {each['least']:.3g} … {each['most']:.3g} |"
        for each in found
    ]
    return "\n".join(["| what | beside | kvplan | rival | ratio | range |", "|---|---|--:|--:|--:|--:|", *rows])


if __name__ == "__main__":
    sys.exit(main())
