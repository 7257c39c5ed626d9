"""The bytes of one shard: framing, blocks, compression, checksums.

Bytes in, values out: nothing here reads a file or knows a URL.  Errors carry the place within the bytes
given; callers add the address with `ShardioError.located`.
"""

from __future__ import annotations

from shardio.format._blocks import (
    DAMAGE_ADVICE,
    DEFAULT_BLOCK_BYTES,
    FRAME_EXTRA,
    Block,
    BlockBuilder,
    check_block,
)
from shardio.format._compression import (
    ZSTD_HEAD,
    Compression,
    Compressor,
    StreamCompressor,
    decompress,
    explain_zstd,
)
from shardio.format._framing import (
    TFRECORD_HEAD,
    TFRECORD_TAIL,
    Buffer,
    Framing,
    RecordCrc,
    payload_bounds,
)
from shardio.format._json import (
    MAX_JSON_DEPTH,
    UTF8_BOM,
    check_json_depth,
    check_json_keys,
    is_blank_line,
    parse_json,
    restored_object,
    wide_encoding,
)
from shardio.format._limits import DEFAULT_LIMITS, Limits
from shardio.format._streams import decode_stream, iterate_payloads, sniff_compression
from shardio.format._tar import (
    SAMPLE_NAMES,
    TAR_BLOCK,
    TAR_END,
    TarMember,
    is_tar_header,
    read_member,
    read_sample,
    sample_name,
)

__all__ = [
    "DAMAGE_ADVICE",
    "DEFAULT_BLOCK_BYTES",
    "DEFAULT_LIMITS",
    "FRAME_EXTRA",
    "MAX_JSON_DEPTH",
    "SAMPLE_NAMES",
    "TAR_BLOCK",
    "TAR_END",
    "TFRECORD_HEAD",
    "TFRECORD_TAIL",
    "UTF8_BOM",
    "ZSTD_HEAD",
    "Block",
    "BlockBuilder",
    "Buffer",
    "Compression",
    "Compressor",
    "Framing",
    "Limits",
    "RecordCrc",
    "StreamCompressor",
    "TarMember",
    "check_block",
    "check_json_depth",
    "check_json_keys",
    "decode_stream",
    "decompress",
    "explain_zstd",
    "is_blank_line",
    "is_tar_header",
    "iterate_payloads",
    "parse_json",
    "payload_bounds",
    "read_member",
    "read_sample",
    "restored_object",
    "sample_name",
    "sniff_compression",
    "wide_encoding",
]
