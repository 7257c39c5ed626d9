"""One epoch, step by step: which records make up each global batch, and which of them a rank delivers.

A course is the epoch from its beginning, through every change of the batch, to its end.  It never moves:
where a process stands is its caller's business, every question names the step, and any step costs the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shardio.order._epoch import Window
from shardio.order._plan import check_batch
from shardio.order._turns import Leg, spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardio.order._epoch import Draw, Pieces, Rows
    from shardio.order._keys import Array

__all__ = ["Batch", "Change", "Course", "Lanes", "Need", "Stride", "rank_slice"]


class Lanes(Protocol):
    """What a course needs of an epoch: `Epoch` and `MixedEpoch` offer it."""

    ranks: int
    workers: int
    lane_lengths: Array

    def rows(self, parts: Array) -> Rows:
        """Return the records of the parts, one part after another."""

    def draw(self, parts: Array) -> Draw:
        """Return where the records of the parts lie in the windows that hold them."""

    def windows(self, parts: Array) -> Array:
        """Return the windows that hold the records of the parts, int64 [n, 4]."""

    def pieces(self, window: Window) -> Pieces:
        """Return which rows of which shards a window holds."""


class Change(NamedTuple):
    """Say with which batch an epoch began, or went on: one entry of a state."""

    step: int
    global_batch: int
    places: tuple[int, ...]
    tail: int | None


class Need(NamedTuple):
    """Say that `step` is the first of a process's coming steps to use `window`."""

    step: int
    window: Window


class Stride(NamedTuple):
    """Hold a rank's rows of several steps.

    Attributes:
        steps: their numbers.
        edges: int64 [steps + 1], where the rows of each step begin, all steps one after another.
        valid: rows of each step before padding.
        parts: int64 [n, 3] of (lane, start, stop): the same rows, neighbouring ones together.
        turn: int64 [rows], number of each row among those of `parts`.
    """

    steps: list[int]
    edges: Array
    valid: list[int]
    parts: Array
    turn: Array


class Batch(NamedTuple):
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


class Course:
    """Hold the steps of one epoch.

    Args:
        lanes: the lanes of a dataset or a mixture.
        changes: with which batches; the first at step 0, or a global batch to begin with.
        remainder: "drop", "pad" or "keep": what becomes of a short last step.
        step: where the caller resumes; `len` counts from here.

    Attributes:
        step: the first step to deliver.
        stop: the step after the last; the same for every rank.
        global_batch: rows of a global batch at the end of the epoch.
    """

    def __init__(
        self, lanes: Lanes, changes: int | list[Change], *, remainder: str = "drop", step: int = 0
    ) -> None:
        if remainder not in ("drop", "pad", "keep"):
            msg = f'remainder must be "drop", "pad" or "keep", found {remainder!r}'
            raise ValueError(msg)
        if isinstance(changes, int):
            check_batch(changes, lanes.ranks)
            changes = [Change(0, changes, (0,) * lanes.workers, None)]
        self.lanes = lanes
        self.remainder = remainder
        self.changes = list(changes)
        self.rows = int(lanes.lane_lengths.sum())
        self._legs = [self._leg(change) for change in self.changes]
        self.step = step
        self.global_batch = self.changes[-1].global_batch
        last = self._legs[-1]
        left = last.rows_left()
        steps = left // self.global_batch if remainder == "drop" else -(-left // self.global_batch)
        self.stop = last.step + steps

    def _leg(self, change: Change) -> Leg:
        return Leg(
            self.lanes.lane_lengths,
            self.lanes.ranks,
            global_batch=change.global_batch,
            step=change.step,
            places=list(change.places),
            tail=change.tail,
        )

    def __len__(self) -> int:
        return max(0, self.stop - self.step)

    def _leg_of(self, step: int) -> Leg:
        return next(leg for leg in reversed(self._legs) if leg.step <= step)

    def _check(self, step: int, rank: int, world_size: int) -> None:
        if not 0 <= step < self.stop:
            msg = f"step must lie in [0, {self.stop}), found {step}"
            raise IndexError(msg)
        if not 0 <= rank < world_size:
            msg = f"rank must lie in [0, {world_size}), found {rank}"
            raise ValueError(msg)
        if world_size > self.global_batch:
            msg = (
                f"world_size {world_size} is larger than global_batch "
                f"{self.global_batch}: a rank would get no row"
            )
            raise ValueError(msg)

    @property
    def turns(self) -> int:
        """The step with which the tail begins, where the last steps cut across lanes."""
        return min(self.stop, self._legs[-1].step + self._legs[-1].turns)

    def change_at(self, step: int) -> Change:
        """Return where an epoch stands before a step, as the entry from which it could go on."""
        leg = self._leg_of(step)
        places, tail = leg.standing(step)
        return Change(step, leg.global_batch, tuple(places), tail)

    def changed(self, step: int, global_batch: int) -> Course:
        """Return the course that goes on from `step` with another batch, a multiple of the plan's ranks."""
        check_batch(global_batch, self.lanes.ranks)
        if not 0 < step <= self.stop:
            msg = (
                f"step must lie in [1, {self.stop}], found {step}; before its first step an epoch begins anew"
            )
            raise IndexError(msg)
        here = self.change_at(step)._replace(global_batch=global_batch)
        # An entry that was never used, or changes nothing, would only make states longer.
        changes = [change for change in self.changes if change.step < step]
        if changes[-1].global_batch != global_batch:
            changes.append(here)
        return Course(self.lanes, changes, remainder=self.remainder, step=step)

    def steps(self, *, worker: int = 0, workers: int = 1) -> range:
        """Return the steps of loader worker w of W: every W-th from the resumed step on (W = 0 is 1)."""
        count = max(1, workers)
        if not 0 <= worker < count:
            msg = f"worker must lie in [0, {count}), found {worker}"
            raise ValueError(msg)
        return range(self.step + worker, self.stop, count)

    def batch_rows(self, step: int) -> int:
        """Return the rows of the global batch of a step: G, but for the last step of `remainder="keep"`."""
        leg = self._leg_of(step)
        return leg.global_batch if self.remainder == "pad" else leg.batch_rows(step)

    def parts(self, step: int, *, rank: int = 0, world_size: int = 1) -> tuple[Array, int]:
        """Return which places of which lanes a rank delivers at a step, and how many of its rows are real.

        Returns:
            int64 [n, 3] of (lane, start, stop), in the order of delivery, and the number of rows before
            padding.
        """
        self._check(step, rank, world_size)
        leg = self._leg_of(step)
        real = leg.batch_rows(step)
        start, stop = rank_slice(self.batch_rows(step), rank, world_size)
        parts = leg.parts(step, min(start, real), min(stop, real))
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

    def stride(self, steps: Sequence[int], *, rank: int = 0, world_size: int = 1) -> Stride:
        """Return several steps at once: what is common to neighbouring steps of a lane is done once.

        Args:
            steps: numbers of the steps, ascending.
        """
        found = [self.parts(step, rank=rank, world_size=world_size) for step in steps]
        parts = np.concatenate([np.zeros((0, 3), np.int64), *(each for each, _ in found)])
        counts = parts[:, 2] - parts[:, 1]
        # A class of lanes goes on where it left off, so in lane order most parts continue the part before.
        order = np.lexsort((parts[:, 1], parts[:, 0]))
        ordered = parts[order]
        fresh = np.ones(len(ordered), bool)
        fresh[1:] = (ordered[1:, 0] != ordered[:-1, 0]) | (ordered[1:, 1] != ordered[:-1, 2])
        heads = np.flatnonzero(fresh)
        merged = ordered[heads]
        if heads.size:
            merged[:, 2] = ordered[np.append(heads[1:], len(ordered)) - 1, 2]
        # Where each row of the merged parts stands among the rows of the steps.
        ends = np.cumsum(counts)
        shift = np.repeat((ends - counts)[order] - (np.cumsum(counts[order]) - counts[order]), counts[order])
        turn = np.empty(int(counts.sum()), np.int64)
        turn[shift + np.arange(turn.size)] = np.arange(turn.size)
        sizes = [int((each[:, 2] - each[:, 1]).sum()) for each, _ in found]
        return Stride(list(steps), np.cumsum([0, *sizes]), [valid for _, valid in found], merged, turn)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the records that a rank delivers at a step."""
        parts, valid = self.parts(step, rank=rank, world_size=world_size)
        rows = self.lanes.rows(parts)
        return Batch(step, *rows, np.arange(rows.positions.size) < valid, self.batch_rows(step))

    def needs(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        worker: int = 0,
        workers: int = 1,
        start: int | None = None,
    ) -> Iterator[Need]:
        """Yield the windows that a process will need, in the order of need: what a prefetcher follows.

        A window is done with when a later window of the same source, cycle and lane is used.  In the tail of
        the epoch, where the last steps cut across lanes, windows of other processes' lanes come once more.

        Args:
            start: the first step to look at, in the worker's own sequence; by default the course's.
        """
        held: dict[tuple[int, int], Array] = {}
        for step in self.steps(worker=worker, workers=workers):
            if start is not None and step < start:
                continue
            parts, _ = self.parts(step, rank=rank, world_size=world_size)
            windows = self.lanes.windows(parts)
            for source, cycle in dict.fromkeys(map(tuple, windows[:, :2].tolist())):
                own = windows[(windows[:, 0] == source) & (windows[:, 1] == cycle)]
                latest = held.setdefault((source, cycle), np.full_like(self.lanes.lane_lengths, -1))
                fresh = own[own[:, 3] != latest[own[:, 2]]]
                latest[own[:, 2]] = own[:, 3]
                yield from (Need(step, Window(*window)) for window in fresh.tolist())
