"""`shardio cat`: records to standard output, for pipes."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from shardio.cli._command import Command, Takes
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import READING, Given
from shardio.cli._records import Where
from shardio.cli._values import Rank


def _run(
    given: Given,
    console: Console,
    *,
    format: Annotated[  # noqa: A002 - what is typed
        Literal["jsonl", "tar", "raw"],
        Parameter(
            help="jsonl: an object a line, as export writes them; tar: WebDataset samples; raw: the payload "
            "bytes of each record, with nothing between them"
        ),
    ] = "jsonl",
    where: Where = None,
    rank: Annotated[Rank | None, Parameter(help="part R, from 0, of N equal ones; default: all")] = None,
) -> int:
    import shardio
    from shardio.convert import write_stream
    from shardio.reader import open_split

    if console.json:
        raise ValueError("--json has no meaning for records: choose --format jsonl")
    options = given.options(shardio.open) | {"decode": format != "raw"}
    records = open_split(**options)
    if where is not None:
        records = records.filter(where)
    if rank is not None:
        number, ranks = rank
        records = records[len(records) * number // ranks : len(records) * (number + 1) // ranks]
    write_stream(records, sys.stdout.buffer, format)
    sys.stdout.buffer.flush()
    return CLEAN


COMMAND = Command(
    name="cat",
    summary="write records to standard output, as JSON lines, tar or bytes",
    takes=(
        Takes("shardio:open", only=("features",)),
        READING,
    ),
    run=_run,
    examples={
        "shardio cat s3://bucket/birds --split train | jq .label": "JSON lines",
        "shardio cat birds --where 'label = 3' --format tar > robins.tar": "a WebDataset shard",
        "pipe:shardio cat s3://bucket/birds --format tar --rank {0..7}/8": "eight shards for webdataset",
    },
)
