"""Iteration past damage: what can be read is yielded in its place in the order, what cannot is left out.

Reading goes the usual way, in large runs, until one of them fails.  That run is then taken block by block,
and reading goes on the usual way after it: a dataset without damage pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.reader._damage import is_damage
from shardio.reader._iterate import block_runs, iterate_payloads
from shardio.reader._lookup import lookup, physical_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardio.errors import ShardioError
    from shardio.reader._damage import Damage
    from shardio.reader._source import Source
    from shardio.reader._subset import Selection

__all__ = ["decode_undamaged", "iterate_undamaged"]

_MOST = 1024  # positions of an irregular selection that are sifted together


def iterate_undamaged(
    source: Source, selection: Selection, damage: Damage
) -> Iterator[tuple[list[bytes], range | NDArray[np.int64]]]:
    """Yield payloads of a selection in its order, with their positions; those that are damaged are left out.

    Raises:
        StorageError: the environment failed.
        FormatError: more is damaged than may be skipped.
    """
    at = 0
    while at < len(selection):
        try:
            for payloads in iterate_payloads(source, selection[at:]):
                here, at = at, at + len(payloads)
                yield payloads, selection[here:at]
        except Exception as error:
            if not is_damage(error):
                raise
            stop = _end_of_run(source, selection, at)
            yield _sift(source, np.asarray(selection[at:stop], np.int64), damage)
            at = stop


def decode_undamaged(
    payloads: list[bytes],
    positions: range | NDArray[np.int64],
    decode: Callable[[list[bytes]], list[Any]],
    located: Callable[[ShardioError, range | NDArray[np.int64]], ShardioError],
    damage: Damage,
) -> list[Any]:
    """Return the values of payloads without those that cannot be decoded.

    Args:
        payloads: of records.
        positions: of these records.
        decode: values of payloads.
        located: gives an error of `decode` its address, from the positions of what was decoded.
        damage: notes and counts them.
    """
    try:
        return decode(payloads)
    except Exception as error:
        if not is_damage(error):
            raise
    values: list[Any] = []
    for k, payload in enumerate(payloads):
        try:
            values += decode([payload])
        except Exception as error:
            if not is_damage(error):
                raise
            found = located(error, positions[k : k + 1])
            damage.note(found, found.shard or "", np.array([found.row or 0]))
            damage.count(1)
    return values


def _end_of_run(source: Source, selection: Selection, at: int) -> int:
    """Return up to which item of a selection the run reaches that failed and began with item `at`."""
    if not isinstance(selection, range) or selection.step != 1:
        return min(at + _MOST, len(selection))
    number = int(np.searchsorted(source.stops, selection[at], side="right"))
    end = min(len(selection), at + int(source.stops[number]) - selection[at])
    try:
        shard = source.pool.get(number)
    except Exception as error:
        if not is_damage(error):
            raise
        return end
    before = int(source.stops[number - 1]) if number else 0
    edges = physical_rows(source.pool, number, np.array([selection[at], selection[end - 1]]) - before)
    first, last = shard.blocks_of(edges).tolist()
    row_stop = shard.head.block_rows(next(block_runs(shard, first, last + 1))[1] - 1)[1]
    # Where rows are deleted this reaches a little past the run, which does no harm.
    return min(end, at + row_stop + before - selection[at])


def _sift(
    source: Source, positions: NDArray[np.int64], damage: Damage
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Read some positions block by block; return the payloads that are whole, in order, with positions."""
    found: dict[int, bytes] = {}
    shards = np.searchsorted(source.stops, positions, side="right")
    for number in dict.fromkeys(shards.tolist()):
        _sift_shard(source, number, np.flatnonzero(shards == number), positions, damage, found)
    kept = sorted(found)
    return [found[k] for k in kept], positions[kept]


def _sift_shard(
    source: Source,
    number: int,
    items: NDArray[np.intp],
    positions: NDArray[np.int64],
    damage: Damage,
    found: dict[int, bytes],
) -> None:
    """Read what `items` of some positions are, all of one shard, into `found`."""
    before = int(source.stops[number - 1]) if number else 0
    rows = physical_rows(source.pool, number, positions[items] - before)
    try:
        blocks = source.pool.get(number).blocks_of(rows)
    except Exception as error:
        if not is_damage(error):
            raise
        _leave_out(source, number, error, rows, damage)
        return
    for block in dict.fromkeys(blocks.tolist()):
        own = items[blocks == block]
        try:
            payloads = lookup(source.pool, source.stops, positions[own])
        except Exception as error:
            if not is_damage(error):
                raise
            _leave_out(source, number, error, rows[blocks == block], damage)
        else:
            found.update(zip(own.tolist(), payloads, strict=True))


def _leave_out(
    source: Source, number: int, error: ShardioError, rows: NDArray[np.int64], damage: Damage
) -> None:
    damage.note(error, source.table.key[number], rows)
    damage.count(len(rows))
