"""Rows of one shard -> payloads: vectorised, each block read once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shardio.metadata import live_to_physical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardio.reader._pool import ShardPool
    from shardio.reader._shard import OpenShard

__all__ = ["Placed", "lookup", "physical_rows", "place_together"]

# Where payloads are: a buffer, and int64 starts and stops in it.
Placed: TypeAlias = "tuple[Any, NDArray[np.int64], NDArray[np.int64]]"

# Blocks and decoded bytes that are held at once; a batch over more is read in several goes.
_MOST_BLOCKS = 256
_MOST_BYTES = 64 << 20


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
        found = pool.get(number).records(physical_rows(pool, number, live))
        if found is not None:
            return found
    order = np.argsort(positions, kind="stable")
    ordered = positions[order]
    shards = np.searchsorted(stops, ordered, side="right")
    cuts = np.flatnonzero(np.diff(shards)) + 1
    edges = [0, *cuts.tolist(), len(ordered)]
    parts = [(int(shards[a]), ordered[a:b]) for a, b in itertools.pairwise(edges) if a < b]
    payloads: list[bytes] = []
    together = pool.capacity
    for first in range(0, len(parts), together):
        _read_parts(pool, stops, parts[first : first + together], payloads)
    out: list[bytes] = [b""] * len(payloads)
    for place, payload in zip(order.tolist(), payloads, strict=True):
        out[place] = payload
    return out


def _read_parts(
    pool: ShardPool, stops: NDArray[np.int64], parts: list[tuple[int, NDArray[np.int64]]], out: list[bytes]
) -> None:
    """Add the payloads of ascending positions to `out`; a part is the number of a shard and its positions."""
    pool.prepare(number for number, _ in parts)
    waiting: list[Callable[[], list[bytes]]] = []
    blocks = size = 0

    def finish_all() -> None:
        nonlocal blocks, size
        blocks = size = 0
        for finish in waiting:
            out.extend(finish())
        waiting.clear()

    for number, own in parts:
        live = own - (int(stops[number - 1]) if number else 0)
        # A local disk does its work at the end, so waiting for others only holds descriptors.
        alone = pool.is_local(number)
        for count, decoded, finish in _begin_rows(pool.get(number), physical_rows(pool, number, live)):
            waiting.append(finish)
            blocks += count
            size += decoded
            if alone or blocks >= _MOST_BLOCKS or size >= _MOST_BYTES:
                finish_all()
    finish_all()


def place_together(pool: ShardPool, stops: NDArray[np.int64], positions: NDArray[np.int64]) -> Placed | None:
    """Return where the payloads at some positions are, in the order given, if that is in one mapped shard as
    they are; else None.  Arguments are those of `lookup`.
    """  # noqa: D205 - one thought
    alone = _of_one_shard(stops, positions)
    if alone is None:
        return None
    number, live = alone
    return pool.get(number).direct(physical_rows(pool, number, live))


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
) -> Iterator[tuple[int, int, Callable[[], list[bytes]]]]:
    """Begin the lookup of ascending rows of one shard; yield numbers of blocks and of decoded bytes, and what
    waits for them.
    """  # noqa: D205 - one thought
    found = shard.records(rows)
    if found is not None:
        yield 0, 0, lambda: found
        return
    alone = shard.frames_alone(rows)
    if alone is not None:
        starts, stops = alone
        held = np.cumsum(stops - starts)
        for k, end in _runs_of(held, _MOST_BYTES):
            own = slice(k, end)
            size = int(held[end - 1]) - (int(held[k - 1]) if k else 0)
            yield 0, size, shard.begin_alone(rows[own], starts[own], stops[own])
        return
    blocks = shard.blocks_of(rows)
    needed = blocks[np.append(True, blocks[1:] != blocks[:-1])]
    sizes = np.cumsum(shard.head.block_decoded_bytes[needed], dtype=np.int64)
    for k, end in _runs_of(sizes, _MOST_BYTES, _MOST_BLOCKS):
        part = needed[k:end]
        decoded = int(sizes[end - 1]) - (int(sizes[k - 1]) if k else 0)
        firsts = np.searchsorted(blocks, part, side="left")
        lasts = np.searchsorted(blocks, part, side="right")
        yield len(part), decoded, shard.begin_rows(part, rows[firsts[0] : lasts[-1]], lasts - firsts)


def _runs_of(ends: NDArray[np.int64], most_bytes: int, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Cut items into runs of at most so many bytes and items, each of at least one; `ends` sums up bytes."""
    k = 0
    while k < len(ends):
        before = int(ends[k - 1]) if k else 0
        end = max(k + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        end = end if most is None else min(end, k + most)
        yield k, end
        k = end
