"""Reading that does about damage what the policy says.

What can be read is yielded in its place in the order, what cannot is left out. A dataset without damage pays
nothing: reading goes the usual way, in large runs, and only a run that fails is read block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.errors import ShardioError
from shardio.reader._damage import Damage, SuppressCorruption
from shardio.reader._rows import (
    BegunRows,
    begin_lookup,
    in_lists,
    look_up,
    positions_in_order,
    read_in_order,
)
from shardio.reader._source import ShardSource
from shardio.reader._subset import Selection


def iterate(
    source: ShardSource, selection: Selection, damage: Damage | None = None
) -> Iterator[tuple[list[bytes], range | NDArray[np.int64]]]:
    """Yield the payloads of a selection in its order, with their positions.

    Args:
        source: of the shards.
        selection: positions.
        damage: what to do about it; None to raise it.

    Raises:
        CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, unless it is skipped, with its
            address; or more of it than may be skipped.
        StorageError: the environment failed.
    """
    if isinstance(selection, range) and selection.step == 1:
        for rows in read_in_order(source, selection, damage):
            if damage is None:
                yield rows.payloads(), selection[rows.places.start : rows.places.stop]
            else:
                payloads, places = _whole_payloads(source, rows, damage)
                yield payloads, np.array(places, np.int64) + selection.start
        return
    for positions in positions_in_order(selection):
        if damage is None:
            yield look_up(source, positions), positions
        else:
            yield _look_up_skipping(source, positions, damage)


def _look_up_skipping(
    source: ShardSource, positions: NDArray[np.int64], damage: Damage
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return the payloads of some positions that are whole, in order, with their positions."""
    order = np.argsort(positions, kind="stable")
    found: dict[int, bytes] = {}
    for rows in begin_lookup(source, positions[order], damage):
        payloads, places = _whole_payloads(source, rows, damage)
        found.update(zip(order[np.array(places, np.int64)].tolist(), payloads, strict=True))
    kept = sorted(found)
    return [found[item] for item in kept], positions[kept]


def _whole_payloads(source: ShardSource, rows: BegunRows, damage: Damage) -> tuple[list[bytes], list[int]]:
    """Return the payloads of those rows that are not damaged, and which of all positions they are."""
    payloads: list[bytes] = []
    places: list[int] = []
    for some, found in rows.whole_pieces(source, damage, as_bytes=True):
        payloads += found
        places += some
    if len(places) < len(rows.places):
        damage.count(len(rows.places) - len(places))
    return payloads, places


class _Errors(Damage):
    """Collects what is wrong, by shard and row; skips without a limit."""

    def __init__(self, source: ShardSource) -> None:
        super().__init__(source, 0)
        self.errors: dict[tuple[str, int], ShardioError] = {}

    @property
    def skips(self) -> bool:
        """Always: the caller sees each."""
        return True

    def note(self, error: ShardioError, source: ShardSource, shard: str, rows: Sequence[int]) -> None:
        """Keep the error of each row, addressed to the row."""
        del source
        for row in rows:
            self.errors[shard, row] = error.located(shard=shard, row=row)

    def count(self, rows: int) -> None:
        """Have no limit."""


def read_or_errors(
    source: ShardSource,
    positions: NDArray[np.int64],
    decode: Callable[[list[bytes], NDArray[np.int64]], list[Any]],
) -> list[Any]:
    """Return the values at some positions, in order; for a damaged record its error.

    Raises:
        StorageError: the environment failed.
    """
    found: dict[int, Any] = {}
    errors = _Errors(source)
    payloads, read = _look_up_skipping(source, np.unique(positions), errors)
    with SuppressCorruption() as damaged:
        found.update(zip(read.tolist(), decode(payloads, read), strict=True))
    if damaged.error is not None:
        for k, payload in enumerate(payloads):
            with SuppressCorruption() as skipped:
                found[int(read[k])] = decode([payload], read[k : k + 1])[0]
            if skipped.error is not None:
                found[int(read[k])] = skipped.error
    for position in np.setdiff1d(positions, read).tolist():
        number, row = source.shard_of(position)
        found[position] = errors.errors[source.table.key[number], row]
    return [found[position] for position in positions.tolist()]


def decode_skipping(
    source: ShardSource,
    payloads: list[bytes],
    positions: range | NDArray[np.int64],
    decode: Callable[[list[bytes], range | NDArray[np.int64]], list[Any]],
    located: Callable[[ShardioError, range | NDArray[np.int64]], ShardioError],
    damage: Damage,
) -> list[Any]:
    """Return the values of payloads without those that cannot be decoded.

    Args:
        source: of the reader.
        payloads: of records.
        positions: of these records.
        decode: values of payloads, of the records at some positions.
        located: gives an error of `decode` its address, from the positions of what was decoded.
        damage: notes and counts them.
    """
    with SuppressCorruption():
        return decode(payloads, positions)
    values: list[Any] = []
    for k, payload in enumerate(payloads):
        with SuppressCorruption() as skipped:
            values += decode([payload], positions[k : k + 1])
        if skipped.error is not None:
            found = located(skipped.error, positions[k : k + 1])
            damage.note(found, source, found.shard or "", [found.row or 0])
            damage.count(1)
    return values


def batches_skipping(
    source: ShardSource,
    selection: Selection,
    size: int,
    located: Callable[[ShardioError, Any], ShardioError],
    damage: Damage,
) -> Iterator[dict[str, Any]]:
    """Yield the columns of each batch of records, without those that are damaged.

    Batches are of `size` records that could be read; those of them that cannot be decoded make them smaller.
    """

    def refuse_damaged(payloads: list[bytes], positions: range | NDArray[np.int64]) -> list[Any]:
        source.codec.decode_batch(payloads)
        return list(zip(payloads, positions, strict=True))

    found = iterate(source, selection, damage)
    for batch in in_lists((list(zip(*each, strict=True)) for each in found), size):
        payloads, positions = zip(*batch, strict=True)
        kept = decode_skipping(source, list(payloads), np.array(positions), refuse_damaged, located, damage)
        if kept:
            payloads, positions = zip(*kept, strict=True)
            yield source.codec.decode_batch(list(payloads))
