"""What others wrote, before it becomes a dataset: which files there are, and how their URLs read.

Adoption and conversion both begin here, so that both find the same files.
"""

from __future__ import annotations

from shardio.sources._find import FoundFile, Listing, explain_listing, find_files, find_governed, is_clutter
from shardio.sources._hive import (
    SPLIT_KEY,
    FolderKey,
    check_partitions,
    folder_key,
    folder_keys,
    key_value,
    keys_of_shard,
    type_of_key,
)
from shardio.sources._others import MEGATRON_MAGIC, OtherKind, find_other, other_kind
from shardio.sources._splits import Division, SplitRules, folder_of, folders_are_splits
from shardio.sources._tfds import TfdsFeature, TfdsFolder, TfdsSplitFile, find_tfds, tfds_feature
from shardio.sources._urls import SplitUrl, common_folder, expand_braces

__all__ = [
    "MEGATRON_MAGIC",
    "SPLIT_KEY",
    "Division",
    "FolderKey",
    "FoundFile",
    "Listing",
    "OtherKind",
    "SplitRules",
    "SplitUrl",
    "TfdsFeature",
    "TfdsFolder",
    "TfdsSplitFile",
    "check_partitions",
    "common_folder",
    "expand_braces",
    "explain_listing",
    "find_files",
    "find_governed",
    "find_other",
    "find_tfds",
    "folder_key",
    "folder_keys",
    "folder_of",
    "folders_are_splits",
    "is_clutter",
    "key_value",
    "keys_of_shard",
    "other_kind",
    "tfds_feature",
    "type_of_key",
]
