"""`shardio cache`: fill a local cache of blocks, or empty it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardio.cli._command import WHOLE, Argument, Command, Option, PlaceParam
from shardio.cli._console import CLEAN, Console
from shardio.cli._signature import Takes
from shardio.display import plural, size

if TYPE_CHECKING:
    from shardio.cli._given import Given


def _run(given: Given, console: Console) -> int:
    from shardio.storage import BlockCache, CacheOptions

    if given.action == "fill":
        return _fill(given, console)
    cache = BlockCache(CacheOptions(given.target, max_bytes=1))
    removed = cache.usage() if given.dry_run else cache.clear()
    if console.json:
        facts = {"folder": removed.folder, "blocks": removed.entries, "bytes": removed.num_bytes}
        console.document({**facts, "dry_run": bool(given.dry_run)})
    else:
        what = f"{plural(removed.entries, 'block')}, {size(removed.num_bytes)}"
        console.line(f"{'would remove' if given.dry_run else 'removed'} {what} from {removed.folder}")
    return CLEAN


def _fill(given: Given, console: Console) -> int:
    import shardio

    folder = given.dir or str(Path.home() / ".cache" / "shardio")
    cache = shardio.CacheOptions(folder, given.max_bytes)
    with console.progress("fill") as progress:
        report = given.at(given.target).call(shardio.fill_cache, cache=cache, progress=progress)
    if console.json:
        console.document({**report.to_dict(), "dir": folder})
        return CLEAN
    here = f"{plural(report.shards, 'shard')}, {size(report.stored_bytes)}"
    if report.dry_run:
        console.line(f"{here} would be in {folder}")
    else:
        console.line(f"{here} are in {folder}, {size(report.fetched_bytes)} of them fetched now")
    if report.left_out_shards:
        left = f"{plural(report.left_out_shards, 'shard')}, {size(report.left_out_bytes)}"
        console.note(f"left out, for there is no room for them in --max-bytes: {left}")
    console.note(f"use it with cache=shardio.CacheOptions({folder!r}, {cache.max_bytes})")
    return CLEAN


COMMAND = Command(
    name="cache",
    summary="fill a local cache before a run, or empty it",
    takes=(
        Argument(
            ["action"], metavar="ACTION", type=click.Choice(("fill", "clear")),
            help="fill: read a dataset into it; clear: remove every block",
        ),
        Argument(
            ["target"], metavar="URL|DIR", type=PlaceParam(),
            help="fill: the dataset; clear: folder of the cache, as in CacheOptions(dir)",
        ),
        Option(["--dir"], metavar="DIR", help="fill: folder of the cache (default: ~/.cache/shardio)"),
        Option(
            ["--max-bytes"], metavar="N", type=WHOLE, default=200 << 30, show_default=True,
            help="fill: bytes that the cache may take",
        ),
        Takes("shardio:fill_cache", without=("url", "cache")),
    ),
    run=_run,
    examples={
        "shardio cache fill s3://bucket/birds --split train --dir /scratch/blocks": "run it again to go on",
        "shardio cache clear /scratch/blocks": "the folder that CacheOptions was given",
    },
)  # fmt: skip
