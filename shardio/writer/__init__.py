"""Writing: one shard with its index, or a dataset of many shards in one commit.

Memory stays within a few blocks a split, whatever the size of a shard: blocks go to a local spool file, and a
finished shard is uploaded whole under a name never used before.
"""

from __future__ import annotations

from shardio.writer._dataset import DatasetWriter
from shardio.writer._settings import (
    DEFAULT_SHARD_BYTES,
    LayoutOptions,
    WriterOptions,
    catalog_to_write,
    check_mode,
    check_options,
    check_shards,
    check_writer_options,
    encoder,
    foretell_write,
    is_codec,
    resolve_schema,
    split_names,
)
from shardio.writer._shard import ShardWriter
from shardio.writer._spool import AtomicWriter, ShardOptions, ShardSpool, spool_folder
from shardio.writer._task import Task

__all__ = [
    "DEFAULT_SHARD_BYTES",
    "AtomicWriter",
    "DatasetWriter",
    "LayoutOptions",
    "ShardOptions",
    "ShardSpool",
    "ShardWriter",
    "Task",
    "WriterOptions",
    "catalog_to_write",
    "check_mode",
    "check_options",
    "check_shards",
    "check_writer_options",
    "encoder",
    "foretell_write",
    "is_codec",
    "resolve_schema",
    "split_names",
    "spool_folder",
]
