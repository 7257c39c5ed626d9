"""Frames that are in runs of a file: found by the index, and taken out of what was read: the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.kernels._arguments import FoundFrames, as_bytes, as_frame_bounds, as_lookup, as_offsets, as_out
from shardio.kernels._reference._columns import frames_fit, index_fits

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from shardio.kernels._arguments import LookupColumns


class FrameRuns:
    """Finds rows of one shard of TFRECORD frames in its file; safe to share among threads.

    The index's part of a block is compared once, before it is used: that the ends of its frames are those
    that the head means, and so are the checksums of its records, where there are any.

    Args:
        columns: of the index of a shard without compression. They are not copied.
        size: bytes of the shard.
    """

    def __init__(self, columns: LookupColumns, size: int) -> None:
        self._compared = bytearray(len(columns.block_stops))
        self._columns = as_lookup(columns, self._compared)
        self._size = size

    def find(self, rows: ArrayLike, near: int) -> FoundFrames | None:
        """Return where rows are; None where they do not ascend, or their part of the index is not right.

        Args:
            rows: int64, each greater than the one before.
            near: bytes that may be between two frames that are read by one call.
        """
        wanted, columns = as_offsets(rows, "rows"), self._columns
        if not wanted.size:
            return None
        if wanted[0] < 0 or wanted[-1] >= columns.frame_stops.size or (wanted[1:] <= wanted[:-1]).any():
            return None
        blocks = np.searchsorted(columns.block_row_stops, wanted.astype(np.uint64), side="right")
        for block in np.unique(blocks).tolist():
            if not self._compared[block]:
                if not index_fits(columns, block, self._size):
                    return None
                self._compared[block] = 1
        firsts = np.where(blocks > 0, columns.block_row_stops[blocks - 1], 0).astype(np.int64)
        bases = np.where(blocks > 0, columns.block_stops[blocks - 1], 0).astype(np.int64)
        starts = bases + np.where(wanted > firsts, columns.frame_stops[wanted - 1], 0)
        stops = bases + columns.frame_stops[wanted]
        # A map may change under our feet, and then hold anything.
        if bases.min() < 0 or stops.max() > self._size or (stops - starts).min() < 16:
            return None
        if (starts[1:] < stops[:-1]).any():
            return None
        first = np.flatnonzero(np.append(True, starts[1:] > stops[:-1] + near))
        begins, ends = starts[first], stops[np.append(first[1:], wanted.size) - 1]
        run = np.repeat(np.arange(first.size), np.diff(np.append(first, wanted.size)))
        before = np.cumsum(ends - begins) - (ends - begins)
        return FoundFrames(starts - (begins - before)[run], stops - starts - 16, first, begins, ends)


def take_frames(
    buffer: Any,
    starts: ArrayLike,
    lengths: ArrayLike,
    crcs: NDArray[np.uint32] | None,
    out: NDArray[np.uint8],
) -> bool:
    """Compare frames, and copy their payloads one after another to `out`, which they fill.

    `out` may be memory of the buffer, if no payload goes to where a frame is that comes after it.

    Args:
        buffer: any contiguous buffer.
        starts: int64[n], where frames begin in it.
        lengths: int64[n], bytes of their payloads.
        crcs: uint32[n], masked CRC-32C of each payload; None where nothing is to be compared.
        out: writable uint8.

    Returns:
        False where a frame has another length, or one of its checksums, or that of its payload, is another;
        `out` then holds anything.

    Raises:
        IndexError: a frame leaves the buffer.
        ValueError: `out` has another size, or there are not as many checksums as frames.
    """
    data = as_bytes(buffer)
    first, sizes = as_frame_bounds(starts, lengths, crcs, data.size)
    filled = as_out(out, int(sizes.sum()))
    if crcs is not None and not frames_fit(data, first, sizes, crcs):
        return False
    view = memoryview(data)
    payloads = zip((first + 12).tolist(), (first + sizes + 12).tolist(), strict=True)
    parts = [bytes(view[start:stop]) for start, stop in payloads]
    filled[:] = np.frombuffer(b"".join(parts), np.uint8)
    return True
