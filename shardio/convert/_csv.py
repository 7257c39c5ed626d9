"""CSV and TSV: a row is a record, a column a feature, and the first row names the columns.

The caller's process reads the source once, and a column gets the type that holds every field of it.  A type
that the caller gives takes precedence.  Each file is then read by one worker.

Python's `csv` reads the rows, in its strict mode.  pyarrow's reader lets a quote that is never closed reach
to the end of the file.  DuckDB 2.0 drops the rows behind such a quote when it collects rejected rows, and
numbers rejected rows by rows instead of lines.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, ClassVar, NamedTuple

from shardio.display import plural
from shardio.errors import BadRecord, FormatError, SchemaError
from shardio.format import UTF8_BOM, parse_json, wide_encoding
from shardio.formats import (
    BOOLEANS,
    MISSING,
    MOST_CLASSES,
    FileSource,
    LabelColumn,
    Piece,
    Sample,
    Unreadable,
    integers_type,
    is_integer,
    is_number,
    is_real,
    keep_as,
    open_decoded,
    parse_number,
)
from shardio.metadata import Feature, Schema

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

    def __init__(self, stream: BinaryIO, url: str) -> None:
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


_KINDS = {
    "integer": is_integer,
    "real": is_real,
    "number": is_number,
    "boolean": lambda text: text.lower() in BOOLEANS,
}


class _Fields:
    """What the fields of one column have shown so far."""

    def __init__(self, *, narrow: bool) -> None:
        self.missing = False
        self.words = 0
        self._texts: set[str] | None = set()
        self._narrow = narrow
        self._kinds = set(_KINDS)
        self._lowest = self._highest = 0
        self._told = False

    def add(self, fields: Sequence[str]) -> None:
        """Take fields of some rows."""
        filled = [text for text in fields if text]
        self.missing = self.missing or len(filled) < len(fields)
        if self._texts is not None:
            self._texts.update(filled)
            most = MOST_CLASSES if "number" in self._kinds and self._narrow else _MOST_LABELS
            self._texts = self._texts if len(self._texts) <= most else None
        told = [text for each in filled if (text := each.strip()) not in MISSING] if self._kinds else []
        if not told:
            self.words += len(filled) if self._kinds else 0
            return
        self.words += len(filled) - len(told)
        self._told = True
        self._kinds = {kind for kind in self._kinds if all(map(_KINDS[kind], told))}
        if "integer" in self._kinds:
            numbers = [int(text) for text in told]
            self._lowest, self._highest = min(self._lowest, *numbers), max(self._highest, *numbers)

    @property
    def feature(self) -> Feature:
        """The feature that holds every field."""
        kinds = self._kinds if self._told else set()
        kind: str | None = "bool" if "boolean" in kinds else "float64" if "real" in kinds else "text"
        if "integer" in kinds:
            kind = integers_type(self._lowest, self._highest)
        numeric = kind not in (None, "text")
        return Feature(kind or "text", optional=self.missing or (numeric and self.words > 0))

    @property
    def labels(self) -> LabelColumn:
        """What the column holds where it is one of labels."""
        if self._texts is not None:
            return LabelColumn.from_texts(self._texts)
        numbers = "integers" if "integer" in self._kinds and not self.words else "reals"
        return LabelColumn(numbers if "number" in self._kinds else "names", frozenset())


class Table:
    """An open table: the names of its columns, notes on them, and its rows.

    Args:
        stream: decoded bytes.
        url: of the file.
        tabs: fields are between tabs, and quotes are characters.

    Raises:
        FormatError: no row names the columns.
    """

    def __init__(self, stream: BinaryIO, url: str, *, tabs: bool) -> None:
        delimiter = "\t" if tabs else _delimiter_of(stream)
        self._rows = _rows(_TableLines(stream, url), delimiter, quotes=not tabs)
        self.names, self.notes = _header(self._rows, url)
        if not tabs and delimiter != ",":
            self.notes.append(f"the fields are separated by {delimiter!r}")

    def __iter__(self) -> Iterator[_TableRow]:
        """Yield the rows; those of other columns than the first one have `trouble`."""
        for row in self._rows:
            if row.trouble is None and len(row.fields) != len(self.names):
                found = plural(len(row.fields), "field")
                yield row._replace(trouble=f"the row has {found}, and the header {len(self.names)}")
            else:
                yield row


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
    fits_text: ClassVar[bool] = True
    tabs: ClassVar[bool] = False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_labels": self._labels}

    @cached_property
    def _labels(self) -> dict[str, LabelColumn]:
        """What columns hold that may be labels, by name."""
        return {name: fields.labels for name, fields in self._contents.columns.items()}

    @cached_property
    def _contents(self) -> _Contents:
        """What all rows of all files show."""
        found = _Contents({}, {}, [], [])
        for file, _ in self.split_files():
            try:
                with open_decoded(file.root, file.key, self.options.storage_options) as stream:
                    table = Table(stream, file.url, tabs=self.tabs)
                    # Without rows there are columns all the same.
                    found.names[file.url] = table.names
                    narrow = len(table.names) <= _NARROW
                    columns = [found.columns.setdefault(name, _Fields(narrow=narrow)) for name in table.names]
                    whole = (row.fields for row in table if row.trouble is None)
                    while part := list(itertools.islice(whole, _ROWS)):
                        for fields, texts in zip(columns, zip(*part, strict=True), strict=True):
                            fields.add(texts)
                found.notes.extend(f"{file.url}: {note}" for note in table.notes)
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
            if fields.words and fields.feature.type != "text":
                found.notes.append(
                    f"column {name!r} is {fields.feature.type}: fields such as NA or null count as missing "
                    f"({fields.words:,})"
                )
        return found

    def pieces(self) -> Sequence[Piece]:
        """Return the files that are tables."""
        names = self._contents.names
        return [piece for piece in super().pieces() if piece.url in names]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the rows of a file, their fields as text."""
        with open_decoded(piece.root, piece.key, self.options.storage_options) as stream:
            table = Table(stream, piece.url, tabs=self.tabs)
            for row in table:
                where = f"{piece.url} line {row.line}"
                if row.trouble is not None:
                    yield BadRecord(where, row.trouble)
                else:
                    pairs = zip(table.names, row.fields, strict=True)
                    yield Sample(where, {name: text or None for name, text in pairs})

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types that hold all fields of each column."""
        return {name: fields.feature for name, fields in self._contents.columns.items()}

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
    tabs: ClassVar[bool] = True


def _delimiter_of(stream: Any) -> str:
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
