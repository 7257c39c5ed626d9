"""Deletion sidecars: the rows of a shard that are gone, as sorted little-endian u32.

A sidecar has no head of its own: the list of shards holds its size and SHA-256, and is sealed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from shardio.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.metadata._table import ShardEntry

__all__ = ["live_to_physical", "parse_deletions"]


def parse_deletions(data: bytes, shard: ShardEntry, *, url: str | None = None) -> NDArray[np.int64]:
    """Return the deleted rows of a shard, int64, ascending.

    Raises:
        FormatError: the bytes are not those that the list of shards names, or no ascending rows of the shard.
    """
    if len(data) != shard.deletion_bytes or hashlib.sha256(data).digest() != shard.deletion_sha256:
        raise FormatError(
            "a deletion sidecar is not the one that the list of shards names",
            url=url,
            shard=shard.key,
            expected=f"{shard.deletion_bytes} bytes, SHA-256 {shard.deletion_sha256.hex()}",
            found=f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}",
        )
    rows = np.frombuffer(data, "<u4").astype(np.int64)
    if len(rows) and ((np.diff(rows) <= 0).any() or int(rows[-1]) >= shard.rows):
        raise FormatError("a deletion sidecar holds no ascending rows of its shard", url=url, shard=shard.key)
    return rows


def live_to_physical(live: NDArray[np.int64], deleted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the physical rows of live rows: the i-th row that is not deleted, for each i (int64 arrays)."""
    # deleted[k] - k live rows precede the k-th deleted row.
    return live + np.searchsorted(deleted - np.arange(len(deleted)), live, side="right")
