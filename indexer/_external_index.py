"""Frames by the indexes of other programs, and such indexes of frames; bytes in, values out.

- Text, `.index` or `.idx`: a line per record, offset and length of the whole frame (the `tfrecord` package,
  DALI), or of the payload (codewithgpu).
- DALI's `.idx` of a tar file: `v1.2` and the number of samples, then a line per sample; of each member its
  extension, the offset and size of its contents, and its name (tools/wds2idx.py of github.com/NVIDIA/DALI).
- Energon's `.tar.idx`: little-endian u64, where each sample begins, then where the last one ends.

The bytes of a shard that is framed by such an index are still read once, for the checksums of the blocks;
frames of TFRecord are compared with what the index says, so that an index of another file is noticed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import FormatError, StaleIndexError
from shardio.format import (
    TAR_BLOCK,
    TAR_END,
    Framing,
    RecordCrc,
    is_tar_header,
    read_member,
    sample_name,
)
from shardio_indexer._blocks import Bytes, Check, FrameRun, SalvageOptions


class FrameBounds(NamedTuple):
    """Where frames are in the decoded bytes.

    Attributes:
        starts, stops: int64, one a record.
        url: of the index that says so.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    url: str


def parse_text_index(data: bytes, url: str) -> FrameBounds:
    """Return the frames of a text index: offset and length in decimal, a line each.

    Raises:
        FormatError: a line is something else.
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
    starts = numbers[0::2]
    return FrameBounds(starts, starts + numbers[1::2], url)


def parse_tar_index(data: bytes, url: str) -> FrameBounds:
    """Return the frames of Energon's index of a tar file.

    Raises:
        FormatError: it is something else.
    """
    offsets = np.frombuffer(data[: len(data) // 8 * 8], "<u8").astype(np.int64)
    if len(data) % 8 or not len(offsets) or bool((np.diff(offsets) <= 0).any()) or int(offsets[0]) < 0:
        raise FormatError("this is not an index of a tar file", url=url, expected="ascending u64 offsets")
    starts = offsets[:-1].copy()
    # What is before the first sample belongs to it.
    starts[:1] = 0
    return FrameBounds(starts, offsets[1:], url)


def dali_tar_lines(samples: Iterable[tuple[int, bytes]], url: str) -> bytes:
    """Return the text index that DALI reads beside a tar file.

    Args:
        samples: where each begins in the file, and its bytes.
        url: of the tar file, for messages.

    Raises:
        FormatError: a name that this form has no way to write down.
    """
    lines = [_dali_sample(start, data, url) for start, data in samples]
    return f"v1.2 {len(lines)}\n".encode() + b"".join(lines)


def _dali_sample(start: int, data: bytes, url: str) -> bytes:
    words: list[str] = []
    place = 0
    while place < len(data):
        member = read_member(data, place)
        if member is None or member is TAR_END:
            break
        place = member.next
        if not member.regular or sample_name(member.name) is None:
            continue
        if any(c.isspace() or "\ud800" <= c <= "\udfff" for c in member.name):
            raise FormatError(
                "DALI's index has no way to write down a name with white space, or one that is not UTF-8",
                url=url,
                start=start + member.start,
                found=repr(member.name),
                advice="DALI makes an index of its own where there is none",
            )
        # Extensions as they are written: whether their case counts is an option of DALI's reader.
        extension = member.name.rpartition("/")[2].partition(".")[2]
        words += [extension, str(start + member.start), str(member.stop - member.start), member.name]
    return (" ".join(words) + "\n").encode()


def dali_lines(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> bytes:
    """Return the text index that DALI reads beside a TFRecord file."""
    lengths = stops - starts
    return b"".join(
        b"%d %d\n" % (start, length) for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    )


_LEFT_OUT = "damage: bytes that the existing index leaves out"


class ExternalIndexFramer:
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
        frames: FrameBounds,
        framing: Framing,
        *,
        check: Check = "crc32c",
        record_crc: RecordCrc = RecordCrc.ABSENT,
        salvage: SalvageOptions | None = None,
    ) -> None:
        self.framing = framing
        self.record_crc = record_crc
        self.notes: Counter[str] = Counter()
        self._check: Check = check
        self._starts, self._stops = frames.starts, frames.stops
        self._url = frames.url
        self._gaps_allowed = framing is Framing.TAR_SAMPLE or (salvage or SalvageOptions()).enabled
        self._next = 0  # frame
        self._offset = 0  # of the first byte held
        self._held = b""
        _check_order(self._starts, self._stops, self._url)

    def feed(self, piece: Bytes) -> Iterator[FrameRun]:
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

    def _part(self, held: memoryview, low: int) -> Iterator[FrameRun]:
        """Yield what follows the last whole frame: the next one's bytes, after a gap perhaps."""
        start = int(self._starts[self._next]) if self._next < len(self._starts) else low + len(held)
        gap = min(start - low, len(held))
        if gap > 0:
            yield self._gap(held[:gap], low)
        if gap < len(held):
            yield FrameRun(held[max(gap, 0) :])
        self._held, self._offset = b"", low + len(held)

    def end(self) -> Iterator[FrameRun]:
        """Yield what is left: nothing, where the index and the bytes agree."""
        if self._next < len(self._stops):
            raise StaleIndexError(
                "the existing index continues after the end of the shard",
                url=self._url,
                expected=f"{int(self._stops[-1])} bytes",
                found=f"{self._offset + len(self._held)} bytes",
                advice="it belongs to another file: make it again, or index the file without use_index=True",
            )
        if self._held:
            yield self._gap(memoryview(self._held), self._offset)

    def _frames(
        self, data: memoryview, starts: NDArray[np.int64], stops: NDArray[np.int64], row: int
    ) -> FrameRun:
        if self.framing is Framing.TFRECORD:
            wrong = kernels.check_frames(data, starts, stops, check=self._check)
            if wrong >= 0:
                raise StaleIndexError(
                    "the existing index does not fit the shard",
                    url=self._url,
                    row=row + wrong,
                    expected="a frame whose length and checksums fit",
                    advice="it belongs to another file, or the file is damaged: index it "
                    "without use_index=True",
                )
        if self.framing is Framing.TAR_SAMPLE:
            inside = starts[starts >= 0].tolist()
            if not all(is_tar_header(data[start : start + TAR_BLOCK]) for start in inside):
                raise StaleIndexError(
                    "the existing index does not fit the shard",
                    url=self._url,
                    expected="a header of a tar file where a sample begins",
                    advice="it belongs to another file: index without use_index=True",
                )
        return FrameRun(data, stops)

    def _gap(self, data: memoryview, start: int) -> FrameRun:
        zeros = not np.frombuffer(data, np.uint8).any()
        if not (self._gaps_allowed and (zeros or self.framing is not Framing.TAR_SAMPLE)):
            raise FormatError(
                "the existing index leaves bytes of the shard out",
                url=self._url,
                start=start,
                stop=start + len(data),
                advice="index without use_index=True, or with salvage=True, which leaves them out, too",
            )
        tar_end = self.framing is Framing.TAR_SAMPLE
        return FrameRun(data, reason="end of the tar archive" if tar_end else _LEFT_OUT)


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
