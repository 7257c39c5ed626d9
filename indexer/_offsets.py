"""Frames where a table of offsets says: samples of MDS, and records of codewithgpu by the index beside them.

An MDS shard is `u32 samples | u32 offsets[samples + 1] | JSON | samples`
(streaming/base/format/mds of mosaicml/streaming).  codewithgpu's `.index` has a line per record: its offset
and length in decimal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardio.errors import FormatError, StaleIndexError
from shardio.format import DEFAULT_LIMITS, Framing, Limits, RecordCrc
from shardio_indexer._blocks import Bytes, FrameRun

_HEAD = "head of an MDS shard"
_ADVICE = "fetch the shard again"


def parse_record_index(data: bytes, url: str) -> NDArray[np.int64]:
    """Return where records end, by the index of codewithgpu; int64, ascending.

    Raises:
        FormatError: a line is something else, or a record does not begin where the one before it ends.
    """
    try:
        numbers = np.array(data.split(), np.int64)
    except (ValueError, OverflowError):
        numbers = np.array([-1])
    lines = data.count(b"\n") + (not data.endswith(b"\n") and len(data) > 0)
    if len(numbers) != 2 * lines or (len(numbers) and int(numbers.min()) < 0):
        raise FormatError(
            "this is not a text index", url=url, expected="lines of an offset and a length", found=data[:40]
        )
    starts, stops = numbers[0::2], numbers[0::2] + numbers[1::2]
    wrong = np.flatnonzero(starts != np.concatenate([[0], stops[:-1]]))
    if len(wrong):
        row = int(wrong[0])
        raise FormatError(
            "an index leaves bytes of its shard out",
            url=url,
            row=row,
            expected=f"a record from byte {int(stops[row - 1]) if row else 0} on",
            found=f"[{int(starts[row])}, {int(stops[row])})",
        )
    return stops


class OffsetFramer:
    """Cut at offsets.

    Args:
        stops: int64, where records end, ascending.
        url: of the index file.
    """

    framing = Framing.RAW
    record_crc = RecordCrc.ABSENT

    def __init__(self, stops: NDArray[np.int64], url: str | None = None) -> None:
        self.notes: Counter[str] = Counter()
        self._stops, self._url = stops, url
        self._offset = self._next = 0  # of the next byte; of the next stop

    def feed(self, piece: Bytes) -> Iterator[FrameRun]:
        """Take the next bytes; yield the records that they complete.

        Raises:
            StaleIndexError: bytes follow the last record.
        """
        data = memoryview(piece)
        last = int(np.searchsorted(self._stops, self._offset + len(data), side="right"))
        stops = self._stops[self._next : last] - self._offset
        end = int(stops[-1]) if len(stops) else 0
        if len(stops):
            yield FrameRun(data[:end], stops)
        self._next = last
        if end < len(data):
            if last == len(self._stops):
                raise self._error("bytes follow the last record", self._offset + end)
            yield FrameRun(data[end:])
        self._offset += len(data)

    def end(self) -> Iterator[FrameRun]:
        """Refuse a shard that was cut short."""
        if self._next < len(self._stops):
            raise self._error("the shard is cut short", self._offset)
        yield from ()

    def _error(self, what: str, start: int) -> StaleIndexError:
        advice = _ADVICE if self._url is None else f"fetch the shard and {self._url} again"
        expected = f"{int(self._stops[-1]) if len(self._stops) else 0} bytes"
        return StaleIndexError(
            f"{what}, by its table of offsets", start=start, expected=expected, advice=advice
        )


class MdsFramer(OffsetFramer):
    """Cut where the head of an MDS shard says."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(np.empty(0, np.int64))
        self._most = limits.index
        self._head: bytes | None = b""

    def feed(self, piece: Bytes) -> Iterator[FrameRun]:
        """Take the next bytes; yield the samples that they complete.

        Raises:
            FormatError: the table of offsets is damaged, or bytes follow the last sample.
        """
        if self._head is not None:
            self._head += bytes(piece)
            stops = self._read_head(self._head)
            if stops is None:
                return
            self._offset = int(stops[0])
            self._stops = stops[1:]
            yield FrameRun(self._head[: self._offset], reason=_HEAD)
            piece, self._head = self._head[self._offset :], None
        yield from super().feed(piece)

    def end(self) -> Iterator[FrameRun]:
        """Refuse a shard that was cut short."""
        if self._head is not None:
            raise self._error("the shard is cut short", len(self._head))
        yield from super().end()

    def _read_head(self, data: bytes) -> NDArray[np.int64] | None:
        """Return the table of offsets; None where the head is not whole."""
        if len(data) < 4:
            return None
        samples = int.from_bytes(data[:4], "little")
        size = 4 * (samples + 2)
        if size > self._most:
            raise FormatError("an MDS shard has too many samples", start=0, found=samples, advice=_ADVICE)
        if len(data) < size:
            return None
        stops = np.frombuffer(data, "<u4", samples + 1, 4).astype(np.int64)
        if int(stops[0]) < size or bool((np.diff(stops) < 0).any()):
            raise FormatError("the table of offsets of an MDS shard is damaged", start=4, advice=_ADVICE)
        return stops if len(data) >= int(stops[0]) else None
