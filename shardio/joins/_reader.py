"""Features of a second dataset beside those of a first, without a copy of either.

The order is the first one's: what is joined is looked up, by position or by key, for the records that are
read. Each side stays at the version that it was opened at.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn, Self, overload

import numpy as np
from numpy.typing import NDArray

from shardio.metadata import Feature, Schema
from shardio.reader import (
    DatasetReader,
    DatasetSource,
    Selection,
    count_below,
    is_ascending,
    selection_digest,
    with_features,
)
from shardio.redact import redact
from shardio.storage import Address


@dataclass(frozen=True, eq=False)
class Sides:
    """What a join is made of.

    Attributes:
        left: the left side's source.
        right: the right side.
        base: positions of the left side's source that were joined, ascending.
        index: int64 [len(base)], the record of `right` that belongs to each; None where they have one order.
        names: what features of `right` are called here, by their names there.
        on: the feature that records were joined by, or None.
    """

    left: DatasetSource
    right: DatasetReader
    base: Selection
    index: NDArray[np.int64] | None
    names: Mapping[str, str]
    on: str | None


class JoinedSource(DatasetSource):
    """The shards of the left side, and where the features of the right one come from.

    Args:
        sides: of the join.
        options: how it is read; None for those of the left side.

    Attributes:
        sides: of the join.
    """

    def __init__(self, sides: Sides, options: Any = None) -> None:
        left, right = sides.left, sides.right
        # The same open shards, pool and counters; what is decoded is worked out again.
        self.__dict__.update(
            {name: each for name, each in vars(left).items() if name not in ("codec", "_wanted")}
        )
        self.sides = sides
        chosen = left.options.features
        mine = {k: v for k, v in (left.schema or {}).items() if chosen is None or k in chosen}
        features: Mapping[str, Feature] = right.schema or {}
        theirs = {new: features[old].replace(stored_name=None) for old, new in sides.names.items()}
        # Of the left side's encoding only where that can hold several features.
        encoding = "tensors" if left.schema is not None and left.schema.encoding == "tensors" else "example"
        mine = {name: feature.replace(stored_name=None) for name, feature in mine.items()}
        self.schema = Schema({**mine, **theirs}, encoding=encoding)
        self.options = options or left.options

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedSource, (self.sides, self.options)

    def __copy__(self) -> JoinedSource:
        """Return the same join, of which other features may be decoded."""
        return JoinedSource(self.sides, self.options)

    @cached_property
    def codec(self) -> Any:
        """What decodes the left side's records."""
        return self._wanted[0].codec

    @cached_property
    def _wanted(self) -> tuple[DatasetSource, DatasetReader, Mapping[str, str]]:
        """The left side's source, the right side's reader and its names, for the features wanted."""
        sides = self.sides
        chosen, before = self.options.features, sides.left.options.features
        if chosen == before:
            return sides.left, sides.right, sides.names
        assert self.schema is not None  # noqa: S101 - as the constructor set it
        wanted = tuple(self.schema) if chosen is None else chosen
        unknown = [name for name in wanted if name not in self.schema]
        if unknown:
            message = f"there is no feature {unknown[0]!r}; the features are {', '.join(sorted(self.schema))}"
            raise ValueError(message)
        names = {old: new for old, new in sides.names.items() if new in wanted}
        mine = tuple(name for name in wanted if name not in sides.names.values())
        left = with_features(sides.left, mine)
        right = type(sides.right)(with_features(sides.right.source, tuple(names)), sides.right.selection)
        return left, right, names

    def matches(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which records of the right side belong to positions of the left side's source."""
        places = count_below(self.sides.base, positions)
        return places if self.sides.index is None else self.sides.index[places]

    def add_values(self, values: Sequence[Any], positions: NDArray[np.int64]) -> list[Any]:
        """Return values of the left side with those of the right."""
        left, right, names = self._wanted
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

        left, right, names = self._wanted
        columns = left.columns_of(values) if isinstance(left, JoinedSource) else {}
        features: Mapping[str, Feature] = right.schema or {}
        for old, new in names.items():
            columns[new] = collate(new, features[old], [value[new] for value in values])
        return columns

    def add_columns(self, columns: dict[str, Any], positions: NDArray[np.int64]) -> dict[str, Any]:
        """Return columns of the left side with those of the right."""
        left, right, names = self._wanted
        if isinstance(left, JoinedSource):
            columns = left.add_columns(columns, positions)
        if not names:
            return columns
        found = right.read_batch(self.matches(positions))
        return {**columns, **{new: found[old] for old, new in names.items()}}


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
    left, right = _with_values(source.sides.left), as_stored(source.sides.right)
    sides = replace(source.sides, left=left, right=right)
    return JoinedSource(sides, replace(source.options, decode=True))


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
        sides = self.source.sides
        whole = len(sides.base) == len(sides.left)
        left = DatasetReader if not isinstance(sides.left, JoinedSource) else JoinedReader
        return (*left(sides.left, None if whole else sides.base).parts, *sides.right.parts)

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
