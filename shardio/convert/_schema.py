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

from shardio.codecs import infer_schema
from shardio.convert._images import IMAGE_TYPES
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
from shardio.convert._text import JsonLines
from shardio.convert._tfrecord import ShardioDataset
from shardio.convert._units import TimeUnit
from shardio.convert._webdataset import INTEGER_ENDINGS, WebDataset
from shardio.errors import SchemaError, ShardioError, StorageError
from shardio.metadata import ANNOTATIONS, Feature, Schema, check_name, image_type

SKIP = 'on_error="skip" leaves such records out'
# Types that take more values than others do, the most telling first.
_WIDER = ("int64", "float64", "json", "bytes")

_IMAGES = frozenset({"jpeg", "png", "webp", "tiff", "image"})

# A schema is inferred of so many records in so many places; of a source below `SMALL_BYTES` in more places.
LOOK_AT = 1000
_LOOK_AT_BYTES = 64 << 20
_PLACES = 8
SMALL_BYTES = 16 << 20


@dataclass
class _SampledRecords:
    """What a look at some records of a source showed."""

    samples: list[Sample] = field(default_factory=list)
    bytes: int = 0

    def full(self, share: int) -> bool:
        return len(self.samples) >= share or self.bytes > _LOOK_AT_BYTES


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
    samples = [] if source.declared else _look(source, pieces).samples
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
    inferred = {name: feature.type for name, feature in (schema or {}).items() if name not in given}
    return (
        [
            f"none of the members {name!r} that were looked at is an image: they are kept as bytes, unchecked"
            for name, kind in inferred.items()
            if kind == "bytes" and name.rpartition(".")[2] in IMAGE_TYPES
        ]
        + [
            f"none of the members {name!r} that were looked at is JSON: they are kept as bytes, unchecked"
            for name, kind in inferred.items()
            if kind == "bytes" and name.rpartition(".")[2] == "json"
        ]
        + [
            f"the members {name!r} that were looked at are not all integers of 64 bits, written as Python "
            f"writes them: they are {kind}"
            for name, kind in inferred.items()
            if kind in ("bytes", "text") and name.rpartition(".")[2] in INTEGER_ENDINGS
        ]
    )


def infer_from_payloads(kind: str, payloads: Sequence[bytes]) -> tuple[Schema | None, list[str]]:
    """Return the schema of samples of tar files or of JSON lines, as conversion infers it, and notes on it.

    Nothing is refused: values that contradict each other are `json`, or bytes in tar files.  A schema that
    would have more features than one may have is None.

    Args:
        kind: "webdataset" or "jsonl".
        payloads: some records, as an adopted dataset has them.

    Raises:
        FormatError, ValueError: a payload is no such record.
    """
    source = _PAYLOADS[kind]("", SourceOptions())
    samples = [Sample(f"record {number}", source.of_payload(each)) for number, each in enumerate(payloads)]
    widened: list[str] = []
    try:
        found = infer_from_values(source, samples, None, widened=widened)
    except ValueError as error:
        return None, [f"the records have no schema: {error}"]
    lacking = Counter(name for sample in samples for name in sample.value)
    missing = {name: len(samples) - lacking[name] for name in found or ()}
    notes = [
        f"{name}: missing in {count:,} of {len(samples):,} records, so it is optional"
        for name, count in missing.items()
        if count
    ]
    return found, [*notes, *widened, *_notes_on(source, found, {})]


def infer_from_samples(
    values: Sequence[Mapping[str, Any]], known: Mapping[str, Feature]
) -> tuple[Schema | None, list[str]]:
    """Return the schema of records whose types are known in part, and notes on it; nothing is refused."""
    samples = [Sample(f"record {number}", value) for number, value in enumerate(values)]
    widened: list[str] = []
    try:
        found = infer_from_values(JsonLines("", SourceOptions()), samples, known, widened=widened)
    except ValueError as error:
        return None, [f"the records have no schema: {error}"]
    return found, widened


_PAYLOADS: Mapping[str, type[WebDataset | JsonLines]] = {"webdataset": WebDataset, "jsonl": JsonLines}


def _resolve_of_payloads(
    source: ForeignSource, pieces: Sequence[Piece], schema: Any, encoding: str | None
) -> tuple[Schema | None, list[str], Mapping[str, str]]:
    """Return the schema of records that are copied as they are, notes, and what they hold besides."""
    if isinstance(source, ShardioDataset):
        held, older = source.schema, source.schemas
        notes: list[str] = []
        unread = {name: "which it no longer reads" for each in older for name in each.names_in_records}
    else:
        held, notes, unread = _infer_of_payloads(source, pieces)
        older = ()
    found = held if held is None else _with_keys(held, source.key_types())
    if schema is not None:
        found = _as_said(found, schema, encoding)
    elif held is not None and encoding not in (None, held.encoding):
        found = Schema.parse(held, encoding=encoding)
    if found is None:
        return None, notes, {}
    if isinstance(source, ShardioDataset) and held is not None:
        # Its records are not looked at again.
        try:
            found = found.completed(held)
        except SchemaError as error:
            raise error.located(url=source.place) from error
        for each in older:
            reason = found.incompatibility(each)
            if reason is not None:
                raise SchemaError(
                    f"records are copied as they are, and the schema cannot read the source's: {reason}",
                    url=source.place,
                    expected=each,
                    found=found,
                    advice="leave the feature out of schema=, or read the source with shardio.open and write "
                    "its values in the other form with DatasetWriter",
                )
    for name in held.names_in_records if held is not None else ():
        unread.setdefault(name, "which the schema leaves out")
    unread = {name: reason for name, reason in unread.items() if name not in found.names_in_records}
    if unread:
        names = ", ".join(map(repr, unread))
        notes = [*notes, f"records are copied as they are: they still hold {names}, which no reader sees"]
    return found, notes, unread


def _with_keys(held: Schema, keys: Mapping[str, Feature]) -> Schema:
    """Return the schema of payloads with the features that follow them, as folders name them."""
    new = {name: feature for name, feature in keys.items() if name not in held}
    if not new or held.encoding not in ("example", "sequence_example"):
        return held
    return held.changed({"context": new} if held.encoding == "sequence_example" else new)


def _as_said(held: Schema | None, schema: Any, encoding: str | None) -> Schema:
    """Return the schema that a caller gives: a whole one, or changes to what records are known to hold."""
    changes = held is not None and not isinstance(schema, Schema) and encoding in (None, held.encoding)
    if held is None or not changes:
        return Schema.parse(schema, encoding=encoding)
    return held.changed(schema)


def _infer_of_payloads(
    source: ForeignSource, pieces: Sequence[Piece]
) -> tuple[Schema | None, list[str], dict[str, str]]:
    payloads = [sample.value for sample in _look(source, pieces).samples]
    try:
        found, report = infer_schema(payloads)
    except (ShardioError, ValueError):
        # They are no Examples: bytes they stay.
        return None, [], {}
    both = [*report.features.values(), *report.feature_lists.values()]
    without_type = {each.name: "which no schema can hold" for each in both if each.type is None}
    return found, report.notes(), without_type


def _look(source: ForeignSource, pieces: Sequence[Piece]) -> _SampledRecords:
    """Read some records from up to eight places spread over the source."""
    count = min(_PLACES, len(pieces))
    look = _SampledRecords()
    chosen = [pieces[len(pieces) * place // count] for place in range(count)]
    if len(pieces) > _PLACES and sum(piece.size for piece in pieces) < SMALL_BYTES:
        # Where a piece is a record, eight of them say little.
        chosen = list(pieces[:: max(1, len(pieces) // LOOK_AT)])
    for number, piece in enumerate(chosen, 1):
        share = -(-LOOK_AT * number // len(chosen))
        try:
            for found in itertools.islice(source.records(piece), LOOK_AT):
                if not isinstance(found, Sample):
                    continue
                look.samples.append(found)
                look.bytes += _size(found.value)
                if look.full(share):
                    break
        except StorageError:
            raise
        except ShardioError:
            # Damage is reported, or left out, by the worker that comes to it.
            continue
    return look


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return len(value) if isinstance(value, bytes | str) else 64


@dataclass
class _FeatureValues:
    """What the values of one feature have shown; `first` is where the first of them was."""

    first: str
    types: Counter[str] = field(default_factory=Counter)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    empty: bool = False
    present: int = 0
    negative: bool = False
    listed: bool = True
    places: dict[str, str] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)
    examples: dict[tuple[str, int], Any] = field(default_factory=dict)
    forms: Counter[tuple[str, int]] = field(default_factory=Counter)

    def add(self, value: Any, where: str) -> None:
        if value is None:
            return
        self.present += 1
        if len(self.values) < 100:
            self.values.append(value)
        self.listed = self.listed and isinstance(value, list | tuple | dict)
        name, shape = _type_of(value)
        if name is not None and name.startswith("int") and _is_negative(value):
            self.negative = True
        if name is None:
            self.empty = True
            return
        self.types[name] += 1
        self.forms[name, len(shape)] += 1
        self.examples.setdefault((name, len(shape)), value)
        self.places.setdefault(name, where)
        self.shapes.add(shape)


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
    shape = None if merged is None else _merged_shape(seen) if merged != "json" else ()
    if merged is None or shape is None:
        if seen.listed:
            merged, shape = "json", ()
        elif lenient:
            # What most have; the others are left out, one by one.
            merged, dimensions = seen.forms.most_common(1)[0][0]
            sizes = {shape for shape in seen.shapes if len(shape) == dimensions}
            shape = tuple(
                size[0] if len(size) == 1 and size[0] else None
                for size in map(tuple, map(set, zip(*sizes, strict=True)))
            )
        elif widened is not None:
            found = _contradiction(name, seen)
            widened.append(f"{found.what} ({found.found}): they are json")
            merged, shape = "json", ()
        else:
            raise _contradiction(name, seen)
    return Feature(merged, shape=shape, optional=optional)


def _merged(seen: _FeatureValues) -> str | None:
    types = set(seen.types)
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


def _merged_shape(seen: _FeatureValues) -> tuple[int | None, ...] | None:
    """Return the sizes, `None` where they differ; None as a whole where even their number differs."""
    shapes = set(seen.shapes)
    if len({len(shape) for shape in shapes}) != 1:
        return None
    sizes: list[int | None] = [
        size[0] if len(size) == 1 else None for size in map(tuple, map(set, zip(*shapes, strict=True)))
    ]
    if seen.empty:
        if not sizes:
            return None
        sizes[0] = None
    return tuple(size or None for size in sizes)


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
    shown = ", ".join(
        f"{kind} in {count} (first in {seen.places[kind]})" for kind, count in seen.types.items()
    )
    if len(seen.types) == 1:
        shown += f" of {len(seen.shapes)} shapes"
    return SchemaError(
        f"the values of {name!r} are of different types",
        found=shown,
        advice=f"{type_for(name, list(seen.examples.values()))}, or {SKIP}",
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
