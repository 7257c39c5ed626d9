"""The twins of tf.io.parse_example and tf.io.parse_sequence_example: batches of records into columns.

The kernels parse; here descriptions are translated, and columns get their final form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from shardio import kernels
from shardio.codecs._codec import Payloads, as_records
from shardio.codecs._columns import RaggedColumn, VarLenColumn
from shardio.errors import CorruptRecordError, FormatError, SchemaError

_KINDS: dict[str, kernels.Kind] = {"int64": "int64", "float32": "float", "bytes": "bytes"}
_MAY_BE_MISSING = (
    "where it may be missing, give FixedLen a default, or ask for Ragged or VarLen; of a feature list, for "
    "FixedLenSequence(allow_missing=True), Ragged or VarLen"
)


def _check_dtype(dtype: str) -> None:
    if dtype not in _KINDS:
        raise ValueError(f"dtype {dtype!r}; an Example holds {', '.join(_KINDS)}")


def _sizes(given: Any, what: str, least: int = 0) -> tuple[int, ...]:
    """Return a shape, of which an int is one size, as a tuple."""
    sizes = [given] if isinstance(given, int | np.integer) else given
    listed = isinstance(sizes, Sequence | np.ndarray) and not isinstance(sizes, str | bytes)
    if not listed or any(
        isinstance(n, bool) or not isinstance(n, int | np.integer) or n < least for n in sizes
    ):
        raise ValueError(f"{what} {given!r}: sizes are ints of at least {least}")
    return tuple(int(size) for size in sizes)


@dataclass(frozen=True, slots=True)
class FixedLen:
    """Ask for a feature of fixed shape: a column [n, *shape].

    Attributes:
        shape: sizes; () for one value a record; an int is a shape of one size.
        dtype: `"int64"`, `"float32"` or `"bytes"`.
        default: the value of records that lack the feature, of this shape or one for all places; without it
            the feature is required.
    """

    shape: int | Sequence[int]
    dtype: str
    default: Any = None

    def __post_init__(self) -> None:
        """Refuse what could describe no column."""
        _check_dtype(self.dtype)
        object.__setattr__(self, "shape", _sizes(self.shape, "shape"))


@dataclass(frozen=True, slots=True)
class FixedLenSequence:
    """Ask for any number of items of fixed shape, padded: a column [n, longest, *shape].

    In `parse_examples` the values of a feature are the items one after another; in the feature lists of
    `parse_sequence_examples` each step is one item.

    Attributes:
        shape: sizes of one item, at least 1 each; () for one value; an int is a shape of one size.
        dtype: `"int64"`, `"float32"` or `"bytes"`.
        allow_missing: whether a record may lack the feature and so have no items; `parse_examples` needs it.
        default: one value to pad with, by default 0 or `b""`; feature lists take none.
    """

    shape: int | Sequence[int]
    dtype: str
    allow_missing: bool = False
    default: Any = None

    def __post_init__(self) -> None:
        """Refuse what could describe no column."""
        _check_dtype(self.dtype)
        object.__setattr__(self, "shape", _sizes(self.shape, "shape", 1))


def _shape_of(given: FixedLen | FixedLenSequence) -> tuple[int, ...]:
    return cast("tuple[int, ...]", given.shape)  # since it was made


@dataclass(frozen=True, slots=True)
class VarLen:
    """Ask for a feature of any length as a sparse column: `values`, `indices` and `shape`."""

    dtype: str

    def __post_init__(self) -> None:
        """Refuse a dtype that an Example does not hold."""
        _check_dtype(self.dtype)


@dataclass(frozen=True, slots=True)
class Sparse:
    """Ask for a sparse array whose values and places are features of their own, as a `VarLenColumn`.

    Attributes:
        index_key: the int64 feature that holds the place of each value; one a dimension where it is a list.
        value_key: the feature that holds the values.
        dtype: of the values: `"int64"`, `"float32"` or `"bytes"`.
        size: the size of the array; a list, one a dimension, where `index_key` is one.
        already_sorted: whether the values come in the order of their places; otherwise they are sorted.
    """

    index_key: str | Sequence[str]
    value_key: str
    dtype: str
    size: int | Sequence[int]
    already_sorted: bool = False

    def __post_init__(self) -> None:
        """Refuse what could describe no array."""
        _check_dtype(self.dtype)
        keys = self.index_keys
        if not keys or any(not isinstance(key, str) or not key for key in (*keys, self.value_key)):
            raise ValueError(f"index_key {self.index_key!r}, value_key {self.value_key!r}: names of features")
        single = isinstance(self.size, int | np.integer)
        if isinstance(self.index_key, str) is not single or len(keys) != len(_sizes(self.size, "size")):
            raise ValueError(f"size {self.size!r} for index_key {self.index_key!r}: one size for each key")

    @property
    def index_keys(self) -> tuple[str, ...]:
        """The features that hold places, one a dimension."""
        return (self.index_key,) if isinstance(self.index_key, str) else tuple(self.index_key)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Ask for a feature of any length as a ragged column: `values` and `offsets`.

    Attributes:
        dtype: `"int64"`, `"float32"` or `"bytes"`.
        value_key: the feature that holds the values; None for the one of the column's own name.
    """

    dtype: str
    value_key: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could describe no column."""
        _check_dtype(self.dtype)
        if self.value_key is not None and (not isinstance(self.value_key, str) or not self.value_key):
            raise ValueError(f"value_key {self.value_key!r}: the name of a feature, or None")


Description: TypeAlias = FixedLen | FixedLenSequence | VarLen | Sparse | Ragged


def parse_examples(payloads: Payloads, features: Mapping[str, Description]) -> dict[str, Any]:
    """Parse tf.train.Example records into columns, as tf.io.parse_example does.

    Args:
        payloads: n records: a sequence of bytes, or `(buffer, starts, stops)`.
        features: what to look for; others are skipped.

    Returns:
        By name: for FixedLen an array [n, *shape] of int64, float32, or object where it holds bytes; for
        FixedLenSequence an array [n, longest, *shape]; for VarLen and Sparse a `VarLenColumn`; for Ragged a
        `RaggedColumn`.

    Raises:
        SchemaError: a required feature is missing, is of another kind, or has another number of values; or
            places do not fit their values. It names the feature and the record: `row` is its number within
            this call.
        CorruptRecordError: a payload is no Example.

    Examples:
        >>> from shardio.codecs import encode_example
        >>> parse_examples([encode_example({"id": 7})], {"id": FixedLen((), "int64")})
        {'id': array([7])}
    """
    known: tuple[type, ...] = (FixedLen, FixedLenSequence, VarLen, Sparse, Ragged)
    _check(features, known)
    for name, given in features.items():
        if isinstance(given, FixedLenSequence) and not given.allow_missing:
            message = f"feature {name!r}: FixedLenSequence needs allow_missing=True outside feature lists"
            raise ValueError(message)
    parsed = parsed_or_raise(
        kernels.parse_examples, as_records(payloads), _wanted(features), advice=_MAY_BE_MISSING
    )
    return {name: _column(name, given, parsed.columns) for name, given in features.items()}


def parse_sequence_examples(
    payloads: Payloads, features: Mapping[str, Mapping[str, Description]]
) -> dict[str, dict[str, Any]]:
    """Parse tf.train.SequenceExample records into columns, as tf.io.parse_sequence_example does.

    Args:
        payloads: n records: a sequence of bytes, or `(buffer, starts, stops)`.
        features: `{"context": {...}, "feature_lists": {...}}`; either may be left out.  A feature list's
            description is of one step.  The context takes FixedLen, VarLen and Ragged; feature lists take
            these and FixedLenSequence.  FixedLen means that the list is required, and cannot have a default.

    Returns:
        `{"context": {...}, "feature_lists": {...}, "lengths": {...}}`. A feature list is ragged by step.
        FixedLen gives a `RaggedColumn` of an array [steps, *shape]. Ragged gives a `RaggedColumn` whose
        values are the `RaggedColumn` of all steps. VarLen gives a `VarLenColumn` of three dimensions. For
        FixedLenSequence it is an array [n, most steps, *shape], and `"lengths"` has int64[n], its steps.

    Raises:
        SchemaError, CorruptRecordError: as `parse_examples`.
    """
    extra = sorted(set(features) - {"context", "feature_lists"})
    if extra:
        message = f'features are {{"context": ..., "feature_lists": ...}}; found {", ".join(map(str, extra))}'
        raise ValueError(message)
    context, lists = (features.get(part, {}) for part in ("context", "feature_lists"))
    _check(context, (FixedLen, VarLen, Ragged))
    _check(lists, (FixedLen, FixedLenSequence, VarLen, Ragged))
    for name, given in lists.items():
        if isinstance(given, FixedLen | FixedLenSequence) and given.default is not None:
            raise ValueError(
                f"feature list {name!r}: a step has no default; where the list may be missing, ask for "
                "FixedLenSequence(allow_missing=True) or Ragged"
            )
    asked = _wanted(context), _wanted(lists, listed=True)
    parsed = parsed_or_raise(
        kernels.parse_sequence_examples, as_records(payloads), *asked, advice=_MAY_BE_MISSING
    )
    return {
        "context": {name: _column(name, given, parsed.columns) for name, given in context.items()},
        "feature_lists": {name: _column(name, given, parsed.lists) for name, given in lists.items()},
        "lengths": {
            name: np.diff(_known(parsed.lists[name.encode()].steps))
            for name, given in lists.items()
            if isinstance(given, FixedLenSequence)
        },
    }


def parsed_or_raise(
    parse: Any, records: Any, *wanted: list[kernels.FeatureRequest], advice: str | None = None
) -> kernels.Parsed:
    """Parse, and turn what does not fit into the errors of the tree.

    `row` of an error is the record's number within the call.  `advice` is what to do about a missing feature.
    """
    try:
        parsed: kernels.Parsed = parse(records, *wanted)
    except FormatError as error:
        raise CorruptRecordError(error.what, **error.fields()) from None
    if parsed.mismatch is not None:
        raise parsed.mismatch.error(advice)
    return parsed


def _check(features: Mapping[str, Description], known: tuple[type, ...]) -> None:
    for name, given in features.items():
        if not isinstance(given, known):
            *some, last = (one.__name__ for one in known)
            found = type(given).__name__
            raise TypeError(f"feature {name!r} is described by a {', '.join(some)} or {last}, not {found}")


def _wanted(features: Mapping[str, Description], *, listed: bool = False) -> list[kernels.FeatureRequest]:
    """Return what a kernel must look for: each feature once, also where several descriptions share it."""
    found: dict[str, kernels.FeatureRequest] = {}
    for name, given in features.items():
        for key, feature in _asked(name, given, listed=listed):
            other = found.setdefault(key, feature)
            if other is not feature and not _alike(other, feature):
                both = f"as {_shown(other)} and, for {name!r}, as {_shown(feature)}"
                raise ValueError(f"feature {key!r} is asked for twice, {both}")
    return list(found.values())


def _alike(one: kernels.FeatureRequest, other: kernels.FeatureRequest) -> bool:
    return one.count is None and other.count is None and one.kind == other.kind


def _shown(feature: kernels.FeatureRequest) -> str:
    return f"{feature.kind} of {'any length' if feature.count is None else f'{feature.count} values'}"


def _asked(name: str, given: Description, *, listed: bool) -> Iterator[tuple[str, kernels.FeatureRequest]]:
    """Yield the features that a description needs, by name."""
    count = default = None
    required = False
    if isinstance(given, Sparse):
        for key in given.index_keys:
            yield key, kernels.FeatureRequest(key.encode(), "int64")
    elif isinstance(given, FixedLen):
        count = math.prod(_shape_of(given))
        default = None if given.default is None else _default(name, given, count)
        required = default is None
    elif isinstance(given, FixedLenSequence) and listed:
        count, required = math.prod(_shape_of(given)), not given.allow_missing
    key = _value_key(name, given)
    yield key, kernels.FeatureRequest(key.encode(), _KINDS[given.dtype], count, required, default)


def _value_key(name: str, given: Description) -> str:
    """Return the name of the feature that holds the values of a column."""
    return getattr(given, "value_key", None) or name


def _default(name: str, given: FixedLen, count: int) -> Any:
    dtype = np.dtype(object if given.dtype == "bytes" else given.dtype)
    value = np.empty((), object) if isinstance(given.default, bytes) else None
    if value is not None:
        value[()] = given.default
    array = np.asarray(given.default if value is None else value, dtype)
    if array.size not in (1, count) or (
        given.dtype == "bytes" and not all(isinstance(v, bytes) for v in array.flat)
    ):
        raise ValueError(f"feature {name!r}: default {given.default!r} is not {count} x {given.dtype}")
    flat = array.ravel() if array.size == count else np.repeat(array.ravel(), count)
    return flat.tolist() if given.dtype == "bytes" else flat


def values_of(column: kernels.Column) -> npt.NDArray[Any]:
    """Return the column's values, bytes as an array of objects of the same shape."""
    if column.kind != "bytes":
        assert column.values is not None  # noqa: S101 - a column of numbers has values
        return column.values
    assert column.starts is not None  # noqa: S101 - a column of bytes has spans
    assert column.stops is not None  # noqa: S101
    objects = np.empty(column.starts.size, object)
    objects[:] = kernels.slice_records(column.source, column.starts.ravel(), column.stops.ravel())
    return objects.reshape(column.starts.shape)


def _column(name: str, given: Description, columns: Mapping[bytes, kernels.Column]) -> Any:
    """Return the column of a description; of a feature list it is ragged by step."""
    if isinstance(given, Sparse):
        return _placed(name, given, columns)
    column = columns[_value_key(name, given).encode()]
    steps = column.steps
    if isinstance(given, FixedLen | Ragged):
        values: Any = _ragged(column) if isinstance(given, Ragged) else _shaped(values_of(column), given)
        return values if steps is None else RaggedColumn(values, steps)
    if isinstance(given, FixedLenSequence):
        return _padded(name, given, column)
    owner, place, widest = _sparse(_known(column.offsets))
    levels, sizes = [owner, place], [len(_known(column.offsets)) - 1, widest]
    if steps is not None:
        rows, step, longest = _sparse(steps)
        levels, sizes = [rows[owner], step[owner], place], [len(steps) - 1, longest, widest]
    return VarLenColumn(values_of(column), np.stack(levels, axis=1), np.array(sizes, np.int64))


def _ragged(column: kernels.Column) -> RaggedColumn:
    return RaggedColumn(values_of(column), _known(column.offsets))


def _shaped(values: npt.NDArray[Any], given: FixedLen | FixedLenSequence) -> npt.NDArray[Any]:
    # One row each, also where a shape holds nothing.
    rows = len(values) if isinstance(given, FixedLen) else values.size // math.prod(_shape_of(given))
    return values.reshape(rows, *_shape_of(given))


def _padded(name: str, given: FixedLenSequence, column: kernels.Column) -> npt.NDArray[Any]:
    """Return the items of all rows as [n, longest, *shape]."""
    offsets = column.steps
    if offsets is None:
        items, lengths = math.prod(_shape_of(given)), np.diff(_known(column.offsets))
        odd = np.flatnonzero(lengths % items)
        if odd.size:
            row, what = int(odd[0]), f"feature {name!r} has the wrong number of values"
            raise SchemaError(what, row=row, expected=f"a multiple of {items}", found=int(lengths[row]))
        offsets = _known(column.offsets) // items
    default = b"" if given.dtype == "bytes" else 0
    if given.default is not None:
        default = _default(name, FixedLen((), given.dtype, given.default), 1)[0]
    values = _shaped(values_of(column), given)
    rows, places, longest = _sparse(offsets)
    padded = np.full((len(offsets) - 1, longest, *values.shape[1:]), default, values.dtype)
    padded[rows, places] = values
    return padded


def _placed(name: str, given: Sparse, columns: Mapping[bytes, kernels.Column]) -> VarLenColumn:
    """Return the values of a sparse array in the order of their places."""
    values = _ragged(columns[given.value_key.encode()])
    places = []
    for key, size in zip(given.index_keys, _sizes(given.size, "size"), strict=True):
        column = _ragged(columns[key.encode()])
        odd = np.flatnonzero(column.lengths != values.lengths)
        if odd.size:
            row = int(odd[0])
            message = f"feature {name!r}: {key!r} and {given.value_key!r} differ in their number of values"
            expected = f"{values.lengths[row]} places"
            raise SchemaError(message, row=row, expected=expected, found=int(column.lengths[row]))
        outside = np.flatnonzero((column.values < 0) | (column.values >= size))
        if outside.size:
            row = int(np.searchsorted(column.offsets, outside[0], side="right")) - 1
            message = f"feature {name!r}: a place in {key!r} is outside the array"
            found = int(column.values[outside[0]])
            raise SchemaError(message, row=row, expected=f"0 to {size - 1}", found=found)
        places.append(column.values)
    rows = np.repeat(np.arange(len(values)), values.lengths)
    indices = np.stack([rows, *places], axis=1)
    found, shape = values.values, np.array([len(values), *_sizes(given.size, "size")], np.int64)
    if not given.already_sorted:
        order = np.lexsort(indices.T[::-1])
        found, indices = found[order], indices[order]
    return VarLenColumn(found, indices, shape)


def _known(offsets: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    assert offsets is not None  # noqa: S101 - the kernel was asked for a varying count
    return offsets


def _sparse(offsets: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Return for each value its row and its place in it, and the length of the longest row."""
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(lengths.size), lengths)
    places = np.arange(rows.size) - offsets[:-1][rows]
    return rows, places, int(lengths.max(initial=0))
