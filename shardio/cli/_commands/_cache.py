"""`shardio cache clear`: empty a local cache of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardio.cli._command import Argument, Command, PlaceParam, flag
from shardio.cli._console import CLEAN
from shardio.display import plural, size

if TYPE_CHECKING:
    from shardio.cli._console import Console
    from shardio.cli._given import Given


def _run(given: Given, console: Console) -> int:
    from shardio.storage import BlockCache, CacheOptions

    cache = BlockCache(CacheOptions(given.dir, max_bytes=1))
    removed = cache.usage() if given.dry_run else cache.clear()
    if console.json:
        facts = {"folder": removed.folder, "blocks": removed.entries, "bytes": removed.num_bytes}
        console.document({**facts, "dry_run": given.dry_run})
    else:
        what = f"{plural(removed.entries, 'block')}, {size(removed.num_bytes)}"
        console.line(f"{'would remove' if given.dry_run else 'removed'} {what} from {removed.folder}")
    return CLEAN


COMMAND = Command(
    name="cache",
    summary="empty a local cache",
    takes=(
        Argument(
            ["action"], metavar="ACTION", type=click.Choice(("clear",)), help="clear: remove every block"
        ),
        Argument(
            ["dir"], metavar="DIR", type=PlaceParam(), help="folder of the cache, as in CacheOptions(dir)"
        ),
        flag("--dry-run", "remove nothing; say what would be removed"),
    ),
    run=_run,
    examples={"shardio cache clear /scratch/blocks": "the folder that CacheOptions was given"},
)
