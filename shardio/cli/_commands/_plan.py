"""`shardio plan`: before a run, what an epoch will cost, and how well it is shuffled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardio.cli._command import WHOLE, Command, Option, flag
from shardio.cli._console import CLEAN
from shardio.cli._options import DATASETS, open_dataset
from shardio.cli._plots import check_plot, plot_option, plot_order
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import SimpleNamespace

    from shardio.cli._console import Console
    from shardio.order import Mixing, Plan, PlanReport
    from shardio.reader import DatasetReader
    from shardio.streaming import Mix

_PLOTTED_STEPS = 256
_SHAPE = ("ranks", "workers", "chunk_rows", "interleave", "chunk_bytes", "window")


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    options = {
        "remainder": arguments.remainder,
        "shuffle": not arguments.no_shuffle,
        "plan": _plan(arguments),
        "memory_bytes": arguments.memory,
        "first_batch_bytes": arguments.first_batch,
        "mixing": arguments.mixing,
        "global_batch": arguments.global_batch,
        "world_size": arguments.ranks,
    }
    data = _data(arguments)
    plans = shardio.stream(data, **options).order.plans
    if arguments.plot is not None:
        check_plot(arguments.plot)
    figures, advice = shardio.plan_report(data, workers=arguments.workers, **options)
    if console.json:
        shapes = [plan.to_dict() for plan in plans]
        if arguments.plot is not None:
            plot_order(_places(data, options), figures, arguments.plot, console)
        console.document({"urls": arguments.urls, "plans": shapes, **figures.to_dict(), "advice": advice})
        return CLEAN
    console.table(_lines(figures, arguments))
    for plan in plans:
        console.line("plan: " + ", ".join(f"{name} {count(value)}" for name, value in plan.to_dict().items()))
    if arguments.plot is not None:
        plot_order(_places(data, options), figures, arguments.plot, console)
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


def _data(arguments: SimpleNamespace) -> DatasetReader | Mix:
    import shardio

    readers = [open_dataset(arguments, url) for url in arguments.urls]
    weights = arguments.weights or ([1.0] * len(readers) if len(readers) > 1 else [])
    if len(weights) != len(readers) and (weights or len(readers) > 1):
        message = f"{len(weights)} --weights for {len(readers)} datasets: give one for each"
        raise ValueError(message)
    if not weights:
        return readers[0]
    return shardio.mix(list(zip(readers, weights, strict=True)), stop=arguments.stop)


def _plan(arguments: SimpleNamespace) -> Plan | None:
    import shardio

    given = {name: getattr(arguments, f"plan_{name}") for name in _SHAPE}
    named = {name: value for name, value in given.items() if value is not None}
    return shardio.Plan(**named) if named else None


def _lines(figures: PlanReport, arguments: SimpleNamespace) -> list[tuple[str, str]]:
    from shardio.order import PRICES

    how = plural(arguments.workers, "worker") if arguments.workers else "threads"
    who = f"{plural(arguments.ranks, 'rank')} x {how}"
    twice = f", {size(figures.bytes_twice)} of them more than once" if figures.bytes_twice else ", each once"
    rows: dict[str, Any] = {
        "run": f"{who}, global batch {count(arguments.global_batch)}",
        "epoch": f"{plural(figures.records, 'record')} in {plural(figures.steps, 'step')}",
        "requests": f"{count(figures.requests)} an epoch, {_rate(figures.requests_per_step)} a step, "
        f"{size(round(figures.request_bytes))} each, and as many small ones to the indexes",
        "read": f"{size(figures.epoch_bytes)} an epoch{twice}",
        "read by a rank": f"{size(figures.rank_bytes)} at most",
        "read for a step": f"{size(round(figures.step_bytes))} by all ranks, on average",
        "first batch": f"after {size(figures.first_batch_bytes)} in "
        f"{plural(figures.first_batch_requests, 'request')} of a rank",
        "at a resume": f"after {size(figures.resume_batch_bytes)} in "
        f"{plural(figures.resume_batch_requests, 'request')}; {size(figures.resume_bytes)} are read again",
    }
    if figures.request_dollars:
        rows |= {
            "cost": f"{_dollars(figures.request_dollars)} for requests of an epoch, and "
            f"{_dollars(figures.transfer_dollars)} if its bytes leave the cloud",
            "prices": f"{PRICES.store}, as listed in {PRICES.listed}",
        }
    rows |= {
        "mixing": _mixing(figures.mixing),
        "mixing of a rank": _mixing(figures.rank_mixing),
        "memory": f"{size(figures.memory_bytes)} in a process: {plural(figures.open_windows, 'window')} of "
        f"{figures.window_rows:,.0f} rows and {size(round(figures.window_bytes))}, and what is read ahead",
        "shuffled": f"among {plural(figures.shuffle_radius, 'record')}",
        "a batch": f"mixes {figures.chunks_per_batch:,.1f} of {plural(figures.chunks, 'chunk')}, "
        f"{figures.shards_per_batch:,.1f} shards",
    }
    return list(rows.items())


def _dollars(amount: float) -> str:
    return f"${amount:,.4f}" if amount < 1 else f"${amount:,.2f}"


def _mixing(found: Mixing) -> str:
    """Return how batches of sorted records compare with random ones."""
    said = f"a batch of records sorted by 1,000 labels has {found.distinct:.0%} of the labels of a random one"
    if not found.lags:
        return said
    later = plural(found.lags, "batch", "batches")
    return f"{said}; in the next {later} they come again {found.recurrence:.2f} times as often as by chance"


def _rate(number: float) -> str:
    """Return a number with at least two digits that say something: few requests a step are not none."""
    return f"{number:.2g}" if number < 10 else f"{number:,.1f}"


_RUN = "the run"
_SHAPE_GROUP = "numbers of the plan to fix; the others are chosen to suit"


def _option(name: str, metavar: str, text: str, group: str = _RUN, **more: Any) -> Option:
    return Option([name], metavar=metavar, type=WHOLE, group=group, help=text, **more)


_PARAMS = (
    _option("--global-batch", "G", "records of a step, all ranks", required=True),
    _option("--ranks", "R", "processes that train; default 1", default=1),
    _option("--workers", "W", "loader processes of each; default 0: threads", default=0),
    Option(
        ["--remainder"], type=click.Choice(("drop", "pad", "keep")), default="drop", group=_RUN,
        help="default: drop",
    ),
    flag("--no-shuffle", "storage order", group=_RUN),
    _option("--memory", "BYTES", "held beside batches; default 512 MiB, 128 of compressed local files"),
    _option("--first-batch", "BYTES", "what it may read before its first batch; default: no bound"),
    Option(
        ["--mixing"], type=click.Choice(("cheap", "default", "best")), default="default", group=_RUN,
        help="fewer requests, or more mixing; default: default",
    ),
    Option(
        ["--weights"], metavar="X...", type=float, several=True, group=_RUN,
        help="of a mixture, one a dataset",
    ),
    Option(
        ["--stop"], type=click.Choice(("first", "all")), group=_RUN,
        help="when a mixture ends; default: first",
    ),
    plot_option("shuffling and mixing"),
    _option("--plan-ranks", "C", "any R that divides it reads each chunk once", group=_SHAPE_GROUP),
    _option("--plan-workers", "T", "any W that divides it, too", group=_SHAPE_GROUP),
    _option("--plan-chunk-rows", "ROWS", "records of a chunk", group=_SHAPE_GROUP),
    _option("--plan-interleave", "J", "chunks of a lane that are read side by side", group=_SHAPE_GROUP),
    _option("--plan-chunk-bytes", "BYTES", "stored bytes of a chunk, of a windowed plan", group=_SHAPE_GROUP),
    _option("--plan-window", "ROWS", "rows among which a window shuffles", group=_SHAPE_GROUP),
    *DATASETS,
)  # fmt: skip

COMMAND = Command(
    name="plan",
    summary="show what an epoch costs: requests, bytes, memory, and how well it shuffles",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio plan s3://bucket/birds --split train --global-batch 256 --ranks 8": "8 processes",
        "shardio plan birds --global-batch 256 --plot order.svg": "where the records of each step are",
        "shardio plan books web --weights 0.7 0.3 --global-batch 512 --ranks 16": "a mixture",
    },
)
