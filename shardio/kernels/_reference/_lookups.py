"""Records of one mapped shard at random, each compared with its own checksum: the reference."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.kernels._arguments import as_bytes, as_lookup, as_offsets, no_row
from shardio.kernels._reference._columns import frames_fit, index_fits

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from shardio.kernels._arguments import LookupColumns


class RecordLookup:
    """Finds payloads of TFRECORD frames in one buffer; safe to share among threads.

    Of a block that was compared as a whole a payload is cut out. Of any other one the index's part is
    compared first, once, then the frame: its length, both of its checksums, and that its payload's is the
    one that the index holds, so that a frame that was swapped with another is found.

    Args:
        buffer: the shard; its blocks are not compressed.
        columns: of its index. They and the buffer are not copied.
        seen: one byte a block, not 0 once all of it was compared; others write it, too.
    """

    def __init__(self, buffer: Any, columns: LookupColumns, seen: bytearray) -> None:
        self._data = as_bytes(buffer)
        self._columns = as_lookup(columns, seen)
        self._seen = seen
        self._compared = bytearray(len(seen))

    def record(self, row: int) -> bytes | None:
        """Return one payload; None where it was not compared and cannot be, or is not right.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < len(self._columns.frame_stops):
            raise no_row(row, len(self._columns.frame_stops))
        return self._record(row)

    def records(self, rows: ArrayLike) -> list[bytes] | None:
        """Return the payloads of some rows, in the order given; None where `record` returns None for any.

        Raises:
            IndexError: one of them is not there.
        """
        wanted, found = as_offsets(rows, "rows"), []
        for row in wanted[(wanted < 0) | (wanted >= len(self._columns.frame_stops))].tolist():
            raise no_row(row, len(self._columns.frame_stops))
        for row in wanted.tolist():
            payload = self._record(row)
            if payload is None:
                return None
            found.append(payload)
        return found

    def _record(self, row: int) -> bytes | None:
        columns, size = self._columns, self._data.size
        block = bisect_right(columns.block_row_stops, row)
        base = int(columns.block_stops[block - 1]) if block else 0
        first = int(columns.block_row_stops[block - 1]) if block else 0
        whole = bool(self._seen[block])
        if not whole and not self._compared[block]:
            if columns.records is None or not index_fits(columns, block, size):
                return None
            self._compared[block] = 1
        start = base + (int(columns.frame_stops[row - 1]) if row > first else 0)
        stop = base + int(columns.frame_stops[row])
        if stop - start < 16 or stop > size:
            return None
        if not whole and columns.records is not None:
            crcs = columns.records.checksums[row : row + 1]
            if not frames_fit(self._data, np.array([start]), np.array([stop - start - 16]), crcs):
                return None
        return self._data[start + 12 : stop - 4].tobytes()
