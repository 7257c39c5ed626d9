"""Parquet, Arrow, and `datasets` of Hugging Face: a row is a record, a column a feature of its own type.

Columns of structs become features `outer.inner`; numbers, text, bytes and lists of them keep their types;
times become integers in their unit, decimals text, also within lists; what is nested deeper is JSON.  Row
groups and record batches are read side by side.  `arrow_field` is the way back, for exports.

What `datasets` says of columns, in the schema's metadata, counts: names of classes, sizes of arrays, and
which structs of `bytes` and `path` are files: the file is the feature, its path the feature `name.path`.
What a schema of shardio's cannot hold of it is kept in the dataset's metadata for `DatasetReader.to_hf`.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from shardio.arguments import need
from shardio.codecs import arrow_type_of
from shardio.convert._files import File, FileSource, SeekableFile
from shardio.convert._source import ForeignSource, Piece, Sample, SourceOptions, Unreadable, keep_as
from shardio.convert._units import TimeUnit
from shardio.display import plural
from shardio.errors import BadRecord, FormatError, SchemaError, ShardioError
from shardio.format import parse_json
from shardio.metadata import Feature, Schema
from shardio.parallel import Note, TaskItems, items_digest
from shardio.reader import HF_METADATA, hf_feature, hf_json, without_names
from shardio.sources import FoundFile
from shardio.storage import connect

# A field's metadata: the short string of the feature that was exported as this column, and its classes.
_TYPE_KEY = b"shardio.type"
_CLASSES_KEY = b"shardio.classes"
# A schema's metadata: what Hugging Face's `datasets` says of the columns, as JSON.
_DATASETS_KEY = b"huggingface"

PARQUET_ENDINGS = (".parquet", ".pq")
ARROW_ENDINGS = (".arrow", ".feather", ".ipc", ".arrows")
_ROWS = 1024
_PIECE_BYTES = 64 << 20
# Of a row group so much is read and decoded at a time, over all columns.
_BATCH_BYTES = 16 << 20
# Texts of a batch that may be larger than this, if all of them are the largest one, are read as dictionaries.
_DICTIONARY_BYTES = 256 << 20
_BUFFER_BYTES = 32 << 20
_MOST_DESCRIPTION = 1000
# Rows of such a piece that are compared when a session goes on; of a table in memory so many runs of so many.
_TOLD_ROWS = 16


# Packages and names of what can become a table of Arrow.
_TABLES = {
    ("pyarrow", "Table"), ("pyarrow", "RecordBatch"), ("pandas", "DataFrame"), ("polars", "DataFrame")
}  # fmt: skip


def table_package(place: object) -> str | None:
    """Return the package that a table in memory is of, without importing it; None for anything else."""
    package, name = type(place).__module__.partition(".")[0], type(place).__name__
    return package if (package, name) in _TABLES else None


class _JsonText(str):
    """Text of a column of JSON documents."""

    __slots__ = ()


class _NotText(bytes):
    """Bytes in a column of text that are not UTF-8."""

    __slots__ = ()


class _PathAlone(str):
    """Path of a file whose bytes are not in the column."""

    __slots__ = ()


def _flattened(schema: Any) -> list[tuple[str, Any]]:
    """Return (name, field) of the columns, structs taken apart into `outer.inner`; names may come twice."""
    return _taken_apart(schema)[0]


def _taken_apart(schema: Any) -> tuple[list[tuple[str, Any]], list[str]]:
    """Return what `_flattened` does, and the names of the structs."""
    import pyarrow as pa

    found: list[tuple[str, Any]] = []
    structs: list[str] = []
    nodes = _nodes(schema)
    stack = [(field.name, field) for field in reversed(list(schema))]
    while stack:
        name, field = stack.pop()
        kind = _unwrapped(field.type)
        if _is_file(kind, nodes.get(name)):
            listed = not _is_struct(kind)
            inner = kind.value_type if listed else kind
            contents, path = (inner.field(part).type for part in ("bytes", "path"))
            if listed:
                # Some of a list may have no path, which no list of text can say: such lists are JSON.
                contents, path = pa.list_(contents), pa.list_(pa.struct([("path", path)]))
            found += [(name, pa.field(name, contents)), (f"{name}.path", pa.field("path", path))]
        elif _has_fields(kind):
            structs.append(name)
            inner = [kind.field(number) for number in range(kind.num_fields)]
            stack += [(f"{name}.{part.name}", part) for part in reversed(inner)]
        else:
            found.append((name, field))
    return found, structs


def _feature_of(name: str, field: Any, *, optional: bool, node: Any = None) -> Feature | Unreadable:
    """Return the feature that a column becomes, or why it can become none; `node` is what `datasets` says."""
    found = _feature(name, field.type)
    if isinstance(found, Unreadable):
        return found
    declared = _declared(field)
    if declared is not None and _feature(name, arrow_type_of(declared)) == found:
        found = declared
    said = node if isinstance(node, dict) else {}
    if said.get("_type") == "Image" and found.type == "bytes" and len(found.shape) < 2:
        found = Feature("image", shape=found.shape)
    sizes = said.get("shape") if str(said.get("_type")).startswith("Array") else None
    if isinstance(sizes, list | tuple) and found.shape == (None,) * len(sizes):
        found = Feature(found.type, shape=tuple(sizes))
    return Feature(found.type, shape=found.shape, optional=optional, unit=_unit_of(field.type))


def _unit_of(kind: Any) -> str:
    """Return what integers that are times count, as Arrow writes it; of documents with times their type."""
    import pyarrow as pa

    def holds_times(inner: Any) -> bool:
        inner = _unwrapped(inner)
        parts = [inner.field(number).type for number in range(inner.num_fields)]
        return pa.types.is_temporal(inner) or any(map(holds_times, parts))

    leaf = _bare(kind)
    while pa.types.is_list(leaf) or pa.types.is_large_list(leaf) or pa.types.is_fixed_size_list(leaf):
        leaf = _bare(leaf.value_type)
    if pa.types.is_temporal(leaf) and not pa.types.is_interval(leaf):
        return str(leaf)
    return str(kind)[:_MOST_DESCRIPTION] if holds_times(leaf) else ""


def _features_json(schema: Any) -> dict[str, Any]:
    """Return what `datasets` says of the columns.

    Source: `Features.from_arrow_schema` of https://github.com/huggingface/datasets.
    """
    described = _json_of((schema.metadata or {}).get(_DATASETS_KEY))
    info = described.get("info") if isinstance(described, dict) else None
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else {}


def _nodes(schema: Any) -> dict[str, Any]:
    """Return what `datasets` says of the values of columns, structs and lists taken apart, by column."""
    found: dict[str, Any] = {}
    stack = list(_features_json(schema).items())
    while stack:
        name, node = stack.pop()
        kind = node.get("_type") if isinstance(node, dict) else None
        if isinstance(node, list) and len(node) == 1:
            stack.append((name, node[0]))
        elif isinstance(kind, str) and "feature" in node:
            stack.append((name, node["feature"]))
        elif isinstance(kind, str):
            found[name] = node
        elif isinstance(node, dict):
            stack += [(f"{name}.{part}", inner) for part, inner in node.items()]
    return found


def _is_file(kind: Any, node: Any) -> bool:
    """Tell whether a column is files, or lists of files, as `datasets` stores `Image`, `Audio` and others."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        kind = kind.value_type
    if not isinstance(node, dict) or not _is_struct(kind):
        return False
    return sorted(kind.field(number).name for number in range(kind.num_fields)) == ["bytes", "path"]


def _in_units_of(said: Any, kind: Any) -> Any:
    """Return the JSON of a feature with the units that its times have in a file.

    Parquet has no seconds and no `date64`: `datasets` stores milliseconds and days there, and still says
    `timestamp[s]` and `date64`.

    Args:
        said: as `hf_json` returns it.
        kind: Arrow's type of the column.
    """
    import pyarrow as pa

    kind = _unwrapped(kind)
    if not isinstance(said, dict):
        return said
    if not isinstance(said.get("_type"), str):
        if not _is_struct(kind):
            return said
        return {
            part: inner if kind.get_field_index(part) < 0 else _in_units_of(inner, kind.field(part).type)
            for part, inner in said.items()
        }
    if "feature" in said:
        listed = hasattr(kind, "value_type")
        return {**said, "feature": _in_units_of(said["feature"], kind.value_type)} if listed else said
    if not pa.types.is_temporal(kind) or said["_type"] != "Value":
        return said
    return {**said, "dtype": f"date{kind.bit_width}" if pa.types.is_date(kind) else str(kind)}


def _class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes that columns number, of shardio's exports and `datasets`'."""
    found: dict[str, tuple[str, ...]] = {}
    for name, node in _nodes(schema).items():
        if node.get("_type") == "ClassLabel":
            _note_classes(found, name, node.get("names"))
    for name, field in _flattened(schema):
        _note_classes(found, name, _json_of((field.metadata or {}).get(_CLASSES_KEY)))
    return found


def _note_classes(found: dict[str, tuple[str, ...]], name: str, names: Any) -> None:
    if isinstance(names, list) and names and all(isinstance(each, str) for each in names):
        found[name] = tuple(names)


@lru_cache(maxsize=64)
def _json_of(data: bytes | None) -> Any:
    try:
        return None if data is None else parse_json(data)
    except ValueError:
        return None


def _declared(field: Any) -> Feature | None:
    """Return the feature that an export of shardio's wrote down beside the column."""
    short = (field.metadata or {}).get(_TYPE_KEY)
    try:
        return None if short is None else Feature(short.decode())
    except (ValueError, UnicodeDecodeError):
        return None


def _feature(name: str, kind: Any) -> Feature | Unreadable:
    import pyarrow as pa

    tensor = _tensor_layout(kind)
    if _extension_name(kind) == "arrow.json":
        return Feature("json")
    kind = _without_view(kind)
    try:
        plain = _plain_type(kind)
        _without_runs(pa.nulls(0, kind)).cast(plain)
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
    return Feature(scalar, shape=tuple(shape) if tensor is None else tuple(tensor[0][at] for at in tensor[1]))


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
    if _extension_name(kind) == "arrow.bool8":
        return pa.bool_()
    kind = _unwrapped(kind)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type), kind.list_size)
    if _without_view(kind) != kind:
        raise ValueError("views of lists within other types")
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if _is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
        names = Counter(field.name for field in inner)
        if max(names.values(), default=0) > 1:
            raise ValueError(f"two of its fields are called {names.most_common(1)[0][0]!r}")
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in inner])
    if types.is_temporal(kind) and not types.is_interval(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    texts = (types.is_decimal, types.is_string, types.is_large_string, types.is_string_view)
    if any(check(kind) for check in texts):
        return pa.string()
    binaries = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return pa.binary() if any(check(kind) for check in binaries) else kind


def _without_view(kind: Any) -> Any:
    """Return the list type of a column of views of lists."""
    import pyarrow as pa

    viewed = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    return pa.list_(kind.value_type) if viewed else kind


def _without_runs(column: Any) -> Any:
    """Return a column of runs as what they stand for, which pyarrow's cast does not do."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.run_end_decode(column) if pa.types.is_run_end_encoded(column.type) else column


def _is_struct(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind))


def _has_fields(kind: Any) -> bool:
    """Tell whether a column is taken apart; a struct without fields is JSON, or it would vanish."""
    return _is_struct(kind) and kind.num_fields > 0


def _unwrapped(kind: Any) -> Any:
    """Return the type that an extension type is stored as."""
    while _extension_name(kind) is not None:
        kind = kind.storage_type
    return kind


def _extension_name(kind: Any) -> str | None:
    import pyarrow as pa

    return str(kind.extension_name) if isinstance(kind, pa.BaseExtensionType) else None


def _tensor_layout(kind: Any) -> tuple[list[int], list[int]] | None:
    """Return the shape in which tensors of fixed shape lie in flat lists, and the order of its axes."""
    if _extension_name(kind) != "arrow.fixed_shape_tensor":
        return None
    return kind.shape, kind.permutation or list(range(len(kind.shape)))


def _rows_of(
    batch: Any, missing: Counter[tuple[str, str]], casts: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch as values by feature; columns whose names come twice are not among them.

    Args:
        batch: of records.
        missing: to count nulls in that have no place, by column and what they become.
        casts: see `_United`.

    Raises:
        FormatError: a value is not one of the type that a column has in all files.
    """
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    seen: set[str] = set()
    nodes = _nodes(batch.schema)
    stack = [(field.name, field, column) for field, column in zip(batch.schema, batch.columns, strict=True)][
        ::-1
    ]
    while stack:
        name, field, column = stack.pop()
        if _is_file(_unwrapped(column.type), nodes.get(name)):
            for key, values in _file_values(name, column).items():
                if key in seen:
                    columns.pop(key, None)
                else:
                    columns[key] = values
                seen.add(key)
            continue
        if _has_fields(_unwrapped(column.type)):
            while isinstance(column.type, pa.BaseExtensionType):
                column = column.storage
            missing[name, "structs that are null: each becomes fields that are null"] += column.null_count
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
        if name in casts:
            if casts[name] is None:
                continue
            field, column = pa.field(name, casts[name]), _cast(name, column, casts[name])
        feature = _feature_of(name, field, optional=True, node=nodes.get(name))
        if not isinstance(feature, Unreadable):
            columns[name] = _values(column, feature)
            if feature.shape and feature.type.startswith("float"):
                missing[name, "nulls within lists of floats: each becomes NaN"] += _nulls_inside(column)
    names = list(columns)
    if not names:
        yield from ({} for _ in range(batch.num_rows))
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(names, row, strict=True))


def _cast(name: str, column: Any, kind: Any) -> Any:
    import pyarrow as pa

    try:
        return _without_runs(column).cast(kind)
    except pa.ArrowException as error:
        raise FormatError(
            f"column {name!r} is {kind} in all files together, and a value here does not fit ({error})",
            advice=f"leave the column out with {keep_as(name, None)}, or convert such files apart",
        ) from error


def _notes_on_nulls(piece: Piece, missing: Mapping[tuple[str, str], int]) -> Iterator[Note]:
    """Say which nulls have no place in features: those of structs, and those within lists of floats."""
    for (name, what), count in missing.items():
        if count:
            yield Note(piece.url, f"column {name!r} has {count} {what}")


def _nulls_inside(column: Any) -> int:
    """Return how many items of lists are null."""
    import pyarrow as pa

    column = _without_runs(column.storage if isinstance(column, pa.ExtensionArray) else column)
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        return sum(item is None for row in column.to_pylist() if row is not None for item in row)
    if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
        return 0
    inner = column.flatten()
    return int(inner.null_count) + _nulls_inside(inner)


def _file_values(name: str, column: Any) -> dict[str, list[Any]]:
    """Return the values of a column of files, by feature; the paths only where there are some."""
    contents: list[Any] = []
    paths: list[Any] = []
    some = False
    for row in column.to_pylist():
        listed = isinstance(row, list)
        files = row if listed else [row]
        data = [_content(file) for file in files]
        named = [None if file is None else file["path"] for file in files]
        some = some or any(path is not None for path in named)
        contents.append(data if listed else data[0])
        paths.append(named if listed else named[0])
    return {name: contents, f"{name}.path": paths} if some else {name: contents}


def _content(file: Any) -> Any:
    if file is None or file["bytes"] is not None or file["path"] is None:
        return None if file is None else file["bytes"]
    return _PathAlone(file["path"])


def _values(column: Any, feature: Feature) -> list[Any]:
    import pyarrow as pa

    if (kind := _without_view(column.type)) != column.type:
        # pyarrow's cast of views gives arrays without their last lists (seen in 26.0).
        column = pa.array(_items(column), kind)
    tensor = _tensor_layout(kind)
    plain = _plain_type(kind)
    while isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    column = _without_runs(column)
    if column.type != plain:
        column = column.cast(plain)
    if feature.kind == "json" and pa.types.is_string(plain):
        return [_JsonText(value) if isinstance(value, str) else value for value in _items(column)]
    rows = _arrays(column) if feature.kind == "number" else None
    values: list[Any] = _items(column) if rows is None else list(rows)
    if tensor is not None:
        shape, axes = tensor
        return [None if value is None else np.reshape(value, shape).transpose(axes) for value in values]
    return values


def _items(column: Any) -> list[Any]:
    """Return the values of a column; text that is not UTF-8 as `_NotText`."""
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        found = [_text_of(value) for value in column.cast(_binary_type(column.type)).to_pylist()]
    return found


def _binary_type(kind: Any) -> Any:
    """Return a plain type with bytes in place of text."""
    import pyarrow as pa

    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_binary_type(kind.value_type), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(_binary_type(kind.key_type), _binary_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_binary_type(kind.value_type))
    if _is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([pa.field(field.name, _binary_type(field.type)) for field in inner])
    return kind


def _text_of(value: Any) -> Any:
    """Return a value of `_binary_type` with its text decoded; names of the fields of structs are text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return _NotText(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_text_of, value))
    return {name: _text_of(item) for name, item in value.items()} if isinstance(value, dict) else value


def _arrays(column: Any, *, inside: bool = False) -> Any:
    """Return numbers and lists of them as NumPy's, with every bit: an array, or a list with None for nulls.

    Floats that are null `inside` a list are NaN, as pandas writes them.  None where a list lacks another
    item, holds something else, or lists of several lengths: these are documents.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, there = column.type, column.is_valid().to_numpy(zero_copy_only=False)
    if inside and pa.types.is_floating(kind) and not there.all():
        numbers = np.array(column.fill_null(0).to_numpy(zero_copy_only=False))
        numbers[~there] = np.nan
        return numbers
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = (column if there.all() else column.fill_null(0)).to_numpy(zero_copy_only=False)
        return numbers if there.all() else [n if ok else None for n, ok in zip(numbers, there, strict=True)]
    fixed = pa.types.is_fixed_size_list(kind)
    if not (fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    inner = _arrays(column.flatten(), inside=True)
    if inner is None or (isinstance(inner, list) and any(item is None for item in inner)):
        return None
    if fixed and there.all() and isinstance(inner, np.ndarray):
        return inner.reshape(len(column), kind.list_size, *inner.shape[1:])
    ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)).tolist()
    rows = [inner[start:stop] for start, stop in pairwise([0, *ends])]
    if isinstance(inner, list):
        if any(len({each.shape for each in row}) > 1 for row in rows):
            return None
        rows = [np.stack(row) if row else row for row in rows]
    return [row if valid else None for row, valid in zip(rows, there.tolist(), strict=True)]


def arrow_field(name: str, feature: Feature) -> Any:
    """Return the Arrow field that a feature is exported as.

    Raises:
        ValueError: complex numbers, which Arrow does not have.
    """
    import pyarrow as pa

    if feature.type.startswith("complex"):
        raise ValueError(f"feature {name!r}: Arrow has no type for {feature.type}")
    # A bfloat16 is a float32 to Arrow, and stays one: it loses nothing.
    metadata = {} if feature.type == "bfloat16" else {_TYPE_KEY: feature.short.encode()}
    if feature.classes is not None:
        metadata[_CLASSES_KEY] = json.dumps(feature.classes, ensure_ascii=False).encode()
    # `datasets` takes a column for labels only where it may be null.
    nullable = feature.optional or _is_class_label(feature)
    return pa.field(name, arrow_type_of(feature), nullable=nullable, metadata=metadata or None)


def arrow_schema(features: Mapping[str, Feature]) -> Any:
    """Return the Arrow schema that features are exported as; `datasets` finds the classes of labels in it.

    Raises:
        ValueError: as `arrow_field`.
    """
    import pyarrow as pa

    labels = {
        name: {"names": list(feature.classes or ()), "_type": "ClassLabel"}
        for name, feature in features.items()
        if _is_class_label(feature)
    }
    described = json.dumps({"info": {"features": labels}}, ensure_ascii=False).encode()
    metadata = {_DATASETS_KEY: described} if labels else None
    return pa.schema([arrow_field(name, feature) for name, feature in features.items()], metadata)


def _is_class_label(feature: Feature) -> bool:
    """Tell whether `datasets` has the same type: one int64."""
    return feature.classes is not None and feature.type == "int64" and not feature.shape


class _ArrowRows(ForeignSource):
    """What sources have in common whose records are rows of Arrow."""

    declared: ClassVar[bool] = True

    @property
    @abstractmethod
    def _heads(self) -> Sequence[_Head | BadRecord]:
        """What is known of each file; or what is wrong with it."""

    @cached_property
    def _units(self) -> dict[str, str]:
        """Units of the times of columns, by name."""
        known = self.known().items()
        return {name: each.unit for name, each in known if isinstance(each, Feature) and each.unit}

    @property
    def _readable(self) -> list[_Head]:
        return [head for head in self._heads if not isinstance(head, BadRecord)]

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types of the columns; what cannot be read, or differs between files, says why."""
        return self._united.features

    @cached_property
    def _united(self) -> _United:
        return _unite(self._readable)

    def notes(self) -> Sequence[str]:
        """Return what is said of any source, and the columns that differ between files."""
        return [*super().notes(), *self._united.notes]

    def metadata(self) -> dict[str, Any]:
        """Return what `datasets` says of columns and the schema does not, such as rates of audio."""
        known = self.known()
        kept: dict[str, Any] = {}
        for head in self._readable[:1]:
            for name, node in _features_json(head.schema).items():
                feature = known.get(name)
                said = hf_json(node)
                if name in head.schema.names:
                    said = _in_units_of(said, head.schema.field(name).type)
                if not isinstance(feature, Feature) or hf_json(hf_feature(feature)) != said:
                    kept[name] = without_names(said, name, known)
        return {HF_METADATA: kept} if kept else {}

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a row with its documents parsed, its times in the schema's units, and its text as wanted.

        Where the schema wants JSON, numbers become Python's. The label -1 is none, where there are classes:
        so `datasets` writes a record without a label.

        Raises:
            SchemaError: a document is not JSON, text is not UTF-8, a file is not there, or a time is none of
                the schema's unit.
        """
        fitted = dict(value)
        for name, unit in self._units.items():
            item = fitted.get(name)
            if item is not None and name in schema and schema[name].unit != unit:
                fitted[name] = _in_unit(name, item, unit, schema[name].unit)
        for name, item in value.items():
            if name in schema and schema[name].kind == "json":
                if isinstance(item, _JsonText):
                    fitted[name] = _document(name, item)
                elif isinstance(item, np.generic | np.ndarray):
                    fitted[name] = item.tolist()
            elif name in schema:
                fitted[name] = _as_bytes_or_text(name, fitted[name], schema[name])
        for name, feature in schema.items():
            # Where records without a label have that of a class, -1 is refused.
            none = feature.classes is not None and feature.optional and not feature.shape
            none = none and not (feature.has_default and feature.default >= 0)
            if none and name in fitted and fitted[name] == -1:
                fitted[name] = None
            given = fitted.get(name)
            alone = [
                each
                for each in (given if isinstance(given, list) else [given])
                if isinstance(each, _PathAlone)
            ]
            if alone:
                raise SchemaError(
                    f"column {name!r} has the path of a file and not its bytes", found=repr(str(alone[0])),
                    advice="open it with datasets.load_dataset and convert what that returns, where the file "
                    f"can be read, or {Unreadable('').advice(name)}",
                )  # fmt: skip
        return fitted


@dataclass(frozen=True)
class ArrowFiles(_ArrowRows, FileSource):
    """Parquet files, and Arrow files of both IPC formats."""

    kind: ClassVar[str] = "parquet"
    endings: ClassVar[tuple[str, ...]] = PARQUET_ENDINGS + ARROW_ENDINGS

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_units": self._units}

    def _kind_of_bytes(self, file: FoundFile) -> str | None:
        kind = super()._kind_of_bytes(file)
        return self.kind if kind == "arrow" else kind

    @cached_property
    def _heads(self) -> list[_Head | BadRecord]:
        found: list[_Head | BadRecord] = []
        for file in self.files:
            if not file.size:
                continue
            try:
                found.append(self._head(file))
            except FormatError as error:
                found.append(BadRecord(file.url, error.what))
        return found

    def _head(self, file: File) -> _Head:
        with _Opened(file.root, file.key, self.options) as opened:
            return _Head(file, opened.schema, opened.rows, *opened.columns_with_nulls())

    def pieces(self) -> list[Piece]:
        """Return the row groups, or record batches."""
        splits = {file.url: split for file, split in self.split_files()}
        return [
            Piece(
                file.root,
                file.key,
                splits[file.url],
                file.size // max(1, len(rows)),
                group,
                group + 1,
                self._united.casts.get(file.url),
            )
            for file, rows in ((head.file, head.rows) for head in self._readable)
            if file.url in splits
            # A file without rows has a schema all the same.
            for group in range(max(1, len(rows)))
        ]

    def notes(self) -> Sequence[str]:
        """Return what the columns and the splits rest on, and which files are empty."""
        empty = [file.url for file in self.files if not file.size]
        what = [f"{plural(len(empty), 'file')} such as {empty[0]}: empty, so without rows"] if empty else []
        return [*super().notes(), *what]

    def bad_records(self) -> Sequence[BadRecord]:
        """Return names that are not text, and files that are neither Parquet nor Arrow."""
        return [*super().bad_records(), *(head for head in self._heads if isinstance(head, BadRecord))]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord | Note]:
        """Yield the rows of a group."""
        with _Opened(piece.root, piece.key, self.options) as opened:
            if not opened.rows:
                return
            number = sum(opened.rows[: piece.start])
            missing: Counter[tuple[str, str]] = Counter()
            for batch in map(_with_names, opened.batches(piece.start)):
                for value in _rows_of(batch, missing, piece.extra or {}):
                    yield Sample(f"{piece.url} row {number}", value)
                    number += 1
        yield from _notes_on_nulls(piece, missing)


@dataclass(frozen=True)
class HuggingFaceDataset(_ArrowRows):
    """A `datasets.Dataset`, or a `DatasetDict` of splits; travels to workers as `datasets` pickles it.

    Files that columns name by their paths are read as `datasets` does.

    Args:
        place: the dataset.
        options: what the caller says about it.

    Raises:
        TypeError: it is a stream, an `IterableDataset`.
    """

    kind: ClassVar[str] = "datasets"
    place: Any
    options: SourceOptions

    def __post_init__(self) -> None:
        for split, dataset in self._splits().items():
            if not hasattr(dataset, "num_rows") or not hasattr(dataset, "data"):
                raise TypeError(
                    f"{type(dataset).__name__} ({split}) is a stream, which cannot be divided among workers: "
                    "load it without streaming, or convert the Parquet files of its repository "
                    '("hf://datasets/OWNER/NAME/**/*.parquet")'
                )

    @staticmethod
    def takes(place: Any) -> bool:
        """Tell whether a value is one of `datasets`', without importing it."""
        return any(kind.__module__.partition(".")[0] == "datasets" for kind in type(place).__mro__)

    def _splits(self) -> dict[str, Any]:
        if isinstance(self.place, dict):
            return {str(split): dataset for split, dataset in self.place.items()}
        return {str(getattr(self.place, "split", None) or "train"): self.place}

    def notes(self) -> Sequence[str]:
        """Return what is said of any table, and what of the format of `datasets` does not count here."""
        found = [*super().notes()]
        for split, dataset in self._splits().items():
            form = dataset.format
            if form["type"] == "custom":
                found.append(f"{split}: the transform is not applied; map() makes it part of the records")
            hidden = set(dataset.column_names).difference(form["columns"])
            if hidden and not form["output_all_columns"]:
                named = ", ".join(sorted(hidden))
                found.append(f"{split}: what its format hides is written, too: {named}; see remove_columns()")
        return found

    @cached_property
    def _heads(self) -> list[_Head | BadRecord]:
        return [self._head(split, dataset) for split, dataset in self._splits().items()]

    def _head(self, split: str, dataset: Any) -> _Head:
        schema = dataset.features.arrow_schema
        names = {name for name, _ in _flattened(schema)}
        # Rows that the caller left out may hold the nulls that are counted here: then a feature is optional.
        import pyarrow as pa
        import pyarrow.compute as pc

        nodes, table, nulls, negative = _nodes(schema), dataset.data, set(names), set(names)
        unused: set[str] = set()
        for field in schema:
            name, column = field.name, table.column(field.name)
            if _is_file(field.type, nodes.get(name)):
                files = column if _is_struct(field.type) else pc.list_flatten(column)
                if all(part.field("path").null_count == len(part) for part in files.chunks):
                    unused.add(f"{name}.path")
                # Of a path `datasets` reads the file.
                lacking = column.null_count or any(
                    pc.any(pc.and_(part.field("bytes").is_null(), part.field("path").is_null())).as_py()
                    for part in files.chunks
                )
                nulls -= set() if lacking else {name}
                # Lists of files have paths only in batches where there are some.
                missing = files is not column or any(
                    part.null_count or part.field("path").null_count for part in files.chunks
                )
                nulls -= set() if missing else {f"{name}.path"}
            elif not _has_fields(_unwrapped(field.type)):
                nulls -= set() if column.null_count else {name}
                if (
                    pa.types.is_integer(field.type)
                    and nodes.get(name, {}).get("_type") == "ClassLabel"
                    and not pc.any(pc.less(column, 0)).as_py()
                ):
                    negative.discard(name)
        file = File("datasets", split, int(table.nbytes), split)
        return _Head(file, schema, [dataset.num_rows], nulls, negative, unused)

    def pieces(self) -> list[Piece]:
        """Return ranges of rows."""
        found: list[Piece] = []
        for head in self._readable:
            rows, size = head.rows[0], head.file.size
            step = max(1, -(-rows // max(1, size // _PIECE_BYTES)))
            dataset = self._splits()[head.file.key].with_format("arrow")
            casts = self._united.casts.get(head.file.url)
            # Without rows there is a schema all the same.
            for start in range(0, max(1, rows), step):
                stop = min(start + step, rows)
                apart = max(1, -(-(stop - start) // _TOLD_ROWS))
                told = _digest(dataset[row : row + 1] for row in range(start, stop, apart))
                size_here = size * step // max(1, rows)
                found.append(
                    Piece("datasets", head.file.key, head.file.key, size_here, start, stop, (casts, told))
                )
        return found

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord | Note]:
        """Yield rows of a range."""
        from datasets.table import embed_table_storage

        dataset = self._splits()[piece.key].with_format("arrow")
        schema = dataset.features.arrow_schema
        row = piece.start
        missing: Counter[tuple[str, str]] = Counter()
        while row < piece.stop:
            rows = dataset[row : min(row + _ROWS, piece.stop)].cast(schema)
            try:
                rows = embed_table_storage(rows)
            except OSError as error:
                raise FormatError(
                    f"a file that rows {row} to {row + rows.num_rows} name cannot be read ({error})",
                    url=piece.url,
                    advice="put the file there, or leave such rows out with the filter() of datasets",
                ) from error
            for batch in rows.to_batches():
                for number, value in enumerate(_rows_of(batch, missing, piece.extra[0] or {}), row):
                    yield Sample(f"{piece.url} row {number}", value)
                row += batch.num_rows
        yield from _notes_on_nulls(piece, missing)


@dataclass(frozen=True)
class ArrowTable(_ArrowRows):
    """A `pyarrow.Table` or `RecordBatch`, or a DataFrame of pandas or polars, which becomes one.

    Args:
        place: the table; or the `pyarrow.Schema` of tables that are to come.
        options: what the caller says about it.
    """

    kind: ClassVar[str] = "arrow"
    in_memory: ClassVar[bool] = True
    place: Any
    options: SourceOptions

    @staticmethod
    def takes(place: Any) -> bool:
        """Tell whether a value is a table, without importing what it is of."""
        return table_package(place) is not None

    @cached_property
    def _table(self) -> Any:
        import pyarrow as pa

        place = self.place
        if isinstance(place, pa.Schema):
            return place.empty_table()
        if isinstance(place, pa.RecordBatch):
            return _with_names(pa.Table.from_batches([place]))
        if isinstance(place, pa.Table):
            return _with_names(place)
        return _of_polars(place) if hasattr(place, "to_arrow") else _of_pandas(place)

    @cached_property
    def _heads(self) -> list[_Head | BadRecord]:
        table = self._table
        columns = dict(zip(table.column_names, table.columns, strict=True))
        names = {name for name, _ in _flattened(table.schema)}
        nulls = {name for name in names if name not in columns or columns[name].null_count}
        if isinstance(self.place, type(table.schema)):
            nulls = {name for name in names if name not in columns or table.schema.field(name).nullable}
        file = File("arrow", "table", int(table.nbytes), "table")
        return [_Head(file, table.schema, [table.num_rows], nulls, names, set())]

    def notes(self) -> Sequence[str]:
        """Return what is said of any table, and that an index of pandas was taken for row numbers."""
        index = getattr(self.place, "index", None)
        dropped = index is not None and type(index).__name__ != "RangeIndex" and _is_row_numbers(index)
        note = "the index has no name, so it is taken for row numbers and dropped: name it to keep it"
        return [*super().notes(), *([note] if dropped else [])]

    def pieces(self) -> list[Piece]:
        """Return all rows as one."""
        table = self._table
        size, rows = int(table.nbytes), table.num_rows
        apart = max(1, -(-rows // _TOLD_ROWS))
        told = _digest(table.slice(row, min(apart, _TOLD_ROWS)) for row in range(0, rows, apart))
        return [Piece("arrow", "table", "train", size, 0, rows, extra=told)]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord | Note]:
        """Yield the rows."""
        row = 0
        missing: Counter[tuple[str, str]] = Counter()
        for batch in self._table.to_batches(max_chunksize=_ROWS):
            for value in _rows_of(batch, missing, {}):
                yield Sample(f"row {row}", value)
                row += 1
        yield from _notes_on_nulls(piece, missing)


def _digest(rows: Iterable[Any]) -> str:
    """Return what tells tables apart, given some rows as tables: they have no name as files have."""
    digest = hashlib.sha256()
    for number, table in enumerate(rows):
        for batch in table.to_batches():
            digest.update(items_digest(TaskItems(0, number, [*_rows_of(batch, Counter(), {})])))
    return digest.hexdigest()


def _of_polars(frame: Any) -> Any:
    import pyarrow as pa

    # Of Python objects polars gives Arrow their addresses in memory.
    if objects := [repr(name) for name, kind in frame.schema.items() if str(kind) == "Object"]:
        raise SchemaError(
            f"column {', '.join(objects)} holds Python objects, which Arrow has no type for",
            advice="drop it, or write rows: shardio.from_generator(df.to_dicts(), url)",
        )
    try:
        return frame.to_arrow()
    except pa.ArrowException as error:
        raise SchemaError(
            "Arrow has no type for a column of this table",
            found=str(error.args[0]),
            advice="cast the column, as in df.cast({'NAME': polars.Float64}), or drop it",
        ) from error


def _of_pandas(frame: Any) -> Any:
    import pyarrow as pa

    try:
        indexed = frame if _is_row_numbers(frame.index) else frame.reset_index()
        return pa.Table.from_pandas(indexed, preserve_index=False)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        what = "the index and the columns of this table cannot be columns of one"
        advice = "give each a name of its own, or drop the index"
        if odd := _odd_columns(frame):
            what = f"Arrow has no type for the values of column {', '.join(odd)}"
            advice = (
                "give the column one type, as in df.astype({'NAME': 'float64'}), drop it, or write rows: "
                "shardio.from_generator(df.to_dict('records'), url)"
            )
        raise SchemaError(what, found=str(error.args[0]), advice=advice) from error


def _is_row_numbers(index: Any) -> bool:
    """Tell whether an index of pandas is not data: integers without a name, whichever rows a filter left."""
    return index.nlevels == 1 and index.name is None and index.dtype.kind in "iu"


def _odd_columns(frame: Any) -> list[str]:
    """Name the columns of a frame of pandas that cannot be columns of Arrow."""
    import pyarrow as pa

    odd = []
    for name, column in frame.items():
        try:
            pa.array(column, from_pandas=True)
        except (pa.ArrowException, OverflowError, TypeError):
            odd.append(repr(name))
    return odd


class _Head(NamedTuple):
    """What is known of a file before its rows are read.

    Attributes:
        file: which it is.
        schema: the Arrow schema.
        rows: of each group.
        nulls: columns that may hold nulls.
        negative: columns that may hold numbers below 0.
        unused: columns of paths that hold none.
    """

    file: File
    schema: Any
    rows: list[int]
    nulls: set[str]
    negative: set[str]
    unused: set[str]


def _labels(name: str, feature: Feature, classes: tuple[str, ...], *, negative: bool) -> Feature | Unreadable:
    """Return the feature of a column of labels; -1 is the label of what has none."""
    if feature.kind != "number":
        return feature
    try:
        named = feature.replace(classes=classes)
        if not feature.shape and (negative or feature.optional) and not feature.type.startswith("u"):
            named = named.replace(default=-1)
    except ValueError as error:
        return Unreadable(f"column {name!r} names classes that no feature can have: {error}", feature.short)
    return named


class _United(NamedTuple):
    """What the columns of all files have in common.

    Attributes:
        features: by column; or why it can be none.
        casts: by the URL of a file, for its columns of other types than the common one, that type; None for a
            column without values where other files have a struct.
        notes: what differs, a line a column.
    """

    features: dict[str, Feature | str | Unreadable]
    casts: dict[str, dict[str, Any]]
    notes: list[str]


class _ColumnForm(NamedTuple):
    """A column as some files have it: what it is read as, and the first of these files."""

    field: Any
    classes: tuple[str, ...] | None
    node: Any
    url: str
    double: bool

    @property
    def described(self) -> str:
        return f"{self.field.type} in {self.url}"


def _unite(heads: Sequence[_Head]) -> _United:
    """Return the columns of all files, each of the one type that holds it everywhere.

    Types are unified as `pyarrow.unify_schemas(promote_options="permissive")` does. A column that some files
    do not have, or have without values, is optional.
    """
    import pyarrow as pa

    united = _United({}, {}, [])
    nulls = {name for head in heads for name in head.nulls}
    negative = {name for head in heads for name in head.negative}
    unused = set[str].intersection(*(head.unused for head in heads)) if heads else set()
    structs = {path: head for head in reversed(heads) for path in _taken_apart(head.schema)[1]}
    forms: dict[str, dict[Any, _ColumnForm]] = {}
    holders: Counter[str] = Counter()
    lacking: dict[str, str] = {}
    for head in heads:
        url = head.file.url
        classes, nodes = _class_names(head.schema), _nodes(head.schema)
        columns = [(name, field) for name, field in _flattened(head.schema) if name not in unused]
        counts = Counter(name for name, _ in columns)
        for name, field in columns:
            if name in structs and pa.types.is_null(field.type):
                united.casts.setdefault(url, {})[name] = None
                continue
            column = _ColumnForm(field, classes.get(name), nodes.get(name), url, counts[name] > 1)
            said = ((field.metadata or {}).get(_TYPE_KEY), column.classes, repr(column.node), column.double)
            forms.setdefault(name, {}).setdefault((field.type, *said), column)
        holders.update(counts.keys())
    for name in forms:
        if holders[name] < len(heads):
            lacking[name] = next(
                head.file.url for head in heads if all(name != each for each, _ in _flattened(head.schema))
            )
    for name, found in forms.items():
        variants = list(found.values())
        optional = name in nulls or name in lacking
        if name in structs and structs[name].file.url not in {each.url for each in variants}:
            feature: Feature | Unreadable = _differs(
                name, variants[0].described, f"a struct in {structs[name].file.url}", keep=None
            )
        else:
            feature, kind = _common(name, variants, optional=optional, negative=name in negative)
            if isinstance(feature, Feature) and len({each.field.type for each in variants}) > 1:
                _note_casts(united, heads, name, kind)
                told = [each for each in variants if not pa.types.is_null(each.field.type)]
                types = {(_feature(name, each.field.type), _unit_of(each.field.type)) for each in told}
                if len(types) > 1:
                    shown = ", ".join(each.described for each in told[:3])
                    unit = f" ({feature.unit})" if feature.unit else ""
                    united.notes.append(f"column {name!r} is {shown}: it is {feature.short}{unit}")
        if name in lacking and isinstance(feature, Feature):
            without = len(heads) - holders[name]
            united.notes.append(
                f"column {name!r} is missing in {without} of {len(heads)} files (first {lacking[name]}): its "
                "values are missing there"
            )
        united.features[name] = feature
    return united


def _note_casts(united: _United, heads: Sequence[_Head], name: str, kind: Any) -> None:
    """Note in which files a column has another type than the common one; numbers fit features exactly."""
    if _is_number(kind):
        return
    for head in heads:
        have = next((field.type for each, field in _flattened(head.schema) if each == name), kind)
        if have != kind and _bare(have) != kind:
            united.casts.setdefault(head.file.url, {})[name] = kind


def _common(
    name: str, variants: Sequence[_ColumnForm], *, optional: bool, negative: bool
) -> tuple[Feature | Unreadable, Any]:
    """Return the feature that a column becomes, whatever file it is in, and its Arrow type."""
    first = variants[0]
    features: list[Feature] = []
    kind = first.field.type if len(variants) == 1 else _bare(first.field.type)
    for each in variants:
        if each.double:
            return Unreadable(f"two columns of {each.url} are called {name!r}"), kind
        feature = _feature_of(name, each.field, optional=optional, node=each.node)
        if isinstance(feature, Unreadable):
            return feature, kind
        features.append(feature)
        both = _unified(kind, each.field.type)
        if both is None:
            return _differs(name, first.described, each.described, keep="json"), kind
        kind = both
        if each.classes != first.classes:
            one, other = (f"{len(side.classes or ())} in {side.url}" for side in (first, each))
            reason = f"column {name!r} does not name the same classes in all files: {one}, {other}"
            return Unreadable(reason, feature.short), kind
    feature = features[0]
    if len(set(features)) > 1:
        import pyarrow as pa

        found = _feature_of(name, pa.field(name, kind), optional=optional)
        if isinstance(found, Feature) and all(each.kind == "image" for each in features):
            found = Feature("image", shape=found.shape, optional=optional)
        if isinstance(found, Unreadable):
            return found, kind
        feature = found
    if first.classes is not None:
        return _labels(name, feature, first.classes, negative=negative), kind
    return feature, kind


def _unified(one: Any, other: Any) -> Any:
    """Return the Arrow type that holds the values of both, as Arrow unifies schemas; None where none does."""
    import pyarrow as pa

    if one == other:
        return one
    one, other = _bare(one), _bare(other)
    schemas = [pa.schema([("x", kind)]) for kind in (one, other)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


def _bare(kind: Any) -> Any:
    """Return a type without what does not matter to its values: dictionaries, runs, views, time zones."""
    import pyarrow as pa

    kind = _without_view(_unwrapped(kind))
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _bare(kind.value_type)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # Times with any zone are stored in UTC.
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_nested(kind):
        return kind
    return _plain_type(kind)


def _is_number(kind: Any) -> bool:
    """Tell whether a column is numbers, or lists of them."""
    import pyarrow as pa

    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _differs(name: str, one: str, other: str, *, keep: str | None) -> Unreadable:
    # JSON holds no bytes.
    keep = None if "binary" in one + other else keep
    return Unreadable(f"column {name!r} is not the same in all files: {one}, {other}", keep)


def _in_unit(name: str, value: Any, unit: str, wanted: str) -> Any:
    """Return times in the unit of a dataset; as they are where the dataset has none.

    Raises:
        SchemaError: they are none of that unit.
    """
    ours, theirs = TimeUnit.parse(unit), TimeUnit.parse(wanted)
    if ours is None or theirs is None:
        return value
    try:
        if isinstance(value, list):
            return [None if item is None else ours.convert(item, theirs) for item in value]
        return ours.convert(value, theirs)
    except ValueError as error:
        raise SchemaError(
            f"column {name!r} is {unit}, and a value is none of the dataset's {wanted} ({error})",
            found=str(value)[:80],
            advice="round the column first, or convert it into a dataset of its own",
        ) from error


def _as_bytes_or_text(name: str, value: Any, feature: Feature) -> Any:
    """Return text of a column as a feature takes it.

    Raises:
        SchemaError: it is not UTF-8, and the feature is not one of bytes.
    """
    if isinstance(value, list):
        return [_as_bytes_or_text(name, item, feature) for item in value]
    if feature.kind == "bytes":
        return (
            bytes(value)
            if isinstance(value, _NotText)
            else value.encode()
            if isinstance(value, str)
            else value
        )
    if isinstance(value, _NotText):
        raise SchemaError(
            f"column {name!r} is text that is not UTF-8",
            found=repr(value[:40]),
            advice=f"keep its bytes with {keep_as(name, 'bytes')}, or leave the column out with "
            f"{keep_as(name, None)}",
        )
    return value


def _document(name: str, text: str) -> Any:
    try:
        return parse_json(text.encode())
    except ValueError as error:
        advice = f"keep the column as it is with {keep_as(name, 'text')}"
        raise SchemaError(f"column {name!r} is not JSON ({error})", found=text[:40], advice=advice) from error


def _is_negative(least: Any) -> bool:
    return isinstance(least, int) and least < 0


def _named(names: Sequence[str]) -> list[str]:
    """Return names of columns, with one for each column that has none."""
    taken = set(names)
    found = [name or f"column{number}" for number, name in enumerate(names)]
    while len({*taken, *found}) < len(taken - {""}) + names.count(""):
        found = [each if name else f"{each}_" for name, each in zip(names, found, strict=True)]
    return found


def _with_names(table: Any) -> Any:
    """Return a table or batch of which each column has a name."""
    names = table.schema.names
    return table.rename_columns(_named(names)) if "" in names else table


class _Opened:
    """One file, whatever its format: schema, groups, batches of rows."""

    def __init__(self, root: str, key: str, options: SourceOptions) -> None:
        need("reading Parquet and Arrow", "shardio[convert]", "pyarrow")
        import pyarrow as pa
        import pyarrow.ipc
        import pyarrow.parquet

        self._pa = pa
        self.url = f"{root}/{key}"
        self._file = SeekableFile(connect(root, storage_options=options.storage_options).open(key))
        self._parquet: Any = None
        self._reader: Any = None
        try:
            head = self._file.read(8)
            self._file.seek(0)
            if head[:4] == b"PAR1":
                # Memory for what is read of a row group ahead is bounded, whatever its size.
                columns = max(1, pyarrow.parquet.read_metadata(self._file).num_columns)
                self._file.seek(0)
                self._parquet = self._open_parquet(
                    pre_buffer=False, buffer_size=max(64 << 10, min(4 << 20, _BUFFER_BYTES // columns))
                )
            elif head[:6] == b"ARROW1":
                self._reader = pyarrow.ipc.open_file(self._file)
            else:
                self._reader = pyarrow.ipc.open_stream(self._file)
        except (pa.ArrowException, OSError, ValueError) as error:
            self._file.close()
            if isinstance(error, ShardioError):
                raise
            raise FormatError(
                f"this is neither Parquet nor Arrow, or damaged ({error})", url=self.url
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def schema(self) -> Any:
        """The Arrow schema."""
        schema = self._parquet.schema_arrow if self._parquet is not None else self._reader.schema
        if "" not in schema.names:
            return schema
        fields = zip(schema, _named(schema.names), strict=True)
        return self._pa.schema([field.with_name(name) for field, name in fields], schema.metadata)

    @property
    def _stored_names(self) -> list[str]:
        return [str(name) for name in self._parquet.schema_arrow.names]

    @property
    def rows(self) -> list[int]:
        """Rows of each group; a stream is one group of unknown size."""
        if self._parquet is not None:
            groups = self._parquet.metadata
            return [groups.row_group(group).num_rows for group in range(groups.num_row_groups)]
        if hasattr(self._reader, "num_record_batches"):
            # How many rows a batch has is known once it is read; places in messages count from the batch.
            return [0] * self._reader.num_record_batches
        return [0]

    def columns_with_nulls(self) -> tuple[set[str], set[str], set[str]]:
        """Return the columns that may hold nulls, that may hold numbers below 0, and paths that are all null.

        By the statistics of a Parquet file where it has them, else all, and none of the paths.
        """
        nullable = {field.name: field.nullable for field in self.schema}
        names = [name for name, _ in _flattened(self.schema)]
        found = {name for name in names if nullable.get(name, True)}
        if self._parquet is None:
            return found, set(names), set()
        # Of a list the leaf's statistics count empty lists too; none is certain all the same.
        unsure: set[str] = set()
        negative: set[str] = set()
        nodes = _nodes(self.schema)
        files = {
            field.name: not _is_struct(_unwrapped(field.type))
            for field in self.schema
            if _is_file(_unwrapped(field.type), nodes.get(field.name))
        }
        used: set[str] = set()
        metadata = self._parquet.metadata
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                statistics = column.statistics
                if statistics is None or not statistics.has_null_count or statistics.null_count:
                    unsure.add(column.path_in_schema)
                if statistics is None or not statistics.has_min_max or _is_negative(statistics.min):
                    negative.add(column.path_in_schema)
                if (
                    statistics is None
                    or not statistics.has_null_count
                    or statistics.null_count < column.num_values
                ):
                    used.add(column.path_in_schema)
        nulls = {f"{name}.path" for name, listed in files.items() if listed} | {
            name
            for name in found
            if ("" in unsure and name not in self._stored_names)
            or any(
                path == f"{name}.bytes"
                if files.get(name) is False
                else path == name or path.startswith(f"{name}.")
                for path in unsure
            )
        }
        unused = {
            f"{name}.path"
            for name, listed in files.items()
            if not any(
                path == f"{name}.path" or (listed and path.startswith(f"{name}.") and path.endswith(".path"))
                for path in used
            )
        }
        return nulls, negative, unused

    def batches(self, group: int) -> Iterator[Any]:
        """Yield the rows of a group, a thousand at a time."""
        try:
            if self._parquet is not None:
                yield from self._parquet_batches(group)
            elif hasattr(self._reader, "get_batch"):
                whole = self._reader.get_batch(group)
                yield from (whole.slice(start, _ROWS) for start in range(0, whole.num_rows, _ROWS))
            else:
                yield from self._reader
        except (self._pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, ShardioError):
                raise
            raise FormatError(f"the file is damaged ({error})", url=self.url) from error

    def _parquet_batches(self, group: int) -> Iterator[Any]:
        """Yield the rows of a group; a dictionary of few bytes may stand for gigabytes of text."""
        rows, texts = self._batch_rows(group), self._large_texts(group)
        file = self._open_parquet(read_dictionary=texts) if texts else self._parquet
        names = [
            name
            for name in self._stored_names
            if any(path == name or path.startswith(f"{name}.") for path in texts)
        ]
        for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
            for start, stop in _row_runs(batch, names):
                # A slice of lists would be cast with all values of the batch.
                part = batch.take(np.arange(start, stop)) if names else batch
                for name in names:
                    number = part.schema.get_field_index(name)
                    kind = self._parquet.schema_arrow.field(name)
                    part = part.set_column(number, kind, part.column(number).cast(kind.type))
                yield part

    def _large_texts(self, group: int) -> list[str]:
        """Return the paths of columns of text of a group that may hold much more than what is stored."""
        found = self._parquet.metadata.row_group(group)
        paths = []
        for number in range(found.num_columns):
            column = found.column(number)
            per_row = max(1, column.num_values // max(1, found.num_rows))
            largest = min(found.num_rows, self._batch_rows(group)) * per_row * column.total_uncompressed_size
            if (
                column.has_dictionary_page
                and column.physical_type == "BYTE_ARRAY"
                and self._parquet.schema.column(number).logical_type.type != "DECIMAL"
                and ".key_value." not in column.path_in_schema
                and largest > _DICTIONARY_BYTES
            ):
                paths.append(column.path_in_schema)
        return paths

    def _batch_rows(self, group: int) -> int:
        """Return how many rows of a group are decoded at a time: few where they are large."""
        found = self._parquet.metadata.row_group(group)
        rows = int(found.num_rows)
        return max(1, min(_ROWS, _BATCH_BYTES * rows // max(int(found.total_byte_size), 1)))

    def _open_parquet(self, **options: Any) -> Any:
        """Return the open file, with INT96 times in the unit that holds all of them.

        Raises:
            FormatError: no unit does.
        """
        import pyarrow.parquet as pq

        file = pq.ParquetFile(self._file, **options)
        schema = file.schema
        names = [
            schema.column(n).path for n in range(len(schema)) if schema.column(n).physical_type == "INT96"
        ]
        if not names:
            return file
        fine = beyond = False
        coarse = pq.ParquetFile(self._file, coerce_int96_timestamp_unit="us", **options)
        batches = [each.iter_batches(_ROWS, columns=names, use_threads=False) for each in (file, coarse)]
        for ns, us in zip(*batches, strict=True):
            for one, other in zip(_leaves(ns), _leaves(us), strict=True):
                # What nanoseconds do not hold wraps around.
                fits = one // 1000 == other
                beyond = beyond or not fits.all()
                fine = fine or bool((one[fits] % 1000).any())
        if fine and beyond:
            raise FormatError(
                "no unit holds all of its INT96 times: some have nanoseconds, others are beyond their range",
                url=self.url,
                advice="rewrite the file with times in microseconds",
            )
        return coarse if beyond else file


def _row_runs(batch: Any, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Cut a batch into runs of rows whose dictionary-encoded texts take about `_BATCH_BYTES`."""
    if not names:
        yield 0, batch.num_rows
        return
    sizes = np.zeros(batch.num_rows, np.int64)
    for name in names:
        sizes += _text_bytes(batch.column(batch.schema.get_field_index(name)))
    ends, start = np.cumsum(sizes), 0
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _BATCH_BYTES, side="right")))
        yield start, stop
        start = stop


def _text_bytes(column: Any) -> Any:
    """Return how many bytes the dictionary-encoded texts in each value of a column take, int64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        lengths = pc.binary_length(column.dictionary).take(column.indices).fill_null(0)
        return lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    if _is_struct(column.type):
        return sum(map(_text_bytes, column.flatten()), np.zeros(len(column), np.int64))
    if hasattr(column.type, "value_type"):
        inner = np.concatenate([[0], np.cumsum(_text_bytes(column.flatten()))])
        ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False))
        return np.diff(inner[ends.astype(np.int64)], prepend=0)
    return np.zeros(len(column), np.int64)


def _leaves(batch: Any) -> list[Any]:
    """Return the integers of all columns of times of a batch, nested ones too, without nulls."""
    import pyarrow as pa

    found, stack = [], list(batch.columns)
    while stack:
        column = stack.pop()
        if _is_struct(column.type):
            stack += column.flatten()
        elif hasattr(column.type, "value_type"):
            stack.append(column.flatten())
        elif pa.types.is_timestamp(column.type):
            found.append(column.drop_null().cast(pa.int64()).to_numpy())
    return found
