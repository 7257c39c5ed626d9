"""Records out of one buffer: as a list of bytes, as rows of an array, as values and offsets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.kernels._arguments import (
    as_bounds,
    as_bytes,
    as_frame_tables,
    as_out,
    as_parts,
    as_rows,
    as_sources,
    as_tables,
    frame_of_no_part,
    row_outside,
)
from shardio.kernels._reference._frames import HEAD, TAIL


def slice_records(buffer: Any, starts: ArrayLike, stops: ArrayLike) -> list[bytes]:
    """Copy the ranges `[starts[i], stops[i])` of any contiguous buffer out as a list of bytes.

    Ranges may overlap and come in any order.

    Raises:
        IndexError: a range leaves the buffer.
    """
    data = as_bytes(buffer)
    first, last = as_bounds(starts, stops, data.size)
    if not first.size:
        return []
    low, high = int(first.min()), int(last.max())
    # A slice of bytes costs half of a slice of anything else, so copying the span first pays where the
    # records fill most of it.
    if isinstance(buffer, bytes):
        source, low = buffer, 0
    elif high - low <= 2 * int((last - first).sum()):
        source = data[low:high].tobytes()
    else:
        view = memoryview(data)
        return [bytes(view[start:stop]) for start, stop in zip(first.tolist(), last.tolist(), strict=True)]
    if low:
        first, last = first - low, last - low
    return [source[start:stop] for start, stop in zip(first.tolist(), last.tolist(), strict=True)]


def gather_fixed(buffer: Any, starts: ArrayLike, length: int, out: NDArray[np.uint8]) -> None:
    """Copy records of equal length to the rows of `out`, which must not overlap the buffer.

    Args:
        buffer: any contiguous buffer.
        starts: int64[n], where the records begin; in any order, with repeats.
        length: bytes of every record.
        out: writable uint8[n, length] in C order.

    Raises:
        IndexError: a record leaves the buffer.
        ValueError: `out` has another shape or dtype.
    """
    data = as_bytes(buffer)
    first = as_rows(starts, length, out, data.size)
    if not out.size:
        return
    step = int(first[1] - first[0]) if first.size > 1 else 0
    if step > 0 and bool((np.diff(first) == step).all()):
        rows = np.lib.stride_tricks.as_strided(data[first[0] :], (first.size, length), (step, 1))
        out[:] = rows
        return
    # Every place of the buffer as one opaque item: indexing copies whole records, without an index per byte.
    item = np.dtype((np.void, length))
    windows = np.ndarray((data.size - length + 1,), item, data, strides=(1,))
    out.view(item)[:, 0] = windows[first]


def gather(buffer: Any, starts: ArrayLike, stops: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Copy the ranges `[starts[i], stops[i])` one after another.

    Returns:
        values: uint8[total]; record i is `values[offsets[i]:offsets[i + 1]]`.
        offsets: int64[n + 1], the first 0.

    Raises:
        IndexError: a range leaves the buffer.
    """
    data = as_bytes(buffer)
    first, last = as_bounds(starts, stops, data.size)
    offsets = np.zeros(first.size + 1, np.int64)
    np.cumsum(last - first, out=offsets[1:])
    view = memoryview(data)
    parts = [view[start:stop] for start, stop in zip(first.tolist(), last.tolist(), strict=True)]
    return np.frombuffer(bytearray().join(parts), np.uint8), offsets


def gather_from(
    buffers: Sequence[Any], which: ArrayLike, starts: ArrayLike, stops: ArrayLike
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Copy ranges of several buffers one after another.

    Range i is `[starts[i], stops[i])` of `buffers[which[i]]`.

    Returns:
        values: uint8[total]; record i is `values[offsets[i]:offsets[i + 1]]`.
        offsets: int64[n + 1], the first 0.

    Raises:
        IndexError: there is no such buffer, or a range leaves it.
    """
    views, number, first, last = as_sources(buffers, which, starts, stops)
    offsets = np.zeros(first.size + 1, np.int64)
    np.cumsum(last - first, out=offsets[1:])
    sources = [memoryview(view) for view in views]
    ranges = zip(number.tolist(), first.tolist(), last.tolist(), strict=True)
    parts = [sources[source][start:stop] for source, start, stop in ranges]
    return np.frombuffer(bytearray().join(parts), np.uint8), offsets


def gather_into(buffer: Any, starts: ArrayLike, stops: ArrayLike, out: NDArray[np.uint8]) -> None:
    """Copy the ranges `[starts[i], stops[i])` one after another to `out`, uint8, which they fill.

    Raises:
        IndexError: a range leaves the buffer.
        ValueError: `out` has another size.
    """
    values, _ = gather(buffer, starts, stops)
    as_out(out, values.size)[:] = values


def gather_rows(
    buffers: Sequence[Any], tables: Sequence[NDArray[np.uint32]], which: ArrayLike, rows: ArrayLike
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Copy rows of several buffers one after another.

    Row r of buffer k is its bytes `[tables[k][r], tables[k][r + 1])`; what is copied is row `rows[i]` of
    buffer `which[i]`.

    Args:
        buffers: any contiguous buffers.
        tables: of each, uint32[its rows + 1].
        which, rows: int64[n].

    Returns:
        values: uint8[total]; record i is `values[offsets[i]:offsets[i + 1]]`.
        offsets: int64[n + 1], the first 0.

    Raises:
        IndexError: there is no such buffer or row, or the table leads out of the buffer; names the first one.
    """
    views, ends, number, row = as_tables(buffers, tables, which, rows)
    starts, stops = np.empty(row.size, np.int64), np.empty(row.size, np.int64)
    for k, (buffer, at) in enumerate(zip(number.tolist(), row.tolist(), strict=True)):
        if not (0 <= buffer < len(views) and 0 <= at < ends[buffer].size - 1):
            raise row_outside(k, buffer, at)
        starts[k], stops[k] = ends[buffer][at : at + 2]
        if not starts[k] <= stops[k] <= views[buffer].size:
            raise row_outside(k, buffer, at)
    return gather_from(views, number, starts, stops)


def partition_frames(
    buffers: Sequence[Any],
    tables: Sequence[NDArray[np.uint32]],
    part: ArrayLike,
    outs: Sequence[NDArray[np.uint8]],
) -> list[NDArray[np.uint32]]:
    """Copy the payloads of TFRECORD frames apart, each behind those of its part that came before.

    Frame r of buffer k is its bytes `[tables[k][r], tables[k][r + 1])`.

    Args:
        buffers: any contiguous buffers.
        tables: of each, uint32[its frames + 1].
        part: int64[n], of each frame of all buffers, one after another, the number of its part.
        outs: of each part, uint8 array for its payloads, just as large.

    Returns:
        Of each part, uint32[its frames + 1]: where each payload begins in `outs`, and where the last stops.

    Raises:
        IndexError: a table leads out of its buffer, or has no room for a frame, or there is no such part;
            names the first one.
        ValueError: an array of `outs` has not the size of its payloads, or there are too few or many.
    """
    views, ends, number = as_frame_tables(buffers, tables, part)
    found: list[list[NDArray[np.uint8]]] = [[] for _ in outs]
    numbers = iter(number.tolist())
    for k, (view, table) in enumerate(zip(views, ends, strict=True)):
        for row, (start, stop) in enumerate(itertools.pairwise(table.tolist())):
            own = next(numbers)
            if not (start + HEAD + TAIL <= stop <= view.size and 0 <= own < len(found)):
                raise frame_of_no_part(k, row, own)
            found[own].append(view[start + HEAD : stop - TAIL])
    sizes = [np.array([0, *map(len, payloads)]).cumsum() for payloads in found]
    as_parts(outs, np.array([each[-1] for each in sizes], np.int64))
    for out, payloads in zip(outs, found, strict=True):
        out[:] = np.concatenate([np.empty(0, np.uint8), *payloads])
    return [each.astype(np.uint32) for each in sizes]


def slice_rows(
    buffers: Sequence[Any], tables: Sequence[NDArray[np.uint32]], which: ArrayLike, rows: ArrayLike
) -> list[bytes]:
    """Return the rows that `gather_rows` copies as a list of bytes."""
    values, offsets = gather_rows(buffers, tables, which, rows)
    return slice_records(values, offsets[:-1], offsets[1:])
