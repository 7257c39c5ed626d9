"""Text: JSON lines, one document a line, and whole files of text.

JSON objects are records by their keys, all else is `{"value": ...}`.
`shardio.format.parse_json` decides what is a document, here as in adoption and reading.  An uncompressed file
is cut at line ends into runs of 8 MiB, which workers read side by side.  Bytes and numbers that
`export_dataset` wrote as `{"$base64": ...}`, `{"$float": "NaN"}` and `{"$complex": ...}` are such again.

A text file is one record, `{"text", "path"}`; line ends and everything else stay as they are.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

from shardio.convert._files import READ_BYTES, RUN_BYTES, DecodedFile, FileSource, SeekableFile, read_whole
from shardio.convert._source import Piece, Sample
from shardio.errors import BadRecord, FormatError
from shardio.format import DEFAULT_LIMITS, UTF8_BOM, is_blank_line, parse_json, restored_object, wide_encoding
from shardio.metadata import Feature
from shardio.sources import format_of_name, without_compression
from shardio.storage import connect

TEXT_ENDINGS = (".txt", ".text", ".md", ".rst")


@dataclass(frozen=True)
class JsonLines(FileSource):
    """One or more files of JSON lines."""

    kind: ClassVar[str] = "jsonl"

    @classmethod
    def fits(cls, key: str) -> bool:
        """Tell whether a name is that of JSON lines."""
        return format_of_name(key) == "jsonl"

    def pieces(self) -> list[Piece]:
        """Return runs of 8 MiB; of compressed files the whole."""
        runs = []
        for file, split in self.split_files():
            compressed = without_compression(file.key) != file.key.rpartition("/")[2]
            for start in range(0, file.size, max(1, file.size) if compressed else RUN_BYTES):
                stop = file.size if compressed else min(start + RUN_BYTES, file.size)
                runs.append(Piece(file.root, file.key, split, stop - start, start, stop, compressed))
        return runs

    @staticmethod
    def of_payload(payload: bytes) -> dict[str, Any]:
        """Return the record that a line is; ValueError where it is not JSON."""
        value = parse_json(payload, make=restored_object)
        return value if isinstance(value, dict) else {"value": value}

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the lines that begin within a run."""
        file = connect(piece.root, storage_options=self.options.storage_options).open(piece.key)
        raw = DecodedFile(file, compressed=True) if piece.extra else SeekableFile(file)
        with io.BufferedReader(raw, READ_BYTES) as stream:
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


@dataclass(frozen=True)
class TextFiles(FileSource):
    """Text files: of a folder those that are called so, of a pattern or a list all."""

    kind: ClassVar[str] = "text"
    declared: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]] = TEXT_ENDINGS

    def pieces(self) -> list[Piece]:
        """Return the files, one by one."""
        return [
            Piece(file.root, file.key, split, file.size, extra=file.name)
            for file, split in self.split_files()
        ]

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the one document of a file."""
        data = read_whole(piece.root, piece.key, self.options.storage_options)
        if not data:
            yield BadRecord(piece.url, "the file is empty")
            return
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            yield BadRecord(piece.url, f"the file is not UTF-8 text ({error.reason} at byte {error.start})")
            return
        yield Sample(piece.url, {"text": text, "path": piece.extra})

    def known(self) -> Mapping[str, Feature | str]:
        """Return the two features."""
        return {"text": "text", "path": "text"}
