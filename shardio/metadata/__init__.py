"""Sidecars as values and bytes: index, manifest, lists of shards, receipts, schema, names.

Bytes in, values out; no I/O.  The index is NumPy columns over the bytes given; everything sealed is checked
whole before it is parsed.
"""

from __future__ import annotations

from shardio.metadata._feature import Feature as Feature
from shardio.metadata._images import (
    encode_image as encode_image,
    image_type as image_type,
    is_image as is_image,
    pillow as pillow,
)
from shardio.metadata._index import (
    INDEX_ADVICE as INDEX_ADVICE,
    IndexHead as IndexHead,
    check_frames_part as check_frames_part,
    check_index_end as check_index_end,
    parse_head as parse_head,
    read_head_bytes as read_head_bytes,
    read_head_size as read_head_size,
    record_checksums as record_checksums,
    records_fit as records_fit,
)
from shardio.metadata._index_writer import FinishedIndex as FinishedIndex, IndexBuilder as IndexBuilder
from shardio.metadata._list import parse_list as parse_list, seal_list as seal_list, seal_lists as seal_lists
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
from shardio.metadata._names import (
    DATA as DATA,
    HINT_KEY as HINT_KEY,
    INDEX_SUFFIX as INDEX_SUFFIX,
    INDEXES as INDEXES,
    KEYS as KEYS,
    LISTS as LISTS,
    MANIFESTS as MANIFESTS,
    METADATA as METADATA,
    SESSIONS as SESSIONS,
    TABLES as TABLES,
    DataKey as DataKey,
    ReceiptKey as ReceiptKey,
    check_foreign_key as check_foreign_key,
    check_session as check_session,
    check_split as check_split,
    check_tag as check_tag,
    check_task as check_task,
    check_tasks as check_tasks,
    is_list_key as is_list_key,
    is_own_key as is_own_key,
    is_random_session as is_random_session,
    is_rewriting_session as is_rewriting_session,
    is_sidecar_key as is_sidecar_key,
    is_unowned_key as is_unowned_key,
    key_part_key as key_part_key,
    key_run_key as key_run_key,
    key_run_of as key_run_of,
    list_key as list_key,
    look_alike as look_alike,
    manifest_key as manifest_key,
    manifest_version as manifest_version,
    random_id as random_id,
    random_session as random_session,
    rows_key as rows_key,
    table_address_of as table_address_of,
    table_key as table_key,
    unsafe_part as unsafe_part,
    usual_index_key as usual_index_key,
)
from shardio.metadata._receipt import (
    Receipt as Receipt,
    SplitReceipt as SplitReceipt,
    session_digest as session_digest,
)
from shardio.metadata._schema import (
    Schema as Schema,
    by_stored_name as by_stored_name,
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
    KEY_TYPES as KEY_TYPES,
    KeyPart as KeyPart,
    KeyRun as KeyRun,
    PartHead as PartHead,
    hash_keys as hash_keys,
    table_address as table_address,
    table_column as table_column,
    usable_keys as usable_keys,
)
from shardio.metadata._table import (
    ShardEntry as ShardEntry,
    ShardTable as ShardTable,
    SplitTotals as SplitTotals,
    check_sidecar as check_sidecar,
    live_to_physical as live_to_physical,
    parse_deletions as parse_deletions,
    physical_to_live as physical_to_live,
)
from shardio.metadata._tf_tensor import parse_tensor as parse_tensor, serialize_tensor as serialize_tensor
from shardio.metadata._types import (
    ValueMismatchError as ValueMismatchError,
    shape_fits as shape_fits,
    to_number_array as to_number_array,
)
