"""Samples of MDS: a shard is `u32 samples | u32 offsets[samples + 1] | JSON | samples`, a frame is a sample.

Source of the format: streaming/base/format/mds of mosaicml/streaming.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardio.errors import FormatError
from shardio.format import Framing, RecordCrc
from shardio_indexer._blocks import Bytes, FrameRun, SalvageOptions

_HEAD = "head of an MDS shard"
_ADVICE = "fetch the shard again"


class MdsFramer:
    """Cut where the table of offsets says; `salvage` keeps the samples of a shard that is cut short."""

    framing = Framing.RAW
    record_crc = RecordCrc.ABSENT

    def __init__(self, *, salvage: SalvageOptions | None = None) -> None:
        self.notes: Counter[str] = Counter()
        self._salvage = salvage or SalvageOptions()
        self._held = b""  # the head, until it is whole
        self._stops: NDArray[np.int64] | None = None  # of the head and of each sample
        self._offset = self._next = 0  # of the next byte; of the next stop
        self._in_sample = False  # a part of a sample was yielded

    def feed(self, piece: Bytes) -> Iterator[FrameRun]:
        """Take the next bytes; yield the samples that they complete.

        Raises:
            FormatError: the table of offsets is damaged, or bytes follow the last sample.
        """
        if self._stops is None:
            self._held += bytes(piece)
            self._stops = self._read_head(self._held)
            if self._stops is None:
                return
            piece, self._held = self._held, b""
        data = memoryview(piece)
        if self._next == 0:
            head = data[: int(self._stops[0]) - self._offset]
            yield FrameRun(head, reason=_HEAD)
            self._offset += len(head)
            data = data[len(head) :]
            if self._offset < self._stops[0]:
                return
            self._next = 1
        last = int(np.searchsorted(self._stops, self._offset + len(data), side="right"))
        stops = self._stops[self._next : last] - self._offset
        end = int(stops[-1]) if len(stops) else 0
        if len(stops):
            yield FrameRun(data[:end], stops)
            self._in_sample = False
        self._next = last
        if end < len(data):
            if last == len(self._stops):
                raise FormatError("bytes follow the last sample of an MDS shard", start=self._offset + end)
            yield FrameRun(data[end:])
            self._in_sample = True
        self._offset += len(data)

    def end(self) -> Iterator[FrameRun]:
        """Refuse a shard that was cut short, or leave its last sample out."""
        if self._stops is not None and self._next == len(self._stops):
            return
        what = "an MDS shard is cut short"
        if not self._salvage.enabled or self._stops is None:
            raise FormatError(what, start=self._offset + len(self._held), advice=_ADVICE)
        if self._in_sample:
            yield FrameRun(b"", reason=f"damage: {what}")

    def _read_head(self, data: bytes) -> NDArray[np.int64] | None:
        """Return the table of offsets; None where there are too few bytes."""
        if len(data) < 4:
            return None
        samples = int.from_bytes(data[:4], "little")
        size = 4 * (samples + 2)
        if size > self._salvage.limits.index:
            raise FormatError("an MDS shard has too many samples", start=0, found=samples, advice=_ADVICE)
        if len(data) < size:
            return None
        stops = np.frombuffer(data, "<u4", samples + 1, 4).astype(np.int64)
        if int(stops[0]) < size or bool((np.diff(stops) < 0).any()):
            raise FormatError("the table of offsets of an MDS shard is damaged", start=4, advice=_ADVICE)
        return stops
