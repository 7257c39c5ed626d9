"""Batches of tf.train.Example as values: what a caller asks for, and what both parsers answer.

A batch of records is one buffer with bounds; a feature becomes one column of arrays.  A `bytes` value is
never copied by a parser: it stays a span of a buffer until it is sliced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.errors import SchemaError
from shardio.kernels._arguments import as_bytes
from shardio.kernels._compiled import _slices

Kind: TypeAlias = Literal["bytes", "float", "int64"]

# A kind's number is its field in the message `FeatureRequest`; 0 means that no kind is set.
KINDS: tuple[Kind, ...] = ("bytes", "float", "int64")
DTYPES = {"float": np.dtype(np.float32), "int64": np.dtype(np.int64)}


class Records(NamedTuple):
    """Records in one buffer: record i is `buffer[starts[i]:stops[i]]`."""

    buffer: Any
    starts: ArrayLike
    stops: ArrayLike


@dataclass(frozen=True, slots=True)
class FeatureRequest:
    """What one feature must look like.

    Attributes:
        name: its key in the map, UTF-8.
        kind: `"int64"`, `"float"` or `"bytes"`.
        count: values per row (per step, in a feature list), or None where that varies.
        required: whether a row without it is a mismatch.  A feature that is there without a kind counts as
            missing, as it does for `tf.io.parse_example`.
        default: what a row without it holds, where it is not required: an array of `count` numbers, or a
            sequence of `count` bytes; None means zeros and empty bytes.  Not for a varying count.
    """

    name: bytes
    kind: Kind
    count: int | None = None
    required: bool = False
    default: Any = None


class Mismatch(NamedTuple):
    """The first row that is a right message and does not fit the description.

    Attributes:
        row: within the call.
        name: the feature.
        problem: `"missing"`, `"kind"` or `"length"`.
        expected, found: kinds, or numbers of values; None where missing.
        step: of a feature list, else None.
    """

    row: int
    name: bytes
    problem: Literal["missing", "kind", "length"]
    expected: str | int | None = None
    found: str | int | None = None
    step: int | None = None

    def error(self, advice: str | None = None) -> SchemaError:
        """Say it as the error to raise where the caller knows nothing more precise.

        `advice` is what to do about a missing feature, by default to make it optional in the schema.
        """
        name = self.name.decode()
        at = "" if self.step is None else f", step {self.step}"
        if self.problem == "missing":
            advice = advice or "make the feature optional in the schema if it may be missing"
            return SchemaError(
                f"feature {name!r} is required and the record lacks it", row=self.row, advice=advice
            )
        side = "kind" if self.problem == "kind" else "number of values"
        return SchemaError(
            f"feature {name!r}{at} has the wrong {side}",
            row=self.row,
            expected=self.expected,
            found=self.found,
        )


@dataclass(eq=False, slots=True)
class Column:
    """One feature of n rows.

    With `k` = n rows, or of a feature list all steps of all rows:

    Attributes:
        kind: `"int64"`, `"float"` or `"bytes"`.
        present: bool[n], False where the row lacks the feature or its kind, and so holds the default.
        values: int64 or float32, [k, count] where the count is fixed, else one after another; None for bytes.
        offsets: int64[k + 1] into the values where their count varies, else None.
        source: the buffer that holds the bytes, else None.
        starts, stops: int64, shaped like values: where each bytes value is in `source`; None for numbers.
        steps: of a feature list int64[n + 1], the steps of row i are `[steps[i], steps[i + 1])`; else None.
    """

    kind: Kind
    present: NDArray[np.bool_]
    values: NDArray[Any] | None = None
    offsets: NDArray[np.int64] | None = None
    source: Any = None
    starts: NDArray[np.int64] | None = None
    stops: NDArray[np.int64] | None = None
    steps: NDArray[np.int64] | None = None


class Parsed(NamedTuple):
    """A parsed batch.

    Attributes:
        columns: by feature name; empty where there is a mismatch.
        lists: the same of feature lists; empty for `Example`.
        mismatch: None where every row fits.
    """

    columns: dict[bytes, Column]
    lists: dict[bytes, Column]
    mismatch: Mismatch | None = None


def as_records(records: Records | Sequence[Any]) -> tuple[Any, NDArray[np.int64], NDArray[np.int64]]:
    """Bring records into one buffer, and check their bounds."""
    if isinstance(records, Records):
        return records.buffer, *_slices.checked_bounds(
            records.starts, records.stops, as_bytes(records.buffer).size
        )
    if isinstance(records, bytes | bytearray | memoryview | str):
        raise TypeError(
            "records: expected a sequence of payloads or Records(buffer, starts, stops), found one payload"
        )
    # An array's length counts items, so what is not bytes is looked at as bytes first.
    payloads = [part if isinstance(part, bytes) else as_bytes(part) for part in records]
    offsets = np.zeros(len(payloads) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)), out=offsets[1:])
    return b"".join(payloads), offsets[:-1], offsets[1:]


def check_features(features: Sequence[FeatureRequest], *, lists: bool = False) -> None:
    """Refuse a description that means nothing.

    Raises:
        ValueError: an unknown kind, a negative count, a name that is given twice or is not UTF-8, a default
            of the wrong size or where there can be none.
    """
    seen: set[bytes] = set()
    for feature in features:
        problem = _problem(feature, lists=lists)
        if feature.name in seen:
            problem = "is described twice"
        seen.add(feature.name)
        if problem:
            raise ValueError(f"feature {feature.name!r} {problem}")


def _problem(feature: FeatureRequest, *, lists: bool) -> str | None:
    if not isinstance(feature.name, bytes):
        return "is not named by bytes"
    try:
        feature.name.decode()
    except UnicodeDecodeError:
        return "has a name that is not UTF-8"
    if feature.kind not in KINDS:
        return f"is of kind {feature.kind!r}; expected one of {', '.join(KINDS)}"
    if feature.count is not None and feature.count < 0:
        return f"has {feature.count} values; expected 0 or more, or None"
    if feature.default is None:
        return None
    if feature.count is None or lists or feature.required:
        return "has a default; only a feature that is not required and has a fixed count, outside lists, may"
    if feature.kind == "bytes" and isinstance(feature.default, (bytes, str)):
        return "has one default; expected a sequence of bytes, one per value"
    if len(feature.default) != feature.count:
        return f"has {len(feature.default)} default values; expected {feature.count}"
    return None


def fill_missing(feature: FeatureRequest, column: Column, gather: Callable[..., Any]) -> Column:
    """Give the rows that lack a feature of fixed count its default; the parser left them undefined."""
    if feature.count is None or column.steps is not None:
        return column
    missing = ~column.present
    if column.values is not None:
        column.values[missing] = 0 if feature.default is None else feature.default
        return column
    assert column.starts is not None  # noqa: S101 (a bytes column has spans)
    assert column.stops is not None  # noqa: S101 (the same)
    column.starts[missing] = 0
    column.stops[missing] = 0
    if feature.default is None:
        return column
    # The default's bytes are not in the records, so the values move to a buffer that ends with them.
    values, offsets = gather(column.source, column.starts.ravel(), column.stops.ravel())
    shape = column.starts.shape
    starts, stops = offsets[:-1].reshape(shape).copy(), offsets[1:].reshape(shape).copy()
    ends = values.size + np.cumsum([0, *map(len, feature.default)])
    starts[missing], stops[missing] = ends[:-1], ends[1:]
    source = values.tobytes() + b"".join(feature.default)
    return Column("bytes", column.present, source=source, starts=starts, stops=stops)


Columns: TypeAlias = Mapping[bytes, Column]
