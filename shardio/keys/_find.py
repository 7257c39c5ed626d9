"""Records by key.

A key index holds hashes, so what it finds are candidates: every record is read and its own key compared
before its position is returned.  Entries of shards that are gone, or of rows that are deleted, lead nowhere.
Shards that no index holds are read once, with a warning, when a key was not found without them: an answer
"there is no such key" is always about all records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.callers import warn
from shardio.errors import KeyNotFoundError, NotFoundError
from shardio.format import DEFAULT_LIMITS
from shardio.keys._run import KEYS_ADVICE, StoredRun, extract_keys
from shardio.metadata import ENTRY, Feature, KeyIndex, Manifest, hash_keys
from shardio.reader import (
    ChosenColumn,
    RecordSequence,
    ShardSource,
    choose_columns,
    positions_of_rows,
    with_features,
)

_MOST_UNINDEXED = 1 << 26  # records that are hashed in memory, 16 bytes each
_VERIFIED = 4096  # candidates that are read together
_SHOWN = 3


class _KeyLookup:
    """The keys of one feature of a version; shared by readers of the same source, thread-safe."""

    def __init__(self, source: ShardSource, index: KeyIndex, column: ChosenColumn) -> None:
        self._source, self.column = source, column
        self._store = source.pool.stores[0]
        limits = source.options.limits or DEFAULT_LIMITS
        self._runs = [StoredRun(self._store, ref, limits) for ref in index.runs]

    @cached_property
    def _shards(self) -> list[NDArray[np.int64]]:
        """The numbers in the table of the shards of each run, -1 for those that are gone."""
        with self._source.pool.explaining():
            heads = self._store.concurrently(lambda run: run.numbers_in(self._source.table), self._runs)
            return list(heads)

    def candidates(self, hashes: NDArray[np.uint64]) -> NDArray[Any]:
        """Return the entries with one of some hashes; `shard` is a number in the table."""
        runs = [
            (run, shards)
            for run, shards in zip(self._runs, self._shards, strict=True)
            if shards.max(initial=-1) >= 0
        ]
        with self._source.pool.explaining():
            found = list(self._store.concurrently(lambda each: each[0].find(hashes), runs))
        entries = [renumbered(each, shards) for each, (_, shards) in zip(found, runs, strict=True)]
        return np.concatenate([np.zeros(0, ENTRY), *entries])

    def unindexed(self, hashes: NDArray[np.uint64]) -> NDArray[Any]:
        """Return the entries of the other shards with one of some hashes; they are read at the first call."""
        return self._unindexed[np.isin(self._unindexed["hash"], hashes)]

    @cached_property
    def _unindexed(self) -> NDArray[Any]:
        table = self._source.table
        covered = np.zeros(len(table), bool)
        for shards in self._shards:
            covered[shards[shards >= 0]] = True
        rest = np.flatnonzero(~covered & (table.live_rows > 0))
        parts = [np.zeros(0, ENTRY)]
        if not len(rest):
            return parts[0]
        rows, name, url = int(table.rows[rest].sum()), self.column.name, self._source.url
        what = f"{len(rest)} shards with {rows:,} records are in no index of keys {name!r}"
        advice = f"`shardio keys {url} --feature {name}` adds them"
        if rows > _MOST_UNINDEXED:
            raise NotFoundError(f"{what}: too many to read", url=url, advice=advice)
        warn(f"{what} and are read now; {advice}")
        for number in rest.tolist():
            hashes, places = extract_keys(RecordSequence, self._source, number, self.column)
            part = np.zeros(len(hashes), ENTRY)
            part["hash"], part["shard"], part["row"] = hashes, number, places
            parts.append(part)
        return np.concatenate(parts)


def renumbered(entries: NDArray[Any], shards: NDArray[np.int64]) -> NDArray[Any]:
    """Return entries of a run with the numbers of its shards in a table, without those that are gone."""
    known: NDArray[Any] = entries[entries["shard"] < len(shards)].copy()
    numbers = shards[known["shard"]]
    known = known[numbers >= 0]
    known["shard"] = numbers[numbers >= 0]
    return known


def key_types(manifest: Manifest) -> dict[str, str]:
    """Return the features that have an index of keys in a version, each with its type."""
    return {name: index.type for name, index in _indexes(manifest).items()}


def _indexes(manifest: Manifest) -> dict[str, KeyIndex]:
    """Return the indexes of keys of a version, by the names that the features have now."""
    stored = {index.feature: index for index in manifest.keys}
    names = {name: feature.stored_name or name for name, feature in (manifest.schema or {}).items()}
    return {name: stored[inside] for name, inside in names.items() if inside in stored}


def _lookup(records: Any, feature: str | None) -> _KeyLookup:
    source = records.source
    version = getattr(source, "version", None)
    by_name = {} if version is None else _indexes(version.manifest)
    if not by_name:
        raise NotFoundError(
            "this dataset has no index of keys",
            url=source.url,
            advice="make one: shardio keys URL --feature NAME",
        )
    if feature is None and len(by_name) > 1:
        raise ValueError(f"there are indexes of several keys, choose one with feature=: {', '.join(by_name)}")
    name = feature if feature is not None else next(iter(by_name))
    if name not in by_name:
        raise ValueError(f"there is no index of keys {name!r}; there is one of {', '.join(by_name)}")
    column = choose_columns(source.schema, [name], what="an index of keys")[0]
    if column.feature.type != by_name[name].type:
        raise NotFoundError(
            f"the index of the keys {name!r} is of another type than the feature is now",
            url=source.url,
            expected=column.feature.type,
            found=by_name[name].type,
            advice=KEYS_ADVICE,
        )
    lookups: dict[str, _KeyLookup] = source.__dict__.setdefault("_key_lookups", {})
    return lookups.setdefault(name, _KeyLookup(source, by_name[name], column))


def _is_one(keys: Any) -> bool:
    return isinstance(keys, str | bytes | int | np.integer) and not isinstance(keys, bool)


def _checked(keys: Any, feature: Feature, name: str) -> list[Any]:
    wanted = {"text": str, "bytes": bytes}.get(feature.type, int)
    given = list(keys) if isinstance(keys, Iterable) else [keys]
    if wanted is int:
        given = [int(key) if isinstance(key, np.integer) else key for key in given]
    for key in given:
        if not isinstance(key, wanted) or isinstance(key, bool):
            found = f"{key!r:.100} of the type {type(key).__name__}"
            raise TypeError(f"the keys {name!r} are {feature.type}, found {found}")
    return given


def find(records: Any, keys: Any, *, feature: str | None, default: int | None) -> Any:
    """Return the positions of some keys in a reader; see `RecordSequence.find`."""
    lookup = _lookup(records, feature)
    given = _checked([keys] if _is_one(keys) else keys, lookup.column.feature, lookup.column.name)
    out = np.empty(len(given), np.int64)
    for number, positions in enumerate(_matches(records, lookup, given, everywhere=False)):
        if len(positions) > 1:
            shown = ", ".join(map(str, positions[:_SHOWN])) + (" ..." if len(positions) > _SHOWN else "")
            raise ValueError(
                f"{len(positions)} records have the key {given[number]!r:.200} (positions {shown}); "
                "ds.find_all(key) returns all of them"
            )
        if not positions and default is None:
            raise KeyNotFoundError(
                f"no record has the key {given[number]!r:.200}",
                url=records.source.url,
                advice="find(keys, default=-1) returns -1 for keys that are not there",
            )
        out[number] = positions[0] if positions else int(default or 0)
    return int(out[0]) if _is_one(keys) else out


def find_all(records: Any, keys: Any, *, feature: str | None) -> Any:
    """Return the positions of all records with some keys, ascending; see `RecordSequence.find_all`."""
    lookup = _lookup(records, feature)
    given = _checked([keys] if _is_one(keys) else keys, lookup.column.feature, lookup.column.name)
    found = [np.array(sorted(each), np.int64) for each in _matches(records, lookup, given, everywhere=True)]
    return found[0] if _is_one(keys) else found


def _matches(records: Any, lookup: _KeyLookup, keys: Sequence[Any], *, everywhere: bool) -> list[list[int]]:
    """Return for each key the positions in a reader of the records that have it.

    Args:
        records: the reader.
        lookup: of the feature.
        keys: of the feature's type.
        everywhere: look through shards without an index for all keys, not only for those not found before.
    """
    kind = lookup.column.feature.type
    span = np.iinfo(kind) if kind not in ("text", "bytes") else None
    # A number that the type does not hold is not a key of any record.
    held = [key for key in dict.fromkeys(keys) if span is None or span.min <= key <= span.max]
    found: dict[Any, list[int]] = {key: [] for key in keys}
    hashes = hash_keys(np.array(held, kind) if span is not None else held, kind)
    candidates = lookup.candidates(np.unique(hashes)) if held else np.zeros(0, ENTRY)
    _add_matches(records, lookup.column.name, candidates, found)
    rest = hashes if everywhere else hashes[[not found[key] for key in held]]
    if len(rest):
        _add_matches(records, lookup.column.name, lookup.unindexed(np.unique(rest)), found)
    return [found[key] for key in keys]


def _add_matches(records: Any, name: str, entries: NDArray[Any], found: dict[Any, list[int]]) -> None:
    """Read the records that entries lead to, and note the positions of those whose key was asked for."""
    shards, rows = entries["shard"].astype(np.int64), entries["row"].astype(np.int64)
    positions = np.unique(positions_of_rows(records, shards, rows))
    positions = positions[positions >= 0]
    reader = type(records)(with_features(records.source, [name], values=True), records.selection)
    for low in range(0, len(positions), _VERIFIED):
        some = positions[low : low + _VERIFIED]
        for value, position in zip(reader.read(some), some.tolist(), strict=True):
            if value[name] in found:
                found[value[name]].append(position)
