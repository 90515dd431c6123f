"""The frame of an HTML report: one file, no network, readable on a phone, in the dark and on paper."""

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root { --ink: #1b1f24; --quiet: #5f6b7a; --line: #d5dbe3; --paper: #fff; --accent: #00707f; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --quiet: #9aa6b5; --line: #39424e; --paper: #14181d; --accent: #4fc3d4; --warn: #e0b04a; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 62rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; } .quiet { color: var(--quiet); } .answer { color: var(--accent); font-weight: 600; }
.warn { color: var(--warn); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--quiet); font-weight: 500; } th.text, td.text { text-align: left; }
td.text { white-space: normal; min-width: 8rem; }
tr.marked td { color: var(--accent); font-weight: 600; }
figure { margin: .6rem 0 1.2rem; } figcaption { font-size: .92rem; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--quiet); font: 11px system-ui, sans-serif; }
.axis { stroke: var(--line); stroke-width: 1; fill: none; }
.used { stroke: var(--accent); stroke-width: 1.6; fill: none; }
.reserved { stroke: var(--quiet); stroke-width: 1.2; stroke-dasharray: 4 3; fill: none; }
@media print { body { max-width: none; padding: 0; } figure, table { break-inside: avoid; } }
"""


def page(title: str, body: Iterable[str]) -> str:
    """A whole document."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n'
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """A section's heading."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    """Prose; ``kind`` is quiet, answer or warn."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    texts: frozenset[int] = frozenset({0}),
    marked: int | None = None,
) -> str:
    """Numbers right, text columns left; row ``marked`` carries the accent."""
    kinds = [' class="text"' if index in texts else "" for index in range(len(headings))]
    head = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, headings, strict=True))
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        lines.append(f'<tr class="marked">{cells}</tr>' if number == marked else f"<tr>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
