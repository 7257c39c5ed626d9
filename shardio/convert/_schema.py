"""The schema that a source is converted with: given, of the dataset, declared by the source, or inferred."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from shardio.convert._infer import infer_from_values
from shardio.convert._stored import Inferred, infer_records
from shardio.errors import SchemaError, ShardioError, StorageError
from shardio.formats import ForeignSource, Piece, Sample, TimeUnit, Unreadable, keep_as, shown_json
from shardio.metadata import Feature, Schema, mds_layout

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
        held = source.schema.with_groups(
            {name: feature.replace(stored_name=None) for name, feature in group.items()}
            for group in source.schema.groups
        )
        if mds_layout(held.encoding) is not None:  # samples of MDS are read, and never written
            encoding = encoding or "example"
        if encoding not in (None, held.encoding) and not held.sequence_features:
            held = Schema(held, encoding=encoding)
        return resolve_stored(schema, held.encoding, held), []
    samples = [] if source.declared else _look(source, pieces)
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
    if dataset is not None and dataset.encoding in ("array", "bytes") and schema is encoding is None:
        # Such records name no feature, so nothing is inferred.
        return dataset, []
    whole = isinstance(schema, Schema)
    found = Inferred() if whole else infer_records("tfrecord", [each.value for each in _look(source, pieces)])
    notes, own, report = [*found.notes], found.schema, found.report
    if own is None and schema is None:
        if dataset is None:
            return None, notes
        raise SchemaError(
            "the source's records are not tf.train.Examples, and those of the dataset have the encoding "
            f"{dataset.encoding!r}",
            advice="where they hold the dataset's features under the names that its records have, say so "
            "with schema=shardio.open(URL).schema; else write them into a dataset of their own",
        )
    keys = {} if whole else source.key_types()
    wanted = resolve_stored(schema, encoding, own, dataset=dataset, keys=keys)
    seen = [] if report is None else [*report.features.values(), *report.feature_lists.values()]
    hidden = {each.name for each in seen} | (own.names_in_records if own is not None else set())
    if wanted is not None and (hidden := hidden - wanted.names_in_records):
        names = ", ".join(map(repr, sorted(hidden)))
        notes += [f"records are copied as they are: they still hold {names}, which no reader sees"]
    return wanted, notes


def resolve_stored(
    given: Any,
    encoding: str | None,
    held: Schema | None,
    *,
    dataset: Schema | None = None,
    keys: Mapping[str, Feature] = MappingProxyType({}),
) -> Schema | None:
    """Return the schema of records that stay as they are, for conversion and adoption alike.

    Args:
        given: by the caller: a whole schema; or types of some features, None for one to remove.
        encoding: by the caller; of a mapping that says another one than records have, it is the whole schema.
        held: the schema of the records, of their dataset or inferred; None where they are bytes.
        dataset: schema of the dataset that they are added to: its features are read as they are there.
        keys: features that follow the records.

    Raises:
        SchemaError: the dataset has a feature of the records under another name.
        ValueError, TypeError: the argument is not a schema, or removes a feature that does not exist.
    """
    if isinstance(given, Schema):
        return Schema.parse(given, encoding=encoding)
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
        held = held.with_groups(map(_added, held.groups, dataset.groups))
    keys = {name: feature for name, feature in keys.items() if name not in held}
    if keys and held.encoding in ("example", "sequence_example"):
        held = held.changed({"context": keys} if held.encoding == "sequence_example" else keys)
    return _changed_schema(held, given) if given else held


def _added(ours: Mapping[str, Feature], theirs: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the features of a dataset, and those that records hold besides."""
    read = {feature.stored_name or name for name, feature in theirs.items()}
    new = {name: feature for name, feature in ours.items() if name not in read}
    for name in new.keys() & theirs.keys():
        raise SchemaError(
            f"the source's records hold {name!r}, and those of the dataset that feature under "
            f"another name, {theirs[name].stored_name!r}",
            advice="convert the source into a separate dataset, and append that",
        )
    return {**theirs, **new}


def _changed_schema(held: Schema, said: Mapping[str, Any]) -> Schema:
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


# ------------------------------------------------------------------ appending


def _said_groups(found: Schema, given: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what a caller says of features, and of feature lists."""
    if isinstance(given, Schema):
        return given.groups
    said = given or {}
    nested = found.encoding == "sequence_example"
    return (said.get("context", {}), said.get("feature_lists", {})) if nested else (said, {})


def _check_units(source: ForeignSource, found: Schema, dataset: Schema, given: Any) -> None:
    """Refuse columns that count other times than the dataset, or times beside numbers without a unit."""
    for name, feature in found.items():
        if name not in dataset or name in _said_groups(found, given)[0]:
            continue
        known = source.known().get(name)
        unit, wanted = getattr(known, "unit", ""), dataset[name].unit
        ours, theirs = TimeUnit.parse(unit), TimeUnit.parse(wanted)
        same = ours == theirs or (ours and theirs and ours.kind == theirs.kind)
        if same or unit == wanted or dataset[name].kind not in ("number", "json"):
            continue
        none = "numbers of which nothing says what they count"
        advice = "cast the column to what the dataset has, or say that its numbers count the same with "
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
    return found.with_groups(
        {
            name: feature
            if name not in theirs
            else _in_unit(feature, theirs[name], words.get(name))
            if name in words or name in told
            else _as_known(source, name, feature, theirs[name])
            for name, feature in ours.items()
        }
        for ours, theirs, words in zip(found.groups, dataset.groups, said, strict=True)
    )


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


def read_samples(source: ForeignSource, piece: Piece) -> Iterator[Any]:
    """Yield what a source reads of a piece; running out of memory is an error that names its file.

    Raises:
        StorageError: there is no memory for a record.
        Exception: what the source raises.
    """
    try:
        yield from source.read(piece)
    except MemoryError as error:
        raise StorageError(
            "there is no memory for a record",
            url=piece.url,
            found=str(error) or None,
            advice="the record is within the limits: read it on a machine with more memory",
        ) from error


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
            for found in itertools.islice(read_samples(source, piece), LOOK_AT):
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
