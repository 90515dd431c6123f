"""Results as text for people and as data for programs: a module per command, in it a function per format."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

_APART = {
    "fit": {"text": "fit_text", "json": "fit_json"},
    "simulation": {
        "text": "simulation_text",
        "json": "simulation_json",
        "html": "simulation_page",
        "markdown": "simulation_page",
    },
    "recommend": {"text": "recommend_text", "json": "recommend_json"},
    "check": {
        "text": "check_text",
        "markdown": "check_text",
        "json": "check_json",
        "junit": "check_ci",
        "github": "check_ci",
    },
}
"""Where a command's formats are modules of their own."""


def report(command: str, format: str) -> Callable[..., Any]:  # noqa: A002 - the option's name
    """The function that turns a result into ``format``: parts of a page for text, otherwise a document."""
    module = _APART.get(command, {}).get(format, command)
    made: Callable[..., Any] = getattr(import_module(f"kvplan.report.{module}"), format)
    return made
