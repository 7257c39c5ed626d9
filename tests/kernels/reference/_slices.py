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
from tests.kernels.reference._frames import HEAD, TAIL


def slice_records(buffer: Any, starts: ArrayLike, stops: ArrayLike) -> list[bytes]:
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
    views, number, first, last = as_sources(buffers, which, starts, stops)
    offsets = np.zeros(first.size + 1, np.int64)
    np.cumsum(last - first, out=offsets[1:])
    sources = [memoryview(view) for view in views]
    ranges = zip(number.tolist(), first.tolist(), last.tolist(), strict=True)
    parts = [sources[source][start:stop] for source, start, stop in ranges]
    return np.frombuffer(bytearray().join(parts), np.uint8), offsets


def gather_into(buffer: Any, starts: ArrayLike, stops: ArrayLike, out: NDArray[np.uint8]) -> None:
    values, _ = gather(buffer, starts, stops)
    as_out(out, values.size)[:] = values


def gather_rows(
    buffers: Sequence[Any], tables: Sequence[NDArray[np.uint32]], which: ArrayLike, rows: ArrayLike
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
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
    values, offsets = gather_rows(buffers, tables, which, rows)
    return slice_records(values, offsets[:-1], offsets[1:])
