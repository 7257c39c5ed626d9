"""`shardio pack`: documents become rows of one length."""

from __future__ import annotations

from shardio.cli._command import Command
from shardio.cli._console import CLEAN, DAMAGE, Console
from shardio.cli._describe import DRY_RUN
from shardio.cli._given import Given
from shardio.cli._signature import Takes


def _run(given: Given, console: Console) -> int:
    import shardio

    with console.progress("pack") as progress:
        report = given.call(shardio.pack_dataset, progress=progress)
    skipped = sum(each.records_skipped for each in report.splits.values())
    if console.json:
        console.document(report.to_dict())
        return DAMAGE if skipped else CLEAN
    for name, each in report.splits.items():
        for bad in each.skipped:
            console.line(f"left out: split {name}, {bad.where}: {console.in_flags(bad.reason)}")
    done = f"is at version {report.version}" if not report.dry_run else f"would hold these; {DRY_RUN}"
    console.line(f"{report.url} {done}")
    for name, each in report.splits.items():
        console.line(f"  {name}: {each}")
    return DAMAGE if skipped else CLEAN


COMMAND = Command(
    name="pack",
    summary="pack documents into rows of one length",
    takes=(Takes("shardio:pack_dataset", without=("splits",), places=("source", "url")),),
    run=_run,
    examples={
        "shardio pack documents rows --length 4096 --cut": "longer documents become several pieces",
        "shardio pack s3://bucket/documents s3://bucket/rows --length 2048 --features tokens": "one feature",
    },
)
