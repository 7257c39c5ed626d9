"""`export_dataset`: a dataset becomes files that other programs read; all of them appear, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shardio.arguments import checked_options, names
from shardio.codecs import record_codec
from shardio.convert._mds_target import MdsWriter
from shardio.convert._registry import Registry
from shardio.convert._targets import (
    AtomicOutput,
    ImageFolderWriter,
    JsonLinesWriter,
    ParquetWriter,
    TargetWriter,
    TfRecordWriter,
    WebDatasetWriter,
    empty_target,
)
from shardio.errors import (
    BadRecord,
    CommitConflictError,
    SchemaError,
    ShardioError,
    StorageError,
    UnsafeNameError,
)
from shardio.metadata import Schema
from shardio.progress import CountProgress, displayed
from shardio.reader import DatasetReader, JoinedReader, as_stored, count_below, is_ascending
from shardio.reader import open as open_dataset
from shardio.reports import Report
from shardio.sources import SplitRules
from shardio.storage import url_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

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


def target_kinds() -> tuple[str, ...]:
    """Return the names of the kinds of targets, those that other packages register last."""
    return REGISTRY.kinds()


@dataclass(frozen=True)
class ExportReport(Report):
    """What an export did.

    Attributes:
        url, version, digest: the dataset, as it was read.
        target, kind: what was made of it.
        records: by split.
        files: names below the target, in the order in which they were made; none in a dry run.
        skipped: records that were left out, with `on_error="skip"`: damaged ones, and those that the kind
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
    skipped: list[BadRecord] | None = [] if skip or on_error == "skip" else None
    form: type[TargetWriter] = REGISTRY.get(kind)
    chosen = whole.source.options.features if features is None else names("features", features)
    if chosen is not None and not chosen:
        raise ValueError("features=[] names no feature to export")
    values = as_stored(whole, chosen)
    # Payloads are copied where they are what is asked for, and nothing else.
    encoded_again = chosen is not None or whole.source.holds_objects or isinstance(whole, JoinedReader)
    copied = not (form.decode or encoded_again)
    schema = whole.schema if copied else _schema_of(values)
    form.check(schema, compression)
    encode = None if form.decode or copied else _payload_of(schema, whole)
    parts = _parts(as_stored(whole, payloads=True) if copied else values)
    older = whole.source.version.manifest.schemas if copied else ()
    found = (whole.source.url if isinstance(url, DatasetReader) else str(url), whole.version, whole.digest)
    if dry_run:
        empty_target(url_text(target), target_options)
        records = {name: len(reader) for name, (reader, _) in parts.items()}
        return ExportReport(
            *found, str(target), kind, records, [], [], form.notes(schema, older), dry_run=True
        )
    records = dict.fromkeys(parts, 0)
    done = 0
    split_of: dict[str, str] = {}
    with displayed(progress, "export") as show, AtomicOutput(url_text(target), target_options) as output:
        for name, (reader, first) in parts.items():
            before = len(output.names)
            settings: dict[str, Any] = {"compression": compression, "shard_bytes": shard_bytes}
            try:
                with form(output, name, schema, splits=len(parts), **settings) as out:
                    for number, value in _values(reader, name, first, skipped):
                        try:
                            out.add(value if encode is None else encode(value))
                        except (SchemaError, UnsafeNameError, CommitConflictError) as error:
                            place = _place(reader, name, first, number)
                            if skipped is None:
                                raise _placed(error, place) from error
                            skipped.append(BadRecord(place, str(error)))
                            continue
                        records[name] += 1
                        done += 1
                        if show is not None and done % _EVERY == 0:
                            show(CountProgress(done, len(whole)))
            except OSError as error:
                if isinstance(error, ShardioError):
                    raise
                what = f"a file of the export could not be written ({error})"
                raise StorageError(what, url=output.url) from error
            split_of |= dict.fromkeys(list(output.names)[before:], name)
        files = list(output.names)
        if show is not None:
            show(CountProgress(done, len(whole)))
    notes = form.notes(schema, older) + _split_notes(split_of, form)
    return ExportReport(*found, str(target), kind, records, files, skipped or [], notes)


def _check(kind: str, shard_bytes: int, on_error: str) -> None:
    """Refuse options that make no sense, by name."""
    REGISTRY.get(kind)
    if shard_bytes < 1:
        message = f"shard_bytes={shard_bytes} must be at least 1"
        raise ValueError(message)
    if on_error not in ("raise", "skip"):
        message = f'on_error={on_error!r} must be "raise" or "skip"'
        raise ValueError(message)


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
            message = f"{name}={given!r}: a reader has that already; give it to shardio.open"
            raise ValueError(message)
    return url, url.source.options.on_error != "raise"


def _schema_of(reader: DatasetReader) -> Schema | None:
    """Return the schema of the values that a reader gives: without features that it leaves out."""
    schema, chosen = reader.schema, reader.source.options.features
    if schema is None:
        return None
    plain, lists = (
        {
            name: feature.replace(stored_name=None)
            for name, feature in group.items()
            if chosen is None or name in chosen
        }
        for group in (schema, schema.sequence_features)
    )
    return Schema(plain, encoding=schema.encoding, sequence_features=lists)


def _parts(reader: DatasetReader) -> dict[str, tuple[DatasetReader, int]]:
    """Return for each split a reader of its records, in their order, and the split's first position."""
    if reader.split != "all":
        return {reader.split: (reader, 0)}
    parts = {}
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
        parts[name] = (type(reader)(reader.source, selection), start)
    return dict(sorted(parts.items()))


def _payload_of(schema: Schema | None, reader: DatasetReader) -> Callable[[Any], bytes]:
    """Return what makes payloads of values whose stored bytes are not those payloads."""
    if schema is None:
        raise SchemaError(
            "samples of tar files cannot become TFRecord records without a schema",
            url=reader.source.url,
            shard=reader.source.table.key[0],
            advice="adopt them again without schema=False, or export to another kind",
        )
    return record_codec(schema).encode


def _split_notes(split_of: Mapping[str, str], form: type[TargetWriter]) -> list[str]:
    """Say how the splits come back where the names of the files tell others."""
    rules = SplitRules()
    divide = rules.divide_folders if form.file_is_record else rules.divide
    if divide(list(split_of)).splits == list(split_of.values()):
        return []
    if len(set(split_of.values())) == 1:
        (name,) = set(split_of.values())
        return [f"the names of the files do not tell their split: convert them with split={name!r}"]
    # Of two that fit a file, the longer name is meant: "train-clean-00000" is not of "train".
    names = sorted(set(split_of.values()), key=len, reverse=True)
    patterns = ", ".join(f"{name}={form.names.format(split=name)}" for name in names)
    return [f"the names of the files do not tell these splits; patterns of file names do: {patterns}"]


def _placed(error: ShardioError, place: str) -> ShardioError:
    """Return the error of a record that the kind cannot hold, with its place and what to do about it."""
    advice = f"{error.advice}, or {_SKIP}" if error.advice else _SKIP
    placed = type(error)(error.what, **{**error.fields(), "url": place, "advice": advice})
    return placed.with_traceback(error.__traceback__)


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
        try:
            yield from zip(part, reader.read(part), strict=True)
            continue
        except StorageError:
            raise
        except ShardioError:
            pass
        for number in part:
            try:
                value = reader[number]
            except StorageError:
                raise
            except ShardioError as error:
                skipped.append(BadRecord(_place(reader, split, first, number), str(error)))
                continue
            yield number, value
