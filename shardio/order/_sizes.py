"""What the order knows of a dataset: four columns of its manifest.

Nothing here knows a file or an index.  Positions number the live records of a split over its shards in
manifest order; a row is the number of a live record within its shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shardio.order._keys import Array

_MAX_ROWS = 1 << 40  # keeps products of places and small numbers below 2**63


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
