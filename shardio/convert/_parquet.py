"""Parquet and Arrow files, tables in memory, and `datasets` of Hugging Face: a row is a record.

Row groups and record batches are read concurrently, a bounded part at a time.  `_columns` says which feature
a column becomes.  pyarrow is optional, so it is imported where it is used.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from shardio.arguments import need
from shardio.codecs import HF_METADATA, hf_feature, hf_json, without_names
from shardio.display import plural
from shardio.errors import BadRecord, FormatError, SchemaError, ShardioError
from shardio.format import parse_json
from shardio.formats import (
    FileSource,
    ForeignSource,
    Piece,
    Sample,
    SeekableFile,
    SourceOptions,
    Unreadable,
    in_unit,
    keep_as,
    parse_number,
)
from shardio.metadata import Feature, Schema
from shardio.parallel import Note, TaskItems, items_digest
from shardio.storage import connect

if TYPE_CHECKING:
    from shardio.convert._columns import Head, United

_ROWS = 1024
_PIECE_BYTES = 64 << 20
# Of a row group so much is read and decoded at a time, over all columns.
_BATCH_BYTES = 16 << 20
_BUFFER_BYTES = 32 << 20
# Texts of a batch that may be larger than this, if all of them are the largest one, are read as dictionaries.
_DICTIONARY_BYTES = 256 << 20
# So many bytes of footers are kept for the readers of a source; files beyond are opened once more.
_FOOTER_BYTES = 8 << 20
# A table in memory is compared by so many runs of so many rows when a session continues.
_TOLD_ROWS = 16

# Packages and names of what can become a table of Arrow.
_TABLES = {
    ("pyarrow", "Table"), ("pyarrow", "RecordBatch"), ("pandas", "DataFrame"), ("polars", "DataFrame")
}  # fmt: skip


def table_package(place: object) -> str | None:
    """Return the package that a table in memory is of, without importing it; None for anything else."""
    package, name = type(place).__module__.partition(".")[0], type(place).__name__
    return package if (package, name) in _TABLES else None


class _ArrowRows(ForeignSource):
    """What sources have in common whose records are rows of Arrow."""

    declared: ClassVar[bool] = True

    @property
    @abstractmethod
    def _heads(self) -> Sequence[Head]:
        """What is known of each file."""

    @cached_property
    def _united(self) -> United:
        from shardio.convert._columns import unite

        return unite(self._heads)

    @cached_property
    def _units(self) -> dict[str, str]:
        """Units of the times and decimals of columns, by name."""
        known = self.known().items()
        return {name: each.unit for name, each in known if isinstance(each, Feature) and each.unit}

    @cached_property
    def _file_columns(self) -> frozenset[str]:
        """Names of the columns that are files."""
        return frozenset(leaf.name for head in self._heads for leaf in head.leaves if leaf.paths is not None)

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types of the columns; what cannot be read, or differs between files, says why."""
        return self._united.features

    def notes(self) -> Sequence[str]:
        """Return what is said of any source, and the columns that differ between files."""
        return [*super().notes(), *self._united.notes]

    def metadata(self) -> dict[str, Any]:
        """Return what `datasets` says of columns and the schema does not, such as rates of audio."""
        from shardio.convert._columns import described_features, in_units_of

        known = self.known()
        kept: dict[str, Any] = {}
        for head in self._heads[:1]:
            for name, node in described_features(head.schema).items():
                feature = known.get(name)
                said = hf_json(node)
                if name in head.schema.names:
                    said = in_units_of(said, head.schema.field(name).type)
                if not isinstance(feature, Feature) or hf_json(hf_feature(feature)) != said:
                    kept[name] = without_names(said, name, known)
        return {HF_METADATA: kept} if kept else {}

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a row with its documents parsed, its times in the schema's units, and its text as wanted.

        Where the schema wants JSON, numbers become Python's. The label -1 is none, where there are classes:
        so `datasets` writes a record without a label.

        Raises:
            SchemaError: a document is not JSON, text is not UTF-8, a file is not there, or a time is none of
                the schema's unit.
        """
        fitted = dict(value)
        for name, item in value.items():
            feature = schema.get(name)
            if feature is None or item is None:
                continue
            unit = self._units.get(name, "")
            if feature.kind == "number" and isinstance(item, str) and unit.startswith("decimal"):
                fitted[name] = parse_number(item, feature)
                continue
            fitted[name] = _fitted(name, _in_unit(name, item, unit, feature.unit), feature)
            # Where records without a label have that of a class, -1 is refused.
            labelled = feature.classes is not None and feature.optional and not feature.shape
            if labelled and not (feature.has_default and feature.default >= 0) and fitted[name] == -1:
                fitted[name] = None
        for name in self._file_columns.intersection(schema):
            contents, paths = value.get(name), value.get(f"{name}.path")
            pairs = (
                zip(contents, paths, strict=True)
                if isinstance(paths, list) and contents
                else [(contents, paths)]
            )
            alone = [path for content, path in pairs if content is None and path is not None]
            if alone:
                raise SchemaError(
                    f"column {name!r} has the path of a file and not its bytes", found=repr(str(alone[0])),
                    advice="open it with datasets.load_dataset and convert what that returns, where the file "
                    f"can be read, or {Unreadable('').advice(name)}",
                )  # fmt: skip
        return fitted


def _in_unit(name: str, value: Any, unit: str, wanted: str) -> Any:
    """Return times in the unit of a dataset; other values as they are."""
    try:
        return value if unit == wanted else in_unit(value, unit, wanted)
    except ValueError as error:
        raise SchemaError(
            f"column {name!r} is {unit}, and a value is none of the dataset's {wanted} ({error})",
            found=str(value)[:80],
            advice="round the column first, or convert it into a dataset of its own",
        ) from error


def _fitted(name: str, value: Any, feature: Feature) -> Any:
    """Return a value of a column as a feature takes it: documents parsed, text as text or bytes."""
    from shardio.convert._columns import JsonText, NotText

    if feature.kind == "json":
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        if not isinstance(value, JsonText):
            return value
        try:
            return parse_json(value.encode())
        except ValueError as error:
            advice = f"keep the column as it is with {keep_as(name, 'text')}"
            raise SchemaError(
                f"column {name!r} is not JSON ({error})", found=value[:40], advice=advice
            ) from error
    if isinstance(value, list):
        return [_fitted(name, item, feature) for item in value]
    if feature.kind == "bytes" and isinstance(value, NotText | str):
        return bytes(value) if isinstance(value, NotText) else value.encode()
    if isinstance(value, NotText):
        raise SchemaError(
            f"column {name!r} is text that is not UTF-8",
            found=repr(value[:40]),
            advice=f"keep its bytes with {keep_as(name, 'bytes')}, or leave the column out with "
            f"{keep_as(name, None)}",
        )
    return value


def _samples(
    piece: Piece, batches: Iterable[Any], casts: Mapping[str, Any] | None, first: int, place: str
) -> Iterator[Sample | Note]:
    """Yield the rows of batches, numbered from `first`, then notes on nulls that no feature can hold."""
    from shardio.convert._columns import rows_of

    missing: Counter[tuple[str, str]] = Counter()
    row = first
    for batch in batches:
        for value in rows_of(batch, missing, casts or {}):
            yield Sample(f"{place} row {row}", value)
            row += 1
    for (name, what), count in missing.items():
        if count:
            yield Note(piece.url, f"column {name!r} has {count} {what}")


class _Reading(NamedTuple):
    """How a piece of a file is read.

    Attributes:
        casts: see `United`.
        first: number of its first row; None where that is not known before it is read.
        footer: of a Parquet file, parsed; None where the reader is to parse it.
        time_unit: of INT96 times.
    """

    casts: Mapping[str, Any] | None
    first: int | None
    footer: Any
    time_unit: str | None


@dataclass(frozen=True)
class ArrowFiles(_ArrowRows, FileSource):
    """Parquet files, and Arrow files of both IPC formats."""

    kind: ClassVar[str] = "parquet"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_units": self._units, "_file_columns": self._file_columns}

    @cached_property
    def _contents(self) -> tuple[dict[str, tuple[Head, Sequence[int | None], _Reading]], list[BadRecord]]:
        """Head, rows of each group and way of reading, by URL of a file; and files that can't be read."""
        found: dict[str, tuple[Head, Sequence[int | None], _Reading]] = {}
        bad: list[BadRecord] = []
        kept = 0
        for file in self.files:
            if not file.size:
                continue
            try:
                with _opened(file.root, file.key, self.options) as opened:
                    head = opened.head(file.url)
                    footer = opened.footer
                    kept += 0 if footer is None else footer.serialized_size
                    reading = _Reading(None, 0, footer if kept <= _FOOTER_BYTES else None, opened.time_unit)
                    found[file.url] = head, opened.rows, reading
            except FormatError as error:
                bad.append(BadRecord(file.url, error.what))
        return found, bad

    @property
    def _heads(self) -> list[Head]:
        return [head for head, _, _ in self._contents[0].values()]

    def pieces(self) -> list[Piece]:
        """Return the row groups, or record batches."""
        found: list[Piece] = []
        for file, split in self.split_files():
            if file.url not in self._contents[0]:
                continue
            _, rows, reading = self._contents[0][file.url]
            first: int | None = 0
            reading = reading._replace(casts=self._united.casts.get(file.url))
            # A file without rows has a schema all the same.
            for group, count in enumerate(rows or [0]):
                size, how = file.size // max(1, len(rows)), reading._replace(first=first)
                found.append(Piece(file.root, file.key, split, size, group, group + 1, how))
                first = None if first is None or count is None else first + count
        return found

    def notes(self) -> Sequence[str]:
        """Return what the columns and the splits rest on, and which files are empty."""
        empty = [file.url for file in self.files if not file.size]
        what = [f"{plural(len(empty), 'file')} such as {empty[0]}: empty, so without rows"] if empty else []
        return [*super().notes(), *what]

    def bad_records(self) -> Sequence[BadRecord]:
        """Return names that are not text, and files that are neither Parquet nor Arrow."""
        return [*super().bad_records(), *self._contents[1]]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord | Note]:
        """Yield the rows of a group."""
        how: _Reading = piece.extra
        # How many rows a record batch has is known once it is read.
        place = piece.url if how.first is not None else f"{piece.url} record batch {piece.start}"
        with _opened(piece.root, piece.key, self.options, how) as opened:
            batches = opened.batches(piece.start) if opened.rows else []
            yield from _samples(piece, batches, how.casts, how.first or 0, place)


@contextmanager
def _opened(root: str, key: str, options: SourceOptions, how: _Reading | None = None) -> Iterator[_IpcFile]:
    """Open a file of any of the formats, by its first bytes.

    Raises:
        FormatError: it is damaged, or neither Parquet nor Arrow.
    """
    need("reading Parquet and Arrow", "shardio[convert]", "pyarrow")
    import pyarrow as pa
    import pyarrow.ipc

    url = f"{root}/{key}"
    what = "this is neither Parquet nor Arrow, or damaged"
    with SeekableFile(connect(root, storage_options=options.storage_options).open(key)) as stored:
        try:
            head = stored.read(8)
            stored.seek(0)
            if head[:4] == b"PAR1":
                opened: _IpcFile = _ParquetFile(stored, how)
            elif head[:6] == b"ARROW1":
                opened = _IpcFile(pyarrow.ipc.open_file(stored))
            else:
                opened = _IpcFile(pyarrow.ipc.open_stream(stored))
            what = "the file is damaged"
            yield opened
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, ShardioError):
                raise
            raise FormatError(f"{what} ({error})", url=url) from error


class _IpcFile:
    """An Arrow file, of which a group is a record batch; or a stream of batches, which is one group."""

    footer: Any = None
    time_unit: str | None = None

    def __init__(self, reader: Any) -> None:
        from shardio.convert._columns import with_names

        self._reader = reader
        self._schema = with_names(reader.schema)
        self.rows: Sequence[int | None] = [None] * getattr(reader, "num_record_batches", 1)

    def head(self, url: str) -> Head:
        """Return what is known before rows are read."""
        from shardio.convert._columns import Head

        return Head.from_schema(url, self._schema, footer=self.footer)

    def batches(self, group: int) -> Iterator[Any]:
        """Yield the rows of a group, a thousand at a time."""
        import pyarrow as pa

        listed = hasattr(self._reader, "get_batch")
        for batch in [self._reader.get_batch(group)] if listed else self._reader:
            named = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
            yield from (named.slice(start, _ROWS) for start in range(0, batch.num_rows, _ROWS))


class _ParquetFile(_IpcFile):
    """A Parquet file; memory for what is read of a row group ahead is bounded, whatever its size."""

    def __init__(self, stored: SeekableFile, how: _Reading | None) -> None:
        import pyarrow.parquet as pq

        from shardio.convert._columns import with_names

        self._stored = stored
        kept = how.footer if how is not None else None
        self.footer: Any = pq.read_metadata(stored) if kept is None else kept
        self.time_unit = self._unit_of_int96() if how is None else how.time_unit
        self._file = self._open(self.time_unit)
        self._schema = with_names(self._file.schema_arrow)
        groups = range(self.footer.num_row_groups)
        self.rows: Sequence[int | None] = [self.footer.row_group(group).num_rows for group in groups]

    def _open(self, time_unit: str | None, **options: Any) -> Any:
        import pyarrow.parquet as pq

        size = max(64 << 10, min(4 << 20, _BUFFER_BYTES // max(1, self.footer.num_columns)))
        self._stored.seek(0)
        return pq.ParquetFile(
            self._stored, metadata=self.footer, pre_buffer=False, buffer_size=size,
            coerce_int96_timestamp_unit=time_unit, **options,
        )  # fmt: skip

    def _unit_of_int96(self) -> str | None:
        """Return the unit that holds all INT96 times, or None where there are none.

        Raises:
            ValueError: no unit does.
        """
        from shardio.convert._columns import times_of

        columns = [self.footer.schema.column(number) for number in range(self.footer.num_columns)]
        names = [column.path for column in columns if column.physical_type == "INT96"]
        if not names:
            return None
        fine = beyond = False
        readers = (
            self._open(unit).iter_batches(_ROWS, columns=names, use_threads=False) for unit in ("ns", "us")
        )
        for both in zip(*readers, strict=True):
            for ns, us in zip(*map(times_of, both), strict=True):
                # What nanoseconds do not hold wraps around.
                fits = ns // 1000 == us
                beyond = beyond or not fits.all()
                fine = fine or bool((ns[fits] % 1000).any())
        if fine and beyond:
            raise ValueError(
                "no unit holds all of its INT96 times: some have nanoseconds, others are beyond their range; "
                "rewrite the file with times in microseconds"
            )
        return "us" if beyond else "ns"

    def batches(self, group: int) -> Iterator[Any]:
        """Yield the rows of a group, few where they are large; a small dictionary may stand for gigabytes."""
        import pyarrow as pa

        from shardio.convert._columns import text_bytes

        found = self.footer.row_group(group)
        count = min(_ROWS, _BATCH_BYTES * found.num_rows // max(found.total_byte_size, 1)) or 1
        texts = self._large_texts(found, count)
        file = self._open(self.time_unit, read_dictionary=texts) if texts else self._file
        wanted = self._file.schema_arrow
        for batch in file.iter_batches(count, row_groups=[group], use_threads=False):
            start = 0
            ends = np.cumsum(text_bytes(batch)) if texts else np.zeros(batch.num_rows)
            while start < batch.num_rows:
                limit = (ends[start - 1] if start else 0) + _BATCH_BYTES
                stop = max(start + 1, int(np.searchsorted(ends, limit, side="right")))
                # A slice of lists would be cast with all values of the batch.
                part = batch.take(np.arange(start, stop)).cast(wanted) if texts else batch
                yield pa.RecordBatch.from_arrays(part.columns, schema=self._schema)
                start = stop

    def _large_texts(self, group: Any, count: int) -> list[str]:
        """Return the paths of columns of text of a group that may hold much more than what is stored."""
        paths = []
        for number in range(group.num_columns):
            column = group.column(number)
            per_row = max(1, column.num_values // max(1, group.num_rows))
            largest = min(group.num_rows, count) * per_row * column.total_uncompressed_size
            if (
                column.has_dictionary_page
                and column.physical_type == "BYTE_ARRAY"
                and self.footer.schema.column(number).logical_type.type != "DECIMAL"
                and ".key_value." not in column.path_in_schema
                and largest > _DICTIONARY_BYTES
            ):
                paths.append(column.path_in_schema)
        return paths


@dataclass(frozen=True)
class HuggingFaceDataset(_ArrowRows):
    """A `datasets.Dataset`, or a `DatasetDict` of splits; travels to workers as `datasets` pickles it.

    Files that columns name by their paths are read as `datasets` does.

    Args:
        place: the dataset.
        options: what the caller says about it.

    Raises:
        TypeError: it is a stream, an `IterableDataset`.
    """

    kind: ClassVar[str] = "datasets"
    place: Any
    options: SourceOptions

    def __post_init__(self) -> None:
        for split, dataset in self._splits().items():
            if not hasattr(dataset, "num_rows") or not hasattr(dataset, "data"):
                raise TypeError(
                    f"{type(dataset).__name__} ({split}) is a stream, which cannot be divided among workers: "
                    "load it without streaming, or convert the Parquet files of its repository "
                    '("hf://datasets/OWNER/NAME/**/*.parquet")'
                )

    @staticmethod
    def takes(place: Any) -> bool:
        """Tell whether a value is one of `datasets`', without importing it."""
        return any(kind.__module__.partition(".")[0] == "datasets" for kind in type(place).__mro__)

    def _splits(self) -> dict[str, Any]:
        if isinstance(self.place, dict):
            return {str(split): dataset for split, dataset in self.place.items()}
        return {str(getattr(self.place, "split", None) or "train"): self.place}

    def notes(self) -> Sequence[str]:
        """Return the notes on any table, and on formats of `datasets`, which a conversion ignores."""
        found = [*super().notes()]
        for split, dataset in self._splits().items():
            form = dataset.format
            if form["type"] == "custom":
                found.append(f"{split}: the transform is not applied; map() makes it part of the records")
            hidden = set(dataset.column_names).difference(form["columns"])
            if hidden and not form["output_all_columns"]:
                named = ", ".join(sorted(hidden))
                found.append(f"{split}: what its format hides is written, too: {named}; see remove_columns()")
        return found

    @cached_property
    def _heads(self) -> list[Head]:
        from shardio.convert._columns import Head, table_facts

        # Rows that the caller left out may hold the nulls that are counted here: then a feature is optional.
        found = []
        for split, dataset in self._splits().items():
            schema = dataset.features.arrow_schema
            found.append(Head.from_schema(split, schema, table_facts(dataset.data, schema)))
        return found

    def pieces(self) -> list[Piece]:
        """Return ranges of rows."""
        found: list[Piece] = []
        for split, given in self._splits().items():
            rows, size, dataset = given.num_rows, int(given.data.nbytes), given.with_format("arrow")
            step = max(1, -(-rows // max(1, size // _PIECE_BYTES)))
            # Without rows there is a schema all the same.
            for start in range(0, max(1, rows), step):
                stop = min(start + step, rows)
                apart = max(1, -(-(stop - start) // _TOLD_ROWS))
                told = _digest(dataset[row : row + 1] for row in range(start, stop, apart))
                extra = (self._united.casts.get(split), told)
                found.append(Piece("datasets", split, split, size * step // max(1, rows), start, stop, extra))
        return found

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord | Note]:
        """Yield rows of a range."""
        yield from _samples(piece, self._batches(piece), piece.extra[0], piece.start, piece.url)

    def _batches(self, piece: Piece) -> Iterator[Any]:
        from datasets.table import embed_table_storage

        dataset = self._splits()[piece.key].with_format("arrow")
        schema = dataset.features.arrow_schema
        for row in range(piece.start, piece.stop, _ROWS):
            rows = dataset[row : min(row + _ROWS, piece.stop)].cast(schema)
            try:
                yield from embed_table_storage(rows).to_batches()
            except OSError as error:
                raise FormatError(
                    f"a file that rows {row} to {row + rows.num_rows} name cannot be read ({error})",
                    url=piece.url,
                    advice="put the file there, or leave such rows out with the filter() of datasets",
                ) from error


@dataclass(frozen=True)
class ArrowTable(_ArrowRows):
    """A `pyarrow.Table` or `RecordBatch`, or a DataFrame of pandas or polars, which becomes one.

    Args:
        place: the table; or the `pyarrow.Schema` of tables that are to come.
        options: what the caller says about it.
    """

    kind: ClassVar[str] = "arrow"
    in_memory: ClassVar[bool] = True
    place: Any
    options: SourceOptions

    @staticmethod
    def takes(place: Any) -> bool:
        """Tell whether a value is a table, without importing what it is of."""
        return table_package(place) is not None

    @cached_property
    def _table(self) -> Any:
        import pyarrow as pa

        from shardio.convert._columns import with_names

        place = self.place
        if isinstance(place, pa.Schema):
            return place.empty_table()
        if isinstance(place, pa.RecordBatch):
            place = pa.Table.from_batches([place])
        if not isinstance(place, pa.Table):
            return _of_polars(place) if hasattr(place, "to_arrow") else _of_pandas(place)
        return place.rename_columns(with_names(place.schema).names)

    @cached_property
    def _heads(self) -> list[Head]:
        from shardio.convert._columns import Head, table_facts

        table = self._table
        to_come = isinstance(self.place, type(table.schema))
        facts = None if to_come else table_facts(table, table.schema)
        return [Head.from_schema("table", table.schema, facts)]

    def notes(self) -> Sequence[str]:
        """Return what is said of any table, and that an index of pandas was taken for row numbers."""
        index = getattr(self.place, "index", None)
        dropped = index is not None and type(index).__name__ != "RangeIndex" and _is_row_numbers(index)
        note = "the index has no name, so it is taken for row numbers and dropped: name it to keep it"
        return [*super().notes(), *([note] if dropped else [])]

    def pieces(self) -> list[Piece]:
        """Return all rows as one."""
        table = self._table
        rows = table.num_rows
        apart = max(1, -(-rows // _TOLD_ROWS))
        told = _digest(table.slice(row, min(apart, _TOLD_ROWS)) for row in range(0, rows, apart))
        return [Piece("arrow", "table", "train", int(table.nbytes), 0, rows, extra=told)]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord | Note]:
        """Yield the rows."""
        batches = self._table.to_batches(max_chunksize=_ROWS)
        for sample in _samples(piece, batches, None, 0, ""):
            yield sample._replace(where=sample.where.lstrip()) if isinstance(sample, Sample) else sample


def _digest(rows: Iterable[Any]) -> str:
    """Return what tells tables apart, given some rows as tables: they have no name as files have."""
    from shardio.convert._columns import rows_of

    digest = hashlib.sha256()
    for number, table in enumerate(rows):
        for batch in table.to_batches():
            digest.update(items_digest(TaskItems(0, number, [*rows_of(batch, Counter(), {})])))
    return digest.hexdigest()


def _of_polars(frame: Any) -> Any:
    import pyarrow as pa

    # Of Python objects polars gives Arrow their addresses in memory.
    objects = [name for name, kind in frame.schema.items() if str(kind) == "Object"]
    try:
        if objects:
            raise pa.ArrowTypeError(f"column {objects[0]!r} holds Python objects")
        return frame.to_arrow()
    except pa.ArrowException as error:
        raise _no_table(error, "df.cast({'NAME': polars.Float64})", "df.to_dicts()") from error


def _of_pandas(frame: Any) -> Any:
    import pyarrow as pa

    try:
        indexed = frame if _is_row_numbers(frame.index) else frame.reset_index()
        return pa.Table.from_pandas(indexed, preserve_index=False)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        # Not every error of pyarrow names the column.
        odd = [
            f"column {name} of Python objects" for name, kind in frame.dtypes.items() if str(kind) == "object"
        ]
        error.args = (*error.args, *odd)
        raise _no_table(error, "df.astype({'NAME': 'float64'})", "df.to_dict('records')") from error


def _no_table(error: Exception, cast: str, rows: str) -> SchemaError:
    """Return the error for a frame that cannot be a table of Arrow, whose own error names the column."""
    return SchemaError(
        "Arrow has no type for a column of this table, or two of its columns or its index have one name",
        found="; ".join(map(str, error.args)),
        advice=f"give the column a name or one type, as in {cast}, drop it, or write rows: "
        f"shardio.from_generator({rows}, url)",
    )


def _is_row_numbers(index: Any) -> bool:
    """Tell whether an index of pandas is not data: integers without a name, whichever rows a filter left."""
    return index.nlevels == 1 and index.name is None and index.dtype.kind in "iu"
