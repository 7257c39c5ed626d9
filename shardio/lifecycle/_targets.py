"""Which records are meant: positions or a condition, as rows of shards, by which every version knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.arguments import integers
from shardio.catalog import Catalog, Version
from shardio.errors import CommitConflictError, NotFoundError
from shardio.metadata import ShardTable, live_to_physical
from shardio.reader import (
    DatasetReader,
    choose_split,
    deleted_rows,
    open as open_dataset,
    positions_at,
)
from shardio.storage import Address, Place

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


def numbers_of(
    catalog: Catalog, version: Version, table: ShardTable, targets: Targets, read: Version, *, advice: str
) -> dict[TargetShard, int]:
    """Return the number of each target's shard in a version.

    Raises:
        CommitConflictError: one of them is no longer part of the dataset.
    """
    numbers = {shard: i for i, shard in enumerate(shards_of(version, table)) if shard in targets}
    missing = [shard for shard in targets if shard not in numbers]
    if missing:
        raise CommitConflictError(
            f"{len(missing)} of the shards with these records are no longer part of the dataset",
            url=catalog.store.url,
            expected=f"the shards of version {read.number}",
            found=f"version {version.number} without {missing[0].key}",
            advice=advice,
        )
    return numbers


def find_targets(  # noqa: PLR0913 - those of `delete`
    catalog: Catalog,
    place: Place,
    positions: ArrayLike | Iterable[int] | None,
    *,
    where: str | Callable[[dict[str, Any]], Any] | NDArray[np.bool_] | None,
    keys: Sequence[Any] | None,
    feature: str | None,
    split: str | None,
    version: int | str | None,
    features: Sequence[str] | None,
    progress: bool | Callable[[Any], None],
) -> tuple[Version, Targets]:
    """Return a version, and which rows of its shards are meant; the arguments are those of `delete`.

    Where the place is a reader and neither `split` nor `version` is given, its own records are meant.
    """
    ways = {"positions": positions, "where": where, "keys": keys}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"give one of positions=, where= and keys=, found {' and '.join(given) or 'none'}")
    if feature is not None and keys is None:
        raise ValueError("feature= goes with keys= and names their feature; where= takes features=")
    own = isinstance(place, DatasetReader) and split is None and version is None

    def find(read: Version) -> tuple[Version, Targets]:
        if isinstance(place, DatasetReader) and own:
            ds = place
        elif positions is None:
            address = Address.of(place)
            ds = open_dataset(
                address.url,
                choose_split([total.name for total in read.manifest.splits], split, catalog.store.url),
                version=read.number,
                digest=read.digest,
                storage_options=address.storage_options,
                allow_roots=address.allow_roots,
                engine=address.engine,
            )
        else:
            # Positions need no record to be read, and no data root to be allowed.
            table = _table_of_split(catalog, read, split)
            return read, _rows_of(
                catalog, read, table, _checked(positions, int(table.live_rows.sum()), read.number)
            )
        if positions is not None:
            found = positions_at(ds.selection, _checked(positions, len(ds), read.number))
        elif where is not None:
            found = np.asarray(ds.filter(where, features=features, progress=progress).selection, np.int64)
        else:
            found = positions_at(ds.selection, _with_keys(ds, keys, feature))
        return read, _rows_of(catalog, read, ds.source.table, np.sort(found))

    return catalog.reading(find, place.version if isinstance(place, DatasetReader) and own else version)


def _table_of_split(catalog: Catalog, version: Version, split: str | None) -> ShardTable:
    names = [total.name for total in version.manifest.splits]
    chosen = choose_split(names, split, catalog.store.url)
    table = catalog.table(version)
    return ShardTable.concatenate([table.of_split(name) for name in (names if chosen == "all" else [chosen])])


def _with_keys(ds: DatasetReader, keys: Sequence[Any] | None, feature: str | None) -> NDArray[np.int64]:
    """Return the positions of all records that have one of some keys, ascending."""
    if keys is None or isinstance(keys, str | bytes | int):
        raise TypeError(f"keys= takes a list of keys, found {keys!r}")
    found = ds.find_all(list(keys), feature=feature)
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
