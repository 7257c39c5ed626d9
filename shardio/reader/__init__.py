"""Reading: a dataset or a shard as a `Sequence` of records, verified, decoded, looked up by the batch."""

from __future__ import annotations

from shardio.reader._blocks import FetchedFrames, FetchedRun
from shardio.reader._columns import (
    TABLE_ADVICE,
    ChosenColumn,
    arrow_batches,
    batch_rows,
    check_table_bytes,
    choose_columns,
    columns_now,
    columns_schema,
    has_table,
    iterate_rows,
    live_rows,
    load_table,
    shards_without_table,
    sources_of,
    table_refusal,
    with_features,
)
from shardio.reader._damage import QUARANTINE_FILE, Damage, SuppressCorruption
from shardio.reader._files import check_index_file
from shardio.reader._find import (
    check_key_feature,
    check_key_index,
    extract_keys,
    find_each,
    key_types,
    read_key_run,
    read_part,
    shards_of_run,
)
from shardio.reader._foreign import value_codec
from shardio.reader._huggingface import HF_METADATA, hf_feature, hf_json, without_names
from shardio.reader._join import JoinedReader, JoinedSource, as_stored, join, right_digest
from shardio.reader._lookup import lookup_alone
from shardio.reader._mapped import StoredFrames, advise_frames, read_frames, read_records
from shardio.reader._open import (
    SequentialShard,
    ShardReader,
    is_shard,
    open,  # noqa: A004 - `shardio.open` is the public name
    open_shard,
    open_split,
)
from shardio.reader._options import ReadOptions, ReadStats
from shardio.reader._pool import ShardPool, read_head
from shardio.reader._records import Batches, DatasetDict, DatasetReader, RecordSequence
from shardio.reader._row_runs import RowRun, begin_frames, begin_frames_of, frames_in_cache
from shardio.reader._shard import OpenShard
from shardio.reader._source import (
    DatasetSource,
    Location,
    ShardSource,
    choose_split,
    codec_over,
    root_stores,
)
from shardio.reader._subset import (
    count_below,
    is_ascending,
    positions_at,
    positions_between,
    selection_digest,
)

__all__ = [
    "HF_METADATA",
    "QUARANTINE_FILE",
    "TABLE_ADVICE",
    "Batches",
    "ChosenColumn",
    "Damage",
    "DatasetDict",
    "DatasetReader",
    "DatasetSource",
    "FetchedFrames",
    "FetchedRun",
    "JoinedReader",
    "JoinedSource",
    "Location",
    "OpenShard",
    "ReadOptions",
    "ReadStats",
    "RecordSequence",
    "RowRun",
    "SequentialShard",
    "ShardPool",
    "ShardReader",
    "ShardSource",
    "StoredFrames",
    "SuppressCorruption",
    "advise_frames",
    "arrow_batches",
    "as_stored",
    "batch_rows",
    "begin_frames",
    "begin_frames_of",
    "check_index_file",
    "check_key_feature",
    "check_key_index",
    "check_table_bytes",
    "choose_columns",
    "choose_split",
    "codec_over",
    "columns_now",
    "columns_schema",
    "count_below",
    "extract_keys",
    "find_each",
    "frames_in_cache",
    "has_table",
    "hf_feature",
    "hf_json",
    "is_ascending",
    "is_shard",
    "iterate_rows",
    "join",
    "key_types",
    "live_rows",
    "load_table",
    "lookup_alone",
    "open",
    "open_shard",
    "open_split",
    "positions_at",
    "positions_between",
    "read_frames",
    "read_head",
    "read_key_run",
    "read_part",
    "read_records",
    "right_digest",
    "root_stores",
    "selection_digest",
    "shards_of_run",
    "shards_without_table",
    "sources_of",
    "table_refusal",
    "value_codec",
    "with_features",
    "without_names",
]
