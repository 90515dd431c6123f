"""Every refusal says what to do next."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "kvplan"
ERRORS = {"InputError", "UnsupportedModelError", "ModelUnavailableError", "HubUnavailableError"}
FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_error_has_a_hint(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    errors = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ERRORS]
    assert not [call.lineno for call in errors if not any(word.arg == "hint" for word in call.keywords)]
