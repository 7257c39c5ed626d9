"""One open shard, and runs of its rows: begun, waited for, and cut into payloads.

Promise: no payload leaves this module unless the stored bytes of its block matched their CRC-32C and its part
of `frame_stop` matched its own, or its frame matched both of its own checksums.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

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
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL, Compression, Framing
from shardio.metadata import IndexHead
from shardio.ranges import distinct, runs_of
from shardio.reader._blocks import (
    DecodedBlocks,
    Placed,
    Rows,
    WrongBlock,
    diagnose,
    rows_between,
    rows_in,
    shard_index,
)
from shardio.reader._damage import SkippedRows, SuppressCorruption, is_damage
from shardio.reader._files import (
    REFUSED,
    BlockSource,
    Fetched,
    ShardFiles,
    StreamFile,
    decoded_file,
    map_frames,
)
from shardio.reader._gather import READS_FILES, ShardFrames
from shardio.reader._tuning import TUNING
from shardio.storage import BlockCache, ShortReadError, read_intact

# The parts of `frame_stop`, and the stored bytes, of a run of blocks.
FetchedBlocks: TypeAlias = "tuple[Fetched, Fetched]"


class OpenShard:
    """A shard with its index; safe to share among threads.

    Nothing it holds refers back to it: its files go with the last reference, not when the collector runs.

    Args:
        files: the shard and its index.
        frames: the `frame_stop` column, where it came with the head; checked when it is used.
        is_local: it is a file.
        cache: of blocks on local disk, for files that are not there; or None.
        by_frame: lookups may check frames without their blocks. Readers that skip damage check whole blocks,
            so that what they skip does not depend on how it is read.
        kept: decoded blocks that lookups may use again, or None.
        examines: the files may be of any size, are not mapped, and a stream is decoded once.

    Attributes:
        files, key, head, index, data: of the shard.
        mapped: its bytes, or None where they are read.
        column: `frame_stop`, mapped or as it came with the head; None where it must be fetched.
        frames: gathers rows of a local shard without their blocks; None where blocks are read.
        explain: makes an error of what a store says of a file that is cut, gone or another one.
    """

    def __init__(
        self,
        files: ShardFiles,
        *,
        frames: memoryview | None = None,
        is_local: bool = False,
        cache: BlockCache | None = None,
        by_frame: bool = True,
        kept: DecodedBlocks | None = None,
        examines: bool = False,
    ) -> None:
        head, index, data = files.head, files.index, files.data
        self.files, self.key, self.head, self.index, self.data = files, files.key, head, index, data
        self.explain, self.stats = files.explain, files.stats
        column = None if examines else map_frames(index, head)
        # A stream's blocks are cut from its decoded bytes, which are nowhere to be mapped.
        self.mapped = None if examines or head.stream else data.map()
        self.column = column if frames is None else np.frombuffer(frames, "<u4").view(np.uint32)
        self.decodes = head.compression is not Compression.NONE and not head.stream
        self._kernel = shard_index(head, self.column, files.limits, verify=files.verify)
        # Items of a memoryview are Python's integers, at a third of the price of NumPy's.
        self.stops, self.row_stops = memoryview(head.block_stop), memoryview(head.block_row_stop)
        # Of a mapped shard, 1 once a block was checked: the map stays what it was.
        self._checked = None if self.mapped is None else np.zeros(head.blocks, np.uint8)
        self.stored_bytes = BlockSource(
            decoded_file(data, head, files.limits, files.stats),
            head.block_bounds,
            files.stats,
            files.explain,
            cache=cache,
            name=partial(_data_name, head),
            checksummed=files.verify,
            view=self.mapped,
            fixed=self.mapped is not None or (examines and head.stream),
        )
        self.frame_stops = BlockSource(
            index,
            head.frame_stop_bounds,
            files.stats,
            files.explain_index,
            cache=cache,
            name=partial(_frames_name, head),
            view=frames if column is None else column.view(np.uint8).data,
            fixed=column is not None,
        )
        # Blocks are worth keeping where one holds several records.
        keeps = head.framing is Framing.TFRECORD and self.decodes and head.rows > head.blocks
        self._kept = kept if keeps else None
        self.frames: ShardFrames | None = None
        self._fetched_frames: ShardFrames | None = None
        if by_frame and head.has_frame_checksums and self.column is not None:
            make = partial(ShardFrames, self.mapped, head.stored_bytes, head, self.column)
            if self.mapped is not None or (is_local and READS_FILES):
                path = None if self.mapped is not None else os.fsencode(data.url) + b"\0"
                self.frames = make(verify=files.verify, path=path)
            elif files.verify and not is_local and cache is None:
                self._fetched_frames = make(verify=True, path=None)

    def record(self, row: int) -> bytes:
        """Return one payload; its frame or its block was checked.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, with its address.
            StorageError: the environment failed.
        """
        if self.frames is not None:
            payload = self.frames.record(row)
            if payload is not None:
                return payload
        elif self._fetched_frames is not None:
            found: bytes
            ((found,),) = Run(self, range(row, row + 1), scattered=True).pieces(as_bytes=True)
            return found
        number = bisect_right(self.row_stops, row)
        block = None if self._kept is None else self._kept.get(self.head.head_sha256, number)
        if block is None:
            block = self.load(number)
            if self._kept is not None:
                self._kept.keep(self.head.head_sha256, number, block)
        return block.payload(row)

    def load(self, number: int) -> kernels.OpenBlock:
        """Return a block; errors are those of `record`."""
        if self.mapped is not None and self.column is not None:
            found = self._try_open(number, self.mapped, self._start_of(number), None)
            if found is not None:
                return found
        ((frames, stored),) = self.begin([(number, number + 1)])()
        (block,) = self.open_blocks(number, number + 1, frames, stored)
        if isinstance(block, WrongBlock):
            try:
                raise self.refusal(block)
            finally:
                del block  # the error holds this frame, which must not hold it
        return block

    def locate(self, row: int) -> tuple[int, int]:
        """Return the half-open byte range of a row's frame: in the stored object where the shard is not
        compressed, else in the decoded bytes of its block.
        """  # noqa: D205 - one thought
        number = bisect_right(self.row_stops, row)
        (fetched,) = self.frame_stops.begin([(number, number + 1)])()
        (found,) = self.open_blocks(number, number + 1, fetched, None)
        assert isinstance(found, WrongBlock)  # noqa: S101 - for the type checker: its stored bytes are not here
        if found.stops is None:
            raise self.refusal(found)
        first = self.head.block_rows(number)[0]
        base = self._start_of(number) if self.head.compression is Compression.NONE else 0
        start = int(found.stops[row - first - 1]) if row > first else 0
        return base + start, base + int(found.stops[row - first])

    def frame_bounds(self, rows: Rows) -> NDArray[np.int64] | None:
        """Return where frames are that can be fetched without their blocks; None to fetch these."""
        frames = self._fetched_frames
        return None if frames is None else frames.bounds(np.asarray(rows, np.int64))

    def begin(
        self, runs: Sequence[tuple[int, int]], *, gap: int | None = None
    ) -> Callable[[], list[FetchedBlocks]]:
        """Send the requests that runs `[first, stop)` of blocks need, and return what waits for them.

        Args:
            runs: of blocks.
            gap: stored bytes that may be fetched needlessly to save a request; None for what suits most.

        Raises:
            FormatError, StaleIndexError, NotFoundError, StorageError: with their address; when waited for.
        """
        wait_frames, wait_stored = self.frame_stops.begin(runs), self.stored_bytes.begin(runs, gap=gap)
        return lambda: list(zip(wait_frames(), wait_stored(), strict=True))

    def runs(self, rows: Rows) -> list[tuple[int, int]]:
        """Return the runs `[first, stop)` of blocks that ascending rows are in."""
        first, last = int(rows[0]), int(rows[-1])
        if last - first == len(rows) - 1:
            return [self.around(first, last + 1)]
        return runs_of(distinct(self.head.blocks_of(np.asarray(rows))))

    def around(self, first_row: int, stop_row: int) -> tuple[int, int]:
        """Return the run `[first, stop)` of blocks that consecutive rows are in."""
        return bisect_right(self.row_stops, first_row), bisect_right(self.row_stops, stop_row - 1) + 1

    def size_of(self, runs: Sequence[tuple[int, int]]) -> int:
        """Return the stored bytes of some runs of blocks."""
        return sum([self.stops[stop - 1] - self._start_of(first) for first, stop in runs])

    def _start_of(self, number: int) -> int:
        return self.stops[number - 1] if number else 0

    def first_row(self, number: int) -> int:
        """Return the first row of a block."""
        return self.row_stops[number - 1] if number else 0

    def read_rows(self, run: tuple[int, int], fetched: FetchedBlocks, rows: Rows, *, as_bytes: bool) -> Any:
        """Return rows of blocks as these are stored; None where each must be opened, or one is wrong."""
        buffer, start, part = self._place(run[0], *fetched)
        if self.decodes or buffer is None:
            return None
        frames, first, stop = fetched[0], int(rows[0]), int(rows[-1]) + 1
        part = None if self.column is not None else frames.data[4 * self._skipped_rows(run[0], frames) :]
        read = partial(self._kernel.read_rows, first, stop, buffer, start, part, checked=self._checked)
        if isinstance(rows, range) and as_bytes:
            found: Any = read(as_bytes=True)
        else:
            found = read(as_bytes=False)
            if found is not None and not isinstance(rows, range):
                found = found[:, rows - first]
            if found is not None:
                found = kernels.slice_records(buffer, *found) if as_bytes else (buffer, *found)
        if found is not None:
            self.stats.blocks_opened += run[1] - run[0]
        return found

    def open_blocks(
        self, first: int, stop: int, frames: Fetched | None, stored: Fetched | None
    ) -> Iterator[kernels.OpenBlock | WrongBlock]:
        """Yield each block, opened, or its diagnosis once refetching did not help; see `read_intact`.

        From the first wrong block on, the rest of the run is refetched. The cache keeps runs without damage.

        Args:
            first, stop: the blocks `[first, stop)`.
            frames, stored: their parts of `frame_stop`, and their stored bytes; None of what was not fetched.
        """
        wrong: WrongBlock | None = None
        number, is_whole = first, True

        def read() -> kernels.OpenBlock:
            nonlocal wrong
            buffer, start, part = self._place(number, frames, stored)
            found = None
            if buffer is not None and part is not None:
                found = self._try_open(number, buffer, start, part)
            if found is None:
                data = None if buffer is None else buffer[start:]
                wrong = diagnose(self.files, self.column, number, data, part)
                raise self.refusal(wrong)
            return found

        def forget() -> None:
            nonlocal frames, stored
            assert wrong is not None  # noqa: S101 - for the type checker
            of_frames = wrong.frames is not None and not self.frame_stops.fixed
            of_stored = (wrong.stored or wrong.decoding) is not None and not self.stored_bytes.fixed
            if not (of_frames or of_stored):
                raise self.refusal(wrong)
            if of_frames:
                frames = self.frame_stops.again((number, stop))
            if of_stored:
                stored = self.stored_bytes.again((number, stop))

        for number in range(first, stop):
            try:
                yield read_intact(read, forget)
            except (FormatError, StaleIndexError):
                is_whole = False
                assert wrong is not None  # noqa: S101 - for the type checker
                yield wrong
            except (StorageError, NotFoundError) as error:
                is_whole = False
                stops = None if wrong is None else wrong.stops
                yield WrongBlock(number, number + 1, stored=error, stops=stops)
            wrong = None
        if is_whole and frames is not None and stored is not None:
            self.keep((frames, stored))

    def keep(self, fetched: FetchedBlocks) -> None:
        """Store blocks in the cache; all of them were right."""
        self.frame_stops.keep(fetched[0])
        self.stored_bytes.keep(fetched[1])

    def _try_open(
        self, number: int, buffer: memoryview, start: int, part: memoryview | None
    ) -> kernels.OpenBlock | None:
        """Open a block that begins at a place in a buffer; None where the block is not right."""
        self.stats.blocks_opened += 1
        try:
            return self._kernel.open_block(number, buffer, start, part)
        except CorruptBlockError:
            return None  # `diagnose` says what is

    def _place(
        self, number: int, frames: Fetched | None, stored: Fetched | None
    ) -> tuple[memoryview | None, int, memoryview | None]:
        """Return the buffer that a block is in, where it begins there, and its part of `frame_stop`."""
        buffer, start, part = None, 0, None
        if frames is not None:
            row = self._skipped_rows(number, frames)
            part = frames.data[4 * row : 4 * (row + self.row_stops[number] - self.first_row(number))]
        if stored is not None:
            buffer, start = stored.data, self._start_of(number) - self._start_of(stored.first)
        return buffer, start, part

    def _skipped_rows(self, number: int, frames: Fetched) -> int:
        """Return how many rows come before a block in what was fetched."""
        return self.first_row(number) - self.first_row(frames.first)

    def refusal(self, wrong: WrongBlock) -> ShardioError:
        """Return the error of a block that was not right when it was opened."""
        return wrong.error or self.changed(self.head.block_rows(wrong.first)[0])

    def changed(self, row: int | None = None) -> FormatError:
        """Return the error of data that was damaged when first read and is right now."""
        what = "a mapped shard or its index changed while it was read"
        return FormatError(what, url=self.data.url, shard=self.key, row=row)

    def blocks_before(self, error: ShardioError) -> int | None:
        """Return how many blocks come before the place where a file was found to end; None if unknown."""
        if isinstance(error, NotFoundError):
            return 0
        cause = error.__cause__
        if not isinstance(cause, ShortReadError):
            return None
        end = (cause.start or 0) + int(str(cause.found))
        if cause.url == self.index.url:
            return bisect_right(self.row_stops, (end - self.head.frame_stop_offset) // 4)
        return bisect_right(self.stops, end)

    def examine(self, there: int, covered: int) -> Iterator[kernels.OpenBlock | WrongBlock]:
        """Yield all blocks in order, opened or diagnosed: the walk of `verify`.

        Args:
            there, covered: how many blocks have their stored bytes, and their part of `frame_stop`, within
                the files; what is behind is not read.
        """
        runs = (
            run
            for low, high in pairwise(sorted({0, there, covered, self.head.blocks}))
            for run in self.head.runs(low, high, most_bytes=TUNING.walk_bytes, most_rows=TUNING.walk_rows)
        )
        begun: deque[tuple[int, int, Callable[[], list[Fetched]], Callable[[], list[Fetched]]]] = deque()
        for run in [*runs, *[None] * TUNING.walk_ahead]:
            if run is not None:
                wait_frames = self.frame_stops.begin([run] if run[1] <= covered else [])
                begun.append((*run, wait_frames, self.stored_bytes.begin([run] if run[1] <= there else [])))
            if not begun or (run is not None and len(begun) <= TUNING.walk_ahead):
                continue
            first, stop, wait_frames, wait_stored = begun.popleft()
            frames = stored = None
            try:
                frames = next(iter(wait_frames()), None)
            except ShardioError as error:
                yield WrongBlock(first, stop, frames=error)
            try:
                stored = next(iter(wait_stored()), None) if first < there else None
            except ShardioError as error:
                before = self.blocks_before(error)
                if before is not None and before < stop:  # what is before the end can be read
                    there = before
                    found = self.stored_bytes.begin([(first, there)] if first < there else [])()
                    yield from self.open_blocks(first, there, frames, next(iter(found), None))
                    first = max(first, there)
                end = stop if before is None else self.head.blocks
                stored_error, decoding = (None, error) if isinstance(error, FormatError) else (error, None)
                yield WrongBlock(first, end, stored=stored_error, decoding=decoding)
            yield from self.open_blocks(first, stop, frames, stored)

    def decode_rest(self, most: int) -> tuple[int, int]:
        """Decode what follows the last block of a stream; see `StreamFile.decode_rest`."""
        file = self.stored_bytes.file
        assert isinstance(file, StreamFile)  # noqa: S101 - it is asked of streams only
        return file.decode_rest(most)

    def drop_pages(self, *, of_data: bool = True) -> None:
        """Give the pages of mapped files back; what is looked at again comes from the system's cache."""
        if of_data:
            self.data.drop_pages()
        self.index.drop_pages()


class Run:
    """Rows of a shard whose bytes are on their way.

    They come with their blocks, which the index proves; or as frames alone, which their own checksums prove;
    or need no request, where a local shard is not compressed. What is not right is refetched by block.

    Args:
        shard: that they are in.
        rows: ascending.
        scattered: not all rows of their blocks are wanted.
        gap: of blocks; see `OpenShard.begin`.

    Attributes:
        size: bytes on their way.
    """

    def __init__(
        self, shard: OpenShard, rows: Rows, *, scattered: bool = False, gap: int | None = None
    ) -> None:
        self._shard, self._rows, self.size = shard, rows, 0
        self._runs: list[tuple[int, int]] = []
        self._bounds = None
        self._wait: Callable[[], Any] | None = None
        if scattered and shard.frames is not None:
            return
        self._bounds = shard.frame_bounds(rows) if scattered else None
        if self._bounds is None:
            self._runs = shard.runs(rows)
            self._wait, self.size = shard.begin(self._runs, gap=gap), shard.size_of(self._runs)
        else:
            starts, stops = self._bounds
            self.size = int((stops - starts).sum())
            self._wait = shard.data.begin_read(starts, stops, checksummed=True, gap=_gap_of(starts, stops))

    def pieces(self, *, as_bytes: bool, skips: bool = False) -> Iterator[Any]:
        """Yield lists of payloads, or `Placed` where these are, when they are there.

        Args:
            as_bytes: yield lists of payloads.
            skips: yield `SkippedRows` for damage.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, with its address.
            StorageError: the environment failed.
        """
        if not self._runs:
            alone = self._read_frames(as_bytes=as_bytes)
            if alone is not None:
                yield alone
            else:  # the block says what is wrong
                yield from Run(self._shard, self._rows).pieces(as_bytes=as_bytes, skips=skips)
            return
        assert self._wait is not None  # noqa: S101 - for the type checker
        with SuppressCorruption(skips=skips) as damaged:
            fetched = self._wait()
        if damaged.error is not None:
            yield from self._read_around(damaged.error, as_bytes=as_bytes)
            return
        rows = self._rows
        for run, blocks in zip(self._runs, fetched, strict=True):
            if len(self._runs) > 1:
                first, stop = self._shard.first_row(run[0]), self._shard.row_stops[run[1] - 1]
                rows = rows_between(self._rows, first, stop)
            yield from self._read_blocks(run, blocks, rows, as_bytes=as_bytes, skips=skips)

    def _read_frames(self, *, as_bytes: bool) -> list[bytes] | Placed | None:
        """Return the rows from their frames alone; None where one is not right."""
        shard = self._shard
        if self._bounds is None or self._wait is None:
            assert shard.frames is not None  # noqa: S101 - for the type checker
            assert as_bytes  # noqa: S101 - only whole blocks are asked for by their places
            return shard.frames.records(np.asarray(self._rows, np.int64))
        try:
            frames = self._wait()
        except REFUSED as error:
            raise shard.explain(error) from error
        starts, stops = self._bounds
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        ends = np.cumsum(stops - starts)
        begins = ends - (stops - starts)
        shard.stats.bytes_read += len(data)
        if kernels.check_frames(data, begins, ends) >= 0:
            shard.stats.refetched += 1
            return None
        places = begins + TFRECORD_HEAD, ends - TFRECORD_TAIL
        return kernels.slice_records(data, *places) if as_bytes else (data, *places)

    def _read_blocks(
        self, run: tuple[int, int], fetched: FetchedBlocks, rows: Rows, *, as_bytes: bool, skips: bool
    ) -> Iterator[Any]:
        together = self._shard.read_rows(run, fetched, rows, as_bytes=as_bytes)
        if together is not None:
            self._shard.keep(fetched)
            yield together
            return
        for found in self._shard.open_blocks(*run, *fetched):
            if not isinstance(found, WrongBlock):
                yield rows_in(found, rows, as_bytes=as_bytes)
                del found  # the next block takes the memory of this one, which stays in the cache
                continue
            error = self._shard.refusal(found)
            try:
                if not (skips and is_damage(error)):
                    raise error
                count = len(rows_between(rows, *self._shard.head.block_rows(found.first)))
                yield SkippedRows(error, count)
            finally:
                del error, found  # the error holds this frame, which must not hold it

    def _read_around(self, error: ShardioError, *, as_bytes: bool) -> Iterator[Any]:
        """Yield what can be read of rows that cannot be read together, and `SkippedRows` for the others."""
        shard, rows = self._shard, self._rows
        before = shard.blocks_before(error)
        if before is not None:
            row = shard.first_row(before)
            there = rows_between(rows, 0, row)
            if len(there) < len(rows):
                if len(there):
                    yield from Run(shard, there).pieces(as_bytes=as_bytes, skips=True)
                yield SkippedRows(error, len(rows) - len(there), row)
                return
        blocks = [number for run in self._runs for number in range(*run)]
        if len(blocks) == 1:
            yield SkippedRows(error, len(rows))
            return
        for number in blocks:
            some = rows_between(rows, *shard.head.block_rows(number))
            if len(some):  # a gap has none
                yield from Run(shard, some).pieces(as_bytes=as_bytes, skips=True)


def _gap_of(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> int:
    """Return how far apart frames, int64 ascending, may be that one request fetches together."""
    gaps = np.sort(starts[1:] - stops[:-1])
    most = int(
        np.searchsorted(np.cumsum(np.maximum(gaps, 0)), (stops - starts).sum() // TUNING.gap_share, "right")
    )
    # A gap as wide as one that is too much stays a gap, too.
    narrow = gaps[:most] if most == gaps.size else gaps[: np.searchsorted(gaps, gaps[most])]
    return max(TUNING.gap, int(narrow[-1])) if narrow.size else TUNING.gap


# What the cache calls a block: shard, block and checksum, so that a name means the same bytes forever.
def _data_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-{block}-{head.block_crc32c[block]:08x}"


def _frames_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-frames-{block}-{head.block_frames_crc32c[block]:08x}"
