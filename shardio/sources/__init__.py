"""What others wrote, before it becomes a dataset: which files there are, and how their URLs read.

Adoption and conversion both begin here, so that both find the same files.
"""

from __future__ import annotations

from shardio.sources._claims import (
    Claim as Claim,
    Score as Score,
    claim_files as claim_files,
    claim_other as claim_other,
    files_of_kind as files_of_kind,
    rank_claims as rank_claims,
)
from shardio.sources._find import (
    FoundFile as FoundFile,
    Listing as Listing,
    find_files as find_files,
    find_governed as find_governed,
    find_links as find_links,
    left_notes as left_notes,
    told_splits as told_splits,
)
from shardio.sources._hive import (
    SPLIT_KEY as SPLIT_KEY,
    FolderKey as FolderKey,
    check_partitions as check_partitions,
    folder_key as folder_key,
    folder_keys as folder_keys,
    key_value as key_value,
    type_of_key as type_of_key,
)
from shardio.sources._lists import SPLITS_FILE as SPLITS_FILE
from shardio.sources._mds import (
    MdsShard as MdsShard,
    is_mds_name as is_mds_name,
    mds_shards as mds_shards,
    read_mds_indexes as read_mds_indexes,
    refuse_compressed as refuse_compressed,
    same_columns as same_columns,
)
from shardio.sources._names import (
    IMAGE_ENDINGS as IMAGE_ENDINGS,
    format_of_name as format_of_name,
    is_data as is_data,
    kind_of_name as kind_of_name,
)
from shardio.sources._peek import (
    MEGATRON_MAGIC as MEGATRON_MAGIC,
    Peek as Peek,
    sniff as sniff,
)
from shardio.sources._splits import (
    Division as Division,
    SplitRules as SplitRules,
    check_sets as check_sets,
    folder_of as folder_of,
    split_depth as split_depth,
)
from shardio.sources._tfds import (
    TfdsFeature as TfdsFeature,
    TfdsFolder as TfdsFolder,
    TfdsSplitFile as TfdsSplitFile,
    find_tfds as find_tfds,
    tfds_feature as tfds_feature,
)
from shardio.sources._urls import (
    SplitUrl as SplitUrl,
    common_folder as common_folder,
    expand_braces as expand_braces,
)
