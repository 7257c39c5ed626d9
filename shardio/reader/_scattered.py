"""Rows of many blocks that lie far apart: checked and cut in a few calls for all of them.

What `OpenShard` does for one run of blocks at a time costs a dozen NumPy calls, which is much for a block of
which one record is wanted.  The same rules hold; whatever does not pass them here is left to `OpenShard`,
which fetches once more and says what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio import kernels
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL, Compression, Framing
from shardio.metadata import frames_fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardio.reader._fetch import Fetched
    from shardio.reader._shard import OpenShard

__all__ = ["take_rows"]


def take_rows(
    shard: OpenShard,
    blocks: NDArray[np.int64],
    fetched: tuple[Sequence[Fetched | None], Sequence[Fetched | None]],
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> list[bytes] | None:
    """Return the payloads of some rows, or None where these blocks are not plain or something is wrong.

    Args:
        shard: that they lie in.
        blocks: int64, numbers of the blocks, ascending.
        fetched: of each block, its part of `frame_stop` and its stored bytes.
        rows: int64, ascending.
        counts: int64[blocks], how many of the rows lie in each.
    """
    head = shard.head
    frames = [each for each in fetched[0] if each is not None]
    stored = [each.data for each in fetched[1] if each is not None]
    plain = head.compression is Compression.NONE and head.framing is Framing.TFRECORD
    if not plain or head.stream or len(frames) != len(blocks) or len(stored) != len(blocks):
        return None
    part = np.frombuffer(b"".join([each.data for each in frames]), "<u4")
    if not frames_fit(head, blocks, part):
        return None
    if shard.verify and [kernels.crc32c(data) for data in stored] != head.block_crc32c[blocks].tolist():
        return None
    sizes = head.rows_of_blocks(blocks)
    firsts = head.block_row_stop[blocks].astype(np.int64) - sizes
    own = np.repeat(np.arange(len(blocks)), counts)
    at = (np.cumsum(sizes) - sizes)[own] + rows - firsts[own]
    starts = np.where(rows > firsts[own], part[at - 1], 0).astype(np.int64) + TFRECORD_HEAD
    stops = part[at].astype(np.int64) - TFRECORD_TAIL
    places = zip(own.tolist(), starts.tolist(), stops.tolist(), strict=True)
    return [bytes(stored[block][start:stop]) for block, start, stop in places]
