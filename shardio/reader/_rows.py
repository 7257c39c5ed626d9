"""From positions to payloads, for lookups and iteration.

There are two ways. Scattered rows of local shards that are not compressed are gathered by their index, and
the checksums of their own frames are compared. Everything else opens the blocks that rows are in: these are
fetched in runs, compared and decoded once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import ShardioError
from shardio.format import Compression
from shardio.reader._blocks import Placed, Rows, rows_between
from shardio.reader._damage import Damage, SkippedRows, is_damage
from shardio.reader._shard import Run
from shardio.reader._tuning import TUNING

if TYPE_CHECKING:
    from shardio.reader._shard import OpenShard
    from shardio.reader._source import ShardSource
    from shardio.reader._subset import Selection


# Takes `as_bytes=` and `skips=`; see `Run.pieces`.
Pieces: TypeAlias = "Callable[..., Iterator[Any]]"


@dataclass(slots=True)
class BegunRows:
    """Rows of a shard whose bytes are on their way; what is wrong is raised when they are waited for.

    Attributes:
        number: of the shard.
        places: which of the positions asked for they are.
        rows: their numbers in the shard, ascending; None where its deleted rows cannot be read.
        size: bytes on their way.
        pieces: waits for them; see `Run.pieces`.
    """

    number: int
    places: range
    rows: Rows | None
    size: int
    pieces: Pieces

    def payloads(self) -> list[bytes]:
        """Return the payloads, when they are there.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, with its address.
            StorageError: the environment failed.
        """
        payloads: list[bytes] = []
        for some in self.pieces(as_bytes=True):
            if payloads:
                payloads += some
            else:
                payloads = some
        return payloads

    def whole_pieces(
        self, source: ShardSource, damage: Damage, *, as_bytes: bool
    ) -> Iterator[tuple[range, Any]]:
        """Yield the payloads, or where they are, and which of the positions asked for they have.

        Damage that is to be skipped is noted and left out.
        """
        at, skips = 0, damage.skips and self.rows is not None
        for found in self.pieces(as_bytes=as_bytes, skips=skips):
            if not isinstance(found, SkippedRows):
                count = len(found if as_bytes else found[1])
                yield self.places[at : at + count], found
            else:
                count = found.rows
                rows = np.asarray(self.rows)[at : at + count].tolist()
                damage.note(found.error, source, source.table.key[self.number], rows)
                if found.missing_from is not None:
                    damage.missing[id(source.pool), self.number] = found
            at += count


def look_up(source: ShardSource, positions: NDArray[np.int64]) -> list[bytes]:
    """Return the payloads at some positions, in the order given.

    Heads of indexes not seen before are fetched together, then all rows together: two rounds of requests
    for shards first seen, one afterwards.

    Args:
        source: of the shards.
        positions: int64, each within `[0, len(source))`; any order, repeats allowed.
    """
    order = positions.argsort(kind="stable")
    items = order.tolist()
    payloads = [b""] * len(items)
    done = 0
    for rows in begin_lookup(source, positions[order]):
        for payload in rows.payloads():
            payloads[items[done]] = payload
            done += 1
    return payloads


def begin_lookup(
    source: ShardSource, wanted: NDArray[np.int64], damage: Damage | None = None
) -> Iterator[BegunRows]:
    """Yield the rows at some positions, int64 ascending; the other rows are on their way."""
    begun = begin_rows(source, wanted, damage, run_bytes=TUNING.lookup_bytes, scattered=damage is None)
    return _read_ahead(source, begun, TUNING.lookup_bytes, TUNING.lookup_bytes)


def read_in_order(source: ShardSource, selection: range, damage: Damage | None = None) -> Iterator[BegunRows]:
    """Yield the rows of a selection without gaps, in runs; those of the next runs are on their way."""
    begun = begin_rows(source, selection, damage, run_bytes=TUNING.run_bytes)
    return _read_ahead(source, begun, 0, TUNING.ahead * TUNING.run_bytes)


def _read_ahead(
    source: ShardSource, begun: Iterable[BegunRows], first: int, most: int
) -> Iterator[BegunRows]:
    """Yield what was begun, in order; what comes next is on its way: `first` bytes, doubled each time."""
    if source.is_local:
        # A disk does its work at the end, so what waits would only hold descriptors.
        yield from begun
        return
    waiting: deque[BegunRows] = deque()
    size = 0
    for rows in begun:
        waiting.append(rows)
        size += rows.size
        while waiting and size >= first:
            oldest = waiting.popleft()
            size -= oldest.size
            first = min(max(2 * first, TUNING.run_bytes), most)
            yield oldest
    yield from waiting


def begin_rows(
    source: ShardSource,
    positions: range | NDArray[np.int64],
    damage: Damage | None = None,
    *,
    run_bytes: int,
    scattered: bool = False,
    streamed: bool = False,
    gap: int | None = None,
) -> Iterator[BegunRows]:
    """Yield rows of shards, in order, each after its requests were sent.

    Args:
        source: of the shards.
        positions: a range with step 1, or int64 ascending.
        damage: of the pass; what it knows to be missing is not asked for again.
        run_bytes: of blocks that are fetched as one.
        scattered: rows that can be checked without their blocks are.
        streamed: all of each shard will be read.
        gap: see `OpenShard.begin`.
    """
    parts = list(_parts(source, positions))
    missing = {} if damage is None else damage.missing
    prepared = 0
    for place, (number, places, live) in enumerate(parts):
        if place == prepared and not source.is_local:
            if not isinstance(positions, range):
                prepared += source.pool.capacity
            else:
                # A single record of the first shard does not wait for the heads of others.
                prepared += TUNING.heads if place else 1
            with contextlib.suppress(ShardioError):  # raised in its turn
                numbers = [
                    part[0] for part in parts[place:prepared] if (id(source.pool), part[0]) not in missing
                ]
                source.pool.prepare(numbers, streamed=streamed)
        known = missing.get((id(source.pool), number))
        yield from _begin_shard(source, number, places, live, known, run_bytes, scattered=scattered, gap=gap)


def _begin_shard(
    source: ShardSource,
    number: int,
    places: range,
    live: Rows,
    known: SkippedRows | None,
    run_bytes: int,
    *,
    scattered: bool,
    gap: int | None,
) -> Iterator[BegunRows]:
    """Begin live rows of one shard, run by run, but for those that are known to be missing."""
    rows: Rows | None = None
    done = 0
    try:
        rows = source.pool.physical_rows(number, live)
        there = rows if known is None else rows_between(rows, 0, known.missing_from or 0)
        if len(there):
            shard = source.pool.get(number)
            gathers = scattered and shard.frames is not None
            for some in (there,) if gathers else _runs_of(shard, there, run_bytes):
                run = Run(shard, some, scattered=scattered, gap=gap)
                begun = BegunRows(number, places[done : done + len(some)], some, run.size, run.pieces)
                done += len(some)
                yield begun
        if known is not None and len(there) < len(rows):
            raise known.error.located().with_traceback(None)  # noqa: TRY301 - raised in its turn
    except Exception as error:  # noqa: BLE001 - raised in its turn, after the records before it
        yield BegunRows(
            number,
            places[done:],
            None if rows is None else rows[done:],
            0,
            partial(_refuse, error, len(places) - done, known=known is not None),
        )


def _refuse(
    error: Exception,
    count: int,
    *,
    known: bool,
    as_bytes: bool,  # noqa: ARG001 - as `Run.pieces`
    skips: bool = False,
) -> Iterator[SkippedRows]:
    if not (skips and is_damage(error)):
        raise error
    # A shard that cannot be opened is lost from its first row on.
    yield SkippedRows(error, count, None if known else 0)


def _parts(source: ShardSource, positions: range | NDArray[np.int64]) -> Iterator[tuple[int, range, Rows]]:
    """Yield the number of a shard, which of the positions are in it, and their live rows there."""
    if not len(positions):
        return
    stops = source.stops
    if isinstance(positions, range):
        first, last = np.searchsorted(stops, [positions[0], positions[-1]], side="right").tolist()
        numbers = (np.flatnonzero(source.table.live_rows[first : last + 1]) + first).tolist()
        ends = [min(int(stops[number]), positions.stop) - positions.start for number in numbers]
    else:
        shards = stops.searchsorted(positions, side="right")
        ends = [len(positions)]
        if shards[0] != shards[-1]:
            ends = [*(np.flatnonzero(shards[1:] != shards[:-1]) + 1).tolist(), *ends]
        numbers = [int(shards[end - 1]) for end in ends]
    low = 0
    for number, high in zip(numbers, ends, strict=True):
        before = int(stops[number - 1]) if number else 0
        some = positions[low:high]
        live = range(some.start - before, some.stop - before) if isinstance(some, range) else some - before
        yield number, range(low, high), live
        low = high


def _runs_of(shard: OpenShard, rows: Rows, run_bytes: int) -> Iterator[Rows]:
    """Cut rows of a shard into runs of whole blocks, bounded in bytes."""
    head = shard.head
    if isinstance(rows, range):
        if shard.mapped is not None:
            run_bytes = min(run_bytes, TUNING.mapped_run_bytes)
        decoded = TUNING.run_decoded_bytes if head.compression is not Compression.NONE else None
        low, high = shard.around(rows.start, rows.stop)
        row = rows.start
        for _, stop in head.runs(
            low, high, most_bytes=run_bytes, most_rows=TUNING.run_rows, most_decoded=decoded
        ):
            end = min(rows.stop, shard.row_stops[stop - 1])
            if row < end:  # a run may be a gap, which has no rows
                yield range(row, end)
            row = end
        return
    blocks = head.blocks_of(rows)
    firsts = np.flatnonzero(np.diff(blocks, prepend=-1))
    sizes = np.cumsum(head.block_decoded_bytes[blocks[firsts]], dtype=np.int64)
    edges = [*firsts.tolist(), len(rows)]
    k = 0
    while k < len(sizes):
        before = int(sizes[k - 1]) if k else 0
        end = max(k + 1, int(np.searchsorted(sizes, before + run_bytes, side="right")))
        yield rows[edges[k] : edges[end]]
        k = end


def iterate_pieces(source: ShardSource, selection: range, size: int) -> Iterator[Placed]:
    """Yield where the records of each batch are, in one buffer; the last batch may be shorter."""
    pieces: list[Placed] = []
    held = 0
    for rows in read_in_order(source, selection):
        for buffer, starts, stops in rows.pieces(as_bytes=False):
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
    if len(pieces) == 1:
        return pieces[0]
    buffers, starts, stops = zip(*pieces, strict=True)
    if all(buffer is buffers[0] for buffer in buffers):
        return buffers[0], np.concatenate(starts), np.concatenate(stops)
    which = np.repeat(np.arange(len(pieces)), [len(each) for each in starts])
    values, offsets = kernels.gather_from(buffers, which, np.concatenate(starts), np.concatenate(stops))
    return values, offsets[:-1], offsets[1:]


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


def positions_in_order(selection: Selection) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of an irregular selection that are read together, int64."""
    for low in range(0, len(selection), TUNING.positions):
        yield np.asarray(selection[low : low + TUNING.positions], np.int64)
