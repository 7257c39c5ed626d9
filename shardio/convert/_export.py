"""`export_dataset`: a dataset becomes files that other programs read; all of them appear, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shardio.codecs import record_codec
from shardio.convert._mds_target import MdsWriter
from shardio.convert._targets import (
    AtomicOutput,
    ImageFolderWriter,
    JsonLinesWriter,
    ParquetWriter,
    TfRecordWriter,
    WebDatasetWriter,
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
from shardio.reader import open as open_dataset
from shardio.reports import Report
from shardio.sources import SplitRules
from shardio.storage import url_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from shardio.convert._targets import TargetWriter
    from shardio.reader import DatasetReader

__all__ = ["TARGET_KINDS", "ExportReport", "export_dataset"]

_TARGETS: dict[str, type[TargetWriter]] = {
    "tfrecord": TfRecordWriter,
    "webdataset": WebDatasetWriter,
    "jsonl": JsonLinesWriter,
    "parquet": ParquetWriter,
    "mds": MdsWriter,
    "images": ImageFolderWriter,
}
TARGET_KINDS = tuple(_TARGETS)
_SKIP = 'on_error="skip" leaves such records out'
_EVERY = 1024
_TOGETHER = 256


@dataclass(frozen=True)
class ExportReport(Report):
    """What an export did.

    Attributes:
        url, version, digest: the dataset, as it was read.
        target, kind: what was made of it.
        records: by split.
        files: names below the target, in the order in which they were made.
        skipped: records that were left out, with `on_error="skip"`: damaged ones, and those that the kind
            cannot hold.
        notes: what is not in the files although every record is, such as features beside an image, or is
            there under another name.
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


def export_dataset(  # noqa: PLR0913 - the options are the public contract
    url: str | Path,
    target: str | Path,
    *,
    kind: str,
    split: str | None = None,
    version: int | str | None = None,
    compression: str | None = None,
    shard_bytes: int = 256 << 20,
    on_error: Literal["raise", "skip"] = "raise",
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    allow_roots: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool | Callable[[CountProgress], None] = False,
) -> ExportReport:
    r"""Export a dataset to files of another kind, in the order of its records, in bounded memory.

    Args:
        url: of the dataset.
        target: folder, or URL, that the files go to; must not exist, or be empty.
        kind: one of `TARGET_KINDS`.
        split: one split; None for all.
        version: a number or a tag; None for the latest.
        compression: "gzip" or "zlib" for `tfrecord`, "gzip" for `jsonl`; "zstd" or "gzip" for `parquet`;
            "zstd" for `mds`; None as usual there.
        shard_bytes: bytes after which a new file is begun, where the kind has several.
        on_error: about damaged records, and those that the kind cannot hold: "raise", or "skip": left out and
            listed in the report.
        storage_options, target_options: of the dataset's and the target's filesystem, as in fsspec.
        allow_roots: as in `shardio.open`.
        progress: True for a bar on a terminal and lines in a log, or a function of a `CountProgress`.

    Raises:
        ValueError: the kind cannot hold these records; says which feature. Nothing was made.
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
    if kind not in _TARGETS:
        message = f"kind={kind!r} must be one of {', '.join(_TARGETS)}"
        raise ValueError(message)
    if shard_bytes < 1:
        message = f"shard_bytes={shard_bytes} must be at least 1"
        raise ValueError(message)
    if on_error not in ("raise", "skip"):
        message = f'on_error={on_error!r} must be "raise" or "skip"'
        raise ValueError(message)
    reading: dict[str, Any] = {"storage_options": storage_options, "allow_roots": allow_roots}
    whole = open_dataset(url, split="all" if split is None else split, version=version, **reading)
    names = sorted(whole.splits) if split is None else [split]
    total = sum(whole.splits[name] for name in names)
    records = dict.fromkeys(names, 0)
    skipped: list[BadRecord] = []
    done = 0
    form = _TARGETS[kind]
    form.check(whole.schema, compression)
    split_of: dict[str, str] = {}
    with displayed(progress, "export") as show, AtomicOutput(url_text(target), target_options) as output:
        for name in names:
            before = len(output.names)
            reader = open_dataset(url, split=name, version=whole.version, decode=False, **reading)
            encode = None
            if form.decode or reader.source.holds_objects:
                reader = open_dataset(url, split=name, version=whole.version, **reading)
                encode = None if form.decode else _payload_of(reader)
            with form(
                output, name, reader, compression=compression, shard_bytes=shard_bytes, splits=len(names)
            ) as out:
                for position, value in _values(reader, None if on_error == "raise" else skipped):
                    place = f"{whole.source.url} {name} {position}"
                    try:
                        out.add(value if encode is None else encode(value))
                    except (SchemaError, UnsafeNameError, CommitConflictError) as error:
                        if on_error == "raise":
                            raise _placed(error, place) from error
                        skipped.append(BadRecord(place, str(error)))
                        continue
                    except OSError as error:
                        if isinstance(error, ShardioError):
                            raise
                        raise StorageError(
                            f"a file of the export could not be written ({error})", url=output.url
                        ) from error
                    records[name] += 1
                    done += 1
                    if show is not None and done % _EVERY == 0:
                        show(CountProgress(done, total))
            split_of |= dict.fromkeys(list(output.names)[before:], name)
        files = list(output.names)
        if show is not None:
            show(CountProgress(done, total))
    notes = form.notes(whole.schema, whole.source.version.manifest.schemas) + _split_notes(split_of, form)
    return ExportReport(
        str(url), whole.version, whole.digest, str(target), kind, records, files, skipped, notes
    )


def _payload_of(reader: DatasetReader) -> Callable[[Any], bytes]:
    """Return what makes payloads of the values of samples and JSON objects, whose bytes are not payloads."""
    if reader.schema is None:
        raise SchemaError(
            "samples of tar files cannot become TFRecord records without a schema",
            url=reader.source.url,
            shard=reader.source.table.key[0],
            advice="adopt them again without schema=False, or export to another kind",
        )
    return record_codec(Schema.parse(reader.schema, encoding="example")).encode


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


def _values(reader: DatasetReader, skipped: list[BadRecord] | None) -> Iterator[tuple[int, Any]]:
    """Yield (position, value) of a split; damaged ones are listed where there is a list for them."""
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
        for position in part:
            try:
                value = reader[position]
            except StorageError:
                raise
            except ShardioError as error:
                skipped.append(BadRecord(f"{reader.source.url} {reader.split} {position}", str(error)))
                continue
            yield position, value
