"""Arrow types and features: what each becomes of the other, and rows of a batch as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.metadata import Feature

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["arrow_type_of", "feature_of", "flattened", "rows_of"]


def flattened(schema: Any) -> dict[str, Any]:
    """Return Arrow types by name, structs taken apart into `outer.inner`."""
    import pyarrow as pa

    found: dict[str, Any] = {}
    stack = [(field.name, field.type) for field in reversed(list(schema))]
    while stack:
        name, kind = stack.pop()
        if pa.types.is_struct(kind):
            inner = [kind.field(number) for number in range(kind.num_fields)]
            stack += [(f"{name}.{field.name}", field.type) for field in reversed(inner)]
        else:
            found[name] = kind
    return found


def feature_of(name: str, kind: Any, *, optional: bool) -> Feature:
    """Return the feature that a column of an Arrow type becomes."""
    import pyarrow as pa

    types = pa.types
    shape: list[int | None] = []
    inner = kind
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        shape.append(inner.list_size if types.is_fixed_size_list(inner) and inner.list_size else None)
        inner = inner.value_type
    if types.is_dictionary(inner):
        inner = inner.value_type
    scalar = _scalar(inner)
    if scalar is None or (scalar in {"text", "bytes"} and len(shape) > 1):
        return Feature("json", optional=optional)
    del name
    return Feature(scalar, shape=tuple(shape), optional=optional)


def _scalar(kind: Any) -> str | None:
    import pyarrow as pa

    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))
    if (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_decimal(kind)
    ):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    return "int64" if types.is_temporal(kind) and not types.is_interval(kind) else None


def rows_of(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch as values by feature."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    stack = [(field.name, column) for field, column in zip(batch.schema, batch.columns, strict=True)][::-1]
    while stack:
        name, column = stack.pop()
        if pa.types.is_struct(column.type):
            parts = column.flatten()
            names = [column.type.field(number).name for number in range(column.type.num_fields)]
            stack += [(f"{name}.{part}", values) for part, values in zip(names, parts, strict=True)][::-1]
            continue
        columns[name] = _plain(column)
    names = list(columns)
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(names, row, strict=True))


def _plain(column: Any) -> list[Any]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        column = column.view(width)
    if pa.types.is_decimal(kind):
        return [None if value is None else str(value) for value in column.to_pylist()]
    if (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) and not column.null_count:
        return list(column.to_numpy(zero_copy_only=False))
    if pa.types.is_floating(column.type):
        dtype = column.type.to_pandas_dtype()
        return [None if value is None else dtype(value) for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def arrow_type_of(feature: Feature) -> Any:
    """Return the Arrow type that a feature is exported as.

    Raises:
        ValueError: complex numbers, which Arrow does not have.
    """
    import pyarrow as pa

    if feature.kind == "number":
        name = "float32" if feature.type == "bfloat16" else feature.type
        if name.startswith("complex"):
            message = f"Arrow has no type for {name}"
            raise ValueError(message)
        kind: Any = pa.bool_() if name == "bool" else pa.from_numpy_dtype(np.dtype(name))
    else:
        kind = pa.string() if feature.kind in {"text", "json"} else pa.binary()
    for size in reversed(feature.shape):
        kind = pa.list_(kind) if size is None else pa.list_(kind, size)
    return kind
