"""The frame of an HTML report: one file, no network, readable on a phone, in the dark and on paper."""

from collections.abc import Iterable, Iterator
from html import escape

from kvplan.report.page import ACCENT, Columns, Labelled, Part, Prose

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #566170; --line: #d5dbe3; --paper: #fff; --accent: #00707f;
  --warn: #8a5a00; --used: #0072b2; --reserved: #c24f00; --refused: #882255; --cut: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --quiet: #9aa6b5; --line: #39424e; --paper: #14181d;
  --accent: #4fc3d4; --warn: #e0b04a; --used: #56b4e9; --reserved: #e69f00; --refused: #e58fc0; --cut: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 62rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; } ul { margin: .4rem 0; padding-left: 1.2rem; } .quiet { color: var(--quiet); }
.answer { color: var(--accent); font-weight: 600; } .warn { color: var(--warn); }
.scroll { overflow-x: auto; overflow-wrap: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .3rem .9rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  vertical-align: top; }
th { color: var(--quiet); font-weight: 500; } th.text, td.text { text-align: left; }
td.text { white-space: normal; min-width: 9rem; }
tr.marked td { color: var(--accent); font-weight: 600; }
figure { margin: .6rem 0; } figcaption { font-size: .92rem; font-weight: 600; }
figure { max-width: 30rem; } .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1.5rem; }
@media (max-width: 44rem) { .pair { grid-template-columns: 1fr; gap: 0; } }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--quiet); font: 12px system-ui, sans-serif; }
.axis { stroke: var(--quiet); fill: none; } .grid { stroke: var(--line); stroke-width: .7; fill: none; }
.upright { stroke: var(--ink); stroke-dasharray: 1 3; fill: none; }
polyline { stroke-width: 1.6; fill: none; } polyline.refused { stroke-width: 1; }
.used { stroke: var(--used); } .cut { stroke: var(--cut); } circle.cut { fill: var(--cut); }
.refused { stroke: var(--refused); } circle.refused { fill: var(--paper); }
circle ~ polyline.refused { stroke-width: 1.6; stroke-dasharray: 5 3; }
.reserved { stroke: var(--reserved); stroke-dasharray: 5 3; }
.under { stroke: none; opacity: .18; } .under.used { fill: var(--used); } .under.refused { fill: var(--refused);
  opacity: .5; }
@media print {
  :root { color-scheme: light; --ink: #000; --quiet: #444; --line: #bbb; --paper: #fff; --accent: #00505c;
    --warn: #6a4500; --used: #0072b2; --reserved: #c24f00; --refused: #882255; --cut: #0072b2; }
  @page { margin: 15mm; }
  body { max-width: none; padding: 0; font-size: 10.5pt; } h2 { break-after: avoid; }
  .scroll { overflow: visible; } table { font-size: 8.5pt; } .pair { grid-template-columns: 1fr 1fr; }
  th, td { white-space: normal; padding-right: .6rem; } td.text { min-width: 0; }
  figure, tr, .pair, .scroll { break-inside: avoid; } h2 + p { break-after: avoid; }
}
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


def table(part: Columns) -> str:
    """Numbers right, text columns left; marked rows carry the accent."""
    kinds = [' class="text"' if index in part.texts else "" for index in range(len(part.headings))]
    head = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, part.headings, strict=True))
    lines = []
    for number, row in enumerate(part.rows):
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        lines.append(f'<tr class="marked">{cells}</tr>' if number in part.marked else f"<tr>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def parts(report: Iterable[Part]) -> Iterator[str]:
    """A text report's prose and tables."""
    for part in report:
        if isinstance(part, Prose):
            yield paragraph(part.text, "answer" if part.style == ACCENT else "")
        elif isinstance(part, Labelled):
            yield paragraph(f"{part.label}: {part.text}")
        elif isinstance(part, Columns):
            yield table(part)


def items(lines: Iterable[str]) -> str:
    """A list of sentences."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def side_by_side(charts: Iterable[str]) -> str:
    """Charts beside each other, or under each other where there is no room."""
    return f'<div class="pair">{"".join(charts)}</div>'
