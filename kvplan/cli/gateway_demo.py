"""What ``kvplan gateway --demo`` prints: a live table in a terminal, a line every two seconds through a pipe."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from kvplan.cli.output import terminal_width, wants_colour, write_data

if TYPE_CHECKING:
    from rich.table import Table

    from kvplan.gateway.demo import Side

_WIDEST = 80
_BESIDE_BARS = 47
"""Columns that the live table needs beside its two bars."""

_LINE_EVERY_S = 2.0
_HEADER = f"{'time':>5} {'policy':<11} {'reserved':>8} {'used':>8} {'refused':>7} {'done':>5} {'preempted':>9}\n"


def show_demo(seconds: float) -> int:
    """Run the demo and conclude what it showed; with the command itself it fits a screen of 80 by 24."""
    seen: list[Side] = []
    try:
        asyncio.run(_play(seconds, seen))
    finally:  # also after Ctrl-C
        if seen:
            write_data(verdict(seen))
    return 0


async def _play(seconds: float, seen: "list[Side]") -> None:
    from kvplan.gateway.demo import run_demo

    write_data(f"{scene()}\n\n")
    if not sys.stdout.isatty():
        write_data(_HEADER)
        due_s = 0.0
        async for elapsed_s, seen[:] in run_demo(seconds):
            if elapsed_s >= due_s:
                due_s += _LINE_EVERY_S
                write_data("".join(_line(elapsed_s, side) for side in seen))
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(no_color=not wants_colour()), refresh_per_second=4) as live:
        async for elapsed_s, seen[:] in run_demo(seconds):
            live.update(table_of(seen, seconds - elapsed_s))


def _width() -> int:
    return min(terminal_width(), _WIDEST)


def scene() -> str:
    """What is made up, and what to watch."""
    from kvplan.gateway.demo import BLOCK_TOKENS, BLOCKS, CLIENTS, RATE_PER_S

    return fill(
        f"Two made-up engines of {BLOCKS} blocks of {BLOCK_TOKENS} tokens, a gateway in front of each. Both get the "
        f"same {RATE_PER_S * len(CLIENTS):.1f} requests/s, more than they can serve, from clients that retry like "
        f"{', '.join(CLIENTS[:-1])} and {CLIENTS[-1]}. prompt_only admits by the prompt alone, worst_case by prompt "
        "+ max_tokens.",
        _width(),
        break_on_hyphens=False,
    )


def _line(elapsed_s: float, side: "Side") -> str:
    return (
        f"{elapsed_s:4.0f}s {side.policy:<11} {_of(side.ledger.reserved, side):>8} "
        f"{_of(side.engine.used_blocks, side):>8} {side.refusals:>7} {side.engine.completed:>5} "
        f"{side.engine.preemptions:>9}\n"
    )


def table_of(sides: "Sequence[Side]", left_s: float) -> "Table":
    """The figures of both policies, side by side in 60 to 80 columns."""
    from rich.table import Table

    bar = max(1, (_width() - _BESIDE_BARS) // 2)
    table = Table(title=f"the same traffic, two policies · {max(0.0, left_s):.0f} s left (Ctrl-C ends it)", box=None)
    table.add_column("blocks")
    for side in sides:
        table.add_column(side.policy, justify="right")
    rows: tuple[tuple[str, Callable[[Side], str]], ...] = (
        ("reserved by the gateway", lambda side: _bar(side.ledger.reserved, side, bar)),
        ("used in the engine", lambda side: _bar(side.engine.used_blocks, side, bar)),
        ("running", lambda side: f"{side.engine.running}"),
        ("waiting in the engine", lambda side: f"{side.engine.waiting}"),
        ("refused (429)", lambda side: f"{side.refusals}"),
        ("clients that gave up", lambda side: f"{side.gave_up}"),
        ("completed", lambda side: f"{side.engine.completed}"),
        ("preempted", lambda side: f"[yellow]{side.engine.preemptions}[/]" if side.engine.preemptions else "0"),
        ("tokens computed twice", lambda side: f"{side.engine.recomputed_tokens:,}"),
    )
    for name, cell in rows:
        table.add_row(name, *(cell(side) for side in sides))
    return table


def _of(blocks: int, side: "Side") -> str:
    return f"{blocks}/{side.engine.blocks}"


def _bar(blocks: int, side: "Side", length: int) -> str:
    filled = min(length, round(length * blocks / side.engine.blocks))
    return f"{'█' * filled}{'·' * (length - filled)} {_of(blocks, side):>8}"


def verdict(sides: "Sequence[Side]") -> str:
    """What the demo showed, and what to run next."""
    hidden = (
        "answers stop midway and start over" if any(side.engine.preemptions for side in sides) else "they wait there"
    )
    why = fill(
        f"prompt_only takes the overload into the engine: {hidden}. worst_case refuses it at the door, with a time "
        "to come back; memory kept for answers that end early is its price (kvplan simulate weighs the two).",
        _width(),
    )
    return f"\n{why}\nNext: kvplan gateway --upstream URL --traffic FILE\n      kvplan explain ledger\n"
