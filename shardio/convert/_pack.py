"""`pack_dataset`: the documents of a dataset become rows of one length in another, in one commit."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from shardio.arguments import names
from shardio.packing import pack
from shardio.progress import CountProgress, displayed
from shardio.reader import open as open_dataset
from shardio.reports import Report
from shardio.storage import url_text
from shardio.writer import DatasetWriter, check_writer_options, foretell_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardio.packing import PackReport
    from shardio.reader import DatasetReader
    from shardio.writer import LayoutOptions

_EVERY = 1024


@dataclass(frozen=True)
class PackDatasetReport(Report):
    """What packing a dataset did.

    Attributes:
        source: the dataset of documents, as it was read.
        url, version, digest: the dataset of rows; version and digest are None in a dry run.
        splits: what was packed of each split.
        dry_run: all documents were read and packed, and nothing was written.
    """

    _computed: ClassVar[tuple[str, ...]] = ("records",)

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
    progress: bool | Callable[[CountProgress], None] = False,
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
        progress: True for a bar on a terminal and lines in a log, or a function of a `CountProgress`.
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
    options = {"features": types, "cut": cut, "on_error": on_error, "pad": pad}
    reports: dict[str, PackReport] = {}
    total, done = sum(map(len, readers.values())), 0
    schema = pack([], length, **options).schema
    with displayed(progress, "pack") as show:

        def counted(reader: DatasetReader) -> Iterator[Any]:
            nonlocal done
            for record in reader:
                yield record
                done += 1
                if show is not None and (done % _EVERY == 0 or done == total):
                    show(CountProgress(done, total, "documents"))

        def packed_rows() -> Iterator[tuple[str, Any]]:
            for name, reader in readers.items():
                rows = pack(counted(reader), length, **options)
                reports[name] = rows.report
                yield from ((name, row) for row in rows)

        if dry_run:
            single = writer.get("single_writer", False)
            foretell_write(url_text(url), mode, None, storage_options, single_writer=single)
            collections.deque(packed_rows(), maxlen=0)
            return PackDatasetReport(url_text(source), url_text(url), None, None, reports, dry_run=True)
        with DatasetWriter(url, schema=schema, mode=mode, storage_options=storage_options, **writer) as out:
            for name, row in packed_rows():
                out.write(row, split=name)
    assert out.version is not None  # noqa: S101 - it has committed
    assert out.digest is not None  # noqa: S101
    return PackDatasetReport(url_text(source), url_text(url), out.version, out.digest, reports)


def _packed(ds: DatasetReader, features: Sequence[str] | None) -> Sequence[str]:
    """Return the features that are packed."""
    schema = ds.schema
    if schema is None:
        raise ValueError("the records of this dataset are bytes: only features of numbers are packed")
    if features is not None:
        given = names("features", features)
        missing = [name for name in given if name not in schema]
        if missing:
            message = f"there is no feature {missing[0]!r}; there are {', '.join(schema)}"
            raise ValueError(message)
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
