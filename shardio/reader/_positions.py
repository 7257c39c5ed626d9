"""Positions by shard and row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import integers
from shardio.errors import NotFoundError
from shardio.metadata import physical_to_live
from shardio.reader._subset import to_number_array


def positions_of_rows(records: Any, shards: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions in a reader of physical rows of shards, -1 for those that are not in it."""
    source = records.source
    positions = np.full(len(rows), -1, np.int64)
    for number in np.unique(shards).tolist():
        own = np.flatnonzero(shards == number)
        deleted = source.pool.deleted(number)
        here = rows[own]
        live = here if deleted is None else physical_to_live(here, deleted)
        inside = (live >= 0) & (here >= 0) & (here < int(source.table.rows[number]))
        before = int(source.stops[number - 1]) if number else 0
        positions[own] = np.where(inside, before + live, -1)
    return to_number_array(records.selection, positions)


def positions_of(records: Any, shards: Sequence[str], rows: Any, *, default: int | None) -> NDArray[np.int64]:
    """Return the positions of rows of shards; see `DatasetReader.positions_of`."""
    keys = [str(key) for key in shards]
    wanted = integers("rows", rows).astype(np.int64)
    if wanted.shape != (len(keys),):
        message = f"positions_of takes as many rows as shards, found {wanted.shape} for {len(keys)} shards"
        raise ValueError(message)
    table = records.source.table
    wanted_keys = set(keys)
    numbers: dict[str, int] = {}
    for number, key in enumerate(table.key):
        if key in wanted_keys and numbers.setdefault(key, number) != number:
            raise ValueError(f"several shards, under several roots, have the key {key!r}")
    at = np.array([numbers.get(key, -1) for key in keys], np.int64)
    found = np.full(len(keys), -1, np.int64)
    known = at >= 0
    found[known] = positions_of_rows(records, at[known], wanted[known])
    missing = np.flatnonzero(found < 0)
    if default is None and len(missing):
        first = int(missing[0])
        raise NotFoundError(
            "this reader holds no such record: it is deleted, or of another split, selection or version",
            url=records.source.url,
            shard=keys[first],
            row=int(wanted[first]),
            advice="positions_of(shards, rows, default=-1) returns -1 for records that are not there",
        )
    return np.where(found < 0, default if default is not None else -1, found)
