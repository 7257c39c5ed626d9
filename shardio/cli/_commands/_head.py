"""`shardio head`: the first records, decoded."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import READING, Given
from shardio.cli._records import ReadAs, Where, open_parts, reader_of
from shardio.cli._values import Whole
from shardio.display import describe, plain, plural


def _run(
    given: Given,
    console: Console,
    *,
    n: Annotated[Whole, Parameter(name="-n", help="records of each split")] = 5,
    where: Where = None,
    read_as: ReadAs = "auto",
) -> int:
    if n < 0:
        raise ValueError(f"-n {n} must be at least 0")
    read = reader_of(read_as)
    parts = open_parts(given, decode=True)
    shown = []
    for part in parts:
        if not console.json and len(parts) > 1:
            if part is not parts[0]:
                console.line()
            console.line(f"{part.name}: {plural(len(part), 'record')}")
        matching = part.first(n) if where is None else part.pick(part.matching(where)[:n])
        for position, value in matching:
            if console.json:
                shown.append({"split": part.name or None, "position": position, "value": plain(read(value))})
                continue
            console.line(f"[{position}]")
            for line in describe(read(value), width=console.width - 2):
                console.line(f"  {line}")
    if console.json:
        console.document({"url": given.url, "version": parts[0].version, "records": shown})
    return CLEAN


COMMAND = Command(
    name="head",
    summary="show the first records, decoded",
    takes=(Takes("shardio:open", only=("url", "features"), shard=True), READING),
    run=_run,
    examples={
        "shardio head s3://bucket/birds -n 2": "the first two records of every split",
        "shardio head s3://bucket/birds --where 'label = 3'": "the first records that meet a condition",
        "shardio head train-00000.tfrecord": "a single file, with or without its index",
    },
)
