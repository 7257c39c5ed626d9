"""The kernels in NumPy, crc32c, protobuf and Pillow: for hosts without a compiler, and to test against."""

from __future__ import annotations

from tests.kernels.reference._blocks import OpenBlock, ShardIndex
from tests.kernels.reference._encode import (
    encode_example,
    encode_sequence_example,
    pack_list,
)
from tests.kernels.reference._frames import (
    FrameBuffer,
    check_frames,
    crc32c_joined,
    crc32c_many,
    encode_frames,
    scan_frames,
)
from tests.kernels.reference._images import resize_image
from tests.kernels.reference._orders import interleave, permute, shuffle_ranges
from tests.kernels.reference._parse import parse_examples, parse_sequence_examples
from tests.kernels.reference._slices import (
    gather,
    gather_fixed,
    gather_from,
    slice_records,
)

__all__ = [
    "FrameBuffer",
    "OpenBlock",
    "ShardIndex",
    "check_frames",
    "crc32c_joined",
    "crc32c_many",
    "encode_example",
    "encode_frames",
    "encode_sequence_example",
    "gather",
    "gather_fixed",
    "gather_from",
    "interleave",
    "pack_list",
    "parse_examples",
    "parse_sequence_examples",
    "permute",
    "resize_image",
    "scan_frames",
    "shuffle_ranges",
    "slice_records",
]
