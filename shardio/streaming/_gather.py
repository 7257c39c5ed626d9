"""Where the rows of a stride lie: in which buffer, for the gather, and in which shard, for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.errors import ShardioError
    from shardio.order import Draw
    from shardio.streaming._planned import Planned
    from shardio.streaming._windows import WindowData

__all__ = ["address", "locate", "located"]


def locate(draw: Draw, windows: list[WindowData]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the buffers of all windows, and int64[3, rows]: each drawn row's buffer, start and stop."""
    buffers: list[Any] = []
    numbers: dict[int, int] = {}
    order = np.argsort(draw.which, kind="stable") if len(windows) > 1 else slice(None)
    local = draw.local[order]
    table = np.empty((3, len(local)), np.int64)
    low = 0
    for window, count in zip(windows, np.bincount(draw.which, minlength=len(windows)).tolist(), strict=True):
        part = window.table.take(local[low : low + count], axis=1)
        # The same map stands behind many windows; each buffer is handed over once.
        own = []
        for buffer in window.buffers:
            number = numbers.setdefault(id(buffer), len(buffers))
            if number == len(buffers):
                buffers.append(buffer)
            own.append(number)
        if own != list(range(len(own))):
            # The last entry is what -1, a row that is skipped, points to.
            part[0] = np.array([*own, -1])[part[0]]
        table[:, low : low + count] = part
        low += count
    out = np.empty_like(table)
    out[:, order] = table
    return buffers, out


def address(planned: Planned, data: list[WindowData], row: int) -> tuple[str, str, int]:
    """Return URL and key of the shard, and the row in it, of a row of a stride."""
    drawn = int(planned.stride.turn[row])
    window = data[int(planned.draw.which[drawn])]
    number, physical = window.place(int(planned.draw.local[drawn]))
    source = window.member.source
    return source.pool.url_of(number), source.table.key[number], physical


def located(
    error: ShardioError, planned: Planned, data: list[WindowData], rows: NDArray[np.int64]
) -> ShardioError:
    """Return a codec's error, which knows the row of its call, with the address of the record.

    Args:
        error: of the codec.
        planned: the stride.
        data: its windows.
        rows: rows of the stride that the codec was given.
    """
    if error.row is None or error.url is not None:
        return error
    url, shard, row = address(planned, data, int(rows[error.row]))
    error.row = None
    return error.located(url=url, shard=shard, row=row)
