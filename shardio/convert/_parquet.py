"""Parquet and Arrow files: a row is a record, a column a feature of the column's own type.

Columns of structs become features `outer.inner`; numbers, text, bytes and lists of them keep their types;
times become integers in their unit, decimals text, also within lists; what is nested deeper is JSON.  Row
groups and record batches are read side by side.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from shardio.convert._arrow_types import JsonText, feature_of, flattened, rows_of
from shardio.convert._files import File, FileSource, SeekableFile, split_of
from shardio.convert._source import Piece, Sample, SourceOptions, Unreadable, keep_as
from shardio.errors import BadRecord, FormatError, SchemaError, ShardioError
from shardio.format import parse_json
from shardio.storage import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardio.metadata import Feature, Schema

__all__ = ["ARROW_ENDINGS", "PARQUET_ENDINGS", "ArrowFiles"]

PARQUET_ENDINGS = (".parquet", ".pq")
ARROW_ENDINGS = (".arrow", ".feather", ".ipc", ".arrows")
_ROWS = 1024


@dataclass(frozen=True)
class ArrowFiles(FileSource):
    """Parquet files, and Arrow files of both IPC formats."""

    kind: ClassVar[str] = "parquet"
    declared: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]] = PARQUET_ENDINGS + ARROW_ENDINGS

    @cached_property
    def _heads(self) -> list[tuple[File, Any, list[int], set[str]] | BadRecord]:
        """File, Arrow schema, rows of each group, and columns with nulls; or what is wrong with the file."""
        found: list[tuple[File, Any, list[int], set[str]] | BadRecord] = []
        for file in self.files:
            try:
                found.append((file, *self._head(file)))
            except FormatError as error:
                found.append(BadRecord(file.url, error.what))
        return found

    def _head(self, file: File) -> tuple[Any, list[int], set[str]]:
        with _Opened(file.root, file.key, self.options) as opened:
            return opened.schema, opened.rows, opened.columns_with_nulls()

    def pieces(self) -> list[Piece]:
        """Return the row groups, or record batches."""
        heads = [head for head in self._heads if not isinstance(head, BadRecord)]
        splits = split_of([file.name for file, *_ in heads])
        return [
            Piece(file.root, file.key, splits(file.name), file.size // len(rows), group, group + 1)
            for file, _, rows, _ in heads
            for group in range(len(rows))
        ]

    def odd(self) -> Sequence[BadRecord]:
        """Return names that are no text, and files that are neither Parquet nor Arrow."""
        return [*super().odd(), *(head for head in self._heads if isinstance(head, BadRecord))]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the rows of a group."""
        with _Opened(piece.root, piece.key, self.options) as opened:
            number = sum(opened.rows[: piece.start])
            for batch in opened.batches(piece.start):
                for value in rows_of(batch):
                    yield Sample(f"{piece.url} row {number}", value)
                    number += 1

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types of the columns; what cannot be read, or differs between files, says why."""
        heads = [head for head in self._heads if not isinstance(head, BadRecord)]
        nulls = {name for *_, columns in heads for name in columns}
        declared: dict[str, Feature | str | Unreadable] = {}
        places: dict[str, str] = {}
        types: dict[str, str] = {}
        for number, (file, schema, *_) in enumerate(heads):
            columns = flattened(schema)
            counts = Counter(name for name, _ in columns)
            for name, field in columns:
                feature = feature_of(name, field, optional=name in nulls)
                if counts[name] > 1:
                    feature = Unreadable(f"two columns of {file.url} are called {name!r}")
                if number and name not in places:
                    feature = _differs(name, f"there is none in {heads[0][0].url}", f"one in {file.url}")
                elif name in declared and feature != declared[name]:
                    here = f"{field.type} in {file.url}"
                    feature = _differs(name, f"{types[name]} in {places[name]}", here)
                if not isinstance(declared.get(name), Unreadable):
                    declared[name] = feature
                places.setdefault(name, file.url)
                types.setdefault(name, str(field.type))
            for name in declared.keys() - counts.keys():
                if not isinstance(declared[name], Unreadable):
                    declared[name] = _differs(name, f"{types[name]} in {places[name]}", f"none in {file.url}")
        return declared

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a row with its JSON documents parsed, where the schema wants JSON."""
        return {
            name: _document(name, item)
            if isinstance(item, JsonText) and name in schema and schema[name].kind == "json"
            else item
            for name, item in value.items()
        }


def _differs(name: str, one: str, other: str) -> Unreadable:
    return Unreadable(f"column {name!r} is not the same in all files: {one}, {other}")


def _document(name: str, text: str) -> Any:
    try:
        return parse_json(text.encode())
    except ValueError as error:
        advice = f"keep the column as it is with {keep_as(name, 'text')}"
        raise SchemaError(f"column {name!r} is no JSON ({error})", found=text[:40], advice=advice) from error


class _Opened:
    """One file, whatever its format: schema, groups, batches of rows."""

    def __init__(self, root: str, key: str, options: SourceOptions) -> None:
        try:
            import pyarrow as pa
            import pyarrow.ipc
            import pyarrow.parquet
        except ImportError as error:
            message = 'Parquet and Arrow need pyarrow: pip install "shardio[convert]"'
            raise ImportError(message, name="pyarrow") from error
        self._pa = pa
        self.url = f"{root}/{key}"
        self._file = SeekableFile(connect(root, storage_options=options.storage_options).open(key))
        self._parquet: Any = None
        self._reader: Any = None
        try:
            head = self._file.read(8)
            self._file.seek(0)
            if head[:4] == b"PAR1":
                self._parquet = pyarrow.parquet.ParquetFile(self._file)
            elif head[:6] == b"ARROW1":
                self._reader = pyarrow.ipc.open_file(self._file)
            else:
                self._reader = pyarrow.ipc.open_stream(self._file)
        except (pa.ArrowException, OSError, ValueError) as error:
            self._file.close()
            if isinstance(error, ShardioError):
                raise
            raise FormatError(
                f"this is neither Parquet nor Arrow, or damaged ({error})", url=self.url
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def schema(self) -> Any:
        """The Arrow schema."""
        return self._parquet.schema_arrow if self._parquet is not None else self._reader.schema

    @property
    def rows(self) -> list[int]:
        """Rows of each group; a stream is one group of unknown size."""
        if self._parquet is not None:
            groups = self._parquet.metadata
            return [groups.row_group(group).num_rows for group in range(groups.num_row_groups)]
        if hasattr(self._reader, "num_record_batches"):
            # How many rows a batch has is known once it is read; places in messages count from the batch.
            return [0] * self._reader.num_record_batches
        return [0]

    def columns_with_nulls(self) -> set[str]:
        """Return the columns that may hold nulls: by the statistics of a Parquet file where it has them."""
        nullable = {field.name: field.nullable for field in self.schema}
        found = {name for name, _ in flattened(self.schema) if nullable.get(name, True)}
        if self._parquet is None:
            return found
        # Of a list the leaf's statistics count empty lists too; none is certain all the same.
        unsure: set[str] = set()
        metadata = self._parquet.metadata
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                statistics = column.statistics
                if statistics is None or not statistics.has_null_count or statistics.null_count:
                    unsure.add(column.path_in_schema)
        return {name for name in found if any(path == name or path.startswith(f"{name}.") for path in unsure)}

    def batches(self, group: int) -> Iterator[Any]:
        """Yield the rows of a group, a thousand at a time."""
        try:
            if self._parquet is not None:
                yield from self._parquet.iter_batches(_ROWS, row_groups=[group], use_threads=False)
            elif hasattr(self._reader, "get_batch"):
                whole = self._reader.get_batch(group)
                yield from (whole.slice(start, _ROWS) for start in range(0, whole.num_rows, _ROWS))
            else:
                yield from self._reader
        except (self._pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, ShardioError):
                raise
            raise FormatError(f"the file is damaged ({error})", url=self.url) from error
