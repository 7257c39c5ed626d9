"""What lanes are asked and what they answer: records, windows, and the pieces of shards that windows hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np

from shardio.order._keys import Array
from shardio.order._sizes import ShardSizes

GOLDEN = 2654435769  # 2**32 divided by the golden ratio: multiples of it spread evenly over any run of lanes


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


class Window(NamedTuple):
    """Name one window: the unit of the second shuffle, and of what must be in memory at a time."""

    source: int
    cycle: int
    lane: int
    number: int


class Windows(Sequence[Window]):
    """Several windows as columns; an item is a `Window`.

    Attributes:
        source, cycle, lane, number: int64 [n], the fields of each.
        reader: int64 [n], which reader of the source uses it: a lane, or a strand of a lane.  A reader has
            one window in use at a time.
        rows: int64 [n], how many rows it has.
        position: int64 [n], of its first row where they all follow it in storage order; else -1.
        begin: int64 [n], the round, counted over cycles, in which its reader comes to it; 0 where position is
            -1.
    """

    __slots__ = ("begin", "cycle", "lane", "number", "position", "reader", "rows", "source")

    def __init__(
        self,
        source: Array,
        cycle: Array,
        lane: Array,
        number: Array,
        reader: Array,
        rows: Array,
        position: Array,
        begin: Array,
    ) -> None:
        self.source, self.cycle, self.lane, self.number, self.reader = source, cycle, lane, number, reader
        self.rows, self.position, self.begin = rows, position, begin

    def __len__(self) -> int:
        return int(self.number.size)

    @overload
    def __getitem__(self, index: int) -> Window: ...
    @overload
    def __getitem__(self, index: slice) -> Windows: ...
    def __getitem__(self, index: int | slice) -> Window | Windows:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        return Window(
            int(self.source[index]), int(self.cycle[index]), int(self.lane[index]), int(self.number[index])
        )

    def take(self, indices: Array) -> Windows:
        """Return the windows with these numbers, in that order."""
        return Windows(*(getattr(self, name)[indices] for name in _COLUMNS))

    @classmethod
    def joined(cls, parts: Sequence[Windows]) -> Windows:
        """Return several lists of windows as one."""
        nothing = np.zeros(0, np.int64)
        return cls(
            *(np.concatenate([nothing, *(getattr(part, name) for part in parts)]) for name in _COLUMNS)
        )


_COLUMNS = ("source", "cycle", "lane", "number", "reader", "rows", "position", "begin")


class RowLocations(NamedTuple):
    """Say where records are in the windows that hold them, in the order they are delivered.

    Attributes:
        windows: the windows, each once a run of records.
        window: int64 [n], number of each record's window in `windows`.
        row: int64 [n], number of each record among its window's rows as `pieces` gives them.
    """

    windows: Windows
    window: Array
    row: Array


class Pieces(NamedTuple):
    """Runs of live rows `[start, stop)` of shards, in the order of the places they fill; int64 arrays."""

    shards: Array
    starts: Array
    stops: Array


def lane_edges(rows: int, lanes: int) -> Array:
    """Return the first place of each lane and, last, `rows`: they differ by one at most, longer first."""
    q, r = divmod(rows, lanes)
    number = np.arange(lanes + 1, dtype=np.int64)
    return number * q + np.minimum(number, r)


def join_pieces(pieces: Pieces) -> Pieces:
    """Return pieces as runs: those of one shard that follow one another are one."""
    shards, starts, stops = pieces
    apart = (shards[1:] != shards[:-1]) | (starts[1:] != stops[:-1])
    heads = np.append(True, apart)[: shards.size]
    return Pieces(shards[heads], starts[heads], stops[np.append(apart, True)[: shards.size]])


def runs_of_positions(sizes: ShardSizes, starts: Array, counts: Array) -> Pieces:
    """Return the runs of rows of shards that runs of positions are in, cut where shards end."""
    edges = sizes.edges
    stops = starts + counts
    first = np.searchsorted(edges, starts, side="right") - 1
    last = np.searchsorted(edges, stops, side="left") - 1
    many = np.maximum(last - first + 1, 0)
    many[counts == 0] = 0
    own = np.repeat(np.arange(starts.size), many)
    shard = first[own] + np.arange(own.size) - np.repeat(np.cumsum(many) - many, many)
    begin = np.maximum(starts[own], edges[shard]) - edges[shard]
    end = np.minimum(stops[own], edges[shard + 1]) - edges[shard]
    some = end > begin  # shards without rows are between others
    return Pieces(shard[some], begin[some], end[some])
