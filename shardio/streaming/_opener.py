"""Opening chunks: fetch their blocks, compare and decode them once, and put their payloads into the arena."""

from __future__ import annotations

import ctypes
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio.errors import NotFoundError, ShardioError
from shardio.format import Compression
from shardio.reader import ENTRY, SKIPPED, SuppressCorruption, WrongBlock, copy_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardio.reader import Damage, FetchedRun, OpenShard
    from shardio.streaming._arena import Arena, Slot
    from shardio.streaming._chunks import OpenChunks
    from shardio.streaming._components import Component
    from shardio.streaming._stats import Counters

_KEPT = 4 << 20  # of the memory that a thread copies payloads to before they are written to scratch


class _Wanted(NamedTuple):
    """Rows of one shard that a chunk holds.

    Attributes:
        chunk: its number.
        at: which of its rows the first of these is.
        rows: int64, their numbers in the shard, ascending.
    """

    chunk: int
    at: int
    rows: NDArray[np.int64]


class _Payloads(NamedTuple):
    """Payloads of rows in consecutive blocks, as `copy_rows` takes them.

    Attributes:
        at: which row of the chunk the first one is.
        data: the blocks.
        edges: int64 [blocks + 1].
        crcs: of the blocks, where these are still to be compared; else None.
        starts, stops: int64 [rows].
        keep: stores the blocks in the cache, once all are right.
        again: returns the same rows block by block, fetching again what is wrong; None where that was done.
    """

    at: int
    data: Any
    edges: NDArray[np.int64]
    crcs: NDArray[np.uint32] | None
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    keep: Callable[[], None] | None = None
    again: Callable[[], list[_Payloads]] | None = None

    @property
    def size(self) -> int:
        """Bytes of the payloads."""
        return int(self.stops.sum() - self.starts.sum())


class Opener:
    """Opens the chunks of a pass; its threads share it.

    Args:
        components: the datasets.
        chunks: of the pass.
        damage: what to do about it.
        counters: of time.
    """

    def __init__(
        self, components: Sequence[Component], chunks: OpenChunks, damage: Damage, counters: Counters
    ) -> None:
        self._components, self._chunks, self._damage, self._counters = components, chunks, damage, counters

    def open(self, numbers: Sequence[int]) -> None:
        """Open chunks of one dataset; damage that is not to be skipped is noted with its chunk.

        Raises:
            StorageError: the environment failed.
        """
        with self._counters.timed("fetch_seconds"):
            with SuppressCorruption() as damaged:
                self._open(numbers)
            # What was fetched together is not damaged together.
            for number in numbers if damaged.error is not None else ():
                if not self._chunks.is_open(number):
                    with SuppressCorruption() as damaged:
                        self._open([number])
                    self._chunks[number].error = damaged.error

    def open_again(self, number: int) -> None:
        """Open a chunk in memory whose scratch could not be read; raises its damage, too."""
        self._open([number], in_memory=True)

    def _open(self, numbers: Sequence[int], *, in_memory: bool = False) -> None:
        component = self._components[self._chunks[numbers[0]].source]
        by_shard = self._rows_by_shard(component, numbers)
        with SuppressCorruption(skips=self._damage.skips):
            component.source.pool.prepare(list(by_shard), streamed=True)
        openers = [ShardOpener(component, key, wanted, self._damage) for key, wanted in by_shard.items()]
        # Requests to all shards are under way together. On a local disk nothing would be, and a shard that
        # waits holds descriptors.
        for opener in openers:
            if not opener.is_local:
                opener.begin()
        payloads: dict[int, list[_Payloads]] = {number: [] for number in numbers}
        for opener in openers:
            for number, found in opener.finish():
                payloads[number] += found
        for number in numbers:
            self._store(number, payloads.pop(number), in_memory=in_memory)

    def _rows_by_shard(self, component: Component, numbers: Sequence[int]) -> dict[int, list[_Wanted]]:
        """Return what chunks want of each shard."""
        pieces = [self._chunks[number].pieces for number in numbers]
        shards, starts, stops = (np.concatenate(column) for column in zip(*pieces, strict=True))
        live = np.split(component.many_live_rows(shards, starts, stops), np.cumsum(stops - starts)[:-1])
        owners = np.repeat(numbers, [each.shards.size for each in pieces]).tolist()
        by_shard: dict[int, list[_Wanted]] = {}
        before, at = -1, 0
        for number, key, rows in zip(owners, shards.tolist(), live, strict=True):
            at = at if number == before else 0
            stored = np.asarray(component.source.pool.physical_rows(key, rows))
            by_shard.setdefault(key, []).append(_Wanted(number, at, stored))
            before, at = number, at + stored.size
        return by_shard

    def _store(self, number: int, payloads: list[_Payloads], *, in_memory: bool) -> None:
        """Copy payloads into the arena, where their blocks are right."""
        arena, rows = self._chunks.arena, self._chunks[number].rows
        entries = arena.take(rows * ENTRY.itemsize)
        if sum(each.starts.size for each in payloads) < rows:
            skipped = np.zeros(rows, ENTRY)
            skipped["length"] = SKIPPED
            ctypes.memmove(entries.start, skipped.ctypes.data, skipped.nbytes)
        slot = self._fill(entries, payloads, in_memory=in_memory)
        if slot is None:
            payloads = [one for each in payloads for one in ([each] if each.again is None else each.again())]
            arena.give_back(entries)
            self._store(number, payloads, in_memory=in_memory)
            return
        for each in payloads:
            if each.keep is not None:
                each.keep()
        self._chunks.opened(number, (entries, slot))

    def _fill(self, entries: Slot, payloads: Sequence[_Payloads], *, in_memory: bool) -> Slot | None:
        """Copy payloads into a slot; None where a block is wrong."""
        arena: Arena = self._chunks.arena
        size = sum(each.size for each in payloads)
        slot = None if in_memory else arena.take_scratch(size)
        if slot is not None:
            buffer = _buffer(size)
            right = _copy(entries, payloads, buffer.ctypes.data, slot.start, checksums=True)
            if right and arena.write(buffer[:size], slot):
                return slot
            arena.give_back(slot)
            if not right:
                return None
        slot = arena.take(size)
        if _copy(entries, payloads, slot.start, slot.start, checksums=False):
            return slot
        arena.give_back(slot)
        return None


def _copy(entries: Slot, payloads: Sequence[_Payloads], target: int, place: int, *, checksums: bool) -> bool:
    for each in payloads:
        table = entries.start + ENTRY.itemsize * each.at
        blocks = each.data, each.edges, each.crcs, each.starts, each.stops
        if copy_rows(*blocks, table, target, place, checksums) >= 0:
            return False
        target, place = target + each.size, place + each.size
    return True


_own = threading.local()


def _buffer(size: int) -> NDArray[np.uint8]:
    """Return memory of this thread for so many bytes, which the next call may return again."""
    buffer: NDArray[np.uint8] | None = getattr(_own, "buffer", None)
    if buffer is None or buffer.size < size:
        buffer = np.empty(max(size, _KEPT), np.uint8)
        if size <= _KEPT:
            _own.buffer = buffer
    return buffer


class ShardOpener:
    """Finds the payloads of rows of one shard; what is wrong is raised, or noted and left out.

    Args:
        component: the dataset.
        key: number of the shard.
        wanted: the rows.
        damage: what to do about it.

    Attributes:
        is_local: it is read when `finish` is called, without requests before.
    """

    def __init__(self, component: Component, key: int, wanted: Sequence[_Wanted], damage: Damage) -> None:
        self._source, self._key, self._damage = component.source, key, damage
        self._wanted = wanted
        self._runs: list[
            tuple[_Wanted, int, int]
        ] = []  # rows, and the blocks `low .. high - 1` that have them
        self._wait: Callable[[], list[FetchedRun]] | None = None
        self._shard: OpenShard | None = None
        self.is_local = component.source.pool.is_local(key)

    def begin(self) -> None:
        """Send the requests for the blocks that the rows are in."""
        with SuppressCorruption(skips=self._damage.skips) as skipped:
            shard = self._shard = self._source.pool.get(self._key)
            for wanted in self._wanted:
                self._runs += _runs_of(shard, wanted)
            runs = [(low, high) for _, low, high in self._runs]
            # What is between runs of several chunks is of other ranks, or of other times.
            self._wait = shard.blocks.begin(runs, gap=0 if len(runs) == len(self._wanted) else None)
        if skipped.error is not None and self._shard is None:
            self._note(skipped.error, np.concatenate([wanted.rows for wanted in self._wanted]))

    def finish(self) -> Iterator[tuple[int, list[_Payloads]]]:
        """Wait for the blocks; yield the number of a chunk, and payloads of it."""
        if self.is_local:
            self.begin()
        if self._shard is None:
            return
        fetched: Sequence[FetchedRun | None] = [None] * len(self._runs)
        with SuppressCorruption(skips=self._damage.skips):
            fetched = self._wait() if self._wait is not None else fetched
        for (wanted, low, high), run in zip(self._runs, fetched, strict=True):
            found = self._together(self._shard, wanted, low, high, run)
            yield (
                wanted.chunk,
                self._by_block(self._shard, wanted, low, high, run) if found is None else [found],
            )
        if self.is_local:
            self._shard.drop_pages()
            # Payloads wait for those of other shards, of which there may be more than descriptors.
            self._shard = self._wait = None

    def _together(
        self, shard: OpenShard, wanted: _Wanted, low: int, high: int, run: FetchedRun | None
    ) -> _Payloads | None:
        """Find rows in blocks as they are stored; None where these are decoded, or ends of frames wrong."""
        head = shard.head
        if run is None or not shard.has_frame_runs or head.compression is not Compression.NONE:
            return None
        places = run.frame_places(low, high, int(wanted.rows[0]), int(wanted.rows[-1]) + 1)
        if places is None:
            return None
        if wanted.rows.size < places.shape[1]:
            places = np.ascontiguousarray(places[:, wanted.rows - wanted.rows[0]])
        data, edges = run.stored_blocks(low, high)
        crcs = head.block_crc32c[low:high] if self._source.options.verify else None
        if self.is_local:  # nothing to keep in a cache; without the shard, whose files may be closed
            again = partial(self._reopen, wanted, low, high)
            return _Payloads(wanted.at, data, edges, crcs, places[0], places[1], again=again)
        again = partial(self._by_block, shard, wanted, low, high, run)
        return _Payloads(wanted.at, data, edges, crcs, places[0], places[1], run.keep, again)

    def _reopen(self, wanted: _Wanted, low: int, high: int) -> list[_Payloads]:
        """Read rows of a local shard again, block by block."""
        with SuppressCorruption(skips=self._damage.skips) as skipped:
            return self._by_block(self._source.pool.get(self._key), wanted, low, high, None)
        assert skipped.error is not None  # noqa: S101 - for the type checker
        self._note(skipped.error, wanted.rows)
        return []

    def _by_block(
        self, shard: OpenShard, wanted: _Wanted, low: int, high: int, run: FetchedRun | None
    ) -> list[_Payloads]:
        """Find rows in blocks that are opened one by one; what is wrong is fetched again."""
        found = []
        for number in range(low, high):
            first, stop = shard.head.block_rows(number)
            begin, end = np.searchsorted(wanted.rows, (first, stop)).tolist()
            with SuppressCorruption(skips=self._damage.skips) as skipped:
                block = shard.blocks.load(number) if run is None else run.try_open(number)
                if isinstance(block, WrongBlock):
                    raise shard.blocks.refusal(block)
                places = np.ascontiguousarray(block.places(first, stop)[:, wanted.rows[begin:end] - first])
                edges = np.array([0, len(block.buffer)])
                found.append(_Payloads(wanted.at + begin, block.buffer, edges, None, places[0], places[1]))
            if skipped.error is not None:
                is_gone = isinstance(skipped.error, NotFoundError)
                self._note(skipped.error, wanted.rows[begin:] if is_gone else wanted.rows[begin:end])
                if is_gone:
                    return found
        if run is not None:
            run.keep()
        return found

    def _note(self, error: ShardioError, rows: NDArray[np.int64]) -> None:
        self._damage.note(error, self._source, self._source.table.key[self._key], rows)


def _runs_of(shard: OpenShard, wanted: _Wanted) -> Iterator[tuple[_Wanted, int, int]]:
    """Yield rows of a shard by the runs of blocks that they are in."""
    runs = shard.blocks.runs(wanted.rows)
    stops = np.searchsorted(wanted.rows, [shard.head.block_rows(high - 1)[1] for _, high in runs]).tolist()
    start = 0
    for (low, high), stop in zip(runs, stops, strict=True):
        yield _Wanted(wanted.chunk, wanted.at + start, wanted.rows[start:stop]), low, high
        start = stop
