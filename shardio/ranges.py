"""Byte ranges as arithmetic: which ranges to ask for, and which slice of the answers belongs to which range.

Pure: NumPy in, NumPy out, no I/O.  The promises of this file: every item is wholly inside the merged range
that owns it; no merged range is longer than `max_bytes` unless its longest item is; no merged range is empty;
the order and the repeats of the items do not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Coalesced", "coalesce", "scatter"]


class Coalesced(NamedTuple):
    """Merged ranges, and which of them holds each item.

    Attributes:
        starts, stops: int64 columns of the merged ranges, by rising start; none is empty.
        owner: int64 column, one per item: number of the merged range that holds it, -1 for an empty item.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    owner: NDArray[np.int64]


def coalesce(starts: ArrayLike, stops: ArrayLike, *, gap: int = 0, max_bytes: int | None = None) -> Coalesced:
    """Merge ranges that overlap, touch or are at most `gap` bytes apart.

    Args:
        starts, stops: int64 columns of equal length, half-open; any order, repeats and empty ranges allowed.
        gap: bytes that may be fetched needlessly to save a request.
        max_bytes: a merged range is at most this long, unless a single item is longer; None for no bound.
            Merged ranges may then overlap where items do.

    Raises:
        ValueError: a range is negative, reversed, or the columns differ in length.
    """
    low, high = _columns(starts, stops)
    if gap < 0 or (max_bytes is not None and max_bytes < 1):
        msg = f"gap must be >= 0 and max_bytes >= 1, found gap={gap}, max_bytes={max_bytes}"
        raise ValueError(msg)
    owner = np.full(low.size, -1, np.int64)
    filled = np.flatnonzero(high > low)
    if filled.size == 0:
        nothing = np.empty(0, np.int64)
        return Coalesced(nothing, nothing, owner)

    # Among equal starts the longest comes first, so that the shorter ones are inside it.
    order = filled[np.lexsort((-high[filled], low[filled]))]
    low, reach = low[order], np.maximum.accumulate(high[order])
    opens = np.ones(low.size, np.bool_)
    opens[1:] = low[1:] - reach[:-1] > gap
    if max_bytes is not None:
        _cut(opens, low, reach, max_bytes)
    first = np.flatnonzero(opens)
    owner[order] = np.cumsum(opens) - 1
    return Coalesced(low[first], np.maximum.reduceat(high[order], first), owner)


def _columns(starts: ArrayLike, stops: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    low, high = np.asarray(starts, np.int64), np.asarray(stops, np.int64)
    if low.ndim != 1 or low.shape != high.shape:
        msg = f"starts and stops must be one-dimensional and of equal length, found {low.shape}, {high.shape}"
        raise ValueError(msg)
    wrong = np.flatnonzero((low < 0) | (high < low))
    if wrong.size:
        i = int(wrong[0])
        msg = f"a byte range needs 0 <= start <= stop, found [{low[i]}, {high[i]}) as item {i}"
        raise ValueError(msg)
    return low, high


def _cut(opens: NDArray[np.bool_], low: NDArray[np.int64], reach: NDArray[np.int64], max_bytes: int) -> None:
    """Open further ranges where a merged one would exceed `max_bytes`: one step per range, not per item.

    An item that opens a range reaches further than all items before it, so the running maximum over the whole
    column serves for every range, and the next cut is found by bisection.
    """
    first = np.flatnonzero(opens)
    last = np.append(first[1:], low.size)
    too_long = reach[last - 1] - low[first] > max_bytes
    for begin, end in zip(first[too_long].tolist(), last[too_long].tolist(), strict=True):
        i = begin
        while i < end:
            opens[i] = True
            limit = max(int(low[i]) + max_bytes, int(reach[i]))
            i = begin + int(np.searchsorted(reach[begin:end], limit, side="right"))


def scatter(
    buffers: Sequence[bytes | memoryview], merged: Coalesced, starts: ArrayLike, stops: ArrayLike
) -> list[memoryview]:
    """Hand back each item's bytes from the answers to the merged ranges, without copying.

    Args:
        buffers: the bytes of `merged`, one buffer per merged range, each of exactly its length.
        merged: what `coalesce` made of these very `starts` and `stops`.

    Returns:
        One view per item, in the order the items were given.

    Raises:
        ValueError: the number or the length of the buffers is not that of the merged ranges.
    """
    low, high = _columns(starts, stops)
    lengths = (merged.stops - merged.starts).tolist()
    if [len(buffer) for buffer in buffers] != lengths or low.size != merged.owner.size:
        msg = "scatter needs one buffer of the right length per merged range, and the items that were merged"
        raise ValueError(msg)
    views = [memoryview(buffer) for buffer in buffers]
    nothing = memoryview(b"")
    base = merged.starts[merged.owner] if merged.starts.size else np.zeros_like(low)
    places = zip(merged.owner.tolist(), (low - base).tolist(), (high - base).tolist(), strict=True)
    return [views[own][start:stop] if own >= 0 else nothing for own, start, stop in places]
