"""The bytes of one shard: framing, blocks, compression, checksums.

Bytes in, values out: nothing here reads a file or knows a URL.  Errors carry the place within the bytes
given; callers add the address with `ShardioError.located`.
"""

from __future__ import annotations

from shardio.format._blocks import (
    DEFAULT_BLOCK_BYTES,
    FRAME_EXTRA,
    Block,
    BlockBuilder,
    check_block,
    open_block,
)
from shardio.format._compression import Compressor, decompress
from shardio.format._framing import TFRECORD_HEAD, TFRECORD_TAIL, Buffer, frame_bounds, payload_bounds
from shardio.format._kinds import Compression, Framing, RecordCrc
from shardio.format._limits import DEFAULT_LIMITS, Limits
from shardio.format._streams import decode_stream, iterate_payloads, sniff_compression
from shardio.format._tar import (
    TAR_BLOCK,
    TAR_END,
    TarMember,
    is_tar_header,
    read_member,
    read_sample,
    sample_name,
)

__all__ = [
    "DEFAULT_BLOCK_BYTES",
    "DEFAULT_LIMITS",
    "FRAME_EXTRA",
    "TAR_BLOCK",
    "TAR_END",
    "TFRECORD_HEAD",
    "TFRECORD_TAIL",
    "Block",
    "BlockBuilder",
    "Buffer",
    "Compression",
    "Compressor",
    "Framing",
    "Limits",
    "RecordCrc",
    "TarMember",
    "check_block",
    "decode_stream",
    "decompress",
    "frame_bounds",
    "is_tar_header",
    "iterate_payloads",
    "open_block",
    "payload_bounds",
    "read_member",
    "read_sample",
    "sample_name",
    "sniff_compression",
]
