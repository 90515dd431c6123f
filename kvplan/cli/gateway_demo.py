"""How ``kvplan gateway --demo`` looks: a live table in a terminal, a line now and then through a pipe."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from kvplan.cli.output import terminal_width, wants_colour, write_data

if TYPE_CHECKING:
    from rich.table import Table

    from kvplan.gateway.demo import SideFigures

_WIDEST = 80
_BESIDE_BARS = 47
"""Columns that the live table needs beside its two bars."""

_LINE_EVERY_S = 2.0


def show_demo(seconds: float) -> int:
    """Run the demo and say at the end what it showed."""
    last: list[Sequence[SideFigures]] = []
    try:
        _play(seconds, last)
    finally:  # Ctrl-C ends it early, and it still says what it showed
        if last:
            write_data(_verdict(last[0]))
    return 0


def _play(seconds: float, last: "list[Sequence[SideFigures]]") -> None:
    from kvplan.gateway.demo import run_demo

    if sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live

        write_data(f"{_scene()}\n\n")
        console = Console(no_color=not wants_colour())
        with Live(console=console, refresh_per_second=4) as live:

            def draw(sides: "Sequence[SideFigures]") -> None:
                last[:] = [sides]
                live.update(table_of(sides, seconds))

            asyncio.run(run_demo(draw, seconds=seconds))
    else:
        write_data(f"{_scene()}\n\n{_HEADER}")
        asyncio.run(run_demo(_lines(last), seconds=seconds))


_HEADER = f"{'time':>5} {'policy':<11} {'reserved':>8} {'used':>8} {'refused':>7} {'done':>5} {'preempted':>9}\n"


def _width() -> int:
    return min(terminal_width(), _WIDEST)


def _scene() -> str:
    """What is made up, and what to look at."""
    from kvplan.gateway.demo import BLOCKS, CLIENTS, RATE_PER_S
    from kvplan.gateway.demo_engine import BLOCK_TOKENS

    return fill(
        f"Two made-up engines, each with {BLOCKS} blocks of {BLOCK_TOKENS} tokens and a gateway in front. Both get the "
        f"same {RATE_PER_S * len(CLIENTS):.1f} requests/s, more than they can serve, from clients that retry like "
        f"{', '.join(CLIENTS[:-1])} and {CLIENTS[-1]}. prompt_only admits by what a request is now, worst_case by "
        "prompt + max_tokens. Watch the blocks: reserved by the gateway, used in the engine.",
        _width(),
        break_on_hyphens=False,
    )


def _lines(last: "list[Sequence[SideFigures]]") -> "Callable[[Sequence[SideFigures]], None]":
    due_s = 0.0

    def tell(sides: "Sequence[SideFigures]") -> None:
        nonlocal due_s
        last[:] = [sides]
        if sides[0].elapsed_s >= due_s:
            due_s += _LINE_EVERY_S
            for side in sides:
                write_data(
                    f"{side.elapsed_s:4.0f}s {side.policy:<11} {_of(side.reserved_blocks, side):>8} "
                    f"{_of(side.used_blocks, side):>8} {side.refusals:>7} {side.completed:>5} {side.preemptions:>9}\n"
                )

    return tell


def table_of(sides: "Sequence[SideFigures]", seconds: float) -> "Table":
    """The figures of both policies, side by side in 60 to 80 columns, as the terminal has."""
    from rich.table import Table

    bar = max(1, (_width() - _BESIDE_BARS) // 2)
    left_s = max(0.0, seconds - sides[0].elapsed_s)
    table = Table(title=f"the same traffic, two policies · {left_s:.0f} s left (Ctrl-C ends it)", box=None)
    table.add_column("blocks")
    for side in sides:
        table.add_column(side.policy, justify="right")
    rows: tuple[tuple[str, Callable[[SideFigures], str]], ...] = (
        ("reserved by the gateway", lambda side: _bar(side.reserved_blocks, side, bar)),
        ("used in the engine", lambda side: _bar(side.used_blocks, side, bar)),
        ("running", lambda side: f"{side.running}"),
        ("waiting in the engine", lambda side: f"{side.waiting}"),
        ("refused (429)", lambda side: f"{side.refusals}"),
        ("clients that gave up", lambda side: f"{side.gave_up}"),
        ("completed", lambda side: f"{side.completed}"),
        ("preempted", lambda side: f"[yellow]{side.preemptions}[/]" if side.preemptions else "0"),
        ("tokens computed twice", lambda side: f"{side.recomputed_tokens:,}"),
    )
    for name, cell in rows:
        table.add_row(name, *(cell(side) for side in sides))
    return table


def _of(blocks: int, side: "SideFigures") -> str:
    return f"{blocks}/{side.capacity_blocks}"


def _bar(blocks: int, side: "SideFigures", length: int) -> str:
    filled = min(length, round(length * blocks / side.capacity_blocks))
    return f"{'█' * filled}{'·' * (length - filled)} {_of(blocks, side):>8}"


def _verdict(sides: "Sequence[SideFigures]") -> str:
    told = [
        fill(
            f"{side.policy}: {side.completed} answers, {side.refusals} refusals, {side.preemptions} preemptions"
            f" ({side.recomputed_tokens:,} tokens redone)",
            _width(),
            subsequent_indent="  ",
        )
        for side in sides
    ]
    hidden = "answers stop midway and start over" if any(side.preemptions for side in sides) else "requests wait there"
    why = fill(
        f"prompt_only takes the overload into the engine: {hidden}. worst_case refuses it at the door, at once, with a "
        "time to come back; memory kept for answers that end early is its price (kvplan simulate weighs the two).",
        _width(),
    )
    steps = "Next: kvplan gateway --upstream URL --traffic FILE\n      kvplan explain ledger"
    return "\n".join(["", *told, "", why, steps, ""])
