"""Records out of one buffer: as a list of bytes, as rows of an array, as values and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.kernels.reference._shared import as_bounds, as_bytes, as_rows, as_sources


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
