"""``kvplan check`` as Markdown, for a pull request or a job summary."""

from kvplan.check.results import Check
from kvplan.report.check_text import text as parts
from kvplan.report.markdown import document


def text(check: Check) -> str:
    """The document."""
    return document("kvplan check", parts(check))
