"""Rows of windows, brought together wherever their windows keep them: in memory, or in files until now."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio import kernels
from shardio.errors import StorageError
from shardio.reader import read_frames, read_records
from shardio.redact import redact
from shardio.storage import ShortReadError
from shardio.streaming._memory import Memory
from shardio.streaming._tuning import TUNING
from shardio.streaming._windows import FRAME_FIELDS, WindowData, load_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardio.reader import Damage, OpenShard
    from shardio.storage import NamedFile
    from shardio.streaming._stats import Counters

    Windows = list[WindowData]

_FRAME_BYTES = 8 * FRAME_FIELDS


class TakenRows(NamedTuple):
    """The payloads of rows.

    Attributes:
        records: each an object of its own; or None, and then
        values, offsets: uint8, and int64 [rows + 1] where each begins and the last one stops.
        kept: int64, the numbers of these rows among those that were wanted; None for all of them.
    """

    records: list[bytes] | None
    values: NDArray[np.uint8] = np.empty(0, np.uint8)
    offsets: NDArray[np.int64] = np.zeros(1, np.int64)
    kept: NDArray[np.int64] | None = None


class RowReader:
    """Brings rows of windows together; the threads of a pass share it.

    Args:
        damage: what to do about it.
        counters: of time.
    """

    def __init__(self, damage: Damage, counters: Counters) -> None:
        self._damage, self._counters = damage, counters
        self._memory = Memory(mapped=True, most=TUNING.batch_memory)

    def take(
        self, windows: Windows, which: NDArray[np.int64], rows: NDArray[np.int64], *, as_bytes: bool
    ) -> TakenRows:
        """Return the payloads of rows.

        Args:
            windows: that they are in.
            which: int64[rows], the number of each row's window.
            rows: int64[rows], the number of each row in its window.
            as_bytes: records stay what they are, so each may be an object of its own.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage.
            StorageError: the environment failed.
        """
        unread = np.array([each.unread for each in windows], bool)
        if unread.any() or any(each.later is not None for each in windows):
            with self._counters.timed("fetch_seconds"):
                if unread.size and unread.all():
                    return self._read(windows, which, rows, as_bytes=as_bytes)
                for number, window in enumerate(windows):
                    if window.later is not None:
                        window.later.open(rows[which == number])
                if unread.any():
                    windows, which, rows = self._with_read(windows, which, rows, unread)
        with self._counters.timed("decode_seconds"):
            return _gather(windows, which, rows, as_bytes=as_bytes)

    def _with_read(
        self,
        windows: Windows,
        which: NDArray[np.int64],
        rows: NDArray[np.int64],
        unread: NDArray[np.bool_],
    ) -> tuple[Windows, NDArray[np.int64], NDArray[np.int64]]:
        """Return windows, and where rows are in them, with one of those rows that were not read yet."""
        stored = [each for each in windows if each.unread]
        others = [each for each in windows if not each.unread]
        own = np.flatnonzero(unread[which])
        found = self._read(stored, (np.cumsum(unread) - 1)[which[own]], rows[own], as_bytes=False)
        starts, stops = found.offsets[:-1], found.offsets[1:]
        table = np.stack([np.zeros_like(starts), starts, stops])
        read = WindowData([memoryview(found.values)], table, stored[0].component, stored[0].pieces)
        number = np.where(unread, len(others), np.cumsum(~unread) - 1)
        rows = rows.copy()
        rows[own] = np.arange(own.size)
        return [*others, read], number[which], rows

    def _read(
        self, windows: Windows, which: NDArray[np.int64], rows: NDArray[np.int64], *, as_bytes: bool
    ) -> TakenRows:
        """Read and compare rows of windows that hold no records."""
        files, frames = _locate_frames(which, rows, windows)
        if as_bytes:
            records = [b""] * len(rows)
            with _explained(windows, len(rows)) as left:
                # Read to where they stay.
                records, some = read_records(files, frames)
                left.extend(some)
            for place, payload in self._read_again(left, which, rows, windows):
                records[place] = payload.tobytes()
            return TakenRows(records)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(frames[:, 2], out=offsets[1:])
        size = int(offsets[-1])
        large = size >= 2 * TUNING.huge_page
        values = np.asarray(self._memory.take(size))[:size] if large else np.empty(size, np.uint8)
        with _explained(windows, len(rows)) as left:
            left.extend(read_frames(files, frames, values, offsets))
        for place, payload in self._read_again(left, which, rows, windows):
            values[offsets[place] : offsets[place + 1]] = payload
        return TakenRows(None, values, offsets)

    def _read_again(
        self,
        left: list[tuple[slice, bool]],
        which: NDArray[np.int64],
        rows: NDArray[np.int64],
        windows: Windows,
    ) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield place and payload of rows that `read_frames` left."""
        for some, wrong in left:
            for number in np.unique(which[some]).tolist():
                own = some.start + np.flatnonzero(which[some] == number)
                values, edges = load_rows(windows[number], rows[own], self._damage, changed=wrong)
                for k, place in enumerate(own.tolist()):
                    yield place, values[edges[k] : edges[k + 1]]


def _gather(
    windows: Windows, which: NDArray[np.int64], rows: NDArray[np.int64], *, as_bytes: bool
) -> TakenRows:
    """Bring together rows of windows that hold them."""
    whole = [own for each in windows if (own := each.whole) is not None]
    if len(whole) == len(windows):
        # No window lacks a row, and each is in one buffer of its own.
        found = [each.buffers[0] for each in windows], whole, which, rows
        if as_bytes:
            # What records stay is made at once, without a copy of all of them between.
            return TakenRows(kernels.slice_rows(*found))
        return TakenRows(None, *kernels.gather_rows(*found))
    buffers, table = _locate_rows(which, rows, windows)
    kept = None
    if not (table[0] >= 0).all():
        kept = np.flatnonzero(table[0] >= 0)
        table = table[:, kept]
    return TakenRows(None, *kernels.gather_from(buffers, *table), kept)


def _locate_rows(
    which: NDArray[np.int64], rows: NDArray[np.int64], windows: Windows
) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the buffers of all windows, and int64[3, rows]: each row's buffer, start and stop.

    Args:
        which: int64[rows], the number of each row's window.
        rows: int64[rows], the number of each row in its window.
        windows: their data, read.
    """
    buffers: list[Any] = []
    numbers: dict[int, int] = {}
    order = np.argsort(which, kind="stable") if len(windows) > 1 else slice(None)
    local = rows[order]
    table = np.empty((3, len(local)), np.int64)
    low = 0
    for window, count in zip(windows, np.bincount(which, minlength=len(windows)).tolist(), strict=True):
        part = table[:, low : low + count]
        window.places(local[low : low + count], part)
        # The same map is behind many windows; each buffer is handed over once.
        own = []
        for buffer in window.buffers:
            number = numbers.setdefault(id(buffer), len(buffers))
            if number == len(buffers):
                buffers.append(buffer)
            own.append(number)
        if own != list(range(len(own))):
            # The last entry is what -1, a row that is skipped, points to.
            part[0] = np.array([*own, -1])[part[0]]
        low += count
    out = np.empty_like(table)
    out[:, order] = table
    return buffers, out


def _locate_frames(
    which: NDArray[np.int64], rows: NDArray[np.int64], windows: Windows
) -> tuple[list[NamedFile], NDArray[np.int64]]:
    """Return the files of all windows, and of each row what `read_frames` takes; see `RowReader.take`."""
    numbers: dict[NamedFile, int] = {}
    # By window and number of a file in it, where the first of a window is, and the file's number among all.
    first: list[int] = []
    own: list[int] = []
    for window in windows:
        first.append(len(own))
        own += [numbers.setdefault(file, len(numbers)) for file in window.buffers]
    starts = rows * _FRAME_BYTES
    found, _ = kernels.gather_from([each.table for each in windows], which, starts, starts + _FRAME_BYTES)
    frames = found.view(np.int64).reshape(-1, FRAME_FIELDS)
    frames[:, 0] = np.array(own)[np.array(first)[which] + frames[:, 0]]
    return list(numbers), frames


def _shard_at(url: str | None, windows: Windows) -> OpenShard:
    """Return the shard of windows whose file is at an address."""
    for window in windows:
        pool = window.component.source.pool
        for number in np.unique(window.pieces.shards).tolist():
            if redact(pool.url_of(number)) == url:
                return pool.get(number)
    raise AssertionError(f"{url} is not a shard of these windows")


@contextlib.contextmanager
def _explained(windows: Windows, rows: int) -> Iterator[list[tuple[slice, bool]]]:
    """Raise what the shard says of it where a file of windows ends too early.

    Yields:
        A list for what `read_frames` returns: all rows, where a file of scratch or of a cache failed.
    """
    left: list[tuple[slice, bool]] = []
    try:
        yield left
    except StorageError as error:
        if any(error.url == redact(file.url) for each in windows if each.is_copied for file in each.buffers):
            left[:] = [(slice(0, rows), False)]
        elif isinstance(error, ShortReadError):
            raise _shard_at(error.url, windows).explain(error) from error
        else:
            raise
