"""The lanes of one dataset in one epoch: each lane reads many chunks concurrently.

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
from shardio.order._keys import Array, key
from shardio.order._lanes import RowLocations, Rows, Windows, lane_edges
from shardio.order._permutation import Permutation
from shardio.order._plan import Plan
from shardio.order._sizes import ShardSizes

GOLDEN = 2654435769  # 2**32 divided by the golden ratio: multiples of it spread evenly over any run of lanes


class Epoch:
    """The lanes of one dataset in one epoch; threads may share them.

    Beside some numbers for each strand it holds the permutation of the window in use of each.

    Args:
        sizes: the shards.
        plan: its shape.
        seed, epoch: any integers in [0, 2**64).
        shuffle: False makes all permutations the identity.
        source, cycle: which source of a mixture this is, and how often it had ended before.

    Attributes:
        ranks, workers, lane_lengths, readers: see `Lanes`.
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
        self.ranks, self.workers = plan.ranks, plan.workers
        self._source, self._cycle = source, cycle
        fields = seed, epoch, source, cycle
        rows, m, strands = sizes.total_rows, plan.chunk_rows, plan.interleave
        edges = lane_edges(rows, plan.lanes)
        self.lane_lengths: Array = np.diff(edges)
        self.readers: tuple[int, ...] = (plan.lanes * strands,)
        chunks = -(-rows // m)
        order = Permutation.of_key(chunks, "sequence", *fields)
        last = max(0, chunks - 1)
        gap = chunks * m - rows
        short = int(order.inverse([last])[0]) if shuffle and gap else last
        # Strand j of a lane of n rows has n // J of them, and one more if j < n % J.
        q, r = np.divmod(self.lane_lengths, strands)
        number = np.arange(strands, dtype=np.int64)
        starts = edges[:-1, None] + number * q[:, None] + np.minimum(number, r[:, None])
        shape = Interleaving(
            chunk_rows=m,
            window=plan.window,
            strands=strands,
            chunks=chunks,
            short=short if gap else -1,
            gap=gap,
            edges=edges,
            starts=starts.reshape(-1),
            rows=(q[:, None] + (number < r[:, None])).reshape(-1),
            moved=np.zeros(starts.size, np.int64),
            rounds=key("rounds", *fields),
            places=key("places", *fields),
            shuffled=shuffle,
            table=order.table,
            network=order.network,
        )
        if shuffle and chunks > 1:
            shape = shape._replace(moved=_shifts(shape))
        self._shape = shape
        self._chunk_places = np.argsort(order.table).take if order.table.size else order.inverse
        self._held = self._nothing_held()
        self._holding = threading.Lock()

    def _nothing_held(self) -> InterleavingState:
        try:
            return InterleavingState.from_shape(self._shape)
        except MemoryError as error:
            raise ValueError(
                f"the plan has {self._shape.starts.size} windows of up to {self._shape.window} rows open, "
                "and this process has no memory for their permutations, 4 bytes a row; use a plan with a "
                "smaller window, or a smaller interleave"
            ) from error

    def _find(self, parts: Array) -> Interleaved:
        # A thread that does not get what is held begins with nothing; none waits, so a fork does no harm.
        if not self._holding.acquire(blocking=False):
            return interleave(self._shape, parts, self._nothing_held())
        try:
            return interleave(self._shape, parts, self._held)
        finally:
            self._holding.release()

    def rows(self, parts: Array) -> Rows:
        """Return the records of the parts; see `Lanes`."""
        found = self._find(parts)
        positions = found.position.take(found.window)
        positions += found.row
        return Rows(
            positions, _repeated(self._source, positions.size), _repeated(self._cycle, positions.size)
        )

    def locate(self, parts: Array) -> RowLocations:
        """Return where the records of the parts are in the windows that hold them; see `Lanes`."""
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
        source, cycle = _repeated(self._source, strand.size), _repeated(self._cycle, strand.size)
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


def _repeated(number: int, count: int) -> Array:
    """Return int64 [count] of one number; nearly always of zeros, which cost least."""
    found = np.zeros(count, np.int64)
    if number:
        found.fill(number)
    return found


def _shifts(shape: Interleaving) -> Array:
    """Return by how many rows each strand's first place is moved on, so that chunks end evenly."""
    m, strands, lane_lengths = shape.chunk_rows, shape.strands, np.diff(shape.edges)
    first = np.ones((lane_lengths.size, strands), np.int64)
    if m > 1:
        counts = np.minimum(lane_lengths, strands)
        lane = np.repeat(np.arange(lane_lengths.size), counts)
        slot = np.arange(lane.size) - np.repeat(np.cumsum(counts) - counts, counts)
        order = shuffle_ranges(shape.rounds, shape.edges[:-1], counts)
        lag = lane * GOLDEN % (1 << 32) >> 16
        first[lane, order] = 1 + (slot * (1 << 16) + lag) * m // (strands << 16)
    # Places as they would be if the short chunk had m rows like all others.
    virtual = shape.starts + np.where((shape.starts >= shape.gap_from) & (shape.gap > 0), shape.gap, 0)
    return (m - first.reshape(-1) - virtual) % m % np.maximum(shape.rows, 1)
