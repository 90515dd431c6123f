"""How ``kvplan gateway --demo`` looks: a live table in a terminal, a line now and then through a pipe."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from kvplan.cli.output import wants_colour, write_data

if TYPE_CHECKING:
    from rich.table import Table

    from kvplan.gateway.demo import SideFigures

_BAR = 16
"""Wide enough to see, narrow enough for two of them in 80 columns."""

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


_HEADER = f"{'time':>5} {'policy':<12} {'reserved':>9} {'used':>9} {'refused':>8} {'done':>5} {'preempted':>10}\n"


def _scene() -> str:
    """What is made up, and what to look at."""
    from kvplan.gateway.demo import BLOCKS, CLIENTS, RATE_PER_S
    from kvplan.gateway.demo_engine import BLOCK_TOKENS

    return fill(
        f"Two made-up engines, each with {BLOCKS} blocks of {BLOCK_TOKENS} tokens and a gateway in front. Both get the "
        f"same {RATE_PER_S * len(CLIENTS):.1f} requests/s, more than they can serve, from clients that retry like "
        f"{', '.join(CLIENTS[:-1])} and {CLIENTS[-1]}. prompt_only admits by what a request is now, worst_case by "
        "prompt + max_tokens. Watch the blocks: reserved by the gateway, used in the engine.",
        80,
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
                    f"{side.elapsed_s:4.0f}s {side.policy:<12} {side.reserved_blocks:>4}/{side.capacity_blocks:<4} "
                    f"{side.used_blocks:>4}/{side.capacity_blocks:<4} {side.refusals:>8} {side.completed:>5} "
                    f"{side.preemptions:>10}\n"
                )

    return tell


def table_of(sides: "Sequence[SideFigures]", seconds: float) -> "Table":
    """The figures of both policies, side by side in 80 columns."""
    from rich.table import Table

    left_s = max(0.0, seconds - sides[0].elapsed_s)
    table = Table(title=f"the same traffic, two policies · {left_s:.0f} s left (Ctrl-C ends it)", box=None)
    table.add_column("blocks")
    for side in sides:
        table.add_column(side.policy, justify="right")
    rows: tuple[tuple[str, Callable[[SideFigures], str]], ...] = (
        ("reserved by the gateway", lambda side: _bar(side.reserved_blocks, side.capacity_blocks)),
        ("used in the engine", lambda side: _bar(side.used_blocks, side.capacity_blocks)),
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


def _bar(part: int, whole: int) -> str:
    filled = min(_BAR, round(_BAR * part / whole))
    return f"{'█' * filled}{'·' * (_BAR - filled)} {part:>4}/{whole}"


def _verdict(sides: "Sequence[SideFigures]") -> str:
    told = [
        f"{side.policy}: {side.completed} answers, {side.refusals} refusals, {side.preemptions} preemptions"
        f" ({side.recomputed_tokens:,} tokens redone)\n"
        for side in sides
    ]
    hidden = "answers stop midway and start over" if any(side.preemptions for side in sides) else "requests wait there"
    why = fill(
        f"prompt_only takes the overload into the engine: {hidden}. worst_case refuses it at the door, at once, with a "
        "time to come back; memory kept for answers that end early is its price (kvplan simulate weighs the two).",
        80,
    )
    return "".join(
        ["\n", *told, f"\n{why}\n", "Next: kvplan gateway --upstream URL --traffic FILE · kvplan explain ledger\n"]
    )
