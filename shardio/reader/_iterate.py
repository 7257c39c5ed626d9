"""Storage order: large runs of blocks, read ahead of the consumer; and batches of them.

A batch goes over the borders of runs and shards; nothing is copied or looked at per record on the way.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio import kernels
from shardio.errors import ShardioError
from shardio.format import Compression
from shardio.reader._lookup import Placed, lookup
from shardio.reader._tuning import TUNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from shardio.reader._mapped import MappedRows
    from shardio.reader._shard import OpenShard
    from shardio.reader._source import ShardSource
    from shardio.reader._subset import Selection


def iterate_payloads(
    source: ShardSource, selection: Selection, size: int | None = None
) -> Iterator[list[bytes]]:
    """Yield the payloads of a selection in its order.

    Args:
        source: of the shards.
        selection: positions.
        size: of the lists, where mapped shards are cut: a list ends there, and where its shard does. Others,
            and all where it is None, have any length.
    """
    if not isinstance(selection, range) or selection.step != 1:
        for k in range(0, len(selection), 1024):
            yield lookup(source.pool, source.stops, np.asarray(selection[k : k + 1024], np.int64))
    elif size is None or not source.is_local:
        for run in iterate_runs(source, selection):
            yield run.payloads()
    else:
        done = 0
        for number, start, stop in _parts(source, selection):
            rows = source.pool.get(number).in_place
            if rows is None or source.pool.deleted(number) is not None:
                for run in _begin_shard(source, number, start, stop):
                    yield run.payloads()
            else:
                first = start + size - done % size
                yield from rows.lists(start, itertools.chain(range(first, stop, size), (stop,)))
            done += stop - start


def iterate_runs(source: ShardSource, selection: range) -> Iterator[BlockRun]:
    """Yield runs of records of a selection without gaps, in order; each has its requests under way."""
    if not len(selection):
        return
    if source.is_local:
        yield from _begun(source, selection)
        return
    waiting: deque[BlockRun] = deque()
    begun, ahead = _begun(source, selection), 1
    while True:
        waiting.extend(itertools.islice(begun, ahead - len(waiting)))
        if not waiting:
            return
        yield waiting.popleft()
        ahead = min(2 * ahead, TUNING.ahead)


class BlockRun:
    """Some blocks of a shard, of which the live rows `first_row .. stop_row - 1` are wanted.

    Args:
        number: of the shard.
        shard: that they are in.
        blocks: the first, and one past the last.
        first_row, stop_row: of the shard; blocks may hold more.
        deleted: rows of the shard that are deleted, or None.

    Attributes:
        number: of the shard.
        records: how many of the rows that are wanted are in these blocks.
    """

    def __init__(
        self,
        number: int,
        shard: OpenShard,
        blocks: tuple[int, int],
        first_row: int,
        stop_row: int,
        deleted: NDArray[np.int64] | None,
    ) -> None:
        self.number = number
        self._shard = shard
        first, last = shard.head.block_rows(blocks[0])[0], shard.head.block_rows(blocks[1] - 1)[1]
        self._rows = max(first_row, first), min(stop_row, last)
        self.records = self._rows[1] - self._rows[0]
        if deleted is not None:
            self.records -= int(np.diff(np.searchsorted(deleted, self._rows))[0])
        self._deleted = deleted
        self._wait = None if shard.in_place is not None else shard.blocks.begin([blocks])

    def payloads(self) -> list[bytes]:
        """Return the payloads, when they are there.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, with its address.
            StorageError: the environment failed.
        """
        if self._wait is None and self._deleted is None:
            return next(self._in_place.lists(self._rows[0], self._rows[1:]))
        if self._wait is None:
            return self._in_place.records(self._live_rows())
        (run,) = self._wait()
        if self._deleted is None:
            return run.payloads(*self._rows)
        rows = self._live_rows()
        return [payload for block in run for payload in block.take(_rows_in(block, rows))]

    def placed(self) -> list[Placed]:
        """Return where the payloads are, when they are there; errors are those of `payloads`."""
        rows = self._live_rows()
        if self._wait is None:
            return [self._in_place.places(rows)]
        (run,) = self._wait()
        found = []
        for block in run:
            starts, stops = block.places(*self._rows)
            if self._deleted is not None:
                first = max(block.first_row, self._rows[0])
                own = _rows_in(block, rows) - first
                starts, stops = starts[own], stops[own]
            found.append((block.buffer, starts, stops))
        return found

    @property
    def _in_place(self) -> MappedRows:
        rows = self._shard.in_place
        assert rows is not None  # noqa: S101 - for the type checker
        return rows

    def _live_rows(self) -> NDArray[np.int64]:
        rows = np.arange(*self._rows)
        return rows if self._deleted is None else np.setdiff1d(rows, self._deleted, assume_unique=True)


def _rows_in(block: kernels.OpenBlock, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of ascending rows that are in a block."""
    low, high = np.searchsorted(rows, [block.first_row, block.first_row + len(block)]).tolist()
    return rows[low:high]


class _FailedRun(BlockRun):
    """The rest of a shard that could not be begun; fails in its turn, after the records before it."""

    def __init__(self, number: int, records: int, error: Exception) -> None:
        self.number, self.records = number, records
        self._error = error

    def payloads(self) -> list[bytes]:
        raise self._error

    def placed(self) -> list[Placed]:
        raise self._error


def _parts(source: ShardSource, selection: range) -> list[tuple[int, int, int]]:
    """Return the numbers of the shards that a selection is in, and which live rows of each it wants."""
    if not len(selection):
        return []
    first = int(np.searchsorted(source.stops, selection.start, side="right"))
    last = int(np.searchsorted(source.stops, selection.stop - 1, side="right"))
    found = []
    for number in range(first, last + 1):
        if source.table.live_rows[number]:
            before = int(source.stops[number - 1]) if number else 0
            stop = min(selection.stop, int(source.stops[number])) - before
            found.append((number, max(selection.start - before, 0), stop))
    return found


def _begun(source: ShardSource, selection: range) -> Iterator[BlockRun]:
    """Yield each run of records in turn, after its requests were sent."""
    parts = _parts(source, selection)
    for place, (number, start, stop) in enumerate(parts):
        records = stop - start
        try:
            if place % TUNING.heads == 1 and not source.is_local:
                # A shard that cannot be opened fails in its own turn, below, not in that of an earlier one.
                with contextlib.suppress(ShardioError):
                    source.pool.prepare([number for number, _, _ in parts[place : place + TUNING.heads]])
            for run in _begin_shard(source, number, start, stop):
                records -= run.records
                yield run
        except Exception as error:  # noqa: BLE001 - it is raised in its turn, after the records before it
            yield _FailedRun(number, records, error)
            if source.options.on_error == "raise":
                return


def _begin_shard(source: ShardSource, number: int, start: int, stop: int) -> Iterator[BlockRun]:
    """Begin the live rows `start .. stop - 1` of one shard, run by run."""
    shard = source.pool.get(number)
    deleted = source.pool.deleted(number)
    if deleted is None:
        first_row, stop_row = start, stop
    else:
        from shardio.metadata import live_to_physical

        first_row, last = live_to_physical(np.array([start, stop - 1]), deleted).tolist()
        stop_row = last + 1
    for run in block_runs(shard, *shard.blocks.around(first_row, stop_row)):
        yield BlockRun(number, shard, run, first_row, stop_row, deleted)


def block_runs(shard: OpenShard, first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut the blocks `first .. stop - 1` into runs of about a megabyte, bounded in rows and decoded bytes."""
    most = TUNING.run_bytes if shard.blocks.mapped is None else TUNING.mapped_run_bytes
    decodes = shard.head.compression is not Compression.NONE
    decoded = TUNING.run_decoded_bytes if decodes else None
    return shard.head.runs(first, stop, most_bytes=most, most_rows=TUNING.run_rows, most_decoded=decoded)


def in_lists(lists: Iterable[list[Any]], size: int) -> Iterator[list[Any]]:
    """Yield the items of some lists in lists of `size`; the last may be shorter."""
    rest: list[Any] = []
    for items in lists:
        if not rest and len(items) == size:
            yield items
            del items
            continue
        at = size - len(rest) if rest else 0
        if rest:
            rest += items[:at]
            if len(rest) < size:
                continue
            yield rest
        for stop in range(at + size, len(items) + 1, size):
            yield items[at:stop]
            at = stop
        rest = items[at:]
        # Not held while the next list is made: its memory is still in the processor's cache.
        del items
    if rest:
        yield rest


def iterate_placed(source: ShardSource, selection: range, size: int) -> Iterator[Placed]:
    """Yield where the records of each batch are, in one buffer; the last batch may be shorter."""
    pieces: list[Placed] = []
    held = 0
    for run in iterate_runs(source, selection):
        for buffer, starts, stops in run.placed():
            at = 0
            while held + len(starts) - at >= size:
                stop = at + size - held
                yield _in_one_buffer([*pieces, (buffer, starts[at:stop], stops[at:stop])])
                pieces, held, at = [], 0, stop
            if at < len(starts):
                pieces.append((buffer, starts[at:], stops[at:]))
                held += len(starts) - at
    if pieces:
        yield _in_one_buffer(pieces)


def _in_one_buffer(pieces: list[Placed]) -> Placed:
    """Bring the records of some pieces into one buffer; those of one mapped shard are in one already."""
    buffers, starts, stops = zip(*pieces, strict=True)
    if len(pieces) == 1:
        return pieces[0]
    if all(buffer is buffers[0] for buffer in buffers):
        return buffers[0], np.concatenate(starts), np.concatenate(stops)
    which = np.repeat(np.arange(len(pieces)), [len(each) for each in starts])
    values, offsets = kernels.gather_from(buffers, which, np.concatenate(starts), np.concatenate(stops))
    return values, offsets[:-1], offsets[1:]
