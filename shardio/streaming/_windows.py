"""Windows in memory: the rows among which the second shuffle moves records, fetched, checked and decoded.

A window is a table of where each of its payloads is in a few buffers.  Blocks of mapped shards are checked
and left in place; other blocks are read and decoded.  Nothing is copied per record.  Records of local shards
that are large enough to be read one by one are not even read: the window is a table of where they are in
their files, the system is asked to fetch them into its cache, and `read_rows` reads and checks them when they
are delivered.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from shardio import kernels
from shardio.errors import NotFoundError
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL
from shardio.metadata import live_to_physical
from shardio.order import select_rows
from shardio.reader import (
    FetchedFrames,
    RowRun,
    SuppressCorruption,
    advise_frames,
    fetch_frames,
    frames_in_cache,
    lookup_alone,
)
from shardio.streaming._tuning import TUNING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardio.format import Buffer
    from shardio.order import Pieces
    from shardio.reader import Damage, FetchedRun, ShardPool
    from shardio.storage import NamedFile
    from shardio.streaming._components import Component
    from shardio.streaming._memory import LeasedMemory, Memory
    from shardio.streaming._scratch import ScratchPart, ScratchSpace

FRAME_FIELDS = 4
# Places of frames and payloads are 32 bits where they are dealt.
_MOST_DEALT = 1 << 32


@dataclass(frozen=True, eq=False)
class WindowData:
    """The rows of one window, or of several that were fetched together, in the order of their pieces.

    Attributes:
        buffers: what the payloads are in; or, where they are not read yet, the files.
        table: int64[3, rows]: number of the buffer (-1: skipped because of damage), start and stop in it; or
            uint32[rows + 1]: where each payload begins in the one buffer, and where the last one stops; or
            int64[rows, 4], where they are not read yet: as `read_frames` takes it.
        component: the dataset.
        pieces: which rows of which shards these are.
        unread: its records are still in their files.
        later: what opens the shards whose rows are wanted, where that is not done yet.
        memory: what the buffer is a part of, where that is to be used again; or the part of a scratch file.
        rows: int64[rows], where these are some rows of the pieces, the numbers of each there.
    """

    buffers: list[Any]
    table: NDArray[np.int64] | NDArray[np.uint32]
    component: Component
    pieces: Pieces
    memory: LeasedMemory | ScratchPart | None = None
    rows: NDArray[np.int64] | None = None
    unread: bool = False
    later: _Later | None = None

    @property
    def is_copied(self) -> bool:
        """Whether its records are in files that are not their shards: of scratch, or of a cache."""
        return self.unread and not self.component.source.is_mapped

    @property
    def whole(self) -> NDArray[np.uint32] | None:
        """Where each payload begins, if they are one after another in one buffer and none is missing."""
        return cast("NDArray[np.uint32]", self.table) if self.table.ndim == 1 else None

    def places(self, rows: NDArray[np.int64], out: NDArray[np.int64]) -> None:
        """Put buffer, start and stop of rows into int64[3, n]."""
        if self.table.ndim == 1:
            out[0], out[1], out[2] = 0, self.table[rows], self.table[rows + 1]
        else:
            np.take(self.table, rows, axis=1, out=out)

    def shard_row(self, local: int) -> tuple[int, int]:
        """Return the shard's number and the physical row of a row of the window; for messages."""
        if self.rows is not None:
            local = int(self.rows[local])
        ends = np.cumsum(self.pieces.stops - self.pieces.starts)
        piece = int(np.searchsorted(ends, local, side="right"))
        number = int(self.pieces.shards[piece])
        row = int(self.pieces.stops[piece] - ends[piece]) + local
        return number, int(_physical(self.component, number, row, row + 1)[0])


class Sink(NamedTuple):
    """Where windows of a pass keep their records.

    Attributes:
        memory: in memory of their own that may be this, and pages of mapped shards are let go; None where
            they are found: in maps, or in what was fetched.
        unread: where they are, if they can be read one by one.
        scratch: in this file of a local disk, if it takes them and none is skipped.
        in_cache: instead, those of shards that are not compressed in the cache, if it has them all.
    """

    memory: Memory | None = None
    unread: bool = False
    scratch: ScratchSpace | None = None
    in_cache: bool = False


def load_window(
    component: Component, pieces: Pieces, damage: Damage, sink: Sink, *, alone: bool = False
) -> WindowData:
    """Fetch, check and decode the rows of windows.

    What is in mapped shards is found in one go a shard; the rest is asked for at once, then taken in turn.

    Args:
        component: the dataset.
        pieces: which rows.
        damage: what to do about it.
        sink: where they are kept.
        alone: fetch records without their blocks, where they can be compared so.

    Raises:
        CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, where it is not to be skipped.
        StorageError: the environment failed.
    """
    data = None
    if sink.unread:
        data = _found(component, pieces)
    if data is None and alone and not damage.skips:
        data = _without_blocks(component, pieces)
    if data is None and sink.memory is None:
        data = _in_place(component, pieces, damage)
    if data is None and sink.memory is not None:
        # Skipping goes block by block, below.
        with SuppressCorruption(skips=damage.skips):
            data = _copied(component, pieces, sink.memory)
    if data is not None:
        return data
    part = np.zeros(int((pieces.stops - pieces.starts).sum()), np.int64)
    return load_parts(component, pieces, damage, sink, part)[0]


def load_parts(
    component: Component, pieces: Pieces, damage: Damage, sink: Sink, part: NDArray[np.int64]
) -> list[WindowData]:
    """Do what `load_window` does with rows that are fetched, and return each part of them by itself.

    Args:
        component, pieces, damage, sink: those of `load_window`; there is memory.
        part: int64 [rows], the number of the part that each row belongs to, from 0 on.

    Returns:
        What each part holds, its rows in the order of the pieces.
    """
    memory = sink.memory
    assert memory is not None  # noqa: S101 - for the type checker
    sizes = np.bincount(part, minlength=1)
    rows: list[NDArray[np.int64] | None] = [None]
    if sizes.size > 1:
        rows = [*np.split(np.argsort(part, kind="stable"), np.cumsum(sizes)[:-1])]
    fetched = _fetched(component, pieces, damage)
    if sink.scratch is not None:
        kept = _put_down(fetched, component, pieces, damage, sink)
        if kept is not None:
            return [kept]
    if fetched is not None:
        dealt = _dealt(fetched, component, pieces, part, rows, memory)
        if dealt is not None:
            return dealt
    loading = _loaded(component, pieces, damage, fetched)
    found = [_alone(loading, component, pieces, memory, own) for own in rows]
    loading.end()
    return found


def _without_blocks(component: Component, pieces: Pieces) -> WindowData | None:
    """Return rows that were fetched without their blocks; None where blocks are needed."""
    source, shards = component.source, pieces.shards
    first = source.stops[shards] - source.table.live_rows[shards]
    live = np.repeat(first, pieces.stops - pieces.starts) + component.many_live_rows(*pieces)
    payloads = lookup_alone(source.pool, source.stops, live)
    if payloads is None:
        return None
    offsets = np.append(0, np.cumsum(list(map(len, payloads))))
    table = np.stack([np.zeros_like(live), offsets[:-1], offsets[1:]])
    return WindowData([memoryview(b"".join(payloads))], table, component, pieces)


def _whole(fetched: Sequence[list[FetchedFrames] | None]) -> list[FetchedFrames] | None:
    """Return the frames of pieces, one after another; None where some are damaged."""
    found = [each for each in fetched if each is not None]
    return [*itertools.chain.from_iterable(found)] if len(found) == len(fetched) else None


def _framed(loading: _Loading) -> list[FetchedFrames] | None:
    """Return frames that are made of payloads; None where some are damaged."""
    which, starts, stops = loading.table
    if (which < 0).any():
        return None
    # Of each frame the head, the payload, and room for the last checksum.
    lengths = (stops - starts).astype("<u8")
    heads = np.zeros((lengths.size, TFRECORD_HEAD), np.uint8)
    places = np.arange(lengths.size, dtype=np.int64) * TFRECORD_HEAD
    heads[:, :8] = lengths.view(np.uint8).reshape(-1, 8)
    heads[:, 8:] = _checksums(heads, places, places + 8)
    parts = np.zeros((3, lengths.size, 3), np.int64)
    parts[1, :, 0], parts[2, :, 0] = places, places + TFRECORD_HEAD
    parts[..., 1] = which + 1, starts, stops
    parts[2, :, 2] = TFRECORD_TAIL
    made, edges = kernels.gather_from([heads.reshape(-1), *loading.buffers], *parts.reshape(3, -1))
    ends = edges[3::3]
    tails = ends[:, None] + np.arange(-TFRECORD_TAIL, 0)
    made[tails] = _checksums(made, edges[1::3], edges[2::3])
    return [FetchedFrames(memoryview(made), np.append(0, ends).astype(np.uint32))]


def _checksums(
    data: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the masked checksums of ranges as a frame has them, uint8 [ranges, 4]."""
    masked = kernels.mask_crc(kernels.crc32c_many(data, starts, stops))
    return masked.astype("<u4").view(np.uint8).reshape(-1, 4)


class _Places(NamedTuple):
    """Files, and of each row the number of its file and where its frame begins there, int64 [rows]."""

    files: list[NamedFile]
    which: NDArray[np.int64]
    starts: NDArray[np.int64]


def _in_cache(component: Component, pieces: Pieces) -> _Places | None:
    """Return where the rows of pieces are in the files of a cache; None where not all are."""
    files: dict[NamedFile, int] = {}
    found = []
    for number, start, stop in zip(*(each.tolist() for each in pieces), strict=True):
        rows = _physical(component, number, start, stop)
        there = frames_in_cache(component.source.pool.get(number), rows)
        if there is None:
            return None
        own, which, starts = there
        numbers = np.array([files.setdefault(file, len(files)) for file in own])
        found.append((numbers[which], starts))
    which, starts = map(np.concatenate, zip(*found, strict=True))
    return _Places(list(files), which, starts)


def _put_down(
    fetched: list[list[FetchedFrames] | None] | None,
    component: Component,
    pieces: Pieces,
    damage: Damage,
    sink: Sink,
) -> WindowData | None:
    """Return where rows are on a local disk; None where it does not take them, or some are skipped."""
    frames = _framed(_loaded(component, pieces, damage)) if fetched is None else _whole(fetched)
    if frames is None:
        return None
    assert sink.scratch is not None  # noqa: S101 - for the type checker
    edges = [each.edges.astype(np.int64) for each in frames]
    views = [memoryview(each.buffer).cast("B") for each in frames]
    sizes = np.concatenate([np.diff(own) for own in edges])
    places, part = _in_cache(component, pieces) if sink.in_cache else None, None
    if places is None:
        part = sink.scratch.write([view[own[0] : own[-1]] for view, own in zip(views, edges, strict=True)])
        if part is None:
            return None
        # One after another, as they are in their buffers.
        places = _Places([part.file], np.zeros_like(sizes), part.start + np.cumsum(sizes) - sizes)
    # The last four bytes of each frame are the checksum of its payload.
    tails = [
        np.frombuffer(view, np.uint8)[own[1:, None] + np.arange(-TFRECORD_TAIL, 0)].view("<u4")[:, 0]
        for view, own in zip(views, edges, strict=True)
    ]
    payloads = sizes - TFRECORD_HEAD - TFRECORD_TAIL
    table = np.column_stack([places.which, places.starts, payloads, np.concatenate(tails)])
    return WindowData(places.files, table, component, pieces, part, unread=True)


def _in_place(component: Component, pieces: Pieces, damage: Damage) -> WindowData:
    """Return rows where they are found: in maps, or in what was fetched."""
    later = _is_opened_later(component, pieces, damage)
    loading = (_Loading if later else _loaded)(component, pieces, damage)
    data = WindowData(loading.buffers, loading.table, component, pieces)
    return replace(data, later=_Later(loading, pieces.shards)) if later else data


def _is_opened_later(component: Component, pieces: Pieces, damage: Damage) -> bool:
    """Tell whether shards of windows are opened one by one: many of them, with nothing to wait for.

    What is skipped must not depend on when it is read.
    """
    if damage.skips or pieces.shards.size <= TUNING.many_pieces:
        return False
    pool = component.source.pool
    numbers = dict.fromkeys(pieces.shards.tolist())
    return len(numbers) > TUNING.many_pieces and all(map(pool.is_local, numbers))


class _Later:
    """Opens shards of windows when the first of their rows is wanted; for any number of threads.

    Args:
        loading: of the windows, which is filled.
        shards: the shard of each piece.
    """

    def __init__(self, loading: _Loading, shards: NDArray[np.int64]) -> None:
        self._loading = loading
        self._ends = loading.ends
        self._shards = shards
        self._closed = np.ones(shards.size, bool)
        self._lock = threading.Lock()

    def open(self, rows: NDArray[np.int64]) -> None:
        """Open the shards of rows of the windows, and find all rows of theirs.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage that is not to be skipped.
            StorageError: the environment failed.
        """
        wanted = np.zeros(self._shards.size, bool)
        wanted[np.searchsorted(self._ends, rows, side="right")] = True
        with self._lock:
            wanted &= self._closed
            for number in dict.fromkeys(self._shards[wanted].tolist()):
                own = np.flatnonzero(self._shards == number)
                self._loading.load_local(number, own.tolist())
                self._closed[own] = False


def _fetched(component: Component, pieces: Pieces, damage: Damage) -> list[list[FetchedFrames] | None] | None:
    """Fetch and decode pieces together.

    Returns:
        The frames of each piece, None for one that is damaged, if that is to be skipped; or None where the
        blocks of one are not runs of its frames.
    """
    pool = component.source.pool
    numbers = pieces.shards.tolist()
    with SuppressCorruption(skips=damage.skips):
        pool.prepare(numbers, streamed=True)
    found: list[list[FetchedFrames] | None] = [None] * len(numbers)
    wanted: list[int] = []
    runs: list[RowRun] = []
    size = 0
    for piece, (number, start, stop) in enumerate(
        zip(numbers, pieces.starts.tolist(), pieces.stops.tolist(), strict=True)
    ):
        with SuppressCorruption(skips=damage.skips):
            shard, rows = pool.get(number), _physical(component, number, start, stop)
            run = RowRun(shard, int(rows[0]), int(rows[-1]) + 1, pool.is_local(number))
            if not shard.has_frame_runs or run.stop - run.first != len(rows):
                return None
            size += run.decoded_bytes
            refusal = run.refusal()
            if refusal is not None:
                raise refusal
            wanted.append(piece)
            runs.append(run)
    if size >= _MOST_DEALT:
        return None
    for own, wait in fetch_frames(runs):
        with _Remembered(pool, numbers[wanted[own[0]]], damage):
            for k, frames in zip(own, wait(), strict=True):
                found[wanted[k]] = frames
    return found


class _Remembered(SuppressCorruption):
    """Skips damage of a shard, and lets the pool remember one that is gone."""

    def __init__(self, pool: ShardPool, number: int, damage: Damage) -> None:
        super().__init__(skips=damage.skips)
        self._pool, self._number = pool, number

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        found = super().__exit__(kind, error, trace)
        if self.error is not None:
            self._pool.remember_missing(self._number, self.error)
        return found


def _dealt(
    fetched: Sequence[list[FetchedFrames] | None],
    component: Component,
    pieces: Pieces,
    part: NDArray[np.int64],
    rows: Sequence[NDArray[np.int64] | None],
    memory: Memory,
) -> list[WindowData] | None:
    """Return the payloads of frames, each part of them in memory that is used again.

    Args:
        fetched: of the pieces, as `_fetched` returns them.
        component, pieces: the dataset, and which rows.
        part: int64 [rows], the number of the part that each row belongs to, from 0 on.
        rows: the rows of each part; None for all.
        memory: for the payloads.

    Returns:
        None where some are damaged, if that is to be skipped: it goes block by block.
    """
    frames = _whole(fetched)
    if frames is None:
        return None
    edges = [each.edges for each in frames]
    # Between the frames of two buffers nothing is one.
    seams = np.cumsum([each.size for each in edges])[:-1] - 1
    lengths = np.delete(np.diff(np.concatenate(edges)), seams) - np.uint32(TFRECORD_HEAD + TFRECORD_TAIL)
    # Exact: all of them are less than what a float holds.
    sizes = np.bincount(part, lengths, minlength=len(rows)).astype(np.int64).tolist()
    leased = [memory.take(size) for size in sizes]
    outs = [lease.bytes[:size] for lease, size in zip(leased, sizes, strict=True)]
    tables = kernels.partition_frames([each.buffer for each in frames], edges, part, outs)
    return [
        WindowData([memoryview(values)], table, component, pieces, lease, rows=own)
        for values, table, lease, own in zip(outs, tables, leased, rows, strict=True)
    ]


def _loaded(
    component: Component,
    pieces: Pieces,
    damage: Damage,
    fetched: Sequence[list[FetchedFrames] | None] | None = None,
) -> _Loading:
    """Return the rows of windows in buffers that may hold others, too.

    Args:
        component, pieces, damage: the dataset, which rows, and what to do about damage.
        fetched: what there is of them already, as `_fetched` returns it, of which some is damaged.
    """
    loading = _Loading(component, pieces, damage)
    if fetched is not None:
        for piece, frames in enumerate(fetched):
            loading.take_fetched(piece, frames)
        return loading
    waiting: list[tuple[int, Callable[[], list[FetchedRun]] | None]] = []
    numbers = list(dict.fromkeys(pieces.shards.tolist()))
    with SuppressCorruption(skips=damage.skips):
        component.source.pool.prepare(numbers, streamed=True)
    for number in numbers:
        own = np.flatnonzero(pieces.shards == number).tolist()
        if component.source.pool.is_local(number):
            loading.load_local(number, own)
        elif not loading.place_mapped(number, own):
            waiting += [(piece, loading.begin(piece)) for piece in own]
    for piece, wait in waiting:
        loading.finish(piece, wait)
    return loading


def load_rows(
    window: WindowData, rows: NDArray[np.int64], damage: Damage, *, changed: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read rows of a window that holds none by their blocks, which says what is wrong with them.

    Args:
        window, rows: which ones.
        damage: what to do about it.
        changed: one of them is not as its index says: blocks that were compared before are so again.

    Returns:
        The payloads, and int64 [rows + 1] where each begins.
    """
    component = window.component
    wanted = np.zeros(len(window.table), bool)
    wanted[rows] = True
    pieces, order = select_rows(window.pieces, wanted, exact=True)
    for shard, found in _by_shard(component, pieces) if changed else ():
        in_place = component.source.pool.get(shard).in_place
        assert in_place is not None  # noqa: S101 - for the type checker; records stay in such files
        in_place.invalidate_verified(found)
    loading = _loaded(component, pieces, damage)
    values, edges = kernels.gather_from(loading.buffers, *loading.table[:, order[rows]])
    loading.end()
    return values, edges


def _found(component: Component, pieces: Pieces) -> WindowData | None:
    """Return where the rows of mapped shards are, and let the system fetch them; None where not all are."""
    frames = []
    for number, rows in _by_shard(component, pieces):
        shard = component.source.pool.get(number)
        found = None if shard.in_place is None else shard.in_place.find_frames(rows)
        if found is None:
            return None
        frames.append(found)
        shard.drop_pages(of_data=False)
    if not frames:
        return None
    table = np.empty((sum(each.starts.size for each in frames), FRAME_FIELDS), np.int64)
    table[:, 0] = np.repeat(np.arange(len(frames)), [each.starts.size for each in frames])
    np.concatenate([each.starts for each in frames], out=table[:, 1])
    np.concatenate([each.lengths for each in frames], out=table[:, 2])
    np.concatenate([each.checked for each in frames], out=table[:, 3])
    advise_frames(frames)
    return WindowData([each.file for each in frames], table, component, pieces, unread=True)


def _by_shard(component: Component, pieces: Pieces) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the numbers of shards of pieces, and the rows wanted of each; nothing if one is remote."""
    cuts = np.flatnonzero(np.diff(pieces.shards)) + 1
    numbers = pieces.shards[np.append(0, cuts)].tolist() if pieces.shards.size else []
    if not all(map(component.source.pool.is_local, numbers)):
        return []
    rows = component.many_live_rows(pieces.shards, pieces.starts, pieces.stops)
    parts = np.split(rows, np.cumsum(pieces.stops - pieces.starts)[cuts - 1])
    return [(number, _stored(component, number, own)) for number, own in zip(numbers, parts, strict=True)]


def _copied(component: Component, pieces: Pieces, memory: Memory) -> WindowData | None:
    """Return the payloads of pieces of mapped shards in memory of their own; None where that is not simple.

    It is simple where all shards are mapped and not compressed, and pieces come in storage order.
    """
    found = []
    for number, rows in _by_shard(component, pieces):
        shard = component.source.pool.get(number)
        copy = None if shard.in_place is None else shard.in_place.begin_copy(rows)
        if copy is None:
            return None
        found.append((shard, copy))
    if not found:
        return None
    offsets = np.zeros(1 + sum(copy.lengths.size for _, copy in found), np.int64)
    np.cumsum(np.concatenate([copy.lengths for _, copy in found]), out=offsets[1:])
    if offsets[-1] >= _MOST_DEALT:
        return None
    leased = memory.take(int(offsets[-1]))
    low = 0
    for shard, copy in found:
        # Behind its own payloads nothing has been put yet.
        if not copy.copy(leased.bytes[offsets[low] :]):
            return None
        shard.drop_pages(of_data=False)
        low += copy.lengths.size
    values = leased.bytes[: offsets[-1]]
    return WindowData([memoryview(values)], offsets.astype(np.uint32), component, pieces, leased)


def _alone(
    loading: _Loading,
    component: Component,
    pieces: Pieces,
    memory: Memory,
    rows: NDArray[np.int64] | None = None,
) -> WindowData:
    """Return the payloads that were found, or those of some rows, in memory of their own."""
    table = loading.table if rows is None else loading.table[:, rows]
    which, starts, stops = table
    offsets = np.zeros(which.size + 1, np.int64)
    np.cumsum(stops - starts, out=offsets[1:])
    if not which.size or (which < 0).any() or offsets[-1] >= _MOST_DEALT:
        return WindowData(loading.buffers, table, component, pieces, rows=rows)
    leased = memory.take(int(offsets[-1]))
    values = leased.bytes[: offsets[-1]]
    edges = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), which.size]
    for low, high in itertools.pairwise(edges):
        out = values[offsets[low] : offsets[high]]
        kernels.gather_into(loading.buffers[which[low]], starts[low:high], stops[low:high], out)
        loading.drop_pages(int(which[low]))
    return WindowData([memoryview(values)], offsets.astype(np.uint32), component, pieces, leased, rows=rows)


class _Loading:
    """A window that is being filled; rows that are not are damaged ones."""

    def __init__(self, component: Component, pieces: Pieces, damage: Damage) -> None:
        self._component = component
        self._damage = damage
        self._shards = pieces.shards.tolist()
        self._rows = [
            _physical(component, number, start, stop)
            for number, start, stop in zip(
                self._shards, pieces.starts.tolist(), pieces.stops.tolist(), strict=True
            )
        ]
        self.ends = np.cumsum(pieces.stops - pieces.starts)
        self._ends: list[int] = self.ends.tolist()
        self.buffers: list[Buffer] = []
        self._numbers: dict[int, int] = {}  # of each buffer, by its identity
        self._mapped: dict[int, int] = {}  # the shards of buffers that are their maps
        self.table = np.full((3, self._ends[-1] if self._ends else 0), -1, np.int64)

    def end(self) -> None:
        """Let go of what was found, and of the pages of mapped shards that were looked into."""
        self.buffers, self._numbers = [], {}
        pool = self._component.source.pool
        for number in dict.fromkeys(self._shards):
            if pool.is_local(number):
                with SuppressCorruption(skips=self._damage.skips):
                    pool.get(number).drop_pages()

    def drop_pages(self, buffer: int) -> None:
        """Let go of the pages of a mapped shard that were looked into, if it is what a buffer is."""
        if buffer in self._mapped:
            self._component.source.pool.get(self._mapped[buffer]).drop_pages()

    def place_mapped(self, number: int, own: list[int]) -> bool:
        """Find the rows of all pieces of a shard at once; False where they must be read, or are damaged."""
        direct = None
        # Skipping goes block by block, in `finish`.
        with SuppressCorruption(skips=self._damage.skips):
            in_place = self._component.source.pool.get(number).in_place
            if in_place is not None:
                direct = in_place.places(np.concatenate([self._rows[i] for i in own]))
        if direct is None:
            return False
        buffer, starts, stops = direct
        self._mapped[self._number(buffer)] = number
        self._place(np.concatenate([self._at(i) for i in own]), self._number(buffer), starts, stops)
        return True

    def load_local(self, number: int, own: list[int]) -> None:
        """Find or read the rows of all pieces of a shard."""
        if not self.place_mapped(number, own):
            # Nothing is under way meanwhile, and a shard that waits holds descriptors.
            for piece in own:
                self.finish(piece, self.begin(piece))

    def begin(self, piece: int) -> Callable[[], list[FetchedRun]] | None:
        """Send the requests of a piece and return what waits for them; None where that failed already."""
        with SuppressCorruption(skips=self._damage.skips):
            shard = self._component.source.pool.get(self._shards[piece])
            return shard.blocks.begin(shard.blocks.runs(self._rows[piece]))
        return None

    def finish(self, piece: int, wait: Callable[[], list[FetchedRun]] | None) -> None:
        """Wait for a piece; where it is damaged and that may be, take the blocks that are not."""
        rows, at = self._rows[piece], self._at(piece)
        with _Remembered(self._component.source.pool, self._shards[piece], self._damage):
            if wait is not None:
                self._take(at, rows, [*itertools.chain.from_iterable(wait())])
                return
        self._salvage(self._shards[piece], rows, at)

    def take_fetched(self, piece: int, fetched: list[FetchedFrames] | None) -> None:
        """Take what there is of a piece already, or of one that is damaged the blocks that are right."""
        rows, at = self._rows[piece], self._at(piece)
        if fetched is None:
            self._salvage(self._shards[piece], rows, at)
            return
        low = 0
        for each in fetched:
            edges = each.edges.astype(np.int64)
            here, low = at[low : low + edges.size - 1], low + edges.size - 1
            starts, stops = edges[:-1] + TFRECORD_HEAD, edges[1:] - TFRECORD_TAIL
            self._place(here, self._number(each.buffer), starts, stops)

    def _salvage(self, number: int, rows: NDArray[np.int64], at: NDArray[np.int64]) -> None:
        """Load block by block, leaving out those that are damaged; or all, if the shard cannot be opened."""
        pool = self._component.source.pool
        with SuppressCorruption() as skipped:
            shard = pool.get(number)
            blocks = shard.head.blocks_of(rows)
        if skipped.error is not None:
            source = self._component.source
            self._damage.note(skipped.error, source, source.table.key[number], rows)
            return
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        for own, places in zip(np.split(rows, cuts), np.split(at, cuts), strict=True):
            block = int(shard.head.blocks_of(own[:1])[0])
            with SuppressCorruption() as skipped:
                self._take(places, own, [shard.blocks.load(block)])
            if skipped.error is not None:
                self._damage.note(skipped.error, self._component.source, shard.key, own)
            if isinstance(skipped.error, NotFoundError):
                pool.remember_missing(number, skipped.error)
                self._damage.note(skipped.error, self._component.source, shard.key, rows[rows > own[-1]])
                return

    def _at(self, piece: int) -> NDArray[np.int64]:
        stop = self._ends[piece]
        return np.arange(stop - len(self._rows[piece]), stop)

    def _take(
        self, at: NDArray[np.int64], rows: NDArray[np.int64], blocks: Sequence[kernels.OpenBlock]
    ) -> None:
        """Find rows, ascending, in the blocks that they are in."""
        first, stop = int(rows[0]), int(rows[-1]) + 1
        places = [block.places(first, stop) for block in blocks]
        counts = [each.shape[1] for each in places]
        starts, stops = np.concatenate(places, axis=1)
        numbers = np.repeat([self._number(block.buffer) for block in blocks], counts)
        if len(rows) < stop - first:
            # Where each block's first place is, less the row that it is of.
            own = np.cumsum([0, *counts[:-1]]) - [max(block.first_row, first) for block in blocks]
            last = [block.first_row + len(block) for block in blocks]
            items = rows + own[np.searchsorted(last, rows, side="right")]
            numbers, starts, stops = numbers[items], starts[items], stops[items]
        self._place(at, numbers, starts, stops)

    def _number(self, buffer: Buffer) -> int:
        # Blocks of a mapped shard share its map.
        number = self._numbers.setdefault(id(buffer), len(self.buffers))
        if number == len(self.buffers):
            self.buffers.append(buffer)
        return number

    def _place(
        self,
        at: NDArray[np.int64],
        number: int | NDArray[np.int64],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> None:
        self.table[0, at], self.table[1, at], self.table[2, at] = number, starts, stops


def _physical(component: Component, number: int, start: int, stop: int) -> NDArray[np.int64]:
    """Return the rows in a shard of live rows `start .. stop - 1` of what the stream takes of it."""
    return _stored(component, number, component.live_rows(number, start, stop))


def _stored(component: Component, number: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return live rows of a shard as they are numbered with those that are deleted."""
    deleted = component.source.pool.deleted(number)
    return rows if deleted is None else live_to_physical(rows, deleted)
