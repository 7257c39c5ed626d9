"""From the stored bytes of a run of blocks to a span: compared, decompressed, cut into frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio.errors import CorruptBlockError
from shardio.format import Compression, decompress
from shardio.reader._spans import Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.format import Buffer, Limits
    from shardio.metadata import IndexHead
    from shardio.reader._checks import BlockChecks

__all__ = ["Decoder", "layout"]


class Decoder:
    """Decodes runs of blocks of one shard.

    Args:
        head: of its index.
        checks: compare blocks with the head.
        limits: upper bounds for decoding.
        verify: compare the stored bytes with their checksums first.
    """

    def __init__(self, head: IndexHead, checks: BlockChecks, limits: Limits, *, verify: bool) -> None:
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
