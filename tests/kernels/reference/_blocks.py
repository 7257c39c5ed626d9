"""Blocks and records of one shard by its index, compared before they are returned: the reference."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.kernels.reference._frames import check_frames
from tests.kernels.reference._shared import as_bytes, as_index, as_offsets, crc32c, no_block, no_row


class ShardIndex:
    def __init__(
        self,
        block_stops: NDArray[np.uint64],
        block_row_stops: NDArray[np.uint64],
        block_sizes: NDArray[np.uint32],
        frame_crcs: NDArray[np.uint32],
        *,
        frame_stops: NDArray[np.uint32] | None = None,
        block_crcs: NDArray[np.uint32] | None = None,
        bounds: tuple[int, int, int] = (12, 4, 16),
        decode: Callable[[Any, int], Any] | None = None,
    ) -> None:
        by_block = (block_row_stops, block_sizes, frame_crcs, block_crcs)
        self.rows = as_index(len(block_stops), by_block, (frame_stops,))
        self.block_stops, self.block_row_stops, self.block_sizes = block_stops, block_row_stops, block_sizes
        self.frame_crcs, self.frame_stops = frame_crcs, frame_stops
        self.block_crcs = block_crcs
        self.head, self.tail, self.least = bounds
        self._decode = decode
        self._compared = bytearray(len(block_stops))

    def open_block(self, number: int, buffer: Any, start: int = 0, frames: Any = None) -> OpenBlock | None:
        if not 0 <= number < len(self.block_stops):
            raise no_block(number, len(self.block_stops))
        base, stop = edges_of(self.block_stops, number)
        first, last = edges_of(self.block_row_stops, number)
        if frames is None and self.frame_stops is not None:
            frames = self.frame_stops[first:last].copy()
        if frames is None or as_bytes(frames).size != 4 * (last - first):
            return None
        ends = np.frombuffer(frames, np.uint32).astype(np.int64)
        size, view = stop - base, memoryview(as_bytes(buffer))
        if not self.part_fits(number, ends) or size < 0 or not 0 <= start <= len(view) - size:
            return None
        if self.block_crcs is not None and crc32c(view[start : start + size]) != self.block_crcs[number]:
            return None
        decoded_size = int(self.block_sizes[number])
        if self._decode is not None:
            # Of a gap nothing is decoded: it may be damage that was left out.
            stored = memoryview(buffer)[start : start + size]
            buffer = self._decode(stored, decoded_size) if ends.size else b""
            start, size = 0, len(buffer)
        if ends.size and size != decoded_size:
            return None
        return OpenBlock(self, buffer, start, first, ends)

    def has_right_frames(self) -> bool:
        parts = [edges_of(self.block_row_stops, number) for number in range(len(self.block_stops))]
        return self.frame_stops is not None and all(
            self.part_fits(number, self.frame_stops[first:stop].astype(np.int64))
            for number, (first, stop) in enumerate(parts)
        )

    def part_fits(self, number: int, ends: NDArray[np.int64]) -> bool:
        """Tell whether ends of a block's frames are those that the head means, and fill the block."""
        if crc32c(ends.astype(np.uint32)) != self.frame_crcs[number]:
            return False
        return not ends.size or bool(
            np.diff(ends, prepend=0).min() >= self.least and ends[-1] == self.block_sizes[number]
        )

    def fits(self, number: int, shard: int) -> bool:
        """Tell whether a block's part of the index is right, and the block is in a shard of so many bytes.

        Args:
            number: of the block, which has rows.
            shard: bytes of the shard.
        """
        if self._compared[number]:
            return True
        base, _ = edges_of(self.block_stops, number)
        first, last = edges_of(self.block_row_stops, number)
        if self.frame_stops is None or first >= last or base + int(self.block_sizes[number]) > shard:
            return False
        if not self.part_fits(number, self.frame_stops[first:last].astype(np.int64)):
            return False
        self._compared[number] = 1
        return True


class OpenBlock:
    def __init__(
        self, index: ShardIndex, buffer: Any, base: int, first_row: int, ends: NDArray[np.int64]
    ) -> None:
        self.buffer, self.base, self.first_row = buffer, base, first_row
        self.edges = np.append(np.uint32(0), ends.astype(np.uint32))
        self._index = index

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.edges) - 1

    @property
    def nbytes(self) -> int:
        return len(self.buffer) + 4 * (len(self) + 1)

    def payload(self, row: int) -> bytes:
        return self.take(np.array([row]))[0]

    def payloads(self, first: int, stop: int) -> list[bytes]:
        return self.take(np.arange(max(first, self.first_row), min(stop, self.first_row + len(self))))

    def take(self, rows: ArrayLike) -> list[bytes]:
        view, found = memoryview(self.buffer), []
        for row in as_offsets(rows, "rows").tolist():
            if not self.first_row <= row < self.first_row + len(self):
                raise no_row(row, self.first_row + len(self))
            (start,), (stop,) = self.places(row, row + 1).tolist()
            found.append(bytes(view[start:stop]))
        return found

    def places(self, first: int, stop: int) -> NDArray[np.int64]:
        low, high = max(first - self.first_row, 0), min(stop - self.first_row, len(self))
        edges = self.edges[low : max(low, high) + 1].astype(np.int64) + self.base
        starts, stops, tail = edges[:-1] + self._index.head, edges[1:].copy(), self._index.tail
        if tail >= 0:
            return np.stack([starts, stops - tail])
        view = memoryview(self.buffer)
        for k, (begin, end) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            line = bytes(view[max(begin, end - 2) : end])
            stops[k] -= 2 if line == b"\r\n" else line.endswith(b"\n")
        return np.stack([starts, stops])


class MappedRecords:
    def __init__(self, buffer: Any, index: ShardIndex, seen: bytearray, *, alone: bool) -> None:
        if len(seen) != len(index.block_stops) or index.frame_stops is None:
            raise no_block(len(seen), len(index.block_stops))
        self._data = as_bytes(buffer)
        self._index = index
        self._frame_stops = index.frame_stops
        self._seen = seen
        self._alone = alone
        self.opened = 0

    def take(self, first: int, stop: int) -> list[bytes] | None:
        if first < 0 or stop > self._index.rows:
            raise no_row(first if first < 0 else stop - 1, self._index.rows)
        rows = np.arange(first, stop)
        if self.compare(self._blocks_of(rows)) >= 0:
            return None
        return self.records(rows)

    def compare(self, blocks: ArrayLike) -> int:
        block: int
        for block in as_offsets(blocks, "blocks").tolist():
            if not 0 <= block < len(self._seen):
                raise no_block(block, len(self._seen))
            if not self._seen[block]:
                base, stop = edges_of(self._index.block_stops, block)
                crcs = self._index.block_crcs
                if not self._index.fits(block, self._data.size):
                    return block
                if crcs is not None and crc32c(self._data[base:stop]) != crcs[block]:
                    return block
                self._seen[block] = 1
                self.opened += 1
        return -1

    def places(self, rows: ArrayLike) -> NDArray[np.int64] | None:
        wanted = self._rows(rows)
        if not all(self._seen[block] for block in self._blocks_of(wanted).tolist()):
            return None
        found = [self._bounds(row) for row in wanted.tolist()]
        if None in found:
            return None
        starts, stops = np.array(found, np.int64).reshape(-1, 2).T
        return np.stack([starts + 12, stops - 4])

    def record(self, row: int) -> bytes | None:
        found = self.records([row])
        return None if found is None else found[0]

    def records(self, rows: ArrayLike) -> list[bytes] | None:
        found = []
        for row in self._rows(rows).tolist():
            frame = self._find(row)
            if frame is None:
                return None
            found.append(self._data[frame[0] + 12 : frame[1] - 4].tobytes())
        return found

    def _rows(self, rows: ArrayLike) -> NDArray[np.int64]:
        wanted = as_offsets(rows, "rows")
        for row in wanted[(wanted < 0) | (wanted >= self._index.rows)].tolist():
            raise no_row(row, self._index.rows)
        return wanted

    def _blocks_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._index.block_row_stops, rows.astype(np.uint64), side="right")

    def _find(self, row: int) -> tuple[int, int] | None:
        """Return where the frame of a row is; None where it is not right, or not compared and cannot be."""
        block = bisect_right(self._index.block_row_stops, row)
        whole = bool(self._seen[block])
        if not whole and not (self._alone and self._index.fits(block, self._data.size)):
            return None
        frame = self._bounds(row)
        if frame is None or whole:
            return frame
        size = np.array([frame[1] - frame[0] - 16])
        return frame if frames_fit(self._data, np.array([frame[0]]), size) else None

    def _bounds(self, row: int) -> tuple[int, int] | None:
        """Return where the frame of a row is; None where it is not in the shard."""
        block = bisect_right(self._index.block_row_stops, row)
        if block >= len(self._seen):
            return None
        base, _ = edges_of(self._index.block_stops, block)
        first, _ = edges_of(self._index.block_row_stops, block)
        start = base + (int(self._frame_stops[row - 1]) if row > first else 0)
        stop = base + int(self._frame_stops[row])
        # A map may change under our feet, and then hold anything.
        return (start, stop) if stop - start >= 16 and stop <= self._data.size else None


def edges_of(stops: NDArray[np.uint64], block: int) -> tuple[int, int]:
    """Return where a block begins and stops, given where each stops."""
    return int(stops[block - 1]) if block else 0, int(stops[block])


def frames_fit(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> bool:
    """Tell whether frames in a buffer have these lengths and match their two checksums.

    Args:
        data: the buffer.
        starts, lengths: int64[n], of the frames and of their payloads.
    """
    return check_frames(data, starts, starts + lengths + 16) < 0


def cut_frames(frames: Sequence[Any]) -> list[bytes] | None:
    found = []
    for frame in frames:
        data = as_bytes(frame)
        if data.size < 16 or not frames_fit(data, np.array([0]), np.array([data.size - 16])):
            return None
        found.append(data[12:-4].tobytes())
    return found
