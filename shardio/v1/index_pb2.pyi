from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Framing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FRAMING_UNSPECIFIED: _ClassVar[Framing]
    TFRECORD: _ClassVar[Framing]
    RAW: _ClassVar[Framing]
    LINES: _ClassVar[Framing]
    TAR_SAMPLE: _ClassVar[Framing]

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_UNSPECIFIED: _ClassVar[Compression]
    NONE: _ClassVar[Compression]
    ZSTD: _ClassVar[Compression]
    GZIP: _ClassVar[Compression]
    ZLIB: _ClassVar[Compression]

class RecordCrc(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECORD_CRC_UNSPECIFIED: _ClassVar[RecordCrc]
    CRC32C: _ClassVar[RecordCrc]
    CRC32: _ClassVar[RecordCrc]
    UNCHECKED: _ClassVar[RecordCrc]
FRAMING_UNSPECIFIED: Framing
TFRECORD: Framing
RAW: Framing
LINES: Framing
TAR_SAMPLE: Framing
COMPRESSION_UNSPECIFIED: Compression
NONE: Compression
ZSTD: Compression
GZIP: Compression
ZLIB: Compression
RECORD_CRC_UNSPECIFIED: RecordCrc
CRC32C: RecordCrc
CRC32: RecordCrc
UNCHECKED: RecordCrc

class Column(_message.Message):
    __slots__ = ("name", "dtype", "length", "offset", "crc32c")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    length: int
    offset: int
    crc32c: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., length: _Optional[int] = ..., offset: _Optional[int] = ..., crc32c: _Optional[int] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("block", "reason")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    block: int
    reason: str
    def __init__(self, block: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ShardIndex(_message.Message):
    __slots__ = ("format_version", "critical_features", "framing", "record_crc", "compression", "shard_uuid", "stored_bytes", "decoded_bytes", "rows", "blocks", "crc32c", "columns", "gaps", "writer")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CRITICAL_FEATURES_FIELD_NUMBER: _ClassVar[int]
    FRAMING_FIELD_NUMBER: _ClassVar[int]
    RECORD_CRC_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    SHARD_UUID_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DECODED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    critical_features: _containers.RepeatedScalarFieldContainer[str]
    framing: Framing
    record_crc: RecordCrc
    compression: Compression
    shard_uuid: bytes
    stored_bytes: int
    decoded_bytes: int
    rows: int
    blocks: int
    crc32c: int
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    gaps: _containers.RepeatedCompositeFieldContainer[Gap]
    writer: str
    def __init__(self, format_version: _Optional[int] = ..., critical_features: _Optional[_Iterable[str]] = ..., framing: _Optional[_Union[Framing, str]] = ..., record_crc: _Optional[_Union[RecordCrc, str]] = ..., compression: _Optional[_Union[Compression, str]] = ..., shard_uuid: _Optional[bytes] = ..., stored_bytes: _Optional[int] = ..., decoded_bytes: _Optional[int] = ..., rows: _Optional[int] = ..., blocks: _Optional[int] = ..., crc32c: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., gaps: _Optional[_Iterable[_Union[Gap, _Mapping]]] = ..., writer: _Optional[str] = ...) -> None: ...
