"""The records of one decoded block against their own checksums and line ends: which rows are damaged."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardio import kernels
from shardio.format import Framing, RecordCrc, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardio.format import Buffer
    from shardio.metadata import IndexHead

__all__ = ["DamagedRows", "damaged_rows"]

_CHECKS: dict[RecordCrc, Literal["crc32c", "crc32", "none"]] = {
    RecordCrc.CRC32C: "crc32c",
    RecordCrc.CRC32: "crc32",
    RecordCrc.UNCHECKED: "none",
}


class DamagedRows(NamedTuple):
    """Consecutive damaged rows, counted from the block's first; bytes are those of its decoded bytes."""

    first: int
    stop: int
    start_byte: int
    stop_byte: int
    message: str
    expected: str | None = None
    found: str | None = None


def damaged_rows(
    head: IndexHead, decoded: Buffer, part: NDArray[np.uint32], *, last: bool, json_lines: bool = False
) -> Iterator[DamagedRows]:
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
            yield DamagedRows(first, stop, int(starts[first]), int(stops[stop - 1]), *facts)
    elif head.framing is Framing.LINES:
        ends = np.frombuffer(decoded, np.uint8)[stops - 1] == ord("\n")
        if last:
            ends[-1] = True  # the last line of a file may lack its ending
        for first, stop in _runs(np.flatnonzero(~ends).tolist()):
            yield DamagedRows(
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
            yield DamagedRows(first, stop, *place, "a line is not JSON", None, why)


def _not_json(line: Buffer) -> str | None:
    """Return why a line is no JSON document, as the reader will say."""
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
    # The kernel names the first only; a damaged block is rare, so each of the others is asked by itself.
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
