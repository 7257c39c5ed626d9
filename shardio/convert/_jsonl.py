"""JSON lines: one JSON document a line; objects are records by their keys, all else is `{"value": ...}`.

`shardio.format.parse_json` decides what is a document, here as in adoption and reading.  An uncompressed file
is cut at line ends into runs of 8 MiB, which workers read side by side.  Bytes and numbers that
`export_dataset` wrote as `{"$base64": ...}`, `{"$float": "NaN"}` and `{"$complex": ...}` are such again.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from shardio.convert._files import DecodedFile, Found, find_files, split_of
from shardio.convert._source import Odd, Piece, Sample, Source, SourceOptions
from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, UTF8_BOM, is_blank_line, parse_json, wide_encoding
from shardio.storage import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardio.storage import DataFile

__all__ = ["JSON_ENDINGS", "JsonLines"]

JSON_ENDINGS = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".ndjson.gz", ".ndjson.zst")
_RUN = 8 << 20
_SIP = 1 << 20
_FLOATS = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class JsonLines(Source):
    """One or more files of JSON lines."""

    kind: ClassVar[str] = "jsonl"
    place: Any
    options: SourceOptions

    @cached_property
    def _found(self) -> Found:
        return find_files(self.place, self.options.storage_options)

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def pieces(self) -> list[Piece]:
        """Return runs of 8 MiB; of compressed files the whole."""
        files = [file for file in self._found.files if file.key.lower().endswith(JSON_ENDINGS)]
        files = self._found.files if self._found.single else files
        splits = split_of([file.key for file in files])
        runs = []
        for file in files:
            compressed = file.key.lower().endswith((".gz", ".zst"))
            for start in range(0, file.size, max(1, file.size) if compressed else _RUN):
                stop = file.size if compressed else min(start + _RUN, file.size)
                runs.append(
                    Piece(file.root, file.key, splits(file.key), stop - start, start, stop, compressed)
                )
        return runs

    def read(self, piece: Piece) -> Iterator[Sample | Odd]:
        """Yield the lines that begin within a run."""
        with connect(piece.root, storage_options=self.options.storage_options).open(piece.key) as file:
            if piece.extra:
                lines: Iterator[tuple[int, bytes]] = _decoded_lines(file, piece.url)
            else:
                lines = _lines_of_run(file, piece.start, piece.stop, piece.url)
            for start, line in lines:
                where = f"{piece.url} byte {start}"
                if start == 0 and (encoding := wide_encoding(line)) is not None:
                    # No line of it could be read, and the line feeds are none.
                    advice = "write the file as UTF-8"
                    raise FormatError(f"the file is {encoding}, not UTF-8", url=piece.url, advice=advice)
                text = line.removeprefix(UTF8_BOM) if start == 0 else line
                if not is_blank_line(text):
                    yield _parsed(text, where)

    def odd(self) -> Sequence[Odd]:
        """Return files whose names are no text."""
        return self._found.odd

    def ignored(self) -> Sequence[str]:
        """Return files that are no JSON lines, by their names."""
        others = [file.key for file in self._found.files if not file.key.lower().endswith(JSON_ENDINGS)]
        return [] if self._found.single else others


def _lines_of_run(file: DataFile, start: int, stop: int, url: str) -> Iterator[tuple[int, bytes]]:
    """Yield (place, line) of the lines that begin in `[start, stop)`: the last may end behind it.

    Each byte is looked at once, however long the lines are.
    """
    place = start
    held: list[bytes] = []
    size = 0
    # A line that begins exactly here is ours if the byte before it ends a line.
    skipping = start > 0 and bytes(file.read(start - 1, start)) != b"\n"
    line_start = start
    while place < file.size:
        if skipping and place >= stop:
            # One line covers the whole run; it belongs to the run that it begins in.
            return
        end = min(place + _SIP, file.size)
        first, *others = bytes(file.read(place, end)).split(b"\n")
        place = end
        if not skipping:
            held.append(first)
        size += len(first)
        if not skipping and size > DEFAULT_LIMITS.record:
            raise FormatError("a line is longer than a record may be", url=url, start=line_start)
        for following in others:
            if not skipping:
                yield line_start, b"".join(held)
            line_start += size + 1
            if line_start >= stop:
                return
            held, size, skipping = [following], len(following), False
    if size and not skipping:
        yield line_start, b"".join(held)


def _decoded_lines(file: DataFile, url: str) -> Iterator[tuple[int, bytes]]:
    import io

    place = 0
    with io.BufferedReader(DecodedFile(file, compressed=True), _SIP) as stream:
        while line := stream.readline(DEFAULT_LIMITS.record + 1):
            if len(line) > DEFAULT_LIMITS.record:
                raise FormatError("a line is longer than a record may be", url=url, start=place)
            yield place, line
            place += len(line)


def _parsed(line: bytes, where: str) -> Sample | Odd:
    try:
        value = parse_json(line, make=_restored)
    except ValueError as error:
        return Odd(where, f"the line is no JSON: {error}")
    return Sample(where, value if isinstance(value, dict) else {"value": value})


def _restored(value: dict[str, Any]) -> Any:
    """Return what `export_dataset` wrote as an object because JSON has no word for it."""
    if len(value) != 1:
        return value
    ((name, text),) = value.items()
    if name == "$float" and text in _FLOATS:
        return float(text)
    if name == "$complex" and isinstance(text, list) and [type(part) for part in text] == [float, float]:
        return complex(*text)
    if name == "$base64" and isinstance(text, str):
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return value
    return value
