"""Blocks of a shard: fetched in runs, opened one by one, and kept where lookups may want them again.

Promise: no payload leaves a block unless its stored bytes matched their CRC-32C, where they are compared, and
its part of `frame_stop` matched its own: `kernels.ShardIndex.open_block` compares both.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import CorruptBlockError, FormatError, ShardioError
from shardio.format import (
    TFRECORD_HEAD,
    TFRECORD_TAIL,
    Buffer,
    Compression,
    Framing,
    Limits,
    check_block,
    decompress,
)
from shardio.metadata import IndexHead, check_frames_part
from shardio.ranges import runs_of
from shardio.reader._files import BlockFetcher, Fetched, ShardFiles
from shardio.storage import REFETCHES

# Bytes before and behind a payload, -1 for the end of its line; and the least size of a frame.
_BOUNDS = {
    Framing.TFRECORD: (TFRECORD_HEAD, TFRECORD_TAIL, TFRECORD_HEAD + TFRECORD_TAIL),
    Framing.RAW: (0, 0, 0),
    Framing.LINES: (0, -1, 1),
    Framing.TAR_SAMPLE: (0, 0, 1),
}
_NO_STOPS, _NO_CRCS = np.zeros(0, np.int64), np.zeros(0, np.uint32)


def shard_index(
    head: IndexHead,
    frames: NDArray[np.uint32] | None,
    records: NDArray[np.uint32] | None,
    limits: Limits,
    *,
    verify: bool,
) -> kernels.ShardIndex:
    """Return what opens the blocks of a shard.

    Args:
        head: of its index, checked.
        frames: the `frame_stop` column; None where a block's part of it comes with the block.
        records: the `record_crc32c` column, or None where records are not compared by themselves.
        limits: upper bounds for decoding.
        verify: compare stored bytes with their checksums.
    """
    decodes = head.compression is not Compression.NONE and not head.stream
    return kernels.ShardIndex(
        head.block_stop,
        head.block_row_stop,
        head.block_decoded_bytes,
        head.block_frames_crc32c,
        frame_stops=frames,
        record_crcs=records,
        block_record_crcs=None if records is None else head.block_records_crc32c,
        block_crcs=head.block_crc32c if verify else None,
        bounds=_BOUNDS[head.framing],
        decode=partial(_decode, head.compression, limits) if decodes else None,
    )


def _decode(compression: Compression, limits: Limits, stored: Buffer, size: int) -> Buffer:
    return decompress(stored, compression, size, limits=limits)


class FetchedFrames(NamedTuple):
    """Bytes of some blocks, and where the frames of consecutive rows are in them.

    Attributes:
        buffer: the blocks, decoded.
        edges: uint32 [rows + 1], where each frame begins, and where the last one stops.
        stops, crcs: int64 and uint32 [blocks], where each block stops and its CRC-32C, which are to be
            compared; empty where they were, or need not be.
        again: fetches blocks that are not right once more, and compares them: they may have been hurt on
            their way only. It raises what `begin_frames` says.
    """

    buffer: Buffer
    edges: NDArray[np.uint32]
    stops: NDArray[np.int64] = _NO_STOPS
    crcs: NDArray[np.uint32] = _NO_CRCS
    again: Callable[[], list[FetchedFrames]] | None = None

    def in_wrong_blocks(self) -> NDArray[np.bool_]:
        """Return which frames are in blocks that are not right, bool [rows]."""
        starts = np.concatenate([[0], self.stops[:-1]])[: self.stops.size]
        right = kernels.crc32c_many(self.buffer, starts, self.stops) == self.crcs
        wrong = np.append(~right, False)  # the last entry stands for frames that need not be compared
        return wrong[np.searchsorted(self.stops, self.edges[1:], side="left")]


class BlockReader:
    """The blocks of one shard: where their bytes are, and what makes them true.

    Args:
        files: the shard and its index.
        index: opens blocks.
        mapped: the bytes of the shard, if these are mapped.
        column: `frame_stop` as a whole, mapped or as it came with the head; None where it must be fetched.
        data, frames: fetch stored bytes of blocks and parts of `frame_stop`; None of what is mapped.
        kept: decoded blocks that lookups may use again, or None.
    """

    def __init__(
        self,
        files: ShardFiles,
        index: kernels.ShardIndex,
        *,
        mapped: memoryview | None,
        column: NDArray[np.uint32] | None,
        data: BlockFetcher | None,
        frames: BlockFetcher | None,
        kept: DecodedBlocks | None,
    ) -> None:
        self._files, self.head, self.stats = files, files.head, files.stats
        self.index, self.mapped = index, mapped
        # Items of a memoryview are Python's integers, at a third of the price of NumPy's.
        self.stops = memoryview(self.head.block_stop)
        self.row_stops = memoryview(self.head.block_row_stop)
        self.column, self.data, self.frames, self._kept = column, data, frames, kept

    def begin(self, runs: Sequence[tuple[int, int]]) -> Callable[[], list[FetchedRun]]:
        """Send the requests that runs `[first, stop)` of blocks need, and return what waits for them.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError, StorageError: with shard, row and
                bytes; when waited for, or when blocks are opened.
        """
        wait_frames = None if self.frames is None or self.column is not None else self.frames.begin(runs)
        wait_data = None if self.data is None else self.data.begin(runs)
        nothing: list[Fetched | None] = [None] * len(runs)

        def finish() -> list[FetchedRun]:
            parts = nothing if wait_frames is None else wait_frames()
            stored = nothing if wait_data is None else wait_data()
            return [FetchedRun(self, *each) for each in zip(runs, parts, stored, strict=True)]

        return finish

    def record(self, row: int) -> bytes:
        """Return one payload."""
        number = bisect_right(self.row_stops, row)
        block = None if self._kept is None else self._kept.get(self.head.head_sha256, number)
        if block is None:
            block = self.load(number)
            if self._kept is not None:
                self._kept.keep(self.head.head_sha256, number, block)
        return block.payload(row)

    def begin_rows(self, rows: NDArray[np.int64]) -> Callable[[], list[bytes]]:
        """Send the requests for the blocks of rows, int64 ascending; return what waits for the payloads."""
        blocks = self.head.blocks_of(rows)
        firsts = np.flatnonzero(np.append(True, blocks[1:] != blocks[:-1]))
        wait = self.begin(runs_of(blocks[firsts]))

        def finish() -> list[bytes]:
            found: list[bytes] = []
            edges = itertools.pairwise([*firsts.tolist(), len(rows)])
            for block, (low, stop) in zip(itertools.chain.from_iterable(wait()), edges, strict=True):
                found += block.take(rows[low:stop])
            return found

        return finish

    def around(self, first_row: int, stop_row: int) -> tuple[int, int]:
        """Return the run `[first, stop)` of blocks that consecutive rows are in."""
        return bisect_right(self.row_stops, first_row), bisect_right(self.row_stops, stop_row - 1) + 1

    def runs(self, rows: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return the runs `[first, stop)` of blocks that ascending rows are in."""
        if int(rows[-1] - rows[0]) == len(rows) - 1:
            return [self.around(int(rows[0]), int(rows[-1]) + 1)]
        return runs_of(np.unique(self.head.blocks_of(rows)))

    def locate(self, row: int) -> tuple[int, int]:
        """Return the half-open byte range of a row's frame: in the stored object where the shard is not
        compressed, else in the decoded bytes of its block.
        """  # noqa: D205 - one thought
        block = bisect_right(self.row_stops, row)
        first = self.head.block_rows(block)[0]
        frames = self._frames_of(block)
        base = self.head.block_bounds(block)[0] if self.head.compression is Compression.NONE else 0
        start = int(frames[row - first - 1]) if row > first else 0
        return base + start, base + int(frames[row - first])

    def load(self, number: int) -> kernels.OpenBlock:
        """Return a block; errors are those of `begin`."""
        if self.mapped is not None and self.column is not None:
            return self.open(number, self.mapped, self.stops[number - 1] if number else 0)
        ((block,),) = self.begin([(number, number + 1)])()
        return block

    def open(
        self, number: int, buffer: memoryview, start: int, part: memoryview | None = None
    ) -> kernels.OpenBlock:
        """Open a block that begins at a place in a buffer, given its part of the index where that is apart.

        Raises:
            CorruptBlockError, FormatError: it is not right.
        """
        block = self.try_open(number, buffer, start, part)
        if block is not None:
            return block
        wrong = self.wrong_frames(number, part) or self.wrong_stored(number, buffer, start)
        if wrong is None:
            what, row = (
                "a mapped shard or its index changed while it was read",
                self.head.block_rows(number)[0],
            )
            wrong = FormatError(what, url=self._files.data.url, shard=self._files.key, row=row)
        raise wrong

    def try_open(
        self, number: int, buffer: memoryview, start: int, part: memoryview | None
    ) -> kernels.OpenBlock | None:
        """Do what `open` does; None where the block is not right."""
        self.stats.blocks_opened += 1
        try:
            return self.index.open_block(number, buffer, start, part)
        except CorruptBlockError:
            return None  # and told by `wrong`

    def _frames_of(self, number: int) -> NDArray[np.uint32]:
        """Return a block's part of `frame_stop`, compared.

        Raises:
            FormatError: with shard, row and bytes of the index.
        """
        part, wrong, run = None, None, (number, number + 1)
        if self.column is None and self.frames is not None:
            part = self.frames.begin([run])()[0].data
        wrong = self.wrong_frames(number, part)
        for _ in range(REFETCHES):
            if wrong is not None and self.frames is not None:
                part = self.again(self.frames, run).data
                wrong = self.wrong_frames(number, part)
        if wrong is not None:
            raise wrong
        return self._stops(number, part)

    @cached_property
    def has_right_column(self) -> bool:
        """Whether the ends of all frames came with the head, and are right.

        Where they are not, each part is compared when it is used, and damage told where it matters.
        """
        return self.column is not None and self.frames is not None and self.index.has_right_frames()

    def _stops(self, number: int, part: memoryview | None) -> NDArray[np.uint32]:
        if part is not None:
            return np.frombuffer(part, "<u4").view(np.uint32)
        assert self.column is not None  # noqa: S101 - for the type checker
        return self.column[slice(*self.head.block_rows(number))]

    def wrong_frames(self, number: int, part: memoryview | None) -> ShardioError | None:
        """Return what is wrong with a block's part of `frame_stop`; None where it is right."""
        try:
            check_frames_part(self.head, number, self._stops(number, part), url=self._files.index.url)
        except FormatError as error:
            return error.located(shard=self._files.key, row=self.head.block_rows(number)[0])
        return None

    def wrong_stored(self, number: int, buffer: memoryview, start: int) -> ShardioError | None:
        """Return what is wrong with the stored bytes of a block; None where they are right."""
        head, files = self.head, self._files
        (row, row_stop), (first, stop) = head.block_rows(number), head.block_bounds(number)
        stored = buffer[start : start + stop - first]
        try:
            if files.verify:
                check_block(stored, int(head.block_crc32c[number]))
            if row < row_stop:
                kind = Compression.NONE if head.stream else head.compression
                decompress(stored, kind, int(head.block_decoded_bytes[number]), limits=files.limits)
        except CorruptBlockError as error:
            return error.located(url=files.data.url, shard=files.key, row=row, start=first, stop=stop)
        return None

    def again(self, fetcher: BlockFetcher, run: tuple[int, int]) -> Fetched:
        """Fetch from the source, past every cache: the bytes may have been hurt on their way only."""
        self.stats.refetched += 1
        return fetcher.begin([run], cached=False)()[0]


class FetchedRun:
    """Blocks of a shard that follow one another, whose bytes are here; each is opened when it is wanted.

    What is not right may have been hurt on its way: from the first such block on, it is fetched again,
    `REFETCHES` times at most.

    Args:
        blocks: of the shard.
        run: `[first, stop)` of them.
        frames: their parts of `frame_stop`; None where the shard has the column.
        stored: their stored bytes; None where the shard is mapped.
    """

    def __init__(
        self, blocks: BlockReader, run: tuple[int, int], frames: Fetched | None, stored: Fetched | None
    ) -> None:
        self._blocks, self._run = blocks, run
        self._frames, self._stored = frames, stored
        self._first_part = self._first_block = run[0]  # of the two

    def __iter__(self) -> Iterator[kernels.OpenBlock]:
        """Yield the blocks; errors are those of `BlockReader.begin`."""
        blocks, stop = self._blocks, self._run[1]
        for number in range(*self._run):
            # Not held here: the next block takes the memory of this one, which stays in the cache.
            yield self._open(number)
        if self._frames is not None and blocks.frames is not None:
            blocks.frames.keep((self._first_part, stop), self._frames)
        if self._stored is not None and blocks.data is not None:
            blocks.data.keep((self._first_block, stop), self._stored)

    def _open(self, number: int) -> kernels.OpenBlock:
        blocks, rest = self._blocks, (number, self._run[1])
        for _ in range(REFETCHES):
            place = self._place(number)
            found = blocks.try_open(number, *place)
            if found is not None:
                return found
            if blocks.frames is not None and blocks.wrong_frames(number, place[2]) is not None:
                self._frames, self._first_part = blocks.again(blocks.frames, rest), number
            if blocks.data is not None and blocks.wrong_stored(number, *place[:2]) is not None:
                self._stored, self._first_block = blocks.again(blocks.data, rest), number
        return blocks.open(number, *self._place(number))

    def _place(self, number: int) -> tuple[memoryview, int, memoryview | None]:
        """Return the buffer that a block is in, where it begins there, and its part of `frame_stop`."""
        stops, row_stops = self._blocks.stops, self._blocks.row_stops
        start, part = stops[number - 1] if number else 0, None
        if self._frames is not None:
            before = row_stops[self._first_part - 1] if self._first_part else 0
            row = row_stops[number - 1] if number else 0
            part = self._frames.data[4 * (row - before) : 4 * (row_stops[number] - before)]
        if self._stored is None:
            assert self._blocks.mapped is not None  # noqa: S101 - for the type checker
            return self._blocks.mapped, start, part
        base = stops[self._first_block - 1] if self._first_block else 0
        return self._stored.data, start - base, part

    def payloads(self, first: int, stop: int) -> list[bytes]:
        """Return the payloads of those of the rows `first .. stop - 1` that are in the blocks."""
        found: list[bytes] = []
        for block in self:
            found += block.payloads(first, stop)
            del block
        return found

    def frames(self, first: int, stop: int) -> list[FetchedFrames]:
        """Return the frames of those of the rows `first .. stop - 1` that are in the blocks."""
        found = []
        for block in self:
            low, high = max(first - block.first_row, 0), min(stop - block.first_row, len(block))
            if low < high:
                edges, buffer = block.edges, block.buffer
                if block.base or len(buffer) != edges[-1]:
                    buffer = buffer[block.base : block.base + int(edges[-1])]
                found.append(FetchedFrames(buffer, edges[low : high + 1]))
        return found


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
        self._blocks: OrderedDict[tuple[bytes, int], kernels.OpenBlock] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, shard: bytes, number: int) -> kernels.OpenBlock | None:
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

    def keep(self, shard: bytes, number: int, block: kernels.OpenBlock) -> None:
        """Keep a block, and forget those that were not used for longest."""
        if block.nbytes > self._most or not self._lock.acquire(blocking=False):
            return
        try:
            if (shard, number) not in self._blocks:
                self._blocks[shard, number] = block
                self._size += block.nbytes
                while self._size > self._most:
                    _, oldest = self._blocks.popitem(last=False)
                    self._size -= oldest.nbytes
        finally:
            self._lock.release()
