"""Byte ranges: which ranges to request, and which slice of the responses belongs to which item.

Pure: numbers in, numbers out, no I/O.  The promises of this file: every item is wholly inside the merged
range that owns it; no merged range is longer than `max_bytes` unless its longest item is; no merged range is
empty; the order and the repeats of the items do not matter.

For a dozen ranges, the usual number, a loop over plain numbers costs a sixth of NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Coalesced", "coalesce", "distinct", "runs_of", "scatter"]

_NOWHERE = -1, 0, 0


class Coalesced(NamedTuple):
    """Merged ranges, and where in them each item is.

    Attributes:
        ranges: start and stop of the merged ranges, by rising start; none is empty.
        places: of each item the number of the merged range that holds it, -1 for an empty item, and its start
            and stop in there.
    """

    ranges: list[tuple[int, int]]
    places: list[tuple[int, int, int]]


def coalesce(starts: ArrayLike, stops: ArrayLike, *, gap: int = 0, max_bytes: int | None = None) -> Coalesced:
    """Merge ranges that overlap, touch or are at most `gap` bytes apart.

    Args:
        starts, stops: int64 columns of equal length, half-open; any order, repeats and empty ranges allowed.
        gap: unneeded bytes that may be fetched to save a request.
        max_bytes: a merged range is at most this long, unless a single item is longer; None for no bound.
            Merged ranges may then overlap where items do.

    Raises:
        ValueError: a range is negative, reversed, or the columns differ in length.
    """
    low, high = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
    if low.ndim != 1 or low.shape != high.shape:
        msg = f"starts and stops must be one-dimensional and of equal length, found {low.shape}, {high.shape}"
        raise ValueError(msg)
    wrong = (low < 0) | (high < low)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise ValueError(f"a byte range needs 0 <= start <= stop, found [{low[i]}, {high[i]}) as item {i}")
    if gap < 0 or (max_bytes is not None and max_bytes < 1):
        raise ValueError(f"gap must be >= 0 and max_bytes >= 1, found gap={gap}, max_bytes={max_bytes}")
    # Among equal starts the longest comes first, so that the shorter ones are inside it.
    order = np.lexsort((-high, low)).tolist()
    most = float("inf") if max_bytes is None else max_bytes
    begins: list[int] = []
    ends: list[int] = []
    places = [_NOWHERE] * low.size
    begin = end = -gap - 1
    froms, tos = low.tolist(), high.tolist()
    for item in order:
        start, stop = froms[item], tos[item]
        if start == stop:
            continue
        if start - end > gap or stop > max(end, begin + most):
            begin, end = start, stop
            begins.append(start)
            ends.append(stop)
        elif stop > end:
            end = ends[-1] = stop
        places[item] = len(ends) - 1, start - begin, stop - begin
    return Coalesced(list(zip(begins, ends, strict=True)), places)


def scatter(buffers: Sequence[bytes | memoryview], merged: Coalesced) -> list[memoryview]:
    """Return each item's bytes from the responses to the merged ranges, zero-copy.

    Args:
        buffers: the bytes of `merged.ranges`, one buffer each, of exactly its length.
        merged: the result of `coalesce` for the items.

    Returns:
        One view per item, in the order the items were given.

    Raises:
        ValueError: the number or the length of the buffers is not that of the merged ranges.
    """
    if [len(buffer) for buffer in buffers] != [stop - start for start, stop in merged.ranges]:
        raise ValueError("scatter needs one buffer of the right length per merged range")
    views = [memoryview(buffer) for buffer in buffers]
    nothing = memoryview(b"")
    return [views[owner][start:stop] if owner >= 0 else nothing for owner, start, stop in merged.places]


def distinct(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct numbers of an array, ascending.

    `numpy.unique` would import `numpy.ma`, which takes longer than a first batch.
    """
    ordered = np.sort(numbers)
    kept = np.ones(ordered.size, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=kept[1:])
    return ordered[kept]


def runs_of(numbers: ArrayLike) -> list[tuple[int, int]]:
    """Return half-open runs of consecutive numbers, of ascending ones that are not negative."""
    given = np.asarray(numbers, np.int64)
    edges = np.flatnonzero(np.diff(given, prepend=-2, append=-2) != 1)
    return list(zip(given[edges[:-1]].tolist(), (given[edges[1:] - 1] + 1).tolist(), strict=True))
