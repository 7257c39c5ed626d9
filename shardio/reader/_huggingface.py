"""Records as a `datasets.Dataset` of Hugging Face, and what a feature is called there.

A feature of `datasets` is described by the JSON that its `Features.to_dict` returns.  Of columns that a
schema of shardio's does not describe whole, such as rates of audio and types of times, conversions keep that
JSON in the dataset's metadata; names of classes stay in the schema alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardio.arguments import need
from shardio.codecs import need_pyarrow
from shardio.format import parse_json
from shardio.metadata import Feature, Schema
from shardio.reader._columns import choose_columns, read_columns

HF_METADATA = "huggingface"  # key of the dataset's metadata
_MOST_SIZES = 5  # of `Array5D`, the last of its kind


def hf_feature(feature: Feature) -> dict[str, Any]:
    """Return what a feature is for `datasets`, as JSON."""
    found: dict[str, Any]
    if feature.classes is not None:
        found = {"names": list(feature.classes), "_type": "ClassLabel"}
    elif feature.kind == "image":
        found = {"_type": "Image"}
    elif feature.kind == "json":
        found = {"_type": "Json"}
    else:
        named = {"bytes": "binary", "text": "string", "bfloat16": "float32"}
        name = "binary" if feature.kind == "tensor" else named.get(feature.type, feature.type)
        found = {"dtype": name, "_type": "Value"}
    sizes = feature.shape
    if found["_type"] == "Value" and 1 < len(sizes) <= _MOST_SIZES and None not in sizes[1:]:
        return {"shape": list(sizes), "dtype": found["dtype"], "_type": f"Array{len(sizes)}D"}
    for size in reversed(sizes):
        found = {"feature": found, **({} if size is None else {"length": size}), "_type": "List"}
    return found


def hf_json(node: Any) -> Any:
    """Return the JSON of a feature in one form for all versions of `datasets`."""
    if isinstance(node, list):
        return {"feature": hf_json(node[0]), "_type": "List"} if len(node) == 1 else node
    if not isinstance(node, dict):
        return node
    kind = node.get("_type")
    if not isinstance(kind, str):
        return {name: hf_json(inner) for name, inner in node.items()}
    if kind == "Sequence":
        inner = node.get("feature")
        if isinstance(inner, dict) and not isinstance(inner.get("_type"), str):
            return {name: hf_json({**node, "feature": each}) for name, each in inner.items()}
        kind = "List"
    found = {
        name: value
        for name, value in node.items()
        if value is not None and (name, value) not in (("decode", True), ("length", -1))
    }
    for name in ("id", "feature", "_type", "num_classes"):
        found.pop(name, None)
    if "shape" in found:
        found["shape"] = list(found["shape"])
    inside = {"feature": hf_json(node["feature"])} if "feature" in node else {}
    return {**inside, **found, "_type": kind}


def without_names(node: Any, name: str, known: Mapping[str, Any]) -> Any:
    """Return the JSON of a feature without the names of classes that the schema has.

    Args:
        node: as `hf_json` returns it.
        name: of its column, or columns.
        known: features of the schema.
    """
    if not isinstance(node, dict):
        return node
    if node.get("_type") == "ClassLabel":
        named = getattr(known.get(name), "classes", None) is not None
        return {key: inner for key, inner in node.items() if key != "names" or not named}
    return _inside(node, name, lambda inner, at: without_names(inner, at, known))


def _with_names(node: Any, name: str, known: Mapping[str, Feature]) -> Any:
    """Return what `without_names` was given, with the names that the classes have now."""
    if not isinstance(node, dict):
        return node
    if node.get("_type") == "ClassLabel" and "names" not in node:
        return {**node, "names": list(known[name].classes or ())}
    return _inside(node, name, lambda inner, at: _with_names(inner, at, known))


def _inside(node: dict[str, Any], name: str, change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Return the JSON of a feature, changed where it holds those of other features."""
    if isinstance(node.get("_type"), str):
        return {**node, "feature": change(node["feature"], name)} if "feature" in node else node
    return {part: change(inner, f"{name}.{part}") for part, inner in node.items()}


def to_hf_dataset(records: Any, names: Sequence[str] | None, *, split: str | None, kept: Any) -> Any:
    """Return records as a `datasets.Dataset` in memory.

    Args:
        records: a reader.
        names: of features; None for those of the reader.
        split: that the records belong to, or None.
        kept: what conversions wrote under `HF_METADATA`.

    Raises:
        ImportError: `datasets` or pyarrow is not installed.
        ValueError, TypeError: there are no such features, no schema, or a feature of complex numbers.
        FormatError, NotFoundError, StorageError: with the address of the table or record.
    """
    need("to_hf", "shardio[hf]", "datasets", "pyarrow")
    import datasets
    import pyarrow as pa
    from datasets.table import InMemoryTable

    schema: Schema = records.schema
    if names is None:
        names = records.source.options.features or tuple(schema or ())
    columns = choose_columns(schema, names, what="to_hf")
    table = read_columns(records, columns, positions=False, warn=False)
    known = {column.name: column.feature for column in columns if not column.derived}
    wanted = _features(datasets, kept if isinstance(kept, dict) else {}, known, table.column_names)
    target = wanted.arrow_schema
    batches = [
        pa.record_batch(
            [_column(pa, batch, field.name, field.type, known)[0] for field in target], schema=target
        )
        for batch in table.to_batches()
    ]
    whole = InMemoryTable(pa.Table.from_batches(batches, schema=target))
    info = datasets.DatasetInfo(features=wanted)
    return datasets.Dataset(whole, info=info, split=None if split is None else datasets.NamedSplit(split))


def hf_features(records: Any) -> Any:
    """Return the `datasets.Features` of a reader's values, a feature for each of its own."""
    need("to_hf", "shardio[hf]", "datasets", "pyarrow")
    import datasets

    return datasets.Features.from_dict({name: hf_feature(each) for name, each in records.features.items()})


def _features(
    datasets: Any, kept: Mapping[str, Any], known: Mapping[str, Feature], names: Sequence[str]
) -> Any:
    """Return the features that columns become: those that were kept where all of one is there, in order."""
    pa = need_pyarrow("to_hf")
    images = [name for name, feature in known.items() if feature.kind == "image" and f"{name}.path" in known]
    kept = {**{name: hf_feature(known[name]) for name in images}, **kept}
    found: dict[str, Any] = {}
    taken: set[str] = set()
    for name in names:
        if name in taken:
            continue
        top = next((each for each in kept if name == each or name.startswith(f"{each}.")), None)
        if top is not None and top not in found:
            parts = [each for each in names if each == top or each.startswith(f"{top}.")]
            feature: Any = {}
            try:
                feature = datasets.Features.from_dict({top: _with_names(kept[top], top, known)})
                empty = pa.record_batch({each: pa.array([], _type_of(known[each])) for each in parts})
                _, used = _column(pa, empty, top, feature.arrow_schema.field(top).type, known)
            except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException):
                # Another schema has been set since, or another version of `datasets` described it.
                used = set()
            if used == set(parts):
                found[top] = feature[top]
                taken |= used
                continue
        default = {"dtype": "int64", "_type": "Value"} if name not in known else hf_feature(known[name])
        found[name] = datasets.Features.from_dict({name: default})[name]
    return datasets.Features(found)


def _type_of(feature: Feature) -> Any:
    from shardio.codecs import arrow_type_of

    return arrow_type_of(feature)


def _column(pa: Any, batch: Any, name: str, kind: Any, known: Mapping[str, Feature]) -> tuple[Any, set[str]]:
    """Return the array of a column of `datasets`, and the names of the columns that it is made of.

    Raises:
        KeyError: one of them is not there.
        pyarrow.ArrowException: one of them is of another type.
    """
    names = batch.schema.names
    if name in names and _is_file(pa, kind):
        paths = batch.column(f"{name}.path") if f"{name}.path" in names else None
        used = {name} if paths is None else {name, f"{name}.path"}
        return _files(pa, batch.column(name), paths, kind), used
    if name in names:
        return _cast(pa, batch.column(name), kind, known.get(name)), {name}
    if not pa.types.is_struct(kind):
        raise KeyError(name)
    fields = [kind.field(number) for number in range(kind.num_fields)]
    parts = [_column(pa, batch, f"{name}.{field.name}", field.type, known) for field in fields]
    arrays = [array for array, _ in parts]
    return pa.StructArray.from_arrays(arrays, fields=fields), set().union(*(used for _, used in parts))


def _is_file(pa: Any, kind: Any) -> bool:
    """Tell whether a type is that of `Image` and `Audio`, or of a list of them."""
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if not pa.types.is_struct(kind):
        return False
    return sorted(kind.field(number).name for number in range(kind.num_fields)) == ["bytes", "path"]


def _files(pa: Any, contents: Any, paths: Any, kind: Any) -> Any:
    if not pa.types.is_struct(kind):
        given = contents.to_pylist()
        named = [None] * len(given) if paths is None else paths.to_pylist()
        # Some of a list may have no path: conversions keep lists of paths as JSON.
        named = [parse_json(each.encode()) if isinstance(each, str) else each for each in named]
        rows = [
            None
            if row is None
            else [
                {"bytes": data, "path": path}
                for data, path in zip(row, row_paths or [None] * len(row), strict=True)
            ]
            for row, row_paths in zip(given, named, strict=True)
        ]
        return pa.array(rows, kind)
    import pyarrow.compute as pc

    if paths is None:
        paths = pa.nulls(len(contents), pa.string())
    values = {"bytes": contents, "path": paths}
    fields = [kind.field(number) for number in range(kind.num_fields)]
    missing = pc.and_(contents.is_null(), paths.is_null())
    return pa.StructArray.from_arrays(
        [values[field.name].cast(field.type) for field in fields], fields=fields, mask=missing
    )


def _cast(pa: Any, array: Any, kind: Any, feature: Feature | None) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        storage = _cast(pa, array, kind.storage_type, feature)
        return pa.ExtensionArray.from_storage(kind, storage)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if feature is not None and feature.kind == "json" and not text:
        values = [None if text is None else parse_json(text.encode()) for text in array.to_pylist()]
        return pa.array(values, kind)
    return array.cast(kind)
