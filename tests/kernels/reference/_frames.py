"""TFRecord frames: u64 length, masked CRC of the length, payload, masked CRC of the payload; little-endian.

Nothing is read beyond the buffer whatever a length says.  Lengths and head CRCs are handled as columns, so
that what remains per record is one step through the lengths and one CRC of the payload.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import crc32c as _library
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tests.kernels.reference._shared import (
    MAX_BLOCK,
    MAX_RECORD,
    Check,
    Frames,
    Scan,
    as_bounds,
    as_bytes,
    as_pairs,
    check_kind,
    crc32c,
    mask_crc,
    too_long,
)

HEAD, TAIL = 12, 4  # bytes before and after the payload
_ROUND = 8192  # frames taken per round of a scan, so that garbage is not followed for long
_LENGTH = struct.Struct("<Q").unpack_from


def _table(polynomial: int) -> NDArray[np.uint32]:
    crcs = list(range(256))
    for _ in range(8):
        crcs = [crc >> 1 ^ (polynomial if crc & 1 else 0) for crc in crcs]
    return np.array(crcs, np.uint32)


# Reflected polynomials of CRC-32C (RFC 3720) and of CRC-32 (zlib).
_TABLES = {"crc32c": _table(0x82F63B78), "crc32": _table(0xEDB88320)}
_FUNCTIONS: dict[str, Callable[[Any], int]] = {"crc32c": _library.crc32c, "crc32": zlib.crc32}


def _head_crcs(heads: NDArray[np.uint8], check: Check) -> NDArray[np.uint32]:
    """Masked CRCs of the rows of uint8[n, 8], byte by byte down the columns."""
    table = _TABLES[check]
    crcs = np.full(len(heads), 0xFFFFFFFF, np.uint32)
    for column in range(8):
        crcs = table[(crcs & 255) ^ heads[:, column]] ^ crcs >> 8
    return mask_crc(~crcs)


def _payload_crcs(
    data: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64], check: Check
) -> NDArray[np.uint32]:
    crc, view = _FUNCTIONS[check], memoryview(data)
    ranges = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.fromiter((crc(view[start:stop]) for start, stop in ranges), np.uint32, starts.size)


def _gathered(data: NDArray[np.uint8], places: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Copy the `width` bytes at each place to uint8[n, width]."""
    words: NDArray[np.uint8] = data[places[:, None] + np.arange(width)]
    return words


def _stored(data: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.uint32]:
    return _gathered(data, places, 4).view("<u4")[:, 0]


def encode_frames(payloads: Sequence[Any]) -> tuple[bytes, NDArray[np.uint32]]:
    views = [part if isinstance(part, bytes) else memoryview(as_bytes(part)) for part in payloads]
    lengths = np.fromiter(map(len, views), "<u8", len(views))
    stops = np.cumsum(lengths + np.uint64(HEAD + TAIL), dtype=np.uint64)
    if views and stops[-1] > MAX_BLOCK:
        raise too_long(int(stops[-1]))
    heads = np.empty((len(views), HEAD), np.uint8)
    heads[:, :8] = lengths.view(np.uint8).reshape(-1, 8)
    heads[:, 8:] = _head_crcs(heads, "crc32c").astype("<u4")[:, None].view(np.uint8)
    crcs = np.fromiter(map(_library.crc32c, views), np.uint32, len(views))
    tails = mask_crc(crcs).astype("<u4").tobytes()
    head_bytes = heads.tobytes()
    frames = zip(
        [head_bytes[place : place + HEAD] for place in range(0, len(head_bytes), HEAD)],
        views,
        [tails[place : place + TAIL] for place in range(0, len(tails), TAIL)],
        strict=True,
    )
    return b"".join(chain.from_iterable(frames)), stops.astype(np.uint32)


def scan_frames(buffer: Any, *, check: Check = "crc32c", max_record: int = MAX_RECORD) -> Scan:
    check, data = check_kind(check), as_bytes(buffer)
    pieces: list[NDArray[np.int64]] = []
    place, problem = 0, None
    expected: int | None = None
    found: int | None = None
    more = True
    while more and problem is None:
        starts, stops, length, more = _hop(data, place, max_record)
        good, problem, expected, found = _compare_frames(data, starts, stops, check)
        if problem is None and length is not None and length > max_record:
            problem, expected, found = "length over limit", max_record, length
        pieces.append(stops[:good])
        place = int(stops[good - 1]) if good else place
    return Scan(np.concatenate(pieces), place, problem, expected, found)


def _hop(
    data: NDArray[np.uint8], place: int, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int | None, bool]:
    """Follow the lengths for one round.

    Returns:
        starts: of all frames whose heads are whole.
        stops: of those frames that are whole and keep to the limit: one fewer where the last one is not.
        length: what that last one claims, else None.
        more: whether another round may find more.
    """
    starts: list[int] = []
    stops: list[int] = []
    size = data.size
    view = memoryview(data)
    while size - place >= HEAD:
        if len(stops) == _ROUND:
            return np.array(starts, np.int64), np.array(stops, np.int64), None, True
        starts.append(place)
        length: int = _LENGTH(view, place)[0]
        if length > limit or length > size - place - (HEAD + TAIL):
            return np.array(starts, np.int64), np.array(stops, np.int64), length, False
        place += length + (HEAD + TAIL)
        stops.append(place)
    return np.array(starts, np.int64), np.array(stops, np.int64), None, False


def _compare_frames(
    data: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64], check: Check
) -> tuple[int, str | None, int | None, int | None]:
    """Check all heads and the payloads of whole frames.

    Returns how many frames from the first on are right and, of the first that is wrong, the problem, the CRC
    it holds and the CRC of its bytes.
    """
    if check == "none" or not starts.size:
        return stops.size, None, None, None
    heads = _gathered(data, starts, HEAD)
    claimed = np.ascontiguousarray(heads[:, 8:]).view("<u4")[:, 0]
    computed = _head_crcs(heads, check)
    bad = np.flatnonzero(claimed != computed)
    whole = min(stops.size, int(bad[0])) if bad.size else stops.size
    stored = _stored(data, stops[:whole] - TAIL)
    payload = mask_crc(_payload_crcs(data, starts[:whole] + HEAD, stops[:whole] - TAIL, check))
    torn = np.flatnonzero(stored != payload)
    if torn.size:
        row = int(torn[0])
        return row, "payload crc", int(stored[row]), int(payload[row])
    if bad.size:
        row = int(bad[0])
        return row, "length crc", int(claimed[row]), int(computed[row])
    return whole, None, None, None


def check_frames(
    buffer: Any, frame_starts: ArrayLike, frame_stops: ArrayLike, *, check: Check = "crc32c"
) -> int:
    check, data = check_kind(check), as_bytes(buffer)
    starts, stops = as_pairs(frame_starts, frame_stops)
    # Compared without a difference that could overflow.
    outside = (starts < 0) | (stops > data.size) | (stops < HEAD + TAIL) | (starts > stops - (HEAD + TAIL))
    bad = np.flatnonzero(outside)
    count = int(bad[0]) if bad.size else starts.size
    if count:
        lengths = _gathered(data, starts[:count], 8).view("<u8")[:, 0]
        bad = np.flatnonzero(lengths != (stops - starts - (HEAD + TAIL))[:count].astype(np.uint64))
        count = int(bad[0]) if bad.size else count
    right = _compare_frames(data, starts[:count], stops[:count], check)[0]
    return right if right < starts.size else -1


def crc32c_many(buffer: Any, starts: ArrayLike, stops: ArrayLike) -> NDArray[np.uint32]:
    data = as_bytes(buffer)
    first, last = as_bounds(starts, stops, data.size)
    return _payload_crcs(data, first, last, "crc32c")


_ZEROS = bytes(1 << 16)


def crc32c_joined(first: int, second: int, size: int) -> int:
    # What is in front is multiplied by a power of x: as bytes that are zero would do it.
    nothing = 0
    for start in range(0, size, len(_ZEROS)):
        zeros = _ZEROS[: size - start]
        first, nothing = crc32c(zeros, first), crc32c(zeros, nothing)
    return first ^ nothing ^ second


class FrameBuffer:
    def __init__(self, block_bytes: int) -> None:
        self._target = block_bytes
        self._payloads: list[bytes] = []
        self.rows = 0
        self.size = 0

    def add(self, payload: Any) -> bool:
        payload = payload if isinstance(payload, bytes) else as_bytes(payload).tobytes()
        if self.size + len(payload) + HEAD + TAIL > self._target:
            return False
        self.force(payload)
        return True

    def add_many(self, payloads: list[Any], start: int) -> int:
        number = start
        while number < len(payloads) and type(payloads[number]) is bytes and self.add(payloads[number]):
            number += 1
        return number

    def force(self, payload: Any) -> None:
        payload = payload if isinstance(payload, bytes) else as_bytes(payload).tobytes()
        size = self.size + len(payload) + HEAD + TAIL
        if size > MAX_BLOCK:
            raise too_long(size)
        self._payloads.append(payload)
        self.rows += 1
        self.size = size

    def take(self) -> Frames:
        frames, stops = encode_frames(self._payloads)
        self._payloads, self.rows, self.size = [], 0, 0
        return Frames(frames, stops, crc32c(frames))
