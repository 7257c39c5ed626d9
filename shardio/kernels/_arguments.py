"""What both implementations share: the types of the results, and the checks of what callers pass.

Everything that enters a kernel goes through here first: a buffer becomes a flat uint8 array without a copy,
bounds become int64 arrays that are known to be inside it.  So the loops behind may trust both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Check: TypeAlias = Literal["crc32c", "crc32", "none"]

MAX_RECORD = 1 << 30  # bytes; the format's limit for one record, which a caller may raise
MAX_BLOCK = (1 << 32) - 1  # bytes; stops of frames within a block are u32


class Scan(NamedTuple):
    """What `scan_frames` found.

    Attributes:
        frame_stops: int64[n], end of each whole and right frame; it starts where the one before stopped, the
            first at 0.
        stopped: where the frame begins that was not taken; the end of the buffer where all were taken.
        problem: None where the buffer ends between frames or inside one (feed more bytes from `stopped` on),
            else `"length crc"`, `"length over limit"` or `"payload crc"`.
        expected: what the frame at `stopped` claims: its stored CRC (masked, as stored), or the limit.
        found: what its bytes give: their CRC (masked), or the length.
        crcs: uint32[n], CRC-32C of all bytes up to the end of each frame; None where that would take another
            walk over them.
    """

    frame_stops: NDArray[np.int64]
    stopped: int
    problem: str | None = None
    expected: int | None = None
    found: int | None = None
    crcs: NDArray[np.uint32] | None = None


class Frames(NamedTuple):
    """Frames of one block, encoded, and what an index says of them.

    Attributes:
        frames: their bytes.
        frame_stops: uint32[n], end of each frame.
        crc32c: of `frames`.
    """

    frames: bytes
    frame_stops: NDArray[np.uint32]
    crc32c: int


def as_index(blocks: int, by_block: Sequence[Any], by_row: Sequence[Any]) -> int:
    """Check that the columns of an index have lengths that fit each other, and return its number of rows.

    Args:
        blocks: how many it has.
        by_block: columns of one value a block, None where there is none; the first is the rows in each and
            all before it.
        by_row: those of one value a row.

    Raises:
        ValueError: they have not.
    """
    rows = int(by_block[0][-1]) if len(by_block[0]) else 0
    lengths = [[column.size for column in columns if column is not None] for columns in (by_block, by_row)]
    if set(lengths[0]) != {blocks} or not set(lengths[1]) <= {rows}:
        raise ValueError(f"columns: expected {rows} rows in {blocks} blocks, found lengths {lengths}")
    return rows


def as_bytes(buffer: Any) -> NDArray[np.uint8]:
    """View any C-contiguous buffer (bytes, memoryview, mmap, array) as a flat uint8 array, without a copy."""
    try:
        return np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        message = f"expected bytes or another contiguous buffer, found {type(buffer).__name__}: {error}"
        raise TypeError(message) from None


def as_offsets(offsets: ArrayLike, what: str) -> NDArray[np.int64]:
    """Turn a list or array of integers into a contiguous int64 array of one dimension."""
    array = np.asarray(offsets)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        message = f"{what}: expected a list or array of integers, found {array.dtype} of shape {array.shape}"
        raise TypeError(message)
    return np.ascontiguousarray(array, np.int64)


def as_pairs(starts: ArrayLike, stops: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn starts and stops into int64 arrays and check that there are as many of one as of the other."""
    first, last = as_offsets(starts, "starts"), as_offsets(stops, "stops")
    if first.size != last.size:
        raise ValueError(f"expected as many starts as stops, found {first.size} and {last.size}")
    return first, last


def as_ranges(
    words: ArrayLike, starts: ArrayLike, counts: ArrayLike
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Check a key of two words, and ranges of places: how many from where.

    Raises:
        ValueError: there are not two words, or not as many starts as counts.
        IndexError: a range begins before 0, or has fewer than 0 or more than 2**32 - 1 places.
    """
    key = np.ascontiguousarray(words, np.uint64)
    if key.shape != (2,):
        raise ValueError(f"a key has two words, found an array of shape {key.shape}")
    first, many = as_pairs(starts, counts)
    if first.size and (first.min() < 0 or many.min() < 0 or many.max() > MAX_BLOCK):
        row = int(np.flatnonzero((first < 0) | (many < 0) | (many > MAX_BLOCK))[0])
        raise IndexError(f"range {row} has {many[row]} places from {first[row]} on; neither may be below 0")
    return key, first, many


def as_out(out: Any, *shape: int) -> NDArray[np.uint8]:
    """Check that an array is uint8 of a shape and in C order, and can be written to.

    Raises:
        ValueError: it is not, or cannot.
    """
    array: NDArray[Any] = out if isinstance(out, np.ndarray) else np.zeros(0)
    wanted = array.dtype == np.uint8 and array.shape == shape
    if not (wanted and array.flags.c_contiguous and array.flags.writeable):
        found = f"{array.dtype} of shape {array.shape}" if array is out else type(out).__name__
        raise ValueError(f"out: expected uint8 of shape {shape} in C order and writable, found {found}")
    return array


def as_sources(
    buffers: Sequence[Any], which: ArrayLike, starts: ArrayLike, stops: ArrayLike
) -> tuple[list[NDArray[np.uint8]], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Check that every `[start, stop)` is inside the buffer that `which` names for it.

    Raises:
        ValueError: `which`, `starts` and `stops` are not of one length.
        IndexError: there is no such buffer, or a range is turned round or leaves its buffer.
    """
    views = [as_bytes(buffer) for buffer in buffers]
    number = as_offsets(which, "which")
    first, last = as_pairs(starts, stops)
    if number.size != first.size:
        message = f"expected as many numbers of buffers as ranges, found {number.size} and {first.size}"
        raise ValueError(message)
    if number.size:
        if number.min() < 0 or number.max() >= len(views):
            raise IndexError(
                f"which: expected numbers from 0 to {len(views) - 1}, found {number.min()} to {number.max()}"
            )
        sizes = np.array([view.size for view in views], np.int64)[number]
        wrong = (first < 0) | (first > last) | (last > sizes)
        if bool(wrong.any()):
            row = int(np.flatnonzero(wrong)[0])
            where = f"[{first[row]}, {last[row]})"
            raise IndexError(f"range {row} is {where}, which is not in its buffer of {sizes[row]} bytes")
    return views, number, first, last


def as_rows(starts: ArrayLike, length: int, out: Any, size: int) -> NDArray[np.int64]:
    """Check what `gather_fixed` is given: bounds inside the buffer, and a place for every row."""
    first = as_offsets(starts, "starts")
    if length < 0:
        raise ValueError(f"length: expected 0 or more bytes, found {length}")
    as_out(out, first.size, length)
    if first.size and (first.min() < 0 or first.max() > size - length):
        row = int(np.flatnonzero((first < 0) | (first > size - length))[0])
        start = int(first[row])
        message = f"range {row} is [{start}, {start + length}), which is not in a buffer of {size} bytes"
        raise IndexError(message)
    return first


def as_images(source: NDArray[np.uint8], out: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Check what `resize_image` is given, and return the image with its pixels side by side in each row."""
    for array, name in ((source, "source"), (out, "out")):
        if (
            array.dtype != np.uint8
            or array.ndim != 3
            or not 0 < min(array.shape) <= max(array.shape) < 1 << 31
        ):
            message = f"{name} must be uint8 [height, width, channels], found {array.dtype} {array.shape}"
            raise ValueError(message)
    if source.shape[2] != out.shape[2] or source.shape[2] not in (1, 3):
        raise ValueError(f"images have 1 channel or 3, found {source.shape[2]} and {out.shape[2]}")
    as_out(out, *out.shape)
    side_by_side = source.strides[1:] == (source.shape[2], 1) and source.strides[0] > 0
    return source if side_by_side else np.ascontiguousarray(source)


def as_box(box: ArrayLike | None, source: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Check the part of an image that `resize_image` is given; the whole image where it is None."""
    height, width = source.shape[:2]
    if box is None:
        box = (0, 0, width, height)
    found = np.array(box, np.float32)
    if found.shape != (4,):
        raise ValueError(f"box must be (left, top, right, bottom), found {box!r}")
    left, top, right, bottom = found.tolist()
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise ValueError(f"box {tuple(found.tolist())} must be within an image of {width} x {height} pixels")
    return found
