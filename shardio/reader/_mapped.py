"""Rows of mapped shards: cut where they are, copied past the map, or left in their files until wanted.

Promise: that of `OpenShard`.  A frame or block that is not as its index says is left to `BlockReader`, which
says what is wrong.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.reader._blocks import BlockReader
from shardio.reader._files import ShardFiles
from shardio.reader._tuning import TUNING
from shardio.storage import NamedFile, OpenFiles, ShortReadError, descriptor_limit


class MappedRows:
    """Rows of a mapped, uncompressed TFRECORD shard, which are cut out of it as they are.

    A block is compared once and remembered with one byte, or each frame with its own checksums.  Rows in
    large numbers are read past the map, frame by frame: that costs less than looking into pages for the first
    time, and leaves none of them with the process.

    Args:
        files: the shard and its index.
        blocks: opens blocks, and says what is wrong with them.
        alone: compare each frame with its own checksums, not whole blocks.
    """

    def __init__(self, files: ShardFiles, blocks: BlockReader, *, alone: bool) -> None:
        assert blocks.mapped is not None  # noqa: S101 - for the type checker
        self._mapped = blocks.mapped
        self._files, self._head, self._blocks, self._alone = files, files.head, blocks, alone
        self._seen = bytearray(
            self._head.blocks
        )  # 1 once a block was compared, for as long as it stays mapped
        self._rows = kernels.MappedRecords(self._mapped, blocks.index, self._seen, alone=alone)
        self._reads_frames = alone or not files.verify

    def record(self, row: int) -> bytes:
        """Return one payload, compared with its own checksum or with that of its block."""
        found = self._rows.record(row)
        return found if found is not None else self._record_by_block(row)

    def records(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Return some payloads, in the order given.

        Raises:
            CorruptBlockError, FormatError: one of them, or its part of the index, is damaged.
        """
        found = self._rows.records(rows)
        if found is None and not self._alone:
            # Blocks are compared first, those of all rows in one call.
            self._compare(rows)
            found = self._rows.records(rows)
        return [self.record(row) for row in rows.tolist()] if found is None else found

    def places(self, rows: NDArray[np.int64]) -> tuple[memoryview, NDArray[np.int64], NDArray[np.int64]]:
        """Return the map, and where payloads start and stop in it, int64; rows are int64, in any order.

        Raises:
            CorruptBlockError, FormatError: a block touched for the first time is damaged.
        """
        found = self._rows.places(rows)
        if found is None:
            self._compare(rows)
            found = self._rows.places(rows)
        if found is None:
            raise self._blocks.changed()
        return self._mapped, found[0], found[1]

    def lists(self, row: int, ends: Iterable[int]) -> Iterator[list[bytes]]:
        """Yield the payloads of consecutive rows.

        Args:
            row: the first of them.
            ends: the row at which each list ends, ascending.

        Raises:
            CorruptBlockError, FormatError: damage, with its address.
        """
        for end in ends:
            before = self._rows.opened
            found = self._rows.take(row, end)
            self._blocks.stats.blocks_opened += self._rows.opened - before
            if found is None:
                # Compared one by one, the block that is not right says what is wrong.
                found = self._blocks.begin([self._blocks.around(row, end)])()[0].payloads(row, end)
            yield found
            # Not held while the next list is made: its memory is still in the processor's cache.
            del found
            row = end

    def invalidate_verified(self, rows: NDArray[np.int64]) -> None:
        """Have the blocks of rows compared before they are used again, since one of them has changed."""
        np.frombuffer(self._seen, np.uint8)[self._head.blocks_of(rows)] = 0

    def _compare(self, rows: NDArray[np.int64]) -> None:
        """Compare the blocks of rows, where they were not compared before."""
        before = self._rows.opened
        wrong = self._rows.compare(self._head.blocks_of(rows))
        self._blocks.stats.blocks_opened += self._rows.opened - before
        if wrong >= 0:
            self._blocks.load(wrong)  # says what is wrong

    def _record_by_block(self, row: int) -> bytes:
        """Return a payload after all of its block was compared, or say what is wrong."""
        self._compare(np.array([row]))
        found = self._rows.record(row)
        if found is None:
            raise self._blocks.changed(row)
        return found

    def _find(self, rows: NDArray[np.int64]) -> kernels.FoundFrames | None:
        return self._rows.find(rows, TUNING.near) if self._reads_frames else None

    def find_frames(self, rows: NDArray[np.int64]) -> StoredFrames | None:
        """Find frames, int64 ascending rows, to be read alone; None where that cannot be."""
        found = self._find(rows)
        named = self._files.data.named
        if found is None or named is None:
            return None
        checked = np.full(rows.size, int(self._alone), np.int64)
        # From places in what would be read of the runs to places in the file.
        read = found.ends - found.begins
        by_run = found.ends - np.cumsum(read)
        starts = found.places + np.repeat(by_run, np.diff(found.first, append=rows.size))
        return StoredFrames(named, starts, found.lengths, checked, found.begins, found.ends)

    def begin_copy(self, rows: NDArray[np.int64]) -> RowsToCopy | None:
        """Find rows, int64 ascending, to be copied; None where that cannot be frame by frame."""
        found = self._find(rows)
        if found is None:
            return None
        return RowsToCopy(found.lengths, partial(self._copy, rows, found))

    def _copy(self, rows: NDArray[np.int64], found: kernels.FoundFrames, memory: NDArray[np.uint8]) -> bool:
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
            out = memory[at : at + size]
            starts, lengths = places[own] - before, found.lengths[own]
            if not kernels.take_frames(data, starts, lengths, out, verify=self._alone):
                # By the map, the block is compared, which says what is wrong: also where it was right before.
                self.invalidate_verified(rows[own])
                return False
            at += size
        return True

    def _read(self, begins: NDArray[np.int64], ends: NDArray[np.int64], out: NDArray[np.uint8]) -> bool:
        try:
            return self._files.data.read_into(begins, ends, memoryview(out))
        except ShortReadError as error:
            raise self._files.explain(error) from error


class StoredFrames(NamedTuple):
    """Rows of a shard whose frames were found; nothing of them is read yet.

    Attributes:
        file: the shard.
        starts: int64, where each frame begins in it.
        lengths: int64, bytes of each payload.
        checked: int64, 1 where a frame is compared with its checksums, else 0.
        begins, ends: int64, of the runs of bytes that they are in.
    """

    file: NamedFile
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    checked: NDArray[np.int64]
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
    """Read frames of mapped shards past their maps, and compare each with its checksums.

    Args:
        files: the shards.
        frames: int64 [rows, 4]: number of the file, place in it, bytes of the payload, and 1 to
            compare its checksums, else 0.
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
    ends = _cut_files(frames[:, 0], len(files))
    runs = [*zip([0, *ends[:-1]], ends, strict=True)][::-1]
    while runs:
        low, stop = runs.pop()
        some, used = frames[low:stop], files
        if len(files) > _most_files() or len(some) < len(frames):
            some = some.copy()
            used = _used(files, some)
        with OpenFiles(used) as opened:
            complete = opened.complete
            if complete:
                right = read(opened, some, low, stop)
                left += [(slice(low + k, low + k + 1), True) for k in np.flatnonzero(~right).tolist()]
        if not complete and stop - low > 1:
            # A file of a cache may be gone: rows of others are there.
            middle = (low + stop) // 2
            runs += [(middle, stop), (low, middle)]
        elif not complete:
            left.append((slice(low, stop), False))
    return left


def _used(files: Sequence[NamedFile], frames: NDArray[np.int64]) -> list[NamedFile]:
    """Return the files that frames are in, whose numbers are changed to those of the list returned."""
    used, frames[:, 0] = np.unique(frames[:, 0], return_inverse=True)
    return [files[k] for k in used.tolist()]


def _most_files() -> int:
    """Return how many files may be open at once while rows of them are read; several threads do so."""
    return max(1, min(TUNING.files, descriptor_limit() // 8))


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
    if read[-1] <= TUNING.copied_bytes:
        return [0, read.size]
    cuts = np.flatnonzero(np.append(True, np.diff((read - 1) // TUNING.copied_bytes) > 0))
    return [*cuts.tolist(), read.size]


def _scratch(size: int) -> NDArray[np.uint8]:
    """Return memory of this thread for so many bytes, which the next call may return again."""
    held: NDArray[np.uint8] | None = getattr(_own, "scratch", None)
    if held is None or len(held) < size:
        held = np.empty(size, np.uint8)
        if size <= 4 * TUNING.copied_bytes:
            _own.scratch = held
    return held


class RowsToCopy(NamedTuple):
    """Rows of a shard that were found.

    Attributes:
        lengths: int64, bytes of each payload.
        copy: copies the payloads one after another to the beginning of memory, uint8 of at least their size,
            and may use what is behind it, too. It returns False where the map must be used, and raises
            CorruptBlockError where the file is shorter, StorageError where the environment failed.
    """

    lengths: NDArray[np.int64]
    copy: Callable[[NDArray[np.uint8]], bool]
