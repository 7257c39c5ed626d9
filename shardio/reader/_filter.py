"""Which records meet a condition, or are in which part: functions over columns, by the batch in threads."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import integer
from shardio.errors import SchemaError, ShardioError
from shardio.progress import displayed
from shardio.reader._columns import with_features
from shardio.reader._damage import Damage, SuppressCorruption
from shardio.reader._source import ShardSource
from shardio.reader._subset import Selection

# Batches that a thread takes at a time: enough that it reads in large runs.
_BATCHES = 16
_WAIT = 0.2  # seconds between two looks whether anybody still wants the answer


class BatchReader(Protocol):
    """What is asked of `RecordSequence`, which uses this file."""

    source: ShardSource
    selection: Selection

    def __init__(self, source: ShardSource, selection: Selection | None = None) -> None: ...

    def __len__(self) -> int: ...

    def read(self, positions: Any, *, on_error: Any) -> list[Any]:
        """Return records, or their errors."""

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
    """Return the mask that a function of columns makes; arguments are those of `RecordSequence.filter`."""

    def look(some: BatchReader, positions: Any) -> NDArray[np.bool_]:
        columns = some.read_batch(positions)
        return _checked(_called(function, columns, records, "the function of a filter"), len(positions))

    return _look_at_all(records, look, options, "filter", np.bool_)[0]


def parts(
    records: BatchReader,
    fractions: Mapping[str, float],
    options: FilterOptions,
    *,
    by: str | Callable[[dict[str, Any]], Any] | None,
    seed: int,
    exact: bool,
) -> dict[str, NDArray[np.bool_]]:
    """Return the mask of each part; arguments are those of `RecordSequence.split_by`."""
    edges = _edges(fractions)
    seed = integer("seed", seed)
    if isinstance(by, str) or by is None:
        if options.features is not None:
            raise ValueError("features= are those that are read for a function: give one, by=f")
        if by is not None and records.source.codec is not None:
            options = replace(options, features=[by])
    if by is None:
        numbers = np.asarray(records.selection, np.int64).astype(np.uint64)
        keys = _mixed(numbers + np.uint64(_hash(b"positions", seed)))
        there = np.ones(len(records), bool)
    else:

        def look(some: BatchReader, positions: Any) -> NDArray[np.uint64]:
            columns = some.read_batch(positions)
            values = columns[by] if isinstance(by, str) else _called(by, columns, records, "by=")
            name = f"feature {by!r}" if isinstance(by, str) else "by="
            return _hashes(values, len(positions), seed, name)

        keys, there = _look_at_all(records, look, options, "split", np.uint64)
    part = np.searchsorted(_thresholds(keys[there], edges, exact=exact), keys, side="right")
    return {name: there & (part == number) for number, name in enumerate(fractions)}


def _look_at_all(
    records: BatchReader, look: Look, options: FilterOptions, task: str, dtype: type[Any]
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    wanted = type(records)(with_features(records.source, options.features), records.selection)
    size = options.batch_size * _BATCHES
    spans = [
        range(low, min(low + size, len(records)), options.batch_size) for low in range(0, len(records), size)
    ]
    return look_at_spans(records, wanted, spans, lambda some, at, _: look(some, at), options, task, dtype)


# Takes a reader and positions, and returns an item for each.
Look = Callable[[Any, Any], "NDArray[Any]"]
# The same; it may call the function given to learn, by an error, that nobody wants the answer any more.
PatientLook = Callable[[Any, Any, Callable[[], None]], "NDArray[Any]"]


def look_at_spans(
    records: BatchReader,
    wanted: BatchReader,
    spans: Iterable[range],
    look: PatientLook,
    options: FilterOptions,
    task: str,
    dtype: type[Any],
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return what a function makes of all records, in threads; and which of them are not damaged.

    Args:
        records: the reader, which says what to do about damage.
        wanted: the same records with the features that the function sees.
        spans: of positions, whose steps are the batches.
        look: takes `wanted`, positions of a batch, and what tells it to stop.
        options: threads and progress.
        task: for the display.
        dtype: of the result; damaged records have its zero.
    """
    out, there = np.zeros(len(records), dtype), np.zeros(len(records), bool)
    damage, stopped = Damage(records.source, len(records)), threading.Event()

    def check() -> None:
        if stopped.is_set():
            raise _OtherThreadFailedError

    def walk(span: range) -> range:
        for low in span:
            check()
            kept: Any = range(low, min(low + span.step, span.stop))
            with SuppressCorruption(skips=damage.skips) as skipped:
                out[low : kept.stop] = look(wanted, kept, check)
            if skipped.error is not None:
                kept = _undamaged(wanted, kept, damage)
                if kept:
                    out[kept] = look(wanted, kept, check)
            there[kept] = True
        return span

    with displayed(options.progress, task) as show:
        done = found = 0

        def tell() -> None:
            if show is not None:
                show(FilterProgress(done, len(records), found))

        for span in _in_threads(walk, spans, options.num_threads, stopped, tell):
            done += span.stop - span.start
            found += int(np.count_nonzero(out[span.start : span.stop]))
            tell()
    return out, there


def _undamaged(wanted: BatchReader, positions: range, damage: Damage) -> list[int]:
    """Return the positions whose records are not damaged, and note the others."""
    kept = []
    for position, value in zip(positions, wanted.read(positions, on_error="return"), strict=True):
        if isinstance(value, ShardioError):
            shard, row = wanted.source.shard_of(int(wanted.selection[position]))
            damage.note(value, wanted.source, wanted.source.table.key[shard], [row])
            damage.count(1)
        else:
            kept.append(position)
    return kept


def _in_threads(
    function: Callable[[range], range],
    items: Iterable[range],
    threads: int | None,
    stopped: threading.Event,
    tell: Callable[[], None],
) -> Iterator[range]:
    """Yield what a function makes of items, in order; at the first error all threads stop.

    `tell` is called while nothing comes; it may raise.
    """
    with ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1), "shardio-filter") as pool:
        try:
            for future in [pool.submit(function, item) for item in items]:
                while not wait([future], _WAIT).done:
                    tell()
                yield future.result()
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)


class _OtherThreadFailedError(Exception):
    """The result of this thread is not wanted any more."""


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
