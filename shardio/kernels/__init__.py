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
from shardio.kernels._compiled._blocks import (
    OpenBlock as OpenBlock,
    ShardIndex as ShardIndex,
)
from shardio.kernels._compiled._documents import count_documents as count_documents
from shardio.kernels._compiled._encode import (
    encode_example as encode_example,
    encode_sequence_example as encode_sequence_example,
    pack_list as pack_list,
)
from shardio.kernels._compiled._frames import (
    FrameBuffer as FrameBuffer,
    check_frames as check_frames,
    crc32c_joined as crc32c_joined,
    crc32c_many as crc32c_many,
    encode_frames as encode_frames,
    scan_frames as scan_frames,
)
from shardio.kernels._compiled._images import resize_image as resize_image
from shardio.kernels._compiled._orders import (
    interleave as interleave,
    permute as permute,
    shuffle_ranges as shuffle_ranges,
)
from shardio.kernels._compiled._parse import (
    parse_examples as parse_examples,
    parse_sequence_examples as parse_sequence_examples,
)
from shardio.kernels._compiled._slices import (
    gather as gather,
    gather_fixed as gather_fixed,
    gather_from as gather_from,
    slice_records as slice_records,
)
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
