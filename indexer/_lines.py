"""Lines of text: a frame is a line up to and with its line feed; the last line may lack it.

What a reader will make of a line is asked here, of the decoder that the reader uses: a line that is not JSON,
or not UTF-8, is damage.  A byte order mark at the beginning, and blank lines among JSON, belong to no record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import CorruptRecordError, FormatError
from shardio.format import (
    DEFAULT_LIMITS,
    UTF8_BOM,
    Framing,
    Limits,
    RecordCrc,
    is_blank_line,
    parse_json,
    wide_encoding,
)
from shardio_indexer._blocks import Bytes, FrameRun

# What a line holds for its reader.
LineContent: TypeAlias = Literal["json", "text", "bytes"]

_LINE_FEED = 10
_MARK = 4  # bytes of the longest mark of an encoding
# Bytes of no record end a block, and blocks cost memory.
_MOST_GAPS = 1 << 16
_ADVICE = {
    "json": "correct the line, skip bad lines with `shardio convert --skip`, or take lines as text with "
    'scan=shardio_indexer.ScanOptions(format="text")',
    "text": 'declare lines to be bytes with schema={"line": "bytes"}, or correct the line',
}


class LineFramer:
    """Find lines, and look at what they hold.

    Args:
        content: "json", "text" (UTF-8), or "bytes", to which nothing is damage.
        limits: of a record.
    """

    framing = Framing.LINES
    record_crc = RecordCrc.ABSENT

    def __init__(self, *, content: LineContent = "bytes", limits: Limits = DEFAULT_LIMITS) -> None:
        self.notes: Counter[str] = Counter()
        self._content = content
        self._longest = limits.record
        self._begun = False  # the first bytes, which tell the encoding, were looked at
        self._held = bytearray()  # the line that is open
        self._offset = self._row = self._gaps = 0  # of the first byte held

    def feed(self, piece: Bytes) -> Iterator[FrameRun]:
        """Take the next decoded bytes; yield the lines that they complete.

        Raises:
            FormatError: a line is damaged, or longer than a record may be.
        """
        if not self._begun:
            self._held += piece
            if len(self._held) < _MARK:
                return
            piece = yield from self._begin()
        stops = np.flatnonzero(np.frombuffer(piece, np.uint8) == _LINE_FEED) + 1
        if self._held and len(stops):
            first = int(stops[0])
            line, self._held = self._held + piece[:first], bytearray()
            yield from self._lines(line, np.array([len(line)], np.int64))
            piece, stops = piece[first:], stops[1:] - first
        last = int(stops[-1]) if len(stops) else 0
        if last:
            yield from self._lines(piece[:last], stops)
        self._held += piece[last:]
        if len(self._held) > self._longest:
            raise FormatError(
                "a line is over the limit of a record",
                row=self._row,
                start=self._offset,
                expected=f"at most {self._longest} bytes",
            )

    def end(self) -> Iterator[FrameRun]:
        """Yield a last line without a line feed."""
        if not self._begun:
            piece = yield from self._begin()
            yield from self.feed(piece)
        line, self._held = self._held, bytearray()
        if line:
            if not (self._content == "json" and is_blank_line(bytes(line))):
                self.notes["the last line has no line feed"] += 1
            yield from self._lines(line, np.array([len(line)], np.int64))

    def _begin(self) -> Generator[FrameRun, None, Bytes]:
        """Look at the first bytes of all; return what follows a byte order mark."""
        data, self._held, self._begun = bytes(self._held), bytearray(), True
        encoding = wide_encoding(data[:_MARK])
        if self._content == "bytes":
            return data
        if encoding is not None:
            raise FormatError(
                f"the file is {encoding} text",
                start=0,
                expected="UTF-8",
                found=f"first bytes {data[:_MARK].hex(' ')}",
                advice=f"rewrite it as UTF-8, with `iconv -f {encoding} -t UTF-8`, and adopt that",
            )
        if data.startswith(UTF8_BOM):
            yield self._gap(UTF8_BOM, "byte order mark")
            self._offset += len(UTF8_BOM)
            return data[len(UTF8_BOM) :]
        return data

    def _lines(self, data: Bytes, stops: NDArray[np.int64]) -> Iterator[FrameRun]:
        """Yield whole lines: records in a row, or blank lines; `stops` are where they end in `data`."""
        if self._content == "bytes" or (self._content == "text" and _is_text(data)):
            self._row += len(stops)
            self._offset += len(data)
            yield FrameRun(data, stops)
            return
        data = bytes(data)
        ends = [0, *stops.tolist()]
        # Where some bytes are not UTF-8, each line is looked at by itself.
        known_text = self._content == "json" and _is_text(data)
        first = 0
        while first < len(stops):
            last = kernels.count_documents(data, stops, first) if known_text else first
            blank = last == first and self._is_blank(data[ends[first] : ends[first + 1]])
            last = max(last, first + 1)
            while blank and last < len(stops) and is_blank_line(data[ends[last] : ends[last + 1]]):
                last += 1
            part, count = data[ends[first] : ends[last]], last - first
            if blank:
                self.notes["blank lines left out"] += count
                yield self._gap(part, "blank line")
            else:
                self._row += count
                yield FrameRun(part, stops[first:last] - ends[first])
            self._offset += len(part)
            first = last

    def _is_blank(self, line: bytes) -> bool:
        """Tell whether a line is blank among JSON; refuse one that is damaged."""
        if self._content == "json" and is_blank_line(line):
            return True
        try:
            if self._content == "json":
                parse_json(line)
            else:
                line.decode()
        except ValueError as error:
            raise CorruptRecordError(
                "a line is not JSON" if self._content == "json" else "a line is not UTF-8 text",
                row=self._row,
                start=self._offset,
                stop=self._offset + len(line),
                found=str(error),
                advice=_ADVICE[self._content],
            ) from error
        return False

    def _gap(self, data: Bytes, reason: str) -> FrameRun:
        self._gaps += 1
        if self._gaps > _MOST_GAPS:
            raise FormatError(
                "too many places between its lines hold no record",
                start=self._offset,
                expected=f"at most {_MOST_GAPS:,}",
                advice="copy the records into a dataset with `shardio convert`",
            )
        return FrameRun(data, reason=reason)


def _is_text(data: Bytes) -> bool:
    try:
        bytes(data).decode()
    except UnicodeDecodeError:
        return False
    return True
