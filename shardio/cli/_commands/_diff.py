"""`shardio diff`: what differs between two versions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardio.cli._command import Command, Takes
from shardio.cli._given import reported
from shardio.display import count, plural

if TYPE_CHECKING:
    from shardio.cli._console import Console
    from shardio.lifecycle import DiffReport


def _print(console: Console, report: DiffReport) -> None:
    console.line(f"from version {report.first} to version {report.second}")
    for number, operation in report.operations.items():
        console.line(f"  {number}  {operation}")
    for name, part in report.splits.items():
        console.line(
            f"split {name}: {_number(part.before)} to {_number(part.after)} records, "
            f"{count(part.added)} added, {count(part.removed)} removed"
        )
        for key, records in part.shards_added.items():
            console.line(f"  + {key}  ({plural(records, 'record')})")
        for key, records in part.shards_removed.items():
            console.line(f"  - {key}  ({plural(records, 'record')})")
        for key, (added, removed) in part.shards_changed.items():
            console.line(f"  ~ {key}  (+{added} -{removed})")
    if report.rewritten:
        console.line(
            "shards were rewritten in between: the same records, in other shards, count as removed and added"
        )
    for name, (old, new) in report.schema.items():
        console.line(f"{f'feature {name}' if name else 'encoding'}: {old} -> {new}")
    for name, (old, new) in report.metadata.items():
        console.line(f"metadata {name}: {json.dumps(old)} -> {json.dumps(new)}")
    for number, names in zip((report.first, report.second), report.tags, strict=True):
        if names:
            console.line(f"version {number} has the tags {', '.join(names)}")
    if not (report.splits or report.schema or report.metadata):
        console.line("they hold the same")


def _number(value: int | None) -> str:
    return "no" if value is None else count(value)


COMMAND = Command(
    name="diff",
    summary="show what differs between two versions",
    takes=(Takes("shardio:diff", places=("url", "first", "second")),),
    run=reported("shardio:diff", _print),
    examples={"shardio diff s3://bucket/birds 41 43": "records, splits, schema, metadata"},
)
