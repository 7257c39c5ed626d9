"""Infer the schema of Examples from some of them.

What a sample shows need not hold for the rest: the report says how many records were seen, and where kinds or
lengths differed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardio.arguments import accepts
from shardio.codecs._example import parsed_message
from shardio.errors import CorruptRecordError
from shardio.metadata import Feature, Schema, image_type
from shardio.reports import Report

_TYPES = {"int64_list": "int64", "float_list": "float32", "bytes_list": "bytes"}
_ITEMS_LOOKED_AT = 1000
_EMPTY = b"\n\x12\x00"  # of which records without features consist: two fields of no bytes


@dataclass(frozen=True)
class FeatureReport(Report):
    """What the records showed of one feature.

    Attributes:
        name: of the feature.
        type: short string in the inferred schema; None where the feature was left out.
        present: records (of a feature list: steps) that have it with a kind.
        missing: records that lack it, or have it without a kind.
        kinds: how often each kind was seen.
        shortest, longest: numbers of values.
        notes: what a reader of the schema should know, in sentences.
    """

    name: str
    type: str | None
    present: int
    missing: int
    kinds: Mapping[str, int]
    shortest: int
    longest: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class InferenceReport(Report):
    """What the records showed, feature by feature.

    Attributes:
        records: how many were looked at.
        features: by name; of a sequence example the context.
        feature_lists: of a sequence example, a step each.
    """

    records: int
    features: Mapping[str, FeatureReport] = field(default_factory=dict)
    feature_lists: Mapping[str, FeatureReport] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Return what deserves attention, a line each, with the feature's name."""
        both = [*self.features.values(), *self.feature_lists.values()]
        return [f"{feature.name}: {note}" for feature in both for note in feature.notes]

    def __str__(self) -> str:
        both = [*self.features.values(), *self.feature_lists.values()]
        lines = [f"{feature.name}: {feature.type or 'left out'}" for feature in both]
        return "\n".join([f"from {self.records} records", *lines, *self.notes()])


@dataclass
class _FeatureItems:
    listed: bool = False
    holders: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    counts: Counter[int] = field(default_factory=Counter)
    formats: Counter[str | None] = field(default_factory=Counter)
    text: bool = True

    def add(self, features: Iterable[Any]) -> None:
        """Add the feature of a record, or all steps of its feature list."""
        known = [(kind, getattr(each, kind).value) for each in features if (kind := each.WhichOneof("kind"))]
        self.holders += self.listed or bool(known)
        for kind, values in known:
            self.kinds[_TYPES[kind]] += 1
            self.counts[len(values)] += 1
            if kind == "bytes_list" and self.formats.total() < _ITEMS_LOOKED_AT:
                for value in values:
                    self.formats[image_type(value[:16])] += 1
                    self.text = self.text and accepts(bytes.decode, value)


def infer_schema(payloads: Iterable[bytes]) -> tuple[Schema, InferenceReport]:
    """Infer the schema of tf.train.Example (or SequenceExample) records.

    Constant numbers of values become fixed shapes, differing ones `?`; a feature that some records lack
    becomes optional.  Bytes that all begin as image files become that image type.  A feature whose kind
    differs between records, or that never has one, cannot be described and is left out.

    Args:
        payloads: some records, the more the better; all are looked at.

    Raises:
        CorruptRecordError: a record is no Example; `row` is its number within this call.
        ValueError: there is no record.
    """
    groups: tuple[dict[str, _FeatureItems], dict[str, _FeatureItems]] = ({}, {})
    records = 0
    for message in _messages(payloads):
        records += 1
        for name, feature in message.context.feature.items():
            groups[0].setdefault(name, _FeatureItems()).add([feature])
        for name, steps in message.feature_lists.feature_list.items():
            groups[1].setdefault(name, _FeatureItems(listed=True)).add(steps.feature)
    if not records:
        raise ValueError("a schema cannot be inferred from no records")
    features, lists = (
        {name: _conclude(name, group[name], records) for name in sorted(group)} for group in groups
    )
    schema = Schema(
        {name: feature for name, (_, feature) in features.items() if feature is not None},
        encoding="sequence_example" if lists else "example",
        sequence_features={name: feature for name, (_, feature) in lists.items() if feature is not None},
    )
    reports = ({name: report for name, (report, _) in group.items()} for group in (features, lists))
    return schema, InferenceReport(records, *reports)


def _messages(payloads: Iterable[bytes]) -> Iterator[Any]:
    """Parse records as SequenceExamples, of which an Example is one without feature lists."""
    from shardio.v1 import example_pb2

    for row, payload in enumerate(payloads):
        try:
            message = parsed_message(example_pb2.SequenceExample, payload, "tf.train.Example")
        except CorruptRecordError as error:
            raise error.located(row=row) from None
        # Other messages, such as TensorProtos, parse as Examples, too: as fields that these do not have.
        if not (message.context.feature or message.feature_lists.feature_list) and bytes(payload).strip(
            _EMPTY
        ):
            raise CorruptRecordError(
                "the record is not a tf.train.Example: it names no feature, and is not empty",
                row=row, advice="check that the records are of this kind",
            )  # fmt: skip
        yield message


def _conclude(name: str, seen: _FeatureItems, records: int) -> tuple[FeatureReport, Feature | None]:
    notes: list[str] = []
    missing, present = records - seen.holders, seen.kinds.total()
    feature = _described(seen, notes, optional=missing > 0)
    try:
        Schema({} if feature is None else {name: feature})
    except ValueError as error:
        notes.append(f"left out: {error}")
        feature = None
    if missing and present:
        notes.append(f"missing in {missing} of {records} records, so it is optional")
    shortest, longest = min(seen.counts, default=0), max(seen.counts, default=0)
    short = None if feature is None else feature.short
    kinds = dict(seen.kinds)
    return FeatureReport(name, short, present, missing, kinds, shortest, longest, tuple(notes)), feature


def _described(seen: _FeatureItems, notes: list[str], *, optional: bool) -> Feature | None:
    if not seen.kinds:
        notes.append("left out: no record gives it a kind")
        return None
    if len(seen.kinds) > 1:
        shown = ", ".join(f"{kind} in {count}" for kind, count in sorted(seen.kinds.items()))
        notes.append(f"left out: its kind differs ({shown})")
        return None
    (kind,) = seen.kinds
    if len(seen.counts) > 1:
        notes.append(f"its length differs, from {min(seen.counts)} to {max(seen.counts)} values")
    # An empty list says only that it may be empty.
    count = max(seen.counts) if len(seen.counts) == 1 else 0
    shape = () if count == 1 else (count or None,)
    if kind == "bytes":
        kind = _file_type(seen, notes)
    return Feature(kind, shape=shape, optional=optional)


def _file_type(seen: _FeatureItems, notes: list[str]) -> str:
    formats = {name for name in seen.formats if name}
    if formats and None not in seen.formats:
        return formats.pop() if len(formats) == 1 else "image"
    if seen.text and seen.formats:
        notes.append("its bytes are UTF-8 so far; declare it as text if all of them are")
    return "bytes"
