"""`shardio cache clear`: empty a local cache of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardio.cli._command import Argument, Command, PlaceParam
from shardio.cli._console import CLEAN
from shardio.display import plural, size

if TYPE_CHECKING:
    from shardio.cli._console import Console
    from shardio.cli._given import Given


def _run(given: Given, console: Console) -> int:
    from shardio.storage import BlockCache, CacheOptions

    removed = BlockCache(CacheOptions(given.dir, max_bytes=1)).clear()
    if console.json:
        console.document({"folder": removed.folder, "blocks": removed.entries, "bytes": removed.num_bytes})
    else:
        what = f"{plural(removed.entries, 'block')}, {size(removed.num_bytes)}"
        console.line(f"removed {what} from {removed.folder}")
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
    ),
    run=_run,
    examples={"shardio cache clear /scratch/blocks": "the folder that CacheOptions was given"},
)
