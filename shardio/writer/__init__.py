"""Writing: one shard with its index, or a dataset of many shards in one commit.

Memory stays within a few blocks a split, whatever the size of a shard: blocks go to a local spool file, and a
finished shard is uploaded whole under a name never used before.
"""

from __future__ import annotations

from shardio.writer._dataset import DatasetWriter as DatasetWriter
from shardio.writer._settings import (
    DEFAULT_SHARD_BYTES as DEFAULT_SHARD_BYTES,
    LayoutOptions as LayoutOptions,
    WriterOptions as WriterOptions,
    catalog_to_write as catalog_to_write,
    check_mode as check_mode,
    check_options as check_options,
    check_shards as check_shards,
    check_writer_options as check_writer_options,
    encoder as encoder,
    foretell_write as foretell_write,
    is_codec as is_codec,
    resolve_schema as resolve_schema,
    split_names as split_names,
)
from shardio.writer._shard import ShardWriter as ShardWriter
from shardio.writer._spool import (
    AtomicWriter as AtomicWriter,
    Layout as Layout,
    ShardSpool as ShardSpool,
    spool_folder as spool_folder,
)
from shardio.writer._task import Task as Task
