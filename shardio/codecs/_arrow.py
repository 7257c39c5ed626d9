"""Features and columns as Arrow's: which type each has there, and a decoded column as an array of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.arguments import need
from shardio.codecs._columns import RaggedColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    if not feature.shape and feature.type != "bfloat16":
        return pa.array(column, kind)
    return pa.array([_plain(value, feature) for value in column], kind)


def _plain(value: Any, feature: Feature) -> Any:
    if feature.type == "bfloat16" and value is not None:
        value = _widened(np.asarray(value))
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim != 1 else value


def _widened(bits: Any) -> Any:
    """Return bfloat16, which come as the bits of uint16, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def value_lengths(column: Sequence[Any]) -> list[int | None]:
    """Return the length of each value: characters of text, bytes of bytes and images, items of a list."""
    return [None if value is None else len(value) for value in column]
