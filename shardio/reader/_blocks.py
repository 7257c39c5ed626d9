"""Blocks of a shard: compared with their checksums, decompressed, and cut into payloads.

A `Span` is some checked, decoded blocks and the places of their payloads; `BlockVerifier` compares many
blocks in one call; `Decoder` makes a span of stored bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardio import kernels
from shardio.errors import CorruptBlockError, FormatError
from shardio.format import Compression, Framing, check_block, decompress, payload_bounds
from shardio.metadata import check_frames_part, frames_fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.format import Buffer, Limits
    from shardio.metadata import IndexHead

__all__ = ["BlockVerifier", "Decoder", "Span", "layout"]


@dataclass(frozen=True)
class Span:
    """Decoded bytes of some blocks, and where the payloads are in them.

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


class BlockVerifier:
    """Compares blocks with what the head of their index says.

    Args:
        head: of the index.
        key, data_url, index_url: for messages.
    """

    def __init__(self, head: IndexHead, *, key: str, data_url: str, index_url: str) -> None:
        self._head = head
        self._key = key
        self._data_url = data_url
        self._index_url = index_url

    def frames(self, blocks: NDArray[np.int64], part: NDArray[np.uint32]) -> None:
        """Compare the parts of `frame_stop` of some blocks, one after another in `part`.

        Raises:
            FormatError: with shard, row and bytes of the index.
        """
        if not frames_fit(self._head, blocks, part):
            self._find_wrong_frames(blocks, part)

    def stored(self, blocks: NDArray[np.int64], buffer: Buffer, starts: NDArray[np.int64]) -> None:
        """Compare the stored bytes of some blocks, each of which begins at `starts` in `buffer`.

        Raises:
            CorruptBlockError: with shard, row and bytes.
        """
        head = self._head
        sizes = head.block_stop[blocks].astype(np.int64) - head.starts_of_blocks(blocks)
        found = kernels.crc32c_many(buffer, starts, starts + sizes)
        wrong = np.flatnonzero(found != head.block_crc32c[blocks])
        if not wrong.size:
            return
        first = int(wrong[0])
        block, start = int(blocks[first]), int(starts[first])
        try:
            check_block(memoryview(buffer)[start : start + int(sizes[first])], int(head.block_crc32c[block]))
        except CorruptBlockError as error:
            raise self.located(error, block) from error

    def located(self, error: CorruptBlockError, block: int) -> CorruptBlockError:
        """Return the error with the address of a block."""
        start, stop = self._head.block_bounds(block)
        row = self._head.block_rows(block)[0]
        copy = error.located(url=self._data_url, shard=self._key, row=row, start=start, stop=stop)
        assert isinstance(copy, CorruptBlockError)  # noqa: S101 - `located` keeps the type
        return copy

    def _find_wrong_frames(self, blocks: NDArray[np.int64], part: NDArray[np.uint32]) -> None:
        at = 0
        for block in blocks.tolist():
            a, b = self._head.block_rows(block)
            try:
                check_frames_part(self._head, block, part[at : at + b - a], url=self._index_url)
            except FormatError as error:
                raise error.located(shard=self._key, row=a) from error
            at += b - a
        raise FormatError("the frames of an index do not fit its head", url=self._index_url, shard=self._key)


class Decoder:
    """Decodes runs of blocks of one shard.

    Args:
        head: of its index.
        checks: compare blocks with the head.
        limits: upper bounds for decoding.
        verify: compare the stored bytes with their checksums first.
    """

    def __init__(self, head: IndexHead, checks: BlockVerifier, limits: Limits, *, verify: bool) -> None:
        self._head = head
        self._checks = checks
        self._limits = limits
        self._verify = verify

    def decode(self, run: tuple[int, int], part: NDArray[np.uint32], stored: memoryview) -> Span:
        """Return the span of a run, given its part of `frame_stop` and its stored bytes.

        Raises:
            CorruptBlockError: with shard, row and bytes.
        """
        first, stop = run
        head = self._head
        bases, rows = layout(head, first, stop)
        bases -= int(bases[0])
        if self._verify:
            self._checks.stored(np.arange(first, stop), stored, bases)
        buffer: Buffer = stored
        if head.compression is not Compression.NONE and not head.stream:
            ends = [*bases[1:].tolist(), len(stored)]
            decoded = [
                self._decompress(block, stored[a:b])
                for block, a, b in zip(range(first, stop), bases.tolist(), ends, strict=True)
            ]
            sizes = head.block_decoded_bytes[first:stop].astype(np.int64)
            bases = np.cumsum(sizes) - sizes
            buffer = decoded[0] if len(decoded) == 1 else b"".join(decoded)
        return Span.cut(head.framing, buffer, head.block_rows(first)[0], part, rows, bases)

    def _decompress(self, block: int, stored: memoryview) -> Buffer:
        head = self._head
        if block in head.gaps and not head.block_decoded_bytes[block]:
            return b""  # it may be damage that was left out, and need not decode
        try:
            return decompress(
                stored, head.compression, int(head.block_decoded_bytes[block]), limits=self._limits
            )
        except CorruptBlockError as error:
            raise self._checks.located(error, block) from error


def layout(head: IndexHead, first: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where blocks begin in the stored object, and their numbers of rows; int64[blocks]."""
    bases = np.empty(stop - first, np.int64)
    bases[0] = head.block_bounds(first)[0]
    bases[1:] = head.block_stop[first : stop - 1]
    row_stops = head.block_row_stop[first:stop].astype(np.int64)
    rows = row_stops.copy()
    rows[0] -= head.block_rows(first)[0]
    rows[1:] -= row_stops[:-1]
    return bases, rows
