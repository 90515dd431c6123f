"""``kvplan explain`` as JSON (``kvplan.explain``)."""

from collections.abc import Mapping

from kvplan.explain import Page
from kvplan.report.json_text import document


def text(page: Page | None, topics: Mapping[str, str]) -> str:
    """The page, or null and the topics."""
    content = None if page is None else {"topic": page.topic, "title": page.title, "text": page.text}
    return document("explain", {"page": content, "topics": list(topics)})
