"""What the plan knows of a dataset: four columns of its manifest, and the chunks they are cut into.

Nothing here knows a file or an index.  Positions number the live records of a split over its shards in
manifest order; a row is the number of a live record within its shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shardio.order._keys import Array

MAX_CHUNKS = 1 << 21
_MAX_ROWS = 1 << 40  # keeps i * rows below 2**63 for every chunk number i


@dataclass(frozen=True, eq=False)
class ShardSizes:
    """Hold the sizes of a split's shards, in manifest order, as int64 arrays of one length.

    Attributes:
        rows: live records of each shard (deleted ones are not counted).
        stored_bytes: bytes of each stored object.
        decoded_bytes: bytes of each shard's blocks after decompression.
        blocks: number of blocks of each shard.

    Raises ValueError if the columns differ in length, are negative, or hold rows without a block.

    >>> sizes = ShardSizes([4, 0, 2], [40, 0, 20], [40, 0, 20], [2, 0, 1])
    >>> sizes.total_rows, len(sizes)
    (6, 3)
    """

    rows: npt.ArrayLike
    stored_bytes: npt.ArrayLike
    decoded_bytes: npt.ArrayLike
    blocks: npt.ArrayLike

    def __post_init__(self) -> None:
        names = ("rows", "stored_bytes", "decoded_bytes", "blocks")
        for name in names:
            given = np.asarray(getattr(self, name))
            if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
                raise ValueError(
                    f"{name} must be a list of integers, one per shard, found "
                    f"{given.dtype} of shape {given.shape}"
                )
            column = given.astype(np.int64, copy=False)
            if column.size != np.size(self.rows):
                raise ValueError(
                    f"{name} has {column.size} entries, but rows has {np.size(self.rows)}; give one per shard"
                )
            if column.size and int(column.min()) < 0:
                raise ValueError(
                    f"{name} must not be negative, found {int(column.min())} at shard {int(column.argmin())}"
                )
            object.__setattr__(self, name, column)
        empty = np.flatnonzero((self._rows > 0) & (self._blocks == 0))
        if empty.size:
            raise ValueError(
                f"shard {int(empty[0])} has {int(self._rows[empty[0]])} rows in no "
                "block; is its manifest entry right?"
            )
        if sum(self._rows.tolist()) > _MAX_ROWS:
            raise ValueError(f"a split holds at most 2**40 rows, found {sum(self._rows.tolist())}")

    def __len__(self) -> int:
        return int(self._rows.size)

    @property
    def _rows(self) -> Array:
        return np.asarray(self.rows)

    @property
    def _blocks(self) -> Array:
        return np.asarray(self.blocks)

    @cached_property
    def edges(self) -> Array:
        """First position of each shard and, last, the number of live rows: int64 [shards + 1]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self._rows)])

    @property
    def total_rows(self) -> int:
        """Live rows of all shards."""
        return int(self.edges[-1])

    @property
    def total_stored_bytes(self) -> int:
        """Stored bytes of the shards that have live rows."""
        return int(np.asarray(self.stored_bytes)[self._rows > 0].sum())

    @property
    def total_decoded_bytes(self) -> int:
        """Decoded bytes of the shards that have live rows."""
        return int(np.asarray(self.decoded_bytes)[self._rows > 0].sum())

    @property
    def total_blocks(self) -> int:
        """Blocks of the shards that have live rows."""
        return int(self._blocks[self._rows > 0].sum())

    @property
    def row_stored_bytes(self) -> float:
        """Stored bytes of a row, the mean."""
        return self.total_stored_bytes / max(1, self.total_rows)

    @property
    def row_decoded_bytes(self) -> float:
        """Decoded bytes of a row, the mean."""
        return self.total_decoded_bytes / max(1, self.total_rows)

    @property
    def block_stored_bytes(self) -> float:
        """Stored bytes of a block, the mean."""
        return self.total_stored_bytes / max(1, self.total_blocks)

    @property
    def largest_block_bytes(self) -> float:
        """Decoded bytes of a block, the mean of the shard with the largest ones; a stream is one block."""
        has_rows = self._rows > 0
        blocks = np.asarray(self.decoded_bytes)[has_rows] / self._blocks[has_rows]
        return float(blocks.max(initial=0.0))


def chunk_counts(sizes: ShardSizes, chunk_bytes: int) -> Array:
    """Return how many chunks each shard is cut into, int64 [shards]; their sum is at most 2**21.

    A shard of n live rows, b stored bytes and k blocks gives `min(n, k, max(1, ceil(b / chunk_bytes)))`
    chunks; `chunk_bytes` is doubled until there are at most 2**21.  Raises ValueError if that many shards
    have rows.
    """
    rows, blocks, stored = (np.asarray(a) for a in (sizes.rows, sizes.blocks, sizes.stored_bytes))
    if int(np.count_nonzero(rows)) > MAX_CHUNKS:
        raise ValueError(
            f"{int(np.count_nonzero(rows))} shards with rows, at most {MAX_CHUNKS} can "
            "be planned; write larger shards, with `shardio convert`"
        )
    most = np.minimum(rows, blocks)
    while True:
        counts: Array = np.minimum(most, np.maximum(1, -(-stored // chunk_bytes)))
        if int(counts.sum()) <= MAX_CHUNKS:
            return counts
        chunk_bytes *= 2


def chunk_edges(sizes: ShardSizes, counts: Array) -> Array:
    """Return the first position of each chunk in storage order and, last, the rows: int64 [chunks + 1].

    Chunk i of the c chunks of a shard of n rows is its rows `[i * n // c, (i + 1) * n // c)`.
    """
    total = int(counts.sum())
    first = np.cumsum(counts) - counts
    edges = np.arange(total + 1, dtype=np.int64)
    edges[:-1] -= np.repeat(first, counts)
    edges[:-1] *= np.repeat(np.asarray(sizes.rows), counts)
    edges[:-1] //= np.repeat(counts, counts)
    edges[:-1] += np.repeat(sizes.edges[:-1], counts)
    edges[-1] = sizes.total_rows
    return edges
