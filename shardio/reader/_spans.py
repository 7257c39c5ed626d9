"""Runs of checked, decoded blocks, ready to be cut into payloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardio import kernels
from shardio.format import Framing, payload_bounds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.format import Buffer

__all__ = ["Span"]


@dataclass(frozen=True)
class Span:
    """Decoded bytes of some blocks, and where the payloads lie in them.

    Attributes:
        buffer: decoded bytes; a view of the mapped shard where nothing had to be decoded or copied.
        first_row: row of the first payload in its shard.
        starts, stops: int64, payload bounds in `buffer`, one a row.
    """

    buffer: Buffer
    first_row: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.starts)

    @classmethod
    def cut(
        cls,
        framing: Framing,
        buffer: Buffer,
        first_row: int,
        frame_stop: NDArray[np.uint32],
        rows: NDArray[np.int64],
        bases: NDArray[np.int64],
    ) -> Span:
        """Find the payloads of consecutive blocks.

        Args:
            framing: of the shard.
            buffer: decoded bytes of the blocks.
            first_row: row of the first frame.
            frame_stop: ends of the frames, each relative to its own block.
            rows: int64[blocks], number of rows of each block.
            bases: int64[blocks], where each block begins in `buffer`.
        """
        stops = frame_stop.astype(np.int64)
        starts = np.empty_like(stops)
        starts[1:] = stops[:-1]
        # Frames at the head of a block start at its beginning, not where the block before ended.
        heads = np.cumsum(rows) - rows
        starts[heads[rows > 0]] = 0
        shift = np.repeat(bases, rows)
        starts += shift
        stops += shift
        tails = None
        if framing is Framing.LINES:
            view = memoryview(buffer)
            tails = [
                bytes(view[max(a, b - 2) : b]) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
            ]
        return cls(buffer, first_row, *payload_bounds(framing, starts, stops, tails))

    def payloads(self) -> list[bytes]:
        """Return all payloads, in order."""
        return kernels.slice_records(self.buffer, self.starts, self.stops)

    def take(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Return the payloads of some rows of the shard, in the order given."""
        items = rows - self.first_row
        return kernels.slice_records(self.buffer, self.starts[items], self.stops[items])
