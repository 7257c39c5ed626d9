"""The hot loops over bytes: pure functions in C, by Cython.

Checksums and frames of TFRecord, records out of a buffer, tf.train.Example by the batch, orders of random
words, images in another size.  Nothing here does I/O or keeps state; everything that takes long releases the
GIL.
"""

from __future__ import annotations

from shardio.kernels._arguments import (
    MAX_RECORD as MAX_RECORD,
    Check as Check,
    Frames as Frames,
    Scan as Scan,
)
from shardio.kernels._checksums import crc32c as crc32c, mask_crc as mask_crc
from shardio.kernels._compiled import _blocks, _documents, _encode, _frames, _images, _orders, _parse, _slices
from shardio.kernels._features import (
    Column as Column,
    FeatureRequest as FeatureRequest,
    Kind as Kind,
    Mismatch as Mismatch,
    Parsed as Parsed,
    Records as Records,
)
from shardio.kernels._interleaving import (
    Interleaved as Interleaved,
    Interleaving as Interleaving,
    InterleavingState as InterleavingState,
    Network as Network,
)

# By assignment: what checks imports finds no source in Python behind these modules.
OpenBlock = _blocks.OpenBlock
ShardIndex = _blocks.ShardIndex
count_documents = _documents.count_documents
encode_example = _encode.encode_example
encode_sequence_example = _encode.encode_sequence_example
pack_list = _encode.pack_list
FrameBuffer = _frames.FrameBuffer
check_frames = _frames.check_frames
crc32c_joined = _frames.crc32c_joined
crc32c_many = _frames.crc32c_many
encode_frames = _frames.encode_frames
scan_frames = _frames.scan_frames
resize_image = _images.resize_image
interleave = _orders.interleave
permute = _orders.permute
shuffle_ranges = _orders.shuffle_ranges
parse_examples = _parse.parse_examples
parse_sequence_examples = _parse.parse_sequence_examples
gather = _slices.gather
gather_fixed = _slices.gather_fixed
gather_from = _slices.gather_from
slice_records = _slices.slice_records
