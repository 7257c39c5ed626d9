"""A shard with its index: every byte of both, block by block, going on after each finding.

Promise: every block's stored bytes are compared with their CRC-32C, decoded, and its records with their own
checksums; every part of `frame_stop`, the column as a whole, and the end of the index with theirs; sizes and
the whole object too.  Of parts that are all right, the checksums say that of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import CorruptRecordError, FormatError, ShardioError
from shardio.format import (
    Buffer,
    Compression,
    Framing,
    Limits,
    RecordCrc,
    parse_json,
)
from shardio.maintenance._findings import UNREADABLE, Finding, Survey
from shardio.maintenance._stored_bytes import FAILED, checksum_error, size_error, stored_crc32c
from shardio.metadata import INDEX_ADVICE, IndexHead, Schema
from shardio.ranges import runs_of
from shardio.reader import (
    OpenShard,
    ReadStats,
    ShardFiles,
    WrongBlock,
    check_index_file,
    decoded_size_error,
)
from shardio.storage import DataFile, read_intact

# Adoption gives up so many decoded bytes at most in front of the place where a stream is damaged.
_MOST_REST = 4 << 20
_CHECKS: dict[RecordCrc, Literal["crc32c", "crc32", "none"]] = {
    RecordCrc.CRC32C: "crc32c",
    RecordCrc.CRC32: "crc32",
    RecordCrc.UNCHECKED: "none",
}


@dataclass(frozen=True)
class CheckedBlock:
    """A block of which some records are good.

    Attributes:
        first: number of its first row.
        decoded: its bytes.
        stops: int64, ends of its frames in them.
        good: bool, of each of its rows.
        sound: the block matches its checksum.
    """

    first: int
    decoded: Buffer
    stops: NDArray[np.int64]
    good: NDArray[np.bool_]
    sound: bool

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where its frames begin in its bytes, int64."""
        return np.concatenate([np.zeros(1, np.int64), self.stops[:-1]])

    def rows_without(self, deleted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the good rows, counted in the block, that are not among some of the shard."""
        rows = np.flatnonzero(self.good)
        return rows[~np.isin(rows + self.first, deleted)]


def check_indexed(
    survey: Survey,
    head: IndexHead,
    index: DataFile,
    data: DataFile | None,
    *,
    shard: str,
    limits: Limits,
    schema: Schema | None = None,
    take: Callable[[CheckedBlock], None] | None = None,
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
        take: called with each block of which any record is good, in order.
    """
    survey.note_skipped(head, url=index.url if data is None else data.url, shard=shard)
    # Lines are objects by their keys, or values as a whole.
    json_lines = schema is not None and (
        schema.encoding != "bytes" or [feature.kind for feature in schema.values()] == ["json"]
    )
    _BlockWalk(survey, head, index, data, shard, limits, json_lines, take).run()


@dataclass
class _BlockWalk:
    """One pass over a shard and its index; the arguments are those of `check_indexed`."""

    survey: Survey
    head: IndexHead
    index: DataFile
    data: DataFile | None
    shard: str
    limits: Limits
    json_lines: bool
    take: Callable[[CheckedBlock], None] | None

    def run(self) -> None:
        """Check the whole shard; the reader fetches, compares and refetches."""
        head, data = self.head, self.data
        # Nothing was found so far that says that the shard is another one.
        self._whole = data is not None and data.size == head.stored_bytes
        there = 0 if data is None else head.blocks
        if data is not None and not self._whole:
            places = {}
            if not head.stream:
                there = _blocks_within(head.block_stop, data.size)
                places = self._rows(there, head.blocks) if there < head.blocks else {}
            self._note("size", size_error(head.stored_bytes, data.size), **places)
        try:
            rows = max(0, self.index.size - head.frame_stop_offset) // 4
        except FAILED as error:
            self._note_index(UNREADABLE, error)
            rows = 0
        covered = _blocks_within(head.block_row_stop, rows)  # else noted with the size of the index
        files = ShardFiles(
            self.shard, head, self.index, data or self.index, adopted=False, verify=True, limits=self.limits,
            stats=ReadStats(), check_expired=lambda: None,
        )  # fmt: skip
        shard = OpenShard(files, by_frame=False, examines=True)
        self._decodes, number = data is not None, 0
        for found in shard.examine(there, covered):
            if isinstance(found, WrongBlock):
                self._note_wrong(found)
                if found.decoded is not None and found.stops is not None:
                    sound = found.stored is None
                    self._check(found.first, found.decoded, found.stops.astype(np.int64), sound=sound)
                number = found.stop
            else:
                edges = found.edges.astype(np.int64)
                decoded = memoryview(found.buffer)[found.base : found.base + int(edges[-1])]
                self._check(number, decoded, edges[1:], sound=True)
                number += 1
        if data is not None and head.stream and self._decodes:
            self._check_rest(shard, data)
        joined = head.crc32c if head.stream else _joined(head.block_crc32c, head.block_stop)
        if data is not None and joined != head.crc32c:
            self._note("checksum", checksum_error(head.crc32c, joined))
        _check_rest_of_index(head, self.index, self._note_index)

    def _check_rest(self, shard: OpenShard, data: DataFile) -> None:
        """Check what follows the last block of a stream, and its stored bytes as a whole."""
        head, rest = self.head, None
        try:
            # What an attacker has packed behind the end is not unpacked to see how much it is.
            more, crc32c = shard.decode_rest(_MOST_REST)
            if more:
                size = "more" if more > _MOST_REST else f"{head.decoded_bytes + more} bytes"
                self._note("decode", decoded_size_error(shard.files, size))
                return
        except FormatError as error:
            rest, crc32c = error, stored_crc32c(data)
        # What does not decode behind the last block is indexed with `--salvage` alone: it was known if no
        # byte has changed since, and else it is damage that came later.
        same = self._whole and crc32c == head.crc32c
        if rest is not None and same:
            found = Finding.from_error("skipped", rest, url=data.url, shard=self.shard)
            self.survey.skipped.append(found)
        elif rest is not None:
            self._note("decode", rest)
        elif self._whole and not same:
            self._note("checksum", checksum_error(head.crc32c, crc32c))

    def _check(self, number: int, decoded: Buffer, stops: NDArray[np.int64], *, sound: bool) -> None:
        """Check the records of a block one by one."""
        if not len(stops):
            return  # a gap has bytes of no record
        good = self._check_records(number, decoded, stops)
        # Where the block is damaged, only checksums of their own can speak for its other records; but if they
        # all match, then these are records, and not those that were written.
        own = self.head.record_crc in (RecordCrc.CRC32C, RecordCrc.CRC32)
        if sound or (own and not good.all()):
            self.survey.good_records += int(good.sum())
            if self.take is not None and good.any():
                self.take(CheckedBlock(self.head.block_rows(number)[0], decoded, stops, good, sound))

    def _note_wrong(self, wrong: WrongBlock) -> None:
        """Note a damaged block, or blocks that cannot be read."""
        places = self._rows(wrong.first, wrong.stop)
        if wrong.frames is not None:
            self._note_index(_kind_of(wrong.frames, "frames"), wrong.frames, **places)
        error = wrong.stored or wrong.decoding
        if error is not None:
            # Damaged bytes do not decode, and that is not another finding.
            kind = _kind_of(error, "decode" if wrong.stored is None else "block")
            self._whole = self._whole and kind != "block"
            self._decodes = self._decodes and kind == "block"
            self._note(kind, error, **places)

    def _check_records(self, block: int, decoded: Buffer, stops: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Note every damaged record of a block, neighbours as one; return for each row whether it is good."""
        head = self.head
        row, row_stop = head.block_rows(block)
        base = head.block_bounds(block)[0] if head.stream or head.compression is Compression.NONE else 0
        good = np.ones(row_stop - row, bool)
        starts = np.concatenate([[0], stops[:-1]])
        kinds = _damaged_rows(head, decoded, starts, stops, last=row_stop == head.rows, json=self.json_lines)
        for rows, explain in kinds:
            for first, stop in runs_of(rows) if rows else ():
                good[first:stop] = False
                start, end = int(starts[first]), int(stops[stop - 1])
                what, expected, found = explain(decoded[start : stops[first]])
                error = CorruptRecordError(what, expected=expected, found=found)
                places = {"start": base + start, "stop": base + end}
                self._note("record", error, row=row + first, row_stop=row + stop, **places)
        return good

    def _rows(self, first: int, stop: int) -> dict[str, int]:
        """Return which rows some blocks have, for a finding."""
        return {"row": self.head.block_rows(first)[0], "row_stop": self.head.block_rows(stop - 1)[1]}

    def _note(self, kind: str, error: ShardioError, **places: int) -> None:
        assert self.data is not None  # noqa: S101 - for the type checker
        self.survey.note(kind, error, url=self.data.url, shard=self.shard, **places)

    def _note_index(self, kind: str, error: ShardioError, **places: int) -> None:
        self.survey.note(kind, error, url=self.index.url, shard=self.shard, **places)


def _blocks_within(stops: NDArray[np.uint64], size: int) -> int:
    return int(np.searchsorted(stops, np.uint64(size), side="right"))


def _kind_of(error: ShardioError, kind: str) -> str:
    return kind if isinstance(error, FormatError) else UNREADABLE


def _joined(crcs: NDArray[np.uint32], stops: NDArray[Any], size: int = 1) -> int:
    """Return the CRC-32C of parts that follow each other, from those of each and where they stop."""
    whole = 0
    lengths = size * np.diff(np.asarray(stops, np.int64), prepend=0)
    for crc, length in zip(crcs.tolist(), lengths.tolist(), strict=True):
        whole = kernels.crc32c_joined(whole, crc, length)
    return whole


def _check_rest_of_index(head: IndexHead, index: DataFile, note: Callable[..., None]) -> None:
    """Check what is not compared by block: the column as a whole, and what follows it."""
    found = _joined(head.block_frames_crc32c, head.block_row_stop, 4)
    if found != head.frames_crc32c:
        column = FormatError(
            "column frame_stop of an index does not match its checksum, though each block's part does",
            expected=f"{head.frames_crc32c:#010x}",
            found=f"{found:#010x}",
            advice=INDEX_ADVICE,
        )
        note("index", column)
    places: dict[str, int] = {}
    try:
        covered = max(0, min(head.rows, (index.size - head.frame_stop_offset) // 4))
        if covered < head.rows:
            places = {"row": covered, "row_stop": head.rows}
        read_intact(partial(check_index_file, index, head), index.invalidate)
    except FormatError as error:
        note("index", error, **places)
    except FAILED as error:
        note(UNREADABLE, error)


def _damaged_rows(
    head: IndexHead,
    decoded: Buffer,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    *,
    last: bool,
    json: bool,
) -> Iterator[tuple[list[int], Callable[[Buffer], tuple[str, str | None, str | None]]]]:
    """Yield rows of a block that are damaged, ascending, and what explains one: what, expected and found.

    Args:
        head: of the shard's index.
        decoded: the block's decoded bytes.
        starts, stops: of its frames.
        last: the block ends with the shard's last row.
        json: each line is a JSON document.
    """
    if head.framing is Framing.TFRECORD:
        check = _CHECKS[head.record_crc]
        yield _damaged_frames(decoded, starts, stops, check), lambda frame: _explain(bytes(frame), check)
    elif head.framing is Framing.LINES:
        ends = np.frombuffer(decoded, np.uint8)[stops - 1] == ord("\n")
        if last:
            ends[-1] = True  # the last line of a file may lack its ending
        yield np.flatnonzero(~ends).tolist(), lambda _: ("a line has no line ending", None, None)
        lines = range(len(stops)) if json else ()
        rows = [row for row in lines if _not_json(decoded[starts[row] : stops[row]])]
        yield rows, lambda line: ("a line is not JSON", None, _not_json(line))


def _not_json(line: Buffer) -> str | None:
    """Return why a line is not a JSON document, in the words of the reader."""
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
