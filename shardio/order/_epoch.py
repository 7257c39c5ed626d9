"""The lanes of one dataset in one epoch: chunks in a random order, cut into lanes, shuffled again in windows.

`Epoch` answers which record is at which place of which lane, and which rows of which shards a window
needs.  It holds two int64 per chunk and the permutation of the window in use of each lane; every question
costs O(log chunks), wherever in the epoch it is asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from shardio.order._keys import Array, permutation
from shardio.order._plan import Plan
from shardio.order._sizes import ShardSizes, chunk_counts, chunk_edges
from shardio.order._windows import (
    GOLDEN,
    Pieces,
    RowLocations,
    Rows,
    Windows,
    lane_edges,
    runs_of_positions,
)


def first_windows(lengths: Array, window: int) -> Array:
    """Return where the second window of each lane begins: 1 to `window`, spread evenly over any run of lanes.

    Were all first windows full, all lanes of a class would come to their next window at the same step, and a
    process would have to hold two windows of each.  A lane that fits into one window is not cut.
    """
    lag = np.arange(lengths.size, dtype=np.int64) * GOLDEN % (1 << 32)
    # The product may pass 2**63 for windows above 2**31 rows, but not 2**64.
    cut = (lag.astype(np.uint64) * np.uint64(window) >> np.uint64(32)).astype(np.int64)
    return np.where(lengths <= window, window, window - cut)


class BaseEpoch(ABC):
    """Hold what the order of one dataset in one epoch is made of, whatever the kind of its plan.

    Args:
        sizes: the shards.
        plan: its shape.
        seed, epoch: any integers in [0, 2**64).
        shuffle: False makes all permutations the identity.
        source, cycle: which source of a mixture this is, and how often it had ended before.

    Attributes:
        ranks, workers: C and T of the plan.
        lane_lengths: rows of each lane, int64 [C * T]; lane (t, c) has number t * C + c.
        readers: number of lanes, or of their strands, each of which has one window in use; of the one source.
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
        self.readers: tuple[int, ...] = (plan.lanes,)
        self._shuffle = shuffle
        self._source, self._cycle = source, cycle
        self._fields = (seed, epoch, source, cycle)
        self._edges = lane_edges(sizes.total_rows, plan.lanes)
        self.lane_lengths: Array = np.diff(self._edges)
        self._arrange()

    @abstractmethod
    def _arrange(self) -> None:
        """Find where chunks and windows are."""

    def record_pieces(self, source: int, positions: Array) -> Pieces:  # noqa: ARG002 - there is one source
        """Return which rows of which shards records are, one piece each."""
        return runs_of_positions(self.sizes, positions, np.ones_like(positions))

    def windows_at(self, source: int, cycle: int, positions: Array) -> Windows | None:  # noqa: ARG002
        """Return the window that holds each of some positions; None where windows are not runs of them."""
        return None

    @abstractmethod
    def positions(self, parts: Array) -> Array:
        """Return the positions of the records in `parts`, one part after another.

        Args:
            parts: int64 [n, 3] of (lane, start, stop): places [start, stop) of a lane.
        """

    def rows(self, parts: Array) -> Rows:
        """Return the records of `parts` (as in `positions`) with their source and cycle."""
        positions = self.positions(parts)
        return Rows(
            positions, same_number(self._source, positions.size), same_number(self._cycle, positions.size)
        )


def same_number(number: int, count: int) -> Array:
    """Return int64 [count] of one number; nearly always of zeros, which cost least."""
    found = np.zeros(count, np.int64)
    if number:
        found.fill(number)
    return found


class Epoch(BaseEpoch):
    """Hold the order of one dataset in one epoch under a windowed plan.

    Arguments are those of `BaseEpoch`.  Threads may share one: a race costs a permutation made twice, never
    another order.
    """

    def _arrange(self) -> None:
        self.window = self.plan.window
        self._first = first_windows(self.lane_lengths, self.window)
        # The same as lists: one number at a time is what the loop over the lanes of a step wants.
        self._starts, self._lengths, self._firsts = (
            each.tolist() for each in (self._edges, self.lane_lengths, self._first)
        )
        self._permutations: dict[int, tuple[int, int, npt.NDArray[np.uint32]]] = {}
        self._lay_chunks()

    def _lay_chunks(self) -> None:
        """Find the first place of each shuffled chunk, and what to add to its places to get positions."""
        edges = chunk_edges(self.sizes, chunk_counts(self.sizes, self.plan.chunk_bytes))
        if not self._shuffle:
            self._place_edges, self._shift = edges, np.zeros(edges.size - 1, np.int64)
            return
        order = permutation(edges.size - 1, "chunks", *self._fields)
        places = np.zeros(edges.size, np.int64)
        np.cumsum(np.diff(edges)[order], out=places[1:])
        shift = edges[:-1][order]
        shift -= places[:-1]
        self._place_edges, self._shift = places, shift

    def window_range(self, lane: int, number: int) -> tuple[int, int]:
        """Return the places [start, stop) of a window in its lane; the first and the last may be short."""
        stop = self._firsts[lane] + number * self.window
        return (stop - self.window if number else 0), min(stop, self._lengths[lane])

    def window_number(self, lane: int, place: int) -> int:
        """Return the number of the window that holds a place of a lane."""
        return int((place - self._firsts[lane]) // self.window + 1)

    def _window_at(self, lane: int, place: int) -> tuple[int, int, npt.NDArray[np.uint32]]:
        """Return the places [start, stop) of the window that holds a place, and its permutation."""
        # A lane is read forward, so its latest window is the only one worth keeping: 4 bytes per row in use.
        held = self._permutations.get(lane)
        if held is not None and held[0] <= place < held[1]:
            return held
        number = self.window_number(lane, place)
        start, stop = self.window_range(lane, number)
        order = permutation(stop - start, "window", *self._fields, lane, number).astype(np.uint32)
        self._permutations[lane] = (start, stop, order)
        return start, stop, order

    def _places(self, parts: Array) -> Array:
        """Return the places of the parts over all lanes, as they were before the second shuffle."""
        if not self._shuffle:
            runs = [np.arange(start, stop) + self._starts[lane] for lane, start, stop in parts.tolist()]
            return np.concatenate(runs) if runs else np.zeros(0, np.int64)
        found: list[npt.NDArray[np.uint32]] = []
        bases: list[int] = []
        counts: list[int] = []
        for lane, start, stop in parts.tolist():
            at = start
            while at < stop:
                low, high, order = self._window_at(lane, at)
                end = min(high, stop)
                found.append(order[at - low : end - low])
                bases.append(self._starts[lane] + low)
                counts.append(end - at)
                at = end
        if not found:
            return np.zeros(0, np.int64)
        places: Array = np.repeat(np.array(bases, np.int64), counts)
        places += np.concatenate(found)
        return places

    def positions(self, parts: Array) -> Array:
        """Return the positions of the records in `parts`, one part after another.

        Args:
            parts: int64 [n, 3] of (lane, start, stop): places [start, stop) of a lane.
        """
        places = self._places(parts)
        chunk = np.searchsorted(self._place_edges, places, side="right") - 1
        places += self._shift[chunk]
        return places

    def locate(self, parts: Array) -> RowLocations:
        """Return where the records of `parts` are in the windows that hold them."""
        # Parts with gaps between them, of one loader worker's steps, may share a window.
        found: dict[tuple[int, int], int] = {}
        sizes: list[int] = []
        which: list[int] = []
        local: list[npt.NDArray[np.integer]] = []
        for lane, start, stop in parts.tolist():
            at = start
            while at < stop:
                number = self.window_number(lane, at)
                low, high = self.window_range(lane, number)
                end = min(high, stop)
                order = self._window_at(lane, at)[2] if self._shuffle else np.arange(high - low)
                if (lane, number) not in found:
                    found[lane, number] = len(sizes)
                    sizes.append(high - low)
                which.append(found[lane, number])
                local.append(order[at - low : end - low])
                at = end
        window = np.repeat(np.array(which, np.int64), [each.size for each in local])
        lanes, numbers = np.array(list(found), np.int64).reshape(-1, 2).T
        source, cycle = np.full_like(lanes, self._source), np.full_like(lanes, self._cycle)
        rows = np.array(sizes, np.int64)
        nowhere, begin = np.full_like(lanes, -1), np.zeros_like(lanes)
        windows = Windows(source, cycle, lanes, numbers, lanes, rows, nowhere, begin)
        return RowLocations(windows, window, np.concatenate([np.zeros(0, np.int64), *local]).astype(np.int64))

    def many_pieces(self, windows: Windows) -> tuple[Pieces, Array]:
        """Return the pieces of several windows one after another, and how many rows each window holds."""
        ranges = [
            self.window_range(*each)
            for each in zip(windows.lane.tolist(), windows.number.tolist(), strict=True)
        ]
        found = [
            self.lane_pieces(lane, *each) for lane, each in zip(windows.lane.tolist(), ranges, strict=True)
        ]
        nothing = np.zeros(0, np.int64)
        pieces = Pieces(*(np.concatenate([nothing, *columns]) for columns in zip(*found, strict=True)))
        return pieces, np.array([stop - start for start, stop in ranges], np.int64)

    def lane_pieces(self, lane: int, start: int, stop: int) -> Pieces:
        """Return the rows that the places [start, stop) of a lane hold before the second shuffle.

        Whole windows only make sense: inside a window the second shuffle moves rows from piece to piece.
        """
        base = int(self._edges[lane])
        low, high = base + start, base + stop
        if low >= high:
            nothing = np.zeros(0, np.int64)
            return Pieces(nothing, nothing, nothing)
        first = int(np.searchsorted(self._place_edges, low, side="right")) - 1
        last = int(np.searchsorted(self._place_edges, high, side="left"))
        shift = self._shift[first:last]
        starts = np.maximum(self._place_edges[first:last], low) + shift
        stops = np.minimum(self._place_edges[first + 1 : last + 1], high) + shift
        shards = np.searchsorted(self.sizes.edges, starts, side="right") - 1
        before = self.sizes.edges[shards]
        return Pieces(shards, starts - before, stops - before)
