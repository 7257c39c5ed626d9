"""`shardio tag`: names for versions, which keep them from expiring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.cli._command import Argument, Command, flag
from shardio.cli._console import CLEAN
from shardio.cli._describe import DRY_RUN
from shardio.cli._options import CHANGE, VERSION, storage_options, url_argument

if TYPE_CHECKING:
    from types import SimpleNamespace

    from shardio.cli._console import Console


def _run(arguments: SimpleNamespace, console: Console) -> int:
    import shardio

    options = storage_options(arguments)
    if arguments.name is None:
        if arguments.delete or arguments.move or arguments.dry_run or arguments.version_number is not None:
            raise ValueError("name the tag that is meant: shardio tag URL NAME")
        found = shardio.tags(arguments.url, storage_options=options)
        if console.json:
            console.document({"url": arguments.url, "tags": found})
        else:
            console.table([(name, f"version {number}") for name, number in found.items()])
        return CLEAN
    if arguments.delete:
        if arguments.move or arguments.version_number is not None:
            raise ValueError("--delete takes a tag away, whatever version it names")
        number = shardio.untag(
            arguments.url, arguments.name, dry_run=arguments.dry_run, storage_options=options
        )
        done = "removed"
    else:
        tagged = shardio.tag(
            arguments.url,
            arguments.name,
            arguments.version_number,
            move=arguments.move,
            dry_run=arguments.dry_run,
            storage_options=options,
        )
        number, done = tagged.number, "set"
    if console.json:
        facts = {"url": arguments.url, "tag": arguments.name, "version": number}
        console.document({**facts, "done": done, "dry_run": arguments.dry_run})
        return CLEAN
    if done == "set":
        console.line(f"{arguments.name} {'would be' if arguments.dry_run else 'is'} version {number}")
    else:
        removed = "would remove" if arguments.dry_run else "removed"
        console.line(f"{removed} the tag {arguments.name} of version {number}")
    if arguments.dry_run:
        console.line(DRY_RUN)
    return CLEAN


_PARAMS = (
    url_argument(),
    Argument(["name"], required=False, metavar="NAME", help="the tag; without it, list all tags"),
    VERSION,
    flag("--move", "take the tag from the version that it names"),
    flag("--delete", "remove the tag; its version stays"),
    *CHANGE,
)

COMMAND = Command(
    name="tag",
    summary="name a version so that it does not expire, or list the names",
    params=_PARAMS,
    run=_run,
    examples={
        "shardio tag s3://bucket/birds paper-2026 --version 41": "from now on --version paper-2026 reads it",
        "shardio tag s3://bucket/birds": "all tags",
    },
)
