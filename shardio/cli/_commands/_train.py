"""Commands to train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from shardio.cli._command import Takes, command
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import OPENING, READING, Given
from shardio.cli._plots import Plot, bars, check_plot, plot_bench, plot_order
from shardio.cli._values import Rank, Slice, Urls, Whole
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardio.order import Mixing, Plan
    from shardio.reader import DatasetReader
    from shardio.streaming import AuditedRecord, BenchReport, Mix, PlanReport


_PLOTTED_STEPS = 256


_SHAPE = ("ranks", "workers", "chunk_rows", "interleave", "window")


@command(
    "show what an epoch costs: requests, bytes, memory, and how well it shuffles",
    Takes("shardio:StreamOptions", only=("remainder", "shuffle", "mixing")),
    Takes("shardio:plan_report", only=("workers",)),
    Takes("shardio:Plan", prefix="plan_"),
    OPENING,
    examples={
        "shardio plan s3://bucket/birds --split train --global-batch 256 --ranks 8": "8 processes",
        "shardio plan birds --global-batch 256 --plot order.svg": "where the records of each step are",
        "shardio plan books web --weights 0.7 0.3 --global-batch 512 --ranks 16": "a mixture",
    },
)
def plan(  # noqa: PLR0913 - what a run is given
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
    data = _data_plan(given, urls, weights)
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


def _data_plan(given: Given, urls: list[str], weights: list[float] | None) -> DatasetReader | Mix:
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
        "requests": f"about {count(figures.requests)} an epoch, and as many small ones to the indexes"
        if figures.requests
        else "none: the shards are local files",
        "fetched": f"about {size(figures.fetched_bytes)} an epoch",
    }
    rows |= {
        "mixing": _mixing(figures.mixing, figures.rank_mixing if given.world_size > 1 else None),
        "memory": f"at most {size(figures.memory_bytes)} in a process, beside its batches",
        "scratch": "none: open chunks are held in memory"
        if figures.scratch is None
        else f"{size(figures.scratch_bytes)} in a file of each process, in {figures.scratch}",
        "shuffled": f"among {plural(figures.shuffle_radius, 'record')}",
    }
    return list(rows.items())


def _mixing(job: Mixing, rank: Mixing | None) -> str:
    """Return how batches of sorted records compare with random ones, in the job and within one rank."""
    said = f"of records sorted by 1,000 labels, a batch has {job.distinct:.0%} of the labels of a random one"
    if not job.lags:
        return said
    later = plural(job.lags, "batch", "batches")
    said += f", and labels repeat {job.recurrence:.2f}x as often as chance in the next {later}"
    return said if rank is None else f"{said} ({rank.recurrence:.2f}x within one rank)"


_SHORT = 0.1  # seconds, within which the clock and the machine say more than the dataset


_WHAT = {
    "first": "first pass, with checks",
    "read": "read, no checks",
    "verify": "read and verify",
    "decode": "and decode",
    "batch": "shuffled batches, one thread",
    "stream": "shuffled batches, {threads} threads",
    "lookup": "records at random positions",
}


@command(
    "measure how fast this dataset is read from this machine",
    Takes("shardio:open", only=("url", "features")),
    Takes("shardio:bench", without=("ds",)),
    READING,
    examples={
        "shardio bench s3://bucket/birds --split train": "rates of each stage, and what a record costs",
        "shardio bench birds --seconds 30 --plot bench.svg": "longer, and as a figure",
    },
)
def bench(
    given: Given,
    console: Console,
    *,
    decode_images: Annotated[bool, Parameter(help="decode images to pixels")] = False,
    plot: Plot = None,
) -> int:
    import shardio
    from shardio.reader import open_split

    if plot is not None:
        check_plot(plot)
    decode = {"decode": "image"} if decode_images else {}
    ds = open_split(**given.options(shardio.open), **decode)
    report = given.call(shardio.bench, ds)
    if plot is not None and plot != "-":
        plot_bench(report, plot)
    console.report(report, lambda: _print_bench(console, report))
    return CLEAN


def _print_bench(console: Console, report: BenchReport) -> None:
    sample = f", measured on the first {count(report.sample)}" if report.sample < report.records else ""
    console.line(f"{count(report.records)} records{sample}; batches of {count(report.global_batch)}")
    rates = [
        (
            _WHAT[stage.name].format(threads=report.num_threads),
            stage.records_per_second,
            f"{stage.records_per_second:,.0f}/s  {size(round(stage.bytes_per_second))}/s",
        )
        for stage in report.stages
    ]
    for line in bars(rates, width=console.width):
        console.line(line)
    console.line()
    console.line("a record costs one thread")
    costs = [(name, cost, f"{cost:,.2f} µs") for name, cost in report.microseconds.items()]
    for line in bars(costs, width=console.width):
        console.line(line)
    if min(stage.seconds for stage in report.stages) < _SHORT:
        console.note(
            f"passes of less than {_SHORT} s tell little: one may seem faster than what it is a part of"
        )
    console.note("what was read before may come from memory: the first pass tells whether it did")


_STATE = "what state_dict() returned, as JSON"


@command(
    "list the records of a training step, from a saved state",
    OPENING,
    examples={
        "shardio audit s3://bucket/birds --state state.json --step 1200": "position, shard and row of each",
        "shardio audit s3://bucket/birds --state state.json --step 1200 --rank 3/8": "one rank's share",
        "shardio audit books web --state state.json --step 7": "of a mixture, its datasets in order",
    },
)
def audit(
    given: Given,
    console: Console,
    urls: Urls,
    *,
    state: Annotated[
        str, Parameter(allow_leading_hyphen=True, help=f"file of {_STATE}; - reads it from the pipe")
    ],
    step: Annotated[Whole, Parameter(help="step of the state's epoch, from 0")],
    rank: Annotated[Rank | None, Parameter(help="the share of one rank of N; default: all")] = None,
    records: Slice = None,
) -> int:
    import shardio

    saved = _read_state(given, state)
    number, ranks = rank or (0, 1)
    data = _data_audit(given, saved)
    found = shardio.audit(data, saved, step, rank=number, world_size=ranks)
    if console.json:
        facts = {"urls": urls, "epoch": saved["epoch"], "step": step, "rank": number}
        console.document({**facts, "world_size": ranks, "records": [record._asdict() for record in found]})
        return CLEAN
    _print_audit(console, found, mixed=len(urls) > 1)
    who = f", rank {number} of {ranks}" if ranks > 1 else ""
    console.note(f"epoch {saved['epoch']}, step {count(step)}{who}: {plural(len(found), 'record')}")
    return CLEAN


def _print_audit(console: Console, records: list[AuditedRecord], *, mixed: bool) -> None:
    rows = []
    for record in records:
        row = (count(record.position), record.shard, count(record.row), "" if record.valid else "filled up")
        rows.append((str(record.source), *row) if mixed else row)
    head = ("position", "shard", "row", "")
    console.table(rows, head=("source", *head) if mixed else head, right=(0, 1, 3) if mixed else (0, 2))


def _read_state(given: Given, file: str) -> dict[str, Any]:
    state = given.read_json(file, _STATE)
    if not isinstance(state, dict):
        message = f"{file} holds no state: expected {_STATE}, found {type(state).__name__}"
        raise ValueError(message)  # noqa: TRY004 - the text is wrong, not its type
    return state


def _data_audit(given: Given, state: dict[str, Any]) -> DatasetReader | Mix:
    """Open the datasets as the state says, where the command line says nothing else."""
    import shardio

    named = state.get("datasets")
    entries = named if isinstance(named, list) else []
    readers = []
    for number, url in enumerate(given.urls):
        entry = entries[number] if number < len(entries) and isinstance(entries[number], dict) else {}
        readers.append(given.open(url, split=entry.get("split"), version=entry.get("version")))
    # Which shares they have is in the state.
    return readers[0] if len(readers) == 1 else shardio.mix([(reader, 1) for reader in readers])
