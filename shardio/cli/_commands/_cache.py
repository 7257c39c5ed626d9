"""`shardio cache clear`: empty a local cache of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import CLEAN, Command
from shardio.cli._words import plural, size

if TYPE_CHECKING:
    import argparse

    from shardio.cli._screen import Screen

__all__ = ["COMMAND"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("clear",), help="clear: remove every block")
    parser.add_argument("dir", metavar="DIR", help="folder of the cache, as in CacheOptions(dir)")


def _run(arguments: argparse.Namespace, screen: Screen) -> int:
    from shardio.storage import BlockCache, CacheOptions

    removed = BlockCache(CacheOptions(arguments.dir, max_bytes=1)).clear()
    if screen.json:
        screen.document({"folder": removed.folder, "blocks": removed.entries, "bytes": removed.num_bytes})
    else:
        what = f"{plural(removed.entries, 'block')}, {size(removed.num_bytes)}"
        screen.line(f"removed {what} from {removed.folder}")
    return CLEAN


COMMAND = Command(
    name="cache",
    group="change",
    summary="empty a local cache of blocks",
    add_arguments=_add_arguments,
    run=_run,
)
