"""The lanes of one dataset in one epoch under an interleaved plan: each lane reads many chunks side by side.

Everything is arithmetic: chunks are runs of equally many positions in an order that is computed, a lane is
cut into strands, and round i of a lane takes the i-th record of each of its strands, in another order each
round.  `kernels.interleave` says where rows are; what is here is the shape that it needs.

An example: 24 records, one lane, `Plan(chunk_rows=4, interleave=3, window=1)`, seed 0, so six chunks of 4
rows and three strands of 8.  The order of the chunks is 5 2 | 4 1 | 3 0; `|` is where the next strand begins.

    strand 0    23 |  8  9 10 11 | 20 21 22      chunk 5 from its last row on, chunk 2, the beginning of 5
    strand 1    18 19 |  4  5  6  7 | 16 17      chunk 4 from its third row on, chunk 1, the beginning of 4
    strand 2    13 14 15 |  0  1  2  3 | 12      chunk 3 from its second row on, chunk 0, the beginning of 3

Strands are turned by 3, 2 and 1 rows (`moved`), so that they come to their next chunks in different rounds.
Rounds take one row of each strand, in an order of their own: 23 18 13, then 8 19 14, then 9 15 4, and so on.
A batch of 6 is two rounds.  With `window=4` the rows of a chunk are shuffled, too: 23 19 14, then 10 18 13.

>>> import shardio, tempfile
>>> ds = shardio.from_generator(({"n": n} for n in range(24)), f"{tempfile.mkdtemp()}/numbers")
>>> plan = shardio.Plan(ranks=1, workers=1, chunk_rows=4, interleave=3, window=1)
>>> [batch["n"].tolist() for batch in shardio.stream(ds, global_batch=6, plan=plan)][:2]
[[23, 18, 13, 8, 19, 14], [9, 15, 4, 0, 10, 5]]
"""

from __future__ import annotations

import threading

import numpy as np

from shardio.kernels import Interleaved, Interleaving, InterleavingState, interleave, shuffle_ranges
from shardio.order._epoch import BaseEpoch, same_number
from shardio.order._keys import Array, key
from shardio.order._permutation import Permutation
from shardio.order._windows import GOLDEN, Pieces, RowLocations, Windows, runs_of_positions


class InterleavedEpoch(BaseEpoch):
    """Hold the order of one dataset in one epoch under an interleaved plan.

    It answers the same questions as `Epoch`, and holds some numbers for each strand, and the permutation of
    the window in use of each.  Arguments and attributes are those of `BaseEpoch`; threads may share one.
    """

    def _arrange(self) -> None:
        plan, shuffle, fields = self.plan, self._shuffle, self._fields
        rows, m, strands = self.sizes.total_rows, plan.chunk_rows, plan.interleave
        self.readers = (plan.lanes * strands,)
        self.chunks = -(-rows // m)
        order = Permutation.of_key(self.chunks, "sequence", *fields)
        last = max(0, self.chunks - 1)
        gap = self.chunks * m - rows
        short = int(order.inverse([last])[0]) if shuffle and gap else last
        # Strand j of a lane of n rows has n // J of them, and one more if j < n % J.
        q, r = np.divmod(self.lane_lengths, strands)
        number = np.arange(strands, dtype=np.int64)
        starts = self._edges[:-1, None] + number * q[:, None] + np.minimum(number, r[:, None])
        shape = Interleaving(
            chunk_rows=m,
            window=plan.window,
            strands=strands,
            chunks=self.chunks,
            short=short if gap else -1,
            gap=gap,
            edges=self._edges,
            starts=starts.reshape(-1),
            rows=(q[:, None] + (number < r[:, None])).reshape(-1),
            moved=np.zeros(starts.size, np.int64),
            rounds=key("rounds", *fields),
            places=key("places", *fields),
            shuffled=shuffle,
            table=order.table,
            network=order.network,
        )
        self._shape = shape._replace(moved=self._shifts(shape))
        self._chunk_places = np.argsort(order.table).take if order.table.size else order.inverse
        self._held = self._nothing_held()
        self._holding = threading.Lock()

    def _shifts(self, shape: Interleaving) -> Array:
        """Return by how many rows each strand's first place is moved on, so that chunks end evenly."""
        m, strands, lanes = shape.chunk_rows, shape.strands, self.plan.lanes
        first = np.ones((lanes, strands), np.int64)
        if m > 1:
            counts = np.minimum(self.lane_lengths, strands)
            lane = np.repeat(np.arange(lanes), counts)
            slot = np.arange(lane.size) - np.repeat(np.cumsum(counts) - counts, counts)
            order = shuffle_ranges(shape.rounds, self._edges[:-1], counts) if shape.shuffled else slot
            lag = lane * GOLDEN % (1 << 32) >> 16
            first[lane, order] = 1 + (slot * (1 << 16) + lag) * m // (strands << 16)
        wanted = (m - first.reshape(-1) - self._virtual(shape, shape.starts)) % m
        return wanted % np.maximum(shape.rows, 1)

    @staticmethod
    def _virtual(shape: Interleaving, places: Array) -> Array:
        """Return places as they would be if the short chunk had m rows like all others."""
        return places + np.where((places >= shape.gap_from) & (shape.gap > 0), shape.gap, 0)

    def _nothing_held(self) -> InterleavingState:
        try:
            return InterleavingState.from_shape(self._shape)
        except MemoryError as error:
            raise ValueError(
                f"the plan reads {self._shape.starts.size} windows of up to {self.plan.window} rows side by "
                "side, and this process has no memory for their permutations, 4 bytes a row; use a plan with "
                "a smaller window, or fewer chunks side by side (interleave)"
            ) from error

    def _find(self, parts: Array) -> Interleaved:
        # A thread that does not get what is held begins with nothing; none waits, so a fork does no harm.
        if not self._holding.acquire(blocking=False):
            return interleave(self._shape, parts, self._nothing_held())
        try:
            return interleave(self._shape, parts, self._held)
        finally:
            self._holding.release()

    def positions(self, parts: Array) -> Array:
        """Return the positions of the records in `parts`, one part after another.

        Args:
            parts: int64 [n, 3] of (lane, start, stop): places [start, stop) of a lane.
        """
        found = self._find(parts)
        positions = found.position.take(found.window)
        positions += found.row
        return positions

    def locate(self, parts: Array) -> RowLocations:
        """Return where the records of `parts` are in the windows that hold them, in the order of need."""
        found = self._find(parts)
        return RowLocations(
            self._windows(found.strand, found.first, found.lengths, found.position), found.window, found.row
        )

    def _windows(self, strand: Array, first: Array, rows: Array, position: Array) -> Windows:
        """Return windows, given the strand, the first place, the rows and the first position of each."""
        shape = self._shape
        begin = first - shape.starts[strand] - shape.moved[strand]
        # What is before the place that a strand begins with comes last.
        begin += np.where(begin < 0, shape.rows[strand], 0)
        begin += self._cycle * int(shape.rows.max(initial=0))
        source, cycle = same_number(self._source, strand.size), same_number(self._cycle, strand.size)
        return Windows(source, cycle, strand // shape.strands, first, strand, rows, position, begin)

    def windows_at(self, source: int, cycle: int, positions: Array) -> Windows:  # noqa: ARG002 - there is one
        """Return the window that holds each of some positions."""
        shape, m, w = self._shape, self._shape.chunk_rows, self._shape.window
        number, within = np.divmod(positions, m)
        chunk = self._chunk_places(number) if shape.shuffled else number
        base = chunk * m - np.where(chunk > shape.short, shape.gap, 0) * (shape.gap > 0)
        place = base + within
        strand = np.searchsorted(shape.starts, place, side="right") - 1
        start = shape.starts[strand]
        middle, stop = start + shape.moved[strand], start + shape.rows[strand]
        before = place < middle
        # As in `kernels.interleave`.
        low = np.maximum(base + within // w * w, np.where(before, start, middle))
        ends = base + np.where(chunk == shape.short, m - shape.gap, m)
        high = np.minimum(np.minimum(base + (within // w + 1) * w, ends), np.where(before, middle, stop))
        return self._windows(strand, low, high - low, positions - (place - low))

    def many_pieces(self, windows: Windows) -> tuple[Pieces, Array]:
        """Return the pieces of several windows one after another, and how many rows each window holds."""
        return runs_of_positions(self.sizes, windows.position, windows.rows), windows.rows
