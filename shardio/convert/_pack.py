"""`pack_dataset`: the documents of a dataset become rows of one length in another, in one commit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Unpack

from shardio.arguments import names
from shardio.errors import BadRecord
from shardio.packing import MOST_LISTED, PackedRows, PackReport
from shardio.parallel import Note, Progress, RunOptions, write_session
from shardio.reader import DatasetReader, open as open_dataset
from shardio.reports import Report
from shardio.storage import url_text
from shardio.writer import LayoutOptions, check_writer_options, foretell_write

_PART_BYTES = 64 << 20


@dataclass(frozen=True)
class PackDatasetReport(Report):
    """Result of packing a dataset.

    Attributes:
        source: the dataset of documents, as it was read.
        url, version, digest: the dataset of rows; version and digest are None in a dry run.
        splits: what was packed of each split.
        dry_run: all documents were read and packed, and nothing was written.
    """

    _computed: ClassVar[tuple[str, ...]] = ("records", "skipped")

    source: str
    url: str
    version: int | None
    digest: str | None
    splits: Mapping[str, PackReport]
    dry_run: bool = False

    @property
    def records(self) -> Mapping[str, int]:
        """Rows of each split."""
        return {name: report.rows for name, report in self.splits.items()}

    @property
    def skipped(self) -> list[BadRecord]:
        """Documents that were skipped, by split, as far as the reports of the splits list them."""
        return [
            replace(each, where=f"split {name}, {each.where}")
            for name, report in self.splits.items()
            for each in report.skipped
        ]


def pack_dataset(  # noqa: PLR0913 - the options are the public contract
    source: str | Path,
    url: str | Path,
    length: int,
    *,
    features: Sequence[str] | None = None,
    cut: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    pad: Any = 0,
    mode: str = "create",
    dry_run: bool = False,
    allow_roots: Mapping[str, Mapping[str, Any]] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    progress: bool | Callable[[Progress], None] = False,
    **writer: Unpack[LayoutOptions],
) -> PackDatasetReport:
    """Pack the documents of a dataset into rows of one length; splits stay apart, and keep their names.

    Args:
        source: dataset of documents; its latest version is read.
        url: of the dataset of rows.
        length: tokens of a row.
        features: those to pack; None for all numbers of differing length, such as `int32[?]`.
        cut: cut documents that are longer than a row.
        pad: value that fills up rows.
        on_error: about documents that are too long or empty: "raise", or "skip": left out, counted and listed
            in the report.
        mode: "create", "append" or "overwrite".
        dry_run: write nothing, only read the documents and say how they would be packed.
        allow_roots: of the source, as in `shardio.open`.
        storage_options: of both datasets, as in fsspec.
        executor: any `concurrent.futures.Executor` that packs parts of some 64 MB of documents; None for this
            process, which packs the same parts.
        progress: True for a bar on a terminal and lines in a log, or a function of a
            `shardio.parallel.Progress`.
        writer: further options of `DatasetWriter`: `compression`, `level`, `shard_bytes`, `block_bytes`,
            `splits`, `single_writer`.

    Raises:
        SchemaError: a document cannot be packed; nothing was published.
        ValueError: no such feature, or an option that makes no sense.
        CommitConflictError, FormatError, StorageError: as reading and `DatasetWriter`.

    Examples:
        >>> import shardio, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with shardio.DatasetWriter(f"{folder}/documents", schema={"tokens": "int32[?]"}) as out:
        ...     for n in range(100):
        ...         out.write({"tokens": range(n % 7 + 1)})
        >>> report = shardio.pack_dataset(f"{folder}/documents", f"{folder}/rows", 16)
        >>> report.records
        {'train': 25}
        >>> print(report.splits["train"])
        100 documents, 395 tokens, 25 rows of 16, 98.75% full
    """
    check_writer_options(writer, "shardio.pack_dataset", signature(pack_dataset).parameters)
    place: dict[str, Any] = {"storage_options": storage_options, "allow_roots": allow_roots}
    whole = open_dataset(source, split="all", **place)
    readers = {
        name: open_dataset(source, split=name, version=whole.version, **place)
        for name, records in whole.splits.items()
        if records
    }
    packed = _packed(whole, features)
    types = {name: whole.schema[name].short for name in packed} if whole.schema is not None else {}
    worker = _PartPacker(length, {"features": types, "cut": cut, "on_error": on_error, "pad": pad})
    schema = worker.rows((), 0).schema
    parts = [part for name, reader in readers.items() for part in _cut(name, reader)]
    options: dict[str, Any] = {"schema": schema, "mode": mode, "storage_options": storage_options, **writer}
    noted: list[Note] = []
    version = digest = None
    if dry_run:
        single = writer.get("single_writer", False)
        foretell_write(url_text(url), mode, None, storage_options, single_writer=single)
        noted = [made for part in parts for _, made in worker(part) if isinstance(made, Note)]
    else:
        workers = None if executor else 1
        run = RunOptions(executor=executor, workers=workers, progress=progress, noted=noted)
        written = write_session(url_text(url), parts, worker, session=None, run=run, writer=options)
        version, digest = written.version, written.digest
    found = sorted((note for note in noted if isinstance(note, _PartPacked)), key=lambda note: note.first)
    splits = {name: _sum([note.report for note in found if note.where == name], length) for name in readers}
    return PackDatasetReport(url_text(source), url_text(url), version, digest, splits, dry_run=dry_run)


class _Documents(NamedTuple):
    """Documents of a split that are packed together; `first` is the number of the first one there."""

    split: str
    first: int
    reader: DatasetReader


@dataclass(frozen=True)
class _PartPacked(Note):
    """What was packed of the documents of a split from `first` on."""

    first: int
    report: PackReport


@dataclass(frozen=True)
class _PartPacker:
    """Packs documents; travels to workers.

    Attributes:
        length: tokens of a row.
        options: of `PackedRows`.
    """

    length: int
    options: Mapping[str, Any]

    def rows(self, records: Iterable[Any], first: int) -> PackedRows:
        """Return the rows of documents that are numbered from `first`."""
        return PackedRows(records, self.length, first=first, **self.options)

    def __call__(self, part: _Documents) -> Iterator[tuple[str, Any]]:
        """Yield each row of a part with its split, and at last the report.

        Raises:
            SchemaError: a document cannot be packed.
        """
        rows = self.rows(part.reader, part.first)
        yield from ((part.split, row) for row in rows)
        yield part.split, _PartPacked(part.split, str(rows.report), part.first, rows.report)


def _cut(split: str, reader: DatasetReader) -> list[_Documents]:
    """Cut the documents of a split into parts, the same ones wherever they are packed."""
    count = max(1, min(len(reader), int(reader.source.table.stored_bytes.sum()) // _PART_BYTES))
    edges = [len(reader) * number // count for number in range(count + 1)]
    return [_Documents(split, low, reader[low:stop]) for low, stop in itertools.pairwise(edges)]


def _sum(reports: Sequence[PackReport], length: int) -> PackReport:
    """Return what was packed all told."""
    names = ("records", "rows", "tokens", "records_cut", "records_skipped")
    total = {name: sum(getattr(report, name) for report in reports) for name in names}
    skipped = [bad for report in reports for bad in report.skipped][:MOST_LISTED]
    return PackReport(length, **total, skipped=skipped)


def _packed(ds: DatasetReader, features: Sequence[str] | None) -> Sequence[str]:
    """Return the features that are packed."""
    schema = ds.schema
    if schema is None:
        raise ValueError("the records of this dataset are bytes: only features of numbers are packed")
    if features is not None:
        given = names("features", features)
        missing = [name for name in given if name not in schema]
        if missing:
            raise ValueError(f"there is no feature {missing[0]!r}; there are {', '.join(schema)}")
        return given
    found = [
        name
        for name, feature in schema.items()
        if feature.kind == "number" and feature.unknown_dimensions == 1 and feature.shape[0] is None
    ]
    if not found:
        message = f"no feature of {', '.join(schema)} holds numbers of differing length, such as int32[?]"
        raise ValueError(message)
    return found
