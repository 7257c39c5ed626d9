"""The schema of a dataset as a value: features by name, the encoding of a record, and what may follow what.

A schema is written once, by the writer, and stored in the manifest; readers need no second definition.  The
newest schema reads all older records: `Schema.incompatibility` says why it could not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from shardio.errors import FormatError, SchemaError, UnsupportedVersionError
from shardio.metadata._feature import Feature
from shardio.metadata._schema_messages import features_from, fill_spec
from shardio.metadata._schema_rules import ENCODINGS, MAX_FEATURES, check_schema, why_not
from shardio.metadata._types import describe
from shardio.v1 import manifest_pb2 as pb

__all__ = ["ENCODINGS", "Feature", "Schema"]


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

    __slots__ = ("_features", "_sequence", "encoding")

    def __init__(
        self,
        features: Mapping[str, Feature],
        *,
        encoding: str = "example",
        sequence_features: Mapping[str, Feature] | None = None,
    ) -> None:
        """Make a schema of ready features; `Schema.parse` takes short strings too.

        Raises:
            ValueError: a name or a combination of features that the encoding cannot hold; names the feature.
        """
        self._features = MappingProxyType(dict(features))
        self._sequence = MappingProxyType(dict(sequence_features or {}))
        self.encoding = encoding
        check_schema(self)

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
                message = f"the schema has encoding {mapping.encoding!r} already, not {encoding!r}"
                raise ValueError(message)
            return mapping
        if encoding != "sequence_example":
            return cls(_parse_features(mapping), encoding=encoding or "example")
        extra = sorted(str(key) for key in mapping if key not in ("context", "feature_lists"))
        if extra or not mapping:
            message = (
                'the schema of a "sequence_example" is {"context": {...}, "feature_lists": {...}}'
                f"; found the keys {', '.join(map(str, mapping)) or 'of an empty mapping'}"
            )
            raise ValueError(message)
        return cls(
            _parse_features(mapping.get("context", {})),
            encoding=encoding,
            sequence_features=_parse_features(mapping.get("feature_lists", {})),
        )

    @property
    def sequence_features(self) -> Mapping[str, Feature]:
        """The feature lists of a "sequence_example", a step each; empty for other encodings."""
        return self._sequence

    def to_mapping(self) -> dict[str, Any]:
        """Return the mapping that `parse` takes: short strings where they say all, else `Feature`s."""
        context = _mapping_of(self._features)
        if self.encoding != "sequence_example":
            return context
        return {"context": context, "feature_lists": _mapping_of(self._sequence)}

    def incompatibility(self, older: Schema) -> str | None:
        """Say why records written with `older` cannot be read through this schema; None when they can.

        A feature may be added when it is optional, dropped, made optional, given another default; it may
        widen from a fixed size to `?` (one at most), from jpeg and its like to image, from text to bytes.
        """
        if self.encoding != older.encoding:
            return f"the encoding changes from {older.encoding!r} to {self.encoding!r}"
        for ours, theirs in ((self._features, older._features), (self._sequence, older._sequence)):
            for name, feature in ours.items():
                reason = why_not(feature, theirs.get(name))
                if reason is not None:
                    return f"feature {name!r}: {reason}"
        return None

    def check_reads(self, older: Schema) -> None:
        """Raise SchemaError when records written with `older` cannot be read through this schema."""
        reason = self.incompatibility(older)
        if reason is not None:
            what = f"the schema cannot read the dataset's older records: {reason}"
            advice = "keep the feature as it was and add a new one under another name, or write a new dataset"
            raise SchemaError(what, advice=advice)

    def to_message(self) -> pb.Schema:
        """Return the message that manifests and receipts store."""
        message = pb.Schema(encoding=self.encoding)
        for target, features in (
            (message.features, self._features),
            (message.sequence_features, self._sequence),
        ):
            for name, feature in features.items():
                fill_spec(target.add(), name, feature)
        return message

    @classmethod
    def from_message(cls, message: pb.Schema) -> Schema:
        """Return the schema that `to_message` stored.

        Raises:
            UnsupportedVersionError: an encoding or a type that this version does not know.
            FormatError: anything else that is no schema.
        """
        if message.encoding not in ENCODINGS:
            what = f"the schema has the encoding {message.encoding!r}"
            advice = "a newer shardio wrote it: upgrade"
            raise UnsupportedVersionError(what, expected=" | ".join(ENCODINGS), advice=advice)
        if len(message.features) + len(message.sequence_features) > MAX_FEATURES:
            what = "the schema has too many features"
            raise FormatError(what, expected=f"at most {MAX_FEATURES}", found=len(message.features))
        try:
            groups = [features_from(specs) for specs in (message.features, message.sequence_features)]
            return cls(groups[0], encoding=message.encoding, sequence_features=groups[1])
        except UnsupportedVersionError:
            raise
        except ValueError as error:
            what = f"the stored schema is damaged: {error}"
            raise FormatError(what) from error

    def __getitem__(self, name: str) -> Feature:
        return self._features[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def _key(self) -> tuple[object, ...]:
        return (self.encoding, frozenset(self._features.items()), frozenset(self._sequence.items()))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        suffix = "" if self.encoding == "example" else f", encoding={self.encoding!r}"
        return f"Schema.parse({self.to_mapping()!r}{suffix})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (dict(self._features), self.encoding, dict(self._sequence))


def _remake(features: dict[str, Feature], encoding: str, sequence: dict[str, Feature]) -> Schema:
    return Schema(features, encoding=encoding, sequence_features=sequence)


def _parse_features(mapping: object) -> dict[str, Feature]:
    if not isinstance(mapping, Mapping):
        message = f"a schema is a mapping of feature names to types, not {describe(mapping)}"
        raise TypeError(message)
    features = {}
    for name, given in mapping.items():
        if isinstance(given, Feature):
            features[name] = given
        elif isinstance(given, str):
            try:
                features[name] = Feature(given)
            except ValueError as error:
                message = f"feature {name!r}: {error}"
                raise ValueError(message) from error
        else:
            message = f"feature {name!r}: a type is a short string or a Feature, not {describe(given)}"
            raise TypeError(message)
    return features


def _mapping_of(features: Mapping[str, Feature]) -> dict[str, Any]:
    return {name: feature if feature.optional else feature.short for name, feature in features.items()}
