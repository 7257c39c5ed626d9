"""Blocks of a shard: fetched in runs, opened one by one, and kept where lookups may want them again.

Promise: no payload leaves a block unless its stored bytes matched their CRC-32C, where they are compared, and
its part of `frame_stop` matched its own: `kernels.ShardIndex.open_block` compares both.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import (
    CorruptBlockError,
    FormatError,
    NotFoundError,
    ShardioError,
    StaleIndexError,
    StorageError,
)
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
from shardio.reader._damage import SkippedRows, SuppressCorruption
from shardio.reader._files import BlockSource, Fetched, ShardFiles
from shardio.reader._options import ReadStats
from shardio.storage import DataFile, read_intact

# Rows of a shard, ascending; and where payloads are: a buffer, and int64 starts and stops in it.
Rows: TypeAlias = "range | NDArray[np.int64]"
Placed: TypeAlias = "tuple[Any, NDArray[np.int64], NDArray[np.int64]]"

# Bytes before and behind a payload, -1 for the end of its line; and the least size of a frame.
_BOUNDS = {
    Framing.TFRECORD: (TFRECORD_HEAD, TFRECORD_TAIL, TFRECORD_HEAD + TFRECORD_TAIL),
    Framing.RAW: (0, 0, 0),
    Framing.LINES: (0, -1, 1),
    Framing.TAR_SAMPLE: (0, 0, 1),
}


def shard_index(
    head: IndexHead,
    frames: NDArray[np.uint32] | None,
    limits: Limits,
    *,
    verify: bool,
) -> kernels.ShardIndex:
    """Return what opens the blocks of a shard.

    Args:
        head: of its index, checked.
        frames: the `frame_stop` column; None where a block's part of it comes with the block.
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
        block_crcs=head.block_crc32c if verify else None,
        bounds=_BOUNDS[head.framing],
        decode=partial(_decode, head.compression, limits) if decodes else None,
    )


def _decode(compression: Compression, limits: Limits, stored: Buffer, size: int) -> Buffer:
    return decompress(stored, compression, size, limits=limits)


class Wait(Protocol):
    """Waits for rows whose requests were sent."""

    def __call__(self, *, as_bytes: bool, skips: bool = False) -> Iterator[Any]:
        """Yield lists of payloads, or `Placed` where these are; `skips` yields `SkippedRows` for damage."""


class WrongBlock(NamedTuple):
    """What is wrong with a block, and what of it can be used all the same.

    Attributes:
        number: of the block.
        frames, stored, decoding: why its part of `frame_stop` is not right, why its stored bytes are not
            those that were written, and why these do not decode; None where that is not so, or was not here.
        decoded: its decoded bytes, None where there are none.
        stops: uint32 [rows], its part of `frame_stop`; None where that is not right, or not here.
    """

    number: int
    frames: ShardioError | None
    stored: ShardioError | None
    decoding: ShardioError | None
    decoded: Buffer | None
    stops: NDArray[np.uint32] | None

    @property
    def error(self) -> ShardioError | None:
        """What readers raise."""
        return self.frames or self.stored or self.decoding


class BlockReader:
    """The blocks of one shard: where their bytes are, and what makes them true.

    Args:
        files: the shard and its index.
        index: opens blocks.
        column: `frame_stop` as a whole, mapped or as it came with the head; None where it must be fetched.
        data, frames: where stored bytes of blocks are, and their parts of `frame_stop`.
        kept: decoded blocks that lookups may use again, or None.
    """

    def __init__(
        self,
        files: ShardFiles,
        index: kernels.ShardIndex,
        *,
        column: NDArray[np.uint32] | None,
        data: BlockSource,
        frames: BlockSource,
        kept: DecodedBlocks | None,
    ) -> None:
        self._files, self.head, self.stats = files, files.head, files.stats
        self.index, self.mapped = index, data.view
        self.decodes = self.head.compression is not Compression.NONE and not self.head.stream
        # Items of a memoryview are Python's integers, at a third of the price of NumPy's.
        self.stops = memoryview(self.head.block_stop)
        self.row_stops = memoryview(self.head.block_row_stop)
        self.column, self.data, self.frames, self._kept = column, data, frames, kept
        # Of a mapped shard, 1 once a block was checked: the map stays what it was.
        self.checked = None if data.view is None else np.zeros(self.head.blocks, np.uint8)

    def begin(
        self, runs: Sequence[tuple[int, int]], *, gap: int | None = None
    ) -> Callable[[], list[FetchedRun]]:
        """Send the requests that runs `[first, stop)` of blocks need, and return what waits for them.

        Args:
            runs: of blocks.
            gap: stored bytes that may be fetched needlessly to save a request; None for what suits most.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError, StorageError: with shard, row and
                bytes; when waited for, or when blocks are opened.
        """
        wait_frames, wait_data = self.frames.begin(runs), self.data.begin(runs, gap=gap)
        return lambda: [
            FetchedRun(self, *each) for each in zip(runs, wait_frames(), wait_data(), strict=True)
        ]

    def record(self, row: int) -> bytes:
        """Return one payload."""
        number = bisect_right(self.row_stops, row)
        block = None if self._kept is None else self._kept.get(self.head.head_sha256, number)
        if block is None:
            block = self.load(number)
            if self._kept is not None:
                self._kept.keep(self.head.head_sha256, number, block)
        return block.payload(row)

    def begin_rows(self, rows: Rows, *, gap: int | None = None) -> tuple[int, Wait]:
        """Send the requests for the blocks of rows, ascending; return their stored bytes, and what waits."""
        runs = self.runs(rows)
        wait = self.begin(runs, gap=gap)
        ends = [len(rows)]
        if len(runs) > 1:
            ends = np.searchsorted(rows, [self.row_stops[stop - 1] for _, stop in runs]).tolist()

        def finish(*, as_bytes: bool, skips: bool = False) -> Iterator[Any]:
            low = 0
            with SuppressCorruption(skips=skips) as damaged:
                fetched = wait()
            if damaged.error is not None:  # what was fetched together is not damaged together
                yield from self._read_alone(rows, as_bytes=as_bytes)
                return
            for run, high in zip(fetched, ends, strict=True):
                yield from run.read(rows[low:high], as_bytes=as_bytes, skips=skips)
                low = high

        return sum([self.stops[stop - 1] - self._start_of(first) for first, stop in runs]), finish

    def _read_alone(self, rows: Rows, *, as_bytes: bool) -> Iterator[Any]:
        """Yield rows out of blocks that are fetched one by one, and what is wrong with the others."""
        done = 0
        for first, stop in self.runs(rows):
            for number in range(first, stop):
                some = _rows_between(rows, *self.head.block_rows(number))
                found: list[Any] = []
                with SuppressCorruption() as damaged:
                    (run,) = self.begin([(number, number + 1)])()
                    found = [*run.read(some, as_bytes=as_bytes, skips=True)]
                if isinstance(damaged.error, NotFoundError):  # and so are the blocks behind it
                    yield SkippedRows(damaged.error, len(rows) - done)
                    return
                yield from found if damaged.error is None else [SkippedRows(damaged.error, len(some))]
                done += len(some)

    def payloads(self, rows: Rows) -> list[bytes]:
        """Return the payloads of rows, ascending; errors are those of `begin`."""
        return [payload for payloads in self.begin_rows(rows)[1](as_bytes=True) for payload in payloads]

    def _start_of(self, number: int) -> int:
        """Return where a block begins."""
        return self.stops[number - 1] if number else 0

    def around(self, first_row: int, stop_row: int) -> tuple[int, int]:
        """Return the run `[first, stop)` of blocks that consecutive rows are in."""
        return bisect_right(self.row_stops, first_row), bisect_right(self.row_stops, stop_row - 1) + 1

    def runs(self, rows: Rows) -> list[tuple[int, int]]:
        """Return the runs `[first, stop)` of blocks that ascending rows are in."""
        if isinstance(rows, range):
            return [self.around(rows.start, rows.stop)]
        if rows[-1] - rows[0] == len(rows) - 1:
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
        (run,) = self.begin([(number, number + 1)])()
        return run.open(number)

    def open(
        self, number: int, buffer: memoryview, start: int, part: memoryview | None = None
    ) -> kernels.OpenBlock:
        """Open a block that begins at a place in a buffer, given its part of the index where that is apart.

        Raises:
            CorruptBlockError, FormatError: it is not right.
        """
        block = self.try_open(number, buffer, start, part)
        if block is None:
            raise self.refusal(self.wrong(number, buffer, start, part))
        return block

    def refusal(self, wrong: WrongBlock) -> ShardioError:
        """Return the error of a block that was not right when it was opened."""
        return wrong.error or self.changed(self.head.block_rows(wrong.number)[0])

    def changed(self, row: int | None = None) -> FormatError:
        """Return the error of what was not right, and is now."""
        what = "a mapped shard or its index changed while it was read"
        return FormatError(what, url=self._files.data.url, shard=self._files.key, row=row)

    def try_open(
        self, number: int, buffer: memoryview, start: int, part: memoryview | None
    ) -> kernels.OpenBlock | None:
        """Do what `open` does; None where the block is not right."""
        self.stats.blocks_opened += 1
        try:
            return self.index.open_block(number, buffer, start, part)
        except CorruptBlockError:
            return None  # `wrong` says what is

    def _frames_of(self, number: int) -> NDArray[np.uint32]:
        """Return a block's part of `frame_stop`, compared.

        Raises:
            FormatError: with shard, row and bytes of the index.
        """
        run = (number, number + 1)
        found = self.examine(number, self.frames.begin([run])()[0], None)
        assert isinstance(found, WrongBlock)  # noqa: S101 - for the type checker: its stored bytes are not here
        if found.stops is None:
            raise self.refusal(found)
        return found.stops

    def examine(
        self, number: int, frames: Fetched | None, stored: Fetched | None
    ) -> kernels.OpenBlock | WrongBlock:
        """Return a block, opened, or what is wrong with it, from bytes of blocks that may be damaged.

        It is fetched again by itself: what follows may be right, and every block of a run may be wrong.

        Args:
            number: of the block.
            frames, stored: its part of `frame_stop`, and its stored bytes; None of what is not here.
        """
        return FetchedRun(self, (number, number + 1), frames, stored).try_open(number)

    def wrong(
        self, number: int, buffer: memoryview | None, start: int, part: memoryview | None
    ) -> WrongBlock:
        """Say what is wrong with a block: slowly, for one that `try_open` refused."""
        head, files = self.head, self._files
        (row, row_stop), (first, stop) = head.block_rows(number), head.block_bounds(number)
        places = {"url": files.data.url, "shard": files.key, "row": row, "start": first, "stop": stop}
        stops = decoded = frames = damage = decoding = None
        if part is not None:
            stops = np.frombuffer(part, "<u4").view(np.uint32)
        elif self.column is not None:
            stops = self.column[row:row_stop]
        if stops is not None:
            try:
                check_frames_part(head, number, stops, url=files.index.url)
            except FormatError as error:
                frames, stops = error.located(shard=files.key, row=row), None
        stored = None if buffer is None else buffer[start : start + stop - first]
        if stored is not None and files.verify:
            try:
                check_block(stored, int(head.block_crc32c[number]))
            except CorruptBlockError as error:
                damage = error.located(**places)
        if stored is not None and row < row_stop:
            kind = Compression.NONE if head.stream else head.compression
            try:
                decoded = decompress(stored, kind, int(head.block_decoded_bytes[number]), limits=files.limits)
            except CorruptBlockError as error:
                decoding = error.located(**places)
        return WrongBlock(number, frames, damage, decoding, decoded, stops)


def examined_blocks(
    head: IndexHead, index: DataFile, data: DataFile | None, *, shard: str, limits: Limits
) -> BlockReader:
    """Return the blocks of a shard that may be damaged: what its files say is raised as they say it.

    Args:
        head: of its index, checked.
        index, data: its files; None for a shard that is not here.
        shard: its key.
        limits: upper bounds for decoding.
    """
    stats = ReadStats()
    files = ShardFiles(
        shard, head, index, data or index, adopted=False, verify=True, limits=limits, stats=stats,
        check_expired=lambda: None,
    )  # fmt: skip
    return BlockReader(
        files,
        shard_index(head, None, limits, verify=True),
        column=None,
        # A stream is decoded once.
        data=BlockSource(files.data, head.block_bounds, stats, checksummed=False, fixed=head.stream),
        frames=BlockSource(index, head.frame_stop_bounds, stats, checksummed=False),
        kept=None,
    )


class FetchedRun:
    """Blocks of a shard that follow one another, whose bytes are here; each is opened when it is wanted.

    What is not right may have been hurt on its way: from the first such block on, it is fetched again,
    see `read_intact`.

    Args:
        blocks: of the shard.
        run: `[first, stop)` of them.
        frames, stored: their parts of `frame_stop`, and their stored bytes; None of what is not here.
    """

    def __init__(
        self, blocks: BlockReader, run: tuple[int, int], frames: Fetched | None, stored: Fetched | None
    ) -> None:
        self._blocks, self._run = blocks, run
        self._frames, self._stored = frames, stored

    def read(self, rows: Rows, *, as_bytes: bool, skips: bool = False) -> Iterator[Any]:
        """Yield the payloads, or where they are, of ascending rows that are in these blocks; see `Wait`.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError, StorageError: with their address.
        """
        together = None if self._blocks.decodes else self._together(rows, as_bytes=as_bytes)
        if together is not None:
            yield together
        else:
            for number in range(*self._run):
                # Not held here: the next block takes the memory of this one, which stays in the cache.
                yield self._read_block(number, rows, as_bytes=as_bytes, skips=skips)
        self.keep()

    def _read_block(self, number: int, rows: Rows, *, as_bytes: bool, skips: bool) -> Any:
        with SuppressCorruption(skips=skips) as damaged:
            return _rows_in(self.open(number), rows, as_bytes=as_bytes)
        assert damaged.error is not None  # noqa: S101 - for the type checker
        return SkippedRows(damaged.error, len(_rows_between(rows, *self._blocks.head.block_rows(number))))

    def _together(self, rows: Rows, *, as_bytes: bool) -> Any:
        """Read rows out of blocks as these are stored; None where each is opened, or one is wrong."""
        blocks, (number, end) = self._blocks, self._run
        buffer, start, part = self._place(number)
        if buffer is None:
            return None
        if blocks.column is not None:
            part = None
        elif self._frames is not None:
            part = self._frames.data[4 * (self._row_of(number) - self._row_of(self._frames.first)) :]
        first, stop, checked = int(rows[0]), int(rows[-1]) + 1, blocks.checked
        places: Any
        if isinstance(rows, range) and as_bytes:
            found: Any = blocks.index.read_rows(
                first, stop, buffer, start, part, checked=checked, as_bytes=True
            )
        else:
            places = blocks.index.read_rows(first, stop, buffer, start, part, checked=checked, as_bytes=False)
            if places is None:
                return None
            if not isinstance(rows, range):
                places = places[:, rows - first]
            found = kernels.slice_records(buffer, *places) if as_bytes else (buffer, *places)
        if found is not None:
            blocks.stats.blocks_opened += end - number
        return found

    def _row_of(self, number: int) -> int:
        """Return the first row of a block."""
        return self._blocks.row_stops[number - 1] if number else 0

    def keep(self) -> None:
        """Store the blocks in the cache, once all of them were right."""
        if self._frames is not None and self._stored is not None:
            self._blocks.frames.keep(self._frames)
            self._blocks.data.keep(self._stored)

    def open(self, number: int) -> kernels.OpenBlock:
        """Return a block; errors are those of `BlockReader.begin`."""
        found = self.try_open(number)
        if isinstance(found, WrongBlock):
            try:
                raise self._blocks.refusal(found)
            finally:
                del found  # the error holds this frame, which must not hold it
        return found

    def try_open(self, number: int) -> kernels.OpenBlock | WrongBlock:
        """Return a block, opened, or what is wrong with it once its bytes came again."""
        blocks, run = self._blocks, (number, self._run[1])
        wrong: WrongBlock | None = None

        def read() -> kernels.OpenBlock:
            nonlocal wrong
            buffer, start, part = self._place(number)
            found = None
            if buffer is not None and part is not None:
                found = blocks.try_open(number, buffer, start, part)
            if found is None:
                wrong = blocks.wrong(number, buffer, start, part)
                raise blocks.refusal(wrong)
            return found

        def forget() -> None:
            assert wrong is not None  # noqa: S101 - for the type checker
            frames = wrong.frames is not None and not blocks.frames.fixed
            stored = (wrong.stored or wrong.decoding) is not None and not blocks.data.fixed
            if not (frames or stored):
                raise blocks.refusal(wrong)
            if frames:
                self._frames = blocks.frames.again(run)
            if stored:
                self._stored = blocks.data.again(run)

        try:
            return read_intact(read, forget)
        except (FormatError, StaleIndexError):
            assert wrong is not None  # noqa: S101 - for the type checker
            return wrong
        except (StorageError, NotFoundError) as error:
            return WrongBlock(number, None, error, None, None, None if wrong is None else wrong.stops)

    def _place(self, number: int) -> tuple[memoryview | None, int, memoryview | None]:
        """Return the buffer that a block is in, where it begins there, and its part of `frame_stop`."""
        stops, row_stops = self._blocks.stops, self._blocks.row_stops
        frames, stored = self._frames, self._stored
        buffer, start, part = None, 0, None
        if frames is not None:
            before = row_stops[frames.first - 1] if frames.first else 0
            row = row_stops[number - 1] if number else 0
            part = frames.data[4 * (row - before) : 4 * (row_stops[number] - before)]
        if stored is not None:
            buffer = stored.data
            start = (stops[number - 1] if number else 0) - (stops[stored.first - 1] if stored.first else 0)
        return buffer, start, part


def _rows_between(rows: Rows, first: int, stop: int) -> Rows:
    """Return those of ascending rows that are among `first .. stop - 1`."""
    if isinstance(rows, range):
        return range(max(rows.start, first), min(rows.stop, stop))
    if rows[0] >= first and rows[-1] < stop:
        return rows
    # A few steps of Python's take less than one call of NumPy's.
    return rows[bisect_left(rows, first) : bisect_left(rows, stop)]


def _rows_in(block: kernels.OpenBlock, rows: Rows, *, as_bytes: bool) -> Any:
    """Return, of those of ascending rows that are in a block, the payloads or where they are."""
    first = block.first_row
    rows = _rows_between(rows, first, first + len(block))
    if as_bytes:
        return block.payloads(rows)
    if isinstance(rows, range):
        return (block.buffer, *block.places(rows.start, rows.stop))
    return (block.buffer, *block.places(first, first + len(block))[:, rows - first])


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
