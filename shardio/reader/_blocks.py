"""Blocks of a shard: compared with their checksums, decompressed, and cut into payloads.

A `Span` is some checked, decoded blocks and the places of their payloads; `BlockVerifier` compares many
blocks in one call; `Decoder` makes a span of stored bytes; `BlockLookup` finds single records in mapped
shards whose blocks are compressed; `DecodedBlocks` holds those that were decoded last.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardio import kernels
from shardio.errors import CorruptBlockError, FormatError
from shardio.format import (
    TFRECORD_HEAD,
    TFRECORD_TAIL,
    Compression,
    Framing,
    check_block,
    decompress,
    payload_bounds,
)
from shardio.metadata import check_frames_part, frames_fit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardio.format import Buffer, Limits
    from shardio.metadata import IndexHead
    from shardio.reader._options import ReadStats

_FRAME = TFRECORD_HEAD + TFRECORD_TAIL


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


_NO_STOPS, _NO_CRCS = np.zeros(0, np.int64), np.zeros(0, np.uint32)


class FetchedFrames(NamedTuple):
    """Bytes of some blocks, and where the frames of consecutive rows are in them.

    Attributes:
        buffer: the blocks, decoded.
        edges: uint32 [rows + 1], where each frame begins, and where the last one stops.
        stops, crcs: int64 and uint32 [blocks], where each block stops and its CRC-32C, which are to be
            compared; empty where they were, or need not be.
        again: fetches blocks that are not right once more, past every cache, and compares them: they may have
            been hurt on their way only. It raises what `OpenShard.begin_frames` says.
    """

    buffer: Buffer
    edges: NDArray[np.uint32]
    stops: NDArray[np.int64] = _NO_STOPS
    crcs: NDArray[np.uint32] = _NO_CRCS
    again: Callable[[], FetchedFrames] | None = None

    def in_wrong_blocks(self) -> NDArray[np.bool_]:
        """Return which frames are in blocks that are not right, bool [rows]."""
        starts = np.concatenate([[0], self.stops[:-1]])[: self.stops.size]
        right = kernels.crc32c_many(self.buffer, starts, self.stops) == self.crcs
        wrong = np.append(~right, False)  # the last entry stands for frames that need not be compared
        return wrong[np.searchsorted(self.stops, self.edges[1:], side="left")]


class DecodedRuns(NamedTuple):
    """Runs of blocks, compared and decoded.

    Attributes:
        buffers: each block; or, of blocks that follow one another in their shard, one buffer of all.
        bases: int64 [blocks], where each begins in its buffer.
        firsts: int64 [blocks], the first row of each.
        rows: int64 [blocks], number of rows of each.
    """

    buffers: Sequence[Buffer]
    bases: NDArray[np.int64]
    firsts: NDArray[np.int64]
    rows: NDArray[np.int64]

    def frames(
        self, part: NDArray[np.uint32], rows: Sequence[tuple[int, int]], runs: Sequence[tuple[int, int]]
    ) -> list[list[FetchedFrames]]:
        """Return the frames of runs of rows.

        Args:
            part: uint32, the parts of `frame_stop` of the blocks, whose frames fill them.
            rows: runs of rows, each of which begins in the first block of its run of blocks and ends in the
                last one.
            runs: `[first, stop)` of blocks, which are these blocks.
        """
        if len(self.buffers) < self.rows.size:
            ((low, high),) = np.asarray(rows) - self.firsts[0]
            edges = np.zeros(part.size + 1, np.uint32)
            np.add(part, np.repeat(self.bases, self.rows), out=edges[1:], casting="unsafe")
            return [[FetchedFrames(self.buffers[0], edges[low : high + 1])]]
        # Before the ends of the frames of each block, the beginning of its first one.
        heads = np.cumsum(self.rows) - self.rows
        edges = np.insert(part, heads, 0)
        heads += np.arange(heads.size)
        counts = [stop - first for first, stop in runs]
        wanted = np.repeat(np.asarray(rows), counts, axis=0) - self.firsts[:, None]
        starts = (heads + np.maximum(wanted[:, 0], 0)).tolist()
        stops = (heads + np.minimum(wanted[:, 1], self.rows) + 1).tolist()
        frames = [
            FetchedFrames(buffer, edges[start:stop])
            for buffer, start, stop in zip(self.buffers, starts, stops, strict=True)
        ]
        return [frames[end - count : end] for count, end in zip(counts, np.cumsum(counts), strict=True)]


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
        blocks = np.arange(*run)
        starts = self._head.starts_of_blocks(blocks)
        buffers, bases, firsts, rows = self.blocks(blocks, stored, starts - starts[0])
        buffer = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        if len(buffers) > 1:
            sizes = self._head.block_decoded_bytes[blocks].astype(np.int64)
            bases = np.cumsum(sizes) - sizes
        return Span.cut(self._head.framing, buffer, int(firsts[0]), part, rows, bases)

    def blocks(self, blocks: NDArray[np.int64], buffer: memoryview, starts: NDArray[np.int64]) -> DecodedRuns:
        """Return some blocks, each of which begins at `starts` in `buffer` as it is stored.

        Blocks that need no decoding follow one another there.

        Raises:
            CorruptBlockError: with shard, row and bytes.
        """
        head = self._head
        if self._verify:
            self._checks.stored(blocks, buffer, starts)
        rows = head.rows_of_blocks(blocks)
        firsts = head.block_row_stop[blocks].astype(np.int64) - rows
        if head.compression is Compression.NONE or head.stream:
            return DecodedRuns([buffer], starts, firsts, rows)
        decoded = list(self._each(blocks, buffer, starts))
        return DecodedRuns(decoded, np.zeros_like(rows), firsts, rows)

    def payloads(
        self, run: tuple[int, int], part: NDArray[np.uint32], stored: memoryview, rows: tuple[int, int]
    ) -> list[bytes] | None:
        """Return the payloads of the rows `[first, stop)` that are in a run of compressed TFRECORD blocks.

        Decoded and cut one by one, blocks stay in the processor's cache, and each takes the memory of the one
        before.

        Args:
            run, part, stored: as of `decode`.
            rows: of the shard.

        Returns:
            None where a frame is none, which a span of these blocks says.

        Raises:
            CorruptBlockError: with shard, row and bytes.
        """
        blocks, stops = np.arange(*run), part.astype(np.int64)
        starts = self._head.starts_of_blocks(blocks)
        starts -= starts[0]
        if self._verify:
            self._checks.stored(blocks, stored, starts)
        row = first = self._head.block_rows(run[0])[0]
        found: list[bytes] = []
        ends = self._head.block_row_stop[slice(*run)].tolist()
        for buffer, end in zip(self._each(blocks, stored, starts), ends, strict=True):
            begin, stop = max(row, rows[0]), min(end, rows[1])
            if begin < stop:
                start = int(stops[begin - first - 1]) if begin > row else 0
                cut = kernels.slice_frames(buffer, stops[begin - first : stop - first], start)
                if cut is None:
                    return None
                found += cut
            row = end
        return found

    def _each(
        self, blocks: NDArray[np.int64], buffer: memoryview, starts: NDArray[np.int64]
    ) -> Iterator[Buffer]:
        head = self._head
        stops = starts + head.block_stop[blocks].astype(np.int64) - head.starts_of_blocks(blocks)
        for block, start, stop in zip(blocks.tolist(), starts.tolist(), stops.tolist(), strict=True):
            yield self._decompress(block, buffer[start:stop])

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


class DecodedBlock(NamedTuple):
    """One checked, decoded block, for lookups.

    Attributes:
        first_row: row of the first payload in its shard.
        buffer: decoded bytes.
        starts, stops: payload bounds in `buffer`.
    """

    first_row: int
    buffer: Buffer
    starts: Sequence[int]
    stops: Sequence[int]

    @classmethod
    def of(cls, span: Span) -> DecodedBlock:
        """Return the block that a span of one block is."""
        return cls(span.first_row, span.buffer, memoryview(span.starts), memoryview(span.stops))

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.buffer) + 16 * len(self.starts)

    def payload(self, row: int) -> bytes:
        """Return the payload of a row of the shard."""
        k = row - self.first_row
        return bytes(self.buffer[self.starts[k] : self.stops[k]])


class DecodedBlocks:
    """The decoded blocks that lookups used last; safe to share among threads and with forked children.

    Nothing waits for its lock: where another thread holds it, or held it when this process was forked, a
    block is not kept.

    Args:
        max_bytes: that all of them together take, at most.
    """

    def __init__(self, max_bytes: int) -> None:
        self._most = max_bytes
        self._size = 0
        self._blocks: OrderedDict[tuple[bytes, int], DecodedBlock] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, shard: bytes, number: int) -> DecodedBlock | None:
        """Return a block of a shard, given by the digest of its index; None where it is not kept."""
        key = (shard, number)
        found = self._blocks.get(key)
        if found is not None and self._lock.acquire(blocking=False):
            try:
                if key in self._blocks:
                    self._blocks.move_to_end(key)
            finally:
                self._lock.release()
        return found

    def keep(self, shard: bytes, number: int, block: DecodedBlock) -> None:
        """Keep a block, and forget those that were not used for longest."""
        if block.size > self._most or not self._lock.acquire(blocking=False):
            return
        try:
            if (shard, number) not in self._blocks:
                self._blocks[shard, number] = block
                self._size += block.size
                while self._size > self._most:
                    _, oldest = self._blocks.popitem(last=False)
                    self._size -= oldest.size
        finally:
            self._lock.release()


class BlockLookup:
    """Finds single records of a mapped shard of TFRECORD frames whose blocks are compressed.

    What `Decoder` does for runs of blocks costs dozens of NumPy calls, several times what decoding a small
    block does.  The same rules hold, and whatever does not pass them is left to `OpenShard`, which says what
    is wrong.

    Args:
        head: of the index.
        data: the mapped shard.
        frame_stop: the mapped column of the index.
        limits: upper bounds for decoding.
        stats: counts the blocks that are decoded.
        verify: compare the stored bytes with their checksums first.
        kept: blocks that were decoded before, or None.
    """

    def __init__(
        self,
        head: IndexHead,
        data: memoryview,
        frame_stop: NDArray[np.uint32],
        limits: Limits,
        stats: ReadStats,
        *,
        verify: bool,
        kept: DecodedBlocks | None,
    ) -> None:
        self._head = head
        self._data = data
        self._frame_stop = frame_stop
        self._limits = limits
        self._stats = stats
        self._verify = verify
        self._kept = kept
        # Items of a memoryview are Python's integers, at a third of the price of NumPy's.
        self._row_stops = memoryview(head.block_row_stop)
        self._stops = memoryview(head.block_stop)
        self._sizes = memoryview(head.block_decoded_bytes)
        self._frame_crcs = memoryview(head.block_frames_crc32c)
        self._crcs = memoryview(head.block_crc32c)

    def record(self, row: int) -> bytes | None:
        """Return one payload; None where something is not right."""
        number = bisect_right(self._row_stops, row)
        block = self._block(number)
        return None if block is None else block.payload(row)

    def records(self, rows: NDArray[np.int64]) -> list[bytes] | None:
        """Return some payloads, int64 in any order, in that order; None where something is not right."""
        out = [b""] * len(rows)
        order = np.argsort(rows, kind="stable")
        last, block = -1, None
        numbers = np.searchsorted(self._head.block_row_stop, rows.astype(np.uint64), side="right")[order]
        for k, number, row in zip(order.tolist(), numbers.tolist(), rows[order].tolist(), strict=True):
            if number != last:
                last, block = number, self._block(number)
            if block is None:
                return None
            out[k] = block.payload(row)
        return out

    def _block(self, number: int) -> DecodedBlock | None:
        kept, shard = self._kept, self._head.head_sha256
        block = None if kept is None else kept.get(shard, number)
        if block is None:
            block = self._decoded(number)
            if block is not None and kept is not None:
                kept.keep(shard, number, block)
        return block

    def _decoded(self, number: int) -> DecodedBlock | None:
        first = self._row_stops[number - 1] if number else 0
        frames = self._frame_stop[first : self._row_stops[number]]
        stored = self._data[self._stops[number - 1] if number else 0 : self._stops[number]]
        if kernels.crc32c(frames) != self._frame_crcs[number]:
            return None
        if self._verify and kernels.crc32c(stored) != self._crcs[number]:
            return None
        size = self._sizes[number]
        try:
            buffer = decompress(stored, self._head.compression, size, limits=self._limits)
        except CorruptBlockError:
            return None  # and told by `OpenShard`
        self._stats.blocks_opened += 1
        if len(frames) == 1:
            only = int(frames[0])
            whole = only == size >= _FRAME
            return DecodedBlock(first, buffer, (TFRECORD_HEAD,), (only - TFRECORD_TAIL,)) if whole else None
        stops = frames.astype(np.int64)
        starts = np.empty_like(stops)
        starts[0], starts[1:] = 0, stops[:-1]
        if stops[-1] != size or int((stops - starts).min()) < _FRAME:
            return None
        starts += TFRECORD_HEAD
        stops -= TFRECORD_TAIL
        return DecodedBlock(first, buffer, memoryview(starts), memoryview(stops))
