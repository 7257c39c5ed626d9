"""Values of adopted records that no writer encodes: samples of tar files and of MDS, and lines.

A sample of a tar file is a dict: `"__key__"` and, by extension, the contents of its members, as WebDataset
gives them.  A schema decodes some of them: text, JSON, images, decimal numbers, `.npy` arrays of NumPy.  A
line is a str, or a dict by the keys of its JSON object; through a schema of the encoding "bytes" it is JSON,
text or bytes as a whole.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from shardio.codecs import (
    MDS_DAMAGE,
    ImageOptions,
    RecordCodec,
    as_list,
    collate,
    mds_column,
    record_codec,
    split_mds_sample,
    with_images,
)
from shardio.errors import CorruptRecordError, FormatError, SchemaError
from shardio.format import Framing, parse_json, parse_npy, read_sample, restored_object
from shardio.metadata import Feature, Schema, mds_layout

# Free metadata of a dataset without a schema whose records are text, as those of adopted lines are.
TEXT_METADATA = {"shardio.records": "text"}
_LIST_DAMAGE = "`shardio verify --decode` lists all such records"
_FOREIGN = {int(Framing.LINES), int(Framing.TAR_SAMPLE)}


def foreign_codec(
    framings: Iterable[int],
    schema: Schema | None,
    *,
    features: Sequence[str] | None,
    images: ImageOptions | None,
) -> RecordCodec | None:
    """Return the codec that framings ask for; None where the schema's encoding says all.

    Raises:
        SchemaError: records of several kinds in one sequence.
    """
    kinds = set(framings)
    if not (kinds & _FOREIGN or _is_mds(schema)):
        return None
    if len(kinds) > 1:
        names = ", ".join(sorted(Framing(kind).name for kind in kinds))
        raise SchemaError(
            f"these shards hold records of several kinds ({names})",
            advice="open one split, or with decode=False for payloads",
        )
    codec: RecordCodec
    if schema is not None and _is_mds(schema):
        codec = MdsCodec(schema)
    else:
        codec = line_codec(schema) if kinds == {int(Framing.LINES)} else TarSampleCodec(schema)
    if features is not None:
        codec.features = tuple(features)
    return with_images(codec, images)


def holds_objects(framings: Iterable[int], schema: Schema | None) -> bool:
    """Return whether some records are not payloads of an encoding, and mean nothing without their framing.

    Those are samples of tar files and MDS, and lines that are read by the keys of their JSON objects.
    """
    kinds = set(framings)
    lines = int(Framing.LINES) in kinds and isinstance(line_codec(schema), ObjectLineCodec)
    return lines or int(Framing.TAR_SAMPLE) in kinds or _is_mds(schema)


def _is_mds(schema: Schema | None) -> bool:
    return schema is not None and mds_layout(schema.encoding) is not None


def value_codec(framings: Iterable[int], schema: Schema | None) -> RecordCodec:
    """Return the codec of records of some framings, with a schema or without.

    Raises:
        SchemaError: records of several kinds, or a schema that cannot read them.
    """
    return foreign_codec(framings, schema, features=None, images=None) or record_codec(schema)


class _ReadOnlyCodec(RecordCodec):
    """A codec of what others wrote; each way of decoding goes through `_value`."""

    def __init__(self, schema: Schema | None) -> None:
        self.schema = schema

    def encode(self, value: Any) -> NoReturn:
        """Refuse: such shards are adopted, not written."""
        del value
        raise TypeError("tar samples and lines are read, not written; write records with a schema instead")

    def decode_many(self, payloads: Any, *, features: Sequence[str] | None = None) -> list[Any]:
        """Return the values of n records."""
        asked = self.features if features is None else tuple(features)
        values = []
        for row, payload in enumerate(as_list(payloads)):
            try:
                values.append(self._value(payload, asked))
            except (SchemaError, FormatError) as error:
                raise error.located(row=row) from error
        return values

    @abstractmethod
    def _value(self, payload: bytes, features: tuple[str, ...] | None) -> Any:
        """Return the value of one record."""


class _DictCodec(_ReadOnlyCodec):
    """Records that are dicts by name; what the schema does not name stays as it is stored.

    Attributes:
        first: the name that every record has, whether asked for or not; None where there is none.
        whole, part: what a record, and an item of it, is called.
    """

    first: ClassVar[str | None] = None
    whole: ClassVar[str]
    part: ClassVar[str]

    def __init__(self, schema: Schema | None) -> None:
        super().__init__(schema)
        features: Mapping[str, Feature] = schema or {}
        self._called = {feature.stored_name or name: name for name, feature in features.items()}

    def decode_batch(self, payloads: Any, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Return columns: those of the schema, and lists of what else there is.

        In lists None stands for what a record lacks.
        """
        records = self.decode_many(payloads, features=features)
        asked = self.features if features is None else tuple(features)
        names: dict[str, None] = {} if self.first is None else {self.first: None}
        if asked is None and self.schema is not None:
            names |= dict.fromkeys(self.schema)
        for record in records if asked is None else ():
            names |= dict.fromkeys(record)
        names |= dict.fromkeys(asked or ())
        return {name: self._column(name, [record.get(name) for record in records]) for name in names}

    def _column(self, name: str, values: list[Any]) -> Any:
        feature = self.schema.get(name) if self.schema is not None else None
        return values if feature is None else collate(name, feature, values)

    def _value(self, payload: bytes, features: tuple[str, ...] | None) -> dict[str, Any]:
        items = self._items(payload)
        schema: Mapping[str, Feature] = {} if self.schema is None else self.schema
        record: dict[str, Any] = {}
        for stored, item in items.items():
            name = self._called.get(stored, stored)
            feature = schema.get(name)
            if features is not None and name not in features and name != self.first:
                continue
            if stored not in self._called:
                # A name that the schema has for something else is not given twice.
                if feature is None:
                    record[name] = item
            elif feature is not None and (item is not None or feature.kind == "json"):
                record[name] = self._item(name, feature, item)
        for name, feature in schema.items():
            if name not in record and (features is None or name in features):
                if not feature.optional:
                    raise self._lacks(name, feature, items)
                record[name] = feature.default
        if features is None:
            return record
        first = () if self.first is None else (self.first,)
        return {name: record[name] for name in (*first, *features) if name in record}

    def _lacks(self, name: str, feature: Feature, items: Mapping[str, Any]) -> SchemaError:
        key = f" {items[self.first]!r}" if self.first is not None else ""
        return SchemaError(
            f"the {self.whole}{key} has no {self.part} {name!r}, which the schema requires",
            found=", ".join(items) or "nothing",
            advice="let records lack it: shardio schema set URL --feature "
            f'\'{name}={{"type": "{feature.short}", "optional": true}}\'',
        )

    @abstractmethod
    def _items(self, payload: bytes) -> Mapping[str, Any]:
        """Return what a record holds, by name."""

    @abstractmethod
    def _item(self, name: str, feature: Feature, item: Any) -> Any:
        """Return an item as the value of a feature; of null None."""


class TarSampleCodec(_DictCodec):
    """Samples of tar files: `{"__key__": str, extension: bytes}`; a schema names what is decoded further."""

    first = "__key__"
    whole, part = "sample", "member"

    def _items(self, payload: bytes) -> dict[str, Any]:
        key, members = read_sample(payload)
        return {"__key__": key, **{name: payload[start:stop] for name, (start, stop) in members.items()}}

    def _item(self, name: str, feature: Feature, item: Any) -> Any:
        return item if isinstance(item, str) else _decode(name, feature, item)


class MdsCodec(_DictCodec):
    """Samples of MDS: `{column: value}` by the features of the schema; other columns are not read."""

    whole, part = "sample", "column"

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self._columns = [mds_column(*column) for column in mds_layout(schema.encoding) or ()]
        self._by_name = {column.name: column for column in self._columns}

    def _items(self, payload: bytes) -> dict[str, bytes]:
        try:
            parts = split_mds_sample(payload, self._columns)
        except MDS_DAMAGE as error:
            raise CorruptRecordError(f"the sample is damaged: {error}", advice=_LIST_DAMAGE) from error
        return {name: part for name, part in zip(self._by_name, parts, strict=True) if name in self._called}

    def _item(self, name: str, feature: Feature, item: bytes) -> Any:
        column = self._by_name[feature.stored_name or name]
        if column.is_stored or (feature.kind in ("bytes", "image") and not feature.shape):
            return _decode(name, feature, item)
        try:
            value = column.decode(item)
        except MDS_DAMAGE as error:
            raise CorruptRecordError(
                f"{name!r} is damaged ({type(error).__name__}: {error})", advice=_LIST_DAMAGE
            ) from error
        if feature.kind == "json" and isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        return feature.restore(feature.fit(value, name))


class ObjectLineCodec(_DictCodec):
    """Lines of JSON whose keys are features; a line that is not an object is `{"value": ...}` of it.

    Objects by which an export stands for what JSON has no word for are such values again, but within json.
    """

    whole, part = "line", "key"

    def _items(self, payload: bytes) -> dict[str, Any]:
        value = _parsed(payload)
        named = isinstance(value, dict) and isinstance(restored_object(value), dict)
        return value if named else {"value": value}

    def _item(self, name: str, feature: Feature, item: Any) -> Any:
        if item is None or feature.kind == "json":
            return item
        if type(item) is str and feature.kind == "text" and not feature.shape and item.isascii():
            return item
        try:
            return feature.restore(feature.fit(_restored(item), name))
        except SchemaError as error:
            takes_all = json.dumps({name: "json"}, ensure_ascii=False)
            raise SchemaError(
                error.what,
                expected=error.expected,
                found=error.found,
                advice=f"take whatever the key holds, by adopting the shards again with schema={takes_all}",
            ) from error


class LineCodec(_ReadOnlyCodec):
    """Lines without their endings: str, or what the one feature of the schema says: JSON, text or bytes."""

    def __init__(self, schema: Schema | None) -> None:
        super().__init__(schema)
        if schema is not None and len(schema) != 1:
            message = f'lines are read whole through one feature, encoding "bytes", not through {schema!r}'
            raise ValueError(message)
        self._name = "text" if schema is None else next(iter(schema))
        self._feature: Feature | None = None if schema is None else schema[self._name]

    def decode_batch(self, payloads: Any, *, features: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the one column, named as the schema's feature, or "text"."""
        return {self._name: self.decode_many(payloads, features=features)}

    def _value(self, payload: bytes, features: tuple[str, ...] | None) -> Any:
        del features
        if self._feature is None:
            return _text(self._name, payload)
        return _decode(self._name, self._feature, payload)


def line_codec(schema: Schema | None) -> RecordCodec:
    """Return what reads lines: whole, or by the keys of their objects.

    Raises:
        ValueError: the schema is that of no lines.
    """
    if schema is None or schema.encoding == "bytes":
        return LineCodec(schema)
    if schema.encoding != "example":
        message = f'lines of JSON are read through a schema of encoding "example", not {schema.encoding!r}'
        raise ValueError(message)
    return ObjectLineCodec(schema)


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        advice = "declare it as bytes in the schema, or open with decode=False"
        raise CorruptRecordError(f"{name!r} is no UTF-8", found=str(error), advice=advice) from error


def _parsed(line: bytes) -> Any:
    try:
        return parse_json(line)
    except (ValueError, RecursionError) as error:
        what = f"the line is not JSON ({error})"
        raise CorruptRecordError(what, advice=_LIST_DAMAGE) from error


def _restored(value: Any) -> Any:
    """Return a value of JSON with what an export could not write otherwise."""
    if isinstance(value, dict):
        return restored_object({name: _restored(item) for name, item in value.items()})
    return [_restored(item) for item in value] if isinstance(value, list) else value


def _decode(name: str, feature: Feature, content: bytes) -> Any:
    """Return what a feature of a schema makes of the contents of a member, or of a line."""
    if feature.kind in ("bytes", "image"):
        return content
    if feature.kind == "text":
        return _text(name, content)
    try:
        if feature.kind == "number":
            return np.asarray(feature.fit(_number(name, feature, content), name))[()]
        return content if feature.rules.decode is None else feature.rules.decode(content)
    except SchemaError:
        raise
    except (ValueError, RecursionError) as error:
        what = f"{name!r} is damaged ({type(error).__name__}: {error})"
        raise CorruptRecordError(what, advice=_LIST_DAMAGE) from error


def _number(name: str, feature: Feature, content: bytes) -> Any:
    """Return the number that text spells, or the array of a `.npy` file; pickles are never loaded."""
    if name.rpartition(".")[2] == "npy":
        return parse_npy(content)
    if feature.shape:
        what = f"{name!r} is text, and the schema wants {feature.short}"
        raise SchemaError(what, advice="only .npy members hold arrays; declare it as text or bytes")
    spelled = content.decode("ascii" if feature.classes is None else "utf-8").strip()
    if feature.classes is not None and spelled in feature.classes:
        return spelled
    return float(spelled) if feature.type.startswith("float") else int(spelled)
