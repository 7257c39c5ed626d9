"""`shardio compact`: merge small shards, leave deleted rows out, in a new version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardio.cli._command import WHOLE, Command, Option, flag
from shardio.cli._console import CLEAN
from shardio.cli._describe import DRY_RUN
from shardio.cli._options import (
    CHANGE,
    allow_roots,
    allowed_roots_option,
    storage_options,
    url_argument,
    workers_option,
)
from shardio.display import count, plural, size

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console
    from shardio.lifecycle import CompactReport

_COMPRESSIONS = ("same", "none", "zstd", "gzip", "zlib")


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    given = {"shard_bytes": arguments.shard_bytes, "block_bytes": arguments.block_bytes}
    with console.progress("compact") as progress:
        report = shardio.compact(
            arguments.url,
            arguments.split,
            compression=None if arguments.compression == "none" else arguments.compression,
            adopted=arguments.adopted,
            workers=arguments.workers,
            dry_run=arguments.dry_run,
            progress=progress,
            allow_roots=allow_roots(arguments),
            storage_options=storage_options(arguments),
            **{name: value for name, value in given.items() if value is not None},
        )
    console.report(report, lambda: _print(console, report))
    return CLEAN


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


_PARAMS = (
    url_argument(),
    Option(["--split"], metavar="NAME", group="dataset", help="one split; default: all"),
    Option(
        ["--shard-bytes"],
        type=WHOLE,
        metavar="BYTES",
        help="stored bytes of a shard; default: 256 MiB",
    ),
    Option(["--compression"], type=click.Choice(_COMPRESSIONS), default="same", help="default: same"),
    Option(["--block-bytes"], type=WHOLE, metavar="BYTES", help="decoded bytes of a block; default: as is"),
    flag("--adopted", "copy shards that others wrote into the dataset, too"),
    workers_option(),
    allowed_roots_option(),
    *CHANGE,
)

COMMAND = Command(
    name="compact",
    summary="merge small shards and drop deleted records, in a new version",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio compact s3://bucket/birds --dry-run": "what would be gained",
        "shardio compact s3://bucket/birds --compression zstd": "merged, and compressed",
    },
)
