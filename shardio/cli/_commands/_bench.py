"""`shardio bench`: how fast this dataset is read on this machine, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.cli._command import WHOLE, Command, Option, flag
from shardio.cli._console import CLEAN
from shardio.cli._options import ENGINE, READING, STORAGE, open_dataset, url_argument
from shardio.cli._plots import bars, check_plot, plot_bench, plot_option
from shardio.display import count, size

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console
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


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    if arguments.plot is not None:
        check_plot(arguments.plot)
    ds = open_dataset(arguments, arguments.url, **_decoding(arguments))
    report = shardio.bench(
        ds,
        global_batch=arguments.global_batch,
        seconds=arguments.seconds,
        num_threads=arguments.num_threads,
    )
    if arguments.plot not in (None, "-"):
        plot_bench(report, arguments.plot)
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


def _decoding(arguments: SimpleNamespace) -> dict[str, Any]:
    found: dict[str, Any] = {"decode": "image"} if arguments.decode_images else {}
    if arguments.features:
        found["features"] = [name for name in arguments.features.split(",") if name]
    return found


_PARAMS = (
    url_argument(),
    Option(
        ["--seconds"], type=float, default=10.0, metavar="S", help="time for all stages together; default 10"
    ),
    Option(
        ["--global-batch"],
        type=WHOLE,
        default=256,
        metavar="G",
        help="records of a batch; default 256",
    ),
    Option(["--num-threads"], type=WHOLE, default=2, metavar="N", help="threads of the stream; default 2"),
    Option(["--features"], metavar="A,B", help="decode only these"),
    flag("--decode-images", "decode images to pixels"),
    plot_option("rates and costs"),
    *READING,
    *STORAGE,
    ENGINE,
)

COMMAND = Command(
    name="bench",
    summary="measure how fast this dataset is read from this machine",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio bench s3://bucket/birds --split train": "rates of each stage, and what a record costs",
        "shardio bench birds --seconds 30 --plot bench.svg": "longer, and as a figure",
    },
)
