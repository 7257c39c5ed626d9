"""Frames of TFRecord: the compiled kernel finds and checks them; damage is named, or left out.

A record of up to 32 MiB is held until it is whole; of a longer one nothing is held but its checksum.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Generator, Iterator

import numpy as np

from shardio import kernels
from shardio.errors import CorruptRecordError, FormatError
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL, Framing, RecordCrc, frame_sides
from shardio.kernels import Scan
from shardio_indexer._blocks import Bytes, Check, FrameRun, SalvageOptions

_EXTRA = TFRECORD_HEAD + TFRECORD_TAIL
_LARGE = 32 << 20
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
        self._held = b""
        self._offset = self._row = 0  # of the first byte held
        # Of a record too long to be held: payload bytes to come, then the tail; its checksum so far.
        self._large = self._rest = self._crc = 0
        self._ending = b""
        self._in_large = self._final = False
        # Of damage whose end was not in the bytes so far: why it is left out.
        self._leaving = ""

    def feed(self, piece: Bytes) -> Iterator[FrameRun]:
        """Take the next decoded bytes; yield what they complete."""
        if self._in_large:
            piece = yield from self._go_on(piece)
        if self._held:
            piece = yield from self._complete_held(piece)
        if len(piece):
            yield from self._scan(piece)

    def end(self) -> Iterator[FrameRun]:
        """Refuse a record that has no end, or leave it out."""
        if self._in_large:
            self._refuse_cut_short()
            yield FrameRun(b"", reason=_CUT_SHORT)
        self._final = True
        data, self._held = self._held, b""
        yield from self._scan(data)
        while self._held:
            self._refuse_cut_short()
            # A file may have been cut and another one appended.
            data, self._held = self._held, b""
            place = self._find_head(data, 1)
            lost = len(data) if place is None else place
            yield self._gap(data[:lost], _CUT_SHORT)
            yield from self._scan(data[lost:])

    def _complete_held(self, piece: Bytes) -> Generator[FrameRun, None, Bytes]:
        """Complete the frame whose beginning is held; return what follows it in `piece`."""
        need = TFRECORD_HEAD - len(self._held)
        if need > 0:
            self._held += bytes(piece[:need])
            piece = piece[need:]
        if len(self._held) < TFRECORD_HEAD:
            return b""
        frame = _length(self._held) + _EXTRA
        if self._problem(self._held) is None and frame <= _LARGE + _EXTRA:
            need = max(0, frame - len(self._held))
            self._held += bytes(piece[:need])
            piece = piece[need:]
            if len(self._held) < frame:
                return b""
        data, self._held = self._held, b""
        if len(piece) and self._salvage.enabled:
            # The end of the damage may be in either.
            data, piece = data + bytes(piece), b""
        yield from self._scan(data)
        if self._in_large and piece:
            piece = yield from self._go_on(piece)
        if self._held and len(piece):
            data, self._held = self._held, b""
            yield from self._scan(data + bytes(piece))
            return b""
        return piece

    def _problem(self, head: Bytes) -> str | None:
        return kernels.scan_frames(head[:TFRECORD_HEAD], check=self._check, max_record=self._limit).problem

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
        if len(data) >= TFRECORD_HEAD and _length(data) > _LARGE and self._problem(data) is None:
            self._in_large = True
            self._large = self._rest = _length(data)
            self._crc, self._ending = 0, b""
            yield FrameRun(data[:TFRECORD_HEAD])
            data = yield from self._go_on(data[TFRECORD_HEAD:])
        self._held = bytes(data)

    def _go_on(self, piece: Bytes) -> Generator[FrameRun, None, Bytes]:
        """Take bytes of a record that is too long to be held; return what follows it."""
        payload = piece[: self._rest]
        self._rest -= len(payload)
        if self._check == "crc32c":
            self._crc = kernels.crc32c(payload, self._crc)
        elif self._check == "crc32":
            self._crc = zlib.crc32(payload, self._crc)
        need = 0 if self._rest else TFRECORD_TAIL - len(self._ending)
        used = len(payload) + min(need, len(piece) - len(payload))
        self._ending += bytes(piece[len(payload) : used])
        if self._rest or len(self._ending) < TFRECORD_TAIL:
            if used:
                yield FrameRun(piece[:used])
            return b""
        self._in_large = False
        stored = int.from_bytes(self._ending, "little")
        if self._check == "none" or stored == kernels.mask_crc(self._crc):
            yield FrameRun(piece[:used], np.array([used], np.int64))
            self._row += 1
        else:
            if not self._salvage.enabled:
                raise self._error("payload crc", stored, kernels.mask_crc(self._crc))
            yield FrameRun(piece[:used], reason="damage: payload crc")
        # The offset stood at the record's first byte.
        self._offset += self._large + _EXTRA
        return piece[used:]

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
            raise self._error(scan.problem or "", scan.expected, scan.found)
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

    def _error(self, problem: str, expected: object, found: object) -> CorruptRecordError:
        expected, found = frame_sides(problem, expected, found)
        return CorruptRecordError(
            f"a TFRECORD frame is damaged: {problem}",
            row=self._row,
            start=self._offset,
            expected=expected,
            found=found,
            advice="fetch the file again, or index around the damage with salvage=True",
        )


def _length(data: Bytes) -> int:
    return int(_LENGTH.unpack_from(data)[0])
