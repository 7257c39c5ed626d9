"""Features and columns as Arrow's: which type each has there, and a decoded column as an array of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardio.arguments import need
from shardio.codecs._columns import RaggedColumn
from shardio.metadata import Feature


def need_pyarrow(what: str) -> Any:
    """Return the module pyarrow.

    Raises:
        ImportError: it is not installed; `what` needs it.
    """
    need(what, "shardio[table]", "pyarrow")
    import pyarrow as pa

    return pa


def arrow_type_of(feature: Feature) -> Any:
    """Return the Arrow type of a feature that is not of complex numbers."""
    import pyarrow as pa

    if feature.kind == "number":
        name = "float32" if feature.type == "bfloat16" else feature.type
        kind: Any = pa.bool_() if name == "bool" else pa.from_numpy_dtype(np.dtype(name))
    else:
        kind = pa.string() if feature.kind in {"text", "json"} else pa.binary()
    for size in reversed(feature.shape):
        kind = pa.list_(kind) if size is None else pa.list_(kind, size)
    return kind


def arrow_array(column: Any, feature: Feature) -> Any:
    """Return a column as an Arrow array of the feature's type.

    Args:
        column: as `decode_batch` gives it: an array [n, ...], a list, or a `RaggedColumn`; or a list of
            values, None where one is missing.
        feature: that it belongs to; not of complex numbers.
    """
    import pyarrow as pa

    kind = arrow_type_of(feature)
    if feature.kind == "json":
        texts = [None if value is None and feature.optional else _json(value) for value in column]
        return pa.array(texts, kind)
    if feature.kind == "tensor":
        return pa.array([None if value is None else feature.fit(value, "")[0] for value in column], kind)
    if isinstance(column, np.ndarray):
        if feature.type == "bfloat16":
            column = _widened(column)
        found = pa.array(column.reshape(-1))
        for size in reversed(feature.shape):
            found = pa.FixedSizeListArray.from_arrays(found, size)
        return found.cast(kind)
    if isinstance(column, RaggedColumn) and len(feature.shape) == 1 and isinstance(column.values, np.ndarray):
        values = _widened(column.values) if feature.type == "bfloat16" else column.values
        offsets = (column.offsets - column.offsets[0]).astype(np.int32)
        inside = values[int(column.offsets[0]) : int(column.offsets[-1])]
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(inside)).cast(kind)
    return pa.array(column, kind) if feature.dtype is None else _rows_of_numbers(column, feature).cast(kind)


def _rows_of_numbers(column: Any, feature: Feature) -> Any:
    """Return arrays, numbers and None as an Arrow array.

    Never as Python's floats, which are doubles: a signalling NaN of 32 bits would become a quiet one.
    """
    import pyarrow as pa

    missing = np.array([value is None for value in column], np.bool_)
    empty = np.zeros([size or 0 for size in feature.shape], feature.dtype)
    rows = [empty if value is None else np.asarray(value, feature.dtype) for value in column]
    flat = np.concatenate([empty.reshape(-1)[:0], *(row.reshape(-1) for row in rows)])
    sizes = np.array([row.shape for row in rows], np.int64).reshape(len(rows), len(feature.shape))
    values = _widened(flat) if feature.type == "bfloat16" else flat
    found = pa.array(values, mask=None if feature.shape else missing)
    for level, size in reversed([*enumerate(feature.shape)]):
        mask = pa.array(missing) if level == 0 and missing.any() else None
        if size is not None:
            found = pa.FixedSizeListArray.from_arrays(found, size, mask=mask)
            continue
        offsets = np.zeros(int(sizes[:, :level].prod(axis=1).sum()) + 1, np.int64)
        np.cumsum(np.repeat(sizes[:, level], sizes[:, :level].prod(axis=1)), out=offsets[1:])
        found = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), found, mask=mask)
    return found


def _widened(bits: Any) -> Any:
    """Return bfloat16, which come as the bits of uint16, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def value_lengths(column: Sequence[Any]) -> list[int | None]:
    """Return the length of each value: characters of text, bytes of bytes and images, items of a list."""
    return [None if value is None else len(value) for value in column]
