"""A shard with its index: every byte of both, block by block, going on after each finding.

Promise: every block's stored bytes are compared with their CRC-32C, decoded, and its records with their own
checksums; every part of `frame_stop`, the column as a whole, and the end of the index with theirs; sizes and
the whole object too.  A checksum of the whole that fails because a part of it did is not another finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardio import kernels
from shardio.errors import CorruptBlockError, CorruptRecordError, FormatError, ShardioError
from shardio.format import Compression, Framing, RecordCrc, check_block, decompress, parse_json
from shardio.maintenance._findings import UNREADABLE, Finding
from shardio.maintenance._sequential import checksum_error, size_error
from shardio.maintenance._stored_bytes import FAILED, StoredBytes, read_ahead, runs
from shardio.metadata import INDEX_ADVICE, check_frames_part, check_index_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardio.format import Buffer, Limits
    from shardio.maintenance._findings import Survey
    from shardio.metadata import IndexHead, Schema
    from shardio.storage import DataFile

    Take = Callable[[int, Buffer, NDArray[np.int64], NDArray[np.bool_], bool], None]

# Adoption gives up so many decoded bytes at most in front of the place where a stream is damaged.
_MOST_REST = 4 << 20
_CHECKS: dict[RecordCrc, Literal["crc32c", "crc32", "none"]] = {
    RecordCrc.CRC32C: "crc32c",
    RecordCrc.CRC32: "crc32",
    RecordCrc.UNCHECKED: "none",
}


def check_indexed(
    survey: Survey,
    head: IndexHead,
    index: DataFile,
    data: DataFile | None,
    *,
    shard: str,
    limits: Limits,
    schema: Schema | None = None,
    take: Take | None = None,
) -> None:
    """Check one shard against its index, and the index against itself.

    Args:
        survey: takes the findings.
        head: head of the index, checked.
        index: the index file.
        data: the shard, or None where it cannot be opened and only the index can be looked at.
        shard: its key, for messages.
        limits: upper bounds for decoding.
        schema: of the dataset: lines that it calls JSON are decoded.
        take: called with the records of each block of which any is good, in order: number of its first row,
            decoded bytes, int64 ends of its frames in them, for each of its rows whether it is good, bool,
            and whether the block matches its checksum.
    """
    survey.note_skipped(head, url=index.url if data is None else data.url, shard=shard)
    index_file = _IndexFile(survey, head, index, shard=shard)
    if data is None:
        for _ in index_file.parts():
            pass
    else:
        # Lines are objects by their keys, or values as a whole.
        json_lines = schema is not None and (
            schema.encoding != "bytes" or [feature.kind for feature in schema.values()] == ["json"]
        )
        blocks = _BlockWalk(survey, head, data, shard, limits, json_lines, take)
        for (block, stored), part in zip(blocks.stored(), index_file.parts(), strict=True):
            blocks.check(block, stored, part)
        blocks.finish()
    index_file.finish()


@dataclass
class _BlockWalk:
    """One pass over the blocks of a shard; the arguments are those of `check_indexed`."""

    survey: Survey
    head: IndexHead
    data: DataFile
    shard: str
    limits: Limits
    json_lines: bool
    take: Take | None

    def __post_init__(self) -> None:
        self._rest: FormatError | None = None  # why a stream does not decode behind its last block
        # The blocks of a stream are cut from its decoded bytes.
        self._compression = Compression.NONE if self.head.stream else self.head.compression
        self._crc32c = 0
        self._whole = True

    def stored(self) -> Iterator[tuple[int, Buffer | None]]:
        """Yield each block's stored bytes, or None where they are not there or cannot be read."""
        head = self.head
        done = 0
        for block, stored in self._of_stream() if head.stream else self._of_object():
            yield block, stored
            done = block + 1
        yield from ((block, None) for block in range(done, head.blocks))

    def check(self, block: int, stored: Buffer | None, part: NDArray[np.uint32] | None) -> None:
        """Check one block by its checksum, by decoding it, and record by record."""
        if stored is None:
            return
        decoded, sound = self._open(block, stored)
        if decoded is None or part is None:
            return
        good = self._check_records(block, decoded, part)
        # Where the block is damaged, only checksums of their own can speak for its other records; but if they
        # all match, then these are records, and not those that were written.
        own = self.head.record_crc in (RecordCrc.CRC32C, RecordCrc.CRC32)
        if sound or (own and not good.all()):
            self.survey.good_records += int(good.sum())
            if self.take is not None and good.any():
                self.take(self.head.block_rows(block)[0], decoded, part.astype(np.int64), good, sound)

    def finish(self) -> None:
        """Compare the checksum of the whole, where every part of it seemed right."""
        if self._whole and self._crc32c != self.head.crc32c:
            self._note("checksum", checksum_error(self.head.crc32c, self._crc32c))

    def _of_object(self) -> Iterator[tuple[int, Buffer | None]]:
        head, size = self.head, self.data.size
        there = int(np.searchsorted(head.block_stop, np.uint64(size), side="right"))
        if size != head.stored_bytes:
            self._whole = False
            row = head.block_rows(there)[0] if there < head.blocks else None
            row_stop = None if row is None else head.rows
            self._note("size", size_error(head.stored_bytes, size), row=row, row_stop=row_stop)
        spans = [(first, min(stop, there)) for first, stop in runs(head) if first < there]
        ranges = [(head.block_bounds(first)[0], head.block_bounds(stop - 1)[1]) for first, stop in spans]
        for (first, stop), (start_byte, stop_byte), wait in zip(
            spans, ranges, read_ahead(self.data, ranges), strict=True
        ):
            try:
                run = wait()
            except FAILED as error:
                self._whole = False
                row, row_stop = head.block_rows(first)[0], head.block_rows(stop - 1)[1]
                self._note(UNREADABLE, error, row=row, row_stop=row_stop)
                yield from ((block, None) for block in range(first, stop))
                continue
            self._crc32c = kernels.crc32c(run, self._crc32c)
            for block in range(first, stop):
                a, b = head.block_bounds(block)
                yield block, run[a - start_byte : b - start_byte]
            self.survey.advance(stop_byte - start_byte)

    def _of_stream(self) -> Iterator[tuple[int, Buffer | None]]:
        head = self.head
        whole = StoredBytes(self.survey, self.data)
        block = 0
        if self.data.size != head.stored_bytes:
            self._whole = False
            self._note("size", size_error(head.stored_bytes, self.data.size))
        try:
            for stored in self._cut(whole.decoded(head.compression, self.limits)):
                yield block, stored
                block += 1
        except (FormatError, *FAILED) as error:
            self._whole = False
            row = head.block_rows(block)[0] if block < head.blocks else None
            kind = "decode" if isinstance(error, FormatError) else UNREADABLE
            self._note(kind, error, row=row, row_stop=None if row is None else head.rows)
            return
        self._crc32c = whole.crc32c
        if self._rest is not None:
            self._check_rest(self._rest)

    def _check_rest(self, error: FormatError) -> None:
        """Tell damage that was left out when the object was indexed from damage that came later.

        What does not decode is indexed with `--salvage` alone: it was known if no byte has changed since.
        """
        whole = StoredBytes(self.survey, self.data)
        try:
            for _ in whole.stored():
                pass
        except FAILED as failure:
            self._whole = False
            self._note(UNREADABLE, failure)
            return
        self._crc32c = whole.crc32c
        if self._whole and self._crc32c == self.head.crc32c:
            self.survey.skipped.append(
                Finding.from_error("skipped", error, url=self.data.url, shard=self.shard)
            )
        else:
            self._whole = False
            self._note("decode", error)

    def _cut(self, pieces: Iterator[bytes]) -> Iterator[bytearray]:
        """Yield the blocks of a stream, holding one of them and a piece, however much there is to decode.

        Raises:
            FormatError: the stream decodes to another size than the index says.
        """
        head = self.head
        held = bytearray()
        block = more = 0
        pieces = iter(pieces)
        while True:
            try:
                piece = next(pieces, None)
            except FormatError as error:
                if block < head.blocks:
                    raise
                self._rest = error
                return
            if piece is None:
                break
            view = memoryview(piece)
            while view and block < head.blocks:
                start, stop = head.block_bounds(block)
                part = view[: stop - start - len(held)]
                held += part
                view = view[len(part) :]
                if len(held) == stop - start:
                    yield held
                    held = bytearray()
                    block += 1
            # What an attacker has packed behind the end is not unpacked to see how much it is.
            more += len(view)
            if more > _MOST_REST:
                raise self._decodes_to(f"more than {head.decoded_bytes} bytes")
        if more:
            raise self._decodes_to(f"{head.decoded_bytes + more} bytes")
        if block < head.blocks:
            raise self._decodes_to(f"{head.block_bounds(block)[0] + len(held)} bytes")

    def _decodes_to(self, found: str) -> FormatError:
        return FormatError(
            "a compressed stream decodes to another size than its index says",
            expected=f"{self.head.decoded_bytes} bytes",
            found=found,
            advice="the shard or its index was replaced: restore it from a copy, or index the shard again "
            "with `shardio adopt`",
        )

    def _open(self, block: int, stored: Buffer) -> tuple[Buffer | None, bool]:
        """Return the decoded bytes of a block, or None, and whether its stored bytes are those written."""
        head = self.head
        start, stop = head.block_bounds(block)
        row, row_stop = head.block_rows(block)
        places = {"row": row, "row_stop": row_stop, "start": start, "stop": stop}
        sound = True
        try:
            check_block(stored, int(head.block_crc32c[block]))
        except CorruptBlockError as error:
            sound = self._whole = False
            self._note("block", error, **places)
        if row == row_stop:
            return None, sound  # a gap: bytes of no record
        size = int(head.block_decoded_bytes[block])
        try:
            return decompress(stored, self._compression, size, limits=self.limits), sound
        except CorruptBlockError as error:
            # Damaged bytes do not decode, and that is not another finding.
            if sound:
                self._note("decode", error, **places)
            return None, sound

    def _check_records(self, block: int, decoded: Buffer, part: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Note every damaged record of a block; return for each of its rows whether it is good."""
        head = self.head
        first, stop = head.block_rows(block)
        base = head.block_bounds(block)[0] if self._compression is Compression.NONE else 0
        good = np.ones(stop - first, bool)
        for damage in _damaged_rows(head, decoded, part, last=stop == head.rows, json_lines=self.json_lines):
            good[damage.first : damage.stop] = False
            self._note(
                "record",
                CorruptRecordError(damage.message, expected=damage.expected, found=damage.found),
                row=first + damage.first,
                row_stop=first + damage.stop,
                start=base + damage.start_byte,
                stop=base + damage.stop_byte,
            )
        return good

    def _note(self, kind: str, error: ShardioError, **places: int | None) -> None:
        self.survey.note(kind, error, url=self.data.url, shard=self.shard, **places)


class _IndexFile:
    """One pass over an index whose head was checked; the findings go to the survey."""

    def __init__(self, survey: Survey, head: IndexHead, index: DataFile, *, shard: str) -> None:
        self._survey = survey
        self._head = head
        self._index = index
        self._shard = shard
        self._crc32c = 0
        self._whole = True

    def parts(self) -> Iterator[NDArray[np.uint32] | None]:
        """Yield each block's part of `frame_stop`, or None where it is damaged or absent."""
        head = self._head
        try:
            size = self._index.size
        except FAILED as error:
            self._note(UNREADABLE, error)
            size = 0
        for first, stop in runs(head):
            start, end = head.frame_stop_bounds(first)[0], head.frame_stop_bounds(stop - 1)[1]
            base = head.block_rows(first)[0]
            column = self._read(start, min(end, start + max(0, size - start) // 4 * 4), first, stop)
            for block in range(first, stop):
                row, row_stop = head.block_rows(block)
                if column is None or row_stop - base > len(column):
                    yield None  # noted where the column was read, or with the size of the file
                else:
                    yield self._check(block, column[row - base : row_stop - base])

    def finish(self) -> None:
        """Check what `parts` did not see: the column as a whole, and what follows it."""
        head = self._head
        try:
            size = self._index.size
            if size != head.index_bytes:
                covered = max(0, min(head.rows, (size - head.frame_stop_offset) // 4))
                row, row_stop = (None, None) if covered == head.rows else (covered, head.rows)
                self._note("index", self._size_error(size), row=row, row_stop=row_stop)
                return
            if self._whole and self._crc32c != head.frames_crc32c:
                self._note("index", self._column_error())
            end = self._index.read(head.frame_stop_offset + 4 * head.rows, size)
            check_index_end(head, end, url=self._index.url)
        except FormatError as error:
            self._note("index", error)
        except FAILED as error:
            self._note(UNREADABLE, error)

    def _read(self, start: int, end: int, first: int, stop: int) -> NDArray[np.uint32] | None:
        try:
            column = np.frombuffer(self._index.read(start, end), "<u4").view(np.uint32)
        except FAILED as error:
            self._whole = False
            row, row_stop = self._head.block_rows(first)[0], self._head.block_rows(stop - 1)[1]
            self._note(UNREADABLE, error, row=row, row_stop=row_stop)
            return None
        self._crc32c = kernels.crc32c(column, self._crc32c)
        return column

    def _check(self, block: int, part: NDArray[np.uint32]) -> NDArray[np.uint32] | None:
        try:
            check_frames_part(self._head, block, part, url=self._index.url)
        except FormatError as error:
            self._whole = False
            row, row_stop = self._head.block_rows(block)
            self._note("frames", error, row=row, row_stop=row_stop)
            return None
        return part

    def _note(self, kind: str, error: ShardioError, **places: int | None) -> None:
        self._survey.note(kind, error, url=self._index.url, shard=self._shard, **places)

    def _size_error(self, size: int) -> FormatError:
        return FormatError(
            "an index has another size than its header says",
            expected=f"{self._head.index_bytes} bytes",
            found=f"{size} bytes",
            advice=INDEX_ADVICE,
        )

    def _column_error(self) -> FormatError:
        return FormatError(
            "column frame_stop of an index does not match its checksum, though each block's part does",
            expected=f"{self._head.frames_crc32c:#010x}",
            found=f"{self._crc32c:#010x}",
            advice=INDEX_ADVICE,
        )


class _DamagedRows(NamedTuple):
    """Consecutive damaged rows, counted from the block's first; bytes are those of its decoded bytes."""

    first: int
    stop: int
    start_byte: int
    stop_byte: int
    message: str
    expected: str | None = None
    found: str | None = None


def _damaged_rows(
    head: IndexHead, decoded: Buffer, part: NDArray[np.uint32], *, last: bool, json_lines: bool = False
) -> Iterator[_DamagedRows]:
    """Yield what is damaged in a block, by rising row; neighbours are one damage.

    Args:
        head: of the shard's index.
        decoded: the block's decoded bytes.
        part: the block's part of `frame_stop`.
        last: the block ends with the shard's last row.
        json_lines: each line is a JSON document.
    """
    stops = part.astype(np.int64)
    starts = np.concatenate([[0], stops[:-1]])
    if head.framing is Framing.TFRECORD:
        check = _CHECKS[head.record_crc]
        rows = _damaged_frames(decoded, starts, stops, check)
        for first, stop in _runs(rows):
            facts = _explain(bytes(decoded[starts[first] : stops[first]]), check)
            yield _DamagedRows(first, stop, int(starts[first]), int(stops[stop - 1]), *facts)
    elif head.framing is Framing.LINES:
        ends = np.frombuffer(decoded, np.uint8)[stops - 1] == ord("\n")
        if last:
            ends[-1] = True  # the last line of a file may lack its ending
        for first, stop in _runs(np.flatnonzero(~ends).tolist()):
            yield _DamagedRows(
                first, stop, int(starts[first]), int(stops[stop - 1]), "a line has no line ending"
            )
        rows = (
            [row for row in range(len(stops)) if _not_json(decoded[starts[row] : stops[row]])]
            if json_lines
            else []
        )
        for first, stop in _runs(rows):
            why = _not_json(decoded[starts[first] : stops[first]])
            place = int(starts[first]), int(stops[stop - 1])
            yield _DamagedRows(first, stop, *place, "a line is not JSON", None, why)


def _not_json(line: Buffer) -> str | None:
    """Return why a line is not JSON document, as the reader will say."""
    try:
        parse_json(line)
    except ValueError as error:
        return str(error)
    return None


def _damaged_frames(
    decoded: Buffer,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    check: Literal["crc32c", "crc32", "none"],
) -> list[int]:
    first = kernels.check_frames(decoded, starts, stops, check=check)
    if first < 0:
        return []
    # The kernel names the first only; a damaged block is rare, so each of the others is checked by itself.
    others = (
        row
        for row in range(first + 1, len(starts))
        if kernels.check_frames(decoded, starts[row : row + 1], stops[row : row + 1], check=check) >= 0
    )
    return [first, *others]


def _runs(rows: list[int]) -> Iterator[tuple[int, int]]:
    """Yield half-open runs of consecutive rows."""
    if not rows:
        return
    cuts = [0, *(k + 1 for k, (a, b) in enumerate(pairwise(rows)) if b != a + 1), len(rows)]
    for a, b in pairwise(cuts):
        yield rows[a], rows[b - 1] + 1


def _explain(frame: bytes, check: Literal["crc32c", "crc32", "none"]) -> tuple[str, str | None, str | None]:
    """Return message, expected and found for a frame that is not right."""
    scan = kernels.scan_frames(frame, check=check)
    if scan.problem is not None and scan.expected is not None and scan.found is not None:
        what = "the length" if scan.problem == "length crc" else "the payload"
        return (
            f"{what} of a record does not match its checksum",
            f"{scan.expected:#010x}",
            f"{scan.found:#010x}",
        )
    claimed = int.from_bytes(frame[:8], "little")
    return (
        "a record has another length than the index says",
        f"{len(frame) - 16} bytes",
        f"{claimed} bytes",
    )
