"""The schema of an adopted dataset: given, kept or inferred, and whether it reads all records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio.adoption._commit import RootedEntry
from shardio.adoption._layout import AdoptTarget
from shardio.adoption._scan import ScanOptions
from shardio.adoption._shard import ShardOutcome
from shardio.catalog import Version
from shardio.codecs import InferenceReport
from shardio.convert import Inferred, MdsLayout, changed_schema, infer_records
from shardio.errors import (
    FormatError,
    SchemaError,
    ShardioError,
    StorageError,
)
from shardio.format import Compression, Framing
from shardio.metadata import Schema, ShardEntry, ShardTable, mds_encoding
from shardio.reader import ReadOptions, RecordSequence, ShardSource, value_codec
from shardio.sources import TfdsFolder, format_of_name
from shardio.storage import Store, connect
from shardio_indexer._lines import LineContent

_MOST_SHARDS = 32
_MOST_ROWS = 1024  # of all of them
_MOST_BYTES = 32 << 20


def check_reads(schema: Schema, table: ShardTable, stores: Mapping[int, Store]) -> list[str]:
    """Decode a few records of many shards through a schema; return names that it does not have.

    Raises:
        SchemaError: one does not fit; names the feature.
    """
    unnamed: dict[str, None] = {}
    for framing in np.unique(table.framing).tolist():
        part = table.take(np.flatnonzero(table.framing == framing))
        payloads = _sample(part, stores)
        if not payloads:
            continue
        try:
            values = value_codec([framing], schema).decode_many(payloads)
        except (ShardioError, ValueError) as error:
            # The number of a record in this sample says nothing. Whole lines want one feature, and other
            # lines no other encoding than "example".
            fields = error.fields() if isinstance(error, ShardioError) else {}
            raise SchemaError(
                f"the schema does not read the records: {getattr(error, 'what', error)}",
                expected=fields.get("expected"),
                found=fields.get("found"),
                advice="give another schema, or adopt them as a dataset of their own, with into=",
            ) from error
        if framing in (int(Framing.TAR_SAMPLE), int(Framing.LINES)) and schema.encoding != "bytes":
            unnamed |= dict.fromkeys(name for value in values for name in value)
    return [name for name in unnamed if name not in schema and name != "__key__"]


def check_lines(schema: Schema | None, table: ShardTable, stores: Mapping[int, Store]) -> None:
    """Decode every line of shards that were indexed for another schema: which were looked at for that one.

    Raises:
        SchemaError: one does not fit, with its place.
    """
    part = table.take(np.flatnonzero(table.framing == int(Framing.LINES)))
    if not len(part):
        return
    try:
        source = ShardSource("", part, stores, ReadOptions(), schema)
        for _ in RecordSequence(source):
            pass
    except StorageError:
        raise
    except ShardioError as error:
        raise SchemaError(
            f"the schema does not read the lines: {error.what}",
            **{
                **error.fields(),
                "advice": "give another schema, or correct the line and adopt the file again",
            },
        ) from error


def _sample(table: ShardTable, stores: Mapping[int, Store]) -> list[bytes]:
    """Return payloads spread over many shards."""
    chosen = np.flatnonzero(table.rows > 0)
    if not len(chosen):
        return []
    spread = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), _MOST_SHARDS)).astype(np.int64)]
    part = table.take(spread)
    source = ShardSource("", part, stores, ReadOptions(decode=False), None)
    payloads: list[bytes] = RecordSequence(source).read(_positions(part))
    return payloads


def _positions(table: ShardTable) -> NDArray[np.int64]:
    """Return positions spread over every shard; of a compressed one the first, for it may be a stream."""
    mean = float(table.decoded_bytes.sum()) / float(table.rows.sum())
    most = max(1, min(_MOST_ROWS // len(table), int(_MOST_BYTES / max(1.0, mean) / len(table))))
    starts = np.cumsum(table.rows) - table.rows
    out = []
    for number in range(len(table)):
        rows = int(table.rows[number])
        count = min(rows, most)
        plain = int(table.compression[number]) == int(Compression.NONE)
        own = np.linspace(0, rows - 1, count).astype(np.int64) if plain else np.arange(count)
        out.append(own + int(starts[number]))
    return np.concatenate(out)


class ResolvedSchema(NamedTuple):
    """The schema that the dataset will have, and what it rests on.

    Attributes:
        schema: for all of its records; None where they have none.
        metadata: goes into the free metadata.
        notes: what deserves attention.
        replaces: it takes the place of the schema that the dataset has.
        report: what it rests on, where it was inferred.
    """

    schema: Schema | None
    metadata: dict[str, Any]
    notes: list[str]
    replaces: bool = False
    report: InferenceReport | None = None


def partition_outcomes(
    outcomes: Iterable[ShardOutcome], known: Iterable[ShardEntry]
) -> tuple[list[ShardOutcome], list[ShardOutcome]]:
    """Return the outcomes that can be committed, and those that cannot, each with its error.

    A split holds records of one kind: that of the shards it has, else that of most of the new ones.
    """
    kinds: dict[str, Counter[Framing]] = {}
    settled = {entry.split: entry.framing for entry in known}
    given = list(outcomes)
    for outcome in given:
        if outcome.entry is not None:
            kinds.setdefault(outcome.shard.split, Counter())[outcome.entry.framing] += 1
    for split, counts in kinds.items():
        settled.setdefault(split, counts.most_common(1)[0][0])
    good, bad = [], []
    for outcome in given:
        entry = outcome.entry
        if entry is None:
            bad.append(outcome)
        elif entry.framing is not settled[outcome.shard.split]:
            error = FormatError(
                f"split {outcome.shard.split!r} holds records of another kind",
                url=outcome.shard.url,
                expected=settled[outcome.shard.split].name,
                found=entry.framing.name,
                advice="give it a split of its own with split=, or a dataset of its own with into=",
            )
            bad.append(replace(outcome, entry=None, error=error))
        else:
            good.append(outcome)
    return good, bad


def line_content(
    wanted: Any,
    encoding: str | None,
    base: Version | None,
    known: Iterable[ShardEntry],
    formats: Iterable[str | None],
) -> LineContent | None:
    """Return what readers of the dataset will make of a line; None where each file's format says it.

    Args:
        wanted, encoding: what the caller says of the schema.
        base, known: the dataset that is there, and its shards.
        formats: of the files, as far as they are known.
    """
    if wanted is False:
        return "text"
    if wanted is None:
        schema = base.manifest.schema if base is not None else None
        if schema is None:
            return "text" if any(entry.framing is Framing.LINES and entry.rows for entry in known) else None
    else:
        if not isinstance(wanted, Schema) and encoding is None and "jsonl" in formats:
            # Features of the objects that the lines are.
            return None
        encoding = encoding or (wanted.encoding if isinstance(wanted, Schema) else "bytes")
        schema = wanted
    if isinstance(schema, Schema):
        encoding = schema.encoding
    if encoding != "bytes" or not _is_flat(schema):
        return "json" if any(entry.framing is Framing.LINES for entry in known) else None
    given = {name: feature for name, feature in schema.items() if feature is not None}
    kinds = {feature.kind for feature in Schema.parse(given).values()}
    return "json" if kinds == {"json"} else "text" if kinds == {"text"} else "bytes"


def resolve_schema(  # noqa: PLR0913 - what a schema depends on
    good: list[ShardOutcome],
    known: list[RootedEntry],
    *,
    wanted: Any,
    encoding: str | None,
    base: Version | None,
    target: AdoptTarget,
    options: ScanOptions,
    data_options: Mapping[str, Any] | None,
    tfds: TfdsFolder | None,
    mds: MdsLayout | None,
) -> ResolvedSchema:
    """Find the schema of the dataset with its new shards.

    Args:
        good: the new shards.
        known: the shards that the dataset has and keeps.
        wanted: what the caller says: a whole schema, features by name that are other than those there or
            inferred, False for no schema, None for what is there or can be inferred.
        encoding: how records hold the features of `wanted`; None for what is there or can be inferred.
        base: the version that the new one follows.
        target: place of the dataset.
        options: of the scan.
        data_options: storage options of the shards.
        tfds: what a folder of TensorFlow Datasets says of its records.
        mds: name, encoding and size of the columns of MDS samples.

    Raises:
        SchemaError: no one schema reads all records.
        ValueError, TypeError: what the caller gave is not a schema.
    """
    old = base.manifest.schema if base is not None else None
    new = [RootedEntry(outcome.shard.root, outcome.entry) for outcome in good if outcome.entry is not None]
    shards = _Shards(target, data_options, tfds, mds)
    table, stores = shards.open(new)
    metadata: dict[str, Any] = {} if tfds is None else {"tfds": dict(tfds.metadata)}
    notes: list[str] = []
    if wanted is not None:
        schema, report = _as_said(wanted, encoding, old, [*known, *new], options, shards, notes)
        if schema is not None and old is not None:
            # A number keeps meaning the class that it means.
            schema = schema.completed(old)
        replaces = base is not None and schema != old
        if replaces:
            _check_own(base, known, schema)
            table, stores = shards.open([*known, *new])
            check_lines(schema, table, stores)
        if schema is not None:
            notes += _unnamed(check_reads(schema, table, stores))
        if replaces and known:
            notes.append("the records that were part of the dataset before are read by the new schema, too")
            notes += schema.changes_since(old) if schema is not None and old is not None else []
        return ResolvedSchema(schema, metadata, notes, replaces=replaces, report=report)
    if old is not None:
        if mds and new and old.encoding != mds_encoding(mds):
            raise SchemaError(
                "these MDS shards have other columns than those of the dataset",
                url=target.place.url,
                expected=old.encoding,
                found=mds_encoding(mds),
                advice="adopt them as a dataset of their own, with into=",
            )
        notes += _unnamed(check_reads(old, table, stores))
        return ResolvedSchema(old, metadata, notes)
    before = [shard for shard in known if shard.entry.rows]
    if before:
        kinds, others = _ShardsByKind(new, options), _ShardsByKind(before, options)
        for kind in kinds.splits.keys() - others.splits.keys():
            if _infer_kind(kind, kinds, shards).schema is not None:
                raise _mixed(target, [*others.described(), *kinds.described()])
        return ResolvedSchema(None, metadata, notes)
    found = _infer(new, options, shards)
    if found.mixed:
        raise _mixed(target, found.mixed)
    if tfds is not None and found.schema is not None:
        notes += _unnamed(check_reads(found.schema, table, stores))
    return ResolvedSchema(found.schema, metadata, [*notes, *_said_of(found, table)], report=found.report)


def _unnamed(names: Sequence[str]) -> list[str]:
    """Return the note on names in records that a schema does not have."""
    shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
    what = f"records hold {shown}, which the schema does not name: they are given as they are stored"
    return [what] if names else []


def _said_of(found: Inferred, table: ShardTable) -> list[str]:
    """Return the notes on an inferred schema."""
    total = int(table.rows.sum())
    examples = bool(total and (table.framing == int(Framing.TFRECORD)).all())
    if found.schema is None and examples:
        return ["the records are not tf.train.Examples that a schema could describe: they are read as bytes"]
    if found.schema is None or found.declared:
        return list(found.notes)
    return [f"the schema was inferred from {found.records:,} of {total:,} records", *found.notes]


def _infer(rooted: Iterable[RootedEntry], options: ScanOptions, shards: _Shards) -> Inferred:
    """Return the schema that shards would have by themselves."""
    kinds = _ShardsByKind(rooted, options)
    inferred = [_infer_kind(kind, kinds, shards) for kind in kinds.splits]
    if len(inferred) == 1:
        return inferred[0]
    mixed = next((one.mixed for one in inferred if one.mixed), kinds.described())
    return Inferred(mixed=mixed if any(one.schema is not None or one.mixed for one in inferred) else ())


def _as_said(
    wanted: Any,
    encoding: str | None,
    old: Schema | None,
    rooted: list[RootedEntry],
    options: ScanOptions,
    shards: _Shards,
    notes: list[str],
) -> tuple[Schema | None, InferenceReport | None]:
    """Return the schema that a caller means, and what it rests on: a whole one, or changes to what is there.

    Changed is the dataset's schema, else the one that its records would have by themselves.
    """
    if wanted is False:
        return None, None
    if isinstance(wanted, Schema):
        if shards.mds and encoding is None:
            return Schema(wanted, encoding=mds_encoding(shards.mds)), None
        return Schema.parse(wanted, encoding=encoding), None
    nested = not _is_flat(wanted)
    kinds = {_kind(shard.entry, options) for shard in rooted}
    if kinds == {_TEXT}:
        encoding = encoding or "bytes"
    elif nested and (old is None or old.encoding != "sequence_example"):
        encoding = encoding or "sequence_example"
    found = Inferred(old)
    if old is None or (kinds == {_JSON} and old.encoding == "bytes"):
        found = _infer(rooted, options, shards)
    held = found.schema
    if held is not None and held.encoding != "bytes" and encoding in (None, held.encoding):
        if held is not old:
            notes += _said_of(found, shards.open(rooted)[0])
        return changed_schema(held, wanted), found.report
    without = next((name for name, feature in wanted.items() if feature is None), None)
    if without is not None:
        message = f"feature {without!r}: null takes a feature from a schema, and these records have none yet"
        raise ValueError(message)
    if found.mixed:
        notes.append("the shards hold records of different kinds: the schema given is the whole one")
    return Schema.parse(wanted, encoding=encoding), None


def _is_flat(schema: Any) -> bool:
    return isinstance(schema, Schema) or not any(isinstance(part, Mapping) for part in schema.values())


def _check_own(base: Version | None, known: Iterable[RootedEntry], schema: Schema | None) -> None:
    """Raise SchemaError where shardio wrote records with a schema that the new one cannot follow."""
    own = any(not shard.entry.adopted for shard in known)
    if not own or base is None:
        return
    if schema is None:
        raise SchemaError(
            "records of this dataset were written with a schema, which cannot be taken from them",
            advice="leave out schema=False",
        )
    if not base.manifest.schemas:
        raise SchemaError(
            "records of this dataset were written without a schema, and are bytes",
            advice="write them again with a schema into a dataset of their own",
        )
    for older in base.manifest.schemas:
        schema.check_reads(older)


class _ShardsByKind:
    """Shards by the kind of their records, and the splits of each kind."""

    def __init__(self, shards: Iterable[RootedEntry], options: ScanOptions) -> None:
        self.shards: dict[str, list[RootedEntry]] = {}
        self.splits: dict[str, set[str]] = {}
        for shard in shards:
            kind = _kind(shard.entry, options)
            self.shards.setdefault(kind, []).append(shard)
            self.splits.setdefault(kind, set()).add(shard.entry.split)

    def described(self) -> list[str]:
        """Return the splits with their kinds, for a message."""
        return [f"{split}: {kind}" for kind, splits in self.splits.items() for split in sorted(splits)]


_EXAMPLES, _TAR, _JSON, _TEXT = "TFRECORD records", "tar samples", "JSON lines", "lines of text"
_RAW = "MDS samples, or codewithgpu records"


def _kind(entry: ShardEntry, options: ScanOptions) -> str:
    if entry.framing is Framing.LINES:
        named = options.format or format_of_name(entry.key)
        json_lines = named == "jsonl" and options.lines in (None, "json")
        return _JSON if json_lines else _TEXT
    names = {Framing.TFRECORD: _EXAMPLES, Framing.TAR_SAMPLE: _TAR}
    return names.get(entry.framing, _RAW)


def _infer_kind(kind: str, kinds: _ShardsByKind, shards: _Shards) -> Inferred:
    """Return the schema that the records of one kind would have by themselves."""
    stored = {_JSON: "jsonl", _TAR: "webdataset", _EXAMPLES: "tfrecord", _RAW: "mds"}.get(kind)
    if stored is None or (stored == "mds" and not shards.mds):
        return Inferred()
    whole = infer_records(stored, _sample(*shards.open(kinds.shards[kind])), shards.mds or ())
    if kind != _EXAMPLES:
        return whole
    if shards.tfds is not None and (whole.schema is not None or not whole.records):
        return _declared(whole, shards.tfds)
    splits = kinds.splits[kind]
    if whole.schema is None and len(splits) > 1:
        # Where some are Examples and others are not, bytes for all would be a surprise.
        each = {}
        for split in sorted(splits):
            part = [shard for shard in kinds.shards[kind] if shard.entry.split == split]
            each[split] = infer_records("tfrecord", _sample(*shards.open(part))).schema is not None
        if any(each.values()):
            words = {True: "tf.train.Examples", False: "other records"}
            return Inferred(mixed=[f"{split}: {words[is_one]}" for split, is_one in each.items()])
    return whole


def _declared(inferred: Inferred, tfds: TfdsFolder) -> Inferred:
    """Return the schema that a folder of TensorFlow Datasets declares, and infer what it leaves open."""
    features = tfds.as_stored(inferred.schema or {})
    if not features:
        return inferred
    if not tfds.features:
        # An old folder, with names of classes and nothing else.
        return inferred._replace(schema=Schema(features))
    source = f"the schema is that of {tfds.url}/features.json"
    notes = [source, *tfds.notes()]
    return inferred._replace(schema=Schema(features), notes=notes, report=None, declared=True)


def _mixed(target: AdoptTarget, found: Sequence[str]) -> SchemaError:
    return SchemaError(
        "these shards hold records of different kinds, which no one schema reads",
        url=target.place.url,
        found="; ".join(dict.fromkeys(found)),
        advice="make each kind a dataset of its own, with into=; or adopt all of them with schema=False, "
        "which leaves records bytes, text or members of samples",
    )


class _Shards:
    """Opens shards by the URL of their roots."""

    def __init__(
        self,
        target: AdoptTarget,
        data_options: Mapping[str, Any] | None,
        tfds: TfdsFolder | None,
        mds: MdsLayout | None,
    ) -> None:
        self.target = target
        self.tfds = tfds
        self.mds = mds
        self._options = data_options
        self._stores: dict[str, Store] = {"": target.store}

    def open(self, shards: Iterable[RootedEntry]) -> tuple[ShardTable, dict[int, Store]]:
        """Return the shards as a table, and the stores of their data roots by its numbers."""
        entries = []
        for root, entry in shards:
            if root not in self._stores:
                given = self._options if "://" in root else None
                self._stores[root] = connect(root, storage_options=given)
            entries.append(replace(entry, root=list(self._stores).index(root)))
        return ShardTable.from_entries(entries), dict(enumerate(self._stores.values()))
