"""Records of one mapped shard at random, each compared with its own checksum: the reference."""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.kernels._arguments import as_bytes, as_lookup, as_offsets, no_row
from shardio.kernels._checksums import crc32c, mask_crc

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from shardio.kernels._arguments import LookupColumns

_HEAD = struct.Struct("<QI")


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
        self._data = memoryview(as_bytes(buffer))
        self._columns = as_lookup(columns, seen)
        self._seen = seen
        self._compared = bytearray(len(seen))

    def record(self, row: int) -> bytes | None:
        """Return one payload; None where it was not compared and cannot be, or is not right.

        Raises:
            IndexError: there is no such row.
        """
        columns = self._columns
        if not 0 <= row < len(columns.frame_stops):
            raise no_row(row, len(columns.frame_stops))
        block = bisect_right(columns.block_row_stops, row)
        base = int(columns.block_stops[block - 1]) if block else 0
        first = int(columns.block_row_stops[block - 1]) if block else 0
        whole = bool(self._seen[block])
        if not whole and not self._compared[block]:
            if not self._index_fits(block, base, first):
                return None
            self._compared[block] = 1
        start = base + (int(columns.frame_stops[row - 1]) if row > first else 0)
        stop = base + int(columns.frame_stops[row])
        if stop - start < 16 or stop > len(self._data):
            return None
        payload = bytes(self._data[start + 12 : stop - 4])
        if not whole and not self._fits(row, start, stop, payload):
            return None
        return payload

    def records(self, rows: ArrayLike) -> list[bytes] | None:
        """Return the payloads of some rows, in the order given; None where `record` returns None for any."""
        found = []
        for row in as_offsets(rows, "rows").tolist():
            payload = self.record(row)
            if payload is None:
                return None
            found.append(payload)
        return found

    def _index_fits(self, block: int, base: int, first: int) -> bool:
        columns = self._columns
        if columns.records is None:
            return False
        stop = int(columns.block_row_stops[block])
        ends = columns.frame_stops[first:stop]
        sizes = np.diff(ends.astype(np.int64), prepend=0)
        size = int(columns.block_sizes[block])
        return bool(
            crc32c(ends) == columns.frame_crcs[block]
            and crc32c(columns.records.checksums[first:stop]) == columns.records.block_crcs[block]
            and sizes.min() >= 16
            and ends[-1] == size
            and base + size <= len(self._data)
        )

    def _fits(self, row: int, start: int, stop: int, payload: bytes) -> bool:
        length, length_crc = _HEAD.unpack_from(self._data, start)
        records = self._columns.records
        assert records is not None  # noqa: S101 - for the type checker: `_index_fits` has returned True
        crc = int(records.checksums[row])
        return bool(
            length == len(payload)
            and mask_crc(crc32c(self._data[start : start + 8])) == length_crc
            and mask_crc(crc32c(payload)) == crc
            and bytes(self._data[stop - 4 : stop]) == crc.to_bytes(4, "little")
        )
