"""Reading: a dataset or a shard as a `Sequence` of records, verified, decoded, looked up by the batch."""

from __future__ import annotations

from shardio.reader._blocks import Span
from shardio.reader._damage import QUARANTINE_FILE, Damage, SkipCorrupt
from shardio.reader._foreign import value_codec
from shardio.reader._open import (
    SequentialShard,
    ShardReader,
    is_shard,
    open,  # noqa: A004 - `shardio.open` is the public name
    open_shard,
)
from shardio.reader._options import ReadOptions, ReadStats
from shardio.reader._records import DatasetReader, Records
from shardio.reader._shard import OpenShard
from shardio.reader._source import DatasetSource, Location, Source, choose_split, root_stores
from shardio.reader._subset import count_below, is_ascending, selection_digest, take

__all__ = [
    "QUARANTINE_FILE",
    "Damage",
    "DatasetReader",
    "DatasetSource",
    "Location",
    "OpenShard",
    "ReadOptions",
    "ReadStats",
    "Records",
    "SequentialShard",
    "ShardReader",
    "SkipCorrupt",
    "Source",
    "Span",
    "choose_split",
    "count_below",
    "is_ascending",
    "is_shard",
    "open",
    "open_shard",
    "root_stores",
    "selection_digest",
    "take",
    "value_codec",
]
