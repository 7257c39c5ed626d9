"""The schema of records as they are stored, for conversion and adoption alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shardio.codecs import InferenceReport, decode_mds_sample, infer_schema, mds_columns
from shardio.convert._infer import infer_from_values
from shardio.convert._jsonl import JsonLines
from shardio.convert._webdataset import WebDataset
from shardio.errors import CorruptRecordError, FormatError, SchemaError
from shardio.format import Framing
from shardio.formats import ForeignSource, Sample, SourceOptions
from shardio.metadata import Feature, Schema, mds_encoding
from shardio.reader import value_codec

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
    if schema is not None:
        present = Counter(name for value in values for name in value)
        missing = {name: len(values) - present[name] for name in schema}
        notes = [
            f"{name}: missing in {count:,} of {len(values):,} records, so it is optional"
            for name, count in missing.items()
            if count
        ] + notes
    elif kind == "jsonl":
        schema = JSON_LINES
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
    notes: list[str] = []
    try:
        schema = infer_from_values(source, samples, known, notes, clash="json")
    except ValueError as error:
        return None, [f"the records have no schema: {error}"]
    return schema, [*notes, *source.schema_notes(schema or {})]


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
