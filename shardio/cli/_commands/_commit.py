"""`shardio commit`: the last step of a job array."""

from __future__ import annotations

from typing import Any

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._describe import DRY_RUN
from shardio.cli._given import Given
from shardio.display import plural


def _run(given: Given, console: Console) -> int:
    import shardio

    if given.dry_run:
        found: Any = given.call(shardio.commit)
        if console.json:
            console.document({"url": given.url, "records": found, "dry_run": True})
            return CLEAN
        total = plural(sum(found.values()), "record")
        console.line(f"session {given.session} is complete, {total}; {DRY_RUN}")
        return CLEAN
    version = given.call(shardio.commit)
    records = {split.name: split.rows for split in version.manifest.splits}
    if console.json:
        facts = {"url": given.url, "version": version.number, "digest": version.digest}
        console.document({**facts, "records": records, "dry_run": False})
        return CLEAN
    total = plural(sum(records.values()), "record")
    console.line(f"{given.url} is at version {version.number}, {total} ({version.digest})")
    return CLEAN


COMMAND = Command(
    name="commit",
    summary="commit the tasks of a job array as one new version",
    takes=(Takes("shardio:commit"),),
    run=_run,
    examples={
        "shardio commit s3://bucket/birds --session run7 --tasks 512": "names the tasks that are missing; "
        "doing it twice is harmless",
    },
)
