"""Which records meet a condition, or are in which part: functions over columns, by the batch in threads."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import integer
from shardio.errors import SchemaError
from shardio.metadata import Schema
from shardio.progress import displayed
from shardio.reader._columns import (
    LENGTH,
    ChosenColumn,
    arrow_batch,
    choose_columns,
    live_rows,
    load_table,
    shards_without_table,
    sources_of,
    warn_of_records,
    with_features,
)
from shardio.reader._damage import Damage, SuppressCorruption
from shardio.reader._source import ShardSource
from shardio.reader._subset import Selection, positions_at, positions_between
from shardio.sql import Column, Condition

# Batches that a thread takes at a time: enough that it reads in large runs.
_BATCHES = 16
_AT_ONCE = 1 << 20


class BatchReader(Protocol):
    """What is asked of `Records`, which uses this file."""

    source: ShardSource
    selection: Selection

    def __init__(self, source: ShardSource, selection: Selection | None = None) -> None: ...

    def __len__(self) -> int: ...

    def read_batch(self, positions: Any) -> dict[str, Any]:
        """Return records as columns."""


class FilterProgress(NamedTuple):
    """How far a filter has come.

    Attributes:
        done, total: records that were looked at, and all.
        found: of those, how many meet the condition.
    """

    done: int
    total: int
    found: int


def check_mask(mask: Any, records: int) -> NDArray[np.bool_]:
    """Return a mask as it must be, bool [records].

    Raises:
        TypeError: it holds no bools, or is text.
        ValueError: it has another shape.
    """
    given = np.asarray(mask)
    if given.dtype != np.bool_:
        raise TypeError(
            f"a mask holds a bool for each record, found {given.dtype} of shape {given.shape}; positions go "
            "to ds.select(positions)"
        )
    if given.shape != (records,):
        message = f"a mask needs the shape ({records},), one bool for each record, found {given.shape}"
        raise ValueError(message)
    return given


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """How functions see columns; see `Records.filter`."""

    features: Sequence[str] | None = None
    batch_size: int = 4096
    num_threads: int | None = None
    progress: bool | Callable[[FilterProgress], None] = False

    def __post_init__(self) -> None:
        """Refuse what makes no sense, by name."""
        for name in ("batch_size", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be 1 or more")


def matching(
    records: BatchReader, function: Callable[[dict[str, Any]], Any], options: FilterOptions
) -> NDArray[np.bool_]:
    """Return the mask that a function of columns makes; arguments are those of `Records.filter`."""
    mask = np.zeros(len(records), bool)

    def look(columns: dict[str, Any], rows: int) -> NDArray[np.bool_]:
        return _checked(_called(function, columns, records, "the function of a filter"), rows)

    _look_at_all(records, mask, look, options, task="filter")
    return mask


def parts(
    records: BatchReader,
    fractions: Mapping[str, float],
    options: FilterOptions,
    *,
    by: str | Callable[[dict[str, Any]], Any] | None,
    seed: int,
    exact: bool,
) -> dict[str, NDArray[np.bool_]]:
    """Return the mask of each part; arguments are those of `Records.split_by`."""
    edges = _edges(fractions)
    seed = integer("seed", seed)
    if isinstance(by, str) or by is None:
        if options.features is not None:
            raise ValueError("features= are those that are read for a function: give one, by=f")
        if by is not None and records.source.codec is not None:
            options = replace(options, features=[by])
    there = np.ones(len(records), bool)
    if by is None:
        numbers = np.asarray(records.selection, np.int64).astype(np.uint64)
        keys = _mixed(numbers + np.uint64(_hash(b"positions", seed)))
    else:
        keys = np.zeros(len(records), np.uint64)
        there[:] = False

        def look(columns: dict[str, Any], rows: int) -> NDArray[np.uint64]:
            values = columns[by] if isinstance(by, str) else _called(by, columns, records, "by=")
            return _hashes(values, rows, seed, f"feature {by!r}" if isinstance(by, str) else "by=")

        _look_at_all(records, keys, look, options, task="split", there=there)
    part = np.searchsorted(_thresholds(keys[there], edges, exact=exact), keys, side="right")
    return {name: there & (part == number) for number, name in enumerate(fractions)}


def _edges(fractions: Mapping[str, float]) -> list[Fraction]:
    """Return where the parts end, as exact fractions of the whole; the last end is left out."""
    given = [Fraction(value) for value in fractions.values()]
    if not given or min(given) < 0 or not 0.999 < sum(given) < 1.001:
        raise ValueError(f"fractions={dict(fractions)!r} must not be negative, and their sum must be 1")
    ends = itertools.accumulate(given)
    return [end / sum(given) for end in ends][:-1]


def _thresholds(keys: NDArray[np.uint64], edges: list[Fraction], *, exact: bool) -> NDArray[np.uint64]:
    """Return the smallest key of each part but the first."""
    if not exact:
        return np.array([min(int(edge * (1 << 64)), (1 << 64) - 1) for edge in edges], np.uint64)
    groups, counts = np.unique(keys, return_counts=True)
    # Number of records in the groups before each, and in all of them.
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    wanted = [round(edge * len(keys)) for edge in edges]
    above = np.searchsorted(before, wanted)
    below = np.maximum(above - 1, 0)
    nearest = np.where(before[above] - wanted <= wanted - before[below], above, below)
    return np.append(groups, np.uint64(2**64 - 1))[nearest]


def _hash(data: bytes, seed: int) -> int:
    digest = hashlib.blake2b(b"%d/" % seed + data, digest_size=8, person=b"shardio split 1")
    return int.from_bytes(digest.digest(), "little")


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return well mixed words: the finalizer of SplitMix64, a bijection."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _hashes(values: Any, rows: int, seed: int, name: str) -> NDArray[np.uint64]:
    """Return what decides about each group: a hash of its value, the same for every type that holds it."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biu":
        unique, numbers = np.unique(values, return_inverse=True)
        items = unique.tolist()
    elif isinstance(values, list | tuple | np.ndarray) and np.ndim(values) <= 1:
        items, numbers = list(values), np.arange(len(values))
    else:
        items, numbers = [values], np.zeros(0, np.int64)
    known: dict[Any, int] = {}
    for item in items:
        if isinstance(item, int | np.integer | np.bool_):
            data = b"i%d" % int(item)
        elif isinstance(item, str):
            data = b"t" + item.encode(errors="surrogatepass")
        elif isinstance(item, bytes):
            data = b"b" + item
        elif item is None:
            data = b"n"
        else:
            found = type(item).__name__
            message = f"{name} gives {found}; records are grouped by integers, text or bytes, one for each"
            raise TypeError(message)
        if item not in known:
            known[item] = _hash(data, seed)
    if len(numbers) != rows:
        raise TypeError(f"{name} gives {len(numbers)} values for {rows} records; one for each is needed")
    return np.array([known[item] for item in items], np.uint64)[numbers]


class _OtherThreadFailedError(Exception):
    """The result of this thread is not wanted any more."""


class _Count:
    """How many records were looked at by all threads, shown as it grows."""

    def __init__(self, total: int, show: Callable[[FilterProgress], None] | None) -> None:
        self._lock = threading.Lock()
        self._total, self._done, self._found = total, 0, 0
        self._show = show
        self.stopped = False

    def add(self, found: NDArray[Any]) -> None:
        with self._lock:
            self._done += len(found)
            self._found += int(np.count_nonzero(found))
            if self._show is not None:
                self._show(FilterProgress(self._done, self._total, self._found))

    def wait(self) -> None:
        """Show it again, so that the function may raise; stop after another thread's error."""
        if self.stopped:
            raise _OtherThreadFailedError
        with self._lock:
            if self._show is not None:
                self._show(FilterProgress(self._done, self._total, self._found))


def _look_at_all(
    records: BatchReader,
    out: NDArray[Any],
    look: Callable[[Any, int], NDArray[Any]],
    options: FilterOptions,
    *,
    task: str,
    there: NDArray[np.bool_] | None = None,
) -> None:
    """Fill an array with what a function makes of columns; and a mask with which records are not damaged."""
    source = with_features(records.source, options.features)
    with displayed(options.progress, task) as show:
        count = _Count(len(records), show)
        _look_at(records, source, out, look, lambda some, at: some.read_batch(at), options, count, there)


def _look_at(
    records: BatchReader,
    source: ShardSource,
    out: NDArray[Any],
    look: Callable[[Any, int], NDArray[Any]],
    read: Callable[[BatchReader, Any], Any],
    options: FilterOptions,
    count: _Count,
    there: NDArray[np.bool_] | None = None,
) -> None:
    """Fill an array with what `look` makes of what `read` makes of batches of records, in threads."""
    batch_size = options.batch_size
    damage = Damage(records.source, len(records))
    wanted = type(records)(source, records.selection)
    total = len(records)
    stride = batch_size * _BATCHES

    def walk(start: int) -> None:
        for low in range(start, min(start + stride, total), batch_size):
            if count.stopped:
                return
            stop = min(low + batch_size, total)
            kept = _evaluate(wanted, (low, stop), look, read, damage, out)
            if there is not None:
                there[low:stop][kept] = True
            count.add(out[low:stop])

    _in_threads(walk, range(0, total, stride), options, count)


def _in_threads(
    function: Callable[[int], None], items: Iterable[int], options: FilterOptions, count: _Count
) -> None:
    """Call a function with each item; at the first error all threads stop."""
    threads = options.num_threads or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, "shardio-filter") as pool:
        try:
            for _ in pool.map(function, items):
                pass
        except BaseException:
            count.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def parse_condition(text: str, schema: Schema | None) -> tuple[Condition, list[ChosenColumn]]:
    """Return a condition in SQL over the columns of a dataset, and these columns.

    Raises:
        ValueError: it is not a condition over columns of this dataset; says what and where.
    """
    what = "a condition in SQL"

    def find_column(name: str) -> Column:
        if schema is not None and name not in schema:
            # SQL does not see case.
            known = [*schema, *(f"{each}{LENGTH}" for each in schema)]
            folded = [each for each in known if each.casefold() == name.casefold()]
            name = folded[0] if len(folded) == 1 else name
        (column,) = choose_columns(schema, [name], what=what)
        feature = column.feature
        if column.derived:
            return Column(column.name, column.type)
        return Column(column.name, column.type, feature.classes, feature.kind in ("text", "json"))

    condition = Condition(text, find_column)
    return condition, choose_columns(schema, condition.names, what=what)


def matching_sql(records: BatchReader, text: str, options: FilterOptions) -> NDArray[np.bool_]:
    """Return the mask of the records for which a condition in SQL holds.

    Shards with a table of its columns are not read; where there are others, a warning says so.
    """
    source, selection = records.source, records.selection
    condition, columns = parse_condition(text, source.schema)
    touched = np.zeros(len(source.table), bool)
    for low in range(0, len(records), _AT_ONCE):
        places = positions_between(selection, low, min(low + _AT_ONCE, len(records)))
        touched[np.searchsorted(source.stops, places, side="right")] = True
    lacking = shards_without_table(source, columns) & touched
    warn_of_records(source, lacking, columns)
    with displayed(options.progress, "filter") as show:
        count = _Count(len(records), show)
        held = _matching_tables(source, condition, columns, touched & ~lacking, options, count)
        mask = np.zeros(len(records), bool)
        unread = np.zeros(len(records) if lacking.any() else 0, bool)
        for low in range(0, len(records), _AT_ONCE):
            stop = min(low + _AT_ONCE, len(records))
            places = positions_between(selection, low, stop)
            mask[low:stop] = held[places]
            if lacking.any():
                unread[low:stop] = lacking[np.searchsorted(source.stops, places, side="right")]

        def read(some: BatchReader, positions: Any) -> Any:
            return arrow_batch(some, positions, columns)

        def look(table: Any, _rows: int) -> NDArray[np.bool_]:
            return condition.evaluate(table, count.wait)

        count.add(mask[~unread] if lacking.any() else mask)
        if unread.any():
            decoding = with_features(source, sources_of(columns), values=True)
            rest = records
            if not unread.all():
                rest = type(records)(source, positions_at(selection, np.flatnonzero(unread)))
            found = np.zeros(len(rest), bool)
            _look_at(rest, decoding, found, look, read, options, count)
            mask[unread] = found
        return mask


def _matching_tables(
    source: ShardSource,
    condition: Condition,
    columns: list[ChosenColumn],
    shards: NDArray[np.bool_],
    options: FilterOptions,
    count: _Count,
) -> NDArray[np.bool_]:
    """Return for each position whether a condition holds, as the tables of some shards say; else False."""
    held = np.zeros(len(source), bool)

    def look(number: int) -> None:
        before = int(source.stops[number - 1]) if number else 0
        rows = live_rows(source, number)
        found = condition.evaluate(load_table(source, number, columns), count.wait)
        held[before : int(source.stops[number])] = found if rows is None else found[rows]

    _in_threads(look, np.flatnonzero(shards).tolist(), options, count)
    return held


def _evaluate(
    wanted: BatchReader,
    bounds: tuple[int, int],
    look: Callable[[Any, int], NDArray[Any]],
    read: Callable[[BatchReader, Any], Any],
    damage: Damage,
    out: NDArray[Any],
) -> slice | NDArray[np.int64]:
    """Fill `out` for the records `bounds[0] .. bounds[1] - 1`, but for damaged ones that may be skipped.

    Returns:
        Which of them are not damaged, counted from `low`.
    """
    low, stop = bounds
    with SuppressCorruption(skips=damage.skips) as skipped:
        columns = read(wanted, range(low, stop))
    if skipped.error is None:
        out[low:stop] = look(columns, stop - low)
        return slice(None)
    kept = []
    for number in range(low, stop):
        with SuppressCorruption() as skipped:
            read(wanted, [number])
        if skipped.error is not None:
            shard, row = wanted.source.shard_of(int(wanted.selection[number]))
            damage.note(skipped.error, wanted.source, wanted.source.table.key[shard], [row])
            damage.count(1)
        else:
            kept.append(number)
    if kept:
        out[kept] = look(read(wanted, kept), len(kept))
    return np.array(kept, np.int64) - low


class _NoColumnError(KeyError):
    """A function asked for a column that it is not given; no key of another dict of its own."""


class _Columns(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise _NoColumnError(name)


def _called(function: Callable[[dict[str, Any]], Any], columns: Any, records: BatchReader, what: str) -> Any:
    """Return what a function makes of columns.

    Raises:
        SchemaError: it asks for a column that is not among them.
    """
    try:
        return function(_Columns(columns))
    except _NoColumnError as error:
        (name,) = error.args
        source = records.source
        schema = source.schema
        there = [] if schema is None else sorted([*schema, *schema.sequence_features])
        if name in there:
            advice = f"add it: features={[*columns, name]!r}"
        elif there:
            advice = f"the dataset has {', '.join(map(repr, there))}"
        else:
            advice = "the dataset has no schema, so its records are bytes in the one column 'payload'"
        raise SchemaError(
            f"{what} asks for the column {name!r}, which it is not given",
            url=source.url,
            expected=f"one of {', '.join(map(repr, columns))}",
            advice=advice,
        ) from error


def _checked(result: Any, rows: int) -> NDArray[np.bool_]:
    given = np.asarray(result)
    if given.dtype != np.bool_ or given.shape != (rows,):
        raise TypeError(
            f"the function of a filter must return a bool for each record, shape ({rows},), found "
            f"{given.dtype} of shape {given.shape}; columns of text and bytes are lists: write "
            '[text == "x" for text in columns["name"]]'
        )
    return given
