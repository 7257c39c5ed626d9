"""`shardio cat`: records to standard output, for pipes."""

from __future__ import annotations

import sys

import click

from shardio.cli._command import Command, Option, Value
from shardio.cli._console import CLEAN, Console
from shardio.cli._given import READING, Given
from shardio.cli._records import WHERE
from shardio.cli._signature import Takes
from shardio.cli._values import rank_of


def _run(given: Given, console: Console) -> int:
    import shardio
    from shardio.convert import write_stream
    from shardio.reader import open_split

    if console.json:
        raise ValueError("--json has no meaning for records: choose --format jsonl")
    options = given.options(shardio.open) | {"decode": given.format != "raw"}
    records = open_split(**options)
    if given.where is not None:
        records = records.filter(given.where)
    if given.rank is not None:
        rank, ranks = given.rank
        records = records[len(records) * rank // ranks : len(records) * (rank + 1) // ranks]
    write_stream(records, sys.stdout.buffer, given.format)
    sys.stdout.buffer.flush()
    return CLEAN


COMMAND = Command(
    name="cat",
    summary="write records to standard output, as JSON lines, tar or bytes",
    takes=(
        Takes("shardio:open", only=("url",)),
        Option(
            ["--format"],
            type=click.Choice(("jsonl", "tar", "raw")),
            default="jsonl",
            help="jsonl: an object a line, as export writes them; tar: WebDataset samples; raw: the payload "
            "bytes of each record, with nothing between them; default: jsonl",
        ),
        WHERE,
        Option(
            ["--rank"],
            metavar="R/N",
            type=Value(rank_of),
            help="part R, from 0, of N equal ones; default: all",
        ),
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
