"""The twins of tf.io.parse_example and tf.io.parse_sequence_example: batches of records into columns.

The kernels parse; here descriptions are translated, and columns get their final form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shardio import kernels
from shardio.codecs._columns import RaggedColumn, VarLenColumn
from shardio.codecs._payloads import Payloads, as_records
from shardio.errors import CorruptRecordError, FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = [
    "FixedLen",
    "Ragged",
    "VarLen",
    "parse_examples",
    "parse_sequence_examples",
    "parsed_or_raise",
]

_KINDS: dict[str, kernels.Kind] = {"int64": "int64", "float32": "float", "bytes": "bytes"}


def _check_dtype(dtype: str) -> None:
    if dtype not in _KINDS:
        message = f"dtype {dtype!r}; an Example holds {', '.join(_KINDS)}"
        raise ValueError(message)


@dataclass(frozen=True, slots=True)
class FixedLen:
    """Ask for a feature of fixed shape: a column [n, *shape].

    Attributes:
        shape: sizes; () for one value a record.
        dtype: `"int64"`, `"float32"` or `"bytes"`.
        default: the value of records that lack the feature, of this shape or one for all places; without it
            the feature is required.
    """

    shape: Sequence[int]
    dtype: str
    default: Any = None

    def __post_init__(self) -> None:
        """Refuse what could describe no column."""
        _check_dtype(self.dtype)
        if isinstance(self.shape, str) or any(not isinstance(size, int) or size < 0 for size in self.shape):
            message = f"shape {self.shape!r}: sizes are non-negative ints"
            raise ValueError(message)


@dataclass(frozen=True, slots=True)
class VarLen:
    """Ask for a feature of any length as a sparse column: `values`, `indices` and `shape`."""

    dtype: str

    def __post_init__(self) -> None:
        """Refuse a dtype that an Example does not hold."""
        _check_dtype(self.dtype)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Ask for a feature of any length as a ragged column: `values` and `offsets`."""

    dtype: str

    def __post_init__(self) -> None:
        """Refuse a dtype that an Example does not hold."""
        _check_dtype(self.dtype)


Description: TypeAlias = FixedLen | VarLen | Ragged


def parse_examples(payloads: Payloads, features: Mapping[str, Description]) -> dict[str, Any]:
    """Parse tf.train.Example records into columns, as tf.io.parse_example does.

    Args:
        payloads: n records: a sequence of bytes, or `(buffer, starts, stops)`.
        features: what to look for; others are skipped.

    Returns:
        By name: for FixedLen an array [n, *shape] of int64, float32, or object where it holds bytes; for
        VarLen a `VarLenColumn`; for Ragged a `RaggedColumn`.

    Raises:
        SchemaError: a required feature is missing, is of another kind, or has another number of values; names
            the feature and the record (`row` is its number within this call).
        CorruptRecordError: a payload is no Example.

    Examples:
        >>> from shardio.codecs import encode_example
        >>> parse_examples([encode_example({"id": 7})], {"id": FixedLen((), "int64")})
        {'id': array([7])}
    """
    wanted = [_asked(name, given) for name, given in _checked(features).items()]
    parsed = parsed_or_raise(kernels.parse_examples, as_records(payloads), wanted)
    return {name: _column(parsed.columns[name.encode()], given) for name, given in features.items()}


def parse_sequence_examples(
    payloads: Payloads, features: Mapping[str, Mapping[str, Description]]
) -> dict[str, dict[str, Any]]:
    """Parse tf.train.SequenceExample records into columns.

    Args:
        payloads: n records: a sequence of bytes, or `(buffer, starts, stops)`.
        features: `{"context": {...}, "feature_lists": {...}}`; either may be left out.  A feature list's
            description is of one step: FixedLen means that the list is required, and cannot have a default.

    Returns:
        `{"context": {...}, "feature_lists": {...}}`.  A feature list is ragged by step: for FixedLen a
        `RaggedColumn` of an array [steps, *shape]; for Ragged a `RaggedColumn` whose values are the
        `RaggedColumn` of all steps; for VarLen a `VarLenColumn` of three dimensions.

    Raises:
        SchemaError, CorruptRecordError: as `parse_examples`.
    """
    extra = sorted(set(features) - {"context", "feature_lists"})
    if extra:
        message = f'features are {{"context": ..., "feature_lists": ...}}; found {", ".join(map(str, extra))}'
        raise ValueError(message)
    context, lists = (_checked(features.get(part, {})) for part in ("context", "feature_lists"))
    for name, given in lists.items():
        if isinstance(given, FixedLen) and given.default is not None:
            message = f"feature list {name!r}: a step has no default; ask for Ragged where it may be missing"
            raise ValueError(message)
    asked = [[_asked(name, given) for name, given in part.items()] for part in (context, lists)]
    parsed = parsed_or_raise(kernels.parse_sequence_examples, as_records(payloads), *asked)
    return {
        "context": {name: _column(parsed.columns[name.encode()], given) for name, given in context.items()},
        "feature_lists": {name: _steps(parsed.lists[name.encode()], given) for name, given in lists.items()},
    }


def parsed_or_raise(parse: Any, records: Any, *wanted: list[kernels.Feature]) -> kernels.Parsed:
    """Parse, and turn what does not fit into the errors of the tree.

    `row` of an error is the record's number within the call.
    """
    try:
        parsed: kernels.Parsed = parse(records, *wanted)
    except FormatError as error:
        raise CorruptRecordError(error.what, **error.fields()) from None
    if parsed.mismatch is not None:
        raise parsed.mismatch.error()
    return parsed


def _checked(features: Mapping[str, Description]) -> Mapping[str, Description]:
    for name, given in features.items():
        if not isinstance(given, FixedLen | VarLen | Ragged):
            message = (
                f"feature {name!r} is described by a FixedLen, VarLen or Ragged, not {type(given).__name__}"
            )
            raise TypeError(message)
    return features


def _asked(name: str, given: Description) -> kernels.Feature:
    key = name.encode()
    if not isinstance(given, FixedLen):
        return kernels.Feature(key, _KINDS[given.dtype])
    count = math.prod(given.shape)
    if given.default is None:
        return kernels.Feature(key, _KINDS[given.dtype], count, required=True)
    return kernels.Feature(key, _KINDS[given.dtype], count, default=_default(name, given, count))


def _default(name: str, given: FixedLen, count: int) -> Any:
    dtype = np.dtype(object if given.dtype == "bytes" else given.dtype)
    value = np.empty((), object) if isinstance(given.default, bytes) else None
    if value is not None:
        value[()] = given.default
    array = np.asarray(given.default if value is None else value, dtype)
    if array.size not in (1, count) or (
        given.dtype == "bytes" and not all(isinstance(v, bytes) for v in array.flat)
    ):
        message = f"feature {name!r}: default {given.default!r} is not {count} x {given.dtype}"
        raise ValueError(message)
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


def _column(column: kernels.Column, given: Description) -> Any:
    values = values_of(column)
    if isinstance(given, FixedLen):
        return values.reshape(-1, *given.shape) if len(values) else values.reshape(0, *given.shape)
    offsets = _known(column.offsets)
    if isinstance(given, Ragged):
        return RaggedColumn(values, offsets)
    rows, places, widest = _sparse(offsets)
    return VarLenColumn(
        values, np.stack([rows, places], axis=1), np.array([len(offsets) - 1, widest], np.int64)
    )


def _steps(column: kernels.Column, given: Description) -> Any:
    steps = _known(column.steps)
    if isinstance(given, FixedLen | Ragged):
        return RaggedColumn(_column(column, given), steps)
    owner, place, widest = _sparse(_known(column.offsets))
    rows, step, longest = _sparse(steps)
    indices = np.stack([rows[owner], step[owner], place], axis=1)
    return VarLenColumn(values_of(column), indices, np.array([len(steps) - 1, longest, widest], np.int64))


def _known(offsets: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    assert offsets is not None  # noqa: S101 - the kernel was asked for a varying count
    return offsets


def _sparse(offsets: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Return for each value its row and its place in it, and the length of the longest row."""
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(lengths.size), lengths)
    places = np.arange(rows.size) - offsets[:-1][rows]
    return rows, places, int(lengths.max(initial=0))
