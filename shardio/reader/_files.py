"""The bytes of one shard and of its index: mapped, fetched by runs of blocks, or decoded from a stream.

- Fetched: from the cache on local disk where there is one, else by few large requests; runs are begun and
  finished apart, so that the requests of many shards are under way together.
- Decoded: reading on where an earlier read ended decodes every byte once; reading anywhere else decodes from
  the start of the object, is counted, and is said once.  A few decoders are kept where they are, so that
  several threads may each read on in their own place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.callers import warn
from shardio.errors import (
    CorruptBlockError,
    FormatError,
    NotFoundError,
    ShardioError,
    StaleIndexError,
    StorageError,
)
from shardio.format import Compression, Limits, decode_stream
from shardio.metadata import COPY_ADVICE, INDEX_ADVICE, IndexHead, check_index_end
from shardio.reader._options import ReadStats
from shardio.reader._tuning import TUNING
from shardio.storage import BlockCache, CachedBlocks, ChangedObjectError, DataFile, ShortReadError

# What a store says of a file that was opened before and is cut, gone or another one now.
RefusedError: TypeAlias = ShortReadError | NotFoundError | ChangedObjectError
REFUSED = (ShortReadError, NotFoundError, ChangedObjectError)
# What to do where a shard is not there any more, and whether it is an adopted one.
MISSING_ADVICE = {
    True: "see that it is where it was, or take it out of the dataset with "
    "`shardio adopt URL --drop-missing`",
    False: COPY_ADVICE,
}


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
    """Compare size and end of an index with what its header says.

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
    check_index_end(head, end, url=index.url)


def check_size(files: ShardFiles) -> None:
    """Compare the size of a shard with what its index says.

    Raises:
        CorruptBlockError, StaleIndexError: it has another one.
    """
    # Where the size is known without a request it is compared; a remote file answers with what it was told.
    if files.data.size != files.head.stored_bytes:
        found = f"{files.data.size} bytes"
        raise wrong_size(files.data, files.head, files.key, found, adopted=files.adopted)


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
    advice = (
        "index it again with `shardio adopt URL --update`"
        if adopted
        else "it was cut or changed: `shardio repair` copies it (--mirror) or salvages its records"
    )
    return (StaleIndexError if adopted else CorruptBlockError)(
        f"the shard has another size than {'when it was indexed' if adopted else 'its index says'}",
        url=data.url,
        shard=key,
        expected=f"{head.stored_bytes} bytes",
        found=found,
        advice=advice,
    )


def missing_shard_error(error: NotFoundError, key: str, *, adopted: bool) -> NotFoundError:
    """Return the error for a shard that is not there any more, made of what its store said."""
    return NotFoundError(error.what, url=error.url, shard=key, advice=MISSING_ADVICE[adopted])


@dataclass
class ShardFiles:
    """A shard and its index, and what every way to read them needs.

    Attributes:
        key: name of the shard, for messages.
        head: head of its index, checked.
        index, data: the files.
        adopted: another program wrote the shard and may change it.
        verify: stored bytes are compared.
        limits: upper bounds for decoding.
        stats: counts what is read.
        check_expired: called when one of them is gone; raises where its version expired.
    """

    key: str
    head: IndexHead
    index: DataFile
    data: DataFile
    adopted: bool
    verify: bool
    limits: Limits
    stats: ReadStats
    check_expired: Callable[[], None]

    def explain(self, error: RefusedError) -> ShardioError:
        """Make an error of what a store says of a shard that is cut, gone or another one."""
        head = self.head
        if isinstance(error, ShortReadError) and head.stream:
            return decoded_size_error(self, f"{(error.start or 0) + int(str(error.found))} bytes")
        if isinstance(error, ShortReadError):
            found = f"{error.found} of {error.expected} bytes"
        elif isinstance(error, ChangedObjectError) and error.expected == f"{head.stored_bytes} bytes":
            # Its size was told by its index: it is another one however often the dataset is opened again.
            found = str(error.found)
        elif isinstance(error, NotFoundError):
            self.check_expired()
            return missing_shard_error(error, self.key, adopted=self.adopted)
        else:
            return error.located(shard=self.key)
        return wrong_size(self.data, head, self.key, found, adopted=self.adopted)

    def explain_index(self, error: RefusedError) -> ShardioError:
        """Make an error of what a store says of an index that is cut, gone or another one."""
        if isinstance(error, ShortReadError):
            return cut_short(self.index, self.head.index_bytes, self.key, error)
        if isinstance(error, NotFoundError):
            self.check_expired()
        return error.located(shard=self.key)


def decoded_size_error(files: ShardFiles, found: str) -> FormatError | StaleIndexError:
    """Return the error of a stream that decodes to more or less than its index says."""
    return (StaleIndexError if files.adopted else CorruptBlockError)(
        "a compressed stream decodes to another size than its index says",
        url=files.data.url,
        shard=files.key,
        expected=f"{files.head.decoded_bytes} bytes",
        found=found,
        advice="the shard or its index was replaced: restore it from a copy, or index the shard again with "
        "`shardio adopt`",
    )


class Fetched(NamedTuple):
    """The bytes of some blocks.

    Attributes:
        data: one block after another.
        first: the block that begins there.
        fresh: runs of blocks that came from the file and are not in the cache yet.
    """

    data: memoryview
    first: int
    fresh: Sequence[tuple[int, int]] = ()


@dataclass(eq=False, repr=False)
class BlockSource:
    """Where the bytes of blocks are, or of their parts of the index; it knows no checksum.

    Args:
        file: shard, decoded stream, or index.
        bounds: byte range of a block in the file.
        stats: counts what is read.
        refused: the error for a file that is cut, gone or another one; by default what the store says.
        cache: or None.
        name: what the cache calls a block; says shard, block and checksum.
        checksummed: what is fetched will be compared with checksums.
        view: the bytes of all blocks, one after another, if they are mapped or were read already.
        fixed: what the file answers first is what there is: it is mapped, or read in one pass.
    """

    file: DataFile
    bounds: Callable[[int], tuple[int, int]]
    stats: ReadStats
    refused: Callable[[RefusedError], ShardioError] = ShardioError.located
    _: KW_ONLY
    cache: BlockCache | None = None
    name: Callable[[int], str] = str
    checksummed: bool = True
    view: memoryview | None = None
    fixed: bool = False

    def begin(
        self, runs: Sequence[tuple[int, int]], *, cached: bool = True, gap: int | None = None
    ) -> Callable[[], list[Fetched]]:
        """Send the requests for some runs `[first, stop)` of blocks and return what waits for the bytes.

        Args:
            runs: of blocks, each at least one.
            cached: what the cache holds may be taken from there; without, a reply must also prove that it is
                of the object that was opened.
            gap: bytes that may be fetched needlessly to save a request; None for what suits most.

        Raises:
            FormatError, StaleIndexError, NotFoundError: the file is shorter than it must be, or gone; when
                waited for.
            StorageError: the environment failed; when waited for.
        """
        if self.view is not None and cached:
            return ([self._whole] * len(runs)).copy
        found = [self._look_up(run) if cached else [] for run in runs]
        missing = [self._missing(run, held) for run, held in zip(runs, found, strict=True)]
        flat = [segment for segments in missing for segment in segments]
        starts = [self.bounds(first)[0] for first, _ in flat]
        stops = [self.bounds(stop - 1)[1] for _, stop in flat]
        checksummed = self.checksummed and cached
        if not cached:
            # If the wrong bytes were another object's, so are its size and ETag.
            self.file.invalidate()
        wait = self.file.begin_read(starts, stops, checksummed=checksummed, gap=gap) if flat else list

        def finish() -> list[Fetched]:
            try:
                replies = iter(wait())
            except REFUSED as error:
                raise self.refused(error) from error
            self.stats.bytes_read += sum(stops) - sum(starts)
            return [
                Fetched(self._join(held, [(part, next(replies)) for part in segments]), run[0], segments)
                for run, held, segments in zip(runs, found, missing, strict=True)
            ]

        return finish

    @cached_property
    def _whole(self) -> Fetched:
        assert self.view is not None  # noqa: S101 - for the type checker
        return Fetched(self.view, 0)

    def again(self, run: tuple[int, int]) -> Fetched:
        """Fetch a run from the file, past every cache: its bytes may have been hurt on their way only."""
        self.stats.refetched += 1
        return self.begin([run], cached=False)()[0]

    def keep(self, fetched: Fetched) -> None:
        """Store blocks in the cache; they were compared with their checksums."""
        if self.cache is None:
            return
        base = self.bounds(fetched.first)[0]
        for first, stop in fetched.fresh:
            bounds = (self.bounds(block) for block in range(first, stop))
            blocks = [fetched.data[start - base : end - base] for start, end in bounds]
            self.cache.keep(self.name, first, blocks)

    def _look_up(self, run: tuple[int, int]) -> list[CachedBlocks]:
        if self.cache is None:
            return []
        found = self.cache.find(self.name, *run)
        self.stats.cache_hits += sum(piece.stop - piece.first for piece in found)
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


def decoded_file(data: DataFile, head: IndexHead, limits: Limits, stats: ReadStats) -> DataFile:
    """Return the file that the blocks of an index are cut from: of a stream its decoded bytes."""
    if not head.stream:
        return data
    # Bytes of no record may be first, such as a byte order mark.
    first = int(np.searchsorted(head.block_row_stop, 0, side="right"))
    begin = head.block_bounds(first)[0] if first < head.blocks else 0
    return StreamFile(data, head.compression, head.decoded_bytes, limits, stats, begin=begin)


@dataclass(eq=False, repr=False)
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

    data: DataFile
    compression: Compression
    decoded_bytes: int
    limits: Limits
    stats: ReadStats
    _: KW_ONLY
    begin: int = 0

    def __post_init__(self) -> None:
        self.url = self.data.url
        # Taken out while it is used and put back afterwards, each in one atomic step: no lock to fork with.
        self._cursors: list[_Cursor] = []

    @property
    def size(self) -> int:
        """Number of decoded bytes."""
        return self.decoded_bytes

    def read(self, start: int, stop: int) -> memoryview:
        """Return decoded bytes.

        Raises:
            ShortReadError: the stream ends before `stop`.
            FormatError: it does not decode.
            StorageError: the environment failed.
        """
        cursor = self._take(start, stop)
        try:
            return cursor.read(start, stop)
        except StorageError as error:
            raise error.located(url=self.url) from error
        except FormatError as error:
            what, found = "a compressed stream is damaged", max(0, cursor.end - start)
            end = ShortReadError(what, url=self.url, start=start, stop=stop, found=found)
            raise error.located(url=self.url) from end
        finally:
            # What a decoder that failed has decoded can still be read.
            self._cursors.append(cursor)
            del self._cursors[: -TUNING.cursors]

    def decode_rest(self, most: int) -> tuple[int, int]:
        """Decode what follows the last block, at most about so many bytes.

        Returns:
            How many these are, and the CRC-32C of the stored bytes that were decoded since the beginning.

        Raises:
            FormatError: it does not decode.
            StorageError: the environment failed.
        """
        cursor = self._take(self.decoded_bytes, self.decoded_bytes)
        while cursor.end - self.decoded_bytes <= most and cursor.advance(self.decoded_bytes):
            pass
        return cursor.end - self.decoded_bytes, cursor.crc32c

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
        self.data.close()

    def _take(self, start: int, stop: int) -> _Cursor:
        """Return the decoder that has the least to skip before `start`."""
        for cursor in sorted(self._cursors, key=lambda one: one.start, reverse=True):
            if cursor.start <= start and not (cursor.has_ended and stop > cursor.end):
                try:
                    self._cursors.remove(cursor)
                except ValueError:  # another thread was faster
                    continue
                return cursor
        if start > self.begin:
            self.stats.streams_restarted += 1
            if self.stats.streams_restarted == 1:
                warn(
                    f"{self.url} is one compressed stream: a record in its middle is decoded from the start "
                    "of the file. Read such shards in order, or convert them once for random access",
                )
        return _Cursor(self.data, self.compression, self.limits)


class _Cursor:
    """A decoder at work, and the decoded bytes from the beginning of the last read on.

    Attributes:
        start, end: half-open range of the decoded bytes that it holds.
        has_ended: it decodes nothing more, because the stream has ended or it failed.
        crc32c: CRC-32C of the stored bytes that it has taken.
    """

    def __init__(self, data: DataFile, compression: Compression, limits: Limits) -> None:
        self.start, self.has_ended = 0, False
        self._held, self._crc32c = bytearray(), [0]
        self._pieces = decode_stream(_summed(data, self._crc32c), compression, limits=limits)

    @property
    def crc32c(self) -> int:
        return self._crc32c[0]

    @property
    def end(self) -> int:
        return self.start + len(self._held)

    def read(self, start: int, stop: int) -> memoryview:
        """Return decoded bytes; `start` is not before `self.start`."""
        while self.end < stop:
            if not self.advance(start):
                found = max(0, self.end - start)
                what = "a compressed stream ends before the bytes asked for"
                raise ShortReadError(what, start=start, stop=stop, expected=stop - start, found=found)
        self._forget(start)
        return memoryview(bytes(memoryview(self._held)[: stop - start]))

    def advance(self, start: int) -> bool:
        """Decode a piece and drop the bytes before `start`; return False at the end of the stream."""
        self._forget(start)
        # Until it has returned: a decoder that raised is of no use.
        ended, self.has_ended = self.has_ended, True
        piece = None if ended else next(self._pieces, None)
        self.has_ended = piece is None
        self._held += piece or b""
        return piece is not None

    def _forget(self, start: int) -> None:
        done = min(start - self.start, len(self._held))
        if done > 0:
            del self._held[:done]
            self.start += done


def _summed(data: DataFile, crc32c: list[int]) -> Iterator[bytes]:
    """Yield stored bytes, and keep their CRC-32C in a list of one item."""
    for piece in data.pieces(TUNING.piece_bytes):
        crc32c[0] = kernels.crc32c(piece, crc32c[0])
        yield bytes(piece)
