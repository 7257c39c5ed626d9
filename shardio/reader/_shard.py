"""One open shard: its index and its bytes, every block checked when it is first touched.

Promise: no payload leaves this module unless the stored bytes of its block matched their CRC-32C and its part
of `frame_stop` matched its own.  A block of a mapped file is checked once and remembered with one bit; bytes
that were read are checked each time they are read.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio import kernels
from shardio.errors import CorruptBlockError, FormatError
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL, Compression, Framing
from shardio.metadata import frames_fit
from shardio.reader._blocks import BlockVerifier, Decoder, Span, layout
from shardio.reader._files import (
    BlockFetcher,
    Fetched,
    MappedRows,
    MappedRuns,
    RowsToCopy,
    cut_short,
    decoded_file,
    frame_parts,
    map_data,
    map_frames,
    wrong_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardio.errors import ShardioError
    from shardio.format import Buffer, Limits
    from shardio.metadata import IndexHead
    from shardio.reader._options import ReadStats
    from shardio.storage import BlockCache, DataFile, ShortReadError

__all__ = ["OpenShard"]


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
        self._too_short = partial(_data_short, data, head, key, adopted=adopted)
        source = decoded_file(data, head, limits, stats)
        self._data = BlockFetcher(
            source,
            head.block_bounds,
            partial(_data_name, head),
            cache,
            stats,
            self._too_short,
            checksummed=verify,
        )
        self._frames = BlockFetcher(
            index,
            head.frame_stop_bounds,
            partial(_frames_name, head),
            cache,
            stats,
            partial(_index_short, index, head, key),
            held=frames,
        )
        self._frame_stop = map_frames(index, head)
        self._mapped = map_data(data, head, key, adopted=adopted)
        self._plain = self._mapped is not None and head.compression is Compression.NONE
        self._tfrecord = head.framing is Framing.TFRECORD
        self._frames_view = memoryview(self._frame_stop) if self._frame_stop is not None else None

    @cached_property
    def _runs(self) -> MappedRuns | None:
        if self._mapped is None or self._frame_stop is None or not self._plain or not self._tfrecord:
            return None
        return MappedRuns(
            self.head, self._mapped, self._frame_stop, self._seen, verify=self.verify, stats=self._stats
        )

    @cached_property
    def _copies(self) -> MappedRows | None:
        if self._mapped is None or self._frame_stop is None or not self._plain or not self._tfrecord:
            return None
        return MappedRows(
            self.head,
            self.data,
            self._frame_stop,
            self._seen,
            self._checks,
            self._too_short,
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

    def let_pages_go(self) -> None:
        """Give the pages of mapped files back; what is looked at again comes from the system's cache."""
        self.data.let_pages_go()
        self.index.let_pages_go()

    def record(self, row: int) -> bytes:
        """Return one payload; the short way for mapped shards without compression."""
        frames = self._frames_view
        if frames is None or not self._plain or not self._tfrecord:
            block = bisect_right(self._row_stop, row)
            return self.load(block, block + 1).take(np.array([row]))[0]
        block = bisect_right(self._row_stop, row)
        if not self._seen[block]:
            self._check_mapped(np.array([block]))
        base, first = (self._block_stop[block - 1], self._row_stop[block - 1]) if block else (0, 0)
        start = frames[row - 1] if row > first else 0
        return bytes(self._mapped[base + start + 12 : base + frames[row] - 4])  # type: ignore[index] # mapped

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

    def payloads(self, first: int, stop: int) -> list[bytes] | None:
        """Return the payloads of whole blocks, or None where `load` reads them or says what is wrong."""
        return self._runs.payloads(first, stop) if self._runs is not None else None

    def load(self, first: int, stop: int) -> Span:
        """Return the blocks `first .. stop - 1`, checked and decoded; raises what `begin` says."""
        return self.begin([(first, stop)])()[0]

    def begin(self, runs: Sequence[tuple[int, int]]) -> Callable[[], list[Span]]:
        """Send the requests that runs of blocks need; return what waits for them, checks and decodes.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, StorageError: with shard, row and bytes.
        """
        wait = self._begin(runs)
        return lambda: [self._open(*each) for each in zip(runs, *wait(), strict=True)]

    def begin_rows(
        self, blocks: NDArray[np.int64], rows: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> Callable[[], list[bytes]]:
        """Begin the lookup of ascending rows, `counts[i]` of them in block `blocks[i]`, also ascending."""
        runs = [(block, block + 1) for block in blocks.tolist()]
        wait = self._begin(runs)

        def finish() -> list[bytes]:
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
        if stored is None:
            return self._open_mapped(run, part)
        try:
            span = self._decode(run, part, stored.data)
        except CorruptBlockError:
            stored = self._again(self._data, run)
            span = self._decode(run, part, stored.data)
        self._data.keep(run, stored)
        return span

    def _open_mapped(self, run: tuple[int, int], part: NDArray[np.uint32]) -> Span:
        first, stop = run
        head = self.head
        assert self._mapped is not None  # noqa: S101 - for the type checker
        if not self._plain:
            start = head.block_bounds(first)[0]
            return self._decode(run, part, self._mapped[start : head.block_bounds(stop - 1)[1]])
        if self._frame_stop is None and self.verify:
            blocks = np.arange(first, stop)
            self._checks.stored(blocks, self._mapped, head.starts_of_blocks(blocks))
        # All spans of a mapped shard are views of one buffer: gathering from many holds few.
        bases, rows = layout(head, first, stop)
        return Span.cut(head.framing, self._mapped, head.block_rows(first)[0], part, rows, bases)

    def _decode(self, run: tuple[int, int], part: NDArray[np.uint32], stored: memoryview) -> Span:
        self._stats.blocks_opened += run[1] - run[0]
        return self._decoder.decode(run, part, stored)


# What the cache calls a block: shard, block and checksum, so that a name means the same bytes for ever.
def _data_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-{block}-{head.block_crc32c[block]:08x}"


def _frames_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-frames-{block}-{head.block_frames_crc32c[block]:08x}"


def _data_short(
    data: DataFile, head: IndexHead, key: str, error: ShortReadError, *, adopted: bool
) -> ShardioError:
    found = f"{error.found} of {error.expected}{' decoded' * head.stream} bytes"
    return wrong_size(data, head, key, found, adopted=adopted)


def _index_short(index: DataFile, head: IndexHead, key: str, error: ShortReadError) -> ShardioError:
    return cut_short(index, head.index_bytes, key, error)


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
