"""A shard from its first byte to the last, in bounded pieces: what is compared without a usable index.

That is its size and checksum where a list names them, and its records in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeVar

from shardio import kernels
from shardio.errors import CorruptBlockError, CorruptRecordError, FormatError, NotFoundError, StorageError
from shardio.format import (
    DAMAGE_ADVICE,
    Compression,
    Framing,
    Limits,
    decode_stream,
    iterate_payloads,
    sniff_compression,
)
from shardio.maintenance._findings import UNREADABLE, Survey
from shardio.metadata import IndexHead, ShardEntry
from shardio.storage import DataFile

T = TypeVar("T")

# What a read can end with that says nothing about the data.
FAILED = (StorageError, NotFoundError)

# What is held at once: enough for a bucket to send with several requests at a time.
_RUN_BYTES = 16 << 20
_RUN_ROWS = 1 << 20
_AHEAD = 2


class StoredBytes:
    """One pass over an object.

    Attributes:
        crc32c: CRC-32C of the stored bytes so far.
    """

    def __init__(self, data: DataFile) -> None:
        self._data = data
        self.crc32c = 0

    def stored(self) -> Iterator[memoryview]:
        """Yield the stored bytes.

        Raises:
            StorageError, NotFoundError: the environment failed.
        """
        for piece in self._data.pieces(_RUN_BYTES):
            self.crc32c = kernels.crc32c(piece, self.crc32c)
            yield piece

    def decoded(self, compression: Compression, limits: Limits) -> Iterator[bytes]:
        """Yield the decoded bytes.

        Raises:
            FormatError: they do not decode.
            StorageError, NotFoundError: the environment failed.
        """
        stored = (bytes(piece) for piece in self.stored())
        yield from decode_stream(stored, compression, limits=limits)

    def sniff(self) -> Compression:
        """Tell from the first bytes how the object is compressed."""
        return sniff_compression(bytes(self._data.read(0, min(12, self._data.size))))


def read_ahead(begun: Iterable[T]) -> Iterator[T]:
    """Yield what was begun; while one is looked at, the next ones are on their way."""
    waiting: deque[T] = deque()
    for each in begun:
        waiting.append(each)
        if len(waiting) > _AHEAD:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def runs(head: IndexHead, *cuts: int) -> Iterator[tuple[int, int]]:
    """Yield half-open runs of consecutive blocks that are read together: bounded in bytes and in rows.

    No run goes over a cut, given by the number of the block behind it.
    """
    for first, stop in pairwise(sorted({0, *cuts, head.blocks})):
        yield from head.runs(first, stop, most_bytes=_RUN_BYTES, most_rows=_RUN_ROWS)


def check_records(
    survey: Survey, data: DataFile, *, shard: str, limits: Limits, compression: Compression | None = None
) -> int:
    """Read a TFRecord file from the start and note every record that is damaged.

    A wrong payload is left behind, because its length is right; after a wrong length nothing tells where the
    next record begins, so what follows stays unknown.

    Returns:
        How many records are right.
    """
    good = 0

    def skip(error: CorruptRecordError) -> None:
        survey.note("record", error, url=data.url, shard=shard, row_stop=(error.row or 0) + 1)

    whole = StoredBytes(data)
    try:
        decoded = whole.decoded(whole.sniff() if compression is None else compression, limits)
        for payloads in iterate_payloads(decoded, limits=limits, skip=skip):
            good += len(payloads)
    except CorruptRecordError as error:
        survey.note("record", error, url=data.url, shard=shard)
    except FormatError as error:
        survey.note("decode", error, url=data.url, shard=shard)
    except FAILED as error:
        survey.note(UNREADABLE, error, url=data.url, shard=shard)
    return good


def check_listed_bytes(survey: Survey, data: DataFile, entry: ShardEntry, *, limits: Limits) -> None:
    """Compare a shard whose index is of no use with what the list of shards says of its bytes."""
    try:
        wrong = _difference(StoredBytes(data), data, entry)
    except FAILED as error:
        survey.note(UNREADABLE, error, url=data.url, shard=entry.key)
        return
    if wrong is None:
        survey.good_records += entry.rows
        return
    survey.note(*wrong, url=data.url, shard=entry.key)
    if entry.framing is Framing.TFRECORD:
        survey.good_records += check_records(
            survey, data, shard=entry.key, limits=limits, compression=entry.compression
        )


def _difference(whole: StoredBytes, data: DataFile, entry: ShardEntry) -> tuple[str, FormatError] | None:
    """Return kind and error where size or checksum are not those of the list."""
    for _ in whole.stored():
        pass
    if data.size != entry.stored_bytes:
        return "size", size_error(entry.stored_bytes, data.size)
    if whole.crc32c != entry.crc32c:
        return "checksum", checksum_error(entry.crc32c, whole.crc32c)
    return None


def size_error(expected: int, found: int) -> CorruptBlockError:
    """Return the error of an object that was cut or grew."""
    return CorruptBlockError(
        "a shard was truncated" if found < expected else "a shard was overwritten or extended",
        expected=f"{expected} bytes",
        found=f"{found} bytes",
        advice=DAMAGE_ADVICE,
    )


def checksum_error(expected: int, found: int) -> CorruptBlockError:
    """Return the error of an object whose bytes are not those that were written."""
    return CorruptBlockError(
        "a shard does not match the checksum of the whole object",
        expected=f"CRC-32C {expected:#010x}",
        found=f"CRC-32C {found:#010x}",
        advice=DAMAGE_ADVICE,
    )
