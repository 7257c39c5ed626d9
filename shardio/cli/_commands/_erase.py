"""`shardio erase`: remove records for good, and expire every earlier version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Command, Takes
from shardio.cli._commands._delete import print_removed, remove_by
from shardio.cli._describe import DRY_RUN
from shardio.display import plural, size

if TYPE_CHECKING:
    from shardio.cli._console import Console
    from shardio.lifecycle import EraseReport


def _print(console: Console, report: EraseReport) -> None:
    print_removed(console, report, "erased", "would erase")
    if report.dry_run or report.version is None:
        console.line(DRY_RUN if report.dry_run else "there was nothing to do")
    else:
        console.line(f"this is version {report.version}")
    if report.expired_versions:
        console.line(f"expired versions: {', '.join(map(str, report.expired_versions))}")
    if report.dropped_tags:
        console.line(f"dropped tags: {', '.join(report.dropped_tags)}")
    for key, stored in report.pending_gc.items():
        console.line(f"may hold the bytes until `shardio gc {report.url} --yes`: {key}  ({size(stored)})")
    for url in report.external_copies:
        console.line(f"may hold the bytes, and is not the dataset's to remove: {url}")
    for key, records in report.lost_for_good.items():
        console.line(f"{plural(records, 'record')} that a repair lost can't come back from a mirror: {key}")


COMMAND = Command(
    name="erase",
    summary="erase records for good, with every earlier version",
    takes=(Takes("shardio:erase", without=("rows", "features")),),
    run=remove_by("shardio:erase", "rows", _print),
    examples={
        "shardio erase s3://bucket/birds 17 --split train --dry-run": "what would be erased",
        "shardio erase s3://bucket/birds --key bird-7-5": "by key; then `shardio gc`",
    },
)
