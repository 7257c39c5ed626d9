"""The `frame_stop` column, checked by block when a block is used: its CRC, and that frames fill the block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio import kernels
from shardio.errors import FormatError
from shardio.format import Framing
from shardio.metadata._features import INDEX_ADVICE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.metadata._index import IndexHead

__all__ = ["check_frames_part", "frames_fit"]


def least_frame(framing: Framing) -> int:
    """Return the least size of a frame: an empty TFRECORD payload still has 16 bytes around it."""
    return {Framing.TFRECORD: 16, Framing.RAW: 0}.get(framing, 1)


def frames_fit(index: IndexHead, blocks: NDArray[np.int64], part: NDArray[np.uint32]) -> bool:
    """Tell whether the parts of `frame_stop` of some blocks are right, all in a few calls.

    The same rules as `check_frames_part`, which says what is wrong.

    Args:
        index: the head of the index.
        blocks: int64, numbers of blocks.
        part: their parts of `frame_stop`, one after another.
    """
    rows = index.rows_of_blocks(blocks)
    stops_at = np.cumsum(rows)
    if len(part) != int(rows.sum()):
        return False
    crcs = kernels.crc32c_many(part, 4 * (stops_at - rows), 4 * stops_at)
    if not np.array_equal(crcs, index.block_frames_crc32c[blocks]):
        return False
    if not len(part):
        return True
    stops = part.astype(np.int64)
    sizes = stops.copy()
    sizes[1:] -= stops[:-1]
    filled = rows > 0
    heads = (stops_at - rows)[filled]
    sizes[heads] = stops[heads]
    ends = index.block_decoded_bytes[blocks[filled]]
    return int(sizes.min()) >= least_frame(index.framing) and np.array_equal(
        stops[stops_at[filled] - 1], ends
    )


def check_frames_part(
    index: IndexHead, block: int, part: NDArray[np.uint32], *, url: str | None = None
) -> None:
    """Check one block's part of `frame_stop`: its CRC, and that its frames fill the decoded block.

    Raises:
        FormatError: with the block and the byte range in the index file.
    """
    start, stop = index.frame_stop_bounds(block)

    def broken(what: str, expected: object, found: object) -> FormatError:
        return FormatError(
            f"the index of block {block} {what}",
            url=url,
            start=start,
            stop=stop,
            expected=expected,
            found=found,
            advice=INDEX_ADVICE,
        )

    if 4 * len(part) != stop - start:
        raise broken("is cut short", f"{stop - start} bytes", f"{4 * len(part)} bytes")
    crc = kernels.crc32c(part)
    expected = int(index.block_frames_crc32c[block])
    if crc != expected:
        raise broken("does not match its checksum", f"{expected:#010x}", f"{crc:#010x}")
    least = least_frame(index.framing)
    if len(part):
        sizes = np.diff(part.astype(np.int64), prepend=0)
        if int(sizes.min()) < least:
            raise broken("holds a frame that is too small", f"at least {least} bytes", int(sizes.min()))
        if int(part[-1]) != int(index.block_decoded_bytes[block]):
            raise broken(
                "does not end where the block does", int(index.block_decoded_bytes[block]), int(part[-1])
            )
