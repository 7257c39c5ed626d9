"""The shape of an interleaved order, what is known of its rows, and what is kept between two questions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Network(NamedTuple):
    """A permutation of 0 .. n - 1 as eight words: a Feistel network that is walked until it falls below n.

    Attributes:
        n: how many numbers.
        words: uint64[8], its key.
        low_bits: bits of the low half of a number.
        high: how many values the high half has: ceil(n / 2**low_bits).
    """

    n: int
    words: NDArray[np.uint64]
    low_bits: int
    high: int


class Interleaving(NamedTuple):
    """The shape of an interleaved order of n rows; `docs/order.md` has the words and the picture.

    Attributes:
        chunk_rows: m, rows of every chunk but one.
        window: w, rows of a window at most.
        strands: J, strands of a lane.
        chunks: how many there are.
        short: place, in the order of chunks, of the one that lacks rows; -1 where none does.
        gap: rows that it lacks.
        edges: int64[lanes + 1], first place of each lane and, last, n.
        starts: int64[lanes * strands], first place of each strand.
        rows: int64[lanes * strands], rows of each strand.
        moved: int64[lanes * strands], by how many rows the beginning of each strand is moved on.
        rounds, places: uint64[2], keys of the streams that shuffle rounds and windows.
        shuffled: whether there are such shuffles; else chunks are in storage order, too.
        table: int64[chunks], number of the chunk at each place; empty where `network` says it.
        network: see there.
    """

    chunk_rows: int
    window: int
    strands: int
    chunks: int
    short: int
    gap: int
    edges: NDArray[np.int64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]
    moved: NDArray[np.int64]
    rounds: NDArray[np.uint64]
    places: NDArray[np.uint64]
    shuffled: bool
    table: NDArray[np.int64]
    network: Network

    @property
    def gap_from(self) -> int:
        """The place from which on places count as if the short chunk had rows like all others."""
        return (self.short + 1) * self.chunk_rows - self.gap


class Interleaved(NamedTuple):
    """Where rows of an interleaved order are.

    Attributes:
        window: int64[rows], number of each row's window among those below.
        row: int64[rows], number of each row in its window.
        strand: int64[windows], counted over all lanes. Windows come in the order in which rows need
            them, each once for the rows of its strand that follow one another.
        first: int64[windows], first place of each.
        lengths: int64[windows], rows of each.
        position: int64[windows], position of the first row of each; the others follow it.
    """

    window: NDArray[np.int64]
    row: NDArray[np.int64]
    strand: NDArray[np.int64]
    first: NDArray[np.int64]
    lengths: NDArray[np.int64]
    position: NDArray[np.int64]


class InterleavingState(NamedTuple):
    """What is kept of an interleaved order between two questions: it changes the time of an answer only.

    Attributes:
        state: int64[strands, 8], of each strand's latest window: the rounds in which it is read (from, to),
            its first place, rows and position, and the question and the number that it last had in an answer.
        orders: uint32[strands, rows], the permutation of that window. All of them are kept, however large:
            windows in use are in memory with their records, and a permutation that is made again for each
            question costs as much as its whole window. Memory is taken as windows come into use.
        round: int64[lanes], the latest round of each lane; -1 at first.
        strand_order: uint32[lanes, strands], the order of its strands in that round.
        questions: int64[1], how many there were.
    """

    state: NDArray[np.int64]
    orders: NDArray[np.uint32]
    round: NDArray[np.int64]
    strand_order: NDArray[np.uint32]
    questions: NDArray[np.int64]

    @classmethod
    def from_shape(cls, shape: Interleaving) -> InterleavingState:
        """Return what is kept before the first question."""
        strands, lanes = shape.starts.size, shape.edges.size - 1
        width = min(shape.window, int(shape.rows.max(initial=0)))
        # A row is a line of the processor's memory where the first one begins with a line.
        state = np.zeros(8 * strands + 8, np.int64)
        begin = -state.ctypes.data % 64 // 8
        return cls(
            state[begin : begin + 8 * strands].reshape(strands, 8),
            np.empty((strands if width > 1 else 0, width), np.uint32),
            np.full(lanes, -1, np.int64),
            np.empty((lanes, shape.strands), np.uint32),
            np.zeros(1, np.int64),
        )
