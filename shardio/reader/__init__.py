"""Reading: a dataset or a shard as a `Sequence` of records, verified, decoded, looked up by the batch."""

from __future__ import annotations

from shardio.reader._blocks import WrongBlock as WrongBlock
from shardio.reader._columns import (
    LENGTH as LENGTH,
    TABLE_ADVICE as TABLE_ADVICE,
    ChosenColumn as ChosenColumn,
    arrow_batch as arrow_batch,
    choose_columns as choose_columns,
    column_batches as column_batches,
    columns_now as columns_now,
    has_table as has_table,
    iterate_rows as iterate_rows,
    read_columns as read_columns,
    read_table_bytes as read_table_bytes,
    shards_without_table as shards_without_table,
    sources_of as sources_of,
    table_refusal as table_refusal,
    table_rows as table_rows,
    warn_of_records as warn_of_records,
    with_features as with_features,
)
from shardio.reader._damage import (
    Damage as Damage,
    SuppressCorruption as SuppressCorruption,
)
from shardio.reader._files import (
    MISSING_ADVICE as MISSING_ADVICE,
    ShardFiles as ShardFiles,
    check_index_file as check_index_file,
    decoded_size_error as decoded_size_error,
)
from shardio.reader._filter import FilterOptions as FilterOptions, look_at_spans as look_at_spans
from shardio.reader._foreign import TEXT_METADATA as TEXT_METADATA, value_codec as value_codec
from shardio.reader._gather import (
    ENTRY as ENTRY,
    READS_FILES as READS_FILES,
    SKIPPED as SKIPPED,
    ShardFrames as ShardFrames,
    copy_rows as copy_rows,
    find_in_chunks as find_in_chunks,
    find_in_shards as find_in_shards,
    gather as gather,
)
from shardio.reader._groups import DatasetDict as DatasetDict
from shardio.reader._open import (
    SequentialShard as SequentialShard,
    ShardReader as ShardReader,
    is_shard as is_shard,
    open as open,  # noqa: A004 - `shardio.open` is the public name
    open_shard as open_shard,
    open_split as open_split,
)
from shardio.reader._options import ReadOptions as ReadOptions, ReadStats as ReadStats
from shardio.reader._pool import ShardPool as ShardPool, deleted_rows as deleted_rows, read_head as read_head
from shardio.reader._positions import positions_of_rows as positions_of_rows
from shardio.reader._records import (
    DatasetReader as DatasetReader,
    RecordSequence as RecordSequence,
)
from shardio.reader._rows import begin_rows as begin_rows
from shardio.reader._shard import OpenShard as OpenShard
from shardio.reader._slice import Slice as Slice, slices as slices
from shardio.reader._source import (
    DatasetSource as DatasetSource,
    Location as Location,
    ShardSource as ShardSource,
    choose_split as choose_split,
    root_stores as root_stores,
)
from shardio.reader._spans import Span as Span
from shardio.reader._subset import (
    Selection as Selection,
    count_below as count_below,
    is_ascending as is_ascending,
    positions_at as positions_at,
    selection_digest as selection_digest,
)
