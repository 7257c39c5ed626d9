"""The bytes of one shard and of its index: mapped, fetched by runs of blocks, or decoded from a stream.

- Mapped: rows of an uncompressed TFRecord shard are cut by one compiled call, their blocks compared before.
  Promise: the same as `OpenShard`'s; what is not as its index says is left to it, which says what is wrong.
- Fetched: from the cache on local disk where there is one, else by few large requests; runs are begun and
  finished apart, so that the requests of many shards are under way together.
- Decoded: reading on where an earlier read ended decodes every byte once; reading anywhere else decodes from
  the start of the object, is counted, and is said once.  A few decoders are kept where they are, so that
  several threads may each read on in their own place.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from shardio import kernels
from shardio.callers import warn
from shardio.errors import CorruptBlockError, FormatError, NotFoundError, ShardioError, StaleIndexError
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL, decode_stream
from shardio.metadata import INDEX_ADVICE, check_index_end
from shardio.storage import (
    ChangedObjectError,
    DataFile,
    OpenFiles,
    ShortReadError,
    advise_need,
    descriptor_limit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardio.format import Buffer, Compression, Limits
    from shardio.metadata import IndexHead
    from shardio.reader._blocks import BlockVerifier
    from shardio.reader._options import ReadStats
    from shardio.storage import BlockCache, CachedBlocks, NamedFile

# What a store says of a file that was opened before and is cut, gone or another one now.
RefusedError: TypeAlias = ShortReadError | NotFoundError | ChangedObjectError
REFUSED = (ShortReadError, NotFoundError, ChangedObjectError)

_PIECE = 4 << 20  # stored bytes of one request, of a stream
_AT_ONCE = 1 << 20  # bytes of a shard that are read before they are compared and copied
_NEAR = 4096  # bytes between two runs that cost less than another call
_MOST_CURSORS = 4
_MOST_FILES = 256  # files that are open at once while rows of them are read


def map_frames(index: DataFile, head: IndexHead) -> NDArray[np.uint32] | None:
    """Return the `frame_stop` column as a view of the mapped index, or None where it cannot be mapped.

    Raises:
        FormatError: the file has another size or end than its header says.
    """
    view = index.map()
    if view is None:
        return None
    check_index_file(index, head)
    if head.rows == 0:
        return np.empty(0, np.uint32)
    return np.frombuffer(view, "<u4", head.rows, head.frame_stop_offset).view(np.uint32)


def check_index_file(index: DataFile, head: IndexHead) -> None:
    """Compare size and end of a local index with what its header says.

    Raises:
        FormatError: one of them is another.
    """
    if index.size != head.index_bytes:
        raise FormatError(
            "an index has another size than its header says",
            url=index.url,
            expected=f"{head.index_bytes} bytes",
            found=f"{index.size} bytes",
            advice=INDEX_ADVICE,
        )
    start, view = head.frame_stop_offset + 4 * head.rows, index.map()
    end = index.read(start, head.index_bytes) if view is None else view[start : head.index_bytes]
    # Parts of the records' checksums are compared when they are used.
    check_index_end(head, end, url=index.url, records=False)


def map_records(index: DataFile, head: IndexHead) -> NDArray[np.uint32] | None:
    """Return the `record_crc32c` column as a view of the mapped index, or None where there is none."""
    view = index.map()
    if view is None or head.block_records_crc32c is None or head.rows == 0:
        return None
    return np.frombuffer(view, "<u4", head.rows, head.record_crc_offset).view(np.uint32)


def frame_parts(
    head: IndexHead, frame_stop: NDArray[np.uint32], blocks: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Return the parts of a mapped `frame_stop` of some blocks, one after another."""
    first, last = int(blocks[0]), int(blocks[-1])
    if last - first + 1 == len(blocks) and bool((blocks[1:] == blocks[:-1] + 1).all()):
        return frame_stop[head.block_rows(first)[0] : head.block_rows(last)[1]]
    rows = head.rows_of_blocks(blocks)
    firsts = head.block_row_stop[blocks].astype(np.int64) - rows
    return frame_stop[np.repeat(firsts - (np.cumsum(rows) - rows), rows) + np.arange(int(rows.sum()))]


def map_data(data: DataFile, head: IndexHead, key: str, *, adopted: bool) -> memoryview | None:
    """Return a shard's bytes mapped, or None where they must be read.

    Raises:
        CorruptBlockError, StaleIndexError: the shard has another size than its index says.
    """
    # Where the size is known without a request it is compared; a remote file answers with what it was told.
    if data.size != head.stored_bytes:
        raise wrong_size(data, head, key, f"{data.size} bytes", adopted=adopted)
    # A stream's blocks are cut from its decoded bytes, which are nowhere to be mapped.
    return None if head.stream else data.map()


def cut_short(index: DataFile, wanted: int, key: str, error: ShortReadError) -> FormatError:
    """Return the error for an index that ends before what is read of it."""
    return FormatError(
        "an index is cut short",
        url=index.url,
        shard=key,
        start=error.start,
        stop=error.stop,
        expected=f"at least {wanted} bytes",
        found=f"{error.found} of {error.expected} bytes asked for",
        advice=INDEX_ADVICE,
    )


def wrong_size(data: DataFile, head: IndexHead, key: str, found: str, *, adopted: bool) -> ShardioError:
    """Return the error for a shard that is longer or shorter than its index says."""
    expected = f"{head.stored_bytes} bytes"
    if adopted:
        return StaleIndexError(
            "the shard has another size than when it was indexed",
            url=data.url,
            shard=key,
            expected=expected,
            found=found,
            advice="index it again with `shardio adopt URL --update`",
        )
    return CorruptBlockError(
        "the shard has another size than its index says",
        url=data.url,
        shard=key,
        expected=expected,
        found=found,
        advice="it was cut or changed: `shardio repair` copies it (--mirror) or salvages its records",
    )


def gone(error: NotFoundError, key: str, *, adopted: bool) -> NotFoundError:
    """Return the error for a shard that is not there any more, made of what its store said."""
    if adopted:
        advice = (
            "see that it is where it was, or take it out of the dataset with "
            "`shardio adopt URL --drop-missing`"
        )
    else:
        advice = "`shardio repair --mirror` restores it from a copy of the dataset"
    return NotFoundError(error.what, url=error.url, shard=key, advice=advice)


class MappedLists:
    """Cuts consecutive rows of a mapped shard, without compression, into lists of payloads.

    Args:
        head: of the index.
        data: the mapped shard.
        columns: of the mapped index.
        seen: one byte a block, 1 once it was compared; shared with all that compare.
        verify: compare the bytes with their checksums.
        stats: counts the blocks that are compared.
    """

    def __init__(
        self,
        head: IndexHead,
        data: Buffer,
        columns: kernels.LookupColumns,
        seen: bytearray,
        *,
        verify: bool,
        stats: ReadStats,
    ) -> None:
        self._data = data
        self._populates = isinstance(data, memoryview)
        self._seen = seen
        self._stats = stats
        crcs = head.block_crc32c if verify else None
        self._lists = kernels.RecordLists(data, columns, crcs, seen)
        self._counted = 0
        self._stops = memoryview(head.block_stop)
        self._row_stops = memoryview(head.block_row_stop)

    def take(self, first: int, stop: int) -> list[bytes] | None:
        """Return payloads of the rows `first .. stop - 1`, or None where a block of them is not right."""
        found = self._lists.take(first, stop)
        opened = self._lists.opened
        self._stats.blocks_opened += opened - self._counted
        self._counted = opened
        return found

    def populate(self, row: int) -> int:
        """Ask for all pages of about a megabyte from a row on by one call; return the row at which it ends.

        Met one by one, each sixteen pages cost a fault of their own.
        """
        first = bisect_right(self._row_stops, row)
        start = self._stops[first - 1] if first else 0
        stop = max(first + 1, bisect_right(self._stops, start + _AT_ONCE, first))
        if self._populates and self._seen.find(0, first, stop) >= 0:
            # An older kernel, or a file system that cannot: pages come by faults, as ever.
            self._populates = advise_need(memoryview(self._data), start, self._stops[stop - 1])
        return self._row_stops[stop - 1]


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
        checks: compares blocks with the head.
        shorter: the error for a file that ends before a block does.
        runs: finds frames that may be read alone; or None.
        records: the mapped checksums of records, which those frames are compared with; or None.
        verify: compare the bytes with their checksums.
        stats: counts the blocks that are compared.
    """

    def __init__(  # noqa: PLR0913 - made in one place
        self,
        head: IndexHead,
        file: DataFile,
        frame_stop: NDArray[np.uint32],
        seen: bytearray,
        checks: BlockVerifier,
        shorter: Callable[[ShortReadError], ShardioError],
        runs: kernels.FrameRuns | None,
        records: NDArray[np.uint32] | None,
        *,
        verify: bool,
        stats: ReadStats,
    ) -> None:
        self._head = head
        self._file = file
        self._frame_stop = frame_stop
        self._seen = np.frombuffer(seen, np.uint8)
        self._checks = checks
        self._shorter = shorter
        self._runs = runs
        self._records = records
        self._verify = verify
        self._stats = stats
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
            self._checks.frames(fresh, frame_parts(self._head, self._frame_stop, fresh))
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
        if self._verify:
            starts = self._starts[fresh]
            own = np.searchsorted(begins, starts, side="right") - 1
            self._checks.stored(fresh, data, starts + shift[own])
        self._stats.blocks_opened += len(fresh)
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


class Fetched(NamedTuple):
    """The bytes of a run of blocks.

    Attributes:
        data: all of them, one block after another.
        fresh: runs of blocks that came from the source and are not in the cache yet.
    """

    data: memoryview
    fresh: list[tuple[int, int]]


class KnownEnd:
    """Where a file was found to be cut, so that it is not asked each time for what is behind.

    Args:
        times: so many reads are refused before one asks again, since the file may have come back.
    """

    def __init__(self, times: int) -> None:
        self._times = times
        self._found: tuple[int, ShardioError, int] | None = None

    def remember(self, end: int, error: ShardioError) -> None:
        """Refuse reads beyond a place with an error, some times."""
        self._found = end, error, self._times

    def refusal(self, stop: int) -> ShardioError | None:
        """Return the error of a read up to `stop`; None where the file is to be asked."""
        if self._found is None or stop <= self._found[0]:
            return None
        end, error, left = self._found
        self._found = (end, error, left - 1) if left > 1 else None
        # A copy: threads that raise one error at once would write into each other's traceback.
        return error.located().with_traceback(None)


class BlockFetcher:
    """Reads one file block by block.

    Args:
        file: shard or index.
        bounds: byte range of a block in the file.
        name: what the cache calls a block; says shard, block and checksum.
        cache: or None.
        stats: counts what is read.
        refused: the error for a file that is cut, gone or another one.
        checksummed: what is fetched will be compared with checksums.
        held: the bytes of all blocks, one after another, if they were read already.
        known_end: remembers where the file was found to be cut; None to ask it each time.
    """

    def __init__(  # noqa: PLR0913 - made in one place
        self,
        file: DataFile,
        bounds: Callable[[int], tuple[int, int]],
        name: Callable[[int], str],
        cache: BlockCache | None,
        stats: ReadStats,
        refused: Callable[[RefusedError], ShardioError],
        *,
        checksummed: bool = True,
        held: memoryview | None = None,
        known_end: KnownEnd | None = None,
    ) -> None:
        self._held = held
        self._known_end = known_end
        self._file = file
        self._bounds = bounds
        self._name = name
        self._cache = cache
        self._stats = stats
        self._refused = refused
        self._checksummed = checksummed

    def begin(self, runs: Sequence[tuple[int, int]], *, cached: bool = True) -> Callable[[], list[Fetched]]:
        """Send the requests for some runs `[first, stop)` of blocks and return what waits for the bytes.

        Args:
            runs: of blocks, each at least one.
            cached: what the cache holds may be taken from there; without, a reply must also prove that it is
                of the object that was opened.

        Raises:
            FormatError, StaleIndexError, NotFoundError: the file is shorter than it must be, or gone; when
                waited for.
            StorageError: the environment failed; when waited for.
        """
        whole = self._held
        if whole is not None and cached:
            base = self._bounds(0)[0]
            parts = [(self._bounds(first)[0], self._bounds(stop - 1)[1]) for first, stop in runs]
            return lambda: [Fetched(whole[start - base : stop - base], []) for start, stop in parts]
        found = [self._look_up(run) if cached else [] for run in runs]
        missing = [self._missing(run, held) for run, held in zip(runs, found, strict=True)]
        flat = [segment for segments in missing for segment in segments]
        refusal = self.refusal(flat)
        if refusal is not None:
            return partial(refuse, refusal)
        starts = [self._bounds(first)[0] for first, _ in flat]
        stops = [self._bounds(stop - 1)[1] for _, stop in flat]
        checksummed = self._checksummed and cached
        if not cached:
            # If the wrong bytes were another object's, so are its size and ETag.
            self._file.invalidate()
        wait = self._file.begin_read(starts, stops, checksummed=checksummed) if flat else list

        def finish() -> list[Fetched]:
            try:
                replies = iter(wait())
            except REFUSED as error:
                refused, end = self._refused(error), self._file.ends_at
                if self._known_end is not None and end is not None:
                    self._known_end.remember(end, refused)
                raise refused from error
            self._stats.bytes_read += sum(stops) - sum(starts)
            return [
                Fetched(self._join(held, [(segment, next(replies)) for segment in segments]), segments)
                for held, segments in zip(found, missing, strict=True)
            ]

        return finish

    def refusal(self, runs: Sequence[tuple[int, int]]) -> ShardioError | None:
        """Return the error of runs of blocks that end behind a file that was found to be cut; else None."""
        if self._known_end is None or not runs:
            return None
        return self._known_end.refusal(max(self._bounds(stop - 1)[1] for _, stop in runs))

    def range_of(self, run: tuple[int, int]) -> tuple[DataFile, int, int] | None:
        """Return the range of a run of blocks, None where it must be fetched by `begin`."""
        if self._cache is not None or self._held is not None or not self._checksummed:
            return None
        return self._file, self._bounds(run[0])[0], self._bounds(run[1] - 1)[1]

    def keep(self, run: tuple[int, int], fetched: Fetched) -> None:
        """Store blocks in the cache; they were compared with their checksums."""
        if self._cache is None:
            return
        base = self._bounds(run[0])[0]
        for first, stop in fetched.fresh:
            bounds = (self._bounds(block) for block in range(first, stop))
            blocks = [fetched.data[start - base : end - base] for start, end in bounds]
            self._cache.keep(self._name, first, blocks)

    def _look_up(self, run: tuple[int, int]) -> list[CachedBlocks]:
        if self._cache is None:
            return []
        found = self._cache.find(self._name, *run)
        self._stats.cache_hits += sum(piece.stop - piece.first for piece in found)
        return found

    def _missing(self, run: tuple[int, int], held: list[CachedBlocks]) -> list[tuple[int, int]]:
        places = [run[0], *(place for piece in held for place in piece[:2]), run[1]]
        return [(first, stop) for first, stop in zip(places[::2], places[1::2], strict=True) if first < stop]

    def _join(
        self, held: list[CachedBlocks], replies: list[tuple[tuple[int, int], memoryview]]
    ) -> memoryview:
        parts = {piece.first: piece.data for piece in held}
        parts.update((first, data) for (first, _), data in replies)
        if len(parts) == 1:
            return next(iter(parts.values()))
        return memoryview(b"".join(parts[first] for first in sorted(parts)))


def refuse(error: ShardioError) -> NoReturn:
    """Raise an error in its turn, when it is waited for."""
    raise error


def decoded_file(data: DataFile, head: IndexHead, limits: Limits, stats: ReadStats) -> DataFile:
    """Return the file that the blocks of an index are cut from: of a stream its decoded bytes."""
    if not head.stream:
        return data
    # Bytes of no record may be first, such as a byte order mark.
    first = int(np.searchsorted(head.block_row_stop, 0, side="right"))
    begin = head.block_bounds(first)[0] if first < head.blocks else 0
    return StreamFile(data, head.compression, head.decoded_bytes, limits, stats, begin=begin)


class StreamFile(DataFile):
    """A file of decoded bytes over a file of compressed ones.

    Args:
        data: the compressed object.
        compression: of the object.
        decoded_bytes: how many bytes it decodes to.
        limits: upper bounds for decoding.
        stats: counts the reads that had to begin again.
        begin: where the first record begins: a read from there is one from the start.
    """

    def __init__(
        self,
        data: DataFile,
        compression: Compression,
        decoded_bytes: int,
        limits: Limits,
        stats: ReadStats,
        *,
        begin: int = 0,
    ) -> None:
        self.url = data.url
        self._data = data
        self._compression = compression
        self._size = decoded_bytes
        self._limits = limits
        self._stats = stats
        self._begin = begin
        # Taken out while it is used and put back afterwards, each in one atomic step: no lock to fork with.
        self._cursors: list[_Cursor] = []

    @property
    def size(self) -> int:
        """Number of decoded bytes."""
        return self._size

    def read(self, start: int, stop: int) -> memoryview:
        """Return decoded bytes.

        Raises:
            ShortReadError: the stream ends before `stop`.
            FormatError: it does not decode.
            StorageError: the environment failed.
        """
        cursor = self._take(start)
        try:
            view = cursor.read(start, stop)
        except ShardioError as error:
            # The decoder is of no use any more.
            raise error.located(url=self.url) from error
        self._cursors.append(cursor)
        del self._cursors[:-_MOST_CURSORS]
        return view

    def read_many(
        self, starts: Sequence[int] | NDArray[np.int64], stops: Sequence[int] | NDArray[np.int64]
    ) -> list[memoryview]:
        """Return several ranges, in the order asked; they are decoded by rising position."""
        out: list[memoryview] = [memoryview(b"")] * len(starts)
        for item in np.argsort(np.asarray(starts), kind="stable").tolist():
            out[item] = self.read(int(starts[item]), int(stops[item]))
        return out

    def close(self) -> None:
        """Release the decoders and the object."""
        self._cursors.clear()
        self._data.close()

    def _take(self, start: int) -> _Cursor:
        """Return the decoder that has the least to skip before `start`."""
        for cursor in sorted(self._cursors, key=lambda one: one.start, reverse=True):
            if cursor.start <= start:
                try:
                    self._cursors.remove(cursor)
                except ValueError:  # another thread was faster
                    continue
                return cursor
        if start > self._begin:
            self._stats.streams_restarted += 1
            if self._stats.streams_restarted == 1:
                warn(
                    f"{self.url} is one compressed stream: a record in its middle is decoded from the start "
                    "of the file. Read such shards in order, or convert them once for random access",
                )
        return _Cursor(decode_stream(_pieces(self._data), self._compression, limits=self._limits))


class _Cursor:
    """A decoder at work, and the decoded bytes from the beginning of the last read on.

    Attributes:
        start: position of the first byte that it still holds.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.start = 0
        self._held = bytearray()
        self._pieces = pieces

    def read(self, start: int, stop: int) -> memoryview:
        """Return decoded bytes; `start` is not before `self.start`."""
        while self.start + len(self._held) < stop:
            self._forget(start)
            piece = next(self._pieces, None)
            if piece is None:
                found = self.start + len(self._held)
                what = "a compressed stream ends before the bytes asked for"
                raise ShortReadError(what, start=start, stop=stop, expected=stop - start, found=found - start)
            self._held += piece
        self._forget(start)
        return memoryview(bytes(memoryview(self._held)[: stop - start]))

    def _forget(self, start: int) -> None:
        done = min(start - self.start, len(self._held))
        if done:
            del self._held[:done]
            self.start += done


def _pieces(data: DataFile) -> Iterator[bytes]:
    """Yield the stored bytes; the next request is under way while a piece is decoded."""
    size = data.size
    wait = data.begin_read([0], [min(_PIECE, size)]) if size else None
    start = 0
    while wait is not None:
        here = wait
        start += _PIECE
        wait = data.begin_read([start], [min(start + _PIECE, size)]) if start < size else None
        yield bytes(here()[0])
