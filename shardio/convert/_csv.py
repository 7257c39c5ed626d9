"""CSV and TSV: a row is a record, a column a feature, and the first row names the columns.

The caller's process reads the source once, and a column gets the type that holds every field of it.  A type
that the caller gives takes precedence.  Each file is then read by one worker.

Python's `csv` reads the rows, in its strict mode.  pyarrow's reader lets a quote that is never closed reach
to the end of the file.  DuckDB 2.0 drops the rows behind such a quote when it collects rejected rows, and
numbers rejected rows by rows instead of lines.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from shardio.display import plural
from shardio.errors import BadRecord, FormatError, SchemaError
from shardio.format import UTF8_BOM, parse_json, wide_encoding
from shardio.formats import (
    BOOLEANS,
    MISSING,
    MOST_CLASSES,
    READ_BYTES,
    DecodedFile,
    File,
    FileSource,
    LabelColumn,
    Piece,
    Sample,
    SourceOptions,
    Unreadable,
    integers_type,
    is_integer,
    is_number,
    is_real,
    keep_as,
    parse_number,
)
from shardio.metadata import Feature, Schema
from shardio.sources import without_compression
from shardio.storage import connect

_ROWS = 1000
_MOST_COLUMNS = 10_000
# A quote that is never closed reaches to the end of the file: what is read for one field is bounded.
_LONGEST_LINE = 64 << 20
_LONGEST_FIELD = 16 << 20
# So many different texts of a column are kept; of numbers in a narrow table as many as a feature can have
# classes, which may be called by numerals.
_MOST_LABELS = 1 << 12
_NARROW = 16


class _TableRow(NamedTuple):
    """A row, or what is wrong with it, and the line where it begins, from 1."""

    line: int
    fields: list[str]
    trouble: str | None = None


class _TableLines:
    """The lines of a stream as text, counted as they are taken; `csv` takes more than one for some rows."""

    def __init__(self, stream: io.BufferedReader, url: str) -> None:
        self.line, self.start = 1, 0
        self._stream, self._url = stream, url

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        data = self._stream.readline(_LONGEST_LINE)
        if not data:
            raise StopIteration
        begin, self.start = self.start, self.start + len(data)
        if not begin:
            if (encoding := wide_encoding(data)) is not None:
                advice = "write the file as UTF-8"
                raise FormatError(f"the file is {encoding}, not UTF-8", url=self._url, advice=advice)
            data = data.removeprefix(UTF8_BOM)
        if len(data) >= _LONGEST_LINE:
            raise FormatError(
                f"line {self.line} is too long for a table",
                url=self._url,
                start=begin,
                expected=f"less than {_LONGEST_LINE} bytes",
            )
        self.line += 1
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise FormatError(
                f"line {self.line - 1} is not UTF-8 text ({error.reason})",
                found=repr(data[max(0, error.start - 10) : error.start + 10]),
                advice="rewrite the file as UTF-8: iconv -f WINDOWS-1252 -t UTF-8",
                url=self._url,
                start=begin,
            ) from None


def _rows(lines: _TableLines, delimiter: str, *, quotes: bool) -> Iterator[_TableRow]:
    """Yield the rows, without blank lines; also what is not a row."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    dialect: dict[str, Any] = {} if quotes else {"quoting": csv.QUOTE_NONE}
    reader = csv.reader(lines, delimiter=delimiter, strict=True, **dialect)
    while True:
        line = lines.line
        try:
            fields = next(reader, None)
        except csv.Error as error:
            unclosed = "end of data" in str(error) or "field limit" in str(error)
            trouble = (
                "a quote is opened and never closed"
                if unclosed
                else f"this is not a row of a table ({error})"
            )
            yield _TableRow(line, [], trouble)
            continue
        if fields is None:
            return
        if fields:
            yield _TableRow(line, fields)


class _Fields:
    """What the fields of one column have shown so far."""

    def __init__(self, *, narrow: bool = True) -> None:
        self.missing = False
        self._narrow = narrow
        self.words = 0
        self.quoted = 0
        self.texts: set[str] | None = set()
        self.unlike: str | None = None  # the first number that is text as it is written
        self._integer = self._real = self._boolean = self._number = True
        self._lowest = self._highest = 0
        self._told = False

    def add(self, fields: Sequence[str]) -> None:
        """Take fields of some rows."""
        filled = [text for text in fields if text]
        self.missing = self.missing or len(filled) < len(fields)
        self.quoted += sum(len(text) > 1 and text[0] == text[-1] == '"' for text in filled)
        if self.texts is not None:
            self.texts.update(filled)
            most = MOST_CLASSES if self._number and self._narrow else _MOST_LABELS
            self.texts = self.texts if len(self.texts) <= most else None
        if not (self._integer or self._number or self._boolean):
            return
        told = [text for each in filled if (text := each.strip()) not in MISSING]
        self.words += len(filled) - len(told)
        self._told = self._told or bool(told)
        if not told:
            return
        self._integer = self._integer and all(map(is_integer, told))
        if self._integer:
            numbers = [int(text) for text in told]
            self._lowest, self._highest = min(self._lowest, *numbers), max(self._highest, *numbers)
        self._real = self._real and all(map(is_real, told))
        self._number = self._number and all(map(is_number, told))
        self._boolean = self._boolean and all(text.lower() in BOOLEANS for text in told)
        if self._number and not self._real and self.unlike is None:
            self.unlike = next((text for text in told if not is_real(text)), None)

    @property
    def type(self) -> str:
        """The type that holds every field."""
        if not self._told:
            return "text"
        if self._boolean:
            return "bool"
        if self._integer:
            return integers_type(self._lowest, self._highest) or "text"
        return "float64" if self._real else "text"

    @property
    def labels(self) -> LabelColumn:
        """What the column holds where it is one of labels."""
        if self.texts is not None:
            return LabelColumn.from_texts(self.texts)
        numbers = "integers" if self._integer and not self.words else "reals"
        return LabelColumn(numbers if self._number else "names", frozenset())


class _Contents(NamedTuple):
    """The names of the columns of each file, what all columns hold, and what the caller should know."""

    names: dict[str, tuple[str, ...]]
    columns: dict[str, _Fields]
    notes: list[str]
    bad: list[BadRecord]


@dataclass(frozen=True)
class CsvTables(FileSource):
    """One or more files of comma-separated values."""

    kind: ClassVar[str] = "csv"
    declared: ClassVar[bool] = True
    delimiter: ClassVar[str | None] = None
    fits_text: ClassVar[bool] = True
    # Of a file of values between tabs a quote is a character.
    quotes: ClassVar[bool] = True

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_labels": self._labels}

    @cached_property
    def _labels(self) -> dict[str, LabelColumn]:
        """What columns hold that may be labels, by name."""
        return {name: fields.labels for name, fields in self._contents.columns.items()}

    @cached_property
    def _contents(self) -> _Contents:
        found = _Contents({}, {}, [], [])
        for file, _ in self.split_files():
            try:
                self._take(file, found)
            except FormatError as error:
                reason = error.what if error.found is None else f"{error.what} ({error.found})"
                found.bad.append(BadRecord(file.url, reason, error.advice))
        for name, fields in found.columns.items():
            lacking = [url for url, names in found.names.items() if name not in names]
            if lacking:
                fields.missing = True
                found.notes.append(
                    f"column {name!r} is missing in {len(lacking)} of {len(found.names)} files "
                    f"(first {lacking[0]}): its values are missing there"
                )
            if fields.words and fields.type != "text":
                found.notes.append(
                    f"column {name!r} is {fields.type}: fields such as NA or null count as missing "
                    f"({fields.words:,})"
                )
            if fields.unlike is not None and fields.type == "text":
                found.notes.append(
                    f"column {name!r} is text: {fields.unlike} would not come back from a number as it is "
                    f"written; numbers are made with {keep_as(name, 'float64')}"
                )
            if fields.quoted and not self.quotes:
                found.notes.append(
                    f"column {name!r} has {plural(fields.quoted, 'field')} between quotes, which are part of "
                    'the text in TSV; kind="csv" takes them for quotes'
                )
        return found

    def _take(self, file: File, found: _Contents) -> None:
        """Read a file once for the types of its columns."""
        with _opened(file.root, file.key, self.options) as stream:
            delimiter = self.delimiter or _delimiter_of(stream)
            rows = _rows(_TableLines(stream, file.url), delimiter, quotes=self.quotes)
            names, notes = _header(rows, file.url)
            # Without rows there are columns all the same.
            found.names[file.url] = names
            narrow = len(names) <= _NARROW
            columns = [found.columns.setdefault(name, _Fields(narrow=narrow)) for name in names]
            whole = (row.fields for row in rows if row.trouble is None and len(row.fields) == len(names))
            while part := list(itertools.islice(whole, _ROWS)):
                for fields, texts in zip(columns, zip(*part, strict=True), strict=True):
                    fields.add(texts)
        if self.delimiter is None and delimiter != ",":
            notes.append(f"the fields are separated by {delimiter!r}")
        found.notes.extend(f"{file.url}: {note}" for note in notes)

    def pieces(self) -> Sequence[Piece]:
        """Return the files that are tables."""
        names = self._contents.names
        return [piece for piece in super().pieces() if piece.url in names]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the rows of a file, their fields as text."""
        with _opened(piece.root, piece.key, self.options) as stream:
            delimiter = self.delimiter or _delimiter_of(stream)
            rows = _rows(_TableLines(stream, piece.url), delimiter, quotes=self.quotes)
            names, _ = _header(rows, piece.url)
            for row in rows:
                where = f"{piece.url} line {row.line}"
                if row.trouble is not None:
                    yield BadRecord(where, row.trouble)
                elif len(row.fields) != len(names):
                    trouble = f"the row has {plural(len(row.fields), 'field')}, and the header {len(names)}"
                    yield BadRecord(where, trouble)
                else:
                    pairs = zip(names, row.fields, strict=True)
                    yield Sample(where, {name: text or None for name, text in pairs})

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types that hold all fields of each column."""
        found: dict[str, Feature | str | Unreadable] = {}
        for name, fields in self._contents.columns.items():
            kind = fields.type
            found[name] = Feature(kind, optional=fields.missing or (kind != "text" and fields.words > 0))
        return found

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a row with its fields as the schema wants them.

        Raises:
            SchemaError: a field is not of the type of its column.
        """
        return {
            name: text
            if text is None or name not in schema
            else _fitted(name, text, schema[name], self._labels.get(name))
            for name, text in value.items()
        }

    def bad_records(self) -> Sequence[BadRecord]:
        """Return names that are not text, and files that are not tables."""
        return [*super().bad_records(), *self._contents.bad]

    def notes(self) -> Sequence[str]:
        """Return what the splits rest on, and what was decided of the columns."""
        return [*super().notes(), *self._contents.notes]


@dataclass(frozen=True)
class TsvTables(CsvTables):
    """One or more files of values between tabs."""

    kind: ClassVar[str] = "tsv"
    delimiter: ClassVar[str | None] = "\t"
    quotes: ClassVar[bool] = False


def _opened(root: str, key: str, options: SourceOptions) -> io.BufferedReader:
    """Return the decoded bytes of a file."""
    data = connect(root, storage_options=options.storage_options).open(key)
    compressed = without_compression(key) != key.rpartition("/")[2]
    return io.BufferedReader(DecodedFile(data, compressed=compressed), READ_BYTES)


def _delimiter_of(stream: io.BufferedReader) -> str:
    """Return what is between the names of the columns: a comma, where there is one."""
    head = stream.peek(1)[: 64 << 10].lstrip(UTF8_BOM + b"\r\n").split(b"\n", 1)[0]
    if b"," in head:
        return ","
    return max(";\t|", key=lambda mark: head.count(mark.encode())) if set(b";\t|") & set(head) else ","


def _header(rows: Iterator[_TableRow], url: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of the columns, and notes on them."""
    first = next(rows, None)
    if first is None:
        raise FormatError("the table is empty", url=url, expected="a row with the names of the columns")
    if first.trouble is not None:
        raise FormatError(f"the first row cannot be read: {first.trouble}", url=url)
    if len(first.fields) > _MOST_COLUMNS:
        raise FormatError(
            "the table has more columns than a schema can have features",
            url=url,
            expected=f"at most {_MOST_COLUMNS}",
            found=len(first.fields),
            advice="make one column of them, a list of numbers, or split the table",
        )
    given = [name.strip() for name in first.fields]
    if all(not name or is_number(name) for name in given):
        raise FormatError(
            "the first row does not name the columns",
            url=url,
            found=", ".join(given),
            advice="put a row of names before it",
        )
    names = [name or f"column{number}" for number, name in enumerate(given)]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise FormatError(f"the header names the column {twice!r} twice", url=url, found=", ".join(names))
    notes = [
        f"column {number} has no name: it is {name!r}"
        for number, (name, said) in enumerate(zip(names, given, strict=True))
        if not said
    ]
    return tuple(names), notes


def _fitted(name: str, text: str, feature: Feature, labels: LabelColumn | None) -> Any:
    """Return a field as a feature's value; text that is a missing number is None."""
    if feature.kind == "text":
        return text
    try:
        if feature.classes is not None and labels is not None:
            return labels.fit(text, feature)
        if feature.kind == "bytes":
            return text.encode()
        if feature.kind == "json":
            return parse_json(text.encode())
        return parse_number(text, feature)
    except ValueError as error:
        raise SchemaError(
            f"column {name!r} is not {feature.short} here ({error})",
            found=repr(text[:40]),
            advice=f"keep its text with {keep_as(name, 'text')}",
        ) from error
