"""The decoded bytes of an object that is one compressed stream, by position.

Promise: reading on where an earlier read ended decodes every byte once; reading anywhere else decodes from
the start of the object, is counted, and is said once.  A few decoders are kept where they stand, so that
several threads may each read on in their own place.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from shardio.errors import ShardioError
from shardio.format import decode_stream
from shardio.storage import DataFile, ShortReadError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardio.format import Compression, Limits
    from shardio.metadata import IndexHead
    from shardio.reader._options import ReadStats

__all__ = ["StreamFile", "decoded_file"]

_PIECE = 4 << 20  # stored bytes of one request
_MOST_CURSORS = 4


def decoded_file(data: DataFile, head: IndexHead, limits: Limits, stats: ReadStats) -> DataFile:
    """Return the file that the blocks of an index are cut from: of a stream its decoded bytes."""
    if not head.stream:
        return data
    # Bytes of no record may stand first, such as a byte order mark.
    first = int(np.searchsorted(head.block_row_stop, 0, side="right"))
    begin = head.block_bounds(first)[0] if first < head.blocks else 0
    return StreamFile(data, head.compression, head.decoded_bytes, limits, stats, begin=begin)


class StreamFile(DataFile):
    """A file of decoded bytes over a file of compressed ones.

    Args:
        data: the compressed object.
        compression: of the object.
        decoded_bytes: how many bytes it decodes to.
        limits: upper bounds for decoding.
        stats: counts the reads that had to begin again.
        begin: where the first record begins: a read from there is one from the start.
    """

    def __init__(
        self,
        data: DataFile,
        compression: Compression,
        decoded_bytes: int,
        limits: Limits,
        stats: ReadStats,
        *,
        begin: int = 0,
    ) -> None:
        self.url = data.url
        self._data = data
        self._compression = compression
        self._size = decoded_bytes
        self._limits = limits
        self._stats = stats
        self._begin = begin
        # Taken out while it is used and put back afterwards, each in one atomic step: no lock to fork with.
        self._cursors: list[_Cursor] = []

    @property
    def size(self) -> int:
        """Number of decoded bytes."""
        return self._size

    def read(self, start: int, stop: int) -> memoryview:
        """Return decoded bytes.

        Raises:
            ShortReadError: the stream ends before `stop`.
            FormatError: it does not decode.
            StorageError: the environment failed.
        """
        cursor = self._take(start)
        try:
            view = cursor.read(start, stop)
        except ShardioError as error:
            # The decoder is of no use any more.
            raise error.located(url=self.url) from error
        self._cursors.append(cursor)
        del self._cursors[:-_MOST_CURSORS]
        return view

    def read_many(
        self, starts: Sequence[int] | NDArray[np.int64], stops: Sequence[int] | NDArray[np.int64]
    ) -> list[memoryview]:
        """Return several ranges, in the order asked; they are decoded by rising position."""
        out: list[memoryview] = [memoryview(b"")] * len(starts)
        for item in np.argsort(np.asarray(starts), kind="stable").tolist():
            out[item] = self.read(int(starts[item]), int(stops[item]))
        return out

    def close(self) -> None:
        """Release the decoders and the object."""
        self._cursors.clear()
        self._data.close()

    def _take(self, start: int) -> _Cursor:
        """Return the decoder that has the least to skip before `start`."""
        for cursor in sorted(self._cursors, key=lambda one: one.start, reverse=True):
            if cursor.start <= start:
                try:
                    self._cursors.remove(cursor)
                except ValueError:  # another thread was faster
                    continue
                return cursor
        if start > self._begin:
            self._stats.streams_restarted += 1
            if self._stats.streams_restarted == 1:
                warnings.warn(
                    f"{self.url} is one compressed stream: a record in its middle is decoded from the start "
                    "of the file. Read such shards in order, or convert them once for random access",
                    stacklevel=2,
                )
        return _Cursor(decode_stream(_pieces(self._data), self._compression, limits=self._limits))


class _Cursor:
    """A decoder at work, and the decoded bytes from the beginning of the last read on.

    Attributes:
        start: position of the first byte that it still holds.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.start = 0
        self._held = bytearray()
        self._pieces = pieces

    def read(self, start: int, stop: int) -> memoryview:
        """Return decoded bytes; `start` is not before `self.start`."""
        while self.start + len(self._held) < stop:
            self._forget(start)
            piece = next(self._pieces, None)
            if piece is None:
                found = self.start + len(self._held)
                what = "a compressed stream ends before the bytes asked for"
                raise ShortReadError(what, start=start, stop=stop, expected=stop - start, found=found - start)
            self._held += piece
        self._forget(start)
        return memoryview(bytes(memoryview(self._held)[: stop - start]))

    def _forget(self, start: int) -> None:
        done = min(start - self.start, len(self._held))
        if done:
            del self._held[:done]
            self.start += done


def _pieces(data: DataFile) -> Iterator[bytes]:
    """Yield the stored bytes; the next request is under way while a piece is decoded."""
    size = data.size
    wait = data.begin_read([0], [min(_PIECE, size)]) if size else None
    start = 0
    while wait is not None:
        here = wait
        start += _PIECE
        wait = data.begin_read([start], [min(start + _PIECE, size)]) if start < size else None
        yield bytes(here()[0])
