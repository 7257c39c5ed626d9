"""`shardio bench`: how fast this dataset is read on this machine, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import READING, Given
from shardio.cli._plots import Plot, bars, check_plot, plot_bench
from shardio.display import count, size

if TYPE_CHECKING:
    from shardio.streaming import BenchReport

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


def _run(
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
    console.report(report, lambda: _print(console, report))
    return CLEAN


def _print(console: Console, report: BenchReport) -> None:
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


COMMAND = Command(
    name="bench",
    summary="measure how fast this dataset is read from this machine",
    takes=(
        Takes("shardio:open", only=("url", "features")),
        Takes("shardio:bench", without=("ds",)),
        READING,
    ),
    run=_run,
    examples={
        "shardio bench s3://bucket/birds --split train": "rates of each stage, and what a record costs",
        "shardio bench birds --seconds 30 --plot bench.svg": "longer, and as a figure",
    },
)
