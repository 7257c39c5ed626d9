"""Whole runs of blocks of a mapped, uncompressed TFRecord shard: compared and cut by one compiled call.

Promise: the same as `OpenShard`'s; what is not as its index says is left to it, which says what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio import kernels
from shardio.storage import advise_need

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.format import Buffer
    from shardio.metadata import IndexHead
    from shardio.reader._stats import ReadStats

__all__ = ["MappedRuns"]


class MappedRuns:
    """Cuts runs of blocks into payloads.

    Args:
        head: of the index.
        data: the mapped shard.
        frame_stop: the mapped column of the index.
        seen: one byte a block, 1 once it was compared; shared with whoever else compares.
        verify: compare the bytes with their checksums.
        stats: counts the blocks that are compared.
    """

    def __init__(
        self,
        head: IndexHead,
        data: Buffer,
        frame_stop: NDArray[np.uint32],
        seen: bytearray,
        *,
        verify: bool,
        stats: ReadStats,
    ) -> None:
        self._data = data
        self._populates = isinstance(data, memoryview)
        self._frame_stop = frame_stop
        self._seen = seen
        self._stats = stats
        # Of all blocks, made once: a run costs few calls.
        self._stops = head.block_row_stop.astype(np.int64)
        self._rows = np.diff(self._stops, prepend=0)
        self._bases = head.starts_of_blocks(np.arange(head.blocks))
        self._sizes = head.block_decoded_bytes.astype(np.int64)
        self._frame_crcs = head.block_frames_crc32c
        self._crcs = head.block_crc32c if verify else None

    def payloads(self, first: int, stop: int) -> list[bytes] | None:
        """Return all payloads of the blocks `first .. stop - 1`, or None where one of them is not right."""
        run = slice(first, stop)
        rows = self._rows[run]
        last = int(self._stops[stop - 1])
        part = self._frame_stop[last - int(rows.sum()) : last]
        if self._seen.find(0, first, stop) < 0:
            return kernels.slice_frames(self._data, self._bases[run], rows, part)
        self._populate(first, stop)
        crcs = None if self._crcs is None else self._crcs[run]
        checks = kernels.BlockChecks(self._sizes[run], self._frame_crcs[run], crcs)
        found = kernels.slice_blocks(self._data, self._bases[run], rows, part, checks)
        if found is not None:
            self._stats.blocks_opened += self._seen.count(0, first, stop)
            self._seen[run] = b"\1" * (stop - first)
        return found

    def _populate(self, first: int, stop: int) -> None:
        """Ask for all pages of a run by one call: met one by one, each sixteen cost a fault of their own."""
        if self._populates:
            end = int(self._bases[stop - 1] + self._sizes[stop - 1])
            # An older kernel, or a file system that cannot: pages come by faults, as ever.
            self._populates = advise_need(memoryview(self._data), int(self._bases[first]), end)
