"""Windows in memory: the rows among which the second shuffle moves records, fetched, checked and decoded.

A window is a table of where each of its payloads is in a few buffers.  Blocks of mapped shards are checked
and left in place; other blocks are read and decoded.  Nothing is copied per record.  Records of local shards
that are large enough to be read one by one are not even read: the window is a table of where they are in
their files, the system is asked to fetch them into its cache, and `read_rows` reads and checks them when they
are delivered.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from shardio import kernels
from shardio.errors import NotFoundError, StorageError
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL
from shardio.metadata import live_to_physical
from shardio.order import select_rows
from shardio.reader import (
    FetchedFrames,
    RowRun,
    SuppressCorruption,
    advise_frames,
    begin_frames,
    begin_frames_of,
    frames_in_cache,
    lookup_alone,
    read_frames,
    read_records,
)
from shardio.storage import ShortReadError, advise_need
from shardio.streaming._tuning import TUNING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardio.format import Buffer
    from shardio.order import Pieces
    from shardio.reader import Damage, FetchedRun, OpenShard, ShardPool
    from shardio.storage import NamedFile
    from shardio.streaming._components import Component
    from shardio.streaming._scratch import ScratchPart, ScratchSpace

_FRAME_FIELDS = 4
_FRAME_BYTES = 8 * _FRAME_FIELDS
# Places of frames and payloads are 32 bits where they are dealt.
_MOST_DEALT = 1 << 32
# Memory that a fork copies, as any other; what Python maps by default a child would share.
_OWN = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


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


def _mapped(size: int) -> NDArray[np.uint8]:
    """Return memory that goes back to the system at once with its last reference."""
    if size < 2 * TUNING.huge_page or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, max(1, size), **_OWN)
        advise_need(memoryview(memory), 0, size)
        return np.frombuffer(memory, np.uint8, size)
    # The first touch of 512 pages costs eight times what one of a huge page does. Linux puts a map where its
    # huge pages begin if it has a whole number of them.
    memory = mmap.mmap(-1, -(-size // TUNING.huge_page) * TUNING.huge_page, **_OWN)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size)


class Memory:
    """Memory for windows, used again, because the system clears new pages before it hands them out.

    Windows that were fetched together end in bursts, so memory that they leave is kept: what is in use and
    what is kept is together no more than what was once in use. The threads of a pass share it.

    Args:
        mapped: what is not kept goes back to the system at once. Parts of windows end in another order than
            they began in, so that `malloc` would keep what is between; of whole ones it keeps what is wanted
            again.
        most: bytes that are kept at most; None for no other bound.
    """

    def __init__(self, *, mapped: bool, most: int | None = None) -> None:
        self._is_mapped = mapped
        self._keeps = most
        self._lock = threading.Lock()
        # What was given back, which the collector may do in the middle of anything, and so without the lock.
        self._back: deque[NDArray[np.uint8]] = deque()
        # By size, which are few; and how many bytes are kept, in use, and were in use at most.
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._kept = self._used = self._most = 0

    def take(self, size: int) -> LeasedMemory:
        """Return memory of at least so many bytes, and at most an eighth more, or 64 KiB.

        Of mapped memory up to twice as much, where more would have to be asked for than was once in use.
        """
        with self._lock:
            self._take_back()
            room = self._most - self._used - self._kept
            most = size + (size if room < size and self._is_mapped else max(size // 8, TUNING.least_memory))
            fits = min((many for many in self._free if size <= many <= most), default=None)
            if fits is None:
                # A little more than is wanted now, so that it does for what is wanted later.
                step = max(TUNING.least_memory, 1 << max(0, size.bit_length() - 5))
                fits = -(-size // step) * step
                memory = None
            else:
                memory = self._pop(fits)
            self._used += fits
            self._most = max(self._most, self._used)
            while self._used + self._kept > self._most:
                self._pop(next(iter(self._free)))
        if memory is None:
            memory = _mapped(fits) if self._is_mapped else np.empty(fits, np.uint8)
        return LeasedMemory(self, memory)

    def _pop(self, size: int) -> NDArray[np.uint8]:
        memory = self._free[size].pop()
        if not self._free[size]:
            del self._free[size]
        self._kept -= size
        return memory

    def _take_back(self) -> None:
        while self._back:
            memory = self._back.popleft()
            self._used -= len(memory)
            if self._keeps is None or self._kept + len(memory) <= self._keeps:
                self._free.setdefault(len(memory), []).append(memory)
                self._kept += len(memory)

    def give_back(self, memory: NDArray[np.uint8]) -> None:
        """Keep memory that nothing refers to any more."""
        self._back.append(memory)
        if self._lock.acquire(blocking=False):  # else who has it may be this thread; it is kept later
            try:
                self._take_back()
            finally:
                self._lock.release()


class LeasedMemory:
    """Memory that is given back when nothing refers to this any more.

    Attributes:
        bytes: uint8 array; a view of it does not keep this alive.
    """

    def __init__(self, owner: Memory, memory: NDArray[np.uint8]) -> None:
        self.bytes = memory
        self._owner = owner

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What `numpy.asarray` looks at: the same bytes, whose views keep this alive."""
        return self.bytes.__array_interface__

    def __del__(self) -> None:
        self._owner.give_back(self.bytes)


def load_window(
    component: Component,
    pieces: Pieces,
    damage: Damage,
    memory: Memory | None = None,
    *,
    unread: bool = False,
    scratch: ScratchSpace | None = None,
    in_cache: bool = False,
    alone: bool = False,
) -> WindowData:
    """Fetch, check and decode the rows of windows.

    What is in mapped shards is found in one go a shard; the rest is asked for at once, then taken in turn.

    Args:
        component: the dataset.
        pieces: which rows.
        damage: what to do about it.
        memory: hold the payloads alone, in memory of their own that may be this, and let the pages of mapped
            shards go.
        unread: leave records where they are, if they can be read one by one.
        scratch: keep them in this file of a local disk, if it takes them and none is skipped.
        in_cache: instead, leave those of shards that are not compressed in the cache, if it has them all.
        alone: fetch records without their blocks, where they can be compared so.

    Raises:
        CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, where it is not to be skipped.
        StorageError: the environment failed.
    """
    if unread:
        data = _found(component, pieces)
        if data is not None:
            return data
    if alone and not damage.skips:
        data = _without_blocks(component, pieces)
        if data is not None:
            return data
    if memory is not None:
        # Skipping goes block by block, below.
        with SuppressCorruption(skips=damage.skips):
            data = _copied(component, pieces, memory)
            if data is not None:
                return data
    fetched = None if memory is None else _fetched(component, pieces, damage)
    if scratch is not None:
        frames = _whole_frames(component, pieces, damage, fetched)
        places = _in_cache(component, pieces) if in_cache and frames is not None else None
        data = None if frames is None else _put_down(frames, component, pieces, scratch, places)
        if data is not None:
            return data
    if fetched is not None and memory is not None:
        part = np.zeros(int((pieces.stops - pieces.starts).sum()), np.int64)
        dealt = _dealt(fetched, component, pieces, damage, part, [None], memory)
        if dealt is not None:
            return dealt[0]
    if memory is None and _is_opened_later(component, pieces, damage):
        loading = _Loading(component, pieces, damage)
        return WindowData(
            loading.buffers, loading.table, component, pieces, later=_Later(loading, pieces.shards)
        )
    loading = _loaded(component, pieces, damage, fetched)
    if memory is None:
        return WindowData(loading.buffers, loading.table, component, pieces)
    data = _alone(loading, component, pieces, memory)
    loading.end()
    return data


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


def _whole_frames(
    component: Component,
    pieces: Pieces,
    damage: Damage,
    fetched: list[list[FetchedFrames] | None] | None,
) -> list[FetchedFrames] | None:
    """Return the frames of pieces, compared; None where some are damaged, if that is to be skipped.

    Args:
        component, pieces, damage: the dataset, which rows, and what to do about damage.
        fetched: of the pieces, as `_fetched` returns them; else frames are made of payloads.
    """
    if fetched is None:
        return _framed(_loaded(component, pieces, damage))
    if any(each is None for each in fetched):
        return None
    found: list[FetchedFrames] = []
    for frames in itertools.chain.from_iterable(each for each in fetched if each is not None):
        right = [frames]
        if frames.again is not None and frames.in_wrong_blocks().any():
            with SuppressCorruption(skips=damage.skips) as skipped:
                right = frames.again()
            if skipped.error is not None:
                return None
        found += right
    return found


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
    masked = kernels.mask_crc(kernels.crc32c_many(data, starts, stops).astype(np.int64))
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
    frames: Sequence[FetchedFrames],
    component: Component,
    pieces: Pieces,
    scratch: ScratchSpace,
    places: _Places | None,
) -> WindowData | None:
    """Return where frames are on a local disk; None where it does not take them.

    Args:
        frames: compared.
        component, pieces: what they are.
        scratch: what they are written to.
        places: where they are already.
    """
    edges = [each.edges.astype(np.int64) for each in frames]
    views = [memoryview(each.buffer).cast("B") for each in frames]
    sizes = np.concatenate([np.diff(own) for own in edges])
    part = None
    if places is None:
        part = scratch.write([view[own[0] : own[-1]] for view, own in zip(views, edges, strict=True)])
        if part is None:
            return None
        # One after another, as they are in their buffers.
        places = _Places([part.file], np.zeros_like(sizes), part.start + np.cumsum(sizes) - sizes)
    table = np.empty((sizes.size, _FRAME_FIELDS), np.int64)
    table[:, 0], table[:, 1] = places.which, places.starts
    table[:, 2] = sizes - TFRECORD_HEAD - TFRECORD_TAIL
    low = 0
    for view, own in zip(views, edges, strict=True):
        # The last four bytes of each frame are the checksum of its payload.
        tails = np.frombuffer(view, np.uint8)[own[1:, None] + np.arange(-TFRECORD_TAIL, 0)]
        table[low : low + len(tails), 3] = tails.view("<u4")[:, 0]
        low += len(tails)
    return WindowData(places.files, table, component, pieces, part, unread=True)


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


def open_rows(which: NDArray[np.int64], rows: NDArray[np.int64], windows: list[WindowData]) -> None:
    """Open the shards of rows where windows leave that for later.

    Args:
        which: int64[rows], the number of each row's window.
        rows: int64[rows], the number of each row in its window.
        windows: their data.

    Raises:
        CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, where it is not to be skipped.
        StorageError: the environment failed.
    """
    for number, window in enumerate(windows):
        if window.later is not None:
            window.later.open(rows[which == number])


def load_parts(
    component: Component, pieces: Pieces, damage: Damage, part: NDArray[np.int64], memory: Memory
) -> list[WindowData]:
    """Fetch, check and decode the rows of windows, each part of them in memory of its own.

    Args:
        component, pieces, damage: the dataset, which rows, and what to do about damage.
        part: int64 [rows], the number of the part that each row belongs to, from 0 on.
        memory: for what is fetched and need not be decoded.

    Returns:
        What each part holds, its rows in the order of the pieces.

    Raises:
        CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, where it is not to be skipped.
        StorageError: the environment failed.
    """
    order = np.argsort(part, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(part))[:-1])
    fetched = _fetched(component, pieces, damage)
    if fetched is not None:
        dealt = _dealt(fetched, component, pieces, damage, part, rows, memory)
        if dealt is not None:
            return dealt
    loading = _loaded(component, pieces, damage, fetched)
    found = [_alone(loading, component, pieces, memory, own) for own in rows]
    loading.end()
    return found


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
            run = RowRun(shard, int(rows[0]), int(rows[-1]) + 1)
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
    together = begin_frames(runs)
    if together is not None:
        for piece, wait in zip(wanted, together(), strict=True):
            with _Remembered(pool, numbers[piece], damage):
                found[piece] = wait()
        return found
    by_shard: dict[int, list[int]] = {}
    for k, piece in enumerate(wanted):
        by_shard.setdefault(numbers[piece], []).append(k)
    waiting = []
    for number, own in by_shard.items():
        shard = runs[own[0]].shard
        begun = begin_frames_of([runs[k] for k in own])
        if pool.is_local(number):
            # Nothing is under way meanwhile, and a shard that waits holds descriptors.
            _put(found, number, [wanted[k] for k in own], begun, pool, damage)
            shard.drop_pages()
        else:
            waiting.append((number, [wanted[k] for k in own], begun))
    for number, places, begun in waiting:
        _put(found, number, places, begun, pool, damage)
    return found


def _put(
    found: list[list[FetchedFrames] | None],
    number: int,
    places: list[int],
    wait: Callable[[], list[list[FetchedFrames]]],
    pool: ShardPool,
    damage: Damage,
) -> None:
    with _Remembered(pool, number, damage):
        for piece, each in zip(places, wait(), strict=True):
            found[piece] = each


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
    damage: Damage,
    part: NDArray[np.int64],
    rows: Sequence[NDArray[np.int64] | None],
    memory: Memory,
) -> list[WindowData] | None:
    """Return the payloads of frames, each part of them in memory that is used again.

    Args:
        fetched: of the pieces, as `_fetched` returns them.
        component, pieces, damage: the dataset, which rows, and what to do about damage.
        part: int64 [rows], the number of the part that each row belongs to, from 0 on.
        rows: the rows of each part; None for all.
        memory: for the payloads.

    Returns:
        None where some are damaged, if that is to be skipped: it goes block by block.
    """
    if any(each is None for each in fetched):
        return None
    frames = list(itertools.chain.from_iterable(each for each in fetched if each is not None))
    edges = [each.edges for each in frames]
    # Between the frames of two buffers nothing is one.
    seams = np.cumsum([each.size for each in edges])[:-1] - 1
    lengths = np.delete(np.diff(np.concatenate(edges)), seams) - np.uint32(TFRECORD_HEAD + TFRECORD_TAIL)
    # Exact: all of them are less than what a float holds.
    sizes = np.bincount(part, lengths, minlength=len(rows)).astype(np.int64).tolist()
    leased = [memory.take(size) for size in sizes]
    outs = [lease.bytes[:size] for lease, size in zip(leased, sizes, strict=True)]
    while isinstance(tables := _partition_frames(frames, part, outs), int):
        again = frames[tables].again
        assert again is not None  # noqa: S101 - for the type checker; what is compared can be fetched again
        with SuppressCorruption(skips=damage.skips) as skipped:
            frames[tables : tables + 1] = again()
        if skipped.error is not None:
            return None
    return [
        WindowData([memoryview(values)], table, component, pieces, lease, rows=own)
        for values, table, lease, own in zip(outs, tables, leased, rows, strict=True)
    ]


def _partition_frames(
    frames: Sequence[FetchedFrames], part: NDArray[np.int64], outs: Sequence[NDArray[np.uint8]]
) -> list[NDArray[np.uint32]] | int:
    return kernels.partition_frames(
        [each.buffer for each in frames],
        [each.edges for each in frames],
        [(each.stops, each.crcs) for each in frames],
        part,
        outs,
    )


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


def read_rows(
    which: NDArray[np.int64],
    rows: NDArray[np.int64],
    windows: list[WindowData],
    damage: Damage,
    memory: Memory,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read and check rows of windows that are not read yet.

    Args:
        which: int64[rows], the number of each row's window.
        rows: int64[rows], the number of each row in its window.
        windows: their data.
        damage: what to do about it.
        memory: for the payloads, if they are many bytes; given back with the last view of them.

    Returns:
        The payloads, uint8, in the order of the rows, and int64[rows + 1], where each begins.

    Raises:
        CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage.
        StorageError: the environment failed.
    """
    files, frames = _locate_frames(which, rows, windows)
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(frames[:, 2], out=offsets[1:])
    size = int(offsets[-1])
    values = (
        np.asarray(memory.take(size))[:size] if size >= 2 * TUNING.huge_page else np.empty(size, np.uint8)
    )
    with _explained(windows, len(rows)) as left:
        left.extend(read_frames(files, frames, values, offsets))
    for place, payload in _read_by_map(left, which, rows, windows, damage):
        values[offsets[place] : offsets[place + 1]] = payload
    return values, offsets


def read_row_records(
    which: NDArray[np.int64], rows: NDArray[np.int64], windows: list[WindowData], damage: Damage
) -> list[bytes]:
    """Do what `read_rows` does, and return each payload as an object of its own, read to where it stays."""
    files, frames = _locate_frames(which, rows, windows)
    records = [b""] * len(rows)
    with _explained(windows, len(rows)) as left:
        records, some = read_records(files, frames)
        left.extend(some)
    for place, payload in _read_by_map(left, which, rows, windows, damage):
        records[place] = payload.tobytes()
    return records


@contextlib.contextmanager
def _explained(windows: list[WindowData], rows: int) -> Iterator[list[tuple[slice, bool]]]:
    """Raise what the shard says of it where a file of windows ends too early.

    Yields:
        A list for what `read_frames` returns: all rows, where a file of scratch or of a cache failed.
    """
    left: list[tuple[slice, bool]] = []
    try:
        yield left
    except StorageError as error:
        if any(error.url == file.url for each in windows if each.is_copied for file in each.buffers):
            left[:] = [(slice(0, rows), False)]
        elif isinstance(error, ShortReadError):
            raise _shard_at(error.url, windows).explain(error) from error
        else:
            raise


def _read_by_map(
    left: list[tuple[slice, bool]],
    which: NDArray[np.int64],
    rows: NDArray[np.int64],
    windows: list[WindowData],
    damage: Damage,
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield place and payload of rows that `read_frames` left, read by the maps of their shards.

    Blocks are compared when they are first met, which says what is wrong; and again where something is.
    """
    for some, wrong in left:
        for number in np.unique(which[some]).tolist():
            own = some.start + np.flatnonzero(which[some] == number)
            component, pieces = windows[number].component, windows[number].pieces
            wanted = np.zeros(len(windows[number].table), bool)
            wanted[rows[own]] = True
            pieces, order = select_rows(pieces, wanted, exact=True)
            for shard, found in _by_shard(component, pieces) if wrong else ():
                in_place = component.source.pool.get(shard).in_place
                assert in_place is not None  # noqa: S101 - for the type checker; records stay in such files
                in_place.invalidate_verified(found)
            loading = _loaded(component, pieces, damage)
            values, edges = kernels.gather_from(loading.buffers, *loading.table[:, order[rows[own]]])
            loading.end()
            for k, place in enumerate(own.tolist()):
                yield place, values[edges[k] : edges[k + 1]]


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
    table = np.empty((sum(each.starts.size for each in frames), _FRAME_FIELDS), np.int64)
    table[:, 0] = np.repeat(np.arange(len(frames)), [each.starts.size for each in frames])
    np.concatenate([each.starts for each in frames], out=table[:, 1])
    np.concatenate([each.lengths for each in frames], out=table[:, 2])
    np.concatenate([each.crcs for each in frames], out=table[:, 3])
    advise_frames(frames)
    return WindowData([each.file for each in frames], table, component, pieces, unread=True)


def _locate_frames(
    which: NDArray[np.int64], rows: NDArray[np.int64], windows: list[WindowData]
) -> tuple[list[NamedFile], NDArray[np.int64]]:
    """Return the files of all windows, and of each row what `read_frames` takes; see `read_rows`."""
    numbers: dict[NamedFile, int] = {}
    # By window and number of a file in it, where the first of a window is, and the file's number among all.
    first: list[int] = []
    own: list[int] = []
    for window in windows:
        first.append(len(own))
        own += [numbers.setdefault(file, len(numbers)) for file in window.buffers]
    starts = rows * _FRAME_BYTES
    found, _ = kernels.gather_from([each.table for each in windows], which, starts, starts + _FRAME_BYTES)
    frames = found.view(np.int64).reshape(-1, _FRAME_FIELDS)
    frames[:, 0] = np.array(own)[np.array(first)[which] + frames[:, 0]]
    return list(numbers), frames


def _shard_at(url: str | None, windows: list[WindowData]) -> OpenShard:
    """Return the shard of windows whose file is at an address."""
    for window in windows:
        pool = window.component.source.pool
        for number in np.unique(window.pieces.shards).tolist():
            if pool.url_of(number) == url:
                return pool.get(number)
    raise AssertionError(f"{url} is not a shard of these windows")


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
    if offsets[-1] >= 1 << 32:
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
    if not which.size or (which < 0).any() or offsets[-1] >= 1 << 32:
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
        """Take what there is of a piece already, and of what is not right the blocks that are."""
        rows, at = self._rows[piece], self._at(piece)
        if fetched is None:
            self._salvage(self._shards[piece], rows, at)
            return
        low = 0
        for each in fetched:
            edges = each.edges.astype(np.int64)
            here = slice(low, low + edges.size - 1)
            low = here.stop
            wrong = each.in_wrong_blocks()
            right = np.flatnonzero(~wrong)
            starts, stops = edges[right] + TFRECORD_HEAD, edges[right + 1] - TFRECORD_TAIL
            self._place(at[here][right], self._number(each.buffer), starts, stops)
            if wrong.any():
                self._salvage(self._shards[piece], rows[here][wrong], at[here][wrong])

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


def locate_rows(
    which: NDArray[np.int64], rows: NDArray[np.int64], windows: list[WindowData]
) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the buffers of all windows, and int64[3, rows]: each row's buffer, start and stop.

    Args:
        which: int64[rows], the number of each row's window.
        rows: int64[rows], the number of each row in its window.
        windows: their data, read.
    """
    buffers: list[Any] = []
    numbers: dict[int, int] = {}
    order = np.argsort(which, kind="stable") if len(windows) > 1 else slice(None)
    local = rows[order]
    table = np.empty((3, len(local)), np.int64)
    low = 0
    for window, count in zip(windows, np.bincount(which, minlength=len(windows)).tolist(), strict=True):
        part = table[:, low : low + count]
        window.places(local[low : low + count], part)
        # The same map is behind many windows; each buffer is handed over once.
        own = []
        for buffer in window.buffers:
            number = numbers.setdefault(id(buffer), len(buffers))
            if number == len(buffers):
                buffers.append(buffer)
            own.append(number)
        if own != list(range(len(own))):
            # The last entry is what -1, a row that is skipped, points to.
            part[0] = np.array([*own, -1])[part[0]]
        low += count
    out = np.empty_like(table)
    out[:, order] = table
    return buffers, out


def _physical(component: Component, number: int, start: int, stop: int) -> NDArray[np.int64]:
    """Return the rows in a shard of live rows `start .. stop - 1` of what the stream takes of it."""
    return _stored(component, number, component.live_rows(number, start, stop))


def _stored(component: Component, number: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return live rows of a shard as they are numbered with those that are deleted."""
    deleted = component.source.pool.deleted(number)
    return rows if deleted is None else live_to_physical(rows, deleted)
