"""`shardio erase`: remove records for good, and expire every earlier version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Command, Option, Value
from shardio.cli._commands._delete import print_removed, record_params, remove_by
from shardio.cli._describe import DRY_RUN
from shardio.cli._signature import Takes
from shardio.display import size

if TYPE_CHECKING:
    from shardio.cli._console import Console
    from shardio.lifecycle import EraseReport
    from shardio.storage import CacheOptions


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


def _cache(folder: str) -> CacheOptions:
    from shardio.storage import CacheOptions

    return CacheOptions(folder, max_bytes=1)


COMMAND = Command(
    name="erase",
    summary="erase records for good, with every earlier version",
    takes=(
        *record_params("shardio:erase", "rows"),
        Option(["--cache"], metavar="DIR", type=Value(_cache), help="a local block cache that is emptied"),
        Takes("shardio:erase", without=("features",)),
    ),
    run=remove_by("shardio:erase", _print),
    examples={
        "shardio erase s3://bucket/birds 17 --split train --dry-run": "what would be erased",
        "shardio erase s3://bucket/birds --key bird-7-5": "by key; then `shardio gc`",
    },
)
