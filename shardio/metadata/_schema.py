"""The schema of a dataset as a value: features by name, the encoding of a record, and what may follow what.

A schema is written once, by the writer, and stored in the manifest; readers need no second definition.  The
newest schema reads all older records: `Schema.incompatibility` says why it could not.

Below the value: its rules; its message (the normative text is protos/shardio/v1/manifest.proto, and what was
stored is checked as if a caller gave it); its JSON, for command lines and files.
"""

from __future__ import annotations

import base64
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from shardio.display import html_table, plural
from shardio.errors import FormatError, SchemaError, UnsupportedVersionError
from shardio.format import parse_json
from shardio.metadata._changes import (
    CHANGES,
    Difference,
    Place,
    compare,
    refuse_classes,
    refuse_values,
)
from shardio.metadata._feature import ANNOTATIONS, Feature, Stored, checked_text, restored
from shardio.metadata._kinds import kind_of
from shardio.metadata._mds import mds_layout
from shardio.metadata._numbers import describe, shape_fits, short_form
from shardio.v1 import manifest_pb2 as pb

_MAX_FEATURES = 10_000
_MAX_FEATURES_IN_ALL = 50 * _MAX_FEATURES  # in the schemas of a dataset, which every reader holds
_CLASSES_SHOWN = 10
# Columns that streams add to a batch.
_RESERVED = frozenset({"_position", "_valid"})
GROUPS = ("context", "feature_lists")
_BASE64 = "$base64"
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EXAMPLE = '{"label": "int64", "box": {"type": "float32[4]", "optional": true}}'


class Schema(Mapping[str, Feature]):
    """Features by name, in order, and the encoding that turns a value into a record's payload.

    A mapping of the features; in a "sequence_example" these are the context, and `sequence_features` are the
    feature lists.  Immutable, hashable, picklable.  Two schemas are equal when features and encoding are.

    Examples:
        >>> schema = Schema.parse(
        ...     {"image": "jpeg", "label": "int64", "box": Feature("float32[4]", optional=True)}
        ... )
        >>> schema["label"].short
        'int64'
    """

    __slots__ = ("_features", "_sequence", "encoding", "fields", "stored")

    def __init__(
        self,
        features: Mapping[str, Any],
        *,
        encoding: str = "example",
        sequence_features: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a schema of features, each a `Feature` or what `Feature` takes.

        Raises:
            TypeError: the features are not a mapping, or a type is not one.
            ValueError: a name or a combination of features that the encoding cannot hold; names the feature.
        """
        groups = (features, sequence_features or {})
        self.fields: Mapping[Place, Feature] = MappingProxyType(_parse_fields(groups))
        self.stored = {
            (group, feature.stored_name or name): (name, feature)
            for (group, name), feature in self.fields.items()
        }
        self._features, self._sequence = (
            MappingProxyType({name: each for (group, name), each in self.fields.items() if group == wanted})
            for wanted in GROUPS
        )
        self.encoding = encoding
        _check_schema(self)

    @classmethod
    def parse(cls, mapping: Mapping[str, Any], *, encoding: str | None = None) -> Schema:
        """Make a schema of a mapping of names to short strings or `Feature`s.

        With the encoding "sequence_example" the mapping has the keys "context" and "feature_lists", as the
        values will have; a feature list's feature describes one step.

        Args:
            mapping: the features, or a ready Schema, which is returned as it is.
            encoding: one of `ENCODINGS`; None is "example", or the encoding of a ready Schema.

        Raises:
            ValueError, TypeError: no schema; names the feature.
        """
        if isinstance(mapping, Schema):
            if encoding not in (None, mapping.encoding):
                raise ValueError(f"the schema has encoding {mapping.encoding!r} already, not {encoding!r}")
            return mapping
        context, lists = _given_groups(mapping, encoding or "example")
        return cls(context, encoding=encoding or "example", sequence_features=lists)

    @property
    def sequence_features(self) -> Mapping[str, Feature]:
        """The feature lists of a "sequence_example", a step each; empty for other encodings."""
        return self._sequence

    @property
    def groups(self) -> tuple[Mapping[str, Feature], Mapping[str, Feature]]:
        """The features, and the feature lists of a "sequence_example"; empty for other encodings."""
        return self._features, self._sequence

    @property
    def shown(self) -> dict[str, Feature]:
        """All features as people see them: names of feature lists begin with `[] `."""
        return {f"{'[] ' * (group == GROUPS[1])}{name}": each for (group, name), each in self.fields.items()}

    def with_fields(self, fields: Mapping[Place, Feature]) -> Schema:
        """Return a schema of other features, by group and name; this one where they are the same."""
        if fields == self.fields:
            return self
        context, lists = (
            {name: each for (group, name), each in fields.items() if group == wanted} for wanted in GROUPS
        )
        return Schema(context, encoding=self.encoding, sequence_features=lists)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold and `parse_schema_json` reads: all but the encoding."""
        return self._in_groups(_to_json)

    def _in_groups(self, convert: Callable[[Feature], Any]) -> dict[str, Any]:
        context, lists = ({name: convert(each) for name, each in group.items()} for group in self.groups)
        return {"context": context, "feature_lists": lists} if self._is_nested else context

    @property
    def _is_nested(self) -> bool:
        return self.encoding == "sequence_example"

    def differences(self, older: Schema) -> list[Difference]:
        """Return the differences from an older schema; features are matched by their stored names."""
        return [*compare(older.stored, self.stored)]

    def incompatibility(self, older: Schema) -> str | None:
        """Say why records written with `older` cannot be read through this schema; None when they can.

        A feature may be added when it is optional, dropped, made optional or given another default. It may
        widen: from a fixed size to `?` (one at most), from jpeg and its like to image, from text to bytes.
        New classes may be added at the end. Features are the same where records hold them under one name.
        """
        if self.encoding != older.encoding:
            return f"the encoding changes from {older.encoding!r} to {self.encoding!r}"
        for each in self.differences(older):
            if each.reason is not None:
                return f"feature {each.name!r}: {each.reason}"
        shapes = {
            (group, entry): name
            for (group, _), (name, feature) in older.stored.items()
            for entry in _entries(name, feature)[1:]
        }
        for place, (name, _) in self.stored.items():
            if place in shapes:
                was = f"older records keep the shape of {shapes[place]!r} under the name {place[1]!r}"
                return f"feature {name!r}: {was}"
        return None

    def check_reads(self, older: Schema) -> None:
        """Raise SchemaError when records written with `older` cannot be read through this schema."""
        reason = self.incompatibility(older)
        if reason is not None:
            what = f"the schema cannot read the dataset's older records: {reason}"
            advice = (
                "keep the feature as it was and add a new one under another name, or write a new dataset"
                if self.encoding == older.encoding
                else f"write the records with encoding={older.encoding!r}, or into a dataset of their own"
            )
            raise SchemaError(what, advice=advice)

    def _removed(self, newest: Schema) -> dict[Place, Feature]:
        """Return the features of a dataset's newest schema that this one has not, nor another of the name."""
        removed = (each for each in self.differences(newest) if each.kind == "removed")
        places = {(each.group, each.name): each.old for each in removed}
        return {place: feature for place, feature in places.items() if place not in self.fields}

    def missing_features(self, newest: Schema) -> list[tuple[str, str, Feature]]:
        """Return the required features of a dataset's newest schema that records of this one do not have.

        Of each the group, the name and itself.
        """
        return [(*place, each) for place, each in self._removed(newest).items() if not each.optional]

    def check_lacks_nothing(self, newest: Schema) -> None:
        """Raise SchemaError where an append by this schema would take a required feature from all readers.

        The schema of the last append is that of the dataset, so readers would not see it in older records.
        """
        for group, name, feature in self.missing_features(newest) if self.encoding == newest.encoding else ():
            change = f'{{"{name}": shardio.Feature("{feature.short}", optional=True)}}'
            change = f'{{"{group}": {change}}}' if self._is_nested else change
            raise SchemaError(
                f"schema= has no feature {name!r}, which all records of the dataset have",
                expected=feature.short,
                found=", ".join(name for _, name in self.fields),
                advice="omit schema=, and write the feature; or let records lack it: "
                f"shardio.set_schema(URL, {change})",
            )

    def completed(self, newest: Schema) -> Schema:
        """Return this schema as an append to a dataset means it.

        Classes, descriptions, units and stored names that it does not give are those of the dataset's newest
        schema; of two lists of classes, one of which begins with the other, the longer one counts.

        Raises:
            SchemaError: a feature of the same name is stored under another one, or numbers other classes.
        """
        if self.encoding != newest.encoding:
            return self
        fields = {place: _stored_as(place, feature, newest) for place, feature in self.fields.items()}
        changes = self.with_fields(fields).differences(newest)
        retyped = {each[1:3] for each in changes if each.kind == "values" and each.old.type != each.new.type}
        for kind, group, name, old, new in changes:
            place = group, name
            if kind in ("unit", "description") and not new:
                fields[place] = fields[place].replace(**{kind: old})
            elif kind == "classes" and old and place not in retyped:
                if new is None or old[: len(new)] == new:
                    fields[place] = fields[place].replace(classes=old)
                elif (reason := refuse_classes(old, new)) is not None:
                    raise SchemaError(
                        f"feature {name!r} numbers its classes in another way than the dataset: {reason}",
                        advice="name the dataset's classes first, in its order, then new ones; "
                        "`shardio info --json` lists them",
                    )
        return self.with_fields(fields)

    def keeping_optional(self, newest: Schema) -> Schema:
        """Return this schema with what its records may lack and readers of the dataset find all the same.

        That is the optional features of the dataset's newest schema, and that a feature of its is optional.
        """
        if self.encoding != newest.encoding:
            return self
        fields = dict(self.fields)
        for kind, group, name, old, new in self.differences(newest):
            if kind != "values" or not old.optional or new.has_default:
                continue
            lenient = fields[group, name].replace(optional=True)
            if refuse_values(old, lenient) is None:
                # A default fits the wider type, too: its stored form is the same.
                default = None if old.stored_default is None else lenient.restore(old.stored_default)
                fields[group, name] = lenient.replace(default=default)
        lacking = {place: each for place, each in self._removed(newest).items() if each.optional}
        return self.with_fields(fields | lacking)

    def renamed(self, names: Mapping[str, str]) -> Schema:
        """Return a schema in which features have other names for readers; records keep theirs.

        Args:
            names: new names by the old ones. In a sequence example, where a feature of the context and a
                feature list have one name, the old one is written as `context/NAME` or `feature_lists/NAME`.

        Raises:
            ValueError: there is no such feature, it is not clear which is meant, or two would have one name.
        """
        chosen = {self._place_of(name): new for name, new in names.items()}
        fields: dict[Place, Feature] = {}
        for (group, name), feature in self.fields.items():
            new = chosen.get((group, name), name)
            if (group, new) in fields:
                raise ValueError(f"two features would be called {new!r}")
            changed = feature if new == name else feature.replace(stored_name=feature.stored_name or name)
            fields[group, new] = changed
        return self.with_fields(fields)

    def _place_of(self, name: str) -> Place:
        """Return the place of a feature that a caller names."""
        prefix = "{}/" if self._is_nested else ""
        found = [place for place in self.fields if name in (place[1], prefix.format(place[0]) + place[1])]
        if len(found) > 1:
            raise ValueError(
                f"the context and the feature lists both have {name!r}: "
                f"write 'context/{name}' or 'feature_lists/{name}'"
            )
        if not found:
            known = ", ".join(sorted({name for _, name in self.fields}))
            raise ValueError(f"there is no feature {name!r} to rename; there are {known or 'none'}")
        return found[0]

    def changed(self, features: Mapping[str, Any]) -> Schema:
        """Return a schema in which some features are others, or new; None in place of one takes it away.

        Args:
            features: as `parse` takes them; of a sequence example in `{"context": {...}, "feature_lists":
                {...}}`.

        Raises:
            ValueError, TypeError: no feature, or none of a name that is to be taken away.
        """
        given = _given_groups(features, self.encoding) if features else ({}, {})
        fields = dict(self.fields)
        for place, feature in _places(given).items():
            if feature is not None:
                parsed = _parse_feature(place[1], feature)
                if place in self.fields and parsed.stored_name is None:
                    parsed = parsed.replace(stored_name=self.fields[place].stored_name)
                fields[place] = parsed
            elif fields.pop(place, None) is None:
                names = ", ".join(name for group, name in self.fields if group == place[0])
                raise ValueError(
                    f"there is no feature {place[1]!r} to take away; there are {names or 'none'}"
                )
        return self.with_fields(fields)

    def changes_since(self, older: Schema) -> list[str]:
        """Return what readers see differently than through an older schema, a line each."""
        lines = [] if self.encoding == older.encoding else [f"encoding {older.encoding} -> {self.encoding}"]
        return lines + [each.line for each in self.differences(older)]

    def append_to(self, schemas: tuple[Schema, ...]) -> tuple[Schema, ...]:
        """Return the schemas of a dataset, oldest first, that had `schemas` and continues with this one.

        Raises:
            SchemaError: records of an older one cannot be read through it; names the feature.
        """
        if not schemas or self == schemas[-1]:
            return schemas or (self,)
        for older in schemas:
            self.check_reads(older)
        # Where annotations alone have changed the records are the same, and the list need not grow.
        return (*(schemas[:-1] if self.differs_in_annotations(schemas[-1]) else schemas), self)

    def differs_in_annotations(self, older: Schema) -> bool:
        """Tell whether it differs from an older schema in new classes, descriptions and units alone."""
        same = all(CHANGES[each.kind].same_records for each in self.differences(older))
        return same and self.incompatibility(older) is None

    @property
    def stores_other_names(self) -> bool:
        """Whether a feature is stored under another name than readers know it by."""
        return any(feature.stored_name is not None for feature in self.fields.values())

    @property
    def names_in_records(self) -> frozenset[str]:
        """Under which names records hold what this schema reads."""
        return frozenset(entry for (_, name), each in self.fields.items() for entry in _entries(name, each))

    def to_message(self, known: dict[tuple[Place, Feature], int] | None = None) -> pb.Schema:
        """Return the message that manifests and receipts store.

        `known` are the features that are stored by earlier schemas of a manifest, by number; this one names
        them by these, and adds its own.
        """
        known, items = {} if known is None else known, [*self.fields.items()]
        new = [item for item in items if item not in known]
        known |= {item: number for number, item in enumerate(new, len(known))}
        shared = items if len(new) < len(items) else []
        specs = [[_spec(name, each) for (group, name), each in new if group == wanted] for wanted in GROUPS]
        numbers = [[known[item] for item in shared if item[0][0] == wanted] for wanted in GROUPS]
        return pb.Schema(
            encoding=self.encoding,
            features=specs[0],
            sequence_features=specs[1],
            feature_numbers=numbers[0],
            sequence_numbers=numbers[1],
        )

    @classmethod
    def from_message(cls, message: pb.Schema, known: list[tuple[str, Feature]] | None = None) -> Schema:
        """Return the schema that `to_message` stored; `known` are the features stored before, in order.

        Raises:
            UnsupportedVersionError: an encoding or a type that this version does not know.
            FormatError: anything else that is not a schema.
        """
        if message.encoding.partition(" ")[0] not in (*ENCODINGS, "mds"):
            what = f"the schema has the encoding {message.encoding!r}"
            advice = "a newer shardio wrote it: upgrade"
            raise UnsupportedVersionError(what, expected=" | ".join(ENCODINGS), advice=advice)
        if (count := _count_features(message)) > _MAX_FEATURES:
            what = "the schema has too many features"
            raise FormatError(what, expected=f"at most {_MAX_FEATURES}", found=count)
        try:
            groups = [[*map(_feature_from, specs)] for specs in (message.features, message.sequence_features)]
            new = groups[0] + groups[1]
            if message.feature_numbers or message.sequence_numbers:
                groups = _numbered(message, [] if known is None else [*known, *new], len(new))
            if known is not None:
                known += new
            features, lists = map(_by_name, groups)
            return cls(features, encoding=message.encoding, sequence_features=lists)
        except UnsupportedVersionError:
            raise
        except (ValueError, IndexError) as error:
            raise FormatError(f"the stored schema is damaged: {error}") from error

    def __getitem__(self, name: str) -> Feature:
        return self._features[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def _key(self) -> tuple[object, ...]:
        return (self.encoding, frozenset(self.fields.items()))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        suffix = "" if self.encoding == "example" else f", encoding={self.encoding!r}"
        shown = self._in_groups(lambda each: each.short if each == Feature(each.short) else each)
        return f"Schema.parse({shown!r}{suffix})"

    def __str__(self) -> str:
        """Return a line for each feature: name, type, and what else the schema says."""
        return "\n".join(f"{name}: {kind}{f' ({more})' if more else ''}" for name, kind, more in self._rows())

    def _repr_html_(self) -> str:
        return html_table(list(self._rows()), head=("feature", "type", ""))

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        return ((name, feature.short, _more(feature)) for name, feature in self.shown.items())

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(Schema, encoding=self.encoding, sequence_features=dict(self._sequence))
        return make, (dict(self._features),)


def _given_groups(given: Mapping[str, Any], encoding: str) -> tuple[Any, Any]:
    """Return the features and the feature lists that a caller gives.

    Raises:
        ValueError: those of a sequence example are not given in two parts.
    """
    if encoding != "sequence_example":
        return given, {}
    if not given or not set(given) <= {*GROUPS}:
        wanted = 'features of sequence examples are {"context": {...}, "feature_lists": {...}}'
        raise ValueError(f"{wanted}; found the keys {', '.join(map(str, given)) or 'of an empty mapping'}")
    return given.get("context", {}), given.get("feature_lists", {})


def _places(groups: Iterable[Any]) -> dict[Place, Any]:
    """Return the given features by group and name."""
    places: dict[Place, Any] = {}
    for group, given in zip(GROUPS, groups, strict=True):
        if not isinstance(given, Mapping):
            raise TypeError(f"a schema is a mapping of feature names to types, not {describe(given)}")
        places |= {(group, name): feature for name, feature in given.items()}
    return places


def _parse_fields(groups: Iterable[Any]) -> dict[Place, Feature]:
    """Return features, of which none says that it is stored under the name that it has."""
    fields = {place: _parse_feature(place[1], given) for place, given in _places(groups).items()}
    same = [place for place, feature in fields.items() if feature.stored_name == place[1]]
    return fields | {place: fields[place].replace(stored_name=None) for place in same}


def _parse_feature(name: str, given: Any) -> Feature:
    if isinstance(given, Feature):
        return given
    try:
        return Feature(given)
    except (ValueError, TypeError) as error:
        raise type(error)(f"feature {name!r}: {error}") from error


def _more(feature: Feature) -> str:
    """Return what there is to say about a feature besides name and type."""
    words = ["optional"] if feature.optional else []
    if feature.classes is not None:
        shown = ", ".join(feature.classes[:_CLASSES_SHOWN])
        words.append(f"{plural(len(feature.classes), 'class', 'classes')}: {shown}")
        words[-1] += ", ..." if len(feature.classes) > _CLASSES_SHOWN else ""
    if feature.stored_name is not None:
        words.append(f"stored as {feature.stored_name}")
    words += filter(None, (feature.unit, feature.description))
    return "; ".join(words)


def _entries(name: str, feature: Feature) -> list[str]:
    """Return under which names a record holds a feature, and its shape where more than one size is open."""
    stored = feature.stored_name or name
    return [stored, *([f"{stored}/shape"] if feature.unknown_dimensions > 1 else [])]


def _stored_as(place: Place, feature: Feature, newest: Schema) -> Feature:
    """Return a feature under the name that records of a dataset hold it by.

    Raises:
        SchemaError: the dataset has it under another name.
    """
    group, name = place
    same = newest.fields.get(place)
    stored = feature.stored_name or (same.stored_name if same is not None else None) or name
    called, _ = newest.stored.get((group, stored), (name, None))
    if feature.stored_name is None and called != name:
        raise SchemaError(
            f"feature {name!r} is called {called!r} in this dataset; records alone hold it as {name!r}",
            advice=f"write it as {called!r}",
        )
    if same is not None and stored != (same.stored_name or name):
        raise SchemaError(
            f"feature {name!r} is stored as {same.stored_name or name!r} in this dataset",
            found=f"stored_name={feature.stored_name!r}",
            advice="leave stored_name= out, or give the new feature another name",
        )
    return feature.replace(stored_name=stored)


def _check_schema(schema: Schema) -> None:
    """Raise ValueError for a name or a combination of features that the encoding cannot hold."""
    layout = mds_layout(schema.encoding)
    if layout is None and schema.encoding not in ENCODINGS:
        raise ValueError(f"unknown encoding {schema.encoding!r}; the encodings are {', '.join(ENCODINGS)}")
    if len(schema.fields) > _MAX_FEATURES:
        raise ValueError(f"a schema of {len(schema.fields)} features; at most {_MAX_FEATURES}")
    if schema.sequence_features and schema.encoding != "sequence_example":
        raise ValueError(f'feature lists need the encoding "sequence_example", not {schema.encoding!r}')
    for name, feature in schema.sequence_features.items():
        if feature.has_default:
            message = f"feature {name!r}: a feature list has no default; optional=True reads as no steps"
            raise ValueError(message)
    owners: dict[Place, str] = {}
    for (group, name), feature in schema.fields.items():
        check_name(name)
        check_name(name if feature.stored_name is None else feature.stored_name)
        for entry in _entries(name, feature):
            other = owners.setdefault((group, entry), name)
            if other != name:
                raise ValueError(
                    f"features {other!r} and {name!r} would both be stored as {entry!r}; "
                    "give one of them another stored_name="
                )
    if layout is not None:
        columns = {name for name, _, _ in layout}
        for (_, column), (name, _) in schema.stored.items():
            if column not in columns:
                raise ValueError(f"feature {name!r}: the samples have no column {column!r}")
    refuse = ENCODINGS.get(schema.encoding)
    if refuse is not None and (reason := refuse(schema)) is not None:
        raise ValueError(reason)


def _tensors_refuse(schema: Schema) -> str | None:
    for name, feature in schema.items():
        if not feature.rules.in_tensors:
            return f"feature {name!r}: TensorProto has no type for {feature.type}; use another encoding"
    return None


def _array_refuses(schema: Schema) -> str | None:
    feature = next(iter(schema.values()), None)
    numbers = feature is not None and feature.dtype is not None and None not in feature.shape
    if len(schema) == 1 and numbers and feature is not None and not feature.optional:
        return None
    return f'the encoding "array" holds one required feature of numbers and fixed shape, not {schema!r}'


def _bytes_refuse(schema: Schema) -> str | None:
    plain = [each for each in schema.values() if each.dtype is None and not each.shape and not each.optional]
    if len(schema) <= 1 and len(plain) == len(schema):
        return None
    return f'the encoding "bytes" holds one required bytes, text, image or json feature, not {schema!r}'


# By name, a function that says why the encoding cannot hold the features of a schema; None if it holds all.
ENCODINGS: dict[str, Callable[[Schema], str | None] | None] = {
    "example": None,
    "sequence_example": None,
    "tensors": _tensors_refuse,
    "array": _array_refuses,
    "bytes": _bytes_refuse,
}


def check_name(name: object) -> None:
    """Raise TypeError or ValueError, with the reason, for what cannot be the name of a feature."""
    checked_text(
        "a feature's name" if not isinstance(name, str) else f"feature name {short_form(name)!r}", name
    )
    if name in _RESERVED:
        raise ValueError(f"feature name {name!r} is taken: streams add a column of that name")


def schemas_to_messages(schemas: Iterable[Schema]) -> list[pb.Schema]:
    """Return the messages of a manifest's schemas, oldest first; each feature is stored once.

    Raises:
        FormatError: they hold too many features together.
    """
    known: dict[tuple[Place, Feature], int] = {}
    messages = [schema.to_message(known) for schema in schemas]
    _check_counts(messages)
    return messages


def schemas_from_messages(messages: Iterable[pb.Schema]) -> tuple[Schema, ...]:
    """Return the schemas that `schemas_to_messages` stored; see `Schema.from_message`."""
    known: list[tuple[str, Feature]] = []
    _check_counts(messages)
    return tuple(Schema.from_message(message, known) for message in messages)


def _check_counts(messages: Iterable[pb.Schema]) -> None:
    if (count := sum(map(_count_features, messages))) > _MAX_FEATURES_IN_ALL:
        raise FormatError(
            "the schemas of a dataset have too many features together",
            expected=f"at most {_MAX_FEATURES_IN_ALL}",
            found=count,
            advice="write a new dataset with the newest schema",
        )


def _count_features(message: pb.Schema) -> int:
    stored = len(message.features) + len(message.sequence_features)
    return max(stored, len(message.feature_numbers) + len(message.sequence_numbers))


def _spec(name: str, feature: Feature) -> pb.FeatureSpec:
    """Return the message of a feature."""
    said = {word: value or ANNOTATIONS[word] for word, value in feature.annotations.items()}
    return pb.FeatureSpec(
        name=name,
        type=feature.type,
        shape=[-1 if size is None else size for size in feature.shape],
        optional=feature.optional,
        has_default=feature.has_default,
        default=feature.default_items or (),
        default_shape=[size or 0 for size in feature.default_shape],
        **said,
    )


def _feature_from(spec: pb.FeatureSpec) -> tuple[str, Feature]:
    """Return the name and the feature of a stored message.

    Raises:
        UnsupportedVersionError: a type that this version does not know.
        ValueError: anything else that is not a feature; names it.
    """
    try:
        kind_of(spec.type)
    except ValueError as error:
        what = f"feature {spec.name!r} has the type {spec.type!r}"
        raise UnsupportedVersionError(what, advice="a newer shardio wrote it: upgrade") from error
    shape = tuple(None if size == -1 else size for size in spec.shape)
    try:
        stored = _stored_default(spec, Feature(spec.type, shape=shape)) if spec.has_default else None
        annotations = {name: getattr(spec, name) or nothing for name, nothing in ANNOTATIONS.items()}
        return spec.name, restored(spec.type, shape, stored, spec.optional, annotations)
    except ValueError as error:
        raise ValueError(f"feature {spec.name!r}: {error}") from error


def _numbered(
    message: pb.Schema, known: list[tuple[str, Feature]], own: int
) -> list[list[tuple[str, Feature]]]:
    """Return the features and feature lists of a schema that names them by number.

    Args:
        message: as stored.
        known: all features that are stored up to this schema; empty where none may be numbered.
        own: how many of these, the last ones, the schema stores itself.

    Raises:
        ValueError, IndexError: a number of no feature, or a stored feature without its number.
    """
    numbers = message.feature_numbers, message.sequence_numbers
    if not {*range(len(known) - own, len(known))} <= {*numbers[0], *numbers[1]}:
        raise ValueError("it stores a feature that it does not have")
    return [[known[number] for number in each] for each in numbers]


def _by_name(group: list[tuple[str, Feature]]) -> dict[str, Feature]:
    features = dict(group)
    if len(features) < len(group):
        raise ValueError("a feature is stored twice")
    return features


def _stored_default(spec: pb.FeatureSpec, feature: Feature) -> Stored:
    """Return the stored default after the checks that `fit` makes for a value given by a caller."""
    items, dtype = list(spec.default), feature.dtype
    if dtype is None:
        sizes: tuple[int, ...] = (len(items),) if feature.shape else ()
        right = bool(feature.shape) or len(items) == 1
    else:
        sizes = tuple(spec.default_shape)
        # Python's integers do not overflow, and the product is compared with bytes that are there.
        right = len(items) == 1 and math.prod(sizes) * dtype.itemsize == len(items[0])
    if not (right and shape_fits(feature.shape, sizes)):
        raise ValueError(f"its default does not fit {feature.short}")
    stored: Stored = items if dtype is None else np.frombuffer(items[0], dtype).reshape(sizes)
    feature.restore(stored)  # text must be UTF-8, and json JSON
    return stored


def parse_schema_json(text: str | bytes) -> dict[str, Any]:
    """Return the mapping that `Schema.parse` takes.

    Args:
        text: an object of features by name: short strings; objects with the arguments of `Feature`; null for
            a feature that a converter leaves out. For sequence examples
            `{"context": {...}, "feature_lists": {...}}`. In a default, bytes are `{"$base64": "..."}`, floats
            without a numeral `"NaN"`, `"Infinity"`, `"-Infinity"`, complex numbers `"1+2j"`.

    Raises:
        ValueError: it is not such an object; names the feature.

    Examples:
        >>> parse_schema_json('{"label": {"type": "int64", "default": -1}}')
        {'label': Feature('int64', default=-1)}
    """
    try:
        given = parse_json(text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        raise ValueError(f"the schema is not JSON ({error}); try {_EXAMPLE}") from None
    if not isinstance(given, dict):
        message = f"a schema is an object of features by name, not {describe(given)}; try {_EXAMPLE}"
        raise ValueError(message)  # noqa: TRY004 - what is wrong is the text
    if given.keys() <= {*GROUPS} and all(
        isinstance(part, dict) and not isinstance(part.get("type"), str) for part in given.values()
    ):
        return {name: _json_features(part, f"{name}/") for name, part in given.items()}
    return _json_features(given, "")


def _json_features(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {name: _json_feature(f"{where}{name}", value) for name, value in given.items()}


def _json_feature(name: str, given: Any) -> Feature | None:
    if given is None:
        return None
    given = {"type": given} if isinstance(given, str) else given
    known = list(inspect.signature(Feature).parameters)
    if not isinstance(given, dict) or not isinstance(given.get("type"), str):
        wrong = f"expected a type as a string, or an object with {', '.join(known)}"
    elif not given.keys() <= set(known):
        wrong = f"{min(given.keys() - set(known))!r} is not known; an object has {', '.join(known)}"
    elif not isinstance(given.get("optional", False), bool):
        wrong = "optional is true or false"
    else:
        try:
            feature = Feature(**{**given, "default": None})
            default = given.get("default")
            return feature if default is None else feature.replace(default=_json_default(feature, default))
        except (TypeError, ValueError) as error:
            wrong = str(error)
    raise ValueError(f"feature {name!r} of the schema: {wrong}")


def _json_default(feature: Feature, value: Any) -> Any:
    """Return a default as `Feature` takes it; JSON has no bytes, NaN or complex numbers of its own."""
    if feature.kind == "json":
        return value
    if isinstance(value, list):
        return [_json_default(feature, item) for item in value]
    if isinstance(value, dict) and value.keys() == {_BASE64} and isinstance(value[_BASE64], str):
        return base64.b64decode(value[_BASE64], validate=True)
    if isinstance(value, str) and feature.dtype is not None and feature.classes is None:
        return complex(value) if feature.dtype.kind == "c" else _FLOATS.get(value, value)
    return value


def _to_json(feature: Feature) -> Any:
    out: dict[str, Any] = {"type": feature.short}
    if feature.has_default:
        out["default"] = _default_to_json(feature)
    elif feature.optional:
        out["optional"] = True
    for name, value in feature.annotations.items():
        if value != ANNOTATIONS[name]:
            out[name] = list(value) if isinstance(value, tuple) else value
    return out if len(out) > 1 else feature.short


def _default_to_json(feature: Feature) -> Any:
    value = feature.default
    if feature.rules.in_json:
        return value
    if feature.dtype is None:
        # As they are stored: a tensor's elements alone do not say of which type they are.
        items = [{_BASE64: base64.b64encode(item).decode()} for item in feature.default_items or ()]
        return items if feature.shape else items[0]
    if feature.type == "bfloat16":  # stored as its bits
        value = (np.asarray(value).astype(np.uint32) << 16).view(np.float32)
    return _number_to_json(value.tolist())


def _number_to_json(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_number_to_json, value))
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, complex) else value
