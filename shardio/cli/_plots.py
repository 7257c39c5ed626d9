"""Figures of commands: files by matplotlib, which `shardio[plot]` brings, or characters in the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import Parameter

from shardio.arguments import need
from shardio.display import count, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.cli._console import Console
    from shardio.streaming import BenchReport, PlanReport

_TERMINAL = "-"
_ENDINGS = (".png", ".svg", ".pdf")
_FULL, _PARTS = "█", " ▏▎▍▌▋▊▉"
_DENSITY = " ·:+*#"
_COLORS = ("#0b7a75", "#19b5ac", "#e0a458", "#c8553d")
_COLUMNS, _LINES = 64, 16


Plot: TypeAlias = Annotated[
    str | None,
    Parameter(
        metavar="FILE",
        allow_leading_hyphen=True,
        help="draw a .png, .svg or .pdf file (shardio[plot]); - draws in the terminal",
    ),
]


def check_plot(target: str) -> None:
    """Refuse a figure that cannot be drawn, before any computation.

    Raises:
        ValueError: a file of another kind, or in a folder that is not there.
        ImportError: matplotlib is not installed.
    """
    if target == _TERMINAL:
        return
    path = Path(target)
    if path.suffix.lower() not in _ENDINGS:
        raise ValueError(
            f"--plot {target}: a figure is a file that ends in {', '.join(_ENDINGS)}, or - for the terminal"
        )
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--plot {target}: there is no folder {path.absolute().parent}")
    need("--plot FILE (--plot - draws in the terminal)", "shardio[plot]", "matplotlib")


def _bars(rows: Sequence[tuple[str, float, str]], *, width: int) -> list[str]:
    """Return rows of (name, value of at least 0, its text) as lines with bars."""
    most = max((value for _, value, _ in rows), default=0.0)
    names = max((len(name) for name, _, _ in rows), default=0)
    texts = max((len(text) for _, _, text in rows), default=0)
    room = max(8, width - names - texts - 4)
    lines = []
    for name, value, text in rows:
        eighths = round(8 * room * value / most) if most else 0
        bar = _FULL * (eighths // 8) + _PARTS[eighths % 8].strip()
        lines.append(f"{name:<{names}}  {text:>{texts}}  {bar}".rstrip())
    return lines


def plot_bench(report: BenchReport, target: str, console: Console) -> None:
    """Draw rates by stage, and in a file also what a record costs by step."""
    if target == _TERMINAL:
        rows = [
            (each.name, each.records_per_second, f"{each.records_per_second:,.0f}/s")
            for each in report.stages
        ]
        for line in _bars(rows, width=console.width):
            console.line(line)
        return
    figure = _figure(
        2, f"{report.url} version {report.version}, {report.split}: {count(report.records)} records"
    )
    above, below = figure.subplots(2, 1, height_ratios=[3, 1])
    stages = report.stages[::-1]
    rates = [stage.records_per_second for stage in stages]
    above.barh([stage.name for stage in stages], rates, color=_COLORS[0])
    for number, stage in enumerate(stages):
        said = f" {stage.records_per_second:,.0f}/s, {size(round(stage.bytes_per_second))}/s"
        above.text(rates[number], number, said, va="center", fontsize=8)
    above.set_xlim(0, 1.35 * max(rates))
    above.set_xlabel("records a second")
    left = 0.0
    for color, (name, cost) in zip(_COLORS, report.microseconds.items(), strict=True):
        below.barh(["a record"], [cost], left=left, color=color, label=f"{name} {cost:,.1f} µs")
        left += cost
    below.set_xlabel("microseconds of one thread")
    below.legend(loc="upper center", bbox_to_anchor=(0.5, -0.6), ncols=4, fontsize=8, frameon=False)
    _save(figure, target)


def plot_order(
    places: tuple[list[list[float]], int], figures: PlanReport, target: str, console: Console
) -> None:
    """Draw the storage position of the records of each step, and how well they are mixed."""
    steps, total = places
    share = min(1, figures.shuffle_radius / max(1, figures.records))
    mixing = (
        f"shuffled among {count(figures.shuffle_radius)} of {count(figures.records)} records ({share:.0%}); "
        f"a batch has {figures.mixing.distinct:.0%} of the labels of a random one"
    )
    if target == _TERMINAL:
        for line in _scatter(steps, total):
            console.line(line)
        console.line(mixing)
        return
    figure = _figure(1, mixing)
    axes = figure.subplots()
    numbers = [step for step, found in enumerate(steps) for _ in found]
    axes.scatter(numbers, [place for found in steps for place in found], s=1, color=_COLORS[0], linewidths=0)
    axes.set_xlabel(f"step (of {count(total)})")
    axes.set_ylabel("place in storage, 0 first, 1 last")
    axes.set_ylim(0, 1)
    _save(figure, target)


def _save(figure: Any, target: str) -> None:
    """Write a figure; one that cannot be drawn leaves what was there."""
    from shardio.storage import files_of_callers

    path = Path(target)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:])
    with files_of_callers(path):
        path.write_bytes(drawn.getvalue())


def _scatter(steps: Sequence[Sequence[float]], total: int) -> list[str]:
    """Return steps from left to right, places in storage from top to bottom, darker where there are more."""
    cells = [[0] * _COLUMNS for _ in range(_LINES)]
    for step, found in enumerate(steps):
        column = step * _COLUMNS // max(1, len(steps))
        for place in found:
            cells[min(_LINES - 1, int(place * _LINES))][column] += 1
    most = max(map(max, cells)) or 1
    shades = len(_DENSITY) - 1
    lines = ["".join(_DENSITY[-(-each * shades // most)] for each in row).rstrip() for row in cells]
    return [
        "first record of storage",
        *(f"  |{line}" for line in lines),
        f"last   step 0 to {count(len(steps))} of {count(total)}",
    ]


def _figure(rows: int, title: str) -> Any:
    # A figure of its own: pyplot would choose a window system and keep what it has drawn.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2 + 1.6 * rows), layout="constrained")
    figure.suptitle(title, fontsize=9)
    return figure
