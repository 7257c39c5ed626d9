"""The schema that a source is converted with: what is declared, else what a look at some records shows.

Inference loses nothing: integers become int64, floating-point numbers float64, text stays text.  Where values
of one feature contradict each other it is refused, with both sides and the way to say what is meant.
Payloads that are Examples are inferred by `codecs.infer_schema`, as adoption does; both agree on
what both can hold.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from shardio.codecs import InferenceReport, decode_mds_sample, infer_schema, mds_columns
from shardio.convert._images import IMAGE_TYPES
from shardio.convert._jsonl import JsonLines
from shardio.convert._source import (
    INT64_LIMIT,
    ForeignSource,
    Piece,
    Sample,
    SourceOptions,
    Unreadable,
    keep_as,
    shown_json,
)
from shardio.convert._tfrecord import ShardioDataset
from shardio.convert._units import TimeUnit
from shardio.convert._webdataset import INTEGER_ENDINGS, WebDataset
from shardio.errors import CorruptRecordError, FormatError, SchemaError, ShardioError, StorageError
from shardio.format import Framing
from shardio.metadata import ANNOTATIONS, Feature, Schema, check_name, image_type, mds_encoding
from shardio.reader import value_codec

SKIP = 'on_error="skip" leaves such records out'
# Types that take more values than others do, the most telling first.
_WIDER = ("int64", "float64", "json", "bytes")

_IMAGES = frozenset({"jpeg", "png", "webp", "tiff", "image"})

# A schema is inferred of so many records in so many places; of a source below `SMALL_BYTES` in more places.
LOOK_AT = 1000
_LOOK_AT_BYTES = 64 << 20
_PLACES = 8
SMALL_BYTES = 16 << 20


class Resolved(NamedTuple):
    """What a source is converted with.

    Attributes:
        schema: of the records, or None where they are bytes.
        notes: what to know of it.
        names: of the features that the source is read for; None for all that it has.
        numbers: by feature, for each number that the source has for a class the one that it gets; -1 where
            the schema does not have the class.
    """

    schema: Schema | None
    notes: Sequence[str]
    names: frozenset[str] | None
    numbers: Mapping[str, tuple[int, ...]]


def resolve_schema(
    source: ForeignSource,
    pieces: Sequence[Piece],
    schema: Any,
    encoding: str | None,
    *,
    lenient: bool,
    dataset: Schema | None = None,
) -> Resolved:
    """Return the schema (the caller's, the source's own, or one inferred), and what to know of it.

    Args:
        source, pieces: what is converted.
        schema, encoding: what the caller says.
        lenient: what does not fit is to be left out.
        dataset: the schema of the dataset that is added to, or None: the classes of its features keep their
            numbers, and those that it does not have follow them.

    Raises:
        SchemaError: no one schema holds the source, or numbers its classes as the dataset does.
    """
    if dataset is not None and encoding is None and not (source.payloads or isinstance(schema, Schema)):
        # Values of foreign data have no feature lists.
        encoding = None if dataset.encoding == "sequence_example" else dataset.encoding
    plain = source.payloads and not source.trusted and schema is None and encoding is None
    if plain and dataset is not None and dataset.encoding in ("array", "bytes"):
        # Such records name no feature, so nothing is inferred; each is held against the dataset's schema.
        return Resolved(dataset, [], None, {})
    found, notes, unread = _resolve(source, pieces, schema, encoding, lenient=lenient)
    if found is None:
        if dataset is not None:
            raise SchemaError(
                "the source's records are not tf.train.Examples, and those of the dataset have the encoding "
                f"{dataset.encoding!r}",
                advice="where they hold the dataset's features under the names that its records have, say so "
                "with schema=shardio.open(URL).schema; else write them into a dataset of their own",
            )
        return Resolved(found, notes, None, {})
    names = None if found.sequence_features else frozenset(found)
    if dataset is not None:
        if found.encoding == dataset.encoding:
            _check_units(source, found, dataset, schema)
            _check_nothing_is_lost(found, dataset, schema)
            if source.payloads:
                _check_names_in_records(found, dataset, unread, schema)
            found = _as_in_dataset(source, found, dataset, schema)
        found = found.completed(dataset).keeping_optional(dataset)
    return Resolved(found, notes, names, _numbers(source, found))


def _check_units(source: ForeignSource, found: Schema, dataset: Schema, given: Any) -> None:
    """Refuse columns of times that the dataset has as times of another kind, or as numbers without a unit."""
    said = given or {}
    for name, known in source.known().items():
        unit = known.unit if isinstance(known, Feature) else ""
        if not unit or name not in found or name not in dataset:
            continue
        ours, theirs = TimeUnit.parse(unit), TimeUnit.parse(dataset[name].unit)
        same = dataset[name].unit == unit or (ours and theirs and ours.kind == theirs.kind)
        told = theirs is None and dataset[name].kind == "number" and name in said
        if not (same or told or dataset[name].kind not in ("number", "json")):
            advice = "cast the column to what the dataset has"
            if theirs is None and dataset[name].kind == "number":
                same_unit = keep_as(name, dataset[name].short)
                advice += f", or say that its numbers count the same with {same_unit}"
            has = dataset[name].unit or "numbers of which it does not say what they count"
            raise SchemaError(
                f"column {name!r} is of the type {unit}, and the dataset has {has}",
                expected=dataset[name].unit or dataset[name].short,
                found=unit,
                advice=advice,
            )


def _groups_said(schema: Schema, given: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what a caller says of features, and of feature lists."""
    if isinstance(given, Schema):
        return given.groups
    said = given or {}
    return (
        (said.get("context", {}), said.get("feature_lists", {}))
        if schema.encoding == "sequence_example"
        else (said, {})
    )


def _check_nothing_is_lost(found: Schema, dataset: Schema, given: Any) -> None:
    """Refuse records that lack a feature which all of the dataset have, unless the caller has said so.

    A dataset's schema is that of the last append: readers would no longer see the feature of any record.
    """
    if isinstance(given, Schema):
        return
    plain, lists = _groups_said(found, given)
    for group, name, feature in found.missing_features(dataset):
        if name not in (lists if group == "feature_lists" else plain):
            raise SchemaError(
                f"the source has no feature {name!r}, which all records of the dataset have",
                expected=feature.short,
                found=", ".join(found),
                advice="let records lack it: shardio schema set URL --feature "
                f'\'{name}={{"type": "{feature.short}", "optional": true}}\'',
            )


def _check_names_in_records(found: Schema, dataset: Schema, unread: Mapping[str, str], given: Any) -> None:
    """Refuse payloads, which are copied as they are, that a dataset would read otherwise than the source.

    Args:
        found: what the source's records are read with.
        dataset: what they are added to.
        unread: what the source's records hold besides, by its name in them; why it is not read.
        given: the caller's schema.
    """
    write_values = (
        "convert the source into a dataset of its own, and append the values that shardio.open reads of it "
        'with DatasetWriter(URL, mode="append")'
    )
    for ours, theirs, said in zip(found.groups, dataset.groups, _groups_said(found, given), strict=True):
        called = {feature.stored_name or name: name for name, feature in theirs.items()}
        for name, feature in ours.items():
            stored = feature.stored_name or name
            known = theirs.get(name)
            if known is not None and (known.stored_name or name) != stored:
                raise SchemaError(
                    f"records of this dataset hold the feature {name!r} as {known.stored_name or name!r}, "
                    f"and those of the source, which are copied as they are, as {stored!r}",
                    advice=write_values,
                )
            if called.get(stored, name) != name:
                raise SchemaError(
                    f"the source's records, which are copied as they are, hold the feature {name!r} as "
                    f"{stored!r}, and that is called {called[stored]!r} in this dataset",
                    advice=f"say that it is the same with schema={{{called[stored]!r}: "
                    f"{Feature(feature.short, stored_name=stored)!r}, {name!r}: None}}, or {write_values}",
                )
            if known is None or not (known.has_default and feature.has_default) or name in said:
                continue
            if _reads(known, feature) and not _same_default(known, feature):
                raise SchemaError(
                    f"where a record lacks {name!r}, the source and the dataset mean different values",
                    expected=repr(known.default),
                    found=repr(feature.default),
                    advice=f"say which with {keep_as(name, known.short)} and its default=, or {write_values}",
                )
    held = {feature.stored_name or name for group in found.groups for name, feature in group.items()}
    for stored, reason in unread.items():
        for group in dataset.groups:
            for name, feature in group.items():
                if (feature.stored_name or name) == stored and stored not in held:
                    raise SchemaError(
                        f"the source's records, which are copied as they are, hold {stored!r}, {reason}, and "
                        f"the dataset would read it as {name!r}",
                        advice=write_values,
                    )


def _same_default(known: Feature, feature: Feature) -> bool:
    stored = feature.stored_default
    return stored is not None and known.replace(default=known.restore(stored)) == known


def _said_by_caller(source: ForeignSource, schema: Any) -> frozenset[str]:
    """Return the features whose classes the caller has given, in the order that is meant."""
    names = frozenset(schema or ())
    return names | {"label"} if source.options.classes is not None and source.names_classes else names


def _in_known_unit(feature: Feature, known: Feature | None, given: object) -> Feature:
    """Return a feature whose times are converted to the dataset's unit, unless the caller names another."""
    own = isinstance(given, Feature) and given.unit
    return feature if known is None or own or not known.unit else feature.replace(unit=known.unit)


def _as_in_dataset(source: ForeignSource, found: Schema, dataset: Schema, given: Any) -> Schema:
    """Return a schema in which features that the caller says nothing of are what the dataset has.

    Values are held against that one by one. Classes are numbered as in the dataset, and new ones follow.

    Raises:
        SchemaError: the dataset's feature cannot hold the source's, and would become another one.
    """
    groups = zip(found.groups, dataset.groups, _groups_said(found, given), strict=True)
    return found.with_groups(
        {
            name: _in_known_unit(feature, theirs.get(name), said.get(name))
            if name in told or name not in theirs
            else _as_known(source, name, feature, theirs[name])
            for name, feature in ours.items()
        }
        for ours, theirs, said in groups
        for told in [_said_by_caller(source, said)]
    )


def _as_known(source: ForeignSource, name: str, feature: Feature, known: Feature) -> Feature:
    """Return what a feature of a source becomes in a dataset that has one of its name."""
    if not source.payloads and feature.classes is not None:
        if known.classes is None:
            raise SchemaError(
                f"the source names classes of {name!r}, and the dataset has numbers without names",
                expected=known.short,
                found=shown_json(feature.classes),
                advice="name the classes in the order of the dataset's numbers, for this feature in schema=",
            )
        numbered = set(known.classes)
        new = [each for each in feature.classes if each not in numbered]
        return known.replace(classes=(*known.classes, *new))
    if not source.payloads and known.classes is not None and feature.type == "text":
        # Words, of which the dataset knows what they number.
        return known if feature.shape == known.shape else feature
    if source.trusted:
        takes = _reads(known, feature)
    elif source.payloads or (source.fits_text and not known.shape):
        takes = True
    else:
        takes = known.type in (feature.type, "json", "image") or known.kind == feature.kind == "number"
        takes = takes and (known.type != "image" or feature.kind == "image")
    if takes:
        same = feature.replace(type=known.short, shape=None, default=None, optional=False)
        return (
            same.replace(
                optional=known.optional or feature.optional,
                default=known.restore(feature.stored_default) if feature.stored_default is not None else None,
            )
            if source.payloads
            else known.replace(optional=known.optional or feature.optional)
        )
    if _reads(feature, known):
        raise SchemaError(
            f"the source holds the feature {name!r} as {feature.short}, and the dataset has another type",
            expected=known.short,
            found=feature.short,
            advice=f"make it {feature.short} in the dataset, too, with {keep_as(name, feature.short)}",
        )
    return feature


def _reads(new: Feature, old: Feature) -> bool:
    """Tell whether what is stored of one feature is read as it is by another."""
    wanted = Schema({"x": new.replace(optional=True, **ANNOTATIONS)})
    return wanted.incompatibility(Schema({"x": old.replace(**ANNOTATIONS)})) is None


def _numbers(source: ForeignSource, schema: Schema) -> dict[str, tuple[int, ...]]:
    """Return what becomes of the source's numbers of classes, where they are others than the schema's."""
    found = {}
    for name, known in source.known().items():
        ours = schema[name].classes if name in schema else None
        theirs = known.classes if isinstance(known, Feature) else None
        if ours is not None and theirs is not None and ours[: len(theirs)] != theirs:
            places = {each: number for number, each in enumerate(ours)}
            found[name] = tuple(places.get(each, -1) for each in theirs)
    return found


def _resolve(
    source: ForeignSource, pieces: Sequence[Piece], schema: Any, encoding: str | None, *, lenient: bool
) -> tuple[Schema | None, list[str], Mapping[str, str]]:
    """Return the schema (the caller's, the source's own, or one inferred), and what to know of it.

    The last are names that payloads hold and the schema does not read, each with the reason.
    """
    if source.payloads:
        return _resolve_of_payloads(source, pieces, schema, encoding)
    if isinstance(schema, Schema):
        _check_readable(source, schema)
        return Schema.parse(schema, encoding=encoding), [], {}
    samples = [] if source.declared else _look(source, pieces)
    found = infer_from_values(source, samples, schema, encoding=encoding, lenient=lenient)
    return found, _notes_on(source, found, schema or {}), {}


def _check_readable(source: ForeignSource, schema: Schema) -> None:
    """Refuse a schema that asks for columns of which the source knows that they cannot be read so."""
    for name, known in source.known().items() if source.declared else ():
        if isinstance(known, Unreadable) and name in schema and schema[name].type != known.keep:
            advice = f"declare it as {known.keep}" if known.keep else "leave it out of the schema"
            raise SchemaError(known.reason, advice=advice)


def _notes_on(source: ForeignSource, schema: Schema | None, given: Mapping[str, Any]) -> list[str]:
    """Return what the caller may not expect of an inferred schema."""
    if not isinstance(source, WebDataset):
        return []
    found = []
    for name, feature in (schema or {}).items():
        ending = name.rpartition(".")[2]
        what = "an image" if ending in IMAGE_TYPES else "JSON" if ending == "json" else None
        if name in given:
            continue
        if feature.type == "bytes" and what is not None:
            found.append(
                f"none of the members {name!r} that were looked at is {what}: they are kept as bytes, "
                "unchecked"
            )
        elif feature.type in ("bytes", "text") and ending in INTEGER_ENDINGS:
            found.append(
                f"the members {name!r} that were looked at are not all integers of 64 bits, written as "
                f"Python writes them: they are {feature.type}"
            )
    return found


JSON_LINES = Schema({"json": Feature("json")}, encoding="bytes")
_DICTS: Mapping[str, tuple[type[WebDataset | JsonLines], Framing]] = {
    "webdataset": (WebDataset, Framing.TAR_SAMPLE),
    "jsonl": (JsonLines, Framing.LINES),
}
# Name, encoding, and size in bytes where it is fixed, of each column of MDS samples.
MdsLayout = Sequence[tuple[str, str, int | None]]


class Inferred(NamedTuple):
    """A schema and what it rests on.

    Attributes:
        schema: None where the records stay bytes, or text.
        records: how many were looked at.
        notes: what to know of the schema.
        report: of Examples.
        mixed: splits with the kinds of their records, where no one schema reads all.
        declared: the source says what records hold.
    """

    schema: Schema | None = None
    records: int = 0
    notes: Sequence[str] = ()
    report: InferenceReport | None = None
    mixed: Sequence[str] = ()
    declared: bool = False


def infer_records(kind: str, payloads: Sequence[bytes], layout: MdsLayout = ()) -> Inferred:
    """Return the schema of records as they are stored, whether they are converted or adopted.

    Values that contradict each other don't fail: they are `json`, or bytes in tar files, with a note.

    Args:
        kind: "tfrecord", "webdataset", "jsonl" or "mds".
        payloads: some records.
        layout: the columns of MDS samples.

    Raises:
        FormatError, ValueError: a payload is no such record.
    """
    if kind == "tfrecord":
        try:
            held, report = infer_schema(payloads)
        except (CorruptRecordError, ValueError):
            return Inferred(records=len(payloads))
        # Records of which no feature can be read are bytes.
        empty = not len(held) and not held.sequence_features
        return Inferred(None if empty else held, len(payloads), report.notes(), report)
    if kind == "mds":
        return _infer_mds(layout, payloads)
    if not payloads:
        return Inferred()
    of_kind, framing = _DICTS[kind]
    values = [of_kind.of_payload(each) for each in payloads]
    schema, notes = _infer_leniently(of_kind("", SourceOptions()), values, None)
    if schema is None:
        schema = JSON_LINES if kind == "jsonl" else None
    else:
        present = Counter(name for value in values for name in value)
        missing = {name: len(values) - present[name] for name in schema}
        notes = [
            f"{name}: missing in {count:,} of {len(values):,} records, so it is optional"
            for name, count in missing.items()
            if count
        ] + notes
    if schema is not None:
        notes += _misfits(schema, framing, payloads)
    return Inferred(schema, len(payloads), notes)


def _infer_mds(layout: MdsLayout, payloads: Sequence[bytes]) -> Inferred:
    """Return the types that the columns declare, and of the others those of their values."""
    columns = mds_columns(*map(list, zip(*layout, strict=True)))
    values = [decode_mds_sample(payload, columns) for payload in payloads]
    known = {column.name: column.feature for column in columns}
    known |= {
        each.name: Feature("bytes") for each in columns if each.trouble or not (payloads or each.feature)
    }
    said = {name: each for name, each in known.items() if each}
    schema, notes = _infer_leniently(JsonLines("", SourceOptions()), values, said)
    notes += [f"{column.trouble}, so it is bytes" for column in columns if column.trouble]
    if schema is not None:
        schema = Schema({each.name: schema[each.name] for each in columns}, encoding=mds_encoding(layout))
    return Inferred(schema, len(payloads), notes, declared=schema is not None and all(known.values()))


def _infer_leniently(
    source: ForeignSource, values: Sequence[Any], known: Mapping[str, Feature] | None
) -> tuple[Schema | None, list[str]]:
    """Return the schema of values and notes on it; None where it would have too many features."""
    samples = [Sample(f"record {number}", value) for number, value in enumerate(values)]
    widened: list[str] = []
    try:
        schema = infer_from_values(source, samples, known, widened=widened)
    except ValueError as error:
        return None, [f"the records have no schema: {error}"]
    return schema, [*widened, *_notes_on(source, schema, {})]


def _misfits(schema: Schema, framing: Framing, payloads: Sequence[bytes]) -> list[str]:
    """Return the note on records that an inferred schema does not read, as one web page among documents."""
    codec = value_codec([framing], schema)
    found = []
    for payload in payloads:
        try:
            codec.decode(payload)
        except (SchemaError, FormatError) as error:
            found.append(error)
    if not found:
        return []
    count = f"{len(found):,} of {len(payloads):,} records that were looked at do not fit the schema"
    way_out = 'types={"NAME": "bytes"} takes a tar member as it is, types={"NAME": "json"} a key of JSON'
    return [f"{count}, and reading them is an error: {found[0].what}; {way_out}"]


def changed_schema(held: Schema, said: Mapping[str, Any]) -> Schema:
    """Return a schema with what a caller says of some features, for records that are there.

    A short string says a type, and not that all records have it; None takes a feature out.
    """

    def kept_optional(known: Feature | None, feature: Any) -> Any:
        if not isinstance(feature, str) or known is None or not known.optional:
            return feature
        try:
            return Feature(feature).replace(optional=True, default=known.default)
        except (SchemaError, ValueError, TypeError):
            return Feature(feature).replace(optional=True)

    return held.changed({name: kept_optional(held.get(name), feature) for name, feature in said.items()})


def _resolve_of_payloads(
    source: ForeignSource, pieces: Sequence[Piece], schema: Any, encoding: str | None
) -> tuple[Schema | None, list[str], Mapping[str, str]]:
    """Return the schema of records that are copied as they are, notes, and what they hold besides."""
    held: Schema | None
    older: Sequence[Schema]
    if isinstance(source, ShardioDataset):
        held, older = source.schema, source.schemas
        notes: list[str] = []
        unread = {name: "which it no longer reads" for each in older for name in each.names_in_records}
    else:
        found = infer_records("tfrecord", [sample.value for sample in _look(source, pieces)])
        held, notes, report, older = found.schema, [*found.notes], found.report, ()
        seen = [] if report is None else [*report.features.values(), *report.feature_lists.values()]
        unread = {each.name: "which no schema can hold" for each in seen if each.type is None}
    wanted = held if held is None else _with_keys(held, source.key_types())
    if schema is not None:
        wanted = _as_said(wanted, schema, encoding)
    elif held is not None and encoding not in (None, held.encoding):
        wanted = Schema.parse(held, encoding=encoding)
    if wanted is None:
        return None, notes, {}
    if isinstance(source, ShardioDataset) and held is not None:
        # Its records are not looked at again.
        try:
            wanted = wanted.completed(held)
        except SchemaError as error:
            raise error.located(url=source.place) from error
        for each in older:
            reason = wanted.incompatibility(each)
            if reason is not None:
                raise SchemaError(
                    f"records are copied as they are, and the schema cannot read the source's: {reason}",
                    url=source.place,
                    expected=each,
                    found=wanted,
                    advice="leave the feature out of schema=, or read the source with shardio.open and write "
                    "its values in the other form with DatasetWriter",
                )
    for name in held.names_in_records if held is not None else ():
        unread.setdefault(name, "which the schema leaves out")
    unread = {name: reason for name, reason in unread.items() if name not in wanted.names_in_records}
    if unread:
        names = ", ".join(map(repr, unread))
        notes = [*notes, f"records are copied as they are: they still hold {names}, which no reader sees"]
    return wanted, notes, unread


def _with_keys(held: Schema, keys: Mapping[str, Feature]) -> Schema:
    """Return the schema of payloads with the features that follow them, as folders name them."""
    new = {name: feature for name, feature in keys.items() if name not in held}
    if not new or held.encoding not in ("example", "sequence_example"):
        return held
    return held.changed({"context": new} if held.encoding == "sequence_example" else new)


def _as_said(held: Schema | None, schema: Any, encoding: str | None) -> Schema:
    """Return the schema that a caller gives: a whole one, or changes to what records are known to hold."""
    if held is None or isinstance(schema, Schema) or encoding not in (None, held.encoding):
        return Schema.parse(schema, encoding=encoding)
    return changed_schema(held, schema)


def _look(source: ForeignSource, pieces: Sequence[Piece]) -> list[Sample]:
    """Return some records from up to eight places spread over the source."""
    count = min(_PLACES, len(pieces))
    chosen = [pieces[len(pieces) * place // count] for place in range(count)]
    if len(pieces) > _PLACES and sum(piece.size for piece in pieces) < SMALL_BYTES:
        # Where a piece is a record, eight of them say little.
        chosen = list(pieces[:: max(1, len(pieces) // LOOK_AT)])
    samples: list[Sample] = []
    size = 0
    for number, piece in enumerate(chosen, 1):
        share = -(-LOOK_AT * number // len(chosen))
        try:
            for found in itertools.islice(source.records(piece), LOOK_AT):
                if isinstance(found, Sample):
                    samples.append(found)
                    size += _size(found.value)
                if len(samples) >= share or size > _LOOK_AT_BYTES:
                    break
        except StorageError:
            raise
        except ShardioError:
            # Damage is reported, or left out, by the worker that comes to it.
            continue
    return samples


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return len(value) if isinstance(value, bytes | str) else 64


@dataclass
class _FeatureValues:
    """What the values of one feature have shown; `first` is where the first of them was.

    A form is a type and a number of dimensions; `examples` holds of each where it was first, and the value.
    """

    first: str
    present: int = 0
    empty: bool = False
    negative: bool = False
    listed: bool = True
    values: list[Any] = field(default_factory=list)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    forms: Counter[tuple[str, int]] = field(default_factory=Counter)
    examples: dict[tuple[str, int], tuple[str, Any]] = field(default_factory=dict)

    def add(self, value: Any, where: str) -> None:
        if value is None:
            return
        self.present += 1
        if len(self.values) < 100:
            self.values.append(value)
        self.listed = self.listed and isinstance(value, list | tuple | dict)
        name, shape = _type_of(value)
        if name is None:
            self.empty = True
            return
        self.negative = self.negative or (name.startswith("int") and _is_negative(value))
        self.forms[name, len(shape)] += 1
        self.examples.setdefault((name, len(shape)), (where, value))
        self.shapes.add(shape)

    @property
    def types(self) -> set[str]:
        return {name for name, _ in self.forms}


def infer_from_values(
    source: ForeignSource,
    samples: Sequence[Sample],
    given: Mapping[str, Any] | Schema | None,
    *,
    encoding: str | None = None,
    lenient: bool = False,
    widened: list[str] | None = None,
) -> Schema | None:
    """Return the schema to convert with.

    Args:
        source: asked for what it declares.
        samples: some of its records.
        given: the caller's word: types of some features (None leaves a feature out), or a whole `Schema`.
        encoding: of the records.
        lenient: where values contradict each other take the type that most have, since the others are to be
            left out.
        widened: where values contradict each other take a type that holds all of them, and say so here.

    Raises:
        SchemaError: values of one feature contradict each other, and the caller did not say which are meant.
        ValueError: `given` names a feature that the source does not have.
    """
    if isinstance(given, Schema) or not isinstance(given, Mapping | None):  # which it refuses in its words
        return Schema.parse(given, encoding=encoding)
    overrides = dict(given or {})
    known, keys = source.known(), source.key_types()
    declared = {**keys, **known}
    seen: dict[str, _FeatureValues] = {}
    for sample in samples:
        if not isinstance(sample.value, Mapping):
            return None
        for name, value in sample.value.items():
            seen.setdefault(name, _FeatureValues(sample.where)).add(value, sample.where)
    names = dict.fromkeys([*known, *seen, *keys])
    unknown = [name for name in overrides if name not in names]
    if unknown and names:
        has = ", ".join(names) or "nothing"
        raise ValueError(f"schema names {unknown[0]!r}, which the source does not have; it has {has}")
    features: dict[str, Any] = {}
    for name in dict.fromkeys([*names, *overrides]):
        chosen = overrides[name] if name in overrides else declared.get(name)
        if isinstance(chosen, Unreadable):
            raise SchemaError(chosen.reason, advice=chosen.advice(name))
        if chosen is None and name not in overrides:
            chosen = _conclude(source, name, seen[name], len(samples), lenient=lenient, widened=widened)
        if chosen is not None:
            if name in seen:
                try:
                    _check_found_name(name, seen[name].first)
                except SchemaError as error:
                    if widened is None:
                        raise
                    widened.append(f"left out of the schema: {error.what}")
                    continue
            unit = getattr(declared.get(name), "unit", "")
            if TimeUnit.parse(unit) is not None and name in overrides:
                chosen = chosen if isinstance(chosen, Feature) else Feature(chosen)
                if chosen.kind == "number" and not chosen.unit:
                    chosen = chosen.replace(unit=unit)
            features[name] = chosen
    return Schema.parse(features, encoding=encoding)


def _check_found_name(name: str, where: str) -> None:
    try:
        check_name(name)
    except ValueError as error:
        raise SchemaError(f"{where}: {error}", advice=Unreadable("").advice(name)) from None


def _conclude(
    source: ForeignSource,
    name: str,
    seen: _FeatureValues,
    records: int,
    *,
    lenient: bool,
    widened: list[str] | None,
) -> Feature | str | None:
    optional = seen.present < records
    try:
        own = source.infer(name, seen.values)
    except SchemaError as error:
        if widened is None:
            raise
        widened.append(f"{error.what} ({error.found}): they are bytes")
        own = "bytes"
    if own is not None:
        feature = own if isinstance(own, Feature) else Feature(own)
        return Feature(feature.type, shape=feature.shape, optional=optional) if optional else feature
    if not seen.types:
        # Only nothing, or only empty lists: whatever JSON can hold loses none of it.
        return Feature("json", optional=optional or not seen.empty)
    merged = _merged(seen)
    shape = None if merged is None else _shape_of(seen.shapes, empty=seen.empty) if merged != "json" else ()
    if merged is None or shape is None:
        if seen.listed:
            merged, shape = "json", ()
        elif lenient:
            # What most have; the others are left out, one by one.
            merged, dimensions = seen.forms.most_common(1)[0][0]
            shape = _shape_of({shape for shape in seen.shapes if len(shape) == dimensions}, empty=False)
        elif widened is not None:
            found = _contradiction(name, seen)
            widened.append(f"{found.what} ({found.found}): they are json")
            merged, shape = "json", ()
        else:
            raise _contradiction(name, seen)
    return Feature(merged, shape=shape, optional=optional)


def _merged(seen: _FeatureValues) -> str | None:
    types = seen.types
    if len(types) == 1:
        return next(iter(types))
    if types <= _IMAGES:
        return "image"
    if types <= _IMAGES | {"bytes"}:
        return "bytes"
    if all(name.startswith(("int", "uint")) for name in types):
        if "uint64" not in types or all(name.startswith("uint") for name in types):
            return np.result_type(*types).name
        return None if seen.negative else "uint64"
    if types <= {"float16", "float32", "float64"}:
        return np.result_type(*types).name
    if types == {"int64", "float64"}:
        return "float64"
    return "json" if seen.listed else None


def _is_negative(value: Any) -> bool:
    """Tell whether a value holds an integer below 0; of NumPy, torch and lists of Python alike."""
    numbers = np.asarray(value)
    return bool(numbers.size) and bool(numbers.min() < 0)


def _shape_of(shapes: set[tuple[int, ...]], *, empty: bool) -> tuple[int | None, ...] | None:
    """Return the sizes, `None` where they differ; None as a whole where even their number differs."""
    if len(set(map(len, shapes))) != 1:
        return None
    sizes = [set(each) for each in zip(*shapes, strict=True)]
    if empty and not sizes:
        return None
    found = [min(each) or None if len(each) == 1 else None for each in sizes]
    return (None, *found[1:]) if empty else tuple(found)


def _type_of(value: Any) -> tuple[str | None, tuple[int, ...]]:
    """Return the type of a value and its shape; no type for an empty list, which could be of any.

    What no feature takes is json, too, whose writer says so: there it is known in which record.
    """
    if isinstance(value, list | tuple):
        return _type_of_list(list(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return image_type(bytes(value[:16])) or "bytes", ()
    if _is_array(value) or isinstance(value, np.generic):
        return _type_of_array(value)
    return _type_of_one(value), ()


def _is_array(value: Any) -> bool:
    """Tell whether a value is an array with dimensions, or a tensor of any number of them."""
    return (
        hasattr(value, "dtype")
        and hasattr(value, "shape")
        and not isinstance(value, np.generic | str | bytes)
    )


def _type_of_array(value: Any) -> tuple[str | None, tuple[int, ...]]:
    """Return type and shape of an array or scalar of NumPy's, or of a tensor, which is written as one."""
    kind = getattr(value.dtype, "kind", "")
    if kind == "O":
        return _type_of(value.tolist())
    name = {"U": "text", "S": "bytes"}.get(kind) or getattr(value.dtype, "name", "")
    name = name or str(value.dtype).removeprefix("torch.")
    try:
        Feature(name, shape=(None,) * len(value.shape))
    except ValueError:
        return "json", ()
    return name, tuple(value.shape)


def _type_of_one(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, np.generic) or (_is_array(value) and not value.shape):
        return _type_of_array(value)[0] or "json"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if -INT64_LIMIT <= value < INT64_LIMIT:
            return "int64"
        return "uint64" if 0 <= value < 2 * INT64_LIMIT else "json"
    if isinstance(value, float | complex):
        return "float64" if isinstance(value, float) else "complex128"
    # A Pillow image is written as a PNG.
    return "image" if hasattr(value, "getbands") else "json"


def _type_of_list(items: list[Any]) -> tuple[str | None, tuple[int, ...]]:
    if not items:
        return None, ()
    if all(isinstance(item, bytes) for item in items):
        formats = {image_type(item[:16]) or "bytes" for item in items}
        merged = formats.pop() if len(formats) == 1 else "image" if formats <= _IMAGES else "bytes"
        return merged, (len(items),)
    if all(isinstance(item, list) or _is_array(item) for item in items):
        inner = {_type_of(item) for item in items}
        if len(inner) == 1:
            name, shape = inner.pop()
            if name not in (None, "json", "text", "bytes", "bool") and name not in _IMAGES:
                return name, (len(items), *shape)
        return "json", ()
    types = {_type_of_one(item) for item in items}
    if types == {"int64", "float64"}:
        types = {"float64"}
    elif types == {"int64", "uint64"} and min(items) >= 0:
        types = {"uint64"}
    name = types.pop()
    return ("json", ()) if types or name == "json" else (name, (len(items),))


def _contradiction(name: str, seen: _FeatureValues) -> SchemaError:
    places: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for (kind, dimensions), count in seen.forms.items():
        places.setdefault(kind, seen.examples[kind, dimensions][0])
        counts[kind] += count
    shown = ", ".join(f"{kind} in {counts[kind]} (first in {where})" for kind, where in places.items())
    if len(counts) == 1:
        shown += f" of {len(seen.shapes)} shapes"
    return SchemaError(
        f"the values of {name!r} are of different types",
        found=shown,
        advice=f"{type_for(name, [value for _, value in seen.examples.values()])}, or {SKIP}",
    )


def type_for(name: str, values: Sequence[Any], declared: Feature | None = None) -> str:
    """Return the advice for a feature whose values do not fit its type: a type that takes all of these.

    Args:
        name: of the feature.
        values: that were seen.
        declared: the type that does not fit; other values are of it, and where it holds bytes, no JSON.
    """
    for kind in _WIDER:
        feature = Feature(kind)
        if kind == "json" and declared is not None and declared.kind in {"bytes", "image"}:
            continue
        try:
            for value in values:
                feature.fit(value, name)
        except SchemaError:
            continue
        return f"say what is meant with {keep_as(name, kind)}"
    return f"leave the feature out with {keep_as(name, None)}"
