"""JSON lines: one JSON document a line; objects are records by their keys, all else is `{"value": ...}`.

An uncompressed file is cut at line ends into runs of 8 MiB, which workers read side by side.  Bytes that
`export_dataset` wrote as `{"$base64": ...}` are bytes again.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from shardio.convert._files import DecodedFile, Found, find_files, split_of
from shardio.convert._source import Odd, Piece, Sample, Source, SourceOptions
from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS
from shardio.storage import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardio.storage import DataFile

__all__ = ["JSON_ENDINGS", "JsonLines"]

JSON_ENDINGS = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".ndjson.gz", ".ndjson.zst")
_RUN = 8 << 20
_SIP = 1 << 20


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
            for start in range(0, file.size, file.size if compressed else _RUN):
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
                text = line.strip()
                if text:
                    yield _parsed(text, f"{piece.url} byte {start}")

    def odd(self) -> Sequence[Odd]:
        """Return files whose names are no text."""
        return self._found.odd

    def ignored(self) -> Sequence[str]:
        """Return files that are no JSON lines, by their names."""
        others = [file.key for file in self._found.files if not file.key.lower().endswith(JSON_ENDINGS)]
        return [] if self._found.single else others


def _lines_of_run(file: DataFile, start: int, stop: int, url: str) -> Iterator[tuple[int, bytes]]:
    """Yield (place, line) of the lines that begin in `[start, stop)`: the last may end behind it."""
    place = start
    buffer = bytearray()
    # A line that begins exactly here is ours if the byte before it ends a line.
    skipping = start > 0 and bytes(file.read(start - 1, start)) != b"\n"
    line_start = start
    while place < file.size:
        end = min(place + _SIP, file.size)
        buffer += file.read(place, end)
        place = end
        *lines, rest = bytes(buffer).split(b"\n")
        for line in lines:
            if not skipping:
                yield line_start, line
            skipping = False
            line_start += len(line) + 1
            if line_start >= stop:
                return
        buffer = bytearray(rest)
        if len(buffer) > DEFAULT_LIMITS.record:
            raise FormatError("a line is longer than a record may be", url=url, start=line_start)
    if buffer and not skipping:
        yield line_start, bytes(buffer)


def _decoded_lines(file: DataFile, url: str) -> Iterator[tuple[int, bytes]]:
    import io

    place = 0
    with io.BufferedReader(DecodedFile(file, compressed=True), _SIP) as stream:
        while line := stream.readline(DEFAULT_LIMITS.record + 1):
            if len(line) > DEFAULT_LIMITS.record:
                raise FormatError("a line is longer than a record may be", url=url, start=place)
            yield place, line
            place += len(line)


def _parsed(text: bytes, where: str) -> Sample | Odd:
    try:
        value = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        return Odd(where, f"the line is not UTF-8 text ({error.reason} at byte {error.start})")
    except (ValueError, RecursionError) as error:
        return Odd(where, f"the line is no JSON: {error}")
    return Sample(where, value if isinstance(value, dict) else {"value": value})


def _object(pairs: list[tuple[str, Any]]) -> Any:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"key {next(name for name in names if names.count(name) > 1)!r} comes twice in an object"
        )
    if len(value) == 1 and isinstance(value.get("$base64"), str):
        try:
            return base64.b64decode(value["$base64"], validate=True)
        except binascii.Error:
            return value
    return value
