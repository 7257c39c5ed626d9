"""The schema of a source: given, of the dataset that is added to, declared by the source, or inferred.

Inference loses nothing: integers become int64, floating-point numbers float64, text stays text.  Where values
of one feature contradict each other it is refused, with both sides and the way to say what is meant.
Conversion, adoption and `from_generator` infer and resolve schemas here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from shardio.arguments import accepts
from shardio.codecs import InferenceReport, decode_mds_sample, infer_schema, mds_columns
from shardio.convert._jsonl import JsonLines
from shardio.convert._webdataset import WebDataset
from shardio.errors import CorruptRecordError, FormatError, SchemaError, ShardioError
from shardio.format import Framing
from shardio.formats import (
    INT64_LIMIT,
    ForeignSource,
    Piece,
    Sample,
    SourceOptions,
    TimeUnit,
    Unreadable,
    keep_as,
    sample_records,
    shown_json,
)
from shardio.metadata import Feature, Schema, check_name, image_type, mds_encoding, mds_layout
from shardio.reader import value_codec

SKIP = 'on_error="skip" leaves such records out'
# Types that take more values than others do, the most telling first.
_WIDER = ("int64", "float64", "json", "bytes")
# The lattice: the types that hold all values of a type, from the narrowest.  Two types are joined by the
# first that both have; types that stand nowhere here are joined with themselves alone.  "count" is that of
# Python's integers that are not negative.
_ABOVE: Mapping[str, tuple[str, ...]] = {
    "count": ("count", "int64", "uint64", "float64"),
    "int64": ("int64", "float64"),
    "int32": ("int32", "int64"),
    "int16": ("int16", "int32", "int64"),
    "int8": ("int8", "int16", "int32", "int64"),
    "uint32": ("uint32", "uint64", "int64"),
    "uint16": ("uint16", "uint32", "int32", "uint64", "int64"),
    "uint8": ("uint8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    "float32": ("float32", "float64"),
    "float16": ("float16", "float32", "float64"),
    "image": ("image", "bytes"),
    **{name: (name, "image", "bytes") for name in ("jpeg", "png", "webp", "tiff")},
}

# A feature whose values contradict each other is an error, or of the type that most values have.
Clash = Literal["raise", "most"]


def join_types(types: Iterable[str]) -> str | None:
    """Return the narrowest type that holds the values of all of some types; None where none does."""
    merged, *others = types
    for other in others:
        above = _ABOVE.get(other, (other,))
        common = next((name for name in _ABOVE.get(merged, (merged,)) if name in above), None)
        if common is None:
            return None
        merged = common
    return merged


@dataclass
class _Seen:
    """What the values of one feature have shown; `first` is where the first of them was.

    A form is a type and a number of dimensions; `examples` holds of each where it was first, and the value.
    """

    first: str
    present: int = 0
    empty: bool = False
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
        self.forms[name, len(shape)] += 1
        self.examples.setdefault((name, len(shape)), (where, value))
        self.shapes.add(shape)


def infer_from_values(
    source: ForeignSource,
    samples: Sequence[Sample],
    given: Mapping[str, Any] | Schema | None,
    *,
    encoding: str | None = None,
    clash: Clash = "raise",
    settled: Container[str] = (),
) -> Schema | None:
    """Return the schema to convert with.

    Args:
        source: declares its schema and its types.
        samples: some of its records.
        given: the caller's word: types of some features (None leaves a feature out), or a whole `Schema`.
        encoding: of the records.
        clash: what becomes of values that contradict each other.
        settled: features that the caller changes afterwards, so that nothing about them is refused.

    Raises:
        SchemaError: values of one feature contradict each other, and the caller did not say which are meant.
        ValueError: `given` names a feature that the source does not have.
    """
    if isinstance(given, Schema) or not isinstance(given, Mapping | None):  # which it refuses in its words
        return Schema.parse(given, encoding=encoding)
    overrides = dict(given or {})
    known, keys = source.known(), source.key_types()
    declared = {**keys, **known}
    seen: dict[str, _Seen] = {}
    for sample in samples:
        if not isinstance(sample.value, Mapping):
            return None
        for name, value in sample.value.items():
            seen.setdefault(name, _Seen(sample.where)).add(value, sample.where)
    names = dict.fromkeys([*known, *seen, *keys])
    unknown = [name for name in overrides if name not in names]
    if unknown and names:
        has = ", ".join(names)
        raise ValueError(f"schema names {unknown[0]!r}, which the source does not have; it has {has}")
    features: dict[str, Any] = {}
    for name in dict.fromkeys([*names, *overrides]):
        chosen = overrides[name] if name in overrides else declared.get(name)
        if isinstance(chosen, Unreadable):
            raise SchemaError(chosen.reason, advice=chosen.advice(name))
        if chosen is None and name not in overrides:
            chosen = _conclude(source, name, seen[name], len(samples), None if name in settled else clash)
        if chosen is None:
            continue
        if name in seen:
            try:
                check_name(name)
            except ValueError as error:
                if name in settled:
                    continue
                where = seen[name].first
                raise SchemaError(f"{where}: {error}", advice=Unreadable("").advice(name)) from None
        unit = getattr(declared.get(name), "unit", "")
        if name in overrides and unit and not unit.startswith("decimal"):
            chosen = chosen if isinstance(chosen, Feature) else Feature(chosen)
            chosen = chosen.replace(unit=chosen.unit or unit * (chosen.kind == "number"))
        features[name] = chosen
    return Schema.parse(features, encoding=encoding)


def _conclude(source: ForeignSource, name: str, seen: _Seen, records: int, clash: Clash | None) -> Feature:
    optional = seen.present < records
    try:
        own = source.infer(name, seen.values)
    except SchemaError:
        if clash is not None:
            raise
        own = "bytes"
    if own is not None:
        feature = own if isinstance(own, Feature) else Feature(own)
        return Feature(feature.type, shape=feature.shape, optional=optional) if optional else feature
    if not seen.forms:
        # Only nothing, or only empty lists: whatever JSON can hold loses none of it.
        return Feature("json", optional=optional or not seen.empty)
    merged: str | None = join_types(kind for kind, _ in seen.forms)
    shape = _shape_of(seen.shapes, empty=seen.empty)
    if merged is None or shape is None:
        merged, shape = "json", ()
        if not seen.listed and clash == "most":
            forms: Counter[tuple[str, int]] = Counter()
            for (kind, dimensions), count in seen.forms.items():
                forms[_public(kind), dimensions] += count
            ((merged, dimensions), _), *_ = forms.most_common(1)
            shape = _shape_of({shape for shape in seen.shapes if len(shape) == dimensions}, empty=False)
        elif not seen.listed and clash == "raise":
            raise _contradiction(name, seen)
    return Feature(_public(merged), shape=() if merged == "json" else shape, optional=optional)


def _public(kind: str) -> str:
    return "int64" if kind == "count" else kind


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

    A value that no feature takes counts as json, too: its writer refuses it with the record.
    """
    if isinstance(value, list | tuple):
        return _type_of_list(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _type_of_array(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return image_type(bytes(value[:16])) or "bytes", ()
    if isinstance(value, str):
        return "text", ()
    if isinstance(value, bool):
        return "bool", ()
    if isinstance(value, int):
        wide = "uint64" if 0 <= value < 2 * INT64_LIMIT else "json"
        return ("int64" if value < 0 else "count") if -INT64_LIMIT <= value < INT64_LIMIT else wide, ()
    if isinstance(value, float | complex):
        return "float64" if isinstance(value, float) else "complex128", ()
    # A Pillow image is written as a PNG.
    return "image" if hasattr(value, "getbands") else "json", ()


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


def _type_of_list(items: Sequence[Any]) -> tuple[str | None, tuple[int, ...]]:
    if not items:
        return None, ()
    kinds, shapes = zip(*map(_type_of, items), strict=True)
    merged = None if None in kinds else join_types(kinds)
    if merged in (None, "json") or len(set(shapes)) > 1:
        return "json", ()
    if shapes[0] and merged in ("text", "bytes", "bool", *_ABOVE["jpeg"], "png", "webp", "tiff"):
        return "json", ()
    return merged, (len(items), *shapes[0])


def _contradiction(name: str, seen: _Seen) -> SchemaError:
    places: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for form, count in seen.forms.items():
        places.setdefault(_public(form[0]), seen.examples[form][0])
        counts[_public(form[0])] += count
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
        if kind == "json" and declared is not None and declared.kind in {"bytes", "image"}:
            continue
        try:
            for value in values:
                Feature(kind).fit(value, name)
        except SchemaError:
            continue
        return f"say what is meant with {keep_as(name, kind)}"
    return f"leave the feature out with {keep_as(name, None)}"


def without_skip(error: ShardioError) -> ShardioError:
    """Return an error without the advice to skip records, for callers that skip none."""
    error.advice = (error.advice or "").removesuffix(SKIP).removesuffix(", or ") or None
    return error


# ------------------------------------------------------------------ resolving


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
    notes: Sequence[str] = ()
    names: frozenset[str] | None = None
    numbers: Mapping[str, tuple[int, ...]] = {}


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
    if source.payloads:
        found, notes = _resolve_payloads(source, pieces, schema, encoding, dataset)
    else:
        if dataset is not None and encoding is None and not isinstance(schema, Schema):
            own = None if source.schema is None else source.schema.encoding
            # Only values that have feature lists are written with them.
            nested = {own == "sequence_example", dataset.encoding == "sequence_example"}
            encoding = dataset.encoding if len(nested) == 1 else None
        found, notes = _resolve_values(source, pieces, schema, encoding, lenient=lenient)
    if found is None:
        return Resolved(None, notes)
    names = None if found.sequence_features else frozenset(found)
    if dataset is not None:
        if found.encoding == dataset.encoding and not source.payloads:
            found = _as_in_dataset(source, found, dataset, schema)
        if found.encoding == dataset.encoding:
            _check_units(source, found, dataset, schema)
        found = found.completed(dataset).keeping_optional(dataset)
    return Resolved(found, notes, names, _numbers(source, found))


def _resolve_values(
    source: ForeignSource, pieces: Sequence[Piece], schema: Any, encoding: str | None, *, lenient: bool
) -> tuple[Schema | None, list[str]]:
    if isinstance(schema, Schema):
        for name, known in source.known().items() if source.declared else ():
            if isinstance(known, Unreadable) and name in schema and schema[name].type != known.keep:
                advice = f"declare it as {known.keep}" if known.keep else "leave it out of the schema"
                raise SchemaError(known.reason, advice=advice)
        return Schema.parse(schema, encoding=encoding), []
    if source.schema is not None:
        # Values are written anew, under the names that readers see.
        fields = source.schema.fields.items()
        held = source.schema.with_fields({place: each.replace(stored_name=None) for place, each in fields})
        if mds_layout(held.encoding) is not None:  # samples of MDS are read, and never written
            encoding = encoding or "example"
        if encoding not in (None, held.encoding) and not held.sequence_features:
            held = Schema(held, encoding=encoding)
        return resolve_stored(schema, held.encoding, held), []
    samples = [] if source.declared else sample_records(source, pieces)
    found = infer_from_values(
        source, samples, schema, encoding=encoding, clash="most" if lenient else "raise"
    )
    given = schema or {}
    return found, source.schema_notes({n: each for n, each in (found or {}).items() if n not in given})


def _resolve_payloads(
    source: ForeignSource, pieces: Sequence[Piece], schema: Any, encoding: str | None, dataset: Schema | None
) -> tuple[Schema | None, list[str]]:
    """Return the schema of records that are copied as they are: each is held against it, and notes."""
    if source.schema is not None and not isinstance(schema, Schema):
        return source.schema, []
    keys = {} if isinstance(schema, Schema) else source.key_types()
    found = resolve_records(
        lambda given: infer_records("tfrecord", sample_records(source, pieces), given),
        schema, encoding, dataset, keys=keys,
    )  # fmt: skip
    notes, wanted, report = [*found.notes], found.schema, found.report
    seen = [] if report is None else [*report.features.values(), *report.feature_lists.values()]
    hidden = {each.name for each in seen}
    if wanted is not None and (hidden := hidden - wanted.names_in_records):
        names = ", ".join(map(repr, sorted(hidden)))
        notes += [f"records are copied as they are: they still hold {names}, which no reader sees"]
    return wanted, notes


def resolve_records(
    infer: Callable[[Mapping[str, Any]], Inferred],
    given: Any,
    encoding: str | None,
    dataset: Schema | None,
    *,
    in_place: bool = False,
    keys: Mapping[str, Feature] = MappingProxyType({}),
) -> Inferred:
    """Return the schema of records that stay as they are: copied by a conversion, or adopted.

    Args:
        infer: returns the schema that the records have by themselves, from the features that `given` settles.
        given: by the caller: a whole schema; types of some features, None for one to remove; False for no
            schema; None for that of the dataset, or the inferred one.
        encoding: by the caller; of a mapping with another encoding than the records', it is the whole schema.
        dataset: schema of the dataset that they are added to.
        in_place: the records are adopted, and read by the dataset's schema: others of its records may hold
            the features that it does not name, and a caller may have removed those.
        keys: features that follow the records.

    Raises:
        SchemaError: values of a feature contradict each other, or no schema reads the records and the
            dataset's.
        ValueError, TypeError: `given` is not a schema, or removes a feature that does not exist.
    """
    if given is False:
        return Inferred()
    if isinstance(given, Schema):
        return Inferred(Schema.parse(given, encoding=encoding))
    # Arrays and bytes name no feature that could be inferred.
    alike = dataset is not None and (in_place or dataset.encoding in ("array", "bytes"))
    if alike and given is encoding is None:
        return Inferred(dataset)
    if encoding is None and given and given.keys() <= {"context", "feature_lists"}:
        nested = any(isinstance(part, Mapping) for part in given.values())
        encoding = "sequence_example" if nested else None
    found = Inferred(dataset) if in_place and dataset is not None else infer(given or {})
    if found.schema is None and given is None:
        if dataset is None:
            return found
        raise SchemaError(
            "the source's records are not tf.train.Examples, and those of the dataset have the encoding "
            f"{dataset.encoding!r}",
            advice="where they hold the dataset's features under the names that its records have, say so "
            "with schema=shardio.open(URL).schema; else write them into a dataset of their own",
        )
    schema = resolve_stored(given, encoding, found.schema, dataset=None if in_place else dataset, keys=keys)
    whole = found.schema is None or encoding not in (None, found.schema.encoding)
    if whole or (given and found.schema is not None and found.schema.encoding == "bytes"):
        return Inferred(schema, mixed=found.mixed, report=found.report)
    return found._replace(schema=schema)


def resolve_stored(
    given: Any,
    encoding: str | None,
    held: Schema | None,
    *,
    dataset: Schema | None = None,
    keys: Mapping[str, Feature] = MappingProxyType({}),
) -> Schema | None:
    """Return a schema with the changes that the caller makes to some features.

    Args:
        given: by the caller: types of some features, None for one to remove.
        encoding: by the caller; of a mapping that says another one than records have, it is the whole schema.
        held: the schema of the records, of their dataset or inferred; None where they are bytes.
        dataset: schema of the dataset that they are added to: its features are read as they are there.
        keys: features that follow the records.

    Raises:
        SchemaError: the dataset has a feature of the records under another name.
        ValueError, TypeError: the argument is not a schema, or removes a feature that does not exist.
    """
    if held is None or encoding not in (None, held.encoding) or (given and held.encoding == "bytes"):
        removed = next((name for name, feature in (given or {}).items() if feature is None), None)
        if removed is not None:
            raise ValueError(
                f"feature {removed!r}: null removes a feature, and these records have no schema yet"
            )
        return (
            None if given is None and held is None else Schema.parse(given or held or {}, encoding=encoding)
        )
    if dataset is not None and dataset.encoding == held.encoding:
        held = _added(held, dataset)
    keys = {name: feature for name, feature in keys.items() if name not in held}
    if keys and held.encoding in ("example", "sequence_example"):
        held = held.changed({"context": keys} if held.encoding == "sequence_example" else keys)
    return _changed_schema(held, given) if given else held


def _added(held: Schema, dataset: Schema) -> Schema:
    """Return the schema of a dataset, with the other features that records hold."""
    new = {place: feature for place, feature in held.fields.items() if place not in dataset.stored}
    for place in new.keys() & dataset.fields.keys():
        raise SchemaError(
            f"the source's records hold {place[1]!r}, and those of the dataset that feature under "
            f"another name, {dataset.fields[place].stored_name!r}",
            advice="convert the source into a separate dataset, and append that",
        )
    return held.with_fields({**dataset.fields, **new})


def _changed_schema(held: Schema, changes: Mapping[str, Any]) -> Schema:
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

    # A name that no feature can have is in no schema.
    changes = {name: each for name, each in changes.items() if each is not None or accepts(check_name, name)}
    return held.changed({name: kept_optional(held.get(name), feature) for name, feature in changes.items()})


# ------------------------------------------------------------------ appending


def _said_groups(found: Schema, given: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what a caller says of features, and of feature lists."""
    if isinstance(given, Schema):
        return given.groups
    said = given or {}
    nested = found.encoding == "sequence_example"
    return (said.get("context", {}), said.get("feature_lists", {})) if nested else (said, {})


def _check_units(source: ForeignSource, found: Schema, dataset: Schema, given: Any) -> None:
    """Refuse columns that count what the dataset's times and decimals don't, or values without a unit."""
    for name, feature in found.items():
        if name not in dataset or name in _said_groups(found, given)[0]:
            continue
        unit, wanted = getattr(source.known().get(name), "unit", ""), dataset[name].unit
        ours, theirs = TimeUnit.parse(unit), TimeUnit.parse(wanted)
        if unit != wanted and not (ours and theirs and ours.kind == theirs.kind):
            none = "values of which nothing says what they count"
            advice = "cast the column to what the dataset has, or say that its values count the same with "
            raise SchemaError(
                f"column {name!r} is {unit or none}, and the dataset has {wanted or none}",
                expected=wanted or dataset[name].short, found=unit or feature.short,
                advice=advice + keep_as(name, dataset[name].short),
            )  # fmt: skip


def _as_in_dataset(source: ForeignSource, found: Schema, dataset: Schema, given: Any) -> Schema:
    """Return a schema in which features that the caller says nothing of are what the dataset has.

    Values are held against that one by one. Classes are numbered as in the dataset, and new ones follow.

    Raises:
        SchemaError: a feature's values are none of the dataset's type, or it lacks what all records have.
    """
    said = _said_groups(found, given)
    for group, name, feature in [] if isinstance(given, Schema) else found.missing_features(dataset):
        if name not in said[group == "feature_lists"]:
            raise SchemaError(
                f"the source has no feature {name!r}, which all records of the dataset have",
                expected=feature.short, found=", ".join(found),
                advice="let records lack it: shardio schema set URL --feature "
                f'\'{name}={{"type": "{feature.short}", "optional": true}}\'',
            )  # fmt: skip
    told = {"label"} if source.options.classes is not None and source.names_classes else set()
    fields = dict(found.fields)
    for (group, name), known in dataset.fields.items():
        if (group, name) in fields:
            feature, words = fields[group, name], said[group == "feature_lists"]
            fields[group, name] = (
                _in_unit(feature, known, words.get(name))
                if name in words or name in told
                else _as_known(source, name, feature, known)
            )
    return found.with_fields(fields)


def _in_unit(feature: Feature, known: Feature, given: Any) -> Feature:
    """Return a feature whose times are converted to the dataset's unit, unless the caller names another."""
    named = isinstance(given, Feature) and given.unit
    return feature.replace(unit=known.unit) if known.unit and not named else feature


def _as_known(source: ForeignSource, name: str, feature: Feature, known: Feature) -> Feature:
    """Return what a feature of a source becomes in a dataset that has one of its name."""
    if feature.classes is not None:
        if known.classes is None:
            raise SchemaError(
                f"the source names classes of {name!r}, and the dataset has numbers without names",
                expected=known.short, found=shown_json(feature.classes),
                advice="name the classes in the order of the dataset's numbers, for this feature in schema=",
            )  # fmt: skip
        new = [each for each in feature.classes if each not in set(known.classes)]
        # Numbers in feature lists stay as they are: of those that differ the writer says so.
        nested = source.schema is not None and source.schema.encoding == "sequence_example"
        return feature if nested else known.replace(classes=(*known.classes, *new))
    words = known.classes is not None and feature.type == "text" and feature.shape == known.shape
    same = known.kind == feature.kind and known.kind in ("number", "image")
    if not (words or same or known.type in (feature.type, "json") or (source.fits_text and not known.shape)):
        raise SchemaError(
            f"the source holds the feature {name!r} as {feature.short}, and the dataset has another type",
            expected=known.short, found=feature.short,
            advice=f"where its records can be read so, make it {feature.short} in the dataset, too, with "
            f"{keep_as(name, feature.short)}",
        )  # fmt: skip
    return known.replace(optional=known.optional or feature.optional)


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


# ------------------------------------------------------------------ stored records

_DICTS: Mapping[str, tuple[type[WebDataset | JsonLines], Framing]] = {
    "webdataset": (WebDataset, Framing.TAR_SAMPLE),
    "jsonl": (JsonLines, Framing.LINES),
}
# Name, encoding, and size in bytes where it is fixed, of each column of MDS samples.
MdsLayout = Sequence[tuple[str, str, int | None]]


class Inferred(NamedTuple):
    """A schema and its origin.

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


def infer_records(
    kind: str, samples: Sequence[Sample], given: Mapping[str, Any], layout: MdsLayout = ()
) -> Inferred:
    """Return the schema of records as they are stored, whether they are converted or adopted.

    Args:
        kind: "tfrecord", "webdataset", "jsonl" or "mds".
        samples: some records, as payloads.
        given: features that the caller changes afterwards.
        layout: the columns of MDS samples.

    Raises:
        SchemaError: values of another feature contradict each other.
        FormatError, ValueError: a payload is no such record.
    """
    payloads = [each.value for each in samples]
    if kind == "tfrecord":
        try:
            held, report = infer_schema(payloads)
        except (CorruptRecordError, ValueError):
            return Inferred(records=len(payloads))
        # Records of which no feature can be read are bytes.
        empty = not len(held) and not held.sequence_features
        return Inferred(None if empty else held, len(payloads), report.notes(), report)
    if kind == "mds":
        return _infer_mds(layout, samples, given)
    if not samples:
        return Inferred()
    of_kind, framing = _DICTS[kind]
    read = [each._replace(value=of_kind.of_payload(each.value)) for each in samples]
    source = of_kind("", SourceOptions())
    try:
        schema = infer_from_values(source, read, None, settled=given)
    except SchemaError:
        raise
    except ValueError as error:  # more keys than a schema may have features
        whole = Schema({"json": Feature("json")}, encoding="bytes") if kind == "jsonl" else None
        return Inferred(whole, len(read), [f"the records have no schema: {error}"])
    assert schema is not None  # noqa: S101 - all values are mappings
    present = Counter(name for each in read for name in each.value)
    notes = [
        f"{name}: missing in {len(read) - present[name]:,} of {len(read):,} records, so it is optional"
        for name in schema
        if present[name] < len(read)
    ]
    notes += [*source.schema_notes(schema), *_misfits(schema, framing, payloads)]
    return Inferred(schema, len(payloads), notes)


def _infer_mds(layout: MdsLayout, samples: Sequence[Sample], given: Mapping[str, Any]) -> Inferred:
    """Return the types that the columns declare, and of the others those of their values."""
    columns = mds_columns(*map(list, zip(*layout, strict=True)))
    read = [each._replace(value=decode_mds_sample(each.value, columns)) for each in samples]
    known = {column.name: column.feature for column in columns}
    known |= {
        each.name: Feature("bytes") for each in columns if each.trouble or not (samples or each.feature)
    }
    declared = {name: each for name, each in known.items() if each}
    schema = infer_from_values(JsonLines("", SourceOptions()), read, declared, settled=given)
    assert schema is not None  # noqa: S101 - all values are mappings
    notes = [f"{column.trouble}, so it is bytes" for column in columns if column.trouble]
    schema = Schema({each.name: schema[each.name] for each in columns}, encoding=mds_encoding(layout))
    return Inferred(schema, len(samples), notes, declared=all(known.values()))


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
