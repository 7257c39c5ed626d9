"""`shardio compact`: merge small shards, leave deleted rows out, in a new version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Command, Takes
from shardio.cli._describe import DRY_RUN
from shardio.cli._given import reported
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from shardio.cli._console import Console
    from shardio.lifecycle import CompactReport


def _print(console: Console, report: CompactReport) -> None:
    console.table(
        [
            ("  shards", count(report.shards_before), count(report.shards_after)),
            ("  stored", size(report.bytes_before), size(report.bytes_after)),
            ("  requests of an epoch", count(report.requests_before), count(report.requests_after)),
        ],
        head=("", "before", "after (estimate)" if report.dry_run else "after"),
        right=(1, 2),
    )
    if report.skipped_shards:
        console.line(f"skipped: {plural(report.skipped_shards, 'shard')} that others wrote (see --adopted)")
    if report.dry_run:
        more = DRY_RUN if report.records else "there is nothing to gain"
        console.line(f"to rewrite: {plural(report.records, 'record')}; {more}")
    elif report.version is None:
        console.line("there was nothing to gain")
    else:
        console.line(
            f"rewrote {plural(report.records, 'record')}, left out {count(report.dropped)} deleted; "
            f"this is version {report.version}; `shardio gc` removes the old shards with their versions"
        )


COMMAND = Command(
    name="compact",
    summary="merge small shards and drop deleted records, in a new version",
    takes=(Takes("shardio:compact", choices={"compression": ("same", "zstd", "gzip", "zlib")}),),
    run=reported("shardio:compact", _print),
    examples={
        "shardio compact s3://bucket/birds --dry-run": "what would be gained",
        "shardio compact s3://bucket/birds --compression zstd": "merged, and compressed",
    },
)
