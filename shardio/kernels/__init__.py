"""The hot loops over bytes: pure functions, compiled where possible, one meaning in both implementations.

Checksums and frames of TFRecord, records out of a buffer, tf.train.Example by the batch, orders of random
words, images in another size.  Nothing here does I/O or keeps state; everything that takes long releases the
interpreter lock where it is compiled.

`IMPLEMENTATION` says which one is in use: `"compiled"` (Cython) or `"reference"` (NumPy, crc32c, protobuf,
Pillow). `MISSING` names the functions of a compiled tree that are the reference's, as they were not compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.kernels._arguments import (
    MAX_RECORD,
    Check,
    FoundFrames,
    Frames,
    Scan,
)
from shardio.kernels._checksums import crc32c, mask_crc
from shardio.kernels._features import Column, FeatureRequest, Kind, Mismatch, Parsed, Records
from shardio.kernels._interleaving import Interleaved, Interleaving, InterleavingState, Network
from shardio.kernels._reference import encode_sequence_example
from shardio.kernels._values import make_column

if TYPE_CHECKING:  # the reference carries the types and the documentation of both
    from shardio.kernels import _reference as _chosen

    IMPLEMENTATION: str
    MISSING: tuple[str, ...]
else:
    try:
        from shardio.kernels import _compiled as _chosen

        IMPLEMENTATION, MISSING = "compiled", _chosen.MISSING
    except ImportError:
        from shardio.kernels import _reference as _chosen

        IMPLEMENTATION, MISSING = "reference", ()

OpenBlock = _chosen.OpenBlock
FrameBuffer = _chosen.FrameBuffer
MappedRecords = _chosen.MappedRecords
ShardIndex = _chosen.ShardIndex
argsort_words = _chosen.argsort_words
check_frames = _chosen.check_frames
crc32c_joined = _chosen.crc32c_joined
crc32c_many = _chosen.crc32c_many
cut_frames = _chosen.cut_frames
deal_frames = _chosen.deal_frames
encode_example = _chosen.encode_example
encode_examples = _chosen.encode_examples
encode_frames = _chosen.encode_frames
gather = _chosen.gather
gather_fixed = _chosen.gather_fixed
gather_from = _chosen.gather_from
gather_into = _chosen.gather_into
gather_rows = _chosen.gather_rows
interleave = _chosen.interleave
pack_list = _chosen.pack_list
parse_examples = _chosen.parse_examples
parse_sequence_examples = _chosen.parse_sequence_examples
permute = _chosen.permute
resize_image = _chosen.resize_image
scan_frames = _chosen.scan_frames
shuffle_ranges = _chosen.shuffle_ranges
slice_records = _chosen.slice_records
slice_rows = _chosen.slice_rows
take_frames = _chosen.take_frames

__all__ = [
    "IMPLEMENTATION",
    "MAX_RECORD",
    "MISSING",
    "Check",
    "Column",
    "FeatureRequest",
    "FoundFrames",
    "FrameBuffer",
    "Frames",
    "Interleaved",
    "Interleaving",
    "InterleavingState",
    "Kind",
    "MappedRecords",
    "Mismatch",
    "Network",
    "OpenBlock",
    "Parsed",
    "Records",
    "Scan",
    "ShardIndex",
    "argsort_words",
    "check_frames",
    "crc32c",
    "crc32c_joined",
    "crc32c_many",
    "cut_frames",
    "deal_frames",
    "encode_example",
    "encode_examples",
    "encode_frames",
    "encode_sequence_example",
    "gather",
    "gather_fixed",
    "gather_from",
    "gather_into",
    "gather_rows",
    "interleave",
    "make_column",
    "mask_crc",
    "pack_list",
    "parse_examples",
    "parse_sequence_examples",
    "permute",
    "resize_image",
    "scan_frames",
    "shuffle_ranges",
    "slice_records",
    "slice_rows",
    "take_frames",
]
