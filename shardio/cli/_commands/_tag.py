"""`shardio tag`: names for versions, which keep them from expiring."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import DRY_RUN
from shardio.cli._given import Given


def _run(
    given: Given,
    console: Console,
    name: Annotated[str | None, Parameter(help="the tag; without it, list all tags")] = None,
    *,
    delete: Annotated[bool, Parameter(help="remove the tag; its version stays")] = False,
) -> int:
    import shardio

    if name is None:
        if delete or given.move or given.dry_run or given.version is not None:
            raise ValueError("name the tag that is meant: shardio tag URL NAME")
        found = given.call(shardio.tags)
        if console.json:
            console.document({"url": given.url, "tags": found})
        else:
            console.table([(name, f"version {number}") for name, number in found.items()])
        return CLEAN
    if delete:
        if given.move or given.version is not None:
            raise ValueError("--delete takes a tag away, whatever version it names")
        number = given.call(shardio.untag)
        done = "removed"
    else:
        tagged = given.call(shardio.tag)
        number, done = tagged.number, "set"
    if console.json:
        facts = {"url": given.url, "tag": name, "version": number}
        console.document({**facts, "done": done, "dry_run": given.dry_run})
        return CLEAN
    if done == "set":
        console.line(f"{name} {'would be' if given.dry_run else 'is'} version {number}")
    else:
        removed = "would remove" if given.dry_run else "removed"
        console.line(f"{removed} the tag {name} of version {number}")
    if given.dry_run:
        console.line(DRY_RUN)
    return CLEAN


COMMAND = Command(
    name="tag",
    summary="name a version so that it does not expire, or list the names",
    takes=(Takes("shardio:tag"),),
    run=_run,
    examples={
        "shardio tag s3://bucket/birds paper-2026 --version 41": "from now on --version paper-2026 reads it",
        "shardio tag s3://bucket/birds": "all tags",
    },
)
