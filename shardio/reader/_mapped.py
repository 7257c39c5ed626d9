"""Rows of mapped shards in large numbers: copied past the map, or left in their files until they are wanted.

Rows of an uncompressed TFRecord shard are cut by one compiled call, their blocks compared before.  Promise:
that of `OpenShard`; what is not as its index says is left to it, which says what is wrong.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio import kernels
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL
from shardio.storage import DataFile, OpenFiles, ShortReadError, advise_need, descriptor_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardio.errors import ShardioError
    from shardio.metadata import IndexHead
    from shardio.reader._blocks import BlockReader
    from shardio.storage import NamedFile

_AT_ONCE = 1 << 20  # bytes of a shard that are read before they are compared and copied
_NEAR = 4096  # bytes between two runs that cost less than another call
_MOST_FILES = 256  # files that are open at once while rows of them are read


def populate(mapped: memoryview, head: IndexHead, seen: bytearray, row: int) -> tuple[int, bool]:
    """Ask for all pages of about a megabyte of a mapped shard, from a row on, by one call.

    Met one by one, each sixteen pages cost a fault of their own.

    Args:
        mapped: the shard.
        head: of its index.
        seen: one byte a block, 1 once it was compared; what was looked at is not asked for.
        row: the first that is wanted.

    Returns:
        The row at which it ends, and whether to ask again: an older kernel, or a file system that cannot,
        brings pages by faults.
    """
    stops, row_stops = memoryview(head.block_stop), memoryview(head.block_row_stop)
    first = bisect_right(row_stops, row)
    start = stops[first - 1] if first else 0
    stop = max(first + 1, bisect_right(stops, start + _AT_ONCE, first))
    can = seen.find(0, first, stop) < 0 or advise_need(mapped, start, stops[stop - 1])
    return row_stops[stop - 1], can


class MappedRows:
    """Copies payloads of rows out of a mapped, uncompressed shard, whose bytes are read past the map.

    That costs less than looking into pages for the first time, and leaves none of them with the process.
    Where the checksums of records are there, or nothing is to be compared, frames are read alone, and each is
    compared whenever it is read. Else, and where a frame is not right, it is as for all other ways to look
    into the shard: a block is compared whole, the first time that a row of it is wanted.

    Args:
        head: of the index.
        file: the mapped shard.
        frame_stop: the mapped column of the index.
        seen: one byte a block, 1 once it was compared; shared with all that compare.
        frames: finds frames that may be read alone.
        blocks: opens blocks.
        shorter: the error for a file that ends before a block does.
        records: the mapped checksums of records, which those frames are compared with; or None.
        verify: compare the bytes with their checksums.
    """

    def __init__(  # noqa: PLR0913 - made in one place
        self,
        head: IndexHead,
        file: DataFile,
        frame_stop: NDArray[np.uint32],
        seen: bytearray,
        frames: kernels.MappedRecords,
        blocks: BlockReader,
        shorter: Callable[[ShortReadError], ShardioError],
        records: NDArray[np.uint32] | None,
        *,
        verify: bool,
    ) -> None:
        self._head = head
        self._file = file
        self._frame_stop = frame_stop
        self._seen = np.frombuffer(seen, np.uint8)
        self._blocks = blocks
        self._shorter = shorter
        self._runs = frames if records is not None or not verify else None
        self._records = records
        # Of all blocks, made once: a run costs few calls.
        self._row_stops = head.block_row_stop.astype(np.int64)
        self._stops = head.block_stop.astype(np.int64)
        self._starts = head.starts_of_blocks(np.arange(head.blocks))

    def find_frames(self, rows: NDArray[np.int64]) -> StoredFrames | None:
        """Find frames, int64 ascending rows, to be read alone; None where that cannot be."""
        found = None if self._runs is None else self._runs.find(rows, _NEAR)
        named = self._file.named
        if found is None or named is None:
            return None
        crcs = np.full(rows.size, -1) if self._records is None else self._records[rows]
        # From places in what would be read of the runs to places in the file.
        read = found.ends - found.begins
        by_run = found.ends - np.cumsum(read)
        starts = found.places + np.repeat(by_run, np.diff(found.first, append=rows.size))
        return StoredFrames(named, starts, found.lengths, crcs, found.begins, found.ends)

    def begin(self, rows: NDArray[np.int64]) -> RowsToCopy | None:
        """Find rows, int64 ascending; None where they do not ascend.

        Raises:
            FormatError: the index is damaged where it says where they are.
        """
        found = None if self._runs is None else self._runs.find(rows, _NEAR)
        if found is not None:
            crcs = None if self._records is None else self._records[rows]
            return RowsToCopy(found.lengths, partial(self._copy_frames, rows, found, crcs))
        if not rows.size or bool((rows[1:] <= rows[:-1]).any()):
            return None
        blocks = np.searchsorted(self._row_stops, rows, side="right")
        unseen = self._seen[blocks] == 0
        fresh = blocks[unseen]
        if fresh.size:
            fresh = fresh[np.append(True, fresh[1:] != fresh[:-1])]
            for block in fresh.tolist():
                self._blocks.frames_of(block)
        bases = self._starts[blocks]
        heads = rows == np.where(blocks > 0, self._row_stops[blocks - 1], 0)
        starts = np.where(heads, 0, self._frame_stop[rows - 1]).astype(np.int64)
        starts += bases
        stops = self._frame_stop[rows] + bases
        first = np.flatnonzero(np.append(True, rows[1:] != rows[:-1] + 1))
        last = np.append(first[1:], rows.size) - 1
        begins = np.where(unseen[first], bases[first], starts[first])
        ends = np.where(unseen[last], self._stops[blocks[last]], stops[last])
        # Runs that share a block are read together, and those that are so near that a call costs more.
        apart = np.flatnonzero(np.append(True, begins[1:] > ends[:-1] + _NEAR))
        run = _Runs(first[apart], begins[apart], ends[np.append(apart[1:], first.size) - 1])
        by_block = _RowsOfBlocks(starts + TFRECORD_HEAD, stops - TFRECORD_TAIL, run, fresh)
        return RowsToCopy(by_block.stops - by_block.starts, partial(self._copy_rows, by_block))

    def _copy_frames(
        self,
        rows: NDArray[np.int64],
        found: kernels.FoundFrames,
        crcs: NDArray[np.uint32] | None,
        memory: NDArray[np.uint8],
    ) -> bool:
        """Read frames alone, to where their payloads go, and move those together."""
        read = np.cumsum(found.ends - found.begins)
        sizes = np.cumsum(found.lengths)
        places, at = found.places, 0
        for a, b in itertools.pairwise(_cut_runs(read)):
            before = int(read[a - 1]) if a else 0
            own = slice(int(found.first[a]), int(found.first[b]) if b < read.size else places.size)
            size, many = int(sizes[own.stop - 1]) - at, int(read[b - 1]) - before
            # What is read is longer than the payloads, and may reach over the end of what is there for them.
            data = memory[at : at + many]
            if data.size < many:
                data = _scratch(many)[:many]
            if not self._read(found.begins[a:b], found.ends[a:b], data):
                return False
            known = None if crcs is None else crcs[own]
            out = memory[at : at + size]
            if not kernels.take_frames(data, places[own] - before, found.lengths[own], known, out):
                # By the map, the block is compared, which says what is wrong: also where it was right before.
                self._seen[np.searchsorted(self._row_stops, rows[own], side="right")] = 0
                return False
            at += size
        return True

    def _read(self, begins: NDArray[np.int64], ends: NDArray[np.int64], out: NDArray[np.uint8]) -> bool:
        try:
            return self._file.read_into(begins, ends, memoryview(out))
        except ShortReadError as error:
            raise self._shorter(error) from error

    def _copy_rows(self, rows: _RowsOfBlocks, out: NDArray[np.uint8]) -> bool:
        """Read blocks whole that are to be compared, of others the rows alone."""
        first, begins, ends = rows.runs
        read = np.cumsum(ends - begins)
        edges = _cut_runs(read)
        largest = max(int(read[b - 1] - (read[a - 1] if a else 0)) for a, b in itertools.pairwise(edges))
        scratch = _scratch(largest)
        at = 0
        for a, b in itertools.pairwise(edges):
            own = slice(int(first[a]), int(first[b]) if b < first.size else rows.starts.size)
            if not self._read(begins[a:b], ends[a:b], scratch):
                return False
            # What is added to a place in the file to get one in what was read.
            shift = read[a:b] - ends[a:b] - (read[a - 1] if a else 0)
            fresh = rows.fresh[np.searchsorted(self._starts[rows.fresh], begins[a]) :]
            fresh = fresh[: np.searchsorted(self._starts[fresh], ends[b - 1])]
            if fresh.size:
                self._compare(fresh, memoryview(scratch), begins[a:b], shift)
            by_row = np.repeat(shift, np.diff(np.append(first[a:b], own.stop)))
            starts, stops = rows.starts[own] + by_row, rows.stops[own] + by_row
            size = int((stops - starts).sum())
            kernels.gather_into(scratch, starts, stops, out[at : at + size])
            at += size
        return True

    def _compare(
        self,
        fresh: NDArray[np.int64],
        data: memoryview,
        begins: NDArray[np.int64],
        shift: NDArray[np.int64],
    ) -> None:
        starts = self._starts[fresh]
        starts += shift[np.searchsorted(begins, starts, side="right") - 1]
        for block, start in zip(fresh.tolist(), starts.tolist(), strict=True):
            self._blocks.open(block, data, start)
        self._seen[fresh] = 1


class StoredFrames(NamedTuple):
    """Rows of a shard whose frames were found; nothing of them is read yet.

    Attributes:
        file: the shard.
        starts: int64, where each frame begins in it.
        lengths: int64, bytes of each payload.
        crcs: masked CRC-32C of each payload; -1 where nothing is to be compared.
        begins, ends: int64, of the runs of bytes that they are in.
    """

    file: NamedFile
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[Any]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]


def advise_frames(frames: Sequence[StoredFrames]) -> None:
    """Let the system fetch frames into its cache, without waiting for them."""
    most = _most_files()
    for low in range(0, len(frames), most):
        some = frames[low : low + most]
        with OpenFiles([each.file for each in some]) as opened:
            if opened.complete:
                which = np.repeat(np.arange(len(some), dtype=np.int32), [each.begins.size for each in some])
                begins = np.concatenate([each.begins for each in some])
                opened.advise(which, begins, np.concatenate([each.ends for each in some]))


def read_frames(
    files: Sequence[NamedFile],
    frames: NDArray[np.int64],
    values: NDArray[np.uint8],
    offsets: NDArray[np.int64],
) -> list[tuple[slice, bool]]:
    """Read frames of mapped shards past their maps, and compare each with its index.

    Args:
        files: the shards.
        frames: int64 [rows, 4]: number of the file, place in it, bytes of the payload, its masked CRC-32C or,
            where nothing is to be compared, -1.
        values: uint8, filled with the payloads, one after another.
        offsets: int64 [rows + 1], where each begins, and where the last one stops.

    Returns:
        Runs of rows whose values are not there, since the map is what there is: one of them is not as its
        index says (True), or is in a file that cannot be opened again (False).

    Raises:
        ShortReadError: a file ends before a frame does.
        StorageError: the environment failed.
    """

    def read(opened: OpenFiles, some: NDArray[np.int64], low: int, stop: int) -> NDArray[np.bool_]:
        return opened.read_frames(some, values[offsets[low] : offsets[stop]])

    return _read_opened(files, frames, read)


def read_records(
    files: Sequence[NamedFile], frames: NDArray[np.int64]
) -> tuple[list[bytes], list[tuple[slice, bool]]]:
    """Return the payloads, each an object of its own, and what `read_frames` returns."""
    records = [b""] * len(frames)

    def read(opened: OpenFiles, some: NDArray[np.int64], low: int, stop: int) -> NDArray[np.bool_]:
        records[low:stop], right = opened.read_records(some)
        return right

    return records, _read_opened(files, frames, read)


def _read_opened(
    files: Sequence[NamedFile],
    frames: NDArray[np.int64],
    read: Callable[[OpenFiles, NDArray[np.int64], int, int], NDArray[np.bool_]],
) -> list[tuple[slice, bool]]:
    """Call what reads rows with the files that they are in, and return what `read_frames` returns."""
    left: list[tuple[slice, bool]] = []
    low = 0
    for stop in _cut_files(frames[:, 0], len(files)):
        some = frames[low:stop]
        with OpenFiles(files if len(files) <= _most_files() else _used(files, some)) as opened:
            if opened.complete:
                right = read(opened, some, low, stop)
                left += [(slice(low + k, low + k + 1), True) for k in np.flatnonzero(~right).tolist()]
            else:
                left.append((slice(low, stop), False))
        low = stop
    return left


def _used(files: Sequence[NamedFile], frames: NDArray[np.int64]) -> list[NamedFile]:
    """Return the files that frames are in, whose numbers are changed to those of the list returned."""
    used, frames[:, 0] = np.unique(frames[:, 0], return_inverse=True)
    return [files[k] for k in used.tolist()]


def _most_files() -> int:
    """Return how many files may be open at once while rows of them are read; several threads do so."""
    return max(1, min(_MOST_FILES, descriptor_limit() // 8))


def _cut_files(which: NDArray[np.int64], files: int) -> list[int]:
    """Return where to cut rows, so that those between two cuts are in no more files than may be open."""
    most = _most_files()
    if files <= most or np.count_nonzero(np.bincount(which)) <= most:
        return [which.size]
    return [*range(most, which.size, most), which.size]


_own = threading.local()


def _cut_runs(read: NDArray[np.int64]) -> list[int]:
    """Return where to cut runs, given the bytes of each and all before it.

    What some of them have is compared and copied while the processor's cache holds it.
    """
    if read[-1] <= _AT_ONCE:
        return [0, read.size]
    cuts = np.flatnonzero(np.append(True, np.diff((read - 1) // _AT_ONCE) > 0))
    return [*cuts.tolist(), read.size]


def _scratch(size: int) -> NDArray[np.uint8]:
    """Return memory of this thread for so many bytes, which the next call may return again."""
    held: NDArray[np.uint8] | None = getattr(_own, "scratch", None)
    if held is None or len(held) < size:
        held = np.empty(size, np.uint8)
        if size <= 4 * _AT_ONCE:
            _own.scratch = held
    return held


class _Runs(NamedTuple):
    """Runs of bytes to read; number of the first row of each, its begin and its end in the file."""

    first: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]


class _RowsOfBlocks(NamedTuple):
    """Rows of a shard that were found.

    Attributes:
        starts, stops: int64, of their payloads in the file.
        runs: what to read.
        fresh: int64, ascending numbers of the blocks that are to be compared.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    runs: _Runs
    fresh: NDArray[np.int64]


class RowsToCopy(NamedTuple):
    """Rows of a shard that were found.

    Attributes:
        lengths: int64, bytes of each payload.
        copy: copies the payloads one after another to the beginning of memory, uint8 of at least their size,
            and may use what is behind it, too. It returns False where the map must be used, and raises
            CorruptBlockError where a block that was not compared before is damaged, or the file is shorter;
            StorageError where the environment failed.
    """

    lengths: NDArray[np.int64]
    copy: Callable[[NDArray[np.uint8]], bool]
