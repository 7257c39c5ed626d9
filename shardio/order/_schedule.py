"""One epoch, step by step: which records make up each global batch, and which of them a rank delivers.

A schedule is the epoch from its beginning, through every change of the batch, to its end.  It never changes:
the caller keeps the cursor, every question names the step, and any step costs the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardio.order._keys import Array
from shardio.order._lanes import Lanes
from shardio.order._plan import check_batch


class Change(NamedTuple):
    """Say with which batch an epoch began, or continued: one entry of a state."""

    step: int
    global_batch: int


class StepGroup(NamedTuple):
    """Hold a rank's rows of several steps.

    Attributes:
        steps: their numbers.
        edges: int64 [steps + 1], where the rows of each step begin, all steps one after another.
        valid: rows of each step before padding.
        parts: int64 [n, 3] of (lane, start, stop): the same rows, neighbouring ones together.
        order: int64 [rows], number of each row among those of `parts`.
    """

    steps: list[int]
    edges: Array
    valid: list[int]
    parts: Array
    order: Array


class StepShare(NamedTuple):
    """Hold a rank's share of a global batch, in the order in which it is delivered; arrays of one length.

    Attributes:
        step: number of the step in its epoch.
        positions, sources, cycles: int64, as in `Rows`.
        valid: bool; False where `remainder="pad"` filled the last step up.
        global_rows: rows of the whole global batch; the mean loss of a rank is weighed by
            `len(positions) * world_size / global_rows`.
    """

    step: int
    positions: Array
    sources: Array
    cycles: Array
    valid: npt.NDArray[np.bool_]
    global_rows: int


def rank_slice(rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the slice `[floor(r * n / R), floor((r + 1) * n / R))` of a batch of n rows: rank r's share.

    >>> [rank_slice(10, rank, 4) for rank in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return rows * rank // world_size, rows * (rank + 1) // world_size


class Schedule:
    """Hold the steps of one epoch.

    Args:
        lanes: the lanes of a dataset or a mixture.
        changes: with which batches; the first at step 0.
        remainder: "drop", "pad" or "keep": what becomes of a short last step.
        step: where the caller resumes; `len` counts from here.

    Attributes:
        step: the first step to deliver.
        stop: the step after the last; the same for every rank.
        global_batch: rows of a global batch at the end of the epoch.
    """

    def __init__(self, lanes: Lanes, changes: Sequence[Change], *, remainder: str, step: int = 0) -> None:
        self.lanes = lanes
        self.remainder = remainder
        self.changes = tuple(changes)
        self.rows = int(lanes.lane_lengths.sum())
        self.step = step
        self.global_batch = self.changes[-1].global_batch
        places, tail = np.zeros(lanes.workers, np.int64), None
        self._segments: list[Segment] = []
        for change in self.changes:
            if self._segments:
                places, tail = self._segments[-1].cursor(change.step)
            self._segments.append(Segment(lanes.lane_lengths, lanes.ranks, change, places, tail))
        left = self._segments[-1].rows_left
        steps = left // self.global_batch if remainder == "drop" else -(-left // self.global_batch)
        self.stop = self.changes[-1].step + steps

    def __len__(self) -> int:
        return max(0, self.stop - self.step)

    def _segment_of(self, step: int) -> Segment:
        return next(segment for segment in reversed(self._segments) if segment.step <= step)

    def _check(self, step: int, rank: int, world_size: int) -> None:
        if not 0 <= step < self.stop:
            raise IndexError(f"step must be in [0, {self.stop}), found {step}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in [0, {world_size}), found {rank}")
        if world_size > self.global_batch:
            raise ValueError(
                f"world_size {world_size} is larger than global_batch "
                f"{self.global_batch}: a rank would get no row"
            )

    def at(self, step: int) -> Schedule:
        """Return the same schedule for a caller that begins with another step of it."""
        if not 0 <= step <= self.stop:
            raise IndexError(f"step must be in [0, {self.stop}], found {step}")
        other = copy.copy(self)
        other.step = step
        return other

    @property
    def tail_start(self) -> int:
        """The step with which the tail begins, where the last steps cut across lanes."""
        return min(self.stop, self._segments[-1].step + self._segments[-1].turns)

    def changed(self, step: int, global_batch: int) -> Schedule:
        """Return the schedule that continues from `step` with another batch, a multiple of the ranks."""
        check_batch(global_batch, self.lanes.ranks)
        if not 0 < step <= self.stop:
            raise IndexError(
                f"step must be in [1, {self.stop}], found {step}; before its first step an epoch starts again"
            )
        # An entry that was never used, or changes nothing, would only make states longer.
        changes = [change for change in self.changes if change.step < step]
        if changes[-1].global_batch != global_batch:
            changes.append(Change(step, global_batch))
        return Schedule(self.lanes, changes, remainder=self.remainder, step=step)

    def steps(self, *, worker: int = 0, workers: int = 1) -> range:
        """Return the steps of loader worker w of W: every W-th from the resumed step on (W = 0 is 1)."""
        count = max(1, workers)
        if not 0 <= worker < count:
            raise ValueError(f"worker must be in [0, {count}), found {worker}")
        return range(self.step + worker, self.stop, count)

    def batch_rows(self, step: int) -> int:
        """Return the rows of the global batch of a step: G, but for the last step of `remainder="keep"`."""
        segment = self._segment_of(step)
        return segment.global_batch if self.remainder == "pad" else segment.batch_rows(step)

    def parts(self, step: int, *, rank: int = 0, world_size: int = 1) -> tuple[Array, int]:
        """Return which places of which lanes a rank delivers at a step, and how many of its rows are real.

        Returns:
            int64 [n, 3] of (lane, start, stop), in the order of delivery, and the number of rows before
            padding.
        """
        self._check(step, rank, world_size)
        segment = self._segment_of(step)
        real = segment.batch_rows(step)
        start, stop = rank_slice(self.batch_rows(step), rank, world_size)
        parts = segment.parts(step, min(start, real), min(stop, real))
        valid = max(0, min(stop, real) - start)
        if stop > real:
            parts = np.concatenate([parts, *self._padding(max(start - real, 0), stop - real)])
        return parts, valid

    def _padding(self, start: int, stop: int) -> Iterator[Array]:
        """Yield rows [start, stop) of the epoch's own order from lane 0, place 0, on, again and again."""
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lanes.lane_lengths)])
        while start < stop:
            low = start % self.rows
            high = min(low + stop - start, self.rows)
            yield spans(edges, np.zeros(edges.size - 1, np.int64), low, high)
            start += high - low

    def group(self, steps: Sequence[int], *, rank: int = 0, world_size: int = 1) -> StepGroup:
        """Return several steps at once: what is common to neighbouring steps of a lane is done once.

        Args:
            steps: numbers of the steps, ascending.
        """
        parts, sizes, valid = self._parts_of(steps, rank, world_size)
        counts = parts[:, 2] - parts[:, 1]
        # A class of lanes continues where it left off, so in lane order most parts continue the part before.
        order = np.lexsort((parts[:, 1], parts[:, 0]))
        ordered = parts[order]
        fresh = np.ones(len(ordered), bool)
        fresh[1:] = (ordered[1:, 0] != ordered[:-1, 0]) | (ordered[1:, 1] != ordered[:-1, 2])
        heads = np.flatnonzero(fresh)
        merged = ordered[heads]
        if heads.size:
            merged[:, 2] = ordered[np.append(heads[1:], len(ordered)) - 1, 2]
        # Where each row of the merged parts is among the rows of the steps.
        ends = np.cumsum(counts)
        shift = np.repeat((ends - counts)[order] - (np.cumsum(counts[order]) - counts[order]), counts[order])
        index = np.empty(int(counts.sum()), np.int64)
        index[shift + np.arange(index.size)] = np.arange(index.size)
        return StepGroup(list(steps), np.cumsum([0, *sizes]), valid, merged, index)

    def _parts_of(
        self, steps: Sequence[int], rank: int, world_size: int
    ) -> tuple[Array, list[int], list[int]]:
        """Return the parts of steps, one after another, and of each its rows with and without padding."""
        # While classes take turns, each step takes as much from one of them.
        segment = self._segment_of(steps[-1]) if len(steps) > 1 else None
        if segment is not None and segment.step <= steps[0] and steps[-1] < segment.step + segment.turns:
            self._check(steps[0], rank, world_size)
            self._check(steps[-1], rank, world_size)
            start, stop = rank_slice(segment.global_batch, rank, world_size)
            sizes = [stop - start] * len(steps)
            return segment.parts_of_turns(steps, start, stop), sizes, sizes
        found = [self.parts(step, rank=rank, world_size=world_size) for step in steps]
        parts = np.concatenate([np.zeros((0, 3), np.int64), *(each for each, _ in found)])
        sizes = [int((each[:, 2] - each[:, 1]).sum()) for each, _ in found]
        return parts, sizes, [valid for _, valid in found]

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> StepShare:
        """Return the records that a rank delivers at a step."""
        parts, valid = self.parts(step, rank=rank, world_size=world_size)
        rows = self.lanes.rows(parts)
        return StepShare(step, *rows, np.arange(rows.positions.size) < valid, self.batch_rows(step))


def spans(edges: Array, firsts: Array, start: int, stop: int) -> Array:
    """Cut the run `[start, stop)` of a row of lanes into parts.

    Args:
        edges: int64 [lanes + 1], where each lane begins in the run; lanes may be empty.
        firsts: int64 [lanes], the place within each lane at which its share of the run begins.

    Returns:
        int64 [n, 3] of (lane, start place, stop place), without empty parts.
    """
    if start >= stop:
        return np.zeros((0, 3), np.int64)
    low = int(np.searchsorted(edges, start, side="right")) - 1
    high = int(np.searchsorted(edges, stop, side="left"))
    lanes = np.arange(low, high, dtype=np.int64)
    begin = np.maximum(edges[low:high], start)
    end = np.minimum(edges[low + 1 : high + 1], stop)
    lead = firsts[low:high] - edges[low:high]
    parts = np.stack([lanes, begin + lead, end + lead], axis=1)
    return parts[end > begin]


class Segment:
    """Find the steps of a part of an epoch in which the global batch stays the same.

    They are found by arithmetic from the places at which the segment begins, so step one million costs what
    step one costs.  Step s takes rows from the lanes of class s mod T, until a class has too few left.

    Args:
        lengths: rows of each lane, int64 [T * C]; lane (t, c) has number t * C + c.
        ranks: C.
        change: the step with which the segment begins, and its global batch G, a multiple of C.
        places: int64 [T], rows already taken from each lane of each class.
        tail: None while classes take turns; rows already taken of what remained, once that began.

    Attributes:
        turns: number of steps in which classes take turns, counted from the beginning of the segment.
        rows_left: rows not yet taken at the beginning of the segment.
    """

    def __init__(self, lengths: Array, ranks: int, change: Change, places: Array, tail: int | None) -> None:
        self.step, self.global_batch = change
        self._ranks, self._places, self._tail = ranks, places, tail
        self._share = self.global_batch // ranks
        # How many steps from here the next turn of each class is, and how many turns it has rows for.
        self._wait = (np.arange(places.size) - self.step) % places.size
        counts = (lengths.reshape(-1, ranks).min(axis=1) - places) // self._share
        # They end with the first turn that leaves its class with too few rows for another.
        ends = self._wait + places.size * (counts - 1) + 1
        self.turns = 0 if tail is not None or counts.min() < 1 else int(ends.min())
        self._firsts = np.repeat(self._places_after(self.turns), ranks)
        self._edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths - self._firsts)])
        self.rows_left = self.turns * self.global_batch + int(self._edges[-1]) - (tail or 0)

    def _places_after(self, turns: int) -> Array:
        taken = np.maximum(0, -((self._wait - turns) // self._places.size))
        after: Array = self._places + self._share * taken
        return after

    def batch_rows(self, step: int) -> int:
        """Return how many rows of the epoch the batch of a step holds: G, or fewer in the last step."""
        left = self.rows_left - (step - self.step) * self.global_batch
        return max(0, min(self.global_batch, left))

    def parts(self, step: int, start: int, stop: int) -> Array:
        """Return the rows [start, stop) of a step's batch as parts, int64 [n, 3] of (lane, start, stop)."""
        late = step - self.step - self.turns
        if late >= 0:
            offset = (self._tail or 0) + late * self.global_batch
            return spans(self._edges, self._firsts, offset + start, offset + stop)
        return self.parts_of_turns([step], start, stop)

    def parts_of_turns(self, steps: Sequence[int], start: int, stop: int) -> Array:
        """Return the parts that are rows [start, stop) of each of some steps in which classes take turns."""
        if start >= stop:
            return np.zeros((0, 3), np.int64)
        number = np.array(steps, np.int64)[:, None]
        classes = self._places.size
        lane_class = number % classes
        place = self._places[lane_class] + (number - self.step) // classes * self._share
        share = self._share
        low, high = start // share, -(-stop // share)
        parts = np.empty((len(steps), high - low, 3), np.int64)
        parts[:, :, 0] = lane_class * self._ranks + np.arange(low, high)
        parts[:, :, 1] = place
        parts[:, :, 2] = place + share
        parts[:, 0, 1] += start - low * share
        parts[:, -1, 2] -= high * share - stop
        return parts.reshape(-1, 3)

    def cursor(self, step: int) -> tuple[Array, int | None]:
        """Return the places and the tail before a step: what the next segment begins with."""
        number = step - self.step
        # At the seam the turns have ended but the tail has not begun: a smaller batch may keep taking turns.
        if self._tail is None and number <= self.turns:
            return self._places_after(number), None
        taken = (self._tail or 0) + (number - self.turns) * self.global_batch
        return self._places_after(self.turns), min(taken, int(self._edges[-1]))
