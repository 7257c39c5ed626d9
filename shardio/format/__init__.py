"""The bytes of one shard: framing, blocks, compression, checksums.

Bytes in, values out: nothing here reads a file or knows a URL.  Errors carry the place within the bytes
given; callers add the address with `ShardioError.located`.
"""

from __future__ import annotations

from shardio.format._blocks import (
    DAMAGE_ADVICE as DAMAGE_ADVICE,
    DEFAULT_BLOCK_BYTES as DEFAULT_BLOCK_BYTES,
    Block as Block,
    BlockBuilder as BlockBuilder,
    check_block as check_block,
)
from shardio.format._compression import (
    ZSTD_HEAD as ZSTD_HEAD,
    Compression as Compression,
    decompress as decompress,
    explain_zstd as explain_zstd,
)
from shardio.format._framing import (
    TFRECORD_HEAD as TFRECORD_HEAD,
    TFRECORD_TAIL as TFRECORD_TAIL,
    Buffer as Buffer,
    Framing as Framing,
    RecordCrc as RecordCrc,
    payload_bounds as payload_bounds,
)
from shardio.format._json import (
    MAX_JSON_DEPTH as MAX_JSON_DEPTH,
    UTF8_BOM as UTF8_BOM,
    check_json_depth as check_json_depth,
    check_json_keys as check_json_keys,
    is_blank_line as is_blank_line,
    parse_json as parse_json,
    restored_object as restored_object,
    wide_encoding as wide_encoding,
)
from shardio.format._limits import DEFAULT_LIMITS as DEFAULT_LIMITS, Limits as Limits
from shardio.format._npy import parse_npy as parse_npy
from shardio.format._streams import (
    decode_stream as decode_stream,
    frame_sides as frame_sides,
    sniff_compression as sniff_compression,
)
from shardio.format._tar import (
    SAMPLE_NAMES as SAMPLE_NAMES,
    TAR_BLOCK as TAR_BLOCK,
    TAR_END as TAR_END,
    TarMember as TarMember,
    is_tar_header as is_tar_header,
    read_member as read_member,
    read_sample as read_sample,
    sample_name as sample_name,
)
