"""Which class of lanes gives which step, and from which place: the turns of one stretch with one batch size.

A leg is the stretch of an epoch in which the global batch stays the same.  Its steps are found by arithmetic
from the places at which it began, so step one million costs what step one costs.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from shardio.order._keys import Array

__all__ = ["Leg", "spans"]


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


@dataclass(frozen=True)
class Turn:
    """Say that a step takes rows from one class of lanes, beginning at `place` in each of them."""

    lane_class: int
    place: int


class Leg:
    """Find the steps of a stretch of an epoch with one batch size.

    Args:
        lengths: rows of each lane, int64 [T * C]; lane (t, c) has number t * C + c.
        ranks: C.
        global_batch: G, a multiple of C.
        step: the step of the epoch with which the leg begins.
        places: p_0 .. p_(T-1), rows already taken from each lane of each class.
        tail: None while classes take turns; rows already taken of what remained, once that began.

    Attributes:
        turns: number of steps in which classes take turns, counted from the beginning of the leg.
        rest: rows that then remain in the lanes and are not taken yet.
    """

    def __init__(
        self, lengths: Array, ranks: int, *, global_batch: int, step: int, places: list[int], tail: int | None
    ) -> None:
        self.global_batch = global_batch
        self.step = step
        self.places = list(places)
        self.tail = tail
        self._ranks = ranks
        self._share = share = global_batch // ranks
        # A class's visits are at p, p + u, p + 2u ...: written as p = a * u + r, each class comes once in
        # every round from its a on, and the rounds all have the same order: by r, then by number.
        self._begin = [place // share for place in places]
        self._residue = [place % share for place in places]
        self._order = sorted(range(len(places)), key=lambda t: (self._residue[t], t))
        self._regular = max(self._begin)
        self._regular_turns = self._turns_before(self._regular)
        shortest = lengths.reshape(len(places), ranks).min(axis=1).tolist()
        self.turns = 0 if tail is not None else self._count_turns(shortest)
        remain = lengths - np.repeat(np.array(self.places_after(self.turns), np.int64), ranks)
        self._firsts = lengths - remain
        self._edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(remain)])
        self.rest = int(self._edges[-1]) - (tail or 0)

    def _count_turns(self, shortest: list[int]) -> int:
        share = self._share
        limits = [length - share for length in shortest]
        if any(place > limit for place, limit in zip(self.places, limits, strict=True)):
            return 0
        # The turns end after the first visit that leaves its class with fewer than u rows in some lane.
        last = min(
            (place + (limit - place) // share * share, t)
            for t, (place, limit) in enumerate(zip(self.places, limits, strict=True))
        )
        return sum(
            max(0, (last[0] - place - (t > last[1])) // share + 1) for t, place in enumerate(self.places)
        )

    def _turns_before(self, round_number: int) -> int:
        return sum(max(0, round_number - begin) for begin in self._begin)

    def _round(self, turn: int) -> tuple[int, int]:
        """Return the round of a turn, and how many classes come before it in that round."""
        if turn >= self._regular_turns:
            late, before = divmod(turn - self._regular_turns, len(self.places))
            return self._regular + late, before
        rounds = range(min(self._begin), self._regular + 1)
        number = rounds[bisect_right(rounds, turn, key=self._turns_before) - 1]
        return number, turn - self._turns_before(number)

    def _active(self, round_number: int) -> list[int]:
        return [t for t in self._order if self._begin[t] <= round_number]

    def turn(self, turn: int) -> Turn:
        """Return the class and place of a turn, counted from the beginning of the leg, in O(T log G)."""
        number, before = self._round(turn)
        t = self._active(number)[before]
        return Turn(t, number * self._share + self._residue[t])

    def places_after(self, turns: int) -> list[int]:
        """Return p_0 .. p_(T-1) after so many turns."""
        number, before = self._round(turns)
        places = list(self.places)
        for t, begin in enumerate(self._begin):
            places[t] += self._share * max(0, number - begin)
        for t in self._active(number)[:before]:
            places[t] += self._share
        return places

    def rows_left(self) -> int:
        """Return the rows not yet taken at the beginning of the leg."""
        return self.turns * self.global_batch + self.rest

    def batch_rows(self, step: int) -> int:
        """Return how many rows of the epoch the batch of a step holds: G, or fewer in the last step."""
        late = step - self.step - self.turns
        return (
            self.global_batch
            if late < 0
            else max(0, min(self.global_batch, self.rest - late * self.global_batch))
        )

    def parts(self, step: int, start: int, stop: int) -> Array:
        """Return the rows [start, stop) of a step's batch as parts, int64 [n, 3] of (lane, start, stop)."""
        turn = step - self.step
        if turn >= self.turns:
            offset = (self.tail or 0) + (turn - self.turns) * self.global_batch
            return spans(self._edges, self._firsts, offset + start, offset + stop)
        if start >= stop:
            return np.zeros((0, 3), np.int64)
        here = self.turn(turn)
        share = self._share
        low, high = start // share, -(-stop // share)
        parts = np.empty((high - low, 3), np.int64)
        parts[:, 0] = np.arange(here.lane_class * self._ranks + low, here.lane_class * self._ranks + high)
        parts[:, 1] = here.place
        parts[:, 2] = here.place + share
        parts[0, 1] += start - low * share
        parts[-1, 2] -= high * share - stop
        return parts

    def standing(self, step: int) -> tuple[list[int], int | None]:
        """Return the places and the tail before a step: what the next leg begins with."""
        turn = step - self.step
        if self.tail is None and turn <= self.turns:
            # At the seam the turns have ended but the tail has not begun: a smaller batch may go on taking
            # turns.
            return self.places_after(turn), None
        taken = (self.tail or 0) + (turn - self.turns) * self.global_batch
        return self.places_after(self.turns), min(taken, int(self._edges[-1]))
