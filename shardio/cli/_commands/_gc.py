"""`shardio gc`: remove what only expired versions and abandoned sessions hold; a dry run unless told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Command, Takes
from shardio.cli._given import reported
from shardio.display import plural, size

if TYPE_CHECKING:
    from shardio.catalog import GcReport
    from shardio.cli._console import Console


def _print(console: Console, report: GcReport) -> None:
    _print_doomed(console, report)
    if report.temporaries:
        left = sum(info.size for info in report.temporaries)
        files = plural(len(report.temporaries), "temporary file")
        console.line(f"left by interrupted writes: {files}, {size(left)}")
    for note in report.unlisted:
        console.line(note)
    _print_end(console, report)


def _print_doomed(console: Console, report: GcReport) -> None:
    for info in report.doomed:
        console.line(f"{'would delete' if report.dry_run else 'deleted'}  {info.key}  ({size(info.size)})")
    if report.expired_versions:
        console.line(f"expired versions: {', '.join(map(str, report.expired_versions))}")
    if report.unclaimed:
        console.line("in no version, still being written or given up (--abandon SESSION removes it):")
        console.table([(f"  {name}", size(amount)) for name, amount in sorted(report.unclaimed.items())])


def _print_end(console: Console, report: GcReport) -> None:
    doomed = f"{plural(len(report.doomed), 'object')}, {size(report.reclaimable_bytes)}"
    if report.dry_run:
        more = "; nothing was changed, --yes does it" if report.doomed else ""
        console.line(f"to delete: {doomed}{more}")
    elif report.version is None:
        console.line("there was nothing to do")
    else:
        console.line(f"deleted: {report.deleted} of {doomed}; this is version {report.version}")


COMMAND = Command(
    name="gc",
    summary="remove what only expired versions and abandoned sessions use",
    takes=(Takes("shardio:gc"),),
    run=reported("shardio:gc", _print),
    examples={
        "shardio gc s3://bucket/birds --keep 3": "what would go if the latest 3 versions stayed",
        "shardio gc s3://bucket/birds --keep 3 --yes": "remove it",
    },
)
