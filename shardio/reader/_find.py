"""Records by key, and positions by shard and row.

A key index holds hashes, so what it finds are candidates: every record is read and its own key compared
before its position is returned.  Entries of shards that are gone, or of rows that are deleted, lead nowhere.
Shards that no index holds are read once, with a warning, when a key was not found without them: an answer
"there is no such key" is always about all records.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import integers
from shardio.callers import warn
from shardio.errors import FormatError, KeyNotFoundError, NotFoundError, ShardioError
from shardio.format import DEFAULT_LIMITS
from shardio.metadata import (
    ENTRY,
    KEY_TYPES,
    Feature,
    KeyIndex,
    KeyPart,
    KeyRun,
    Manifest,
    PartHead,
    Schema,
    ShardTable,
    hash_keys,
    physical_to_live,
)
from shardio.reader._columns import ChosenColumn, choose_columns, iterate_rows, with_features
from shardio.reader._source import DatasetSource, ShardSource
from shardio.reader._subset import to_number_array
from shardio.storage import DataFile, ShortReadError, read_intact

KEYS_ADVICE = "restore it from a copy, or make the index again: shardio keys URL --rebuild"
_PAGES = 64  # that are read together where all are
_HEADS = 256  # heads of parts that are kept
_MOST_UNINDEXED = 1 << 26  # records that are hashed in memory, 16 bytes each
_VERIFIED = 4096  # candidates that are read together
_SHOWN = 3


def check_key_feature(column: ChosenColumn) -> None:
    """Refuse a feature whose values cannot be keys.

    Raises:
        ValueError: it is not text, bytes or an integer.
    """
    feature = column.feature
    if column.derived or feature.shape or feature.type not in KEY_TYPES:
        raise ValueError(f"feature {column.name!r} is {feature.short}; keys are {', '.join(KEY_TYPES)}")


def extract_keys(
    reader: Callable[[ShardSource], Any], source: ShardSource, number: int, column: ChosenColumn
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Return the hashes of the keys of a shard, and the rows they stand in, deleted ones too.

    Records without a key are left out.

    Args:
        reader: `Records`, or a kind of it.
        source: the shards.
        number: of the shard.
        column: whose values are the keys.

    Raises:
        FormatError, StaleIndexError, StorageError: with the address of the record.
    """
    hashes, rows = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
    first = 0
    for batch in iterate_rows(reader, source, number, [column]):
        keys = batch[column.source]
        row = np.arange(first, first + len(keys), dtype=np.uint32)
        first += len(keys)
        if not isinstance(keys, np.ndarray) and None in keys:
            row = row[[key is not None for key in keys]]
            keys = [key for key in keys if key is not None]
        hashes.append(hash_keys(keys, column.feature.type))
        rows.append(row)
    return np.concatenate(hashes), np.concatenate(rows)


def shards_of_run(run: KeyRun, table: ShardTable) -> NDArray[np.int64]:
    """Return the number in a table of each shard of a run, -1 for those that are not there; int64."""
    # The first 8 bytes of a digest tell them apart; where they did not, a shard would be read instead.
    own = np.ascontiguousarray(table.index_head_sha256[:, :8]).view("<u8").reshape(-1)
    wanted = np.ascontiguousarray(run.shards[:, :8]).view("<u8").reshape(-1)
    if not len(own):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(own, kind="stable")
    at = order[np.clip(np.searchsorted(own[order], wanted), 0, len(own) - 1)]
    same = (table.index_head_sha256[at] == run.shards).all(axis=1)
    return np.where(same, at, -1)


def read_key_run(store: Any, ref: Any, index: KeyIndex, limits: Any) -> KeyRun:
    """Return a run of a key index, checked.

    Raises:
        FormatError, NotFoundError: it is damaged, gone, or not the one that the manifest names.
        StorageError: the environment failed.
    """
    url = store.url_of(ref.key)

    def read() -> KeyRun:
        data = store.get(ref.key, max_bytes=limits.manifest)
        run, sha256 = KeyRun.parse(data, key=ref.key, url=url, limits=limits)
        named = (ref.sha256, ref.size, ref.shards, ref.entries, index.feature, index.type)
        entries = sum(part.entries for part in run.parts)
        if named != (sha256, len(data), len(run.shards), entries, run.feature, run.type):
            raise FormatError("a run of a key index is not the one that the manifest names", url=url)
        return run

    with _advised(url, "the manifest names a run of a key index that is not there"):
        return read_intact(read)


@contextlib.contextmanager
def _advised(url: str, gone: str = "a part of a key index is not there") -> Iterator[None]:
    """Say what to do about an object of an index that is damaged or gone."""
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(gone, url=url, advice=KEYS_ADVICE) from error
    except ShortReadError as error:
        what = "a part of a key index is cut short"
        raise FormatError(
            what, url=url, expected=error.expected, found=error.found, advice=KEYS_ADVICE
        ) from error
    except FormatError as error:
        error.advice = KEYS_ADVICE
        raise


def check_key_index(store: Any, ref: Any, index: KeyIndex, limits: Any) -> Iterator[tuple[str, ShardioError]]:
    """Compare every byte of a run and its parts with its checksums; yield URL and error of what is wrong.

    Args:
        store: of the dataset.
        ref: the run, as the manifest names it.
        index: that it belongs to.
        limits: upper bounds.
    """
    try:
        run = read_key_run(store, ref, index, limits)
    except ShardioError as error:
        yield store.url_of(ref.key), error
        return
    for part in run.parts:
        if part.entries:
            try:
                for _ in read_part(store, part):
                    pass
            except ShardioError as error:
                yield store.url_of(part.key), error


def read_part(store: Any, part: KeyPart) -> Iterator[NDArray[Any]]:
    """Yield the entries of a part in order, page by page, checked; arrays of `ENTRY`.

    Raises:
        FormatError, NotFoundError: it is damaged, gone, or of another size.
        StorageError: the environment failed.
    """
    url = store.url_of(part.key)
    with _advised(url), store.open(part.key) as file:
        if file.size != part.size:
            what = "a part of a key index has another size than its run says"
            raise FormatError(what, url=url, expected=part.size, found=file.size)
        head = _part_head(file, part, url)
        last = 0
        for low in range(0, len(head.first), _PAGES):
            pages = range(low, min(low + _PAGES, len(head.first)))
            for page, entries in zip(pages, _read_pages(file, head, pages, url), strict=True):
                hashes = entries["hash"]
                first = int(hashes[0])
                if (hashes[1:] < hashes[:-1]).any() or first != int(head.first[page]) or first < last:
                    what = "the entries of a part of a key index do not ascend"
                    start, stop = head.bounds(page)
                    raise FormatError(what, url=url, start=start, stop=stop)
                last = int(hashes[-1])
                yield entries


def _part_head(file: DataFile, part: KeyPart, url: str) -> PartHead:
    return read_intact(lambda: PartHead.parse(bytes(file.read(0, part.head_bytes)), part, url=url), file)


def _read_pages(file: DataFile, head: PartHead, pages: Sequence[int], url: str) -> list[NDArray[Any]]:
    bounds = [head.bounds(page) for page in pages]

    def read() -> list[NDArray[Any]]:
        found = file.read_many([start for start, _ in bounds], [stop for _, stop in bounds])
        return [head.parse_page(data, page, url=url) for page, data in zip(pages, found, strict=True)]

    return read_intact(read, file)


class _Part:
    """One part of a run: its head is read once, pages when they are asked for."""

    def __init__(self, store: Any, part: KeyPart) -> None:
        self._store, self._part = store, part
        self._head: PartHead | None = None

    def entries(self, hashes: NDArray[np.uint64]) -> NDArray[Any]:
        """Return the entries that have one of some hashes, checked; an array of `ENTRY`."""
        url = self._store.url_of(self._part.key)
        opened = self._store.open
        with _advised(url), opened(self._part.key, size=self._part.size, stable=True) as file:
            if self._head is None:
                self._head = _part_head(file, self._part, url)
            spans = zip(*(each.tolist() for each in self._head.pages_of(hashes)), strict=True)
            pages = sorted({page for one, two in spans for page in range(one, two)})
            rows = _read_pages(file, self._head, pages, url)
        whole = np.concatenate(rows) if rows else np.zeros(0, ENTRY)
        return whole[np.isin(whole["hash"], hashes)]


class KeyLookup:
    """The keys of one feature of a version; shared by readers of the same source, safe among threads.

    Args:
        source: the shards.
        index: of the feature, as the manifest names it.
        column: the feature.
    """

    def __init__(self, source: ShardSource, index: KeyIndex, column: ChosenColumn) -> None:
        self._source, self._index, self.column = source, index, column
        self._store = source.pool.stores[0]
        self._runs: list[tuple[KeyRun, NDArray[np.int64]]] | None = None
        self._parts: collections.OrderedDict[str, _Part] = collections.OrderedDict()
        self._unindexed: NDArray[Any] | None = None
        self._lock = threading.Lock()

    def _load(self) -> list[tuple[KeyRun, NDArray[np.int64]]]:
        if self._runs is None:
            limits = self._source.options.limits or DEFAULT_LIMITS
            found = self._store.concurrently(
                lambda ref: read_key_run(self._store, ref, self._index, limits), self._index.runs
            )
            with self._source.pool.explaining():
                self._runs = [(run, shards_of_run(run, self._source.table)) for run in found]
        return self._runs

    def candidates(self, hashes: NDArray[np.uint64]) -> NDArray[Any]:
        """Return the entries with one of some hashes; `shard` is a number in the table."""
        wanted: list[tuple[_Part, NDArray[np.uint64], NDArray[np.int64]]] = []
        for run, shards in self._load():
            if (shards < 0).all():
                continue
            numbers = run.part_of(hashes)
            for number in np.unique(numbers).tolist():
                part = run.parts[number]
                if part.entries:
                    wanted.append((self._part(part), hashes[numbers == number], shards))
        found = [np.zeros(0, ENTRY)]
        reads = self._store.concurrently(lambda one: one[0].entries(one[1]), wanted)
        with self._source.pool.explaining():
            parts = list(reads)
        for (_, _, shards), entries in zip(wanted, parts, strict=True):
            known = entries[entries["shard"] < len(shards)].copy()
            numbers = shards[known["shard"]]
            known = known[numbers >= 0]
            known["shard"] = numbers[numbers >= 0]
            found.append(known)
        return np.concatenate(found)

    def _part(self, part: KeyPart) -> _Part:
        with self._lock:
            found = self._parts.setdefault(part.key, _Part(self._store, part))
            self._parts.move_to_end(part.key)
            while len(self._parts) > _HEADS:
                self._parts.popitem(last=False)
            return found

    def unindexed(self, reader: Callable[[ShardSource], Any], hashes: NDArray[np.uint64]) -> NDArray[Any]:
        """Return the entries of the other shards with one of some hashes; they are read at the first call."""
        if self._unindexed is None:
            self._unindexed = self._read_unindexed(reader)
        held = self._unindexed["hash"]
        first, stop = (np.searchsorted(held, hashes, side=side) for side in ("left", "right"))
        spans = [self._unindexed[a:b] for a, b in zip(first.tolist(), stop.tolist(), strict=True) if a < b]
        return np.concatenate([np.zeros(0, ENTRY), *spans])

    def _read_unindexed(self, reader: Callable[[ShardSource], Any]) -> NDArray[Any]:
        table = self._source.table
        covered = np.zeros(len(table), bool)
        for _, shards in self._load():
            covered[shards[shards >= 0]] = True
        rest = np.flatnonzero(~covered & (table.live_rows > 0))
        if not len(rest):
            return np.zeros(0, ENTRY)
        rows = int(table.rows[rest].sum())
        name = self.column.name
        advice = f"`shardio keys {self._source.url} --feature {name}` adds them"
        if rows > _MOST_UNINDEXED:
            raise NotFoundError(
                f"{len(rest)} shards with {rows} records are in no index of keys {name!r}: too many to read",
                url=self._source.url,
                advice=advice,
            )
        warn(
            f"{len(rest)} shards with {rows:,} records are in no index of keys {name!r} and are read now; "
            f"{advice}",
        )
        parts = [np.zeros(0, ENTRY)]
        for number in rest.tolist():
            hashes, places = extract_keys(reader, self._source, number, self.column)
            part = np.zeros(len(hashes), ENTRY)
            part["hash"], part["shard"], part["row"] = hashes, number, places
            parts.append(part)
        whole = np.concatenate(parts)
        return whole[np.argsort(whole["hash"], kind="stable")]


def key_indexes(source: ShardSource) -> dict[str, KeyIndex]:
    """Return the indexes of keys that a version has, by the names that the features have now."""
    if not isinstance(source, DatasetSource):
        return {}
    return _by_name(source.version.manifest, source.schema)


def key_types(manifest: Manifest) -> dict[str, str]:
    """Return the features that have an index of keys in a version, each with its type."""
    return {name: index.type for name, index in _by_name(manifest, manifest.schema).items()}


def _by_name(manifest: Manifest, schema: Schema | None) -> dict[str, KeyIndex]:
    stored = {index.feature: index for index in manifest.keys}
    names = {name: feature.stored_name or name for name, feature in (schema or {}).items()}
    return {name: stored[inside] for name, inside in names.items() if inside in stored}


def _lookup(records: Any, feature: str | None) -> KeyLookup:
    source = records.source
    by_name = key_indexes(source)
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
    lookups: dict[str, KeyLookup] = source.__dict__.setdefault("_key_lookups", {})
    return lookups.setdefault(name, KeyLookup(source, by_name[name], column))


def _is_one(keys: Any) -> bool:
    return isinstance(keys, str | bytes | int | np.integer) and not isinstance(keys, bool)


def _checked(keys: Any, feature: Feature, name: str) -> list[Any]:
    kinds = {"text": str, "bytes": bytes}
    wanted = kinds.get(feature.type, int)
    if not isinstance(keys, Iterable):
        raise TypeError(
            f"the keys {name!r} are {feature.type}, found {keys!r:.100} of the type {type(keys).__name__}"
        )
    given = [int(key) if wanted is int and isinstance(key, np.integer) else key for key in keys]
    for key in given:
        if not isinstance(key, wanted) or isinstance(key, bool):
            raise TypeError(
                f"the keys {name!r} are {feature.type}, found {key!r:.100} of the type {type(key).__name__}"
            )
    return given


def find(records: Any, keys: Any, *, feature: str | None, default: int | None) -> Any:
    """Return the positions of some keys in a reader; see `Records.find`."""
    lookup = _lookup(records, feature)
    one = _is_one(keys)
    given = _checked([keys] if one else keys, lookup.column.feature, lookup.column.name)
    found = _matches(records, lookup, given, everywhere=False)
    out = np.empty(len(given), np.int64)
    for number, positions in enumerate(found):
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
        if positions:
            out[number] = positions[0]
        elif default is not None:
            out[number] = default
    return int(out[0]) if one else out


def find_all(records: Any, key: Any, *, feature: str | None) -> NDArray[np.int64]:
    """Return the positions of all records with one key, ascending; see `Records.find_all`."""
    if not _is_one(key):
        raise TypeError(f"find_all takes one key, found {type(key).__name__}")
    return find_each(records, [key], feature=feature)[0]


def find_each(records: Any, keys: Sequence[Any], *, feature: str | None) -> list[NDArray[np.int64]]:
    """Return for each key the positions of all records with it, ascending, in one pass over the index."""
    lookup = _lookup(records, feature)
    given = _checked(keys, lookup.column.feature, lookup.column.name)
    return [np.array(sorted(each), np.int64) for each in _matches(records, lookup, given, everywhere=True)]


def _matches(records: Any, lookup: KeyLookup, keys: list[Any], *, everywhere: bool) -> list[list[int]]:
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
    numbers = [n for n, key in enumerate(keys) if span is None or span.min <= key <= span.max]
    found: list[dict[int, None]] = [{} for _ in keys]
    if not numbers:
        return [[] for _ in keys]
    hashes = np.zeros(len(keys), np.uint64)
    held = [keys[n] for n in numbers]
    hashes[numbers] = hash_keys(np.array(held, kind) if span is not None else held, kind)
    asked: dict[int, list[int]] = {}
    for n in numbers:
        asked.setdefault(int(hashes[n]), []).append(n)
    _add_matches(records, lookup, lookup.candidates(np.unique(hashes[numbers])), keys, asked, found)
    rest = numbers if everywhere else [n for n in numbers if not found[n]]
    if rest:
        more = lookup.unindexed(type(records), np.unique(hashes[rest]))
        _add_matches(records, lookup, more, keys, asked, found)
    return [list(each) for each in found]


def _add_matches(
    records: Any,
    lookup: KeyLookup,
    entries: NDArray[Any],
    keys: list[Any],
    asked: dict[int, list[int]],
    found: list[dict[int, None]],
) -> None:
    """Read the records that entries lead to, and note those whose own key was asked for."""
    places = _in_reader(records, entries["shard"].astype(np.int64), entries["row"].astype(np.int64))
    live = places >= 0
    places, entries = places[live], entries[live]
    name = lookup.column.name
    reader = type(records)(with_features(records.source, [name], values=True), records.selection)
    for low in range(0, len(places), _VERIFIED):
        values = reader.read(places[low : low + _VERIFIED])
        for value, place, entry in zip(
            values,
            places[low : low + _VERIFIED].tolist(),
            entries["hash"][low : low + _VERIFIED].tolist(),
            strict=True,
        ):
            for number in asked.get(entry, ()):
                if value[name] == keys[number]:
                    found[number][place] = None


def _in_reader(records: Any, shards: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
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
    numbers: dict[str, int] = {}
    twice: set[str] = set()
    for number, key in enumerate(table.key):
        if numbers.setdefault(key, number) != number:
            twice.add(key)
    if twice.intersection(keys):
        message = f"several shards, under several roots, have the key {min(twice.intersection(keys))!r}"
        raise ValueError(message)
    at = np.array([numbers.get(key, -1) for key in keys], np.int64)
    found = np.full(len(keys), -1, np.int64)
    known = at >= 0
    found[known] = _in_reader(records, at[known], wanted[known])
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
