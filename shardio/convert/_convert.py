"""`convert_dataset`: a foreign data set becomes a dataset, in parallel, in one commit, or nothing does.

The caller's process lists the source, looks at some records and resolves the schema; workers read pieces,
encode and write.  What cannot become a record is refused, or
left out, counted and listed if the caller says so.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, Unpack

import numpy as np

from shardio.arguments import accepts
from shardio.catalog import Catalog
from shardio.codecs import HF_METADATA, record_codec
from shardio.convert._kinds import open_source
from shardio.convert._parquet import ArrowTable, HuggingFaceDataset, table_package
from shardio.convert._partitions import check_keys, fitter, notes_on_keys
from shardio.convert._schema import SKIP, resolve_schema, type_for, without_skip
from shardio.errors import (
    BadRecord,
    FormatError,
    NotFoundError,
    SchemaError,
    ShardioError,
    StorageError,
    UnsafeNameError,
)
from shardio.formats import (
    SMALL_BYTES,
    FileSource,
    ForeignSource,
    Piece,
    ReadingOptions,
    Sample,
    SourceOptions,
    place_error,
    read_samples,
    shown_json,
    take_reading_options,
)
from shardio.metadata import Feature, Schema, naming
from shardio.parallel import Encoded, Note, WriteOptions, check_shuffle, write_dataset
from shardio.reader import TEXT_METADATA, DatasetReader, open as open_dataset
from shardio.reports import Report
from shardio.storage import connect, followed
from shardio.writer import check_writer_options, encoder, foretell_write

_DIGESTS = 1 << 64

_TASK_BYTES = 256 << 20
_FEW_TASKS = 16
_MOST_TASKS = 4096


@dataclass(frozen=True)
class _Splitter:
    """Send records to splits.

    Args:
        wanted: None keeps the source's splits; a name takes all records; a mapping of names to fractions
            divides them.
        seed: another seed divides them another way.
    """

    wanted: str | Mapping[str, float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.wanted, Mapping):
            fractions = list(self.wanted.values())
            if min(fractions) < 0 or not 0.999 < sum(fractions) < 1.001:
                shown = dict(self.wanted)
                raise ValueError(f"split={shown!r}: fractions must not be negative, and their sum must be 1")
        for name in [self.wanted] if isinstance(self.wanted, str) else self.wanted or ():
            naming.check_split(name)

    def sizes(self, pieces: Sequence[Piece]) -> dict[str, int]:
        """Return about how many bytes of the source go to each split."""
        found: Counter[str] = Counter()
        for piece in pieces:
            found[piece.split] += piece.size
        if isinstance(self.wanted, Mapping):
            return {name: round(share * found.total()) for name, share in self.wanted.items()}
        return dict(sorted(found.items())) if self.wanted is None else {self.wanted: found.total()}

    def __call__(self, where: str, split: str) -> str:
        """Return the split of the record that came from `where`."""
        if self.wanted is None:
            return split
        if isinstance(self.wanted, str):
            return self.wanted
        digest = hashlib.blake2b(f"{self.seed}/{where}".encode(errors="backslashreplace"), digest_size=8)
        place = int.from_bytes(digest.digest(), "little") / _DIGESTS * sum(self.wanted.values())
        edge, found = 0.0, split
        for found, share in self.wanted.items():  # noqa: B007 - the last one, too
            edge += share
            if place < edge:
                break
        return found


@dataclass(frozen=True)
class _ConvertWorker:
    """Turn pieces into payloads; travels to the workers.

    Attributes:
        source: whose pieces come.
        schema: of the records, or None where they are bytes.
        splitter: says which split a record goes to.
        on_error: "raise" or "skip".
        dropped: features that the caller left out; None is all that the schema does not have.
        names: features of the schema that the source is read for; None for whatever it has.
        numbers: by feature, what becomes of the source's number of a class; -1 where there is no such class.
    """

    source: ForeignSource
    schema: Schema | None
    splitter: _Splitter
    on_error: str
    dropped: frozenset[str] | None = frozenset()
    names: frozenset[str] | None = None
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __call__(self, piece: Piece) -> Iterator[tuple[str, Encoded | BadRecord | Note]]:
        """Yield (split, payload) of every record, and what is left out.

        Raises:
            FormatError, SchemaError: something cannot become a record, and the caller wants to hear of it.
        """
        encode = self._encoder()
        fit = fitter(self.source, piece, self.schema)
        done = 0
        records = read_samples(self.source, piece)
        while True:
            try:
                found = next(records, None)
            except (FormatError, SchemaError) as error:
                # The source cannot continue: what is left of the piece is lost.
                if self.on_error == "raise":
                    raise error.located(url=piece.url) from error
                yield piece.split, BadRecord(piece.url, f"from record {done} of this part on: {error}")
                return
            if found is None:
                return
            done += 1
            yield self._record(found, piece, fit, encode)

    def _encoder(self) -> Callable[[Any], bytes]:
        """Return what makes a payload; a ready one is looked at, so that the schema tells the truth."""
        if not self.source.payloads:
            return encoder(self.schema)
        schema = self.schema
        if schema is None or self.source.schema is not None:
            return bytes
        codec = record_codec(schema)
        nested = schema.encoding == "sequence_example"
        groups = [
            {name: feature for name, feature in group.items() if feature.classes is not None}
            for group in schema.groups
        ]

        def check(payload: bytes) -> bytes:
            value = codec.decode(payload)
            parts = [value["context"], value["feature_lists"]] if nested else [value, {}]
            for part, group, wrap in zip(parts, groups, (True, False), strict=True):
                for name, feature in group.items():
                    for each in [part[name]] if wrap else part[name] or ():
                        if each is not None:
                            feature.check_stored(each, name)
            return payload

        return check

    def _record(
        self,
        found: Sample | BadRecord | Note,
        piece: Piece,
        fit: Callable[[Any], Any],
        encode: Callable[[Any], bytes],
    ) -> tuple[str, Encoded | BadRecord | Note]:
        if isinstance(found, Note):
            return piece.split, found
        if isinstance(found, BadRecord):
            if self.on_error == "raise":
                raise _refusal(found, piece.url)
            return piece.split, found
        split = self.splitter((found.name or found.where).removeprefix(piece.root), piece.split)
        value = found.value
        fitted = False
        try:
            value = fit(value)
            fitted = True
            if self.names is not None and isinstance(value, dict):
                value = self._chosen(value, self.names)
                for name, numbers in self.numbers.items():
                    if value.get(name) is not None:
                        value[name] = _renumbered(name, value[name], numbers)
            return split, Encoded(encode(value))
        except (ShardioError, ValueError, TypeError) as error:
            if isinstance(error, StorageError):
                raise
            if self.on_error != "raise":
                return piece.split, BadRecord(found.where, str(error))
            refusal = error if isinstance(error, ShardioError) else SchemaError(str(error))
            if not self.source.payloads:
                # What the encoder advises is meant for callers that write values.
                refusal.advice = self._advice(value) if fitted else f"{refusal.advice}, or {SKIP}"
            raise place_error(refusal, found.where, piece.url) from error

    def _advice(self, value: Any) -> str:
        """Return what makes a conversion continue past a value that does not fit."""
        features: Mapping[str, Feature] = self.schema or {}
        for name, item in value.items() if isinstance(value, dict) else ():
            feature = features.get(name)
            if (
                feature is not None
                and item is not None
                and not accepts(partial(feature.fit, name=name), item)
            ):
                return f"{type_for(name, [item], feature)}, or {SKIP}"
        return SKIP

    def _chosen(self, value: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
        """Return a value without the features left out; unknown ones stay, to be refused."""
        dropped = self.dropped
        return {
            name: item
            for name, item in value.items()
            if name in names or (dropped is not None and name not in dropped)
        }


def _renumbered(name: str, value: Any, numbers: Sequence[int]) -> Any:
    """Return the source's numbers of classes as those of the schema; names stay names.

    Raises:
        SchemaError: a number of no class, or of one that the schema does not have.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return [_renumbered(name, item, numbers) for item in value]
    given = np.asarray(value)
    if given.dtype.kind not in "iu" or (given.size and not (given.min() >= 0 and given.max() < len(numbers))):
        what = f"feature {name!r}: label out of range, the source has {len(numbers)} classes"
        raise SchemaError(what, expected=f"0 to {len(numbers) - 1}", found=str(value)[:80])
    found = np.asarray(numbers, np.int64)[given]
    if found.size and found.min() < 0:
        what = f"feature {name!r} holds a class of the source that the schema does not have"
        number = int(given.ravel()[int(np.argmin(found))])
        raise SchemaError(what, found=f"number {number}", advice="add it at the end of classes=[...]")
    return found


@dataclass(frozen=True)
class ConvertReport(Report):
    """Result of a conversion.

    Attributes:
        source, kind: what was converted.
        url, version, digest: what it became; version and digest are None in a dry run.
        records: by split; none in a dry run, which reads a part of the source only.
        source_bytes: by split, about what is read of the source for it.
        schema: of the records, or None where they are bytes.
        skipped: records skipped with `on_error="skip"`; empty otherwise.
        ignored: names of files in the source that were not part of it.
        notes: what deserves attention, such as features of TFRecords that no schema can hold, whose
            payloads are kept, and hidden members of tar files.
        dry_run: nothing was written.
    """

    _computed: ClassVar[tuple[str, ...]] = ("encoding",)

    source: str
    kind: str
    url: str
    version: int | None
    digest: str | None
    records: Mapping[str, int]
    source_bytes: Mapping[str, int]
    schema: Schema | None
    skipped: Sequence[BadRecord] = ()
    ignored: Sequence[str] = ()
    notes: Sequence[str] = ()
    dry_run: bool = False

    @property
    def encoding(self) -> str | None:
        """How the schema encodes records; None where they are bytes."""
        return None if self.schema is None else self.schema.encoding


@dataclass(frozen=True)
class ArrowEncoder:
    """Makes records of the rows of Arrow tables that come one after another, all of one schema.

    Attributes:
        schema: of the records.
    """

    schema: Schema
    _dropped: frozenset[str] | None
    _names: frozenset[str] | None

    @classmethod
    def from_schema(cls, arrow: Any, schema: Any = None, dataset: Schema | None = None) -> ArrowEncoder:
        """Return the encoder of tables of an Arrow schema.

        Args:
            arrow: the `pyarrow.Schema`; fields that may be null become optional features, but for those that
                all records of the dataset have and `schema` says nothing of.
            schema: types of features by name; None for those that follow from Arrow's.
            dataset: schema of the dataset that is added to, or None.

        Raises:
            SchemaError: a column cannot become a feature, or not one that the dataset has.
        """
        source = ArrowTable(arrow, SourceOptions())
        found = resolve_schema(source, source.pieces(), schema, None, lenient=False, dataset=dataset)
        made = found.schema
        assert made is not None  # noqa: S101 - a table has columns
        if dataset is not None and made.encoding == dataset.encoding:
            # Columns of engines may always be null: that changes nothing for readers of the dataset.
            said = set(schema or ())
            kept = [each for each in made.fields if each in dataset.fields and each[1] not in said]
            lenient = {
                each: made.fields[each].replace(optional=dataset.fields[each].optional) for each in kept
            }
            made = made.with_fields({**made.fields, **lenient})
        return cls(made, _dropped(schema), found.names)

    def payloads(self, table: Any) -> Iterator[Encoded]:
        """Yield the payload of each row of a `pyarrow.Table` or `RecordBatch`.

        Raises:
            SchemaError: a value does not fit.
        """
        source = ArrowTable(table, SourceOptions())
        worker = _ConvertWorker(source, self.schema, _Splitter(), "raise", self._dropped, self._names)
        try:
            for piece in source.pieces():
                yield from (made for _, made in worker(piece) if isinstance(made, Encoded))
        except ShardioError as error:
            raise without_skip(error)  # noqa: B904 - the same error


def convert_dataset(  # noqa: PLR0913 - the options are the public contract
    source: Any,
    url: str | Path,
    *,
    kind: str | None = None,
    schema: Mapping[str, Any] | Schema | None = None,
    split: str | Mapping[str, str | float] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    executor: Executor | None = None,
    source_options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **writing: Unpack[WriteOptions],
) -> ConvertReport:
    r"""Convert a foreign data set into a dataset.

    Args:
        source: file, folder or pattern (`shards/*.tar`): a local path or any fsspec URL. Or a list of URLs, a
            `datasets.Dataset` or `datasets.DatasetDict` of Hugging Face, a table of pyarrow, pandas or
            polars, or for `kind="list"` any Python list of items.
        url: of the dataset.
        kind: of the source; None for what the names of the files tell. One of
            `shardio.convert.source_kinds()`.
        schema: types of some features instead of those inferred (None leaves a feature out), or a whole
            `Schema`.
        split: a name for all records; patterns of file names by split, `{"train": "*train*", "val":
            "val/*"}`; or what each split gets of all records, `{"train": 0.9, "test": 0.1}`. None keeps the
            source's splits. Those of files come from names of files and folders, such as
            `val-00000-of-00008.parquet`; where no name tells one, it is "train". `report.notes` says what
            was decided.
        on_error: what to do about what cannot become a record: "raise", or "skip": left out and listed in
            the report.
        options: how a source of this kind is read: some of `shardio.convert.ReadingOptions`, such as
            `{"classes": ["cat", "dog"]}`; they may also be given as separate arguments.
        dry_run: write nothing, only say what it would be: the kind, the splits, the schema as far as it is
            inferred, and what is left out before reading.
        executor: any `concurrent.futures.Executor`; None for processes of this machine, and this one alone
            for small sources.
        source_options, storage_options: for the source's and the dataset's filesystem, as in fsspec.
        writing: options of `write_dataset`, such as `mode`, `session`, `shuffle`, `workers`, `progress`,
            `compression`, `encoding`, `metadata`.

    Returns:
        Version, records by split, schema, and what was left out.

    Raises:
        FormatError, SchemaError: something cannot become a record; says where. Nothing was published.
        NotFoundError: there is nothing, or nothing of this kind.
        ValueError: the kind cannot be told, the new dataset would hold its source, or an option makes no
            sense.
        CommitConflictError, StorageError: as `DatasetWriter`.

    Examples:
        >>> import json, pathlib, shardio, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> lines = [json.dumps({"name": name, "legs": 2}) for name in ("wren", "robin")]
        >>> _ = (folder / "birds.jsonl").write_text("\n".join(lines))
        >>> shardio.convert_dataset(folder / "birds.jsonl", folder / "birds").records
        {'train': 2}
        >>> shardio.open(folder / "birds")[1]["name"]
        'robin'
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error={on_error!r} must be "raise" or "skip"')
    rest: Any = writing
    chosen = take_reading_options(options, rest)
    names = (*WriteOptions.__annotations__, *signature(convert_dataset).parameters)
    check_writer_options(writing, "shardio.convert_dataset", names)
    mode, seed, encoding = writing.get("mode", "create"), writing.get("seed", 0), rest.pop("encoding", None)
    check_shuffle(writing.get("shuffle", False), seed)
    patterns, wanted = _split_of(split)
    splitter = _Splitter(wanted, seed)
    # Fractions divide whatever there is.
    one = next(iter(wanted)) if isinstance(wanted, Mapping) else wanted
    reading = {"partitions": ReadingOptions.partitions, **chosen, "skips": on_error == "skip"}
    opened = open_source(
        source, kind, SourceOptions(**reading, split=patterns or one, storage_options=source_options)
    )
    opened.check_options(chosen)
    if patterns is not None and not isinstance(opened, FileSource):
        what = "has patterns of file names, but the source is not files: name one split"
        raise ValueError(f"split={patterns!r} {what}")
    if isinstance(wanted, Mapping):
        writing.setdefault("splits", list(wanted))
    shown = _shown(source)
    base = _dataset(str(url), storage_options) if mode == "append" else None
    known = None if base is None else base.schema
    opened = opened.for_writing(changed=any(each is not None for each in (schema, encoding, known)))
    metadata = _free_metadata(opened, mode)
    if base is not None:
        _check_metadata(metadata, base, writing.get("metadata"))
    pieces, bad = _contents(opened, on_error, shown)
    if wanted is None:
        _check_splits(pieces, shown)
    if base is None:
        _check_place(pieces, str(url), storage_options)
    try:
        resolved, notes, features, numbers = resolve_schema(
            opened, pieces, schema, encoding, lenient=on_error == "skip", dataset=known
        )
    except SchemaError as error:
        raise error.located(url=shown if base is None else str(url)) from error.__cause__
    check_keys(opened, resolved, schema)
    notes = [*notes, *notes_on_keys(opened, resolved, pieces)]
    planned = ConvertReport(
        shown, opened.kind, str(url), None, None, {}, splitter.sizes(pieces), resolved,
        skipped=bad, ignored=list(opened.ignored()), notes=[*notes, *opened.notes()], dry_run=True,
    )  # fmt: skip
    if dry_run:
        single = writing.get("single_writer", False)
        foretell_write(str(url), mode, writing.get("session"), storage_options, single_writer=single)
        return planned
    worker = _ConvertWorker(opened, resolved, splitter, on_error, _dropped(schema), features, numbers)
    small = opened.in_memory or sum(piece.size for piece in pieces) < SMALL_BYTES
    if writing.get("workers") is None and executor is None and small:
        writing["workers"] = 1
    free = metadata if base is None else _in_schema_units(metadata, opened, resolved)
    writing["metadata"] = {**free, **(writing.get("metadata") or {})}
    tasks = _tasks(pieces) if writing.get("shards") is None else None
    written = write_dataset(
        url, pieces, worker, schema=resolved, executor=executor, tasks=tasks,
        storage_options=storage_options, **writing,
    )  # fmt: skip
    return replace(
        planned, version=written.version, digest=written.digest, records=written.records, dry_run=False,
        skipped=[*bad, *written.skipped], notes=[*notes, *written.notes, *opened.notes()],
    )  # fmt: skip


def _split_of(
    split: str | Mapping[str, str | float] | None,
) -> tuple[dict[str, str] | None, str | dict[str, float] | None]:
    """Return the patterns by split that a caller gives; and one name for all records, or fractions."""
    if not isinstance(split, Mapping):
        return None, split
    kinds = {isinstance(each, str) for each in split.values()}
    if len(kinds) != 1 or not all(isinstance(each, str | int | float) for each in split.values()):
        raise TypeError(f"split={dict(split)!r} must have patterns of file names, or fractions, by split")
    given: Any = dict(split)
    return (given, None) if kinds == {True} else (None, given)


def _check_place(pieces: Sequence[Piece], url: str, storage_options: Mapping[str, Any] | None) -> None:
    """Refuse a new dataset around its own source: whatever looks after its files would meet the others."""
    store = connect(url, storage_options=storage_options)
    around = followed(store.url).rstrip("/") + "/"
    real = {folder: followed(folder) for folder in {piece.url.rpartition("/")[0] for piece in pieces}}
    places = ((piece.url, *piece.url.rpartition("/")[::2]) for piece in pieces)
    inside = next((url for url, folder, name in places if f"{real[folder]}/{name}/".startswith(around)), None)
    if inside is not None and Catalog(store).latest() is None:
        raise ValueError(
            f"{store.url} holds the source ({inside}) and would become the dataset: choose another place"
        )


def _dataset(url: str, storage_options: Mapping[str, Any] | None) -> DatasetReader | None:
    """Return the dataset that is added to, or None where there is none yet."""
    try:
        return open_dataset(url, split="all", decode=False, storage_options=storage_options)
    except NotFoundError:
        return None


def _check_metadata(free: Mapping[str, Any], dataset: DatasetReader, given: Mapping[str, Any] | None) -> None:
    """Refuse an append that would replace the dataset's metadata."""
    old = dataset.metadata
    if free.items() >= TEXT_METADATA.items() and not old.items() >= TEXT_METADATA.items():
        raise SchemaError(
            "the records of the source are text, and those of the dataset are not",
            url=dataset.source.url, advice="convert the source into a dataset of its own",
        )  # fmt: skip
    for name, value in free.items():
        if name in old and old[name] != value and name not in (given or {}):
            raise SchemaError(
                f"the source would replace the dataset's metadata {name!r}",
                url=dataset.source.url, expected=shown_json(old[name]), found=shown_json(value),
                advice=f"say which is meant with metadata={{{json.dumps(name)}: ...}}",
            )  # fmt: skip


def _free_metadata(source: ForeignSource, mode: str) -> dict[str, Any]:
    """Return the source's free metadata; for an append without the random order of its own records."""
    found = source.metadata()
    if mode == "append":
        found.pop("shuffled", None)
    return found


def _in_schema_units(free: dict[str, Any], source: ForeignSource, schema: Schema | None) -> dict[str, Any]:
    """Return the free metadata of an append without the types of times that are converted to other units."""
    types = free.get(HF_METADATA)
    if not isinstance(types, dict) or schema is None:
        return free
    units = {name: getattr(each, "unit", "") for name, each in source.known().items()}
    other = {name for name, unit in units.items() if unit and name in schema and schema[name].unit != unit}
    return {**free, HF_METADATA: {name: each for name, each in types.items() if name not in other}}


def _contents(source: ForeignSource, on_error: str, shown: str) -> tuple[Sequence[Piece], list[BadRecord]]:
    """Return what there is to read, and what was found bad before reading; or refuse it."""
    try:
        pieces = [piece._replace(keys=source.keys_of(piece.url)) for piece in source.pieces()]
    except ShardioError as error:
        raise error.located(url=shown) from error.__cause__
    bad = list(source.bad_records())
    if bad and on_error == "raise":
        raise _refusal(bad[0], bad[0].where)
    if not pieces and not bad:
        raise NotFoundError(f"there is nothing of kind {source.kind!r} here", url=shown)
    return pieces, bad


def _refusal(bad: BadRecord, url: str) -> ShardioError:
    """Return the error for what cannot be skipped."""
    advice = f"{bad.advice}, or {SKIP}" if bad.advice else SKIP
    error = FormatError(bad.reason, row=bad.row, start=bad.start, stop=bad.stop, advice=advice)
    return place_error(error, bad.where, url)


def _check_splits(pieces: Sequence[Piece], shown: str) -> None:
    """Refuse names of splits that no dataset can have, such as `train[:10%]` of Hugging Face."""
    for name in dict.fromkeys(piece.split for piece in pieces):
        try:
            naming.check_split(name)
        except UnsafeNameError as error:
            error.advice = 'split="train" is a name for all records; or rename the split in the source'
            raise error.located(url=shown) from error


def _dropped(schema: Any) -> frozenset[str] | None:
    """Return the features that the caller does not want; None is all that a whole schema does not name."""
    if isinstance(schema, Schema):
        return None
    return frozenset(name for name, wanted in (schema or {}).items() if wanted is None)


def _tasks(pieces: Sequence[Piece]) -> int:
    """Return how many tasks suit a source: each leaves a shard a split, and is what a lost worker costs."""
    total = sum(piece.size for piece in pieces)
    wanted = max(1 if total < SMALL_BYTES else _FEW_TASKS, total // _TASK_BYTES)
    return max(1, min(wanted, len(pieces), _MOST_TASKS))


def _shown(source: Any) -> str:
    if HuggingFaceDataset.takes(source):
        return f"datasets.{type(source).__name__}"
    if ArrowTable.takes(source):
        return f"{table_package(source)}.{type(source).__name__}"
    return source if isinstance(source, str) else str(source)[:200]
