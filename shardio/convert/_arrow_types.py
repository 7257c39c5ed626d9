"""Arrow types and features: what each becomes of the other, and rows of a batch as values."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.convert._source import Unreadable
from shardio.metadata import Feature

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["JsonText", "arrow_field", "feature_of", "flattened", "rows_of"]

# A field's metadata: the short string of the feature that was exported as this column.
_TYPE_KEY = b"shardio.type"


class JsonText(str):
    """Text of a column of JSON documents."""

    __slots__ = ()


def flattened(schema: Any) -> list[tuple[str, Any]]:
    """Return (name, field) of the columns, structs taken apart into `outer.inner`; names may come twice."""
    found: list[tuple[str, Any]] = []
    stack = [(field.name, field) for field in reversed(list(schema))]
    while stack:
        name, field = stack.pop()
        kind = _unwrapped(field.type)
        if _is_struct(kind):
            inner = [kind.field(number) for number in range(kind.num_fields)]
            stack += [(f"{name}.{part.name}", part) for part in reversed(inner)]
        else:
            found.append((name, field))
    return found


def feature_of(name: str, field: Any, *, optional: bool) -> Feature | Unreadable:
    """Return the feature that a column becomes, or why it can become none."""
    found = _feature(name, field.type)
    if isinstance(found, Unreadable):
        return found
    declared = _declared(field)
    if declared is not None and _feature(name, arrow_type_of(declared)) == found:
        found = declared
    return Feature(found.type, shape=found.shape, optional=optional)


def _declared(field: Any) -> Feature | None:
    """Return the feature that an export of shardio's wrote down beside the column."""
    short = (field.metadata or {}).get(_TYPE_KEY)
    try:
        return None if short is None else Feature(short.decode())
    except (ValueError, UnicodeDecodeError):
        return None


def _feature(name: str, kind: Any) -> Feature | Unreadable:
    import pyarrow as pa

    tensor = _tensor_shape(kind)
    if _extension_name(kind) == "arrow.json":
        return Feature("json")
    kind = _without_view(kind)
    try:
        plain = _plain_type(kind)
        pa.array([], kind).cast(plain)
    except (pa.ArrowException, TypeError, ValueError) as error:
        return Unreadable(f"column {name!r} is of the type {kind}, which cannot be read ({error!s:.200})")
    shape: list[int | None] = []
    inner = plain
    while pa.types.is_list(inner) or pa.types.is_fixed_size_list(inner):
        shape.append(inner.list_size if pa.types.is_fixed_size_list(inner) and inner.list_size else None)
        inner = inner.value_type
    scalar = _scalar(inner)
    if scalar is None or (scalar in {"text", "bytes"} and len(shape) > 1):
        if _holds_bytes(inner):
            return Unreadable(f"column {name!r} is of the type {kind}: no feature holds bytes so deep")
        return Feature("json")
    return Feature(scalar, shape=tuple(shape) if tensor is None else tensor)


def _scalar(kind: Any) -> str | None:
    import pyarrow as pa

    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))
    if types.is_string(kind):
        return "text"
    return "bytes" if types.is_binary(kind) else None


def _holds_bytes(kind: Any) -> bool:
    import pyarrow as pa

    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return bool(pa.types.is_binary(kind)) or any(map(_holds_bytes, inner))


def _plain_type(kind: Any) -> Any:
    """Return the type that holds the same values without Arrow's finer distinctions.

    Times become integers in their unit and decimals text, also within lists and structs; views, large and
    fixed-size text and bytes, dictionaries, runs and extension types become what they stand for.
    """
    import pyarrow as pa

    types = pa.types
    kind = _unwrapped(kind)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type), kind.list_size)
    if any(check(kind) for check in _views("list")):
        raise ValueError("views of lists within other types")
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if _is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
        names = Counter(field.name for field in inner)
        if max(names.values(), default=0) > 1:
            message = f"two of its fields are called {names.most_common(1)[0][0]!r}"
            raise ValueError(message)
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in inner])
    if types.is_temporal(kind) and not types.is_interval(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if types.is_decimal(kind) or any(
        check(kind) for check in (types.is_string, types.is_large_string, *_views("string"))
    ):
        return pa.string()
    if any(
        check(kind)
        for check in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, *_views("binary"))
    ):
        return pa.binary()
    return kind


def _views(of: str) -> list[Any]:
    """Return the checks of the view types that this pyarrow knows."""
    import pyarrow as pa

    names = (f"is_{of}_view", f"is_large_{of}_view")
    return [getattr(pa.types, name) for name in names if hasattr(pa.types, name)]


def _without_view(kind: Any) -> Any:
    """Return the list type of a column of views of lists."""
    import pyarrow as pa

    return pa.list_(kind.value_type) if any(check(kind) for check in _views("list")) else kind


def _is_struct(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind))


def _unwrapped(kind: Any) -> Any:
    """Return the type that an extension type is stored as."""
    while _extension_name(kind) is not None:
        kind = kind.storage_type
    return kind


def _extension_name(kind: Any) -> str | None:
    import pyarrow as pa

    return str(kind.extension_name) if isinstance(kind, pa.BaseExtensionType) else None


def _tensor_shape(kind: Any) -> tuple[int, ...] | None:
    """Return the sizes of Arrow's tensors of fixed shape in C order, which are stored as flat lists."""
    if _extension_name(kind) != "arrow.fixed_shape_tensor":
        return None
    order = kind.permutation
    return tuple(kind.shape) if order is None or list(order) == sorted(order) else None


def rows_of(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch as values by feature; columns whose names come twice are not among them."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    seen: set[str] = set()
    stack = [(field.name, field, column) for field, column in zip(batch.schema, batch.columns, strict=True)][
        ::-1
    ]
    while stack:
        name, field, column = stack.pop()
        if _is_struct(_unwrapped(column.type)):
            while isinstance(column.type, pa.BaseExtensionType):
                column = column.storage
            fields = [column.type.field(number) for number in range(column.type.num_fields)]
            stack += [
                (f"{name}.{part.name}", part, values)
                for part, values in zip(fields, column.flatten(), strict=True)
            ][::-1]
            continue
        if name in seen:
            columns.pop(name, None)
            continue
        seen.add(name)
        feature = feature_of(name, field, optional=True)
        if not isinstance(feature, Unreadable):
            columns[name] = _values(column, feature)
    names = list(columns)
    if not names:
        yield from ({} for _ in range(batch.num_rows))
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(names, row, strict=True))


def _values(column: Any, feature: Feature) -> list[Any]:
    import pyarrow as pa

    if (kind := _without_view(column.type)) != column.type:
        # pyarrow's cast of views gives arrays without their last lists (seen in 26.0).
        column = pa.array(column.to_pylist(), kind)
    tensor = _tensor_shape(kind)
    plain = _plain_type(kind)
    while isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if column.type != plain:
        column = column.cast(plain)
    if feature.kind == "json" and pa.types.is_string(plain):
        return [None if value is None else JsonText(value) for value in column.to_pylist()]
    if (pa.types.is_integer(plain) or pa.types.is_floating(plain)) and not column.null_count:
        return list(column.to_numpy(zero_copy_only=False))
    if pa.types.is_floating(plain):
        dtype = plain.to_pandas_dtype()
        return [None if value is None else dtype(value) for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    if tensor is not None:
        return [None if value is None else np.reshape(value, tensor) for value in values]
    return values


def arrow_field(name: str, feature: Feature) -> Any:
    """Return the Arrow field that a feature is exported as.

    Raises:
        ValueError: complex numbers, which Arrow does not have.
    """
    import pyarrow as pa

    if feature.type.startswith("complex"):
        message = f"feature {name!r}: Arrow has no type for {feature.type}"
        raise ValueError(message)
    # A bfloat16 is a float32 to Arrow, and stays one: it loses nothing.
    metadata = None if feature.type == "bfloat16" else {_TYPE_KEY: feature.short.encode()}
    return pa.field(name, arrow_type_of(feature), nullable=feature.optional, metadata=metadata)


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
