"""Compressed objects, decoded once in bounded memory: their members as blocks, or the whole as a stream.

Members are gzip members, Zstandard frames, or one ZLIB stream. Where every member holds whole frames within
the limits, members become blocks and records can be looked up; otherwise the object is a stream, and is read
again as one.  A damaged object is refused: a decoder cannot tell where it may go on.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import FormatError
from shardio.format import ZSTD_HEAD, Compression, Limits, explain_zstd
from shardio.metadata import IndexBuilder
from shardio_indexer._blocks import Framer, FrameRun

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PIECE = 1 << 20
# A few bytes of Zstandard can stand for many: it is fed what should come to a piece, by what came before.
_SIP, _LEAST_SIP = 4 << 10, 1 << 6
_GZIP_SIP = 64 << 10
# A member of more is a stream: as a block it would be decoded whole for each record.
MOST_MEMBER = 4 << 20


class Member(NamedTuple):
    """The end of a member.

    Attributes:
        stored_bytes, crc32c: of its stored bytes.
        decoded_bytes: what it decodes to.
        reason: why it can hold no records, or None.
        block: it may be a block: its size is declared, its window within the limit.
    """

    stored_bytes: int
    crc32c: int
    decoded_bytes: int
    reason: str | None = None
    block: bool = True


def is_compressed(head: bytes) -> Compression | None:
    """Tell from the first bytes whether an object is gzip or Zstandard; None where they say nothing."""
    if head.startswith(_GZIP):
        return Compression.GZIP
    return Compression.ZSTD if head.startswith(_ZSTD) or _is_skippable(head) else None


def decode_members(
    pieces: Iterable[bytes | memoryview], compression: Compression, limits: Limits
) -> Iterator[bytes | Member]:
    """Yield decoded bytes as they come, and a `Member` where one ends.

    Raises:
        FormatError: the bytes do not decode, end in the middle, or others follow; `start` is a stored offset.
    """
    errors = (FormatError, zlib.error, _zstd_error(compression))
    stored = _StoredBytes(pieces)
    first = True
    while head := stored.peek(ZSTD_HEAD):
        try:
            yield from _decode_one(stored, head, compression, limits, first=first)
        except errors as error:
            zstd = compression is Compression.ZSTD
            known = explain_zstd(head, limits.stream_window, error) if zstd else None
            if known is not None:
                raise known.located(start=stored.begin) from error
            own = isinstance(error, FormatError)
            raise FormatError(
                error.what if isinstance(error, FormatError) else "a compressed file does not decode",
                start=stored.offset,
                found=None if own else str(error),
                advice="fetch it again",
            ) from error
        first = False


class _StoredBytes:
    """Stored bytes, looked at before they are taken.

    Attributes:
        window: the next bytes.
        offset: bytes taken.
        begin: where the member under way begins.
        decoded: what the member under way decoded to.
    """

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.window = memoryview(b"")
        self.offset = self.begin = self.decoded = self._crc = 0
        self._pieces = iter(pieces)

    def peek(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        while len(self.window) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            joined = bytes(self.window) + bytes(piece) if len(self.window) else piece
            self.window = memoryview(joined)
        return bytes(self.window[:size])

    def fill(self) -> bool:
        """Tell whether there are bytes."""
        return bool(self.peek(1))

    def consume(self, size: int) -> None:
        """Take bytes off the window."""
        self._crc = kernels.crc32c(self.window[:size], self._crc)
        self.offset += size
        self.window = self.window[size:]

    def member(self, *, reason: str | None = None, block: bool = True) -> Member:
        """Return what was taken since the last call as a member."""
        found = Member(self.offset - self.begin, self._crc, self.decoded, reason, block)
        self.begin, self._crc, self.decoded = self.offset, 0, 0
        return found


def _decode_one(
    stored: _StoredBytes, head: bytes, compression: Compression, limits: Limits, *, first: bool
) -> Iterator[bytes | Member]:
    """Decode one member, or step over a frame that holds none."""
    if compression is Compression.ZSTD and _is_skippable(head):
        rest = 8 + int.from_bytes(head[4:8], "little")
        while rest and stored.fill():
            size = min(rest, len(stored.window))
            stored.consume(size)
            rest -= size
        if rest:
            raise FormatError("the compressed file is cut short")
        yield stored.member(reason="skippable frame")
        return
    if compression is Compression.GZIP and not first and not head[0]:
        # Zeros behind a member are padding, as gzip and Python's gzip take them.
        while stored.fill() and (zeros := len(stored.window) - len(bytes(stored.window).lstrip(b"\0"))):
            stored.consume(zeros)
        yield stored.member(reason="padding")
        return
    magic = {Compression.GZIP: _GZIP, Compression.ZSTD: _ZSTD}.get(compression, b"")
    if not head.startswith(magic) or (compression is Compression.ZLIB and not first):
        kind = compression.name
        raise FormatError(f"bytes that are not {kind} {'come first' if first else 'follow a member'}")
    engine, block = _engine(head, compression, limits)
    sip = _LEAST_SIP if compression is Compression.ZSTD else _GZIP_SIP
    while not engine.eof:
        if not stored.fill():
            raise FormatError("the compressed file is cut short")
        part = stored.window[:sip]
        data = engine.decompress(part) if compression is Compression.ZSTD else engine.decompress(part, _PIECE)
        tail = len(engine.unused_data) + len(getattr(engine, "unconsumed_tail", b""))
        stored.consume(len(part) - tail)
        if compression is Compression.ZSTD:
            sip = min(2 * sip, _SIP, max(_LEAST_SIP, _PIECE * len(part) // max(1, len(data))))
        if data:
            stored.decoded += len(data)
            yield data
    yield stored.member(block=block)


def _engine(head: bytes, compression: Compression, limits: Limits) -> tuple[Any, bool]:
    """Return a decoder for one member, and whether the member may be a block."""
    if compression is not Compression.ZSTD:
        bits = 31 if compression is Compression.GZIP else zlib.MAX_WBITS
        return zlib.decompressobj(bits), compression is Compression.GZIP
    import zstandard

    facts = zstandard.get_frame_parameters(head)
    declared = facts.content_size not in (-1, zstandard.CONTENTSIZE_UNKNOWN)
    within = facts.window_size <= limits.zstd_window
    engine = zstandard.ZstdDecompressor(max_window_size=limits.stream_window).decompressobj()
    return engine, declared and within


def _zstd_error(compression: Compression) -> type[Exception]:
    if compression is not Compression.ZSTD:
        return zlib.error
    import zstandard

    return zstandard.ZstdError


def _is_skippable(head: bytes) -> bool:
    return len(head) >= 4 and head[0] & 0xF0 == 0x50 and head[1:4] == b"\x2a\x4d\x18"


def add_members(parts: Iterable[bytes | Member], framer: Framer, index: IndexBuilder, limits: Limits) -> bool:
    """Add each member as a block; return False as soon as one does not hold whole frames within the limits.

    Args:
        parts: what `decode_members` yields.
        framer: finds frames; it yields a frame with its last byte.
        index: takes the blocks, and is of no use after False.
        limits: of a block of several records, and of one.
    """
    most, longest = min(MOST_MEMBER, limits.block), limits.record + 16
    stops: list[NDArray[np.int64]] = []  # of the member under way
    size = 0
    ended: list[Member] = []

    def take(runs: Iterable[FrameRun]) -> bool:
        nonlocal size
        for run in runs:
            if run.reason is not None:
                return False  # bytes without a record cannot share a block with records
            if run.stops is not None:
                stops.append(run.stops + size)
            size += len(run.data)
        return size <= (most if sum(map(len, stops)) > 1 else longest)

    def close() -> bool:
        nonlocal size
        for member in ended:
            facts = {"stored_bytes": member.stored_bytes, "crc32c": member.crc32c}
            if not member.decoded_bytes:
                index.add_gap(**facts, decoded_bytes=0, reason=member.reason or "empty member")
                continue
            if not (member.block and stops and int(stops[-1][-1]) == size == member.decoded_bytes):
                return False
            ends = np.concatenate(stops).astype(np.uint32)
            index.add_block(**facts, decoded_bytes=size, frame_stop=ends)
            stops.clear()
            size = 0
        ended.clear()
        return True

    for part in parts:
        if isinstance(part, Member):
            ended.append(part)
        elif not (close() and take(framer.feed(part))):
            return False
    # A last line without its line feed ends before its member does.
    return take(framer.end()) and close() and not size
