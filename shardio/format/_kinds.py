"""The kinds of things a shard is made of, with the numbers that files hold.

The numbers are those of `protos/shardio/v1/index.proto`; a test holds the two together, so that this room
needs no protobuf.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Compression", "Framing", "RecordCrc"]


class Framing(IntEnum):
    """How one record is in the shard's decoded bytes."""

    TFRECORD = 1
    RAW = 2
    LINES = 3
    TAR_SAMPLE = 4


class Compression(IntEnum):
    """How the stored bytes of a block become its decoded bytes."""

    NONE = 1
    ZSTD = 2
    GZIP = 3
    ZLIB = 4  # only as one stream of a whole shard

    @property
    def suffix(self) -> str:
        """The end of a shard's name after `.tfrecord`."""
        return {
            Compression.NONE: "",
            Compression.ZSTD: ".zst",
            Compression.GZIP: ".gz",
            Compression.ZLIB: ".zz",
        }[self]

    @classmethod
    def parse(cls, name: str | None) -> Compression:
        """Return the compression a writer's option names: None, "none", "zstd", "gzip" or "zlib".

        Raises:
            ValueError: any other name.
        """
        known = {None: cls.NONE, "none": cls.NONE, "zstd": cls.ZSTD, "gzip": cls.GZIP, "zlib": cls.ZLIB}
        if name not in known:
            message = f'compression must be None, "zstd", "gzip" or "zlib", not {name!r}'
            raise ValueError(message)
        return known[name]


class RecordCrc(IntEnum):
    """What the two checksums of a TFRECORD frame are."""

    ABSENT = 0  # framings without checksums of their own
    CRC32C = 1
    CRC32 = 2
    UNCHECKED = 3
