"""Which records are meant: positions or a condition, as rows of shards, by which every version knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.arguments import integers
from shardio.catalog import Catalog, Version
from shardio.errors import NotFoundError
from shardio.metadata import ShardTable, live_to_physical
from shardio.reader import DatasetReader, choose_split, deleted_rows, find_each, open as open_dataset

# Records that are meant: int64 rows, ascending, of each shard.
Targets: TypeAlias = "dict[TargetShard, NDArray[np.int64]]"


class TargetShard(NamedTuple):
    """What a shard is known by in every version: URL of its data root, "" for the dataset's own; key; UUID.

    A UUID alone is not enough: a shard and a copy of it may both have been adopted. Nor is a key: what others
    wrote may have been replaced.
    """

    root: str
    key: str
    uuid: bytes


def shards_of(version: Version, table: ShardTable) -> list[TargetShard]:
    """Return what the shards of a version are known by, in order."""
    roots = {0: "", **version.manifest.roots}
    return [
        TargetShard(roots[root], key, uuid.tobytes())
        for root, key, uuid in zip(table.root.tolist(), table.key, table.uuid, strict=True)
    ]


def find_targets(
    catalog: Catalog,
    positions: ArrayLike | Iterable[int] | None,
    *,
    version: int | str | None,
    **query: Any,
) -> tuple[Version, Targets]:
    """Return a version, and which rows of its shards are meant; the arguments are those of `delete`."""
    return catalog.reading(lambda read: (read, _find(catalog, read, positions, **query)), version)


def _find(  # noqa: PLR0913 - those of `delete`
    catalog: Catalog,
    version: Version,
    positions: ArrayLike | Iterable[int] | None,
    *,
    where: str | Callable[[dict[str, Any]], Any] | NDArray[np.bool_] | None,
    keys: Sequence[Any] | None,
    feature: str | None,
    split: str | None,
    features: Sequence[str] | None,
    progress: bool | Callable[[Any], None],
    allow_roots: Mapping[str, Mapping[str, Any]] | None,
    storage_options: Mapping[str, Any] | None,
) -> Targets:
    ways = {"positions": positions, "where": where, "keys": keys}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"give one of positions=, where= and keys=, found {' and '.join(given) or 'none'}")
    if feature is not None and keys is None:
        raise ValueError("feature= goes with keys= and names their feature; where= takes features=")
    names = [total.name for total in version.manifest.splits]
    chosen = choose_split(names, split, catalog.store.url)
    table = catalog.table(version)
    if positions is not None:
        parts = [table.of_split(name) for name in (names if chosen == "all" else [chosen])]
        table = ShardTable.concatenate(parts)
        found = _checked(positions, int(table.live_rows.sum()), version.number)
    else:
        ds = open_dataset(
            catalog.store.url,
            chosen,
            version=version.number,
            digest=version.digest,
            storage_options=storage_options,
            allow_roots=allow_roots,
        )
        if where is not None:
            found = np.asarray(ds.filter(where, features=features, progress=progress).selection, np.int64)
        else:
            found = _with_keys(ds, keys, feature)
        table = ds.source.table
    return _rows_of(catalog, version, table, found)


def _with_keys(ds: DatasetReader, keys: Sequence[Any] | None, feature: str | None) -> NDArray[np.int64]:
    """Return the positions of all records that have one of some keys, ascending."""
    if keys is None or isinstance(keys, str | bytes | int):
        raise TypeError(f"keys= takes a list of keys, found {keys!r}")
    found = find_each(ds, list(keys), feature=feature)
    for key, positions in zip(keys, found, strict=True):
        if not len(positions):
            raise NotFoundError(f"no record has the key {key!r:.200}", url=ds.source.url)
    every: NDArray[np.int64] = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
    return every


def _checked(positions: ArrayLike | Iterable[int], records: int, version: int) -> NDArray[np.int64]:
    """Return positions as ascending int64, each within the records and given once."""
    given = integers("positions", positions, mask="where=")
    # Compared as given: a huge unsigned number must not wrap round to a negative one.
    beyond = given[given >= records]
    if len(beyond):
        raise IndexError(f"record {beyond[0]} is out of range: version {version} has {records}")
    if given.size and int(given.min()) < 0:
        raise ValueError(
            f"position {given.min()} is negative: count from 0, since an append changes what a position "
            "from the end means"
        )
    ascending = np.sort(given.astype(np.int64))
    twice = ascending[:-1][ascending[:-1] == ascending[1:]]
    if len(twice):
        raise ValueError(f"position {twice[0]} is given twice ({len(twice)} repeats in all)")
    return ascending


def _rows_of(catalog: Catalog, version: Version, table: ShardTable, positions: NDArray[np.int64]) -> Targets:
    """Return the rows of ascending positions over the shards of a table."""
    stops = np.cumsum(table.live_rows)
    edges = np.searchsorted(positions, np.concatenate([np.zeros(1, np.int64), stops]))
    concerned = np.flatnonzero(np.diff(edges))
    found: Targets = {}
    for number, shard in zip(concerned.tolist(), shards_of(version, table.take(concerned)), strict=True):
        live = positions[edges[number] : edges[number + 1]] - (int(stops[number - 1]) if number else 0)
        found[shard] = live_to_physical(live, deleted_rows(catalog.store, table[number], catalog.limits))
    return found
