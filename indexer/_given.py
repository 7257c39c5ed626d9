"""Frames as somebody's index says: of shards that only their index can cut, and where a scan is not wanted.

The bytes are still read once, for the checksums of the blocks; frames of TFRecord are compared with what the
index says, so that an index of another file is noticed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from shardio import kernels
from shardio.errors import FormatError, StaleIndexError
from shardio.format import TAR_BLOCK, Framing, RecordCrc, is_tar_header
from shardio_indexer._runs import Run, Salvage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardio_indexer._existing import Frames
    from shardio_indexer._runs import Bytes, Check

__all__ = ["GivenFramer"]

_LEFT_OUT = "damage: bytes that the existing index leaves out"


class GivenFramer:
    """Cut where an index says.

    Args:
        frames: starts and stops of all frames.
        framing: of the shard.
        check: what the checksums of TFRECORD frames are; "none" compares the lengths alone.
        record_crc: what the new index says of them.
        salvage: bytes between frames become gaps.
    """

    def __init__(
        self,
        frames: Frames,
        framing: Framing,
        *,
        check: Check = "crc32c",
        record_crc: RecordCrc = RecordCrc.ABSENT,
        salvage: Salvage | None = None,
    ) -> None:
        self.framing = framing
        self.record_crc = record_crc
        self.notes: Counter[str] = Counter()
        self._check: Check = check
        self._starts, self._stops = frames.starts, frames.stops
        self._url = frames.url
        self._gaps_allowed = framing is Framing.TAR_SAMPLE or (salvage or Salvage()).wanted
        self._next = 0  # frame
        self._offset = 0  # of the first byte held
        self._held = b""
        _check_order(self._starts, self._stops, self._url)

    def feed(self, piece: Bytes) -> Iterator[Run]:
        """Take the next decoded bytes; yield the frames that they complete."""
        data = memoryview(self._held + bytes(piece) if self._held else piece)
        end = self._offset + len(data)
        stop = int(np.searchsorted(self._stops, end, side="right"))
        # An empty frame at the end belongs to the next piece, where its start is looked at, too.
        starts, stops = self._starts[self._next : stop], self._stops[self._next : stop]
        low = self._offset
        for first, last in _runs_of(starts, stops, low):
            if int(starts[first]) > low:
                yield self._gap(data[low - self._offset : int(starts[first]) - self._offset], low)
                low = int(starts[first])
            part = data[low - self._offset : int(stops[last - 1]) - self._offset]
            yield self._frames(part, starts[first:last] - low, stops[first:last] - low, self._next + first)
            low = int(stops[last - 1])
        self._next = stop
        held = data[low - self._offset :]
        if self.framing is Framing.TFRECORD or len(held) == 0:
            self._held, self._offset = bytes(held), low
            return
        yield from self._part(held, low)

    def _part(self, held: memoryview, low: int) -> Iterator[Run]:
        """Pass on what lies after the last whole frame: the next one's bytes, after a gap perhaps."""
        start = int(self._starts[self._next]) if self._next < len(self._starts) else low + len(held)
        gap = min(start - low, len(held))
        if gap > 0:
            yield self._gap(held[:gap], low)
        if gap < len(held):
            yield Run(held[max(gap, 0) :])
        self._held, self._offset = b"", low + len(held)

    def end(self, *, cut: bool = False) -> Iterator[Run]:
        """Yield what is left: nothing, where the index and the bytes agree."""
        del cut  # the index says where records end
        if self._next < len(self._stops):
            raise StaleIndexError(
                "the existing index goes on after the end of the shard",
                url=self._url,
                expected=f"{int(self._stops[-1])} bytes",
                found=f"{self._offset + len(self._held)} bytes",
                advice="it belongs to another file: make it again, or index the file without --use-index",
            )
        if self._held:
            yield self._gap(memoryview(self._held), self._offset)

    def _frames(self, data: memoryview, starts: NDArray[np.int64], stops: NDArray[np.int64], row: int) -> Run:
        if self.framing is Framing.TFRECORD:
            wrong = kernels.check_frames(data, starts, stops, check=self._check)
            if wrong >= 0:
                raise StaleIndexError(
                    "the existing index does not fit the shard",
                    url=self._url,
                    row=row + wrong,
                    expected="a frame whose length and checksums fit",
                    advice="it belongs to another file, or the file is damaged: index it without --use-index",
                )
        if self.framing is Framing.TAR_SAMPLE:
            inside = starts[starts >= 0].tolist()
            if not all(is_tar_header(data[start : start + TAR_BLOCK]) for start in inside):
                raise StaleIndexError(
                    "the existing index does not fit the shard",
                    url=self._url,
                    expected="a header of a tar file where a sample begins",
                    advice="it belongs to another file: index without --use-index",
                )
        return Run(data, stops)

    def _gap(self, data: memoryview, start: int) -> Run:
        zeros = not np.frombuffer(data, np.uint8).any()
        if not (self._gaps_allowed and (zeros or self.framing is not Framing.TAR_SAMPLE)):
            raise FormatError(
                "the existing index leaves bytes of the shard out",
                url=self._url,
                start=start,
                stop=start + len(data),
                advice="index without --use-index, or with --salvage, which leaves them out, too",
            )
        tar_end = self.framing is Framing.TAR_SAMPLE
        return Run(data, reason="end of the tar archive" if tar_end else _LEFT_OUT)


def _runs_of(starts: NDArray[np.int64], stops: NDArray[np.int64], low: int) -> Iterator[tuple[int, int]]:
    """Yield half-open runs of frames that follow one another without a gap."""
    if not len(starts):
        return
    before = np.concatenate([[low], stops[:-1]])
    cuts = [0, *(np.flatnonzero(starts[1:] != before[1:]) + 1).tolist(), len(starts)]
    yield from itertools.pairwise(cuts)


def _check_order(starts: NDArray[np.int64], stops: NDArray[np.int64], url: str) -> None:
    wrong = np.flatnonzero((starts > stops) | (starts < np.concatenate([[0], stops[:-1]])))
    if len(wrong):
        row = int(wrong[0])
        raise FormatError(
            "an existing index is not in the order of the bytes",
            url=url,
            row=row,
            expected=f"a frame from byte {int(stops[row - 1]) if row else 0} on",
            found=f"[{int(starts[row])}, {int(stops[row])})",
        )
