"""``--plot``: the pool over time, a panel per strategy, as PNG, SVG or PDF (extra ``plot``)."""

from pathlib import Path

from kvplan.errors import InputError
from kvplan.report.simulation_text import setting_line
from kvplan.simulation.results import Simulation

_KINDS = (".png", ".svg", ".pdf")


def draw(result: Simulation, path: Path) -> None:
    """Write the figure to ``path``; InputError for a kind that is not known, or without Matplotlib."""
    if path.suffix.lower() not in _KINDS:
        raise InputError(f"{path} is no picture", hint=f"name it {', '.join(f'*{kind}' for kind in _KINDS)}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise InputError(
            "--plot needs Matplotlib, which is not installed", hint="pip install 'kvplan[plot]'"
        ) from error
    shown = [strategy for strategy in result.strategies if strategy.samples is not None]
    figure = Figure(figsize=(9, 1.2 + 1.7 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(setting_line(result), fontsize=10)
    panels = figure.subplots(max(1, len(shown)), 1, sharex=True, sharey=True, squeeze=False)
    pool = result.plant.usable * result.plant.replicas
    for panel, strategy in zip(panels[:, 0], shown, strict=False):
        assert strategy.samples is not None
        panel.plot(strategy.samples.time_s, strategy.samples.used_blocks, linewidth=1.2, label="blocks in use")
        capacity = strategy.ledger_capacity
        if capacity is not None and capacity <= pool and strategy.samples.reserved.any():
            panel.plot(strategy.samples.time_s, strategy.samples.reserved, "--", linewidth=0.9, label="blocks reserved")
        panel.axhline(pool, color="0.6", linewidth=0.8)
        panel.set_title(strategy.name, fontsize=9, loc="left")
        panel.set_ylabel("blocks")
    panels[-1, 0].set_xlabel("seconds")
    panels[0, 0].legend(fontsize=8, frameon=False, loc="upper right")
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", hint="name another file", file=str(path)) from error
