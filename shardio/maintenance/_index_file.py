"""The index of a shard after its head: every block's part of `frame_stop`, the column, the file's end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio import kernels
from shardio.errors import FormatError, ShardioError
from shardio.maintenance._findings import UNREADABLE
from shardio.maintenance._stored_bytes import FAILED, runs
from shardio.metadata import INDEX_ADVICE, check_frames_part, check_index_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardio.maintenance._findings import Survey
    from shardio.metadata import IndexHead
    from shardio.storage import DataFile

__all__ = ["IndexFile"]


class IndexFile:
    """One pass over an index whose head was checked; the findings go to the survey."""

    def __init__(self, survey: Survey, head: IndexHead, index: DataFile, *, shard: str) -> None:
        self._survey = survey
        self._head = head
        self._index = index
        self._shard = shard
        self._crc32c = 0
        self._whole = True

    def parts(self) -> Iterator[NDArray[np.uint32] | None]:
        """Yield each block's part of `frame_stop`, or None where it is damaged or absent."""
        head = self._head
        try:
            size = self._index.size
        except FAILED as error:
            self._note(UNREADABLE, error)
            size = 0
        for first, stop in runs(head):
            start, end = head.frame_stop_bounds(first)[0], head.frame_stop_bounds(stop - 1)[1]
            base = head.block_rows(first)[0]
            column = self._read(start, min(end, start + max(0, size - start) // 4 * 4), first, stop)
            for block in range(first, stop):
                row, row_stop = head.block_rows(block)
                if column is None or row_stop - base > len(column):
                    yield None  # noted where the column was read, or with the size of the file
                else:
                    yield self._check(block, column[row - base : row_stop - base])

    def finish(self) -> None:
        """Check what `parts` did not see: the column as a whole, and what follows it."""
        head = self._head
        try:
            size = self._index.size
            if size != head.index_bytes:
                covered = max(0, min(head.rows, (size - head.frame_stop_offset) // 4))
                row, row_stop = (None, None) if covered == head.rows else (covered, head.rows)
                self._note("index", self._size_error(size), row=row, row_stop=row_stop)
                return
            if self._whole and self._crc32c != head.frames_crc32c:
                self._note("index", self._column_error())
            end = self._index.read(head.frame_stop_offset + 4 * head.rows, size)
            check_index_end(head, end, url=self._index.url)
        except FormatError as error:
            self._note("index", error)
        except FAILED as error:
            self._note(UNREADABLE, error)

    def _read(self, start: int, end: int, first: int, stop: int) -> NDArray[np.uint32] | None:
        try:
            column = np.frombuffer(self._index.read(start, end), "<u4").view(np.uint32)
        except FAILED as error:
            self._whole = False
            row, row_stop = self._head.block_rows(first)[0], self._head.block_rows(stop - 1)[1]
            self._note(UNREADABLE, error, row=row, row_stop=row_stop)
            return None
        self._crc32c = kernels.crc32c(column, self._crc32c)
        return column

    def _check(self, block: int, part: NDArray[np.uint32]) -> NDArray[np.uint32] | None:
        try:
            check_frames_part(self._head, block, part, url=self._index.url)
        except FormatError as error:
            self._whole = False
            row, row_stop = self._head.block_rows(block)
            self._note("frames", error, row=row, row_stop=row_stop)
            return None
        return part

    def _note(self, kind: str, error: ShardioError, **places: int | None) -> None:
        self._survey.note(kind, error, url=self._index.url, shard=self._shard, **places)

    def _size_error(self, size: int) -> FormatError:
        return FormatError(
            "an index has another size than its header says",
            expected=f"{self._head.index_bytes} bytes",
            found=f"{size} bytes",
            advice=INDEX_ADVICE,
        )

    def _column_error(self) -> FormatError:
        return FormatError(
            "column frame_stop of an index does not match its checksum, though each block's part does",
            expected=f"{self._head.frames_crc32c:#010x}",
            found=f"{self._crc32c:#010x}",
            advice=INDEX_ADVICE,
        )
