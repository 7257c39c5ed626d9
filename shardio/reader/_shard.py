"""One open shard: its index and its bytes, every block checked when it is first touched.

Promise: no payload leaves this module unless the stored bytes of its block matched their CRC-32C and its part
of `frame_stop` matched its own.  A block of a mapped file is checked once and remembered with one bit; bytes
that were read are checked each time they are read; what is decoded for lookups is kept within a bound.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from shardio import kernels
from shardio.errors import CorruptBlockError, FormatError, NotFoundError, StorageError
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL, Compression, Framing
from shardio.metadata import INDEX_ADVICE, frames_fit, records_fit
from shardio.reader._blocks import (
    BlockLookup,
    BlockVerifier,
    DecodedBlock,
    Decoder,
    FetchedFrames,
    Span,
    layout,
)
from shardio.reader._files import (
    REFUSED,
    BlockFetcher,
    Fetched,
    MappedLists,
    MappedRows,
    RefusedError,
    RowsToCopy,
    StoredFrames,
    cut_short,
    decoded_file,
    frame_parts,
    gone,
    map_data,
    map_frames,
    map_records,
    wrong_size,
)
from shardio.storage import ChangedObjectError, ShortReadError, begin_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardio.errors import ShardioError
    from shardio.format import Buffer, Limits
    from shardio.metadata import IndexHead
    from shardio.reader._blocks import DecodedBlocks
    from shardio.reader._files import KnownEnd
    from shardio.reader._options import ReadStats
    from shardio.storage import BlockCache, DataFile

# The part of `frame_stop` and the stored bytes of a run of blocks; None of what is mapped.
FetchedRun: TypeAlias = tuple[Fetched | None, Fetched | None]

# Bytes between two records that cost less than another request: the heads of one and of its answer take more.
_GAP = 512
_OVERHEAD = 5  # beyond that, a fifth of what is wanted may be fetched besides
_Decoded = TypeVar("_Decoded")
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
        self.key = key
        self.head = head
        self.index = index
        self.data = data
        self.verify = verify
        self._stats = stats
        self._block_stop = memoryview(head.block_stop)
        self._row_stop = memoryview(head.block_row_stop)
        self._checks = BlockVerifier(head, key=key, data_url=data.url, index_url=index.url)
        self._decoder = Decoder(head, self._checks, limits, verify=verify)
        self._seen = bytearray(head.blocks)  # 1 once a block was compared, for as long as it stays mapped
        self._refused = partial(_data_refused, data, head, key, adopted=adopted, check_expired=check_expired)
        self._index_refused = partial(_index_refused, index, head, key, check_expired=check_expired)
        source = decoded_file(data, head, limits, stats)
        self._data = BlockFetcher(
            source,
            head.block_bounds,
            partial(_data_name, head),
            cache,
            stats,
            self._refused,
            checksummed=verify,
            known_end=None if known_ends is None else known_ends[0],
        )
        self._frames = BlockFetcher(
            index,
            head.frame_stop_bounds,
            partial(_frames_name, head),
            cache,
            stats,
            self._index_refused,
            held=frames,
            known_end=None if known_ends is None else known_ends[1],
        )
        self._frame_stop = map_frames(index, head)
        self._mapped = map_data(data, head, key, adopted=adopted)
        self._plain = self._mapped is not None and head.compression is Compression.NONE
        self._tfrecord = head.framing is Framing.TFRECORD
        # The checksums of records, where this shard is mapped and lookups compare records alone.
        self._mapped_records = map_records(index, head) if self._plain and verify and alone else None
        self._lookup = self._make_lookup()
        compressed = head.compression is not Compression.NONE and self._tfrecord
        # Blocks are worth keeping where one holds several records.
        self._kept = kept if compressed and head.rows > head.blocks else None
        self._block_lookup = self._make_block_lookup(limits) if compressed else None
        # Of a shard that is fetched: once the checksums of its records are here, frames are fetched alone.
        self._held = np.frombuffer(frames, "<u4").view(np.uint32) if frames is not None else None
        self._records: NDArray[np.uint32] | None = None
        self._tries = _TRIES
        self._alone = (
            self._held is not None
            and self._mapped is None
            and head.block_records_crc32c is not None
            and verify
            and alone
            and cache is None
        )

    @cached_property
    def _lists(self) -> MappedLists:
        assert self._mapped is not None  # noqa: S101 - for the type checker
        # The checksums of records are left out: whole blocks are compared.
        columns = self._columns(None)
        return MappedLists(
            self.head, self._mapped, columns, self._seen, verify=self.verify, stats=self._stats
        )

    @cached_property
    def _copies(self) -> MappedRows | None:
        if self._mapped is None or self._frame_stop is None or not self._plain or not self._tfrecord:
            return None
        # As for lookups: without the checksums of records whole blocks are compared, unless none is.
        records = self._mapped_records
        runs = None
        if records is not None or not self.verify:
            runs = kernels.FrameRuns(self._columns(records), self.head.stored_bytes)
        return MappedRows(
            self.head,
            self.data,
            self._frame_stop,
            self._seen,
            self._checks,
            self._refused,
            runs,
            records,
            verify=self.verify,
            stats=self._stats,
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.head.rows

    @property
    def mapped(self) -> bool:
        """Whether reading a block of it is a look into memory."""
        return self._mapped is not None and self._frame_stop is not None

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

    def _make_lookup(self) -> kernels.RecordLookup | None:
        """Return what finds records of a mapped shard without compression; None for any other."""
        if self._mapped is None or self._frame_stop is None or not self._plain or not self._tfrecord:
            return None
        return kernels.RecordLookup(self._mapped, self._columns(self._mapped_records), self._seen)

    def _columns(self, records: NDArray[np.uint32] | None) -> kernels.LookupColumns:
        """Return the columns of a mapped index, given those of its checksums of records that are compared."""
        assert self._frame_stop is not None  # noqa: S101 - for the type checker
        head, checks = self.head, None
        if records is not None and head.block_records_crc32c is not None:
            checks = kernels.RecordChecksums(records, head.block_records_crc32c)
        return kernels.LookupColumns(
            self._frame_stop,
            head.block_stop,
            head.block_row_stop,
            head.block_decoded_bytes,
            head.block_frames_crc32c,
            checks,
        )

    def _make_block_lookup(self, limits: Limits) -> BlockLookup | None:
        """Return what finds records of a mapped shard of compressed blocks; None for any other."""
        if self._mapped is None or self._frame_stop is None:
            return None
        return BlockLookup(
            self.head,
            self._mapped,
            self._frame_stop,
            limits,
            self._stats,
            verify=self.verify,
            kept=self._kept,
        )

    def record(self, row: int) -> bytes:
        """Return one payload, compared with its own checksum or with that of its block."""
        if self._lookup is not None:
            found = self._lookup.record(row)
            return found if found is not None else self._record_by_block(row)
        if self._block_lookup is not None:
            found = self._block_lookup.record(row)
            if found is not None:
                return found
        elif self._kept is not None:
            return self._record_of_kept(row, self._kept)
        rows = np.array([row])
        alone = self.frames_alone(rows)
        if alone is not None:
            return self.begin_alone(rows, *alone)()[0]
        return self.begin_rows(self.blocks_of(rows), rows, np.array([1]))()[0]

    def records(self, rows: NDArray[np.int64]) -> list[bytes] | None:
        """Return some payloads of a mapped shard, in the order given; None where they are read or decoded.

        Raises:
            CorruptBlockError, FormatError: one of them, or its part of the index, is damaged.
        """
        if self._block_lookup is not None:
            return self._block_lookup.records(rows)
        if self._lookup is None:
            return None
        found = self._lookup.records(rows)
        if found is None and self._mapped_records is None:
            # Blocks are compared first, those of all rows in a few calls.
            self._check_mapped(self.blocks_of(rows))
            found = self._lookup.records(rows)
        return [self.record(row) for row in rows.tolist()] if found is None else found

    def _record_of_kept(self, row: int, kept: DecodedBlocks) -> bytes:
        """Return a payload of a compressed shard that is not mapped; no request where its block is kept."""
        number = bisect_right(self._row_stop, row)
        block = kept.get(self.head.head_sha256, number)
        if block is None:
            block = DecodedBlock.of(self.load(number, number + 1))
            kept.keep(self.head.head_sha256, number, block)
        return block.payload(row)

    def _record_by_block(self, row: int) -> bytes:
        """Return a payload after all of its block was compared, or say what is wrong."""
        assert self._lookup is not None  # noqa: S101 - for the type checker
        block = np.array([bisect_right(self._row_stop, row)])
        self._check_mapped(block)
        head = self.head
        records = self._mapped_records
        if records is not None and not records_fit(
            head, block, records[slice(*head.block_rows(int(block[0])))]
        ):
            # It is the block's own bytes that were right.
            self._seen[int(block[0])] = 0
            raise self._wrong_records(int(block[0]))
        found = self._lookup.record(row)
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
        if self._records is None or held is None:
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
        records = self._records
        assert records is not None  # noqa: S101 - for the type checker
        wait = self.data.begin_read(starts, stops, checksummed=True, gap=_gap_of(starts, stops))

        def finish() -> list[bytes]:
            try:
                frames = wait()
            except REFUSED as error:
                raise self._refused(error) from error
            self._stats.bytes_read += int((stops - starts).sum())
            wanted = records[rows].tolist()
            found = [_payload(frame, crc) for frame, crc in zip(frames, wanted, strict=True)]
            right = [payload for payload in found if payload is not None]
            if len(right) == len(found):
                return right
            self._stats.refetched += 1
            needed, counts = np.unique(self.blocks_of(rows), return_counts=True)
            return self.begin_rows(needed, rows, counts)()

        return finish

    def _begin_records(self) -> Callable[[], None]:
        """Send the request for the checksums of all records, where frames may be fetched alone afterwards."""
        if not self._alone or self._records is not None or not self._tries:
            return lambda: None
        self._tries -= 1
        head, held = self.head, self._held
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
            if held is not None and frames_fit(head, blocks, held) and records_fit(head, blocks, found):
                self._records = found

        return keep

    def direct(self, rows: NDArray[np.int64]) -> tuple[Buffer, NDArray[np.int64], NDArray[np.int64]] | None:
        """Return where payloads are in the mapped shard, or None where they must be read or decoded.

        Rows are int64, in any order; returned are the map and the payloads' starts and stops in it, int64.

        Raises:
            CorruptBlockError, FormatError: a block touched for the first time is damaged.
        """
        if self._frame_stop is None or not self._plain or not self._tfrecord:
            return None
        assert self._mapped is not None  # noqa: S101 - for the type checker
        head = self.head
        blocks = self.blocks_of(rows)
        self._check_mapped(blocks)
        bases = head.starts_of_blocks(blocks)
        firsts = np.where(blocks > 0, head.block_row_stop[blocks - 1], 0).astype(np.int64)
        starts = np.where(rows > firsts, self._frame_stop[rows - 1], 0) + bases
        stops = self._frame_stop[rows] + bases
        return self._mapped, starts + TFRECORD_HEAD, stops - TFRECORD_TAIL

    def blocks_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of each row, int64."""
        return np.searchsorted(self.head.block_row_stop, rows.astype(np.uint64), side="right")

    def locate(self, row: int) -> tuple[int, int]:
        """Return the half-open byte range of a row's frame: in the stored object where the shard is not
        compressed, else in the decoded bytes of its block.
        """  # noqa: D205 - one thought
        block = bisect_right(self._row_stop, row)
        first = self.head.block_rows(block)[0]
        frames = self._frame_part((block, block + 1), None)
        base = self.head.block_bounds(block)[0] if self.head.compression is Compression.NONE else 0
        start = int(frames[row - first - 1]) if row > first else 0
        return base + start, base + int(frames[row - first])

    @property
    def cuts(self) -> bool:
        """Whether `lists` cuts payloads out of mapped blocks."""
        return self.mapped and self._plain and self._tfrecord

    def lists(self, row: int, ends: Iterable[int]) -> Iterator[list[bytes]]:
        """Yield the payloads of consecutive rows of a shard that `cuts`.

        Args:
            row: the first of them.
            ends: the row at which each list ends, ascending.

        Raises:
            CorruptBlockError, FormatError: damage, with its address.
        """
        ready = row
        lists = self._lists
        for end in ends:
            while ready < end:
                ready = lists.populate(ready)
            found = lists.take(row, end)
            # Where a block is not right, it is read as others are, which says what is wrong.
            yield self._loaded(row, end) if found is None else found
            # Not held while the next list is made: its memory is still in the processor's cache.
            del found
            row = end

    def _loaded(self, row: int, stop: int) -> list[bytes]:
        first, last = self.blocks_of(np.array([row, stop - 1])).tolist()
        run = first, last + 1
        return self.payloads(run, (row, stop), self.begin_run(run)())

    def load(self, first: int, stop: int) -> Span:
        """Return the blocks `first .. stop - 1`, checked and decoded; raises what `begin` says."""
        run = first, stop
        return self.span(run, self.begin_run(run)())

    def begin(self, runs: Sequence[tuple[int, int]]) -> Callable[[], list[Span]]:
        """Send the requests that runs of blocks need; return what waits for them, checks and decodes.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, StorageError: with shard, row and bytes.
        """
        wait = self._begin(runs)
        return lambda: [self._open(*each) for each in zip(runs, *wait(), strict=True)]

    def begin_run(self, run: tuple[int, int]) -> Callable[[], FetchedRun]:
        """Send the requests of a run of blocks; return what waits for what `span` and `payloads` take."""
        wait = self._begin([run])

        def finish() -> FetchedRun:
            (frames,), (stored,) = wait()
            return frames, stored

        return finish

    def span(self, run: tuple[int, int], fetched: FetchedRun) -> Span:
        """Check and decode a run of blocks, and find its payloads; raises what `begin` says."""
        return self._open(run, *fetched)

    def payloads(self, run: tuple[int, int], rows: tuple[int, int], fetched: FetchedRun) -> list[bytes]:
        """Check and decode a run of blocks, and return the payloads of those of its rows that are wanted.

        Args:
            run: `[first, stop)` of blocks.
            rows: `[first, stop)`; there may be others on both sides.
            fetched: of the run.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, StorageError: with shard, row and bytes.
        """
        frames, stored = fetched
        if self.keeps_frames:
            part = self._frame_part(run, frames)
            found = self._decode(run, stored, lambda data: self._decoder.payloads(run, part, data, rows))
            if found is not None:
                return found
        span = self._open(run, frames, stored)
        wanted = slice(max(rows[0] - span.first_row, 0), max(rows[1] - span.first_row, 0))
        return kernels.slice_records(span.buffer, span.starts[wanted], span.stops[wanted])

    @property
    def keeps_frames(self) -> bool:
        """Whether blocks are fetched or decoded by themselves, and are runs of frames then."""
        head = self.head
        return self._tfrecord and not head.gaps and not head.stream and not self._plain

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
        if not self._held_right or self._mapped is not None or self.head.compression is not Compression.NONE:
            return None
        return self._data.range_of(self._blocks_around(first_row, stop_row))

    def frames_in(self, first_row: int, stop_row: int, data: memoryview) -> FetchedFrames:
        """Return the frames of rows in the range that `range_of_frames` says; they are to be compared."""
        head = self.head
        run = self._blocks_around(first_row, stop_row)
        self._stats.bytes_read += len(data)
        self._stats.blocks_opened += run[1] - run[0]
        part = self._held_part(run)
        bases, counts = layout(head, *run)
        # They fill their blocks, so that each begins where the one before stops.
        edges = np.zeros(part.size + 1, np.uint32)
        np.add(part, np.repeat(bases - bases[0], counts), out=edges[1:], casting="unsafe")
        first = head.block_rows(run[0])[0]
        edges = edges[first_row - first : stop_row - first + 1]
        stops = head.block_stop[slice(*run)].astype(np.int64) - bases[0]
        again = partial(self._frames_again, run, edges)
        return FetchedFrames(data, edges, stops, head.block_crc32c[slice(*run)], again)

    def begin_frames(self, runs: Sequence[tuple[int, int]]) -> Callable[[], list[list[FetchedFrames]]]:
        """Send the requests for runs `[first, stop)` of rows of a shard that `keeps_frames`.

        Returns:
            What waits for them, and returns the frames of each run.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, StorageError: with shard, row and bytes.
        """
        if self._mapped is not None and self._frame_stop is not None:
            return partial(self._mapped_frames, self._mapped, self._frame_stop, runs)
        around = [self._blocks_around(*run) for run in runs]
        if self._held_right:
            wait_data = self._data.begin(around)
            return lambda: [
                self._open_frames(each, run, self._held_part(each), stored)
                for each, run, stored in zip(around, runs, wait_data(), strict=True)
            ]
        wait = self._begin(around)

        def finish() -> list[list[FetchedFrames]]:
            return [
                self._open_frames(each, run, self._frame_part(each, frames), stored)
                for each, run, frames, stored in zip(around, runs, *wait(), strict=True)
            ]

        return finish

    def _mapped_frames(
        self, mapped: memoryview, frame_stop: NDArray[np.uint32], runs: Sequence[tuple[int, int]]
    ) -> list[list[FetchedFrames]]:
        """Check and decode the blocks of runs of rows of a mapped shard, and find their frames."""
        around = [self._blocks_around(*run) for run in runs]
        blocks = np.concatenate([np.arange(*each) for each in around])
        part = frame_parts(self.head, frame_stop, blocks)
        self._checks.frames(blocks, part)
        decoded = self._decoder.blocks(blocks, mapped, self.head.starts_of_blocks(blocks))
        self._stats.blocks_opened += blocks.size
        return decoded.frames(part, runs, around)

    @cached_property
    def _held_right(self) -> bool:
        """Whether the ends of all frames came with the head, and are right.

        Where they are not, each part is compared when it is used, and damage told where it matters.
        """
        return self._held is not None and frames_fit(self.head, np.arange(self.head.blocks), self._held)

    def _held_part(self, run: tuple[int, int]) -> NDArray[np.uint32]:
        assert self._held is not None  # noqa: S101 - for the type checker
        return self._held[self.head.block_rows(run[0])[0] : self.head.block_rows(run[1] - 1)[1]]

    def _open_frames(
        self, run: tuple[int, int], rows: tuple[int, int], part: NDArray[np.uint32], stored: Fetched | None
    ) -> list[FetchedFrames]:
        """Check and decode a run of blocks, and find the frames of some of its rows."""
        blocks = np.arange(*run)
        starts = self.head.starts_of_blocks(blocks)
        if stored is None:
            assert self._mapped is not None  # noqa: S101 - for the type checker
            decoded = self._decoder.blocks(blocks, self._mapped, starts)
        else:
            starts -= starts[0]
            try:
                decoded = self._decoder.blocks(blocks, stored.data, starts)
            except CorruptBlockError:
                stored = self._again(self._data, run)
                decoded = self._decoder.blocks(blocks, stored.data, starts)
            self._data.keep(run, stored)
        self._stats.blocks_opened += blocks.size
        return decoded.frames(part, [rows], [run])[0]

    def _frames_again(self, run: tuple[int, int], edges: NDArray[np.uint32]) -> FetchedFrames:
        stored = self._again(self._data, run)
        blocks = np.arange(*run)
        starts = self.head.starts_of_blocks(blocks)
        self._checks.stored(blocks, stored.data, starts - starts[0])
        return FetchedFrames(stored.data, edges)

    def begin_rows(
        self, blocks: NDArray[np.int64], rows: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> Callable[[], list[bytes]]:
        """Begin the lookup of ascending rows, `counts[i]` of them in block `blocks[i]`, also ascending."""
        runs = [(block, block + 1) for block in blocks.tolist()]
        wait, keep_records = self._begin(runs), self._begin_records()

        def finish() -> list[bytes]:
            keep_records()
            fetched = wait()
            payloads = _take_rows(self, blocks, fetched, rows, counts)
            if payloads is None:
                spans = zip(runs, *fetched, np.split(rows, np.cumsum(counts)[:-1]), strict=True)
                return [payload for *run, own in spans for payload in self._open(*run).take(own)]
            self._stats.blocks_opened += len(runs)
            for run, frames, stored in zip(runs, *fetched, strict=True):
                self._frames.keep(run, frames)
                self._data.keep(run, stored)
            return payloads

        return finish

    def _begin(self, runs: Sequence[tuple[int, int]]) -> Callable[[], tuple[list[Any], list[Any]]]:
        wait_frames = self._frames.begin(runs) if self._frame_stop is None else None
        wait_data = self._data.begin(runs) if self._mapped is None else None
        nothing = [None] * len(runs)
        return lambda: (
            wait_frames() if wait_frames is not None else nothing,
            wait_data() if wait_data is not None else nothing,
        )

    def close(self) -> None:
        """Release the handles; spans that were handed out stay valid."""
        self.index.close()
        self.data.close()

    def _frame_part(self, run: tuple[int, int], fetched: Fetched | None) -> NDArray[np.uint32]:
        """Return a run's part of `frame_stop`, checked; damage on the way is fetched once more."""
        first, stop = run
        if self._frame_stop is not None:
            part = self._frame_stop[self.head.block_rows(first)[0] : self.head.block_rows(stop - 1)[1]]
            if not self._plain or self._seen.find(0, first, stop) >= 0:
                self._checks.frames(np.arange(first, stop), part)
            return part
        fetched = fetched or self._frames.begin([run])()[0]
        try:
            part = np.frombuffer(fetched.data, "<u4").view(np.uint32)
            self._checks.frames(np.arange(first, stop), part)
        except FormatError:
            fetched = self._again(self._frames, run)
            part = np.frombuffer(fetched.data, "<u4").view(np.uint32)
            self._checks.frames(np.arange(first, stop), part)
        self._frames.keep(run, fetched)
        return part

    def _again(self, fetcher: BlockFetcher, run: tuple[int, int]) -> Fetched:
        """Fetch from the source, past every cache: the bytes may have been hurt on their way only."""
        self._stats.refetched += 1
        return fetcher.begin([run], cached=False)()[0]

    def _check_mapped(self, blocks: NDArray[np.int64]) -> None:
        """Compare those of some blocks of a mapped, uncompressed shard that were not compared before."""
        assert self._mapped is not None  # noqa: S101 - for the type checker
        assert self._frame_stop is not None  # noqa: S101 - for the type checker
        fresh = blocks[np.frombuffer(self._seen, np.uint8)[blocks] == 0]
        if not len(fresh):
            return
        # Not np.unique: it loads numpy.ma, a tenth of a second before the first record.
        fresh.sort()
        fresh = fresh[np.append(True, fresh[1:] != fresh[:-1])]
        self._checks.frames(fresh, frame_parts(self.head, self._frame_stop, fresh))
        if self.verify:
            self._checks.stored(fresh, self._mapped, self.head.starts_of_blocks(fresh))
        self._stats.blocks_opened += len(fresh)
        np.frombuffer(self._seen, np.uint8)[fresh] = 1

    def _open(self, run: tuple[int, int], frames: Fetched | None, stored: Fetched | None) -> Span:
        """Check and decode a run of blocks, and find its payloads."""
        if stored is None and self._plain and self._frame_stop is not None:
            self._check_mapped(np.arange(*run))
        part = self._frame_part(run, frames)
        if stored is None and self._plain:
            return self._open_mapped(run, part)
        return self._decode(run, stored, partial(self._decoder.decode, run, part))

    def _open_mapped(self, run: tuple[int, int], part: NDArray[np.uint32]) -> Span:
        first, stop = run
        head = self.head
        assert self._mapped is not None  # noqa: S101 - for the type checker
        if self._frame_stop is None and self.verify:
            blocks = np.arange(first, stop)
            self._checks.stored(blocks, self._mapped, head.starts_of_blocks(blocks))
        # All spans of a mapped shard are views of one buffer: gathering from many holds few.
        bases, rows = layout(head, first, stop)
        return Span.cut(head.framing, self._mapped, head.block_rows(first)[0], part, rows, bases)

    def _decode(
        self, run: tuple[int, int], stored: Fetched | None, decode: Callable[[memoryview], _Decoded]
    ) -> _Decoded:
        """Return what is made of the stored bytes of a run; damaged ones are fetched again."""
        self._stats.blocks_opened += run[1] - run[0]
        if stored is None:
            assert self._mapped is not None  # noqa: S101 - for the type checker
            bounds = self.head.block_bounds
            return decode(self._mapped[bounds(run[0])[0] : bounds(run[1] - 1)[1]])
        try:
            found = decode(stored.data)
        except CorruptBlockError:
            stored = self._again(self._data, run)
            found = decode(stored.data)
        self._data.keep(run, stored)
        return found


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


_FRAME_HEAD = struct.Struct("<QI")


def _payload(frame: memoryview, crc: int) -> bytes | None:
    """Return the payload of a frame; None where it is not right, or not the one that the index means."""
    length, length_crc = _FRAME_HEAD.unpack_from(frame)
    end = TFRECORD_HEAD + length
    if end + TFRECORD_TAIL != len(frame) or frame[end:] != crc.to_bytes(4, "little"):
        return None
    payload = bytes(frame[TFRECORD_HEAD:end])
    right = (
        kernels.mask_crc(kernels.crc32c(frame[:8])) == length_crc
        and kernels.mask_crc(kernels.crc32c(payload)) == crc
    )
    return payload if right else None


def _take_rows(
    shard: OpenShard,
    blocks: NDArray[np.int64],
    fetched: tuple[Sequence[Fetched | None], Sequence[Fetched | None]],
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> list[bytes] | None:
    """Return rows of many blocks that are far apart, or None where these are not plain or something is wrong.

    What `OpenShard` does for one run of blocks at a time costs a dozen NumPy calls, which is much for a block
    of which one record is wanted; here all of them are checked and cut in a few calls.  The same rules hold,
    and whatever does not pass them is left to `OpenShard`, which fetches once more and says what is wrong.

    Args:
        shard: that they are in.
        blocks: int64, numbers of the blocks, ascending.
        fetched: of each block, its part of `frame_stop` and its stored bytes.
        rows: int64, ascending.
        counts: int64[blocks], how many of the rows are in each.
    """
    head = shard.head
    frames = [each for each in fetched[0] if each is not None]
    stored = [each.data for each in fetched[1] if each is not None]
    plain = head.compression is Compression.NONE and head.framing is Framing.TFRECORD
    if not plain or head.stream or len(frames) != len(blocks) or len(stored) != len(blocks):
        return None
    part = np.frombuffer(b"".join([each.data for each in frames]), "<u4")
    if not frames_fit(head, blocks, part):
        return None
    if shard.verify and [kernels.crc32c(data) for data in stored] != head.block_crc32c[blocks].tolist():
        return None
    sizes = head.rows_of_blocks(blocks)
    firsts = head.block_row_stop[blocks].astype(np.int64) - sizes
    own = np.repeat(np.arange(len(blocks)), counts)
    at = (np.cumsum(sizes) - sizes)[own] + rows - firsts[own]
    starts = np.where(rows > firsts[own], part[at - 1], 0).astype(np.int64) + TFRECORD_HEAD
    stops = part[at].astype(np.int64) - TFRECORD_TAIL
    places = zip(own.tolist(), starts.tolist(), stops.tolist(), strict=True)
    return [bytes(stored[block][start:stop]) for block, start, stop in places]
