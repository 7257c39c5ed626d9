"""Storage order: large runs of blocks, read ahead of the consumer."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shardio.errors import ShardioError
from shardio.format import Compression
from shardio.reader._lookup import lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardio.reader._shard import OpenShard
    from shardio.reader._source import Source
    from shardio.reader._spans import Span

__all__ = ["block_runs", "iterate_payloads"]

# Stored bytes of one run: large enough for a bucket's latency and for NumPy's, small enough to hold several.
_RUN_BYTES = 1 << 20
_MOST_ROWS = 1 << 14
# What compresses well, or was made to, must not fill the memory: a megabyte can stand for gigabytes.
_MOST_DECODED = 16 << 20
# Runs of remote shards under way ahead of the consumer: 16 MiB hide 20 ms at 800 MB/s. It begins with one,
# so that who takes a single record does not pay for many.
_AHEAD = 16
_HEADS = 32  # index heads that are fetched together


def iterate_payloads(source: Source, selection: range | NDArray[np.int64]) -> Iterator[list[bytes]]:
    """Yield the payloads of a selection in its order, in lists of any length."""
    if not isinstance(selection, range) or selection.step != 1:
        for k in range(0, len(selection), 1024):
            yield lookup(source.pool, source.stops, np.asarray(selection[k : k + 1024], np.int64))
        return
    if not len(selection):
        return
    if source.is_local:
        for wait in _begun(source, selection):
            yield wait()
        return
    waiting: deque[Callable[[], list[bytes]]] = deque()
    begun, ahead = _begun(source, selection), 1
    while True:
        waiting.extend(itertools.islice(begun, ahead - len(waiting)))
        if not waiting:
            return
        yield waiting.popleft()()
        ahead = min(2 * ahead, _AHEAD)


def _begun(source: Source, selection: range) -> Iterator[Callable[[], list[bytes]]]:
    """Yield what waits for each run of records in turn, after its requests were sent."""
    first = int(np.searchsorted(source.stops, selection.start, side="right"))
    last = int(np.searchsorted(source.stops, selection.stop - 1, side="right"))
    numbers = [number for number in range(first, last + 1) if source.table.live_rows[number]]
    for place, number in enumerate(numbers):
        before = int(source.stops[number - 1]) if number else 0
        start = max(selection.start - before, 0)
        stop = min(selection.stop, int(source.stops[number])) - before
        try:
            if place % _HEADS == 1 and not source.is_local:
                # A shard that cannot be opened fails in its own turn, below, not in that of an earlier one.
                with contextlib.suppress(ShardioError):
                    source.pool.prepare(numbers[place : place + _HEADS])
            yield from _begin_shard(source, number, start, stop)
        except Exception as error:  # noqa: BLE001 - it is raised in its turn, after the records before it
            yield partial(_fail, error)
            return


def _fail(error: Exception) -> list[bytes]:
    raise error


def _begin_shard(source: Source, number: int, start: int, stop: int) -> Iterator[Callable[[], list[bytes]]]:
    """Begin the live rows `start .. stop - 1` of one shard, run by run."""
    shard = source.pool.get(number)
    deleted = source.pool.deleted(number)
    if deleted is None:
        first_row, stop_row = start, stop
    else:
        from shardio.metadata import live_to_physical

        first_row, last = live_to_physical(np.array([start, stop - 1]), deleted).tolist()
        stop_row = last + 1
    blocks = shard.blocks_of(np.array([first_row, stop_row - 1]))
    for run in block_runs(shard, int(blocks[0]), int(blocks[1]) + 1):
        yield partial(_finish, shard.begin([run]), first_row, stop_row, deleted)


def _finish(
    wait: Callable[[], list[Span]], first_row: int, stop_row: int, deleted: NDArray[np.int64] | None
) -> list[bytes]:
    span = wait()[0]
    rows = np.arange(max(first_row, span.first_row), min(stop_row, span.first_row + len(span)))
    if deleted is not None:
        rows = np.setdiff1d(rows, deleted, assume_unique=True)
    return span.payloads() if len(rows) == len(span) else span.take(rows)


def block_runs(shard: OpenShard, first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut the blocks `first .. stop - 1` into runs of about a megabyte, bounded in rows and decoded bytes."""
    head = shard.head
    while first < stop:
        start_byte = head.block_bounds(first)[0]
        start_row = head.block_rows(first)[0]
        by_bytes = int(np.searchsorted(head.block_stop, start_byte + _RUN_BYTES, side="right"))
        by_rows = int(np.searchsorted(head.block_row_stop, start_row + _MOST_ROWS, side="right"))
        end = min(stop, max(first + 1, min(by_bytes, by_rows)))
        if head.compression is not Compression.NONE:
            decoded = np.cumsum(head.block_decoded_bytes[first:end], dtype=np.int64)
            end = first + max(1, int(np.searchsorted(decoded, _MOST_DECODED, side="right")))
        yield first, end
        first = end
