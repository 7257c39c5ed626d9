"""`shardio pack`: documents become rows of one length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, DAMAGE, Console
from shardio.cli._describe import DRY_RUN
from shardio.cli._given import reported

if TYPE_CHECKING:
    from shardio.convert import PackDatasetReport


def _code(report: PackDatasetReport) -> int:
    return DAMAGE if any(each.records_skipped for each in report.splits.values()) else CLEAN


def _print(console: Console, report: PackDatasetReport) -> None:
    for name, each in report.splits.items():
        for bad in each.skipped:
            console.line(f"left out: split {name}, {bad.where}: {bad.reason}")
    done = f"is at version {report.version}" if not report.dry_run else f"would hold these; {DRY_RUN}"
    console.line(f"{report.url} {done}")
    for name, each in report.splits.items():
        console.line(f"  {name}: {each}")


COMMAND = Command(
    name="pack",
    summary="pack documents into rows of one length",
    takes=(Takes("shardio:pack_dataset", without=("splits",), places=("source", "url")),),
    run=reported("shardio:pack_dataset", _print, _code),
    examples={
        "shardio pack documents rows --length 4096 --cut": "longer documents become several pieces",
        "shardio pack s3://bucket/documents s3://bucket/rows --length 2048 --features tokens": "one feature",
    },
)
