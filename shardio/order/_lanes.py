"""What an order is asked, and what it answers: records, the windows that hold them, and runs of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from shardio.order._keys import Array


class Rows(NamedTuple):
    """Records in the order they are delivered; three int64 arrays of one length.

    Attributes:
        positions: position of each record within its source.
        sources: number of the source it comes from; 0 without a mixture.
        cycles: how often its source had ended before, in this epoch of a mixture; 0 without one.
    """

    positions: Array
    sources: Array
    cycles: Array


@dataclass(frozen=True, eq=False, slots=True)
class Windows:
    """Windows, the unit of the second shuffle and of what is in memory at a time, as int64 columns.

    Attributes:
        source, cycle: of the dataset and its pass.
        lane: that takes its rows.
        number: one for each window of a source and cycle.
        reader: which reader of the source uses it: a strand of a lane. A reader has one window in use at a
            time.
        rows: how many it has.
        position: of its first row; the others follow it in storage order.
        begin: the round, counted over cycles, in which its reader comes to it.
    """

    source: Array
    cycle: Array
    lane: Array
    number: Array
    reader: Array
    rows: Array
    position: Array
    begin: Array

    def __len__(self) -> int:
        return int(self.number.size)

    def take(self, indices: Array) -> Windows:
        """Return the windows with these numbers, in that order."""
        return Windows(*(getattr(self, name)[indices] for name in Windows.__slots__))

    @classmethod
    def joined(cls, parts: Sequence[Windows]) -> Windows:
        """Return several lists of windows as one."""
        nothing = np.zeros(0, np.int64)
        return cls(
            *(np.concatenate([nothing, *(getattr(part, name) for part in parts)]) for name in cls.__slots__)
        )


class RowLocations(NamedTuple):
    """Where records are in the windows that hold them, in the order they are delivered.

    Attributes:
        windows: the windows, each once a run of records.
        window: int64 [n], number of each record's window in `windows`.
        row: int64 [n], number of each record in its window, in storage order.
    """

    windows: Windows
    window: Array
    row: Array


class Lanes(Protocol):
    """One epoch of an order; `parts` are int64 [n, 3] of (lane, start, stop): places [start, stop) of a lane.

    Attributes:
        ranks, workers: C and T of the plan.
        lane_lengths: rows of each lane, int64 [C * T]; lane (t, c) has number t * C + c.
        readers: of each source, how many windows are in use at a time.
    """

    ranks: int
    workers: int
    lane_lengths: Array
    readers: tuple[int, ...]

    def rows(self, parts: Array) -> Rows:
        """Return the records at places [start, stop) of lanes, one part after another."""

    def locate(self, parts: Array) -> RowLocations:
        """Return where the records of the parts are in the windows that hold them."""

    def windows_at(self, source: int, cycle: int, positions: Array) -> Windows:
        """Return the window of a source and cycle that holds each of some positions."""


def lane_edges(rows: int, lanes: int) -> Array:
    """Return the first place of each lane and, last, `rows`: they differ by one at most, longer first."""
    q, r = divmod(rows, lanes)
    number = np.arange(lanes + 1, dtype=np.int64)
    return number * q + np.minimum(number, r)
