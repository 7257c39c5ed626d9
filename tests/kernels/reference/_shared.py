"""What the reference takes from the product: checks of arguments, shapes of answers, limits."""

# ruff: noqa: F401 - the modules of the reference import these from here.

from __future__ import annotations

from shardio.kernels._arguments import (
    MAX_BLOCK,
    MAX_RECORD,
    Check,
    Frames,
    Scan,
    as_bounds,
    as_box,
    as_bytes,
    as_images,
    as_index,
    as_offsets,
    as_pairs,
    as_ranges,
    as_rows,
    as_sources,
    check_kind,
    no_block,
    no_row,
    too_long,
)
from shardio.kernels._checksums import crc32c, mask_crc
from shardio.kernels._features import (
    KINDS,
    Column,
    FeatureRequest,
    Mismatch,
    Parsed,
    Records,
    as_records,
    check_features,
    fill_missing,
)
from shardio.kernels._interleaving import Interleaved, Interleaving, InterleavingState, Network, as_parts
from shardio.kernels._values import MAX_MESSAGE, is_packed, too_large, wrong_name, wrong_value
