"""The stored bytes of an object from the first to the last, in bounded pieces, with their CRC on the way."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from shardio import kernels
from shardio.errors import NotFoundError, StorageError
from shardio.format import Compression, decode_stream, sniff_compression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardio.format import Limits
    from shardio.maintenance._findings import Survey
    from shardio.metadata import IndexHead
    from shardio.storage import DataFile

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

    def __init__(self, survey: Survey, data: DataFile) -> None:
        self._survey = survey
        self._data = data
        self.crc32c = 0

    def stored(self) -> Iterator[memoryview]:
        """Yield the stored bytes.

        Raises:
            StorageError, NotFoundError: the environment failed.
        """
        size = self._data.size
        starts = range(0, size, _RUN_BYTES)
        for wait in read_ahead(self._data, ((start, min(start + _RUN_BYTES, size)) for start in starts)):
            piece = wait()
            self.crc32c = kernels.crc32c(piece, self.crc32c)
            yield piece
            self._survey.advance(len(piece))

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


def read_ahead(data: DataFile, ranges: Iterable[tuple[int, int]]) -> Iterator[Callable[[], memoryview]]:
    """Yield what waits for each range of bytes; while one is looked at, the next ones are on their way."""
    begun: deque[Callable[[], list[memoryview]]] = deque()
    for start, stop in ranges:
        begun.append(data.begin_read([start], [stop]))
        if len(begun) > _AHEAD:
            yield partial(_only, begun.popleft())
    yield from (partial(_only, wait) for wait in begun)


def _only(wait: Callable[[], list[memoryview]]) -> memoryview:
    (view,) = wait()
    return view


def runs(head: IndexHead) -> Iterator[tuple[int, int]]:
    """Yield half-open runs of consecutive blocks that are read together: bounded in bytes and in rows."""
    return head.runs(0, head.blocks, most_bytes=_RUN_BYTES, most_rows=_RUN_ROWS)
