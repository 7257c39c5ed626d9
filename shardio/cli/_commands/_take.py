"""Commands to take data out."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from shardio.cli._command import READING, Given, command, reporting
from shardio.cli._commands._bring import code_of_skipped
from shardio.cli._console import CLEAN, Console
from shardio.cli._options import Takes
from shardio.cli._records import Where
from shardio.cli._values import Rank


@command(
    Takes("shardio:open", only=("features",)),
    READING,
    examples={
        "shardio cat s3://bucket/birds --split train | jq .label": "JSON lines",
        "shardio cat birds --where 'label = 3' --format tar > robins.tar": "a WebDataset shard",
        "pipe:shardio cat s3://bucket/birds --format tar --rank {0..7}/8": "eight shards for webdataset",
    },
)
def cat(
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
    from shardio.convert import write_stream

    if console.json:
        raise ValueError("--json has no meaning for records: choose --format jsonl")
    records = given.open(given.url, decode=format != "raw")
    if where is not None:
        records = records.filter(where)
    if rank is not None:
        number, ranks = rank
        records = records[len(records) * number // ranks : len(records) * (number + 1) // ranks]
    write_stream(records, sys.stdout.buffer, format)
    sys.stdout.buffer.flush()
    return CLEAN


reporting(
    "export",
    Takes(
        "shardio:export_dataset",
        places=("url", "target"),
        choices={
            "kind": "shardio.convert:target_kinds",
            "compression": ("gzip", "zlib", "zstd", "snappy"),
        },
    ),
    code=code_of_skipped,
    examples={
        "shardio export s3://bucket/birds plain --kind tfrecord": "TFRecord files without index or manifest",
        "shardio export birds lines --kind jsonl --split test": "one split as JSON lines",
        "shardio export birds mds --kind mds --features image,label": "for MosaicML's streaming",
    },
)
