"""`shardio plan`: before a run, what an epoch will cost, and how well it is shuffled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import OPENING, Given
from shardio.cli._plots import Plot, check_plot, plot_order
from shardio.cli._values import Slice, Urls, Whole
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardio.order import Mixing, Plan
    from shardio.reader import DatasetReader
    from shardio.streaming import Mix, PlanReport

_PLOTTED_STEPS = 256
_SHAPE = ("ranks", "workers", "chunk_rows", "interleave", "window")


def _run(  # noqa: PLR0913 - what a run is given
    given: Given,
    console: Console,
    urls: Urls,
    *,
    global_batch: Annotated[Whole, Parameter(help="records of a step, all ranks")],
    world_size: Annotated[Whole, Parameter(name="--ranks", help="processes that train")] = 1,
    memory_bytes: Annotated[
        Whole | None, Parameter(name="--memory", help="what a process may hold beside its batches")
    ] = None,
    scratch: Annotated[
        str,
        Parameter(
            metavar="auto|FOLDER|no", help="local disk for open chunks that do not fit in memory; no: none"
        ),
    ] = "auto",
    weights: Annotated[
        list[float] | None,
        Parameter(consume_multiple=True, negative=(), help="of a mixture, one a dataset"),
    ] = None,
    stop: Annotated[Literal["first", "all"] | None, Parameter(help="when a mixture ends")] = None,
    plot: Plot = None,
    records: Slice = None,
) -> int:
    import shardio

    # The split is opened before it is streamed: several datasets are a mixture.
    options = given.options(shardio.StreamOptions) | {"plan": _plan(given), "split": None}
    options["world_size"] = world_size
    if scratch == "no":
        options["scratch"] = False
    data = _data(given, urls, weights)
    plans = shardio.stream(data, **options).order.plans
    if plot is not None:
        check_plot(plot)
    figures, advice = shardio.plan_report(data, workers=given.workers, **options)
    if console.json:
        shapes = [plan.to_dict() for plan in plans]
        if plot is not None:
            plot_order(_places(data, options), figures, plot, console)
        console.document({"urls": urls, "plans": shapes, **figures.to_dict(), "advice": advice})
        return CLEAN
    console.table(_lines(figures, given))
    for plan in plans:
        console.line("plan: " + ", ".join(f"{name} {count(value)}" for name, value in plan.to_dict().items()))
    if plot is not None:
        plot_order(_places(data, options), figures, plot, console)
    for line in advice:
        console.note(line)
    return CLEAN


def _places(data: DatasetReader | Mix, options: Mapping[str, Any]) -> tuple[list[list[float]], int]:
    """Return where in storage the records of the first steps are, 0 to 1, and how many steps there are."""
    import numpy as np

    import shardio

    stream = shardio.stream(data, **options)
    schedule = stream.order.schedule(0, options["global_batch"])
    rows = [source.sizes.total_rows for source in stream.order.sources]
    before, total = np.concatenate([[0], np.cumsum(rows)]), sum(rows)
    found = []
    for step in range(min(_PLOTTED_STEPS, schedule.stop)):
        batch = schedule.batch(step)
        found.append(((before[batch.sources] + batch.positions) / total).tolist())
    return found, schedule.stop


def _data(given: Given, urls: list[str], weights: list[float] | None) -> DatasetReader | Mix:
    import shardio

    readers = [given.open(url) for url in urls]
    weights = weights or ([1.0] * len(readers) if len(readers) > 1 else [])
    if len(weights) != len(readers) and (weights or len(readers) > 1):
        raise ValueError(f"{len(weights)} --weights for {len(readers)} datasets: give one for each")
    if not weights:
        return readers[0]
    return given.call(shardio.mix, list(zip(readers, weights, strict=True)))


def _plan(given: Given) -> Plan | None:
    import shardio

    typed = {name: getattr(given, f"plan_{name}") for name in _SHAPE}
    named = {name: value for name, value in typed.items() if value is not None}
    return shardio.Plan(**named) if named else None


def _lines(figures: PlanReport, given: Given) -> list[tuple[str, str]]:
    how = plural(given.workers, "worker") if given.workers else "threads"
    who = f"{plural(given.world_size, 'rank')} x {how}"
    rows: dict[str, Any] = {
        "run": f"{who}, global batch {count(given.global_batch)}",
        "epoch": f"{plural(figures.records, 'record')} in {plural(figures.steps, 'step')}, "
        f"{size(figures.epoch_bytes)}",
        "requests": f"about {count(figures.requests)} an epoch, and as many small ones to the indexes",
        "fetched": f"about {size(figures.fetched_bytes)} an epoch",
    }
    rows |= {
        "mixing": _mixing(figures.mixing),
        "mixing of a rank": _mixing(figures.rank_mixing),
        "memory": f"at most {size(figures.memory_bytes)} in a process, beside its batches",
        "scratch": "none: open chunks are held in memory"
        if figures.scratch is None
        else f"{size(figures.scratch_bytes)} in a file of each process, in {figures.scratch}",
        "shuffled": f"among {plural(figures.shuffle_radius, 'record')}",
    }
    return list(rows.items())


def _mixing(found: Mixing) -> str:
    """Return how batches of sorted records compare with random ones."""
    said = f"a batch of records sorted by 1,000 labels has {found.distinct:.0%} of the labels of a random one"
    if not found.lags:
        return said
    later = plural(found.lags, "batch", "batches")
    return f"{said}; in the next {later} they come again {found.recurrence:.2f} times as often as by chance"


COMMAND = Command(
    name="plan",
    summary="show what an epoch costs: requests, bytes, memory, and how well it shuffles",
    takes=(
        Takes("shardio:StreamOptions", only=("remainder", "shuffle", "mixing")),
        Takes("shardio:plan_report", only=("workers",)),
        Takes("shardio:Plan", prefix="plan_"),
        OPENING,
    ),
    run=_run,
    examples={
        "shardio plan s3://bucket/birds --split train --global-batch 256 --ranks 8": "8 processes",
        "shardio plan birds --global-batch 256 --plot order.svg": "where the records of each step are",
        "shardio plan books web --weights 0.7 0.3 --global-batch 512 --ranks 16": "a mixture",
    },
)
