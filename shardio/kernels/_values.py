"""What encoders are given: whole columns, or the values of one record, checked before a byte is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.kernels._arguments import as_bounds, as_bytes, as_offsets
from shardio.kernels._features import DTYPES, KINDS, Column, Kind

MAX_MESSAGE = (1 << 31) - 1  # bytes; protobuf's own limit


def make_column(
    values: NDArray[Any] | Sequence[bytes],
    offsets: ArrayLike | None = None,
    *,
    present: ArrayLike | None = None,
) -> Column:
    """Make the column that `encode_examples` takes out of an array or a list of bytes.

    Args:
        values: int64 or float32, [n, ...] (all of a row's values belong to its feature, in C order), or n
            bytes; with `offsets` one after another.
        offsets: int64[n + 1], where the values of a row begin and end, if their number varies.
        present: bool[n], False for rows without the feature; None means that no row does.

    Raises:
        TypeError: another dtype.
        ValueError: the offsets do not fit the values.
    """
    fields: dict[str, Any] = {}
    kind: Kind
    if isinstance(values, np.ndarray) and values.dtype in (np.int64, np.float32):
        kind = "int64" if values.dtype == np.int64 else "float"
        total, array = len(values), np.ascontiguousarray(values)
        fields["values"] = array.ravel() if offsets is not None else array.reshape(total, _trailing(array))
    elif isinstance(values, np.ndarray):
        message = f"values: expected int64, float32 or a list of bytes, found an array of {values.dtype}"
        raise TypeError(message)
    else:
        kind, total = "bytes", len(values)
        ends = np.zeros(total + 1, np.int64)
        np.cumsum(np.fromiter(map(len, values), np.int64, total), out=ends[1:])
        shape = (total,) if offsets is not None else (total, 1)
        fields["source"] = b"".join(values)
        fields["starts"], fields["stops"] = ends[:-1].reshape(shape), ends[1:].reshape(shape)
    rows = total
    if offsets is not None:
        fields["offsets"] = as_offsets(offsets, "offsets")
        rows = fields["offsets"].size - 1
    there = np.ones(rows, np.bool_) if present is None else np.asarray(present, np.bool_)
    return Column(kind, there, **fields)


def _trailing(array: NDArray[Any]) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64))


def check_columns(columns: Mapping[bytes, Column], rows: int | None) -> tuple[int, list[bytes]]:
    """Refuse columns that do not belong together, and return the number of rows and the names in order.

    Raises:
        ValueError: lengths disagree, a name is not UTF-8, a column belongs to a feature list.
        IndexError: spans leave their source.
    """
    for name, column in columns.items():
        problem = _problem(name, column)
        found = len(column.present)
        if problem is None and rows is not None and found != rows:
            problem = f"has {found} rows; expected {rows}"
        if problem is not None:
            raise ValueError(f"feature {name!r} {problem}")
        rows = found
    if rows is None:
        raise ValueError("rows: expected a number where there are no columns")
    return rows, sorted(columns)


def _problem(name: bytes, column: Column) -> str | None:
    try:
        name.decode()
    except UnicodeDecodeError:
        return "has a name that is not UTF-8"
    if column.kind not in KINDS:
        return f"is of kind {column.kind!r}; expected one of {', '.join(KINDS)}"
    if column.steps is not None:
        return "is a feature list; only features of an Example are encoded by the batch"
    spans = column.starts is not None and column.stops is not None and column.source is not None
    if (column.values is None) != (column.kind == "bytes") or (column.kind == "bytes") != spans:
        return f"lacks the arrays of a column of kind {column.kind!r}"
    values = column.starts if column.values is None else column.values
    assert values is not None  # noqa: S101 (seen above)
    if column.values is not None and column.values.dtype != DTYPES[column.kind]:
        return f"holds {column.values.dtype}; expected {DTYPES[column.kind]}"
    if column.starts is not None and column.stops is not None and column.source is not None:
        as_bounds(np.ravel(column.starts), np.ravel(column.stops), as_bytes(column.source).size)
    rows = len(column.present)
    if column.offsets is None:
        return (
            None if values.ndim == 2 and len(values) == rows else f"has values {values.shape} for {rows} rows"
        )
    offsets = column.offsets
    right = len(offsets) == rows + 1 and offsets[0] >= 0 and offsets[-1] <= values.size
    if not right or values.ndim != 1 or bool((np.diff(offsets) < 0).any()):
        return f"has offsets that do not cut {values.size} values into {rows} rows"
    return None


def row_bounds(column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each row's values begin and end among all; a row that lacks the feature has none."""
    rows = len(column.present)
    if column.offsets is not None:
        starts, stops = column.offsets[:-1], column.offsets[1:]
    else:
        values = column.starts if column.values is None else column.values
        assert values is not None  # noqa: S101 (checked by check_columns)
        stops = np.arange(1, rows + 1, dtype=np.int64) * values.shape[1]
        starts = stops - values.shape[1]
    return starts.astype(np.int64), np.where(column.present, stops, starts).astype(np.int64)


def is_packed(value: tuple[Any, ...]) -> bool:
    """Tell whether a tuple is of the form that `pack_list` returns."""
    return len(value) == 2 and value[0] in (1, 2, 3) and type(value[1]) is bytes


def too_large(row: int | None, size: int) -> ValueError:
    """Say that a message would be larger than protobuf allows."""
    where = "the record" if row is None else f"row {row}"
    return ValueError(f"{where} would take {size} bytes as a message and protobuf allows {MAX_MESSAGE}")


def wrong_value(value: Any) -> TypeError:
    """Say what a value of one record may be."""
    found = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"{value!r:.60}"
    return TypeError(
        f"expected int, float, bytes, a list of bytes, an array of int64 or float32, or None, found {found}"
    )


def wrong_name(name: Any) -> TypeError:
    """Say that features are named by text."""
    return TypeError(f"expected the name of a feature as str, found {name!r:.60}")
