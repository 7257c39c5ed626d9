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

    >>> sizes = ShardSizes([4, 0, 2], [40, 0, 20], [40, 0, 20], [2, 0, 1])
    >>> sizes.total_rows, len(sizes)
    (6, 3)
    """

    rows: npt.ArrayLike
    stored_bytes: npt.ArrayLike
    decoded_bytes: npt.ArrayLike
    blocks: npt.ArrayLike

    def __post_init__(self) -> None:
        for name in ("rows", "stored_bytes", "decoded_bytes", "blocks"):
            object.__setattr__(self, name, np.asarray(getattr(self, name)).astype(np.int64, copy=False))
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
