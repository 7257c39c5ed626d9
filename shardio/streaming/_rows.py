"""Rows of batches, brought together wherever they are: in open chunks, or in mapped shards.

A row of a group of steps is one number, its *code*: the number of its chunk and its own there; or, of a local
shard that is not compressed, `MAPPED` and the numbers of its dataset, its shard, and its own in that.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from shardio.errors import StorageError
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL
from shardio.ranges import distinct
from shardio.reader import (
    ENTRY,
    READS_FILES,
    SKIPPED,
    ShardFrames,
    find_in_chunks,
    find_in_shards,
    gather,
)
from shardio.storage import ShortReadError
from shardio.streaming._options import TUNING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardio.reader import DatasetSource, OpenShard
    from shardio.streaming._chunks import OpenChunks
    from shardio.streaming._components import Component
    from shardio.streaming._opener import Opener
    from shardio.streaming._stats import Counters

    Codes = NDArray[np.int64]

_CHUNK_BITS = 32
_CHUNK_ROW = (1 << _CHUNK_BITS) - 1
MAPPED = 1 << 62
_SOURCE_BITS, _SHARD_BITS = 56, 34
_SHARD_ROW = (1 << _SHARD_BITS) - 1


def chunk_codes(chunks: NDArray[np.int64], rows: NDArray[np.int64]) -> Codes:
    """Return the codes of rows of open chunks."""
    return chunks << _CHUNK_BITS | rows


def _addresses(shards: Sequence[ShardFrames]) -> NDArray[np.uint64]:
    return np.array([frames.address for frames in shards], np.uint64)


class GatheredRows(NamedTuple):
    """The payloads of rows.

    Attributes:
        records: each an object of its own; or None, and then
        values, offsets: uint8, and int64 [rows + 1] where each begins and the last one stops.
        kept: int64, the numbers of these rows among those that were wanted; None for all of them.
    """

    records: list[bytes] | None
    values: NDArray[np.uint8] = np.empty(0, np.uint8)
    offsets: NDArray[np.int64] = np.zeros(1, np.int64)
    kept: NDArray[np.int64] | None = None


class RowPlace(NamedTuple):
    """Where a row is stored.

    Attributes:
        source: its dataset.
        shard: number of its shard.
        row: its number there.
    """

    source: DatasetSource
    shard: int
    row: int


class RowGatherer:
    """Gathers the rows of groups of steps; the threads of a pass share one.

    Args:
        components: the datasets.
        chunks: of the pass.
        opener: opens again what scratch has lost.
        counters: of time.
    """

    def __init__(
        self, components: Sequence[Component], chunks: OpenChunks, opener: Opener, counters: Counters
    ) -> None:
        self.components, self.chunks, self.opener = components, chunks, opener
        self.counters = counters
        self._shards = _MappedShards()

    def mapped_codes(self, source: int, positions: NDArray[np.int64]) -> Codes:
        """Return the codes of rows of mapped shards, given their positions in a dataset of the stream."""
        component = self.components[source]
        shards, rows = component.source.rows_at(component.positions(positions))
        return MAPPED | source << _SOURCE_BITS | shards << _SHARD_BITS | rows

    def gather(self, codes: Codes, *, as_bytes: bool) -> GatheredRows:
        """Return the payloads of rows.

        Args:
            codes: of the rows.
            as_bytes: each may be an object of its own.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage.
            StorageError: the environment failed.
        """
        entries, ways = np.empty(codes.size, ENTRY), np.zeros(codes.size, np.int32)
        is_mapped, kept = codes >= MAPPED, None
        shards: list[ShardFrames] = []  # hold what their addresses point to
        in_chunks, in_shards = np.flatnonzero(~is_mapped), np.flatnonzero(is_mapped)
        with self.counters.timed("fetch_seconds"):
            if in_chunks.size:
                chunks = codes[in_chunks] >> _CHUNK_BITS
                tables = self.chunks.wait(distinct(chunks))
                find_in_chunks(tables, chunks, codes[in_chunks] & _CHUNK_ROW, in_chunks, entries, ways)
                if (entries["length"][in_chunks] == SKIPPED).any():
                    kept = np.flatnonzero(is_mapped | (entries["length"] != SKIPPED))
            if in_shards.size:
                shards = self._find_in_shards(codes, in_shards, entries, ways)
        if kept is not None:
            codes, entries, ways = codes[kept], entries[kept], ways[kept]
        with self.counters.timed("decode_seconds"):
            as_bytes &= kept is None
            content, offsets, wrong = gather(entries, ways, _addresses(shards), as_bytes=as_bytes)
        if wrong is not None:
            self._recover(int(codes[wrong[0]]), entries[wrong[0]], wrong)
            again = self.gather(codes, as_bytes=as_bytes)
            if kept is None or again.kept is None:
                return again._replace(kept=kept if again.kept is None else again.kept)
            return again._replace(kept=kept[again.kept])
        self._shards.drop_pages(int(offsets[-1]) if in_shards.size else 0)
        if as_bytes:
            return GatheredRows(content)
        return GatheredRows(None, content, offsets, kept)

    def _find_in_shards(
        self, codes: Codes, places: NDArray[np.int64], entries: NDArray[Any], ways: NDArray[np.int32]
    ) -> list[ShardFrames]:
        """Find rows of mapped shards, which are opened when a row of theirs is wanted; return these."""
        keys = distinct(codes[places] >> _SHARD_BITS)
        opened = [self._shards.frames_of(self.place_of(key)) for key in (keys << _SHARD_BITS).tolist()]
        wrong = find_in_shards(
            _addresses(opened),
            np.searchsorted(keys, codes[places] >> _SHARD_BITS),
            codes[places] & _SHARD_ROW,
            places,
            entries,
            ways,
        )
        if wrong >= 0:
            self._explain(self.place_of(int(codes[places[wrong]])))
        return opened

    def _recover(self, code: int, entry: Any, wrong: tuple[int, bool, int, int]) -> None:
        """Open the chunk of a row again that scratch has lost; else raise what is wrong with the row."""
        _, is_short, read, errno = wrong
        if code < MAPPED:
            self.opener.open_again(code >> _CHUNK_BITS)
            return
        place = self.place_of(code)
        shard = place.source.pool.get(place.shard)
        if errno:
            raise StorageError(f"the filesystem refused: {os.strerror(errno)}", url=shard.data.url)
        if is_short:
            start = int(entry["payload"]) - TFRECORD_HEAD
            size = int(entry["length"]) + TFRECORD_HEAD + TFRECORD_TAIL
            what, url = "the file ends before the bytes asked for", shard.data.url
            error = ShortReadError(what, url=url, start=start, stop=start + size, expected=size, found=read)
            raise shard.explain(error)
        self._explain(place)

    def _explain(self, place: RowPlace) -> NoReturn:
        """Raise what is wrong with a row of a mapped shard, as its block says."""
        shard = place.source.pool.get(place.shard)
        shard.load(int(shard.head.blocks_of(np.array([place.row]))[0]))
        raise shard.changed(place.row)

    def place_of(self, code: int) -> RowPlace:
        """Return where a row is stored; for messages."""
        if code >= MAPPED:
            source, rest = divmod(code - MAPPED, 1 << _SOURCE_BITS)
            return RowPlace(self.components[source].source, *divmod(rest, 1 << _SHARD_BITS))
        chunk = self.chunks[code >> _CHUNK_BITS]
        component = self.components[chunk.source]
        position = component.position(int(chunk.positions[code & _CHUNK_ROW]))
        return RowPlace(component.source, *component.source.shard_of(position))


class _MappedShards:
    """The mapped shards whose rows were gathered last; threads share them.

    They hold no descriptors, and rows come from all shards in turn, so more are kept than a pool keeps.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames: dict[tuple[int, int], tuple[OpenShard, ShardFrames]] = {}
        self._blocks = 0
        self._looked_at = 0

    def frames_of(self, place: RowPlace) -> ShardFrames:
        """Return the frames of the shard of a row, opened; errors are those of `ShardPool.get`."""
        key = id(place.source.pool), place.shard
        found = self._frames.get(key)
        if found is None:
            shard = place.source.pool.get(place.shard)
            found = shard, shard_frames(shard, verify=place.source.options.verify)
            with self._lock:
                self._blocks += shard.head.blocks
                while self._frames and self._blocks > TUNING.mapped_blocks:
                    oldest, _ = self._frames.pop(next(iter(self._frames)))
                    self._blocks -= oldest.head.blocks
                self._frames[key] = found
        return found[1]

    def drop_pages(self, size: int) -> None:
        """Note that so many bytes were gathered, and give pages back now and then."""
        with self._lock:
            self._looked_at += size
            if self._looked_at < TUNING.mapped_bytes:
                return
            self._looked_at = 0
            shards = [shard for shard, _ in self._frames.values()]
        for shard in shards:
            shard.drop_pages()


def shard_frames(shard: OpenShard, *, verify: bool) -> ShardFrames:
    """Return where the frames of a local shard are that is not compressed.

    Records that are large are read past the map, which costs less than looking into pages for the first time.
    """
    head, mapped, frames = shard.head, shard.mapped, shard.column
    if frames is None:  # the index could not be mapped
        start = head.frame_stop_offset
        frames = np.frombuffer(shard.index.read(start, start + 4 * head.rows), "<u4").view(np.uint32)
    is_read = mapped is None or head.decoded_bytes >= TUNING.read_row_bytes * head.rows
    path = os.fsencode(shard.data.url) + b"\0" if is_read and READS_FILES else None
    return ShardFrames(mapped, head.stored_bytes, head, frames, verify=verify, path=path)
