"""Frames of TFRecord: the compiled kernel finds and checks them; damage is named, or left out.

A record is held until it is whole.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Generator, Iterable, Iterator

import numpy as np

from shardio import kernels
from shardio.errors import CorruptRecordError, FormatError
from shardio.format import (
    DEFAULT_LIMITS,
    TFRECORD_HEAD,
    TFRECORD_TAIL,
    Framing,
    Limits,
    RecordCrc,
    frame_sides,
)
from shardio.kernels import Scan
from shardio_indexer._blocks import Bytes, Check, FrameRun, GapFound, SalvageOptions

_EXTRA = TFRECORD_HEAD + TFRECORD_TAIL
_KINDS = {"crc32c": RecordCrc.CRC32C, "crc32": RecordCrc.CRC32, "none": RecordCrc.UNCHECKED}
_LENGTH = struct.Struct("<Q")
_CUT_SHORT = "damage: the last record is cut short"


def head_fits(data: Bytes, check: Check) -> bool:
    """Tell whether the first 12 bytes are the head of a frame whose length matches its checksum."""
    if len(data) < TFRECORD_HEAD:
        return False
    return kernels.scan_frames(data[:TFRECORD_HEAD], check=check, max_record=1 << 62).problem is None


class TFRecordFramer:
    """Find frames.

    Args:
        check: what the checksums of the frames are; "none" for writers that left them out.
        trust: believe lengths and do not compute the checksums; the index still says what they are.
        salvage: leave damage out and continue at the next head whose checksum fits.
    """

    framing = Framing.TFRECORD

    def __init__(
        self, *, check: Check = "crc32c", trust: bool = False, salvage: SalvageOptions | None = None
    ) -> None:
        self.record_crc = _KINDS[check]
        self.notes: Counter[str] = Counter()
        self._check: Check = "none" if trust else check
        self._named: Check = check
        self._salvage = salvage or SalvageOptions()
        self._limit = self._salvage.limits.record
        self._held = bytearray()
        self._offset = self._row = 0  # of the first byte held
        self._final = False
        # Of damage whose end was not in the bytes so far: why it is left out.
        self._leaving = ""

    def feed(self, piece: Bytes) -> Iterator[FrameRun]:
        """Take the next decoded bytes; yield what they complete."""
        if self._held:
            piece = yield from self._complete_held(piece)
        if len(piece):
            yield from self._scan(piece)

    def end(self) -> Iterator[FrameRun]:
        """Refuse a record that has no end, or leave it out."""
        self._final = True
        data, self._held = self._held, bytearray()
        yield from self._scan(data)
        while self._held:
            self._refuse_cut_short()
            # A file may have been cut and another one appended.
            data, self._held = self._held, bytearray()
            place = self._find_head(data, 1)
            lost = len(data) if place is None else place
            yield self._gap(data[:lost], _CUT_SHORT)
            yield from self._scan(data[lost:])

    def _complete_held(self, piece: Bytes) -> Generator[FrameRun, None, Bytes]:
        """Complete the frame whose beginning is held; return what follows it in `piece`."""
        for _ in range(2):  # the length, then the frame
            need = self._needed() - len(self._held)
            self._held += piece[: max(0, need)]
            piece = piece[max(0, need) :]
        if len(self._held) < self._needed():
            return b""
        data, self._held = self._held, bytearray()
        if self._salvage.enabled and self._problem(data):
            # The end of the damage may be in either.
            data, piece = data + piece, b""
        yield from self._scan(data)
        return piece

    def _needed(self) -> int:
        """Return how many bytes to hold before they are looked at: a frame, as far as its length is known."""
        if len(self._held) < TFRECORD_HEAD:
            return TFRECORD_HEAD
        wrong = self._problem(self._held[:TFRECORD_HEAD])
        return TFRECORD_HEAD if wrong else _length(self._held) + _EXTRA

    def _problem(self, data: Bytes) -> str | None:
        return kernels.scan_frames(data, check=self._check, max_record=self._limit).problem

    def _scan(self, data: Bytes) -> Iterator[FrameRun]:
        """Yield whole frames, hold the beginning of the last one."""
        while len(data):
            scan = kernels.scan_frames(data, check=self._check, max_record=self._limit)
            if len(scan.frame_stops):
                yield FrameRun(data[: scan.stopped], scan.frame_stops, crcs=scan.crcs)
                self._offset += scan.stopped
                self._row += len(scan.frame_stops)
                data = data[scan.stopped :]
                self._leaving = ""
            if scan.problem is None:
                break
            lost = self._leave_out(scan, data)
            if lost == 0:
                break
            reason = self._leaving or f"damage: {scan.problem}"
            yield self._gap(data[:lost], reason)
            data = data[lost:]
            # Too few bytes are left for a head: what comes next is still the same damage.
            self._leaving = reason if len(data) < TFRECORD_HEAD else ""
        self._held = bytearray(data)

    def _gap(self, data: Bytes, reason: str) -> FrameRun:
        self._offset += len(data)
        return FrameRun(data, reason=reason)

    def _leave_out(self, scan: Scan, data: Bytes) -> int:
        """Return how many bytes to leave out before the next frame; 0 where more bytes are needed.

        Raises:
            FormatError: damage is not to be left out, or the writer used other checksums.
        """
        if self._row == 0 and self._offset == 0:
            self._refuse_other_checksums(data)
        if not self._salvage.enabled:
            stop = self._offset + _length(data) + _EXTRA if scan.problem == "payload crc" else None
            raise self._error(scan.problem or "", scan.expected, scan.found, stop)
        if scan.problem == "payload crc":
            frame = _length(data) + _EXTRA
            after = data[frame : frame + TFRECORD_HEAD]
            # A frame of the right length with damage inside, or one whose bytes are missing.
            if len(after) < TFRECORD_HEAD:
                return frame if self._final else 0
            if self._problem(after) is None:
                return frame
        place = self._find_head(data, 1)
        if place is not None:
            return place
        return max(0, len(data) - TFRECORD_HEAD + 1)

    def _find_head(self, data: Bytes, first: int) -> int | None:
        """Return where the next head begins whose checksum fits."""
        check: Check = "crc32c" if self._named == "none" else self._named
        raw = np.frombuffer(data, np.uint8)
        if len(raw) < first + TFRECORD_HEAD:
            return None
        # Lengths are within the limit, so their upper bytes are zeros: few places are worth a checksum.
        upper = raw[first + 4 : len(raw) - 4]
        zeros = upper == 0
        count = len(raw) - first - TFRECORD_HEAD + 1
        likely = zeros[:count] & zeros[1 : count + 1] & zeros[2 : count + 2] & zeros[3 : count + 3]
        for place in (np.flatnonzero(likely) + first).tolist():
            head = data[place : place + TFRECORD_HEAD]
            if kernels.scan_frames(head, check=check, max_record=self._limit).problem is None:
                return int(place)
        return None

    def _refuse_cut_short(self) -> None:
        if not self._salvage.enabled:
            raise CorruptRecordError(
                "the last record is cut short",
                row=self._row,
                start=self._offset,
                advice="fetch the file again, or leave the rest out with salvage=True",
            )

    def _refuse_other_checksums(self, data: Bytes) -> None:
        if self._check == "crc32c" and head_fits(data, "crc32"):
            raise FormatError(
                "the writer of this file used zlib's CRC-32 where TFRecord has CRC-32C",
                start=0,
                advice="TensorFlow does not read it; adopt it with "
                'scan=shardio_indexer.ScanOptions(record_crc="crc32")',
            )

    def _error(self, problem: str, expected: object, found: object, stop: int | None) -> CorruptRecordError:
        expected, found = frame_sides(problem, expected, found)
        return CorruptRecordError(
            f"a TFRECORD frame is damaged: {problem}",
            row=self._row,
            start=self._offset,
            stop=stop,
            expected=expected,
            found=found,
            advice="fetch the file again, or index around the damage with salvage=True",
        )


def iterate_payloads(pieces: Iterable[bytes], *, limits: Limits = DEFAULT_LIMITS) -> Iterator[list[bytes]]:
    """Yield the payloads of decoded TFRecord bytes, in lists.

    Raises:
        CorruptRecordError: damage, with the row and its place in the decoded bytes.
        FormatError: the writer used other checksums.
    """
    return map(_payloads, _runs(pieces, SalvageOptions(limits=limits)))


def salvage_payloads(
    pieces: Iterable[bytes], *, limits: Limits = DEFAULT_LIMITS
) -> Iterator[list[bytes] | GapFound]:
    """Yield the payloads of decoded TFRecord bytes, in lists, and the damage between them.

    Raises:
        FormatError: the writer used other checksums.
    """
    gap = GapFound(0, 0, "")
    stop = 0
    for run in _runs(pieces, SalvageOptions(enabled=True, limits=limits)):
        start, stop = stop, stop + len(run.data)
        if run.reason is not None and (gap.stop, gap.reason) == (start, run.reason):
            gap = gap._replace(stop=stop)
            continue
        if gap.reason:
            yield gap
        gap = GapFound(start, stop, run.reason or "")
        if run.reason is None:
            yield _payloads(run)
    if gap.reason:
        yield gap


def _runs(pieces: Iterable[bytes], salvage: SalvageOptions) -> Iterator[FrameRun]:
    framer = TFRecordFramer(salvage=salvage)
    for piece in pieces:
        yield from framer.feed(memoryview(piece))  # slices of bytes would be copies
    yield from framer.end()


def _payloads(run: FrameRun) -> list[bytes]:
    assert run.stops is not None  # noqa: S101 - for the type checker
    starts = np.concatenate([[0], run.stops[:-1]])
    return kernels.slice_records(run.data, starts + TFRECORD_HEAD, run.stops - TFRECORD_TAIL)


def _length(data: Bytes) -> int:
    return int(_LENGTH.unpack_from(data)[0])
