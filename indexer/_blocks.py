"""Runs of frames, which framers yield, and the blocks that an index makes of them.

The law of every framer: its runs, one after another, are the decoded bytes of the shard, each byte once, and
where frames end does not depend on how the bytes arrived in pieces.  A block is closed before the frame that
would lift it over the target; a larger frame is a block of its own.  Only checksums and the ends of frames
are held.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Framing, Limits, RecordCrc
from shardio.metadata import IndexBuilder

Bytes: TypeAlias = "bytes | bytearray | memoryview"
Check: TypeAlias = Literal["crc32c", "crc32", "none"]


# The key of a sample, and where the contents of its members are, by extension.
TarSample: TypeAlias = tuple[str, dict[str, tuple[int, int]]]


class FrameRun(NamedTuple):
    """Decoded bytes in a row.

    Attributes:
        data: the bytes.
        stops: int64, ends of frames in `data`, the last at its end; the first frame may have begun in earlier
            runs. None where `data` is part of a frame that continues, or a gap.
        crcs: uint32, CRC-32C of `data` up to each of the stops, where the framer has it from comparing the
            records: the checksums of blocks come out of these without another walk over the bytes.
        samples: of tar files, the sample in each frame: its key, and half-open ranges of decoded bytes that
            hold the contents of its members, by extension.
        reason: why the bytes belong to no record; bytes of a frame that was begun and has no end belong to
            the gap, too.
    """

    data: Bytes
    stops: NDArray[np.int64] | None = None
    reason: str | None = None
    crcs: NDArray[np.uint32] | None = None
    samples: Sequence[TarSample] = ()


class Framer(Protocol):
    """Finds frames in decoded bytes, in one pass and bounded memory.

    Attributes:
        framing: what it looks for.
        record_crc: what the checksums of its frames are.
        notes: what is worth mentioning and not damage, with how often it was seen.
    """

    framing: Framing
    record_crc: RecordCrc
    notes: Counter[str]

    def feed(self, piece: Bytes) -> Iterator[FrameRun]:
        """Take the next decoded bytes; yield what they complete.

        Raises:
            FormatError: damage, where it is not to be left out; `start` is a decoded offset.
        """

    def end(self) -> Iterator[FrameRun]:
        """Yield the rest: there are no more bytes."""


class Frame(NamedTuple):
    """A frame, or bytes that belong to none.

    Attributes:
        start: where it begins, in decoded bytes.
        data: its bytes; empty where there is a reason.
        reason: why there is no frame, or None.
        sample: of tar files.
    """

    start: int
    data: bytes
    reason: str | None = None
    sample: TarSample | None = None


def iterate_frames(
    framer: Framer, pieces: Iterable[Bytes], limits: Limits = DEFAULT_LIMITS
) -> Iterator[Frame]:
    """Yield the frames in decoded bytes one by one; one frame is held."""
    held: list[Bytes] = []
    size = start = 0
    for run in itertools.chain(itertools.chain.from_iterable(map(framer.feed, pieces)), framer.end()):
        if run.reason is not None:
            yield Frame(start, b"", run.reason)
            start, size = start + size + len(run.data), 0
            held.clear()
            continue
        begin = 0
        stops = [] if run.stops is None else run.stops.tolist()
        for stop, sample in itertools.zip_longest(stops, run.samples):
            size += stop - begin
            if size > limits.record:
                yield Frame(start, b"", "damage: a sample is larger than a record may be")
            else:
                yield Frame(start, b"".join((*held, run.data[begin:stop])), sample=sample)
            held.clear()
            begin, start, size = stop, start + size, 0
        size += len(run.data) - begin
        if size > limits.record:
            held.clear()
        else:
            held.append(bytes(run.data[begin:]))


class SalvageOptions(NamedTuple):
    """What a scanner does about damage, and what is too large to believe."""

    enabled: bool = False
    limits: Limits = DEFAULT_LIMITS


_GAP = 64 << 20
# More blocks than this would cost more memory than an indexer may use.
_MOST_BLOCKS = 1 << 17


class GapFound(NamedTuple):
    """Bytes that belong to no record: half-open range in the decoded bytes, and why."""

    start: int
    stop: int
    reason: str


def least_block_bytes(wanted: int, size: int) -> int:
    """Return the target that keeps the number of blocks of a shard within bounds."""
    return max(wanted, -(-size // _MOST_BLOCKS))


class BlockCutter:
    """Take runs, add blocks to an index.

    Args:
        index: takes the blocks; without compression, since blocks of a stream are of its decoded bytes.
        block_bytes: target size of a block.
        limits: the longest record.

    Attributes:
        gaps: the bytes that belong to no record, in order.
        crc32c: of all bytes in the blocks and gaps so far.
    """

    def __init__(self, index: IndexBuilder, *, block_bytes: int, limits: Limits) -> None:
        self.gaps: list[GapFound] = []
        self.crc32c = 0
        self._index = index
        self._target = min(block_bytes, limits.block)
        self._longest = limits.record + 16
        self._size = self._crc = 0
        self._stops: list[NDArray[np.int64]] = []
        # The frame that continues: its bytes so far alone, and as the end of the open block.
        self._tail = self._tail_crc = self._whole_crc = 0
        self._gap = self._gap_crc = 0
        self._reason = ""

    def add(self, run: FrameRun) -> None:
        """Take the next run.

        Raises:
            FormatError: a record is longer than its limit.
        """
        if run.reason is not None:
            self._take_gap(run.data, run.reason)
        elif run.stops is None:
            self._take_part(run.data)
        else:
            self._take_frames(run.data, run.stops, run.crcs)

    def finish(self) -> None:
        """Close what is open."""
        self._close_block()
        self._close_gap()

    def _take_part(self, data: Bytes) -> None:
        self._close_gap()
        if not self._tail:
            self._whole_crc = self._crc
        self._tail += len(data)
        if self._tail > self._longest:
            raise self._too_long(self._tail)
        self._tail_crc = kernels.crc32c(data, self._tail_crc)
        if self._size + self._tail > self._target:
            self._close_block()  # does nothing where the frame is alone
        else:
            self._whole_crc = kernels.crc32c(data, self._whole_crc)

    def _end_tail(self, data: Bytes, stops: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
        """Take the end of the frame that continued; return what follows it."""
        first = int(stops[0])
        self._take_part(data[:first])
        alone = not self._stops
        self._crc = self._tail_crc if alone else self._whole_crc
        self._size += self._tail
        self._stops.append(np.array([self._size], np.int64))
        self._tail = self._tail_crc = 0
        return data[first:], stops[1:] - first

    def _take_frames(self, data: Bytes, stops: NDArray[np.int64], crcs: NDArray[np.uint32] | None) -> None:
        self._close_gap()
        if self._tail:
            data, stops, crcs = *self._end_tail(data, stops), None
        if not len(stops):
            return
        longest = max(int(np.diff(stops).max(initial=0)), int(stops[0]))
        if longest > self._longest:
            raise self._too_long(longest)
        view = memoryview(data)
        # Items of a memoryview are Python's integers, at a fraction of the price of NumPy's.
        ends, sums, count = memoryview(stops), None if crcs is None else memoryview(crcs), len(stops)
        base = taken = before = 0
        first = -1  # of the blocks that begin and end in this run, which go to the index together
        bases: list[int] = []
        rows: list[int] = []
        sizes: list[int] = []
        found: list[int] = []
        while taken < count:
            fits = bisect_right(ends, base + self._target - self._size, taken)
            if fits == taken:
                if self._stops:
                    self._close_block()
                    continue
                fits = taken + 1  # larger than a block: one of its own
            stop = ends[fits - 1]
            size = stop - base
            if sums is None:
                crc = kernels.crc32c(view[base:stop], self._crc)
            else:
                crc = kernels.crc32c_joined(before, sums[fits - 1], size)
                if self._size:
                    crc = kernels.crc32c_joined(self._crc, crc, size)
                before = sums[fits - 1]
            if fits < count and not self._stops:
                # What follows does not fit, so this block ends here.
                first = taken if first < 0 else first
                bases.append(base)
                rows.append(fits - taken)
                sizes.append(size)
                found.append(crc)
            else:
                self._stops.append(stops[taken:fits] + (self._size - base))
                self._size += size
                self._crc = crc
            base, taken = stop, fits
        if rows:
            own = slice(first, first + sum(rows))
            frame_stop = stops[own] - np.repeat(bases, rows)
            self._add_blocks(sizes, found, rows, frame_stop)

    def _take_gap(self, data: Bytes, reason: str) -> None:
        if self._stops:
            self._close_block()
        if reason != self._reason:
            self._close_gap()
            self._reason = reason
        if self._tail:
            self._gap, self._gap_crc = self._gap + self._tail, self._tail_crc
            self._tail = self._tail_crc = 0
        view = memoryview(data)
        while view:
            part = view[: max(0, _GAP - self._gap)]
            self._gap_crc = kernels.crc32c(part, self._gap_crc)
            self._gap += len(part)
            view = view[len(part) :]
            if self._gap >= _GAP:
                self._close_gap()
                self._reason = reason

    def _close_block(self) -> None:
        if self._stops:
            frame_stop = np.concatenate(self._stops)
            self._add_blocks([self._size], [self._crc], [len(frame_stop)], frame_stop)
        self._size = self._crc = 0
        self._stops = []

    def _add_blocks(
        self, sizes: list[int], crcs: list[int], rows: list[int], frame_stop: NDArray[np.int64]
    ) -> None:
        self._index.add_blocks(
            stored_bytes=sizes,
            decoded_bytes=sizes,
            crc32c=crcs,
            rows=rows,
            frame_stop=frame_stop.astype(np.uint32),
        )
        for crc, size in zip(crcs, sizes, strict=True):
            self.crc32c = kernels.crc32c_joined(self.crc32c, crc, size)

    def _close_gap(self) -> None:
        if self._gap:
            start, stop = self._index.stored_bytes, self._index.stored_bytes + self._gap
            last = self.gaps[-1] if self.gaps else None
            if last is not None and (last.stop, last.reason) == (start, self._reason):
                self.gaps[-1] = GapFound(last.start, stop, self._reason)
            else:
                self.gaps.append(GapFound(start, stop, self._reason))
            self._index.add_gap(
                stored_bytes=self._gap, decoded_bytes=self._gap, crc32c=self._gap_crc, reason=self._reason
            )
            self.crc32c = kernels.crc32c_joined(self.crc32c, self._gap_crc, self._gap)
        self._gap = self._gap_crc = 0
        self._reason = ""

    def _too_long(self, size: int) -> FormatError:
        return FormatError(
            "a record is over the limit",
            start=self._index.stored_bytes + self._size,
            expected=f"at most {self._longest} bytes",
            found=f"{size} bytes or more",
        )
