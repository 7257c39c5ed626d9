"""Rows of one shard -> payloads: vectorised, each block read once."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio.errors import FormatError, NotFoundError, StaleIndexError
from shardio.metadata import live_to_physical
from shardio.reader._files import refuse
from shardio.reader._pool import ShardPool
from shardio.reader._shard import OpenShard
from shardio.reader._tuning import TUNING

# Where payloads are: a buffer, and int64 starts and stops in it.
Placed: TypeAlias = "tuple[Any, NDArray[np.int64], NDArray[np.int64]]"

# What a shard that cannot be opened is, and what may be wrong with its rows.
_REFUSED = (NotFoundError, FormatError, StaleIndexError)


def lookup(pool: ShardPool, stops: NDArray[np.int64], positions: NDArray[np.int64]) -> list[bytes]:
    """Return the payloads at some positions, in the order given.

    Heads of indexes not seen before are fetched together, then all blocks together: two rounds of requests
    for shards first seen, one afterwards.

    Args:
        pool: the shards.
        stops: int64[shards], live rows in this and all earlier shards.
        positions: int64, each within `[0, stops[-1])`; any order, repeats allowed.
    """
    alone = _of_one_shard(stops, positions)
    if alone is not None:
        number, live = alone
        rows = pool.get(number).in_place
        if rows is not None:
            return rows.records(physical_rows(pool, number, live))
    out: list[bytes] = [b""] * len(positions)
    for begun in begin_lookup(pool, stops, positions):
        for item, payload in zip(begun.items, begun.wait(), strict=True):
            out[item] = payload
    return out


class BegunRows(NamedTuple):
    """Some rows of a shard that were asked for.

    Attributes:
        number: of the shard.
        items: the places of these rows among all that are wanted.
        wait: returns their payloads, or raises what is wrong with them alone.
    """

    number: int
    items: list[int]
    wait: Callable[[], list[bytes]]


def begin_lookup(
    pool: ShardPool, stops: NDArray[np.int64], positions: NDArray[np.int64]
) -> Iterator[BegunRows]:
    """Do what `lookup` does, and yield what waits for the rows of one shard after another; arguments are its.

    Raises:
        StorageError: the environment failed.
    """
    order = np.argsort(positions, kind="stable")
    ordered = positions[order]
    shards = np.searchsorted(stops, ordered, side="right")
    cuts = np.flatnonzero(np.diff(shards)) + 1
    edges = [0, *cuts.tolist(), len(ordered)]
    parts = [(int(shards[a]), a, b) for a, b in itertools.pairwise(edges) if a < b]
    items = order.tolist()
    together = pool.capacity
    for first in range(0, len(parts), together):
        some = parts[first : first + together]
        with contextlib.suppress(*_REFUSED):  # it is raised in its turn
            pool.prepare(number for number, _, _ in some)
        yield from _begin_parts(pool, stops, ordered, items, some)


def _begin_parts(
    pool: ShardPool,
    stops: NDArray[np.int64],
    ordered: NDArray[np.int64],
    items: list[int],
    parts: list[tuple[int, int, int]],
) -> Iterator[BegunRows]:
    """Yield the rows of some shards; a part is the number of one, and where its positions begin and end."""
    waiting: list[BegunRows] = []
    blocks = size = 0
    for number, low, end in parts:
        live = ordered[low:end] - (int(stops[number - 1]) if number else 0)
        # A local disk does its work at the end, so waiting for others only holds descriptors.
        alone = pool.is_local(number)
        own = items[low:end]
        try:
            shard = pool.get(number)
            for rows, count, decoded, wait in _begin_rows(shard, physical_rows(pool, number, live)):
                waiting.append(BegunRows(number, own[:rows], wait))
                own = own[rows:]
                blocks += count
                size += decoded
                if alone or blocks >= TUNING.lookup_blocks or size >= TUNING.lookup_bytes:
                    yield from waiting
                    waiting, blocks, size = [], 0, 0
        except _REFUSED as error:
            waiting.append(BegunRows(number, own, partial(refuse, error.located())))
    yield from waiting


def place_together(pool: ShardPool, stops: NDArray[np.int64], positions: NDArray[np.int64]) -> Placed | None:
    """Return where the payloads at some positions are, in the order given, if that is in one mapped shard as
    they are; else None.  Arguments are those of `lookup`.
    """  # noqa: D205 - one thought
    alone = _of_one_shard(stops, positions)
    if alone is None:
        return None
    number, live = alone
    rows = pool.get(number).in_place
    return None if rows is None else rows.places(physical_rows(pool, number, live))


def _of_one_shard(
    stops: NDArray[np.int64], positions: NDArray[np.int64]
) -> tuple[int, NDArray[np.int64]] | None:
    """Return the shard that all positions are in, and their live rows there; None if they are in several."""
    if not len(positions):
        return None
    number = int(np.searchsorted(stops, positions[0], side="right"))
    before = int(stops[number - 1]) if number else 0
    if int(positions.min()) < before or int(positions.max()) >= int(stops[number]):
        return None
    return number, positions - before


def physical_rows(pool: ShardPool, number: int, live: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the physical rows of live rows of a shard."""
    deleted = pool.deleted(number)
    return live if deleted is None else live_to_physical(live, deleted)


def _begin_rows(
    shard: OpenShard, rows: NDArray[np.int64]
) -> Iterator[tuple[int, int, int, Callable[[], list[bytes]]]]:
    """Begin the lookup of ascending rows of one shard; yield numbers of rows, of blocks and of decoded bytes,
    and what waits for them.
    """  # noqa: D205 - one thought
    if shard.in_place is not None:
        found = shard.in_place.records(rows)
        yield len(rows), 0, 0, lambda: found
        return
    places = None if shard.alone is None else shard.alone.places(rows)
    if shard.alone is not None and places is not None:
        starts, stops = places
        held = np.cumsum(stops - starts)
        for k, end in _runs_of(held, TUNING.lookup_bytes):
            some = slice(k, end)
            size = int(held[end - 1]) - (int(held[k - 1]) if k else 0)
            yield end - k, 0, size, shard.alone.begin(rows[some], starts[some], stops[some])
        return
    blocks = shard.head.blocks_of(rows)
    needed = blocks[np.append(True, blocks[1:] != blocks[:-1])]
    sizes = np.cumsum(shard.head.block_decoded_bytes[needed], dtype=np.int64)
    for k, end in _runs_of(sizes, TUNING.lookup_bytes, TUNING.lookup_blocks):
        part = needed[k:end]
        decoded = int(sizes[end - 1]) - (int(sizes[k - 1]) if k else 0)
        own = rows[
            np.searchsorted(blocks, part[0], side="left") : np.searchsorted(blocks, part[-1], side="right")
        ]
        yield len(own), len(part), decoded, shard.begin_rows(own)


def _runs_of(ends: NDArray[np.int64], most_bytes: int, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Cut items into runs of at most so many bytes and items, each of at least one; `ends` sums up bytes."""
    k = 0
    while k < len(ends):
        before = int(ends[k - 1]) if k else 0
        end = max(k + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        end = end if most is None else min(end, k + most)
        yield k, end
        k = end
