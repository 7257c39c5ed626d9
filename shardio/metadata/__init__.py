"""Sidecars as values and bytes: index, manifest, lists of shards, receipts, schema, names.

Bytes in, values out; no I/O.  The index is NumPy columns over the bytes given; everything sealed is checked
whole before it is parsed.  What objects, splits and sessions may be called is the module `naming`.
"""

from __future__ import annotations

from shardio.display import image_type as image_type
from shardio.metadata import naming as naming
from shardio.metadata._changes import described as described
from shardio.metadata._container import END as END
from shardio.metadata._feature import Feature as Feature
from shardio.metadata._images import (
    MAX_PIXELS as MAX_PIXELS,
    encode_image as encode_image,
    is_image as is_image,
    open_image as open_image,
    pillow as pillow,
    refuse_pixels as refuse_pixels,
)
from shardio.metadata._index import (
    INDEX as INDEX,
    INDEX_ADVICE as INDEX_ADVICE,
    IndexHead as IndexHead,
    check_frames_part as check_frames_part,
    check_index_end as check_index_end,
    parse_head as parse_head,
    read_head_bytes as read_head_bytes,
    read_head_size as read_head_size,
)
from shardio.metadata._index_writer import FinishedIndex as FinishedIndex, IndexBuilder as IndexBuilder
from shardio.metadata._list import pack_list as pack_list, pack_lists as pack_lists, parse_list as parse_list
from shardio.metadata._manifest import (
    Expiry as Expiry,
    KeyIndex as KeyIndex,
    KeyRunRef as KeyRunRef,
    ListRef as ListRef,
    Manifest as Manifest,
    MergedSession as MergedSession,
    Rewrite as Rewrite,
    TableColumn as TableColumn,
    encode_metadata as encode_metadata,
    parse_manifest as parse_manifest,
    parse_sessions as parse_sessions,
    seal_manifest as seal_manifest,
    seal_sessions as seal_sessions,
)
from shardio.metadata._mds import mds_encoding as mds_encoding, mds_layout as mds_layout
from shardio.metadata._numbers import (
    ValueMismatchError as ValueMismatchError,
    shape_fits as shape_fits,
    to_number_array as to_number_array,
)
from shardio.metadata._receipt import (
    Receipt as Receipt,
    SplitReceipt as SplitReceipt,
    session_digest as session_digest,
)
from shardio.metadata._schema import (
    Schema as Schema,
    check_name as check_name,
    parse_schema_json as parse_schema_json,
)
from shardio.metadata._sealed import (
    COPY_ADVICE as COPY_ADVICE,
    unseal as unseal,
)
from shardio.metadata._sidecars import (
    ENTRY as ENTRY,
    KEY_PAGE as KEY_PAGE,
    KEY_RUN as KEY_RUN,
    KEY_TYPES as KEY_TYPES,
    MOST_SAME_KEY as MOST_SAME_KEY,
    KeyRun as KeyRun,
    hash_keys as hash_keys,
    table_address as table_address,
    table_column as table_column,
    usable_keys as usable_keys,
)
from shardio.metadata._table import (
    LIST as LIST,
    ShardEntry as ShardEntry,
    ShardTable as ShardTable,
    SplitTotals as SplitTotals,
    check_sidecar as check_sidecar,
    live_to_physical as live_to_physical,
    parse_deletions as parse_deletions,
    physical_to_live as physical_to_live,
)
from shardio.metadata._tf_tensor import parse_tensor as parse_tensor, serialize_tensor as serialize_tensor
from shardio.metadata._wire import read_fields as read_fields
