"""Sidecars as values and bytes: index, manifest, lists of shards, receipts, schema, names.

Bytes in, values out; no I/O.  The index is NumPy columns over the bytes given; everything sealed is checked
whole before it is parsed.
"""

from __future__ import annotations

from shardio.metadata._deletions import live_to_physical, parse_deletions
from shardio.metadata._features import INDEX_ADVICE
from shardio.metadata._frame_stops import check_frames_part, frames_fit
from shardio.metadata._free import encode_metadata
from shardio.metadata._index import IndexHead, parse_head, read_head_bytes, read_head_size
from shardio.metadata._index_end import check_index_end
from shardio.metadata._index_writer import FinishedIndex, IndexBuilder
from shardio.metadata._list import parse_list, seal_list, seal_lists
from shardio.metadata._manifest import (
    Expiry,
    ListRef,
    Manifest,
    MergedSession,
    parse_manifest,
    parse_sessions,
    seal_manifest,
    seal_sessions,
)
from shardio.metadata._names import (
    DATA,
    HINT_KEY,
    INDEX_SUFFIX,
    INDEXES,
    LISTS,
    MANIFESTS,
    SESSIONS,
    DataKey,
    ReceiptKey,
    check_foreign_key,
    check_key,
    check_session,
    check_split,
    check_task,
    check_tasks,
    data_key,
    is_list_key,
    is_own_key,
    is_random_session,
    list_key,
    look_alike,
    manifest_key,
    manifest_version,
    parse_data_key,
    parse_receipt_key,
    random_id,
    random_session,
    receipt_key,
    unsafe_part,
    usual_index_key,
)
from shardio.metadata._receipt import Receipt, SplitReceipt, parse_receipt, seal_receipt, session_digest
from shardio.metadata._schema import Feature, Schema
from shardio.metadata._schema_json import parse_schema_json, schema_to_json
from shardio.metadata._sealed import SEAL_BYTES, seal, unseal
from shardio.metadata._table import ShardEntry, ShardTable, SplitTotals

__all__ = [
    "DATA",
    "HINT_KEY",
    "INDEXES",
    "INDEX_ADVICE",
    "INDEX_SUFFIX",
    "LISTS",
    "MANIFESTS",
    "SEAL_BYTES",
    "SESSIONS",
    "DataKey",
    "Expiry",
    "Feature",
    "FinishedIndex",
    "IndexBuilder",
    "IndexHead",
    "ListRef",
    "Manifest",
    "MergedSession",
    "Receipt",
    "ReceiptKey",
    "Schema",
    "ShardEntry",
    "ShardTable",
    "SplitReceipt",
    "SplitTotals",
    "check_foreign_key",
    "check_frames_part",
    "check_index_end",
    "check_key",
    "check_session",
    "check_split",
    "check_task",
    "check_tasks",
    "data_key",
    "encode_metadata",
    "frames_fit",
    "is_list_key",
    "is_own_key",
    "is_random_session",
    "list_key",
    "live_to_physical",
    "look_alike",
    "manifest_key",
    "manifest_version",
    "parse_data_key",
    "parse_deletions",
    "parse_head",
    "parse_list",
    "parse_manifest",
    "parse_receipt",
    "parse_receipt_key",
    "parse_schema_json",
    "parse_sessions",
    "random_id",
    "random_session",
    "read_head_bytes",
    "read_head_size",
    "receipt_key",
    "schema_to_json",
    "seal",
    "seal_list",
    "seal_lists",
    "seal_manifest",
    "seal_receipt",
    "seal_sessions",
    "session_digest",
    "unsafe_part",
    "unseal",
    "usual_index_key",
]
