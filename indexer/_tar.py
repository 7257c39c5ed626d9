"""Samples of WebDataset in a tar file: the consecutive members that share a key, from header to header.

One pass over the headers; contents are passed on as they come.  Sparse files are refused; folders, links and
members without a key belong to the sample before them and are counted.  Of a damaged archive no sample is
kept that may lack a member: the one before the damage and the first one after it are left out, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from shardio.errors import FormatError
from shardio.format import (
    SAMPLE_NAMES,
    TAR_BLOCK,
    TAR_END,
    Framing,
    RecordCrc,
    TarMember,
    is_tar_header,
    read_member,
    sample_name,
)
from shardio_indexer._blocks import Bytes, FrameRun, SalvageOptions, TarSample

_NO_SAMPLES = "no sample"


class TarFramer:
    """Find samples; `salvage` leaves damage out."""

    END: ClassVar[str] = "end of the tar archive"  # the reason of the bytes that end one
    NO_END: ClassVar[str] = "the archive has no end mark"  # a note
    framing = Framing.TAR_SAMPLE
    record_crc = RecordCrc.ABSENT

    def __init__(self, *, salvage: SalvageOptions | None = None) -> None:
        self.notes: Counter[str] = Counter()
        self._salvage = salvage or SalvageOptions()
        self._held: Bytes = b""
        self._offset = self._row = 0  # of the first byte of the piece under work
        self._skip = 0  # bytes of contents before the next header
        self._ended = False
        self._open = False  # bytes were yielded that belong to no finished frame
        # The sample under way: its key, its members by extension, why it must be left out.
        self._key: str | None = None
        self._members: dict[str, tuple[int, int]] = {}
        self._bad: str | None = None
        self._orphan = False

    def feed(self, piece: Bytes) -> Iterator[FrameRun]:
        """Take the next decoded bytes; yield the samples that they complete."""
        data = memoryview(bytes(self._held) + bytes(piece) if self._held else piece)
        sheet = _RunBuilder(data)
        place = min(self._skip, len(data))
        self._skip -= place
        while not self._skip and place < len(data):
            step = self._step(data, place, sheet)
            if step == place:
                break
            place = min(step, len(data))
            self._skip = step - place
        yield from sheet.runs(place)
        self._open = sheet.open_after(place, before=self._open)
        self._held = bytes(data[place:])
        self._offset += place

    def end(self) -> Iterator[FrameRun]:
        """Finish the last sample; refuse an archive that was cut short, or leave the rest out."""
        if self._skip or self._held:
            what = "a tar file is cut short"
            if not self._salvage.enabled:
                advice = "fetch it again, or leave the last sample out with salvage=True"
                raise FormatError(what, start=self._offset, advice=advice)
            yield FrameRun(self._held, reason=f"damage: {what}")
            return
        if self._open and not self._ended:
            self.notes[self.NO_END] += 1
            if self._key is None or self._bad:
                yield FrameRun(b"", reason=self._bad or _NO_SAMPLES)
            else:
                yield FrameRun(b"", np.zeros(1, np.int64), samples=[(self._key, self._members)])

    def _step(self, data: memoryview, place: int, sheet: _RunBuilder) -> int:
        """Take one member, or what is there; return where the next begins, `place` for too few bytes."""
        if self._ended:
            return self._after_end(data, place, sheet)
        try:
            member = read_member(data, place)
        except FormatError as error:
            return self._resynchronise(error, data, place, sheet)
        if member is None:
            return place
        if member is TAR_END:
            self._finish_sample(place, sheet)
            self._ended = True
            return self._after_end(data, place, sheet)
        self._take(member, place, sheet)
        return member.next

    def _take(self, member: TarMember, place: int, sheet: _RunBuilder) -> None:
        parts = sample_name(member.name) if member.regular else None
        if parts is None:
            self.notes["folders, links and devices" if not member.regular else "members without a key"] += 1
            return
        key, extension = parts
        if key != self._key:
            self._finish_sample(place, sheet)
            self._key, self._members = key, {}
            self._bad = "damage: the sample may lack a member" if self._orphan else None
            self._orphan = False
        if extension in self._members or extension in SAMPLE_NAMES:
            what = f"duplicate key: sample {key!r} has two members {extension!r}"
            if not self._salvage.enabled:
                advice = "leave the sample out with salvage=True"
                raise FormatError(what, row=self._row, start=self._offset + place, advice=advice)
            self._bad = f"damage: {what}"
        self._members[extension] = (self._offset + member.start, self._offset + member.stop)

    def _finish_sample(self, place: int, sheet: _RunBuilder) -> None:
        """Close the sample under way; what comes before the first one belongs to that."""
        if self._key is None:
            return
        if self._bad is None:
            sheet.frame(place, (self._key, self._members))
            self._row += 1
        else:
            sheet.gap(place, self._bad)
        self._key = None

    def _after_end(self, data: memoryview, place: int, sheet: _RunBuilder) -> int:
        """Take the zeros after the last member; a second archive behind them is found by salvage alone."""
        if sheet.open_after(place, before=self._open):
            sheet.gap(place, _NO_SAMPLES)
        others = np.flatnonzero(np.frombuffer(data[place:], np.uint8))
        if not len(others):
            sheet.gap(len(data), self.END)
            return len(data)
        absolute = self._offset + place + int(others[0])
        header = max(place, absolute // TAR_BLOCK * TAR_BLOCK - self._offset)
        if not self._salvage.enabled:
            advice = "other programs stop at the end mark; continue behind it with salvage=True"
            what = "bytes follow the end of a tar archive"
            raise FormatError(what, start=absolute, found="bytes that are not zero", advice=advice)
        sheet.gap(header, self.END)
        self._ended = False
        return header if header > place else self._step(data, header, sheet)

    def _resynchronise(self, error: FormatError, data: memoryview, place: int, sheet: _RunBuilder) -> int:
        if not self._salvage.enabled:
            advice = (
                "if the file is not a tar file, name its format; else fetch it again, or use salvage=True"
            )
            start = self._offset + (error.start or 0)
            raise FormatError(
                error.what,
                row=self._row,
                start=start,
                expected=error.expected,
                found=error.found,
                advice=advice,
            ) from error
        after = place + TAR_BLOCK
        while after + TAR_BLOCK <= len(data) and not is_tar_header(data[after : after + TAR_BLOCK]):
            after += TAR_BLOCK
        after = min(after, len(data))
        sheet.gap(after, f"damage: {error.what}")
        self._key, self._bad, self._orphan = None, None, True
        return after


class _RunBuilder:
    """The runs of one piece, in the making; places are those of the piece."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._low = 0
        self._stops: list[int] = []
        self._samples: list[TarSample] = []
        self._runs: list[FrameRun] = []
        self._closed = False  # a frame or gap ended within this piece

    def frame(self, place: int, sample: TarSample) -> None:
        """Note that the frame of a sample ends here."""
        self._stops.append(place - self._low)
        self._samples.append(sample)
        self._closed = True

    def gap(self, place: int, reason: str) -> None:
        """Note that what follows the last frame belongs, up to here, to no record."""
        self._flush()
        self._runs.append(FrameRun(self._data[self._low : place], reason=reason))
        self._low = place
        self._closed = True

    def runs(self, place: int) -> list[FrameRun]:
        """Return the runs up to `place`."""
        self._flush()
        if place > self._low:
            self._runs.append(FrameRun(self._data[self._low : place]))
        return self._runs

    def open_after(self, place: int, *, before: bool) -> bool:
        """Tell whether bytes were yielded since the last frame or gap."""
        return place > self._low or (before and not self._closed)

    def _flush(self) -> None:
        if self._stops:
            stop = self._stops[-1]
            data = self._data[self._low : self._low + stop]
            self._runs.append(FrameRun(data, np.array(self._stops, np.int64), samples=self._samples))
            self._low += stop
            self._stops, self._samples = [], []
