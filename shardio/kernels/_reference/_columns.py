"""What of an index and of frames is compared before a record is returned alone: the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio.kernels._checksums import crc32c
from shardio.kernels._reference._frames import check_frames

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.kernels._arguments import LookupColumns


def index_fits(columns: LookupColumns, block: int, size: int) -> bool:
    """Tell whether the index's part of a block is what its head means, and the block is in the shard.

    Args:
        columns: of the index.
        block: its number.
        size: bytes of the shard.
    """
    base = int(columns.block_stops[block - 1]) if block else 0
    first = int(columns.block_row_stops[block - 1]) if block else 0
    stop = int(columns.block_row_stops[block])
    ends = columns.frame_stops[first:stop]
    if not ends.size:
        return False
    records = columns.records
    block_size = int(columns.block_sizes[block])
    return bool(
        crc32c(ends) == columns.frame_crcs[block]
        and (records is None or crc32c(records.checksums[first:stop]) == records.block_crcs[block])
        and np.diff(ends.astype(np.int64), prepend=0).min() >= 16
        and ends[-1] == block_size
        and base + block_size <= size
    )


def frames_fit(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    crcs: NDArray[np.uint32],
) -> bool:
    """Tell whether frames in a buffer are right, and their payloads those that the index means.

    Args:
        data: the buffer.
        starts, lengths: int64[n], of the frames and of their payloads.
        crcs: uint32[n], masked CRC-32C of each payload.
    """
    if check_frames(data, starts, starts + lengths + 16) >= 0:
        return False
    tails = (starts + lengths + 12)[:, None] + np.arange(4)
    return bool((data[tails].view("<u4")[:, 0] == crcs).all())
