"""Payloads of whole blocks of frames, compared with their checksums or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.kernels._arguments import as_bytes, as_checks, as_frames, check_rows, frame_outside
from shardio.kernels._reference._frames import crc32c_many
from shardio.kernels._reference._slices import slice_records

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from shardio.kernels._arguments import BlockChecks

_HEAD, _TAIL, _FRAME = 12, 4, 16


def slice_frames(buffer: Any, bases: ArrayLike, rows: ArrayLike, frame_stops: ArrayLike) -> list[bytes]:
    """Copy the payloads of TFRecord frames, which are one after another in blocks, out as a list of bytes.

    No checksum is compared.

    Args:
        buffer: any contiguous buffer.
        bases: int64[blocks], where each block begins in it.
        rows: int64[blocks], number of frames of each block.
        frame_stops: uint32, end of each frame, counted from the base of its block; the first frame of a block
            begins at its base, every other where the one before stopped.

    Raises:
        ValueError: the numbers of blocks, rows and stops do not fit together.
        IndexError: a frame has fewer than 16 bytes or leaves the buffer; names the first one.
    """
    data = as_bytes(buffer)
    first, counts, ends = as_frames(bases, rows, frame_stops)
    check_rows(first, counts, ends)
    stops = ends + np.repeat(first, counts)
    starts = np.empty_like(stops)
    starts[1:] = stops[:-1]
    heads = np.cumsum(counts) - counts
    starts[heads[counts > 0]] = first[counts > 0]
    wrong = np.flatnonzero((starts < 0) | (stops - starts < _FRAME) | (stops > data.size))
    if wrong.size:
        row = int(wrong[0])
        raise frame_outside(row, int(starts[row]), int(stops[row]), data.size)
    return slice_records(buffer, starts + _HEAD, stops - _TAIL)


def slice_blocks(
    buffer: Any, bases: ArrayLike, rows: ArrayLike, frame_stops: ArrayLike, checks: BlockChecks
) -> list[bytes] | None:
    """Do what `slice_frames` does with blocks that are right; return None where one of them is not.

    A block is right where it is in the buffer, both of its CRCs are those of `checks`, and its frames, each
    of 16 bytes or more, fill it. The caller finds out what is wrong.

    Raises:
        ValueError: the numbers of blocks, rows and stops do not fit together.
    """
    data = as_bytes(buffer)
    first, counts, ends = as_frames(bases, rows, frame_stops)
    check_rows(first, counts, ends)
    sizes, frame_crcs, crcs = as_checks(checks, first.size)
    # Compared without a sum that could overflow.
    if bool(((first < 0) | (sizes < 0) | (sizes > data.size) | (first > data.size - sizes)).any()):
        return None
    last = np.cumsum(counts)
    if not np.array_equal(crc32c_many(ends, 4 * (last - counts), 4 * last), frame_crcs):
        return None
    if checks.crcs is not None and not np.array_equal(crc32c_many(data, first, first + sizes), crcs):
        return None
    filled = counts > 0
    if not np.array_equal(ends[last[filled] - 1], sizes[filled]):
        return None
    if _least(ends, (last - counts)[filled]) < _FRAME:
        return None
    return slice_frames(buffer, first, counts, ends)


def _least(ends: NDArray[np.uint32], heads: NDArray[np.int64]) -> int:
    """Return the size of the smallest frame; those at `heads` begin at 0."""
    lengths = np.diff(ends.astype(np.int64), prepend=0)
    lengths[heads] = ends[heads]
    return int(lengths.min(initial=_FRAME))
