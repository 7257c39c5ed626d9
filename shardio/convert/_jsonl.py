"""JSON lines, read and written: one document a line; `shardio.format.parse_json` decides what is one.

JSON objects are records by their keys, all else is `{"value": ...}`.  An uncompressed file is cut at line
ends into runs of 8 MiB, which workers read concurrently.

Written lines are documents that every strict reader takes: arrays as lists, missing values left out.
Floating-point numbers come back exactly; bytes, NaN, infinities and complex numbers, for which JSON has no
word, are `{"$base64": ...}`, `{"$float": "NaN"}` and `{"$complex": [real, imaginary]}`, and are such again
when they are read.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, ClassVar

import numpy as np

from shardio.errors import BadRecord, FormatError, SchemaError
from shardio.format import (
    DEFAULT_LIMITS,
    MAX_JSON_DEPTH,
    UTF8_BOM,
    is_blank_line,
    parse_json,
    restored_object,
    wide_encoding,
)
from shardio.formats import (
    RUN_BYTES,
    FileSource,
    Piece,
    Sample,
    TargetWriter,
    as_lists,
    create_file,
    json_text,
    open_decoded,
    open_seekable,
)
from shardio.metadata import Feature, Schema

# Objects of one of these names alone stand for what JSON has no word for.
_SIGNS = ("$base64", "$float", "$complex")


@dataclass(frozen=True)
class JsonLines(FileSource):
    """One or more files of JSON lines."""

    kind: ClassVar[str] = "jsonl"

    def pieces(self) -> list[Piece]:
        """Return runs of 8 MiB; of small and compressed files the whole."""
        runs = []
        pairs = self.split_files()
        long = [file for file, _ in pairs if file.size > RUN_BYTES]
        compressed = dict(zip(long, self.options.peek.compressed(long), strict=True))
        for file, split in pairs:
            whole = compressed.get(file, True)
            for start in range(0, file.size, max(1, file.size) if whole else RUN_BYTES):
                stop = file.size if whole else min(start + RUN_BYTES, file.size)
                runs.append(Piece(file.root, file.key, split, stop - start, start, stop, whole))
        return runs

    @staticmethod
    def of_payload(payload: bytes) -> dict[str, Any]:
        """Return the record that a line is; ValueError where it is not JSON."""
        value = parse_json(payload, make=restored_object)
        return value if isinstance(value, dict) else {"value": value}

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the lines that begin within a run."""
        opened = open_decoded if piece.extra else open_seekable
        with opened(piece.root, piece.key, self.options.storage_options) as stream:
            stop = math.inf if piece.extra else piece.stop
            for start, line in _lines_of_run(stream, piece.start, stop, piece.url):
                if start == 0 and (encoding := wide_encoding(line)) is not None:
                    # No line of it could be read, and the line feeds are none.
                    advice = "write the file as UTF-8"
                    raise FormatError(f"the file is {encoding}, not UTF-8", url=piece.url, advice=advice)
                text = line.removeprefix(UTF8_BOM) if start == 0 else line
                if not is_blank_line(text):
                    yield _parsed(text, f"{piece.url} byte {start}")


def _lines_of_run(stream: BinaryIO, start: int, stop: float, url: str) -> Iterator[tuple[int, bytes]]:
    """Yield (place, line) of the lines that begin in `[start, stop)`: the last may end behind it."""
    place = start
    if start:
        stream.seek(start - 1)
        # Of a line that covers the whole run no more is read: it belongs to the run that it begins in.
        place += len(stream.readline(int(stop) - start + 1)) - 1
    while place < stop and (line := stream.readline(DEFAULT_LIMITS.record + 2)):
        if len(line) - line.endswith(b"\n") > DEFAULT_LIMITS.record:
            raise FormatError("a line is longer than a record may be", url=url, start=place)
        yield place, line
        place += len(line)


def _parsed(line: bytes, where: str) -> Sample | BadRecord:
    try:
        return Sample(where, JsonLines.of_payload(line))
    except ValueError as error:
        return BadRecord(where, f"the line is not JSON: {error}")


class JsonLinesWriter(TargetWriter):
    """Write JSON lines."""

    names: ClassVar[str] = "{split}[-.]*"
    compressions: ClassVar[tuple[str, ...]] = ("gzip",)

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse names that mean something else in a line."""
        super().check(schema, compression)
        if schema is None:
            return
        for name in (*schema, *schema.sequence_features):
            if name in _SIGNS:
                raise ValueError(f"feature {name!r}: in JSON lines this name stands for bytes and numbers")

    @property
    def _name(self) -> str:
        part = "" if self.first is None else f"-{self.first:010d}"
        return f"{self.split}{part}.jsonl" + ".gz" * (self.compression == "gzip")

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = create_file(self.output.path(self._name), self.compression)
        opened: IO[bytes] = self._file
        return opened

    def add(self, value: Any) -> None:
        """Write a line."""
        self._opened().write(json_line(value, self.schema))
        self.records += 1

    def close(self) -> None:
        """Close the file; a split without records is an empty one."""
        self._opened().close()
        self.output.finish(self._name)


def json_line(value: Any, schema: Schema | None) -> bytes:
    """Return a record as a line of JSON lines, its newline included.

    Raises:
        SchemaError: JSON cannot hold the value; names the feature.
    """
    if schema is None:
        plain = _plain(value, "the record")
    elif schema.sequence_features:
        plain = _sequence(value, schema)
    else:
        plain = _features(value, schema)
    return json_text(plain).encode() + b"\n"


def _features(value: Any, features: Mapping[str, Feature]) -> Any:
    # What is missing is left out; a null that a required document is, or has within, is its own.
    return {
        name: _feature(item, name, features[name]) if name in features else _plain(item, name)
        for name, item in value.items()
        if item is not None or (name in features and not features[name].optional)
    }


def _sequence(value: Any, schema: Schema) -> Any:
    lists = {
        name: [_feature(item, name, schema.sequence_features[name]) for item in items]
        if name in schema.sequence_features and isinstance(items, list)
        else _plain(items, name)
        for name, items in value["feature_lists"].items()
        if items is not None
    }
    return {"context": _features(value["context"], schema), "feature_lists": lists}


def _feature(item: Any, name: str, feature: Feature) -> Any:
    if feature.kind == "number":
        return _plain(as_lists(item, name, feature), name)
    if feature.kind == "json":
        _check_document(item, name)
    return _plain(feature.fit(item, name)[0] if feature.kind == "tensor" else item, name)


def _check_document(value: Any, name: str) -> None:
    stack = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth >= MAX_JSON_DEPTH:
            # The line is one level deeper than its features.
            raise SchemaError(f"feature {name!r} is nested too deep for a line", expected=MAX_JSON_DEPTH - 1)
        if isinstance(item, dict):
            if len(item) == 1 and next(iter(item)) in _SIGNS:
                sign = next(iter(item))
                what = f"feature {name!r} holds an object of {sign!r} alone, which stands for something else"
                raise SchemaError(what)
            stack += [(part, depth + 1) for part in item.values()]
        elif isinstance(item, list):
            stack += [(part, depth + 1) for part in item]


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item, name) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist(), name)
    if isinstance(value, complex):
        return {"$complex": [_plain(value.real, name), _plain(value.imag, name)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value
