"""Records of one mapped shard in order, by blocks that are compared with their checksums: the reference."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from shardio.kernels._arguments import as_block_crcs, as_bytes, as_lookup, as_offsets, no_row
from shardio.kernels._checksums import crc32c
from shardio.kernels._reference._columns import index_fits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from shardio.kernels._arguments import LookupColumns


def slice_frames(buffer: Any, stops: ArrayLike, begin: int = 0) -> list[bytes] | None:
    """Return the payloads of TFRECORD frames that follow one another in a buffer; it is not compared.

    Args:
        buffer: bytes.
        stops: integers [n], where each frame ends.
        begin: where the first one begins.

    Returns:
        None where a frame is shorter than its head and its end, or leaves the buffer.
    """
    data, found = as_bytes(buffer), []
    for start, stop in pairwise([begin, *as_offsets(stops, "stops").tolist()]):
        if start < 0 or stop - start < 16 or stop > data.size:
            return None
        found.append(data[start + 12 : stop - 4].tobytes())
    return found


class RecordLists:
    """Cuts consecutive payloads of TFRECORD frames out of one buffer; safe to share among threads.

    Of a block that was not compared before, the index's part and then all bytes are compared with their
    checksums, once.

    Args:
        buffer: the shard; its blocks are not compressed.
        columns: of its index. They and the buffer are not copied.
        crcs: uint32[blocks], CRC-32C of each block, or None where that is not compared.
        seen: one byte a block, not 0 once all of it was compared; written here, and others write it, too.

    Attributes:
        opened: how many blocks were compared here.

    Raises:
        ValueError: lengths do not fit each other.
    """

    def __init__(
        self, buffer: Any, columns: LookupColumns, crcs: NDArray[np.uint32] | None, seen: bytearray
    ) -> None:
        self._data = as_bytes(buffer)
        self._columns = as_lookup(columns, seen)
        self._verify = crcs is not None
        self._crcs = as_block_crcs(crcs, len(seen))
        self._seen = seen
        self.opened = 0

    def take(self, first: int, stop: int) -> list[bytes] | None:
        """Return the payloads of the rows `first .. stop - 1`; None where one of their blocks is not right.

        The caller finds out what is wrong.

        Raises:
            IndexError: one of the rows is not there.
        """
        columns = self._columns
        rows = len(columns.frame_stops)
        if first < 0 or stop > rows:
            raise no_row(first if first < 0 else stop - 1, rows)
        found: list[bytes] = []
        row = first
        while row < stop:
            block = bisect_right(columns.block_row_stops, row)
            payloads = self._cut(block, row, min(stop, int(columns.block_row_stops[block])))
            if payloads is None:
                return None
            found += payloads
            row += len(payloads)
        return found

    def _cut(self, block: int, row: int, last: int) -> list[bytes] | None:
        """Return the payloads of the rows `row .. last - 1` of a block; None where it is not right."""
        columns, size = self._columns, self._data.size
        base = int(columns.block_stops[block - 1]) if block else 0
        if not self._seen[block]:
            if not index_fits(columns, block, size):
                return None
            stored = self._data[base : base + int(columns.block_sizes[block])]
            if self._verify and crc32c(stored) != self._crcs[block]:
                return None
            self._seen[block] = 1
            self.opened += 1
        head = int(columns.block_row_stops[block - 1]) if block else 0
        ends = [
            int(columns.frame_stops[row - 1]) if row > head else 0,
            *columns.frame_stops[row:last].tolist(),
        ]
        # A map may change under our feet, and then hold anything.
        start, *stops = [base + end for end in ends]
        return slice_frames(self._data, stops, start)
