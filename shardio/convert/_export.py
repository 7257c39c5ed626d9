"""`export_dataset`: a dataset becomes files that other programs read; all of them appear, or none."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from shardio.arguments import checked_options, names
from shardio.codecs import record_codec
from shardio.convert._images import ImageFolderWriter
from shardio.convert._jsonl import JsonLinesWriter
from shardio.convert._mds import MdsWriter
from shardio.convert._parquet_target import ParquetWriter
from shardio.convert._registry import Registry
from shardio.convert._tfrecord import TfRecordWriter
from shardio.convert._webdataset import WebDatasetWriter
from shardio.errors import (
    BadRecord,
    CommitConflictError,
    SchemaError,
    ShardioError,
    StorageError,
    UnsafeNameError,
)
from shardio.formats import AtomicOutput, JobFiles, Staging, TargetWriter, empty_target, schema_of
from shardio.joins import JoinedReader, as_stored
from shardio.metadata import Schema
from shardio.parallel import run
from shardio.progress import CountProgress, displayed
from shardio.reader import (
    DatasetReader,
    count_below,
    is_ascending,
    open as open_dataset,
)
from shardio.reports import Report
from shardio.sources import SPLITS_FILE, SplitRules
from shardio.storage import url_text

_TARGETS: dict[str, type[TargetWriter]] = {
    "tfrecord": TfRecordWriter,
    "webdataset": WebDatasetWriter,
    "jsonl": JsonLinesWriter,
    "parquet": ParquetWriter,
    "mds": MdsWriter,
    "images": ImageFolderWriter,
}
REGISTRY = Registry("shardio.targets", _TARGETS, TargetWriter)
_SKIP = 'on_error="skip" leaves such records out'
_EVERY = 1024
_TOGETHER = 256
_MOST_PARTS = 4096


def target_kinds() -> tuple[str, ...]:
    """Return the names of the kinds of targets, those that other packages register last."""
    return REGISTRY.kinds()


@dataclass(frozen=True)
class ExportReport(Report):
    """Result of an export.

    Attributes:
        url, version, digest: the dataset, as it was read.
        target, kind: what was made of it.
        records: by split.
        files: names below the target, in the order in which they were made; none in a dry run.
        skipped: records skipped with `on_error="skip"`: damaged ones, and those that the kind
            cannot hold.
        notes: what is not in the files although every record is, such as features beside an image, or is
            there under another name.
        dry_run: nothing was written; `records` are those that would be read.
    """

    url: str
    version: int
    digest: str
    target: str
    kind: str
    records: Mapping[str, int]
    files: list[str]
    skipped: list[BadRecord]
    notes: list[str]
    dry_run: bool = False


@checked_options
def export_dataset(  # noqa: PLR0913 - the options are the public contract
    url: str | Path | DatasetReader,
    target: str | Path,
    *,
    kind: str,
    features: Sequence[str] | None = None,
    split: str | None = None,
    version: int | str | None = None,
    compression: str | None = None,
    shard_bytes: int = 256 << 20,
    on_error: Literal["raise", "skip"] = "raise",
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    allow_roots: Mapping[str, Mapping[str, Any]] | None = None,
    dry_run: bool = False,
    progress: bool | Callable[[CountProgress], None] = False,
) -> ExportReport:
    r"""Export a dataset to files of another kind, in the order of its records, in bounded memory.

    Args:
        url: of the dataset; or a reader from `shardio.open`, of which the records, splits and features are
            exported that it has: selected, filtered or joined ones, in its order.
        target: folder or URL that the files go to; must not exist, or be empty.
        kind: of the files, one of `shardio.convert.target_kinds()`.
        features: names of those exported; None for all.
        split: one split; None for all.
        version: a number or a tag; None for the latest.
        compression: of the files, if the kind has it: "gzip" or "zlib" for `tfrecord`, "gzip" for `jsonl`,
            "zstd" or "gzip" for `parquet`, "zstd" for `mds`. None for what is usual there.
        shard_bytes: bytes after which a new file is begun, where the kind has several.
        on_error: about damaged records, and those that the kind cannot hold: "raise", or "skip": left out and
            listed in the report, as also for a reader that skips them.
        executor: any `concurrent.futures.Executor` that makes the files; None for this process. Each job
            takes about `shard_bytes` of stored records and makes files of its own, with the number of its
            first record. A local target must be on a disk that all share.
        storage_options, target_options: of the dataset's and the target's filesystem, as in fsspec.
        allow_roots: as in `shardio.open`.
        dry_run: write nothing, only say which records the files would hold, and what not.
        progress: True for a bar on a terminal and lines in a log, or a function of a `CountProgress`.

    Raises:
        ValueError, TypeError: the kind cannot hold these records, or they have no such feature; says which.
            Nothing was made.
        SchemaError: the kind cannot hold one of the records; says which one, and which feature.
        CommitConflictError: there is something at the target already, or two records want the same name.
        UnsafeNameError: a record names a file outside of the target.
        FormatError, StorageError: reading or writing failed; nothing was made.

    Examples:
        >>> import pathlib, shardio, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with shardio.DatasetWriter(folder + "/birds", schema={"name": "text"}) as out:
        ...     out.write({"name": "wren"})
        >>> shardio.export_dataset(folder + "/birds", folder + "/plain", kind="jsonl").files
        ['train.jsonl']
        >>> pathlib.Path(folder, "plain", "train.jsonl").read_text()
        '{"name": "wren"}\n'
    """
    _check(kind, shard_bytes, on_error)
    whole, skip = _reader_of(url, split, version, storage_options, allow_roots)
    form: type[TargetWriter] = REGISTRY.get(kind)
    chosen = whole.source.options.features if features is None else names("features", features)
    if chosen is not None and not chosen:
        raise ValueError("features=[] names no feature to export")
    values = as_stored(whole, chosen)
    # Payloads are copied where they are what is asked for, and nothing else.
    encoded_again = chosen is not None or whole.source.holds_objects or isinstance(whole, JoinedReader)
    copied = not (form.decode or encoded_again)
    schema = whole.schema if copied else schema_of(values)
    form.check(schema, compression)
    encoded = not (form.decode or copied)
    if encoded and schema is None:
        raise SchemaError(
            "samples of tar files cannot become TFRecord records without a schema",
            url=whole.source.url,
            shard=whole.source.table.key[0],
            advice="adopt them again without schema=False, or export to another kind",
        )
    parts = _parts(as_stored(whole, payloads=True) if copied else values)
    older = whole.source.version.manifest.schemas if copied else ()
    place = (whole.source.url if isinstance(url, DatasetReader) else str(url), whole.version, whole.digest)
    if dry_run:
        empty_target(url_text(target), target_options)
        records = {part.split: len(part.reader) for part in parts}
        return ExportReport(
            *place, str(target), kind, records, [], [], form.notes(schema, older), dry_run=True
        )
    settings = {"compression": compression, "shard_bytes": shard_bytes, "splits": len(parts)}
    made: dict[str, list[_PartFiles]] = {part.split: [] for part in parts}
    if executor is not None:
        parts = [piece for part in parts for piece in _pieces(part, shard_bytes)]
    with displayed(progress, "export") as show, AtomicOutput(url_text(target), target_options) as output:
        job = _PartExport(
            kind, output.staging, schema, settings, encoded=encoded, skip=skip or on_error == "skip"
        )
        found = _run(job, parts, executor, show, output)
        for part in parts:
            made[part.split].append(found[part])
        for name, written_parts in made.items():
            with _writing(output.staging.url), JobFiles(output.staging) as files:
                form.conclude(files, name, [written.made for written in written_parts])
                output.take(list(files.names))
            written_parts.append(_PartFiles(list(files.names), 0, [], None))
        split_of = {file: name for name, each in made.items() for written in each for file in written.names}
        patterns = _split_patterns(split_of, form)
        if patterns:
            content = json.dumps({"splits": patterns}, ensure_ascii=False, indent=1) + "\n"
            with _writing(output.staging.url), JobFiles(output.staging) as files:
                files.path(SPLITS_FILE).write_text(content, encoding="utf-8")
                files.finish(SPLITS_FILE)
                output.take([SPLITS_FILE])
    records = {name: sum(written.records for written in each) for name, each in made.items()}
    notes = form.notes(schema, older)
    if patterns:
        notes.append(
            f"the names of the files do not tell their splits; {SPLITS_FILE} does, for adopt and convert"
        )
    skipped = [bad for each in made.values() for written in each for bad in written.skipped]
    names_made = [*split_of, *([SPLITS_FILE] if patterns else [])]
    return ExportReport(*place, str(target), kind, records, names_made, skipped, notes)


@dataclass(frozen=True, eq=False)
class _SplitPart:
    """Records of one split that one job exports.

    Attributes:
        split: its name.
        reader: of the records.
        start: position of the split's first record, as the reader counts.
        first: how many records of the split come before; None where these are all.
    """

    split: str
    reader: DatasetReader
    start: int
    first: int | None = None

    @property
    def label(self) -> str:
        """The split or the records that are exported, as errors name them."""
        return f"split {self.split!r}"

    @property
    def size(self) -> int:
        """Records."""
        return len(self.reader)


class _PartFiles(NamedTuple):
    """What a job did: files, records, what was left out, and what `TargetWriter.conclude` is given."""

    names: list[str]
    records: int
    skipped: list[BadRecord]
    made: Any


@dataclass(frozen=True)
class _PartExport:
    """Exports a part; travels to workers.

    Attributes:
        kind: of the files.
        staging: where they go.
        schema: of the values.
        settings: of the `TargetWriter`.
        encoded: the files hold payloads of the values.
        skip: records that are damaged, or that the kind cannot hold, are left out and listed.
    """

    kind: str
    staging: Staging
    schema: Schema | None
    settings: Mapping[str, Any]
    _: KW_ONLY
    encoded: bool
    skip: bool

    def __call__(self, part: _SplitPart, tell: Callable[[int], None] | None = None) -> _PartFiles:
        """Make the files of a part.

        Args:
            part: whose records are exported.
            tell: called with the number of records now and then.

        Raises:
            ShardioError: a record or its files; nothing was made.
        """
        split, reader, start = part.split, part.reader, part.start
        skipped: list[BadRecord] | None = [] if self.skip else None
        form: type[TargetWriter] = REGISTRY.get(self.kind)
        encode: Callable[[Any], Any] | None = record_codec(self.schema).encode if self.encoded else None
        done = 0
        with _writing(self.staging.url), JobFiles(self.staging) as files:
            with form(files, split, self.schema, first=part.first, **self.settings) as out:
                for number, value in _values(reader, split, start, skipped):
                    try:
                        out.add(value if encode is None else encode(value))
                    except (SchemaError, UnsafeNameError, CommitConflictError) as error:
                        if skipped is None:
                            row = int(reader.selection[number]) - start
                            raise _placed(error, reader.source.url, split, row) from error
                        skipped.append(BadRecord(_place(reader, split, start, number), str(error)))
                        continue
                    done += 1
                    if tell is not None and done % _EVERY == 0:
                        tell(done)
            return _PartFiles(list(files.names), done, skipped or [], out.made)


@contextlib.contextmanager
def _writing(url: str) -> Iterator[None]:
    """Say which export a file could not be written of."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ShardioError):
            raise
        raise StorageError(f"a file of the export could not be written ({error})", url=url) from error


def _run(
    job: _PartExport,
    parts: Sequence[_SplitPart],
    executor: Executor | None,
    show: Callable[[CountProgress], None] | None,
    output: AtomicOutput,
) -> dict[_SplitPart, _PartFiles]:
    """Make the files of all parts; return them by part.

    Raises:
        ShardioError: a part failed; the output has taken what the others made.
    """
    found: dict[_SplitPart, _PartFiles] = {}
    total = sum(part.size for part in parts)

    def tell(more: int = 0) -> None:
        if show is not None:
            show(CountProgress(sum(part.size for part in found) + more, total))

    results = run(
        job if executor else functools.partial(job, tell=tell), parts, job.staging.url,
        executor=executor, workers=None if executor else 1, progress=lambda _: tell(),
        advice="run it again, to a new place where the target is in a bucket",
        on_late=lambda _, written: output.names.update(dict.fromkeys(written.names)),
    )  # fmt: skip
    # Jobs end before the output is left, which removes what they made, whatever ends this loop.
    with contextlib.closing(results):
        for part, written in results:
            output.take(written.names)
            found[part] = written
    return found


def _pieces(part: _SplitPart, size: int) -> list[_SplitPart]:
    """Cut the records of a split into parts of about so many stored bytes."""
    table, rows = part.reader.source.table, len(part.reader)
    stored = int(table.stored_bytes.sum()) * rows // max(1, int(table.live_rows.sum()))
    count = max(1, min(rows, -(-stored // size), _MOST_PARTS))
    edges = [rows * number // count for number in range(count + 1)]
    return [replace(part, reader=part.reader[low:stop], first=low) for low, stop in itertools.pairwise(edges)]


def _check(kind: str, shard_bytes: int, on_error: str) -> None:
    """Refuse options that make no sense, by name."""
    REGISTRY.get(kind)
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes={shard_bytes} must be at least 1")
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error={on_error!r} must be "raise" or "skip"')


def _reader_of(
    url: str | Path | DatasetReader,
    split: str | None,
    version: int | str | None,
    storage_options: Mapping[str, Any] | None,
    allow_roots: Mapping[str, Mapping[str, Any]] | None,
) -> tuple[DatasetReader, bool]:
    """Return what is exported, and whether its damaged records are left out whatever the caller says."""
    reading: dict[str, Any] = {
        "version": version,
        "storage_options": storage_options,
        "allow_roots": allow_roots,
    }
    if not isinstance(url, DatasetReader):
        return open_dataset(url, split="all" if split is None else split, **reading), False
    for name, given in {"split": split, **reading}.items():
        if given is not None:
            raise ValueError(f"{name}={given!r}: a reader has that already; give it to shardio.open")
    return url, url.source.options.on_error != "raise"


def _parts(reader: DatasetReader) -> list[_SplitPart]:
    """Return the records of each split, in their order."""
    if reader.split != "all":
        return [_SplitPart(reader.split, reader, 0)]
    parts = []
    stop = 0
    for name, size in reader.splits.items():
        start, stop = stop, stop + size
        selection: Any = reader.selection
        if is_ascending(selection):
            low, high = count_below(selection, np.array([start, stop])).tolist()
            selection = selection[low:high]
        else:
            selection = np.asarray(selection, np.int64)
            selection = selection[(selection >= start) & (selection < stop)]
        parts.append(_SplitPart(name, type(reader)(reader.source, selection), start))
    return sorted(parts, key=lambda part: part.split)


def _split_patterns(split_of: Mapping[str, str], form: type[TargetWriter]) -> dict[str, str]:
    """Return patterns of file names by split; none where the names tell the splits without them."""
    rules = SplitRules()
    divide = rules.divide_folders if form.file_is_record else rules.divide
    if divide(list(split_of)).splits == list(split_of.values()):
        return {}
    # Of two that fit a file, the longer name is meant: "train-clean-00000" is not of "train".
    names = sorted(set(split_of.values()), key=len, reverse=True)
    return {name: form.names.format(split=name) for name in names}


def _placed(error: ShardioError, url: str, split: str, row: int) -> ShardioError:
    """Return the error of a record that the kind cannot hold, with its place and what to do about it."""
    advice = f"{error.advice}, or {_SKIP}" if error.advice else _SKIP
    what = f"split {split}: {error.what}"
    return type(error)(what, **{**error.fields(), "url": url, "row": row, "advice": advice})


def _place(reader: DatasetReader, split: str, first: int, number: int) -> str:
    """Return where a record is, for people: dataset, split, and its position there."""
    return f"{reader.source.url} {split} {int(reader.selection[number]) - first}"


def _values(
    reader: DatasetReader, split: str, first: int, skipped: list[BadRecord] | None
) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of the records; damaged ones are listed where there is a list for them."""
    if skipped is None:
        yield from enumerate(reader)
        return
    for start in range(0, len(reader), _TOGETHER):
        part = range(start, min(start + _TOGETHER, len(reader)))
        for number, value in zip(part, reader.read(part, on_error="return"), strict=True):
            if isinstance(value, ShardioError):
                skipped.append(BadRecord(_place(reader, split, first, number), str(value)))
            else:
                yield number, value
