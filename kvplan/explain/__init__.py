"""One page on a topic, kept as Markdown files beside this module."""

from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files

from kvplan.errors import InputError

TOPICS: dict[str, str] = {
    "mla": "one latent instead of heads, and what tensor parallelism does to it",
    "windows": "sliding and chunked attention, and the hybrid manager",
    "hybrid": "recurrent state beside attention, and why the block size moves",
    "budget": "where a GPU's memory goes, term by term",
    "ledger": "reservations, and why the worst case is charged",
    "retry-after": "what a refused client is told, and what clients make of it",
    "simulation": "what the strategies, columns and remarks of a simulation mean",
    "recommendation": "what the tables and settings of a recommendation mean",
    "safety-fraction": "how much of the pool the front door may promise",
    "traffic": "every key of a traffic file and its unit",
    "ci": "limits that a pipeline checks: GitHub, GitLab, pre-commit",
    "json": "the documents of --format json: their keys, units and versions",
    "trust": "what is exact, what is estimated, and how to check it",
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """A topic, its title and its text in Markdown."""

    topic: str
    title: str
    text: str


def load_page(topic: str) -> Page:
    """The page on ``topic``. Raises InputError with the nearest topic where there is no such page."""
    topic = topic.strip().lower()
    if topic not in TOPICS:
        near = get_close_matches(topic, list(TOPICS), 1)
        hint = f"did you mean {near[0]}?" if near else f"topics: {', '.join(TOPICS)}"
        raise InputError(f"there is no page on {topic!r}", hint=hint, key="topic")
    text = files(__package__).joinpath(f"{topic}.md").read_text(encoding="utf-8")
    title, _, body = text.partition("\n")
    return Page(topic=topic, title=title.removeprefix("# "), text=body.strip())
