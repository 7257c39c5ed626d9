"""The schema of an adopted dataset: given, kept or inferred, and whether it reads all records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shardio.adoption._commit import RootedEntry
from shardio.adoption._layout import AdoptTarget
from shardio.adoption._scan import ScanOptions
from shardio.adoption._shard import ShardOutcome
from shardio.catalog import Version
from shardio.convert import Inferred, MdsLayout, infer_records, resolve_records, without_skip
from shardio.errors import (
    FormatError,
    SchemaError,
    ShardioError,
    StorageError,
)
from shardio.format import Framing
from shardio.formats import Sample
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
        payloads = [each.value for each in _sample(part, stores)]
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


def _sample(table: ShardTable, stores: Mapping[int, Store]) -> list[Sample]:
    """Return the first payloads of shards that are spread over all, as conversion looks at sources."""
    chosen = np.flatnonzero(table.rows > 0)
    if not len(chosen):
        return []
    part = table.take(chosen[:: -(-len(chosen) // _MOST_SHARDS)])
    mean = float(part.decoded_bytes.sum()) / float(part.rows.sum())
    most = max(1, min(_MOST_ROWS, int(_MOST_BYTES / max(1.0, mean))) // len(part))
    stops = np.cumsum(part.rows)
    ends = zip(stops.tolist(), part.rows.tolist(), strict=True)
    firsts = [np.arange(stop - rows, stop - max(0, rows - most)) for stop, rows in ends]
    source = ShardSource("", part, stores, ReadOptions(decode=False), None)
    payloads = RecordSequence(source).read(np.concatenate(firsts))
    urls = [stores[entry.root].url_of(entry.key) for entry in part]
    places = [f"{url} row {row}" for url, rows in zip(urls, firsts, strict=True) for row in range(len(rows))]
    return [*map(Sample, places, payloads)]


class ResolvedSchema(NamedTuple):
    """The schema that the dataset will have, and what it rests on.

    Attributes:
        schema: for all of its records; None where they have none.
        metadata: goes into the free metadata.
        notes: what deserves attention.
        replaces: it takes the place of the schema that the dataset has.
    """

    schema: Schema | None
    metadata: dict[str, Any]
    notes: list[str]
    replaces: bool = False


def partition_outcomes(
    outcomes: Iterable[ShardOutcome], known: Iterable[ShardEntry]
) -> tuple[list[ShardOutcome], list[ShardOutcome]]:
    """Return the outcomes that can be committed, and those that cannot, each with its error.

    Raises:
        SchemaError: a split would hold records of two kinds.
    """
    kinds = {entry.split: entry.framing for entry in known if entry.rows}
    good, bad = [], []
    # Empty files come last: they have no kind, but that of their split.
    for outcome in sorted(outcomes, key=lambda each: each.entry is not None and not each.entry.rows):
        entry, url = outcome.entry, outcome.shard.url
        if entry is None:
            bad.append(outcome)
        elif kinds.setdefault(entry.split, entry.framing) is entry.framing:
            good.append(outcome)
        elif entry.rows:
            folder, _, name = url.rpartition("/")
            files = f"{folder}/*.{name.partition('.')[2]}" if "." in name else "@list.txt with their names"
            raise SchemaError(
                f"split {entry.split!r} holds records of two kinds",
                url=url,
                expected=f"{kinds[entry.split].name}, as in the other shards",
                found=entry.framing.name,
                advice=f"make a dataset of each kind: name its files, as {files}, and its place with into=",
            )
        else:
            error = FormatError("an empty file of another kind than its split", url=url)
            bad.append(replace(outcome, entry=None, error=error))
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


def resolve_schema(
    good: list[ShardOutcome],
    known: list[RootedEntry],
    records: AdoptedRecords,
    *,
    wanted: Any,
    encoding: str | None,
    base: Version | None,
) -> ResolvedSchema:
    """Find the schema of the dataset with its new shards.

    Args:
        good: the new shards.
        known: the shards that the dataset has and keeps.
        records: reads some of the records.
        wanted: what the caller says: a whole schema, features by name that are other than those there or
            inferred, False for no schema, None for what is there or can be inferred.
        encoding: how records hold the features of `wanted`; None for what is there or can be inferred.
        base: the version that the new one follows.

    Raises:
        SchemaError: no one schema reads all records.
        ValueError, TypeError: what the caller gave is not a schema.
    """
    old = base.manifest.schema if base is not None else None
    new = [RootedEntry(outcome.shard.root, outcome.entry) for outcome in good if outcome.entry is not None]
    every, tfds = [*known, *new], records.tfds
    metadata: dict[str, Any] = {} if tfds is None else {"tfds": dict(tfds.metadata)}
    notes: list[str] = []
    if wanted is None and old is None and (before := [shard for shard in known if shard.entry.rows]):
        # Records without a schema stay bytes, text or members.
        kinds, others = records.by_kind(new), records.by_kind(before)
        if any(
            records.infer_kind(kind, kinds[kind], {}).schema is not None
            for kind in kinds.keys() - others.keys()
        ):
            raise records.mixed([*_described(others), *_described(kinds)])
        return ResolvedSchema(None, metadata, notes)
    kinds = records.by_kind(every)
    if wanted is None and old is not None:
        records.check_columns(old, new)
    elif isinstance(wanted, Schema) and records.mds is not None:
        encoding = encoding or mds_encoding(records.mds)
    elif wanted and kinds.keys() == {_TEXT}:
        encoding = encoding or "bytes"
    held = old
    if wanted is not None and kinds.keys() == {_JSON} and old is not None and old.encoding == "bytes":
        held = None  # lines that are read as documents get the features that they hold
    read = new if wanted is None else every
    try:
        found = resolve_records(partial(records.infer, read), wanted, encoding, held, in_place=True)
    except SchemaError as error:
        raise without_skip(error)  # noqa: B904 - the same error
    if found.mixed and wanted is None:
        raise records.mixed(found.mixed)
    if found.mixed:
        notes.append("the shards hold records of different kinds: the schema given is the whole one")
    if found.records or found.notes or (wanted is None and old is None):
        notes += _inferred_notes(found, records.open(read)[0])
    schema = found.schema
    if schema is not None and old is not None:
        # A number keeps meaning the class that it means.
        schema = schema.completed(old)
    replaces = base is not None and wanted is not None and schema != old
    if replaces:
        _check_own(base, known, schema)
        check_lines(schema, *records.open(every))
    if schema is not None and (old is not None or wanted is not None or tfds is not None):
        notes += _unnamed(check_reads(schema, *records.open(every if replaces else new)))
    if replaces and known:
        notes.append("the records that were part of the dataset before are read by the new schema, too")
        notes += schema.changes_since(old) if schema is not None and old is not None else []
    return ResolvedSchema(schema, metadata, notes, replaces=replaces)


def _unnamed(names: Sequence[str]) -> list[str]:
    """Return the note on names in records that a schema does not have."""
    shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
    what = f"records hold {shown}, which the schema does not name: they are given as they are stored"
    return [what] if names else []


def _inferred_notes(found: Inferred, table: ShardTable) -> list[str]:
    """Return the notes on an inferred schema."""
    total = int(table.rows.sum())
    examples = bool(total and (table.framing == int(Framing.TFRECORD)).all())
    if found.schema is None and examples:
        return ["the records are not tf.train.Examples that a schema could describe: they are read as bytes"]
    if found.schema is None or found.declared:
        return list(found.notes)
    return [f"the schema was inferred from {found.records:,} of {total:,} records", *found.notes]


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


_EXAMPLES, _TAR, _JSON, _TEXT = "TFRECORD records", "tar samples", "JSON lines", "lines of text"
_RAW = "MDS samples, or codewithgpu records"
_STORED = {_JSON: "jsonl", _TAR: "webdataset", _EXAMPLES: "tfrecord", _RAW: "mds"}
_Kinds = Mapping[str, list[RootedEntry]]


def _described(kinds: _Kinds) -> list[str]:
    """Return the splits with the kinds of their records, for a message."""
    return [
        f"{split}: {kind}"
        for kind, shards in kinds.items()
        for split in sorted({shard.entry.split for shard in shards})
    ]


class AdoptedRecords:
    """Records of shards, opened by the URLs of their roots.

    Args:
        target: place of the dataset.
        data_options: storage options of the shards.
        options: of the scan.
        tfds: what a folder of TensorFlow Datasets says of its records.
        mds: name, encoding and size of the columns of MDS samples.
    """

    def __init__(
        self,
        target: AdoptTarget,
        data_options: Mapping[str, Any] | None,
        options: ScanOptions,
        tfds: TfdsFolder | None,
        mds: MdsLayout | None,
    ) -> None:
        self.tfds, self.mds = tfds, mds
        self._url = target.place.url
        self._scan, self._options = options, data_options
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

    def by_kind(self, shards: Iterable[RootedEntry]) -> dict[str, list[RootedEntry]]:
        """Return the shards by the kind of their records."""
        found: dict[str, list[RootedEntry]] = {}
        for shard in shards:
            entry = shard.entry
            kind = {Framing.TFRECORD: _EXAMPLES, Framing.TAR_SAMPLE: _TAR}.get(entry.framing, _RAW)
            if entry.framing is Framing.LINES:
                named = self._scan.format or format_of_name(entry.key)
                kind = _JSON if named == "jsonl" and self._scan.lines in (None, "json") else _TEXT
            found.setdefault(kind, []).append(shard)
        return found

    def infer(self, shards: Iterable[RootedEntry], given: Mapping[str, Any]) -> Inferred:
        """Return the schema that shards would have by themselves; the caller changes features `given`."""
        kinds = self.by_kind(shards)
        inferred = [self.infer_kind(*each, given) for each in kinds.items()]
        if len(inferred) == 1:
            return inferred[0]
        mixed = next((one.mixed for one in inferred if one.mixed), _described(kinds))
        return Inferred(mixed=mixed if any(one.schema is not None or one.mixed for one in inferred) else ())

    def infer_kind(self, kind: str, shards: list[RootedEntry], given: Mapping[str, Any]) -> Inferred:
        """Return the schema that the records of one kind would have by themselves."""
        if kind not in _STORED or (kind == _RAW and not self.mds):
            return Inferred()
        whole = infer_records(_STORED[kind], _sample(*self.open(shards)), given, self.mds or ())
        if kind != _EXAMPLES:
            return whole
        if self.tfds is not None and (whole.schema is not None or not whole.records):
            return _declared(whole, self.tfds)
        splits = sorted({shard.entry.split for shard in shards})
        if whole.schema is None and len(splits) > 1:
            # Where some are Examples and others are not, bytes for all would be a surprise.
            samples = {
                split: self.open(each for each in shards if each.entry.split == split) for split in splits
            }
            each = {
                split: infer_records("tfrecord", _sample(*part), {}).schema for split, part in samples.items()
            }
            if any(schema is not None for schema in each.values()):
                words = ("tf.train.Examples", "other records")
                return Inferred(mixed=[f"{split}: {words[schema is None]}" for split, schema in each.items()])
        return whole

    def check_columns(self, schema: Schema, new: Sequence[RootedEntry]) -> None:
        """Raise SchemaError where new MDS shards have other columns than a dataset."""
        if self.mds and new and schema.encoding != mds_encoding(self.mds):
            raise SchemaError(
                "these MDS shards have other columns than those of the dataset",
                url=self._url,
                expected=schema.encoding,
                found=mds_encoding(self.mds),
                advice="adopt them as a dataset of their own, with into=",
            )

    def mixed(self, found: Sequence[str]) -> SchemaError:
        """Return the error for records of different kinds."""
        return SchemaError(
            "these shards hold records of different kinds, which no one schema reads",
            url=self._url,
            found="; ".join(dict.fromkeys(found)),
            advice="adopt each kind separately, with into=; or all of them with schema=False, "
            "which leaves records bytes, text or members of samples",
        )


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
    return inferred._replace(schema=Schema(features), notes=notes, declared=True)
