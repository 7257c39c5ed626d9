"""The lanes of one dataset in one epoch under an interleaved plan: each lane reads many chunks side by side.

Everything is arithmetic: chunks are runs of equally many positions in an order that is computed, a lane is
cut into strands, and round i of a lane takes the i-th record of each of its strands, in another order each
round.  It holds some numbers for each strand, and the permutation of the window in use of each.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from shardio.kernels import shuffle_ranges
from shardio.order._keys import Array, Words, key
from shardio.order._permutation import Permutation
from shardio.order._windows import (
    GOLDEN,
    Pieces,
    RowLocations,
    Rows,
    Window,
    Windows,
    lane_edges,
    runs_of_positions,
)

if TYPE_CHECKING:
    from shardio.order._plan import Plan
    from shardio.order._sizes import ShardSizes

__all__ = ["InterleavedEpoch"]

_KEPT_ROWS = 1 << 25  # of all windows in use; above, permutations are made again each time


class _Found(NamedTuple):
    """Where rows stand: strand, first place and rows of the window, row in it, from places to positions."""

    strand: Array
    first: Array
    rows: Array
    row: Array
    shift: Array


class InterleavedEpoch:
    """Hold the order of one dataset in one epoch; the same questions as `Epoch` answers.

    Args:
        sizes: the shards.
        plan: an interleaved one.
        seed, epoch: any integers in [0, 2**64).
        shuffle: False makes all permutations the identity.
        source, cycle: which source of a mixture this is, and how often it had ended before.

    Attributes:
        ranks, workers: C and T of the plan.
        lane_lengths: rows of each lane, int64 [C * T]; lane (t, c) has number t * C + c.
        readers: number of strands of all lanes, each of which has one window in use; of the one source.

    Threads may share one: a race costs a permutation made twice, never another order.
    """

    def __init__(
        self,
        sizes: ShardSizes,
        plan: Plan,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        source: int = 0,
        cycle: int = 0,
    ) -> None:
        self.sizes = sizes
        self.plan = plan
        self.ranks, self.workers = plan.ranks, plan.workers
        self._shuffle = shuffle
        self._source, self._cycle = source, cycle
        fields = (seed, epoch, source, cycle)
        lanes = plan.lanes
        rows, m, strands = sizes.total_rows, plan.chunk_rows, plan.interleave
        self.readers: tuple[int, ...] = (lanes * strands,)
        self._edges = lane_edges(rows, lanes)
        self.lane_lengths: Array = np.diff(self._edges)
        self._lay_chunks(rows, m, fields)
        self._rounds, self._places = key("rounds", *fields), key("places", *fields)
        # Strand j of a lane of n rows has n // J of them, and one more if j < n % J.
        q, r = np.divmod(self.lane_lengths, strands)
        number = np.arange(strands, dtype=np.int64)
        self._strand_rows: Array = (q[:, None] + (number < r[:, None])).reshape(-1)
        starts = self._edges[:-1, None] + number * q[:, None] + np.minimum(number, r[:, None])
        self._strand_starts: Array = starts.reshape(-1)
        self._turn = self._turns()
        wide = np.uint16 if plan.window <= 1 << 16 else np.uint32
        width = min(plan.window, int(self._strand_rows.max(initial=0)))
        self._kept: npt.NDArray[np.integer] | None = None
        if width > 1 and width * self.readers[0] <= _KEPT_ROWS:
            self._kept = np.empty((self.readers[0], width), wide)
        self._kept_first = np.full(self.readers[0], -1, np.int64)
        self._keeping = threading.Lock()

    def _lay_chunks(self, rows: int, m: int, fields: tuple[int, ...]) -> None:
        """Set the order of the chunks, of which the last, short one stands at one place of it."""
        self.chunks = -(-rows // m)
        self._order = Permutation.of_key(self.chunks, "sequence", *fields) if self._shuffle else None
        self._gap = self.chunks * m - rows
        last = max(0, self.chunks - 1)
        where = int(self._order.inverse([last])[0]) if self._order is not None and self.chunks else last
        self._short = where if self._gap else -1
        self._gap_from = where * m + m - self._gap  # places from here on count as if the chunk were whole

    def _turns(self) -> Array:
        """Return by how many rows each strand's first place is moved on, so that chunks end evenly."""
        m, strands = self.plan.chunk_rows, self.plan.interleave
        first = np.ones((self.plan.lanes, strands), np.int64)
        if m > 1:
            counts = np.minimum(self.lane_lengths, strands)
            order = self._shuffles(self._rounds, self._edges[:-1], counts).astype(np.int64)
            lane = np.repeat(np.arange(self.plan.lanes), counts)
            slot = np.arange(order.size) - np.repeat(np.cumsum(counts) - counts, counts)
            lag = lane * GOLDEN % (1 << 32) >> 16
            first[lane, order] = 1 + (slot * (1 << 16) + lag) * m // (strands << 16)
        wanted = (m - first.reshape(-1) - self._virtual(self._strand_starts)) % m
        return wanted % np.maximum(self._strand_rows, 1)

    def _virtual(self, places: Array) -> Array:
        """Return places as they would be if the short chunk had m rows like all others."""
        return places + np.where(places >= self._gap_from, self._gap, 0)

    def _shuffles(self, words: Words, starts: Array, counts: Array) -> npt.NDArray[np.uint32]:
        if self._shuffle:
            return shuffle_ranges(words, starts, counts)
        total = int(counts.sum())
        return (np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.uint32)

    def _strands(self, lane: Array, place: Array) -> tuple[Array, Array]:
        """Return the round of each place of a lane, and the strand, counted over all lanes, that it takes."""
        strands = self.plan.interleave
        if strands == 1:
            return place, lane
        turn = place // strands
        slot = place - turn * strands
        # Rows come in runs of places of a lane, so that most rounds are those of the row before.
        new = np.ones(turn.size, bool)
        new[1:] = (turn[1:] != turn[:-1]) | (lane[1:] != lane[:-1])
        heads = np.flatnonzero(new)
        own_lane, own_turn = lane[heads], turn[heads]
        begin = own_turn * strands
        counts = np.minimum(strands, self.lane_lengths[own_lane] - begin)
        order = self._shuffles(self._rounds, self._edges[own_lane] + begin, counts)
        offset = np.cumsum(counts) - counts
        slot += offset[np.cumsum(new) - 1]
        return turn, lane * strands + order[slot]

    def _find(self, parts: Array) -> _Found:
        counts = parts[:, 2] - parts[:, 1]
        lane = np.repeat(parts[:, 0], counts)
        place = np.arange(lane.size) + np.repeat(parts[:, 1] - (np.cumsum(counts) - counts), counts)
        turn, strand = self._strands(lane, place)
        m, w = self.plan.chunk_rows, self.plan.window
        start, length, moved = self._strand_starts[strand], self._strand_rows[strand], self._turn[strand]
        at = turn + moved
        before = at >= length  # the rows before the place that the strand began with
        at -= np.where(before, length, 0)
        at += start
        chunk, within = np.divmod(self._virtual(at), m)
        if m == 1:
            shift = (chunk if self._order is None else self._order[chunk]) - at
            return _Found(strand, at, np.ones_like(at), np.zeros_like(at), shift)
        # A window ends with its run of w rows, with its chunk, with its strand, or where the strand began.
        first = within - within % w
        stop = np.minimum(first + w, m)
        base = at - within
        middle = start + moved
        low = np.maximum(base + first, np.where(before, start, middle))
        stop = base + np.where(chunk == self._short, np.minimum(stop, m - self._gap), stop)
        high = np.minimum(stop, np.where(before, middle, start + length))
        row = self._permuted(strand, low, high - low, at - low)
        number = chunk if self._order is None else self._order[chunk]
        return _Found(strand, low, high - low, row, number * m - base)

    def _permuted(self, strand: Array, low: Array, count: Array, row: Array) -> Array:
        """Return which row of its window stands at each row: the second shuffle."""
        if not self._shuffle:
            return row
        # A thread that does not get it makes its permutations anew; none waits, so that a fork does no harm.
        if self._kept is None or not self._keeping.acquire(blocking=False):
            return self._permuted_by(None, strand, low, count, row)
        try:
            return self._permuted_by(self._kept, strand, low, count, row)
        finally:
            self._keeping.release()

    def _permuted_by(
        self, kept: npt.NDArray[np.integer] | None, strand: Array, low: Array, count: Array, row: Array
    ) -> Array:
        if kept is None:
            firsts, head, which = np.unique(low, return_index=True, return_inverse=True)
            counts = count[head]
            found = self._shuffles(self._places, firsts, counts)
            return np.asarray(found[(np.cumsum(counts) - counts)[which] + row], np.int64)
        known = self._kept_first[strand] == low
        out = kept[strand, row].astype(np.int64)
        missing = np.flatnonzero(~known)
        if missing.size:
            firsts, head, which = np.unique(low[missing], return_index=True, return_inverse=True)
            head = missing[head]
            counts = count[head]
            found = self._shuffles(self._places, firsts, counts)
            offsets = np.cumsum(counts) - counts
            out[missing] = found[offsets[which] + row[missing]]
            self._keep(kept, strand[head], firsts, head, counts, offsets, found)
        return out

    def _keep(
        self,
        kept: npt.NDArray[np.integer],
        strand: Array,
        firsts: Array,
        head: Array,
        counts: Array,
        offsets: Array,
        found: npt.NDArray[np.uint32],
    ) -> None:
        """Keep the permutation of the latest window of each strand."""
        order = np.lexsort((head, strand))
        latest = np.ones(order.size, bool)
        latest[:-1] = strand[order[1:]] != strand[order[:-1]]
        use = order[latest]
        many = counts[use]
        column = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
        kept[np.repeat(strand[use], many), column] = found[np.repeat(offsets[use], many) + column]
        self._kept_first[strand[use]] = firsts[use]

    def chunks_of(self, positions: Array) -> Array:
        """Return the number of the chunk of each position."""
        return positions // self.plan.chunk_rows

    def window_count(self) -> int:
        """Return how many windows there are."""
        m, w = self.plan.chunk_rows, self.plan.window
        rows = self.sizes.total_rows
        whole = self.chunks * -(-m // w) - (-(-m // w) - -(-(m - self._gap) // w) if self.chunks else 0)
        # Strands begin, and are gone into, in the middle of a window, which is then two.
        some = self._strand_rows > 0
        starts = self._strand_starts[some]
        cuts = np.unique(np.concatenate([starts, starts + self._turn[some]]))
        inside = self._virtual(cuts[cuts < rows]) % m % w != 0
        return whole + int(np.count_nonzero(inside))

    def piece_count(self) -> int:
        """Return how many pieces all windows have: what an epoch asks for, one request each."""
        edges = np.unique(self.sizes.edges[1:-1])
        edges = edges[(edges > 0) & (edges < self.sizes.total_rows)]
        return self.window_count() + int(np.count_nonzero(edges % self.plan.chunk_rows % self.plan.window))

    def record_pieces(self, source: int, positions: Array) -> Pieces:  # noqa: ARG002 - there is one source
        """Return which rows of which shards records are, one piece each."""
        return runs_of_positions(self.sizes, positions, np.ones_like(positions))

    def together(self, source: int, rows: int) -> int:  # noqa: ARG002 - there is one source
        """Return how many windows one call should fetch, if it is to fetch so many rows."""
        return max(1, rows // self.plan.window)

    def positions(self, parts: Array) -> Array:
        """Return the positions of the records in `parts`, one part after another.

        Args:
            parts: int64 [n, 3] of (lane, start, stop): places [start, stop) of a lane.
        """
        found = self._find(parts)
        return found.first + found.row + found.shift

    def rows(self, parts: Array) -> Rows:
        """Return the records of `parts` (as in `positions`) with their source and cycle."""
        positions = self.positions(parts)
        return Rows(positions, np.full_like(positions, self._source), np.full_like(positions, self._cycle))

    def locate(self, parts: Array) -> RowLocations:
        """Return where the records of `parts` are in the windows that hold them, in the order of need."""
        found = self._find(parts)
        firsts, head, which = np.unique(found.first, return_index=True, return_inverse=True)
        need = np.argsort(head, kind="stable")
        rank = np.empty_like(need)
        rank[need] = np.arange(need.size)
        strand = found.strand[head[need]]
        lane = strand // self.plan.interleave
        windows = Windows(
            np.full_like(lane, self._source), np.full_like(lane, self._cycle), lane, firsts[need], strand
        )
        return RowLocations(windows, rank[which.reshape(-1)], found.row)

    def pieces(self, window: Window) -> Pieces:
        """Return which rows of which shards a window holds, in storage order."""
        one = Windows(*(np.array([each]) for each in (*window, 0)))
        return self.many_pieces(one)[0]

    def many_pieces(self, windows: Windows) -> tuple[Pieces, Array]:
        """Return the pieces of several windows one after another, and how many rows each window holds."""
        firsts = windows.number
        strand = np.searchsorted(self._strand_starts, firsts, side="right") - 1
        m, w = self.plan.chunk_rows, self.plan.window
        start, middle = self._strand_starts[strand], self._strand_starts[strand] + self._turn[strand]
        chunk, within = np.divmod(self._virtual(firsts), m)
        base = firsts - within
        stop = np.minimum(within - within % w + w, m)
        stop = base + np.where(chunk == self._short, np.minimum(stop, m - self._gap), stop)
        stop = np.minimum(stop, np.where(firsts < middle, middle, start + self._strand_rows[strand]))
        number = chunk if self._order is None else self._order[chunk]
        positions = firsts + number * m - base
        counts = stop - firsts
        return runs_of_positions(self.sizes, positions, counts), counts
