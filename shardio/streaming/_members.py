"""The datasets behind a stream: who they are, how large their shards are, and how a slice of one looks.

A stream may run over a reader or over a slice of one with step 1; then the first and the last shard count
only the rows that the slice holds.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from shardio.order import Identity, ShardSizes
from shardio.order import Source as OrderSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.reader import DatasetReader, DatasetSource

__all__ = ["Member"]


class Member:
    """One dataset of a stream.

    Attributes:
        reader: as the caller gave it.
        source: its shards.
        order: sizes and identity, for the arithmetic.
        skipped: int64[shards], live rows of each shard that lie before the slice.
        start: position in the split of the stream's position 0.
    """

    def __init__(self, reader: DatasetReader) -> None:
        selection = reader.selection
        if not isinstance(selection, range) or selection.step != 1:
            raise ValueError(
                "only a reader, or a slice of it with step 1, can be streamed; for chosen positions use "
                "shardio.torch.MapDataset with a sampler"
            )
        self.reader = reader
        self.source: DatasetSource = reader.source
        self.start = selection.start if len(selection) else 0
        table = self.source.table
        stops = np.minimum(self.source.stops, selection.stop)
        starts = np.maximum(self.source.stops - table.live_rows, self.start)
        rows = np.maximum(stops - starts, 0)
        self.skipped: NDArray[np.int64] = np.where(
            rows > 0, starts - (self.source.stops - table.live_rows), 0
        )
        sizes = ShardSizes(
            rows,
            _share(table.stored_bytes, rows, table.live_rows),
            _share(table.decoded_bytes, rows, table.live_rows),
            _share(table.blocks, rows, table.live_rows),
        )
        self.order = OrderSource(sizes, self._identity(rows))

    def _identity(self, rows: NDArray[np.int64]) -> Identity:
        source = self.source
        table = source.table
        digest = hashlib.sha256(b"shardio fingerprint 1")
        for column in (table.uuid, table.rows, table.blocks, table.live_rows, rows, self.skipped):
            digest.update(np.ascontiguousarray(column).astype(column.dtype.newbyteorder("<")).tobytes())
        digest.update(table.deletion_sha256.tobytes())
        manifest = source.version.manifest
        return Identity(manifest.dataset_uuid.hex(), manifest.version, digest.hexdigest(), source.split)


def _share(column: NDArray[np.int64], rows: NDArray[np.int64], live: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the part of a shard's size that falls to the rows of the slice, rounded up."""
    whole = rows == live
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.ceil(column * (rows / np.maximum(live, 1))).astype(np.int64)
    return np.where(whole, column, np.minimum(part, column))
