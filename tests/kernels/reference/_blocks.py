"""Blocks and records of one shard by its index, compared before they are returned: the reference."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.reference._shared import as_bytes as as_array, as_index, crc32c, no_block, no_row


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
        if frames is None or as_array(frames).size != 4 * (last - first):
            return None
        ends = np.frombuffer(frames, np.uint32).astype(np.int64)
        size, view = stop - base, memoryview(as_array(buffer))
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

    def part_fits(self, number: int, ends: NDArray[np.int64]) -> bool:
        """Tell whether ends of a block's frames are those that the head means, and fill the block."""
        if crc32c(ends.astype(np.uint32)) != self.frame_crcs[number]:
            return False
        return not ends.size or bool(
            np.diff(ends, prepend=0).min() >= self.least and ends[-1] == self.block_sizes[number]
        )

    def read_rows(
        self,
        first: int,
        stop: int,
        buffer: Any,
        start: int,
        frames: Any = None,
        *,
        checked: NDArray[np.uint8] | None = None,
        as_bytes: bool,
    ) -> list[bytes] | NDArray[np.int64] | None:
        if not 0 <= first < stop <= self.rows or self._decode is not None or self.tail < 0:
            return None
        places = []
        block = bisect_right(self.block_row_stops, first)
        before = edges_of(self.block_row_stops, block)[0]
        while first < stop:
            low, high = edges_of(self.block_row_stops, block)
            crcs = self.block_crcs
            if checked is not None and checked[block]:
                self.block_crcs = None
            part = None
            if frames is not None:
                part = bytes(memoryview(frames).cast("B")[4 * (low - before) : 4 * (high - before)])
            opened = self.open_block(block, buffer, start, part)
            self.block_crcs = crcs
            if opened is None:
                return None
            if checked is not None:
                checked[block] = 1
            places.append(opened.places(first, min(stop, high)))
            first, start, block = (
                max(first, high),
                start + int(np.diff(edges_of(self.block_stops, block))[0]),
                block + 1,
            )
        found = np.concatenate(places, axis=1)
        if not as_bytes:
            return found
        view = memoryview(buffer)
        return [bytes(view[a:b]) for a, b in found.T.tolist()]


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
        if not self.first_row <= row < self.first_row + len(self):
            raise no_row(row, self.first_row + len(self))
        (start,), (stop,) = self.places(row, row + 1).tolist()
        return bytes(memoryview(self.buffer)[start:stop])

    def payloads(self, rows: Any) -> list[bytes]:
        return [self.payload(row) for row in np.asarray(rows).tolist()]

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


def edges_of(stops: NDArray[np.uint64], block: int) -> tuple[int, int]:
    """Return where a block begins and stops, given where each stops."""
    return int(stops[block - 1]) if block else 0, int(stops[block])
