"""One open shard: its index, its bytes, and the ways to read rows of it.

Promise: no payload leaves this module unless the stored bytes of its block matched their CRC-32C and its part
of `frame_stop` matched its own, or its frame alone the checksum that the index holds of it.  A block of a
mapped file is checked once and remembered with one byte; bytes that were read are checked each time they are
read; what is decoded for lookups is kept within a bound.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardio import kernels
from shardio.errors import FormatError, NotFoundError, StorageError
from shardio.format import Compression, Framing
from shardio.metadata import INDEX_ADVICE, records_fit
from shardio.reader._blocks import REFETCHES, BlockReader, FetchedFrames, shard_index
from shardio.reader._files import (
    REFUSED,
    BlockFetcher,
    RefusedError,
    cut_short,
    decoded_file,
    gone,
    map_data,
    map_frames,
    map_records,
    wrong_size,
)
from shardio.reader._mapped import MappedRows, RowsToCopy, StoredFrames, populate
from shardio.storage import ChangedObjectError, ShortReadError, begin_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardio.errors import ShardioError
    from shardio.format import Limits
    from shardio.metadata import IndexHead
    from shardio.reader._blocks import DecodedBlocks, FetchedRun
    from shardio.reader._files import KnownEnd
    from shardio.reader._options import ReadStats
    from shardio.storage import BlockCache, DataFile

# Bytes between two records that cost less than another request: the heads of one and of its answer take more.
_GAP = 512
_OVERHEAD = 5  # beyond that, a fifth of what is wanted may be fetched besides
_TRIES = 2  # requests for the checksums of a shard's records: blocks are read whole where they are damaged


class OpenShard:
    """A shard with its index; safe to share among threads.

    Nothing it holds refers back to it: its files go with the last reference, not when the collector runs.

    Args:
        key: name of the shard, for messages.
        head: head of its index, checked.
        index: its index file.
        data: its data file.
        frames: the `frame_stop` column, where it came with the head; checked when it is used.
        adopted: another program wrote it and may change it.
        verify: compare block checksums.
        limits: upper bounds for decoding.
        stats: counts what is read.
        cache: of blocks on local disk, for files that are not there; or None.
        alone: lookups may compare records alone, where the index holds their checksums. Readers that skip
            damage compare whole blocks, so that what is left out does not depend on how it is read.
        kept: decoded blocks that lookups may use again, or None.
        known_ends: remember where the shard and its index were found to be cut, or None.
        check_expired: called when the shard is gone; raises where its version expired.
    """

    def __init__(  # noqa: PLR0913 - made in one place
        self,
        key: str,
        head: IndexHead,
        index: DataFile,
        data: DataFile,
        *,
        frames: memoryview | None = None,
        adopted: bool = False,
        verify: bool = True,
        limits: Limits,
        stats: ReadStats,
        cache: BlockCache | None = None,
        alone: bool = True,
        kept: DecodedBlocks | None = None,
        known_ends: tuple[KnownEnd, KnownEnd] | None = None,
        check_expired: Callable[[], None] = lambda: None,
    ) -> None:
        self.key, self.head, self.index, self.data = key, head, index, data
        self._stats = stats
        self._row_stop = memoryview(head.block_row_stop)
        self._seen = bytearray(head.blocks)  # 1 once a block was compared, for as long as it stays mapped
        self._refused = partial(_data_refused, data, head, key, adopted=adopted, check_expired=check_expired)
        self._index_refused = partial(_index_refused, index, head, key, check_expired=check_expired)
        column = map_frames(index, head)
        mapped = map_data(data, head, key, adopted=adopted)
        self.mapped = mapped is not None and column is not None
        framed = head.framing is Framing.TFRECORD
        plain = framed and head.compression is Compression.NONE
        # The checksums of records, where lookups compare records alone.
        own = map_records(index, head) if plain and self.mapped and verify and alone else None
        self._own_records = own
        self._held = None if frames is None else np.frombuffer(frames, "<u4").view(np.uint32)
        fetch_frames = BlockFetcher(
            index,
            head.frame_stop_bounds,
            partial(_frames_name, head),
            cache,
            stats,
            self._index_refused,
            held=frames,
            known_end=None if known_ends is None else known_ends[1],
        )
        self._data = BlockFetcher(
            decoded_file(data, head, limits, stats),
            head.block_bounds,
            partial(_data_name, head),
            cache,
            stats,
            self._refused,
            checksummed=verify,
            known_end=None if known_ends is None else known_ends[0],
        )
        found = self._held if column is None else column
        opens = shard_index(head, found, own, limits, verify=verify)
        self._blocks = BlockReader(
            key,
            head,
            opens,
            (data.url, index.url),
            limits,
            stats,
            mapped=mapped,
            column=found,
            data=None if mapped is not None else self._data,
            frames=None if column is not None else fetch_frames,
            verify=verify,
        )
        self._records: kernels.MappedRecords | None = None
        self._copies: MappedRows | None = None
        if plain and mapped is not None and column is not None:
            self._records = kernels.MappedRecords(mapped, opens, self._seen, alone=own is not None)
            self._copies = MappedRows(
                head,
                data,
                column,
                self._seen,
                self._records,
                self._blocks,
                self._refused,
                own,
                verify=verify,
            )
        # Blocks are worth keeping where one holds several records.
        compressed = framed and head.compression is not Compression.NONE
        self._kept = kept if compressed and head.rows > head.blocks else None
        # Of a shard that is fetched: once the checksums of its records are here, frames are fetched alone.
        self._fetched_records: NDArray[np.uint32] | None = None
        self._tries = _TRIES
        self._alone = (
            self._held is not None
            and mapped is None
            and head.block_records_crc32c is not None
            and verify
            and alone
            and cache is None
        )
        self.keeps_frames = framed and not head.gaps and not head.stream and self._records is None
        self._ranged = mapped is None and head.compression is Compression.NONE and cache is None and verify

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.head.rows

    @property
    def cuts(self) -> bool:
        """Whether `lists` cuts payloads out of mapped blocks."""
        return self._records is not None

    def begin_copy(self, rows: NDArray[np.int64]) -> RowsToCopy | None:
        """Find rows of a mapped shard to copy, int64 ascending; None where they must be read or decoded.

        Raises:
            FormatError: the index is damaged where it says where they are.
        """
        return self._copies.begin(rows) if self._copies is not None else None

    def find_frames(self, rows: NDArray[np.int64]) -> StoredFrames | None:
        """Find rows of a mapped shard to read past its map, int64 ascending; None where that cannot be."""
        return self._copies.find_frames(rows) if self._copies is not None else None

    def compare_again(self, rows: NDArray[np.int64]) -> None:
        """Have the blocks of rows compared before they are used again, since one of them has changed."""
        np.frombuffer(self._seen, np.uint8)[self.blocks_of(rows)] = 0

    def explain(self, error: ShortReadError) -> ShardioError:
        """Return what it means that the shard's file ends before a record does."""
        return self._refused(error)

    def let_pages_go(self, *, of_data: bool = True) -> None:
        """Give the pages of mapped files back; what is looked at again comes from the system's cache."""
        if of_data:
            self.data.let_pages_go()
        self.index.let_pages_go()

    def record(self, row: int) -> bytes:
        """Return one payload, compared with its own checksum or with that of its block."""
        if self._records is not None:
            found = self._records.record(row)
            return found if found is not None else self._record_by_block(row, self._records)
        if self._fetched_records is not None or self._alone:
            rows = np.array([row])
            alone = self.frames_alone(rows)
            return (self.begin_rows(rows) if alone is None else self.begin_alone(rows, *alone))()[0]
        number = bisect_right(self._row_stop, row)
        block = None if self._kept is None else self._kept.get(self.head.head_sha256, number)
        if block is None:
            block = self._blocks.load(number)
            if self._kept is not None:
                self._kept.keep(self.head.head_sha256, number, block)
        return block.payload(row)

    def records(self, rows: NDArray[np.int64]) -> list[bytes] | None:
        """Return some payloads of a mapped shard, in the order given; None where they are read or decoded.

        Raises:
            CorruptBlockError, FormatError: one of them, or its part of the index, is damaged.
        """
        if self._records is None:
            return None
        found = self._records.records(rows)
        if found is None and self._own_records is None:
            # Blocks are compared first, those of all rows in one call.
            self._compare(rows)
            found = self._records.records(rows)
        return [self.record(row) for row in rows.tolist()] if found is None else found

    def _compare(self, rows: NDArray[np.int64]) -> None:
        """Compare the blocks of rows of a mapped shard, where they were not compared before."""
        assert self._records is not None  # noqa: S101 - for the type checker
        before = self._records.opened
        wrong = self._records.compare(self.blocks_of(rows))
        self._stats.blocks_opened += self._records.opened - before
        if wrong >= 0:
            self._blocks.load(wrong)  # says what is wrong

    def _record_by_block(self, row: int, records: kernels.MappedRecords) -> bytes:
        """Return a payload after all of its block was compared, or say what is wrong."""
        self._compare(np.array([row]))
        block, head = np.array([bisect_right(self._row_stop, row)]), self.head
        own = self._own_records
        if own is not None and not records_fit(head, block, own[slice(*head.block_rows(int(block[0])))]):
            # It is the block's own bytes that were right.
            self._seen[int(block[0])] = 0
            raise self._wrong_records(int(block[0]))
        found = records.record(row)
        if found is None:
            what = "a mapped shard or its index changed while it was read"
            raise FormatError(what, url=self.data.url, shard=self.key, row=row)
        return found

    def _wrong_records(self, block: int) -> FormatError:
        start, stop = self.head.record_crc_bounds(block)
        return FormatError(
            f"the index of block {block} holds checksums of records that do not match their own",
            url=self.index.url,
            shard=self.key,
            row=self.head.block_rows(block)[0],
            start=start,
            stop=stop,
            advice=INDEX_ADVICE,
        )

    def frames_alone(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return where the frames of rows are that may be fetched alone; None where whole blocks are read.

        Frames alone are fetched once all that compares them is here: the ends of frames and the checksums of
        the records, which the first lookup in a shard brings.

        Args:
            rows: int64, ascending.

        Returns:
            Starts and stops of the frames in the stored object, int64.
        """
        held = self._held
        if self._fetched_records is None or held is None:
            return None
        head = self.head
        blocks = self.blocks_of(rows)
        bases = head.starts_of_blocks(blocks)
        firsts = head.block_row_stop[blocks].astype(np.int64) - head.rows_of_blocks(blocks)
        return np.where(rows > firsts, held[rows - 1], 0) + bases, held[rows] + bases

    def begin_alone(
        self, rows: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> Callable[[], list[bytes]]:
        """Send the requests for the frames of some rows alone; what is not right is read by the block, which
        says what is wrong.

        Args:
            rows: int64, ascending.
            starts, stops: of their frames, as `frames_alone` returns them.
        """  # noqa: D205 - one thought
        records = self._fetched_records
        assert records is not None  # noqa: S101 - for the type checker
        wait = self.data.begin_read(starts, stops, checksummed=True, gap=_gap_of(starts, stops))

        def finish() -> list[bytes]:
            try:
                frames = wait()
            except REFUSED as error:
                raise self._refused(error) from error
            self._stats.bytes_read += int((stops - starts).sum())
            found = kernels.cut_frames(frames, records[rows])
            if found is None:
                self._stats.refetched += 1
                found = self.begin_rows(rows)()
            return found

        return finish

    def _begin_records(self) -> Callable[[], None]:
        """Send the request for the checksums of all records, where frames may be fetched alone afterwards."""
        if not self._alone or self._fetched_records is not None or not self._tries:
            return lambda: None
        self._tries -= 1
        head = self.head
        start = head.record_crc_offset
        wait = self.index.begin_read([start], [start + 4 * head.rows], checksummed=True)

        def keep() -> None:
            try:
                (data,) = wait()
            except REFUSED as error:
                raise self._index_refused(error) from error
            except StorageError:
                self._tries += 1
                raise
            found = np.frombuffer(data, "<u4").view(np.uint32)
            blocks = np.arange(head.blocks)
            # What is not right may have been hurt on its way: it is asked for once more, later.
            if self._held_right and records_fit(head, blocks, found):
                self._fetched_records = found

        return keep

    def direct(
        self, rows: NDArray[np.int64]
    ) -> tuple[memoryview, NDArray[np.int64], NDArray[np.int64]] | None:
        """Return where payloads are in the mapped shard, or None where they must be read or decoded.

        Rows are int64, in any order; returned are the map and the payloads' starts and stops in it, int64.

        Raises:
            CorruptBlockError, FormatError: a block touched for the first time is damaged.
        """
        if self._records is None:
            return None
        assert self._blocks.mapped is not None  # noqa: S101 - for the type checker
        found = self._records.places(rows)
        if found is None:
            self._compare(rows)
            found = self._records.places(rows)
        if found is None:
            what = "a mapped shard or its index changed while it was read"
            raise FormatError(what, url=self.data.url, shard=self.key)
        return self._blocks.mapped, found[0], found[1]

    def blocks_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of each row, int64."""
        return np.searchsorted(self.head.block_row_stop, rows.astype(np.uint64), side="right")

    def locate(self, row: int) -> tuple[int, int]:
        """Return the half-open byte range of a row's frame: in the stored object where the shard is not
        compressed, else in the decoded bytes of its block.
        """  # noqa: D205 - one thought
        block = bisect_right(self._row_stop, row)
        first = self.head.block_rows(block)[0]
        frames = self._blocks.frames_of(block)
        base = self.head.block_bounds(block)[0] if self.head.compression is Compression.NONE else 0
        start = int(frames[row - first - 1]) if row > first else 0
        return base + start, base + int(frames[row - first])

    def lists(self, row: int, ends: Iterable[int]) -> Iterator[list[bytes]]:
        """Yield the payloads of consecutive rows of a shard that `cuts`.

        Args:
            row: the first of them.
            ends: the row at which each list ends, ascending.

        Raises:
            CorruptBlockError, FormatError: damage, with its address.
        """
        records, mapped = self._records, self._blocks.mapped
        assert records is not None  # noqa: S101 - for the type checker
        assert mapped is not None  # noqa: S101 - for the type checker
        ready, populates = row, True
        for end in ends:
            while populates and ready < end:
                ready, populates = populate(mapped, self.head, self._seen, ready)
            before = records.opened
            found = records.take(row, end)
            self._stats.blocks_opened += records.opened - before
            if found is None:
                # Compared one by one, the block that is not right says what is wrong.
                found = self.load(*self._blocks_around(row, end)).payloads(row, end)
            yield found
            # Not held while the next list is made: its memory is still in the processor's cache.
            del found
            row = end

    def load(self, first: int, stop: int) -> FetchedRun:
        """Return the blocks `first .. stop - 1`; raises what `begin` says."""
        (run,) = self.begin([(first, stop)])()
        return run

    def begin(self, runs: Sequence[tuple[int, int]]) -> Callable[[], list[FetchedRun]]:
        """Send the requests that runs `[first, stop)` of blocks need; return what waits for them.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError, StorageError: with shard, row and
                bytes; when waited for, or when blocks are opened.
        """
        return self._blocks.begin(runs)

    def decoded_bytes_of(self, first_row: int, stop_row: int) -> int:
        """Return the decoded bytes of the blocks that consecutive rows are in."""
        return int(self.head.block_decoded_bytes[slice(*self._blocks_around(first_row, stop_row))].sum())

    def _blocks_around(self, first_row: int, stop_row: int) -> tuple[int, int]:
        return bisect_right(self._row_stop, first_row), bisect_right(self._row_stop, stop_row - 1) + 1

    def refusal(self, first_row: int, stop_row: int) -> ShardioError | None:
        """Return the error of rows behind the end of a shard that was found to be cut; else None."""
        return self._data.refusal([self._blocks_around(first_row, stop_row)])

    def range_of_frames(self, first_row: int, stop_row: int) -> tuple[DataFile, int, int] | None:
        """Return the range of the blocks around consecutive rows, if nothing else of them need be fetched.

        None where they must be decoded, too, or need not be compared, or a cache may have them.
        """
        if not self._ranged or not self._held_right:
            return None
        first, stop = self._blocks_around(first_row, stop_row)
        return self.data, self.head.block_bounds(first)[0], self.head.block_bounds(stop - 1)[1]

    def frames_in(self, first_row: int, stop_row: int, data: memoryview) -> FetchedFrames:
        """Return the frames of rows in the range that `range_of_frames` says; they are to be compared."""
        head, held = self.head, self._held
        assert held is not None  # noqa: S101 - for the type checker
        run = self._blocks_around(first_row, stop_row)
        self._stats.bytes_read += len(data)
        self._stats.blocks_opened += run[1] - run[0]
        first, stop = head.block_rows(run[0])[0], head.block_rows(run[1] - 1)[1]
        blocks = np.arange(*run)
        bases = head.starts_of_blocks(blocks)
        # They fill their blocks, so that each begins where the one before stops.
        edges = np.zeros(stop - first + 1, np.uint32)
        shift = np.repeat(bases - bases[0], head.rows_of_blocks(blocks))
        np.add(held[first:stop], shift, out=edges[1:], casting="unsafe")
        edges = edges[first_row - first : stop_row - first + 1]
        stops = head.block_stop[slice(*run)].astype(np.int64) - bases[0]
        again = partial(self._frames_again, run, edges)
        return FetchedFrames(data, edges, stops, head.block_crc32c[slice(*run)], again)

    def _frames_again(self, run: tuple[int, int], edges: NDArray[np.uint32]) -> FetchedFrames:
        blocks = self._blocks
        base = self.head.block_bounds(run[0])[0]
        left = REFETCHES
        while True:
            left -= 1
            data = blocks.again(self._data, run).data
            try:
                for number in range(*run):
                    blocks.open(number, data, self.head.block_bounds(number)[0] - base)
            except FormatError:
                if not left:
                    raise
            else:
                return FetchedFrames(data, edges)

    @cached_property
    def _held_right(self) -> bool:
        """Whether the ends of all frames came with the head, and are right.

        Where they are not, each part is compared when it is used, and damage told where it matters.
        """
        return self._held is not None and self._blocks.index.has_right_frames()

    def begin_frames(self, runs: Sequence[tuple[int, int]]) -> Callable[[], list[list[FetchedFrames]]]:
        """Send the requests for runs `[first, stop)` of rows of a shard that `keeps_frames`.

        Returns:
            What waits for them, and returns the frames of each run.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, StorageError: with shard, row and bytes.
        """
        wait = self.begin([self._blocks_around(*run) for run in runs])
        return lambda: [blocks.frames(*run) for run, blocks in zip(runs, wait(), strict=True)]

    def begin_rows(self, rows: NDArray[np.int64]) -> Callable[[], list[bytes]]:
        """Send the requests that the lookup of rows, int64 ascending, needs; return what waits for them."""
        blocks = self.blocks_of(rows)
        firsts = np.flatnonzero(np.append(True, blocks[1:] != blocks[:-1]))
        wait, keep_records = (
            self.begin([(each, each + 1) for each in blocks[firsts].tolist()]),
            self._begin_records(),
        )

        def finish() -> list[bytes]:
            keep_records()
            found: list[bytes] = []
            low = 0
            for run, stop in zip(wait(), [*firsts[1:].tolist(), len(rows)], strict=True):
                for block in run:
                    found += block.take(rows[low:stop])
                low = stop
            return found

        return finish

    def close(self) -> None:
        """Release the handles; blocks that were handed out stay valid."""
        self.index.close()
        self.data.close()


class RowRun(NamedTuple):
    """Consecutive rows of a shard."""

    shard: OpenShard
    first: int
    stop: int


def begin_frames(runs: Sequence[RowRun]) -> Callable[[], list[Callable[[], list[FetchedFrames]]]] | None:
    """Do what `OpenShard.begin_frames` does with rows of many shards, in as few calls as possible.

    Returns:
        What waits for them, and returns for each run what returns its frames, or raises what is wrong with
        it alone; None where not all are of one store, plain and to be compared, or not now.
    """
    ranges = [run.shard.range_of_frames(run.first, run.stop) for run in runs]
    known = [each for each in ranges if each is not None]
    wait = begin_together(known) if len(known) == len(runs) else None
    if wait is None:
        return None

    def finish() -> list[Callable[[], list[FetchedFrames]]]:
        # What did not come is begun together, and waited for in turn.
        return [
            partial(_only, run.shard.begin_frames([(run.first, run.stop)]))
            if data is None
            else partial(_frames_in, run, data)
            for run, data in zip(runs, wait(), strict=True)
        ]

    return finish


def _only(wait: Callable[[], list[list[FetchedFrames]]]) -> list[FetchedFrames]:
    return wait()[0]


def _frames_in(run: RowRun, data: memoryview) -> list[FetchedFrames]:
    return [run.shard.frames_in(run.first, run.stop, data)]


# What the cache calls a block: shard, block and checksum, so that a name means the same bytes forever.
def _data_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-{block}-{head.block_crc32c[block]:08x}"


def _frames_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-frames-{block}-{head.block_frames_crc32c[block]:08x}"


def _data_refused(
    data: DataFile,
    head: IndexHead,
    key: str,
    error: RefusedError,
    *,
    adopted: bool,
    check_expired: Callable[[], None],
) -> ShardioError:
    if isinstance(error, ShortReadError):
        found = f"{error.found} of {error.expected}{' decoded' * head.stream} bytes"
    elif isinstance(error, ChangedObjectError) and error.expected == f"{head.stored_bytes} bytes":
        # Its size was told by its index: it is another one however often the dataset is opened again.
        found = str(error.found)
    elif isinstance(error, NotFoundError):
        check_expired()
        return gone(error, key, adopted=adopted)
    else:
        return error.located(shard=key)
    return wrong_size(data, head, key, found, adopted=adopted)


def _index_refused(
    index: DataFile, head: IndexHead, key: str, error: RefusedError, *, check_expired: Callable[[], None]
) -> ShardioError:
    if isinstance(error, ShortReadError):
        return cut_short(index, head.index_bytes, key, error)
    if isinstance(error, NotFoundError):
        check_expired()
    return error.located(shard=key)


def _gap_of(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> int:
    """Return how far apart frames, int64 ascending, may be that one request fetches together."""
    gaps = np.sort(starts[1:] - stops[:-1])
    most = int(np.searchsorted(np.cumsum(np.maximum(gaps, 0)), (stops - starts).sum() // _OVERHEAD, "right"))
    # A gap as wide as one that is too much stays a gap, too.
    narrow = gaps[:most] if most == gaps.size else gaps[: np.searchsorted(gaps, gaps[most])]
    return max(_GAP, int(narrow[-1])) if narrow.size else _GAP
