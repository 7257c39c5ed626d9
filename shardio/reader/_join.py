"""Features of a second dataset beside those of a first, without a copy of either.

The order is the first one's: what is joined is looked up, by position or by key, for the records that are
read. Each side stays at the version that it was opened at.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, NoReturn, Self, overload

import numpy as np
from numpy.typing import NDArray

from shardio.arguments import checked_options
from shardio.errors import SchemaError
from shardio.metadata import Feature, Schema
from shardio.reader._columns import with_features
from shardio.reader._records import DatasetReader
from shardio.reader._source import DatasetSource
from shardio.reader._subset import Selection, count_below, is_ascending, selection_digest
from shardio.redact import redact
from shardio.storage import Address

_TOGETHER = 4096
_PART = 1 << 20  # keys that are compared at a time
_SHOWN = 5
_ENCODINGS = ("example", "tensors", "array", "bytes")


@checked_options
def join(
    left: DatasetReader,
    right: DatasetReader,
    *,
    on: str | None = None,
    how: Literal["all", "inner"] = "all",
    rename: Mapping[str, str] | None = None,
) -> DatasetReader:
    """Return a reader of the records of one dataset with the features of another one beside theirs.

    Nothing is copied and neither dataset is touched: the order, also that of streams, is the left one's, and
    the right one's features are read with every record. It can be sliced, selected, filtered, streamed, mixed
    and joined again; the state of a stream names both sides, and another version of either is refused.

    Args:
        left: from `shardio.open`, or a part of it in storage order.
        right: the same, in any order. Without `on` its record i belongs to record i of `left`.
        on: a feature of both, integers, text or bytes, by whose values records belong together: each comes
            once on the right, and any number of records on the left may have it. It is read
            from all records of both sides. What is held meanwhile grows with their number (the page on
            streaming has what was measured), and afterwards 8 bytes for each of `left`.
        how: with `on`: "all" takes every record of `left`, and each needs its match; "inner" leaves out those
            without one, and records of either side that have no key.
        rename: new names for features of `right`, needed where both sides have one of the same name.

    Raises:
        SchemaError: without `on`, the numbers of records differ. With it, a key comes twice on the right or
            is missing there, a record has no key and `how` is "all", or the keys differ in type or in
            the order of classes. It says which, and where.
        ValueError, TypeError: both sides have a feature of one name, or a feature is not there. Also a reader
            without a schema, one that does not decode or skips damage, or one that crops images at random.

    Examples:
        >>> import shardio, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> for name, kind, values in (("birds", "text", ["wren", "robin"]), ("legs", "int64", [2, 3])):
        ...     with shardio.DatasetWriter(f"{folder}/{name}", schema={name: kind}) as out:
        ...         for value in values:
        ...             out.write({name: value})
        >>> both = shardio.join(shardio.open(folder + "/birds"), shardio.open(folder + "/legs"))
        >>> both.read_batch([1, 0])
        {'birds': ['robin', 'wren'], 'legs': array([3, 2])}
    """
    if how not in ("all", "inner") or (how == "inner" and on is None):
        raise ValueError(f'how={how!r} must be "all", or with on= "inner"')
    for side, reader in (("left", left), ("right", right)):
        _check_side(side, reader)
    if not is_ascending(left.selection):
        raise ValueError(
            "the left side of a join must be in storage order, each record once: join first, and select from "
            "what comes of it"
        )
    kind = "" if on is None else _kind_of_key(left, right, on)
    names = _names(left, right, on, dict(rename or {}))
    index: NDArray[np.int64] | None = None
    selection: Selection = left.selection
    if on is None:
        if len(left) != len(right):
            raise SchemaError(
                "the two sides of a join by position have different numbers of records",
                url=right.source.url,
                expected=f"{len(left)}, as {left.source.url}",
                found=len(right),
                advice="join by a key with on=, or select the records that belong together on both sides",
            )
    else:
        index = _matches(left, right, on, kind, inner=how == "inner")
        found = index >= 0
        if how == "inner":
            selection = np.asarray(left.selection, np.int64)[found]
        elif not found.all():
            lacking = np.flatnonzero(~found)
            raise SchemaError(
                f"{len(lacking)} records of the left side have no match on the right",
                url=left.source.url,
                expected=f"each {on!r} on the left among those of {right.source.url}",
                found=_shown(left, lacking, on),
                advice='leave them out with how="inner"',
            )
    source = JoinedSource(left.source, right, left.selection, index, names, on)
    if len(selection) == len(source):
        return JoinedReader(source)
    return JoinedReader(source, selection)


def _check_side(side: str, reader: object) -> None:
    if not isinstance(reader, DatasetReader):
        message = f"join takes two readers of shardio.open, found {type(reader).__name__} on the {side}"
        raise TypeError(message)
    options, schema = reader.source.options, reader.schema
    if schema is None or not isinstance(options.decode, bool | str) or options.decode is False:
        raise ValueError(
            f"{redact(reader.source.url)}: the {side} side of a join needs a schema and decode=True"
        )
    if schema.encoding not in _ENCODINGS:
        raise ValueError(
            f"{redact(reader.source.url)}: records of the encoding {schema.encoding!r} cannot be joined"
        )
    if options.on_error != "raise":
        raise ValueError(
            f"{redact(reader.source.url)}: a join must know of every record of the {side} side, and "
            f'on_error={options.on_error!r} may leave some out: open it with on_error="raise"'
        )
    if side == "right" and getattr(reader.source.codec, "random", False):
        raise ValueError(
            f"{redact(reader.source.url)}: images of the right side cannot be cropped at random; "
            "join them as left"
        )


def _delivered(reader: DatasetReader) -> dict[str, Feature]:
    """Return the features that values of a reader have."""
    schema, chosen = reader.schema, reader.source.options.features
    assert schema is not None  # noqa: S101 - as was checked
    return {name: feature for name, feature in schema.items() if chosen is None or name in chosen}


def _names(
    left: DatasetReader, right: DatasetReader, on: str | None, rename: dict[str, str]
) -> dict[str, str]:
    """Return what the features of the right side are called beside those of the left."""
    ours, theirs = _delivered(left), _delivered(right)
    for name in rename:
        if name not in theirs:
            raise ValueError(
                f"rename= names {name!r}, which the right side does not have; it has {', '.join(theirs)}"
            )
    names = {name: rename.get(name, name) for name in theirs if name != on or name in rename}
    taken = [new for new in names.values() if new in ours]
    twice = [new for new in names.values() if list(names.values()).count(new) > 1]
    if taken or twice:
        name = (taken or twice)[0]
        where = "on both sides" if taken else "twice on the right"
        example = f'rename={{"{name}": "{name}_right"}}'
        message = f"a feature would be called {name!r} {where}: rename it with {example}, or choose features="
        raise ValueError(message)
    return names


class JoinedSource(DatasetSource):
    """The shards of the left side, and where the features of the right one come from.

    Attributes:
        left: the left side's source.
        right: the right side.
        base: positions of the left side's source that were joined, ascending.
        index: int64 [len(base)], the record of `right` that belongs to each; None where they have one order.
        names: what features of `right` are called here, by their names there.
        on: the feature that records were joined by, or None.
    """

    def __init__(
        self,
        left: DatasetSource,
        right: DatasetReader,
        base: Selection,
        index: NDArray[np.int64] | None,
        names: Mapping[str, str],
        on: str | None,
    ) -> None:
        # The same open shards, pool and counters; what is decoded is worked out again.
        self.__dict__.update(
            {name: each for name, each in vars(left).items() if name not in ("codec", "_sides")}
        )
        self.left, self.right, self.base, self.index = left, right, base, index
        self.names, self.on = dict(names), on
        chosen = left.options.features
        mine = {k: v for k, v in (left.schema or {}).items() if chosen is None or k in chosen}
        features: Mapping[str, Feature] = right.schema or {}
        theirs = {new: features[old].replace(stored_name=None) for old, new in names.items()}
        # Of the left side's encoding only where that can hold several features.
        encoding = "tensors" if left.schema is not None and left.schema.encoding == "tensors" else "example"
        mine = {name: feature.replace(stored_name=None) for name, feature in mine.items()}
        self.schema = Schema({**mine, **theirs}, encoding=encoding)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rejoined, (self.left, self.right, self.base, self.index, self.names, self.on, self.options)

    def __copy__(self) -> JoinedSource:
        """Return the same join, of which other features may be decoded."""
        return _rejoined(self.left, self.right, self.base, self.index, self.names, self.on, self.options)

    @cached_property
    def codec(self) -> Any:
        """What decodes the left side's records."""
        return self._sides[0].codec

    @cached_property
    def _sides(self) -> tuple[DatasetSource, DatasetReader, dict[str, str]]:
        """The left side's source, the right side's reader and its names, for the features wanted."""
        chosen, before = self.options.features, self.left.options.features
        if chosen == before:
            return self.left, self.right, self.names
        assert self.schema is not None  # noqa: S101 - as the constructor set it
        wanted = tuple(self.schema) if chosen is None else chosen
        unknown = [name for name in wanted if name not in self.schema]
        if unknown:
            message = f"there is no feature {unknown[0]!r}; the features are {', '.join(sorted(self.schema))}"
            raise ValueError(message)
        names = {old: new for old, new in self.names.items() if new in wanted}
        mine = tuple(name for name in wanted if name not in self.names.values())
        left = _with_features(self.left, mine)
        right = type(self.right)(_with_features(self.right.source, tuple(names)), self.right.selection)
        return left, right, names

    def matches(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which records of the right side belong to positions of the left side's source."""
        places = count_below(self.base, positions)
        return places if self.index is None else self.index[places]

    def add_values(self, values: Sequence[Any], positions: NDArray[np.int64]) -> list[Any]:
        """Return values of the left side with those of the right."""
        left, right, names = self._sides
        if isinstance(left, JoinedSource):
            values = left.add_values(values, positions)
        if not names:
            return list(values)
        found = right.read(self.matches(positions))
        return [
            {**value, **{new: other[old] for old, new in names.items()}}
            for value, other in zip(values, found, strict=True)
        ]

    def columns_of(self, values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the columns of the joined features of values that `add_values` has made."""
        from shardio.codecs import collate

        left, right, names = self._sides
        columns = left.columns_of(values) if isinstance(left, JoinedSource) else {}
        features: Mapping[str, Feature] = right.schema or {}
        for old, new in names.items():
            columns[new] = collate(new, features[old], [value[new] for value in values])
        return columns

    def add_columns(self, columns: dict[str, Any], positions: NDArray[np.int64]) -> dict[str, Any]:
        """Return columns of the left side with those of the right."""
        left, right, names = self._sides
        if isinstance(left, JoinedSource):
            columns = left.add_columns(columns, positions)
        if not names:
            return columns
        found = right.read_batch(self.matches(positions))
        return {**columns, **{new: found[old] for old, new in names.items()}}


def _rejoined(
    left: DatasetSource,
    right: DatasetReader,
    base: Selection,
    index: NDArray[np.int64] | None,
    names: Mapping[str, str],
    on: str | None,
    options: Any,
) -> JoinedSource:
    source = JoinedSource(left, right, base, index, names, on)
    source.options = options
    return source


def as_stored(
    reader: DatasetReader, features: Sequence[str] | None = None, *, payloads: bool = False
) -> DatasetReader:
    """Return the same records as values by their schema, whatever the reader was told to make of them.

    Images are the files' bytes, and damage is raised.

    Args:
        reader: of a dataset, or of a join.
        features: names of those wanted; None for those of the reader.
        payloads: return payload bytes instead, those of the left side of a join.

    Raises:
        ValueError, TypeError: there are no such features.
    """
    source: Any = reader.source
    if payloads:
        source = copy.copy(source)
        source.options = replace(source.options, decode=False, features=None, on_error="raise")
        source.__dict__.pop("codec", None)
    else:
        source = with_features(_with_values(source), features)
    return type(reader)(source, reader.selection)


def _with_values(source: DatasetSource) -> DatasetSource:
    if not isinstance(source, JoinedSource):
        return with_features(source, None, values=True)
    left, right = _with_values(source.left), as_stored(source.right)
    options = replace(source.options, decode=True)
    return _rejoined(left, right, source.base, source.index, source.names, source.on, options)


def _with_features(source: DatasetSource, features: tuple[str, ...]) -> DatasetSource:
    """Return the same open shards, of which other features are decoded."""
    other = copy.copy(source)
    vars(other).pop("codec", None)
    other.options = replace(source.options, features=features)
    return other


def _of_left_alone(reader: DatasetReader, what: str) -> ValueError:
    return ValueError(
        f"{redact(reader.source.url)}: {what} works on one dataset, and this is a join of several: use it on "
        "a side before joining; ds.filter(function) and ds.read_batch see the features of both"
    )


def _refusal(name: str, why: str) -> Callable[..., NoReturn]:
    """Return a method that raises ValueError, and says why in its docstring."""

    def refuse(self: DatasetReader, *_args: Any, **_options: Any) -> NoReturn:
        raise _of_left_alone(self, name)

    refuse.__name__, refuse.__doc__ = name, f"Raise ValueError: {why}."
    return refuse


class JoinedReader(DatasetReader):
    """The records of the left side of a join, with the features of both; made by `shardio.join`."""

    source: JoinedSource

    @property
    def address(self) -> Address:
        """None: a join is two datasets.

        Raises:
            TypeError: always.
        """
        raise TypeError("a join is two datasets: give the reader of one of them")

    @property
    def parts(self) -> tuple[DatasetReader, ...]:
        """The readers that were joined."""
        source = self.source
        whole = len(source.base) == len(source.left)
        left = DatasetReader if not isinstance(source.left, JoinedSource) else JoinedReader
        return (*left(source.left, None if whole else source.base).parts, *source.right.parts)

    def with_parts(self, parts: Sequence[DatasetReader]) -> DatasetReader:
        """Return this join over other versions of its sides.

        Raises:
            ValueError: this reader is a part of the join, whose positions belong to one version.
        """
        own = self.parts
        if all(one.digest == other.digest for one, other in zip(own, parts, strict=True)):
            return self
        raise ValueError(
            f"{redact(self.source.url)}: this process reads other versions than another one: open both sides "
            "of a join with the same version= everywhere"
        )

    def filter(self, condition: Any, **options: Any) -> Self:
        """Return a reader of the records that meet a condition: a function or a mask; as `Records.filter`."""
        if isinstance(condition, str):
            raise _of_left_alone(self, "a condition as text")
        return super().filter(condition, **options)

    split_by: Any = _refusal("split_by", "parts are made before joining")
    map: Any = _refusal("map", "`transform=` of a stream or loader sees the features of both sides")
    find: Any = _refusal("find", "keys are looked up in the left side; its positions are those of the join")
    find_all: Any = _refusal("find_all", "as `find`")
    to_arrow: Any = _refusal("to_arrow", "tables are of one dataset; `read_batch` has columns of both sides")
    to_pandas: Any = _refusal("to_pandas", "as `to_arrow`")

    @overload
    def __getitem__(self, item: int) -> Any: ...
    @overload
    def __getitem__(self, item: slice) -> JoinedReader: ...
    def __getitem__(self, item: int | slice) -> Any:
        """Return one record with the features of both sides, or a reader of a slice."""
        value = super().__getitem__(item)
        if isinstance(item, slice):
            return value
        return self.source.add_values([value], np.array([self._position(item)]))[0]

    def _values(self, payloads: list[bytes], positions: range | NDArray[np.int64]) -> list[Any]:
        values = super()._values(payloads, positions)
        return self.source.add_values(values, np.asarray(positions, np.int64))

    def _decode_columns(self, payloads: Any, positions: range | NDArray[np.int64]) -> dict[str, Any]:
        columns = super()._decode_columns(payloads, positions)
        return self.source.add_columns(columns, np.asarray(positions, np.int64))


def right_digest(reader: DatasetReader) -> str | None:
    """Return what the selection of a right side is known by, or None where it is all of the split."""
    if len(reader) == len(reader.source) and isinstance(reader.selection, range):
        return None if reader.selection.step == 1 else "reversed"
    if is_ascending(reader.selection):
        return selection_digest(reader.selection)
    positions = np.ascontiguousarray(np.asarray(reader.selection, "<i8"))
    return hashlib.sha256(b"shardio order of positions 1" + positions.tobytes()).hexdigest()


def _kind_of_key(left: DatasetReader, right: DatasetReader, on: str) -> str:
    """Return what the keys of both sides are: integers, text or bytes."""
    kinds, classes = [], []
    for side, reader in (("left", left), ("right", right)):
        schema: Mapping[str, Feature] = reader.schema or {}
        feature = schema.get(on)
        if feature is None:
            raise ValueError(f"there is no feature {on!r} on the {side} side; it has {', '.join(schema)}")
        integer = feature.dtype is not None and feature.dtype.kind in "iu" and feature.type != "bfloat16"
        if feature.shape or not (integer or feature.kind in ("text", "bytes")):
            raise ValueError(
                f"on={on!r}: a key is an integer, text or bytes, and on the {side} it is {feature.short}"
            )
        kinds.append("integer" if integer else feature.kind)
        classes.append(feature.classes or ())
    for number, (ours, theirs) in enumerate(zip(*classes, strict=False)):
        if ours != theirs:
            raise SchemaError(
                f"feature {on!r} numbers its classes differently on the two sides of the join",
                url=right.source.url,
                expected=f"class {number} to be {ours!r}, as in {left.source.url}",
                found=repr(theirs),
                advice="write one side again with the classes=[...] of the other (their names are taken as "
                "values), or join by position, without on=",
            )
    if kinds[0] != kinds[1]:
        raise SchemaError(
            f"feature {on!r} is not of one type on both sides of the join",
            url=right.source.url,
            expected=kinds[0],
            found=kinds[1],
            advice="write the keys as the same type on both sides",
        )
    return kinds[0]


class _Keys(NamedTuple):
    """The keys of a side, told apart by two columns: of integers bits and sign, of others a digest.

    Attributes:
        high: uint64 [n].
        low: uint64 [n], or of integers bool [n]: whether it is negative.
        present: bool [n]: whether the record has a key.
    """

    high: NDArray[np.uint64]
    low: NDArray[Any]
    present: NDArray[np.bool_]


def _matches(
    left: DatasetReader, right: DatasetReader, on: str, kind: str, *, inner: bool
) -> NDArray[np.int64]:
    """Return for each record of the left side the number of its match on the right, -1 for none."""
    ours = _keys(left, on, kind, inner=inner)
    theirs = _keys(right, on, kind, inner=inner)
    numbers = np.flatnonzero(theirs.present)
    if len(numbers) < len(theirs.high):
        theirs = _Keys(theirs.high[numbers], theirs.low[numbers], theirs.present[numbers])
    order = _order_of(right, theirs, on, numbers)
    found = np.full(len(ours.high), -1, np.int64)
    # In parts, since each place of a part takes several numbers of 8 bytes meanwhile.
    for begin in range(0, len(ours.high) if len(order) else 0, _PART):
        part = slice(begin, begin + _PART)
        high, low = ours.high[part], ours.low[part]
        places = np.searchsorted(theirs.high, high, sorter=order)
        looking = np.arange(len(high))
        # Keys of one `high` are side by side: rarely more than one.
        while True:
            looking = looking[places[looking] < len(order)]
            candidates = order[places[looking]]
            same = theirs.high[candidates] == high[looking]
            looking, candidates = looking[same], candidates[same]
            right_one = theirs.low[candidates] == low[looking]
            found[begin + looking[right_one]] = candidates[right_one]
            looking = looking[~right_one]
            if not len(looking):
                break
            places[looking] += 1
    matched = ours.present & (found >= 0)
    found[matched] = numbers[found[matched]]
    found[~matched] = -1
    return found


def _keys(reader: DatasetReader, on: str, kind: str, *, inner: bool) -> _Keys:
    """Return the keys of all records.

    Raises:
        SchemaError: a record has none, and that is not for an inner join.
    """
    narrow = type(reader)(_with_features(reader.source, (on,)), reader.selection)
    high = np.empty(len(reader), np.uint64)
    low = np.empty(len(reader), bool if kind == "integer" else np.uint64)
    present = np.ones(len(reader), bool)
    features: Mapping[str, Feature] = reader.schema or {}
    feature = features[on]
    columns: Iterator[Any]
    if feature.optional and not feature.has_default:
        # An array has no place for a missing number.
        starts = range(0, len(reader), _TOGETHER)
        parts = (narrow.read(range(at, min(at + _TOGETHER, len(reader)))) for at in starts)
        columns = ([value[on] for value in values] for values in parts)
    else:
        columns = (batch[on] for batch in narrow.iter_batches(_TOGETHER))
    done = 0
    for values in columns:
        column = values
        part = slice(done, done + len(column))
        lacking = [k for k, value in enumerate(column) if value is None]
        if lacking and not inner:
            raise SchemaError(
                f"a record has no {on!r} to be joined by",
                url=reader.source.url,
                row=done + lacking[0],
                advice='leave such records out with how="inner"',
            )
        if lacking:
            present[done + np.array(lacking)] = False
            column = [(0 if kind == "integer" else b"") if value is None else value for value in column]
        done += len(column)
        if kind == "integer":
            keys = np.asarray(column, feature.dtype)
            low[part] = keys < 0
            high[part] = (keys.astype(np.int64) if keys.dtype.kind == "i" else keys).astype(np.uint64)
        else:
            texts = [value.encode() if isinstance(value, str) else bytes(value) for value in column]
            digests = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
            both = np.frombuffer(digests, "<u8").reshape(-1, 2)
            high[part], low[part] = both[:, 0], both[:, 1]
    return _Keys(high, low, present)


def _order_of(reader: DatasetReader, keys: _Keys, on: str, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order of the keys of a side, int64 [n]; `numbers` are those of its records that have one.

    Raises:
        SchemaError: a key comes more than once.
    """
    # Integers of one type are told apart by their bits.
    whole = keys.low.dtype == np.bool_
    order: NDArray[np.int64] = (
        np.argsort(keys.high, kind="stable") if whole else np.lexsort((keys.low, keys.high))
    )
    first = None
    count = 0
    for begin in range(0, len(order) - 1, _PART):
        some = order[begin : begin + _PART + 1]
        same = keys.high[some[1:]] == keys.high[some[:-1]]
        again = np.flatnonzero(same & (keys.low[some[1:]] == keys.low[some[:-1]]))
        count += len(again)
        if first is None and len(again):
            first = numbers[some[again[0] : again[0] + 2]].tolist()
    if first is not None:
        value = type(reader)(_with_features(reader.source, (on,)), reader.selection)[first[0]][on]
        raise SchemaError(
            f"the key {on!r} comes more than once on the right side of the join",
            url=reader.source.url,
            expected="each key once",
            found=f"{value!r} at {first[0]} and {first[1]}, and {count - 1} more",
            advice="leave all but one out with ds.filter or ds.select",
        )
    return order


def _shown(reader: DatasetReader, numbers: NDArray[np.int64], on: str) -> str:
    source = _with_features(reader.source, (on,))
    some = type(reader)(source, reader.selection).read(numbers[:_SHOWN])
    more = ", ..." if len(numbers) > _SHOWN else ""
    return ", ".join(str(value[on]) for value in some) + more
