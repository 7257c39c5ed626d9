"""Columns of Arrow as features, and features as columns of Arrow.

A struct becomes features `outer.inner`.  Numbers, text, bytes and lists of them keep their types.  Times
become integers with a unit and decimals become text, also within lists; deeper nesting becomes JSON.

The description that `datasets` of Hugging Face keeps in a schema's metadata is followed: names of classes,
sizes of arrays, and structs of `bytes` and `path` that are files.  Such a file becomes the feature, and its
path becomes the feature `name.path`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from shardio.codecs import arrow_type_of
from shardio.errors import FormatError
from shardio.format import parse_json
from shardio.formats import Unreadable, keep_as
from shardio.metadata import Feature

# A field's metadata: the short string of the feature that was exported as this column, and its classes.
_TYPE_KEY = b"shardio.type"
_CLASSES_KEY = b"shardio.classes"
# A schema's metadata: the description of the columns by `datasets`, as JSON.
_DATASETS_KEY = b"huggingface"
# Paths of lists of files: some may be missing, which a list of text can't hold.
_PATHS = {"_type": "Json"}
_MOST_DESCRIPTION = 1000
# The one table of Arrow's types: by the id of a type the feature that a value becomes, and whether the type
# has a unit, as those of times and decimals do.  Others are lists, structs and the like, or JSON.
_NUMBERS = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_DECIMALS = [getattr(pa, f"decimal{bits}", None) for bits in (32, 64, 128, 256)]
_FEATURES = {
    kind.id: (Feature(name), has_unit)
    for name, has_unit, kinds in (
        *((np.dtype(code).name, False, [pa.from_numpy_dtype(code)]) for code in _NUMBERS),
        ("text", False, [pa.string(), pa.large_string(), pa.string_view()]),
        ("bytes", False, [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1)]),
        ("text", True, [decimal(1, 0) for decimal in _DECIMALS if decimal is not None]),
        ("int32", True, [pa.date32(), pa.time32("s")]),
        ("int64", True, [pa.date64(), pa.time64("us"), pa.timestamp("s"), pa.duration("s")]),
    )
    for kind in kinds
}


class JsonText(str):
    """Text of a column of JSON documents."""

    __slots__ = ()


class NotText(bytes):
    """Bytes in a column of text that are not UTF-8."""

    __slots__ = ()


class Leaf(NamedTuple):
    """A column without structs.

    Attributes:
        name: its name, `outer.inner` within structs.
        field: the Arrow field.
        column: its values.
        node: the description by `datasets`, if any.
        file: name of the column of files that these are the contents or paths of, if any.
        paths: beside contents of files, their paths.
    """

    name: str
    field: Any
    column: Any
    node: Any = None
    file: str | None = None
    paths: Any = None

    @property
    def is_path(self) -> bool:
        """Whether these are paths of files."""
        return self.file is not None and self.paths is None

    @property
    def nullable(self) -> bool:
        """Whether a value may be null by the schema; a struct around it may be."""
        return self.field.nullable or "." in self.name

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes that the column numbers, of shardio's exports and of `datasets`."""
        names = _json_of((self.field.metadata or {}).get(_CLASSES_KEY))
        if names is None and isinstance(self.node, dict) and self.node.get("_type") == "ClassLabel":
            names = self.node.get("names")
        valid = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
        return tuple(names) if valid else None


def take_apart(batch: Any) -> tuple[list[Leaf], dict[str, int]]:
    """Return the columns of a batch without structs, and by name of a struct how many of it are null."""
    nodes = _nodes(batch.schema)
    leaves: list[Leaf] = []
    structs: dict[str, int] = {}
    stack = [*zip(batch.schema.names, batch.schema, batch.columns, strict=True)][::-1]
    while stack:
        name, field, column = stack.pop()
        node, kind = nodes.get(name), _storage_type(column.type)
        if _is_file(kind, node):
            column = _storage(column)
            files = column.flatten() if types.is_list(kind) else column
            inner = files.flatten()
            contents, paths = (inner[files.type.get_field_index(part)] for part in ("bytes", "path"))
            if files is not column:
                contents, paths = _relisted(column, contents), _relisted(column, paths)
            leaves.append(Leaf(name, pa.field(name, contents.type), contents, node, name, paths))
            said = None if files is column else _PATHS
            leaves.append(Leaf(f"{name}.path", pa.field("path", paths.type), paths, said, name))
        elif types.is_struct(kind) and kind.num_fields:
            # A struct without fields is JSON, or it would vanish.
            column = _storage(column)
            structs[name] = structs.get(name, 0) + column.null_count
            parts = zip(kind, column.flatten(), strict=True)
            stack += [(f"{name}.{part.name}", part, values) for part, values in parts][::-1]
        else:
            leaves.append(Leaf(name, field, column, node))
    return leaves, structs


def with_names(schema: Any) -> Any:
    """Return a schema of which each column has a name."""
    names, taken = list(schema.names), set(schema.names)
    for number, name in enumerate(names):
        if not name:
            names[number] = f"column{number}"
            while names[number] in taken:
                names[number] += "_"
            taken.add(names[number])
    return pa.schema(
        [field.with_name(name) for field, name in zip(schema, names, strict=True)], schema.metadata
    )


def _is_file(kind: Any, node: Any) -> bool:
    """Tell whether a column is files, or lists of files, as `datasets` stores `Image`, `Audio` and others."""
    kind = kind.value_type if types.is_list(kind) else kind
    return isinstance(node, dict) and types.is_struct(kind) and sorted(kind.names) == ["bytes", "path"]


def _relisted(lists: Any, items: Any) -> Any:
    """Return lists of other items: those of all lists behind one another."""
    gone = np.append(~_valid(lists), False)
    return pa.ListArray.from_arrays(pa.array(_ends(lists), pa.int32(), mask=gone), items)


def _ends(lists: Any) -> Any:
    """Return where each list begins in the items of all, and the end of the last."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _valid(column: Any) -> Any:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _items_of(column: Any) -> Any:
    """Return the items of all lists of a column; other columns as they are."""
    return column.flatten() if types.is_list(column.type) else column


def _is_all_null(column: Any) -> bool:
    items = _items_of(column)
    return bool(items.null_count == len(items))


class Facts(NamedTuple):
    """Names of columns that may hold nulls, or negative numbers, and of paths that are all missing."""

    nulls: set[str]
    negative: set[str]
    unused: set[str]


def footer_facts(metadata: Any, leaves: Sequence[Leaf]) -> Facts:
    """Return what the statistics of a Parquet footer show; without them anything is possible."""
    bits: dict[Any, int] = {}
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for number in range(metadata.num_columns):
            chunk = row_group.column(number)
            told = chunk.statistics
            counted = told is not None and told.has_null_count
            least = told.min if told is not None and told.has_min_max else -1
            null = not counted or told.null_count > 0
            negative = isinstance(least, int) and least < 0
            used = not counted or told.null_count < chunk.num_values
            parts = chunk.path_in_schema.split(".")
            for stop in range(1, len(parts) + 1):
                path = ".".join(parts[:stop])
                for place in (path, (path, parts[-1])):
                    bits[place] = bits.get(place, 0) | null | negative << 1 | used << 2
    found = Facts(set(), set(), set())
    for leaf in leaves:
        # Of lists of files the group in the middle has a name that writers choose.
        key: Any = leaf.name
        listed = leaf.file is not None and types.is_list(leaf.field.type)
        if leaf.file is not None and not (listed and not leaf.is_path):
            key = (leaf.file, "path" if leaf.is_path else "bytes")
        seen = bits.get(key, 7 if metadata.num_row_groups else 0)
        if (seen & 1 and leaf.nullable) or (listed and leaf.is_path):
            found.nulls.add(leaf.name)
        if seen & 2:
            found.negative.add(leaf.name)
        if leaf.is_path and not seen & 4:
            found.unused.add(leaf.name)
    return found


def table_facts(table: Any, schema: Any) -> Facts:
    """Return what the values of a table show; of a file by its path `datasets` reads the contents."""
    found = Facts(set(), set(), set())
    paths: set[str] = set()
    used: set[str] = set()
    for batch in table.to_batches():
        for leaf in take_apart(batch.replace_schema_metadata(schema.metadata))[0]:
            column, listed = leaf.column, leaf.file is not None and types.is_list(leaf.column.type)
            lacking = bool(column.null_count)
            if leaf.paths is not None:
                both = pc.and_(_items_of(column).is_null(), _items_of(leaf.paths).is_null())
                lacking = bool(pc.any(both).as_py()) or (listed and lacking)
            if lacking or (listed and leaf.is_path):
                found.nulls.add(leaf.name)
            if leaf.classes is not None and not (types.is_integer(column.type) and _least(column) >= 0):
                found.negative.add(leaf.name)
            if leaf.is_path:
                paths.add(leaf.name)
                used |= set() if _is_all_null(column) else {leaf.name}
    found.unused.update(paths - used)
    return found


def _least(column: Any) -> int:
    least = pc.min(column).as_py()
    return 0 if least is None else least


def text_bytes(batch: Any) -> Any:
    """Return how many bytes the dictionary-encoded texts in each row of a batch take, int64."""

    def sizes(column: Any) -> Any:
        if types.is_dictionary(column.type):
            lengths = pc.binary_length(column.dictionary).take(column.indices).fill_null(0)
            return lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        if types.is_struct(column.type):
            return sum(map(sizes, column.flatten()), np.zeros(len(column), np.int64))
        if hasattr(column.type, "value_type"):
            return np.diff(np.concatenate([[0], np.cumsum(sizes(column.flatten()))])[_ends(column)])
        return np.zeros(len(column), np.int64)

    return sum(map(sizes, batch.columns), np.zeros(batch.num_rows, np.int64))


def times_of(batch: Any) -> list[Any]:
    """Return the integers of all columns of times of a batch, nested ones too, without nulls."""
    found, stack = [], list(batch.columns)
    while stack:
        column = stack.pop()
        if types.is_timestamp(column.type):
            found.append(column.drop_null().cast(pa.int64()).to_numpy())
        elif types.is_nested(column.type):
            inner = column.flatten()
            stack += inner if isinstance(inner, list) else [inner]
    return found


class Head(NamedTuple):
    """What is known of a file before its rows are read.

    Attributes:
        url: which it is.
        schema: the Arrow schema.
        leaves, structs: its columns, and the names of its structs.
        facts: about its values.
    """

    url: str
    schema: Any
    leaves: list[Leaf]
    structs: frozenset[str]
    facts: Facts

    @classmethod
    def from_schema(cls, url: str, schema: Any, facts: Facts | None = None, footer: Any = None) -> Head:
        """Return the head of a file with this schema; without facts or a Parquet footer all are possible."""
        empty = [pa.nulls(0, field.type) for field in schema]
        leaves, structs = take_apart(pa.RecordBatch.from_arrays(empty, schema=schema))
        if facts is None and footer is not None:
            facts = footer_facts(footer, leaves)
        elif facts is None:
            facts = Facts(
                {leaf.name for leaf in leaves if leaf.nullable}, {leaf.name for leaf in leaves}, set()
            )
        return cls(url, schema, leaves, frozenset(structs), facts)


class United(NamedTuple):
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


def unite(heads: Sequence[Head]) -> United:
    """Return the columns of all files, each of the one type that holds it everywhere.

    Types are unified as `pyarrow.unify_schemas(promote_options="permissive")` does. A column that some files
    do not have, or have without values, is optional.
    """
    united = United({}, {}, [])
    unused = set[str].intersection(*(head.facts.unused for head in heads)) if heads else set()
    structs = {name: head.url for head in reversed(heads) for name in head.structs}
    columns: dict[str, list[tuple[Leaf, Head]]] = {}
    names = {head.url: {leaf.name for leaf in head.leaves} for head in heads}
    for head in heads:
        for leaf in head.leaves:
            if leaf.name in structs and types.is_null(leaf.field.type):
                united.casts.setdefault(head.url, {})[leaf.name] = None
            elif leaf.name not in unused:
                columns.setdefault(leaf.name, []).append((leaf, head))
    for name, column in columns.items():
        holders = {head.url for _, head in column}
        lacking = [url for url, others in names.items() if url not in holders and name not in others]
        feature = _united(name, column, structs.get(name), united, optional=bool(lacking))
        united.features[name] = feature
        if lacking and isinstance(feature, Feature):
            united.notes.append(
                f"column {name!r} is missing in {len(lacking)} of {len(heads)} files (first {lacking[0]}): "
                "its values are missing there"
            )
    return united


def _united(
    name: str, column: Sequence[tuple[Leaf, Head]], struct: str | None, united: United, *, optional: bool
) -> Feature | Unreadable:
    """Return the feature of a column in all files that have it, and note in which it is cast."""
    urls = [head.url for _, head in column]
    twice = next((url for url, after in pairwise(urls) if url == after), None)
    if twice is not None:
        return Unreadable(f"two columns of {twice} are called {name!r}")
    forms: dict[Any, tuple[Leaf, str]] = {}
    for leaf, head in column:
        said = ((leaf.field.metadata or {}).get(_TYPE_KEY), leaf.classes, repr(leaf.node))
        forms.setdefault((leaf.field.type, *said), (leaf, head.url))
    (first, url), *others = forms.values()
    if struct is not None and struct not in urls:
        return _differs(name, f"{first.field.type} in {url}", f"a struct in {struct}", keep=None)
    optional = optional or any(name in head.facts.nulls for _, head in column)
    features: list[Feature] = []
    for leaf, _ in forms.values():
        found = feature_of(leaf, optional=optional)
        if isinstance(found, Unreadable):
            return found
        features.append(found)
    kind = first.field.type
    for leaf, other in others:
        both = _unified(kind, leaf.field.type)
        if both is None:
            sides = (f"{leaf.field.type} in {where}" for leaf, where in ((first, url), (leaf, other)))
            return _differs(name, *sides, keep="json")
        kind = both
        if leaf.classes != first.classes:
            sides = (f"{len(leaf.classes or ())} in {where}" for leaf, where in ((first, url), (leaf, other)))
            what = f"column {name!r} does not name the same classes in all files: {', '.join(sides)}"
            return Unreadable(what, features[0].short)
    feature: Feature | Unreadable = features[0]
    if len(set(features)) > 1:
        feature = feature_of(Leaf(name, pa.field(name, kind), None), optional=optional)
        if isinstance(feature, Feature) and all(each.kind == "image" for each in features):
            feature = Feature("image", shape=feature.shape, optional=optional)
    if isinstance(feature, Feature) and len({leaf.field.type for leaf, _ in forms.values()}) > 1:
        _note_casts(name, column, kind, united)
        told = [(leaf, where) for leaf, where in forms.values() if not types.is_null(leaf.field.type)]
        if len({(_feature(leaf.field.type), _unit_of(leaf.field.type)) for leaf, _ in told}) > 1:
            shown = ", ".join(f"{leaf.field.type} in {where}" for leaf, where in told[:3])
            unit = f" ({feature.unit})" if feature.unit else ""
            united.notes.append(f"column {name!r} is {shown}: it is {feature.short}{unit}")
    if isinstance(feature, Feature) and first.classes is not None:
        negative = any(name in head.facts.negative for _, head in column)
        return _labelled(name, feature, first.classes, negative=negative)
    return feature


def _note_casts(name: str, column: Sequence[tuple[Leaf, Head]], kind: Any, united: United) -> None:
    """Note in which files a column is cast; numbers fit features exactly, one by one."""
    inner = kind
    while hasattr(inner, "value_type"):
        inner = inner.value_type
    if not _is_number(inner):
        for leaf, head in column:
            if leaf.field.type != kind:
                united.casts.setdefault(head.url, {})[name] = kind


def _labelled(
    name: str, feature: Feature, classes: tuple[str, ...], *, negative: bool
) -> Feature | Unreadable:
    """Return the feature of a column of labels; -1 is the label of a record without one."""
    if feature.kind != "number":
        return feature
    try:
        named = feature.replace(classes=classes)
        if not feature.shape and (negative or feature.optional) and not feature.type.startswith("u"):
            named = named.replace(default=-1)
    except ValueError as error:
        return Unreadable(f"column {name!r} names classes that no feature can have: {error}", feature.short)
    return named


def _differs(name: str, one: str, other: str, *, keep: str | None) -> Unreadable:
    # JSON holds no bytes.
    keep = None if "binary" in one + other else keep
    return Unreadable(f"column {name!r} is not the same in all files: {one}, {other}", keep)


def _unified(one: Any, other: Any) -> Any:
    """Return the Arrow type that holds the values of both; None where none does."""
    schemas = [pa.schema([("x", _mapped(kind, _common))]) for kind in (one, other)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


# ------------------------------------------------------------------ types


def _storage_type(kind: Any) -> Any:
    """Return the type that an extension type is stored as."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind


def _storage(column: Any) -> Any:
    while isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    return column


def _is_view(kind: Any) -> bool:
    return bool(types.is_list_view(kind) or types.is_large_list_view(kind))


def _mapped(kind: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return a type without Arrow's finer distinctions, and with other types for what it holds.

    Raises:
        ValueError: no cast of Arrow's leads there.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return pa.bool_() if kind.extension_name == "arrow.bool8" else _mapped(kind.storage_type, leaf)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _mapped(kind.value_type, leaf)
    if types.is_map(kind):
        return pa.map_(_mapped(kind.key_type, leaf), _mapped(kind.item_type, leaf))
    if hasattr(kind, "value_type"):
        if _is_view(kind.value_type):
            raise ValueError("views of lists within other types")
        inner = _mapped(kind.value_type, leaf)
        return pa.list_(inner, kind.list_size) if types.is_fixed_size_list(kind) else pa.list_(inner)
    if types.is_struct(kind):
        name, count = max(Counter(kind.names).items(), key=lambda each: each[1], default=("", 0))
        if count > 1:
            raise ValueError(f"two of its fields are called {name!r}")
        if any(_is_view(part.type) for part in kind):
            raise ValueError("views of lists within other types")
        return pa.struct([pa.field(part.name, _mapped(part.type, leaf)) for part in kind])
    return leaf(kind)


def _common(kind: Any) -> Any:
    """Return a type without what does not matter to its values: layouts of text and bytes, time zones."""
    if types.is_timestamp(kind):
        # Times with any zone are stored in UTC.
        return pa.timestamp(kind.unit, "UTC" if kind.tz else None)
    return kind if _has_unit(kind) else _plain(kind)


def _plain(kind: Any) -> Any:
    """Return the type of what features hold: times are integers, decimals text."""
    return arrow_type_of(_FEATURES[kind.id][0]) if kind.id in _FEATURES else kind


def _unit_of(kind: Any) -> str:
    """Return the type of times and decimals, as Arrow writes it; of documents that hold some their type."""
    leaf = _mapped(kind, _common)
    while types.is_list(leaf) or types.is_fixed_size_list(leaf):
        leaf = leaf.value_type
    if _has_unit(leaf):
        return str(leaf)
    return str(kind)[:_MOST_DESCRIPTION] if _holds(leaf, _has_unit) else ""


def _has_unit(kind: Any) -> bool:
    return kind.id in _FEATURES and _FEATURES[kind.id][1]


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _holds(kind: Any, check: Callable[[Any], bool]) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return check(kind) or any(_holds(each, check) for each in inner)


@lru_cache(maxsize=4096)
def _feature(kind: Any) -> Feature | Unreadable:
    """Return the feature that values of a type become, or why they can become none."""
    layout = _tensor_layout(kind)
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json":
        return Feature("json")
    try:
        plain = _mapped(kind, _plain)
        _unwrapped(pa.nulls(0, kind)).cast(plain)
    except (pa.ArrowException, TypeError, ValueError) as error:
        return Unreadable(f"is of the type {kind}, which cannot be read ({error!s:.200})")
    shape: list[int | None] = []
    while types.is_list(plain) or types.is_fixed_size_list(plain):
        shape.append(plain.list_size or None if types.is_fixed_size_list(plain) else None)
        plain = plain.value_type
    feature, _ = _FEATURES.get(plain.id, (None, False))
    if feature is None or (feature.kind != "number" and len(shape) > 1):
        if _holds(plain, types.is_binary):
            return Unreadable(f"is of the type {kind}: no feature holds bytes so deep")
        return Feature("json")
    return feature.replace(
        shape=tuple(shape) if layout is None else tuple(layout[0][axis] for axis in layout[1])
    )


def feature_of(leaf: Leaf, *, optional: bool) -> Feature | Unreadable:
    """Return the feature that a column becomes, or why it can become none."""
    found = _feature(leaf.field.type)
    if isinstance(found, Unreadable):
        return Unreadable(f"column {leaf.name!r} {found.reason}", found.keep)
    short = (leaf.field.metadata or {}).get(_TYPE_KEY)
    try:
        # The feature that an export of shardio's wrote down beside the column.
        declared = found if short is None else Feature(short.decode())
        found = declared if _feature(arrow_type_of(declared)) == found else found
    except (ValueError, UnicodeDecodeError):
        pass
    node = leaf.node if isinstance(leaf.node, dict) else {}
    if leaf.node is _PATHS:
        found = Feature("json")
    if node.get("_type") == "Image" and found.type == "bytes" and len(found.shape) < 2:
        found = Feature("image", shape=found.shape)
    sizes = node.get("shape") if str(node.get("_type")).startswith("Array") else None
    if isinstance(sizes, list | tuple) and found.shape == (None,) * len(sizes):
        found = Feature(found.type, shape=tuple(sizes))
    return Feature(found.type, shape=found.shape, optional=optional, unit=_unit_of(leaf.field.type))


def _tensor_layout(kind: Any) -> tuple[list[int], list[int]] | None:
    """Return the shape in which tensors of fixed shape lie in flat lists, and the order of its axes."""
    if not isinstance(kind, pa.BaseExtensionType) or kind.extension_name != "arrow.fixed_shape_tensor":
        return None
    return kind.shape, kind.permutation or list(range(len(kind.shape)))


# ------------------------------------------------------------------ values


def rows_of(
    batch: Any, missing: Counter[tuple[str, str]], casts: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch as values by feature; columns whose names come twice are not among them.

    Args:
        batch: of records.
        missing: to count nulls in that have no place, by column and what they become.
        casts: see `United`.

    Raises:
        FormatError: a value is not one of the type that a column has in all files.
    """
    leaves, structs = take_apart(batch)
    for name, count in structs.items():
        missing[name, "structs that are null: each becomes fields that are null"] += count
    counts = Counter(leaf.name for leaf in leaves)
    columns: dict[str, list[Any]] = {}
    for leaf in leaves:
        name, column = leaf.name, leaf.column
        skipped = counts[name] > 1 or casts.get(name, leaf) is None
        if skipped or (leaf.is_path and _is_all_null(column)):
            continue
        kind = casts.get(name)
        if kind is not None:
            column = _cast(name, column, kind)
        feature = feature_of(
            leaf if kind is None else Leaf(name, pa.field(name, kind), column), optional=True
        )
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
    try:
        return _unwrapped(column).cast(kind)
    except pa.ArrowException as error:
        raise FormatError(
            f"column {name!r} is {kind} in all files together, and a value here does not fit ({error})",
            advice=f"leave the column out with {keep_as(name, None)}, or convert such files apart",
        ) from error


def _unwrapped(column: Any) -> Any:
    """Return a column without what pyarrow's cast does not take: extensions, views of lists, and runs.

    It gives arrays without their last lists for views (seen in 26.0).
    """
    column = _storage(column)
    if _is_view(column.type):
        column = pa.array(_items(column), pa.list_(column.type.value_type))
    return pc.run_end_decode(column) if types.is_run_end_encoded(column.type) else column


def _nulls_inside(column: Any) -> int:
    """Return how many items of lists are null."""
    column = _unwrapped(column)
    if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
        return 0
    inner = column.flatten()
    return int(inner.null_count) + _nulls_inside(inner)


def _values(column: Any, feature: Feature) -> list[Any]:
    layout, plain = _tensor_layout(column.type), _mapped(column.type, _plain)
    column = _unwrapped(column)
    column = column if column.type == plain else column.cast(plain)
    if feature.kind == "json" and types.is_string(plain):
        return [JsonText(value) if isinstance(value, str) else value for value in _items(column)]
    rows = _arrays(column) if feature.kind == "number" else None
    values: list[Any] = _items(column) if rows is None else list(rows)
    if layout is not None:
        shape, axes = layout
        return [None if value is None else np.reshape(value, shape).transpose(axes) for value in values]
    return values


def _items(column: Any) -> list[Any]:
    """Return the values of a column; text that is not UTF-8 as `NotText`."""
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        as_bytes = _mapped(column.type, lambda kind: pa.binary() if types.is_string(kind) else kind)
        found = [_text_of(value) for value in column.cast(as_bytes).to_pylist()]
    return found


def _text_of(value: Any) -> Any:
    """Return a value with its text decoded; names of the fields of structs are text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return NotText(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_text_of, value))
    return {name: _text_of(item) for name, item in value.items()} if isinstance(value, dict) else value


def _arrays(column: Any, *, inside: bool = False) -> Any:
    """Return numbers and lists of them as NumPy's, with every bit: an array, or a list with None for nulls.

    Floats that are null `inside` a list are NaN, as pandas writes them.  None where a list lacks another
    item, holds something else, or lists of several lengths: these are documents.
    """
    kind, there = column.type, _valid(column)
    if _is_number(kind):
        numbers = (column if there.all() else column.fill_null(0)).to_numpy(zero_copy_only=False)
        if there.all():
            return numbers
        if inside and types.is_floating(kind):
            return np.where(there, numbers, numbers.dtype.type(np.nan))
        return [number if valid else None for number, valid in zip(numbers, there, strict=True)]
    fixed = types.is_fixed_size_list(kind)
    if not (fixed or types.is_list(kind)):
        return None
    inner = _arrays(column.flatten(), inside=True)
    if inner is None or (isinstance(inner, list) and any(item is None for item in inner)):
        return None
    if fixed and there.all() and isinstance(inner, np.ndarray):
        return inner.reshape(len(column), kind.list_size, *inner.shape[1:])
    rows = [inner[start:stop] for start, stop in pairwise(_ends(column).tolist())]
    if isinstance(inner, list):
        if any(len({each.shape for each in row}) > 1 for row in rows):
            return None
        rows = [np.stack(row) if row else row for row in rows]
    return [row if valid else None for row, valid in zip(rows, there.tolist(), strict=True)]


# ------------------------------------------------------------------ `datasets`


def described_features(schema: Any) -> dict[str, Any]:
    """Return the description of the columns by `datasets`.

    Source: `Features.from_arrow_schema` of https://github.com/huggingface/datasets.
    """
    found = _json_of((schema.metadata or {}).get(_DATASETS_KEY))
    for key in ("info", "features"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _nodes(schema: Any) -> dict[str, Any]:
    """Return the descriptions of columns by `datasets`, structs and lists taken apart, by column."""
    found: dict[str, Any] = {}
    stack = list(described_features(schema).items())
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


def in_units_of(node: Any, kind: Any) -> Any:
    """Return a description by `datasets` with the units that times have in a file.

    Parquet has no seconds and no `date64`: `datasets` stores milliseconds and days there, and still says
    `timestamp[s]` and `date64`.

    Args:
        node: as `hf_json` returns it.
        kind: Arrow's type of the column.
    """
    kind = _storage_type(kind)
    if not isinstance(node, dict):
        return node
    if not isinstance(node.get("_type"), str):
        types_of = {part.name: part.type for part in kind} if types.is_struct(kind) else {}
        return {part: in_units_of(inner, types_of.get(part)) for part, inner in node.items()}
    if "feature" in node:
        return {**node, "feature": in_units_of(node["feature"], getattr(kind, "value_type", None))}
    if kind is None or not types.is_temporal(kind) or node["_type"] != "Value":
        return node
    return {**node, "dtype": f"date{kind.bit_width}" if types.is_date(kind) else str(kind)}


@lru_cache(maxsize=64)
def _json_of(data: bytes | None) -> Any:
    try:
        return None if data is None else parse_json(data)
    except ValueError:
        return None


# ------------------------------------------------------------------ exports


def arrow_schema(features: Mapping[str, Feature]) -> Any:
    """Return the Arrow schema that features are exported as; `datasets` finds the classes of labels in it.

    Raises:
        ValueError: complex numbers, which Arrow does not have.
    """
    labels = {
        name: {"names": list(feature.classes or ()), "_type": "ClassLabel"}
        for name, feature in features.items()
        if _is_class_label(feature)
    }
    described = json.dumps({"info": {"features": labels}}, ensure_ascii=False).encode()
    fields = []
    for name, feature in features.items():
        if feature.type.startswith("complex"):
            raise ValueError(f"feature {name!r}: Arrow has no type for {feature.type}")
        # A bfloat16 is a float32 to Arrow, and stays one: it loses nothing.
        metadata = {} if feature.type == "bfloat16" else {_TYPE_KEY: feature.short.encode()}
        if feature.classes is not None:
            metadata[_CLASSES_KEY] = json.dumps(feature.classes, ensure_ascii=False).encode()
        # `datasets` takes a column for labels only where it may be null.
        nullable = feature.optional or _is_class_label(feature)
        fields.append(pa.field(name, arrow_type_of(feature), nullable=nullable, metadata=metadata or None))
    return pa.schema(fields, {_DATASETS_KEY: described} if labels else None)


def _is_class_label(feature: Feature) -> bool:
    """Tell whether `datasets` has the same type: one int64."""
    return feature.classes is not None and feature.type == "int64" and not feature.shape
