"""Text: JSON lines, one document a line, and whole files of text.

JSON objects are records by their keys, all else is `{"value": ...}`.
`shardio.format.parse_json` decides what is a document, here as in adoption and reading.  An uncompressed file
is cut at line ends into runs of 8 MiB, which workers read side by side.  Bytes and numbers that
`export_dataset` wrote as `{"$base64": ...}`, `{"$float": "NaN"}` and `{"$complex": ...}` are such again.

A text file is one record, `{"text", "path"}`; line ends and everything else stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from shardio.convert._files import READ_BYTES, RUN_BYTES, DecodedFile, FileSource, read_whole
from shardio.convert._source import Piece, Sample
from shardio.errors import BadRecord, FormatError
from shardio.format import DEFAULT_LIMITS, UTF8_BOM, is_blank_line, parse_json, restored_object, wide_encoding
from shardio.metadata import Feature
from shardio.sources import format_of_name, without_compression
from shardio.storage import DataFile, connect

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
        end = min(place + READ_BYTES, file.size)
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
    with io.BufferedReader(DecodedFile(file, compressed=True), READ_BYTES) as stream:
        while line := stream.readline(DEFAULT_LIMITS.record + 1):
            if len(line) > DEFAULT_LIMITS.record:
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
