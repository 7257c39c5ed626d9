"""Compressed objects, decoded once in bounded memory: their members as blocks, or the whole as a stream.

Members are gzip members, Zstandard frames, or one ZLIB stream. Where every member holds whole frames within
the limits, members become blocks and records can be looked up; otherwise the object is a stream.  Both are
tried in one pass.  A damaged object is refused: a decoder cannot tell where it may go on.
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
from shardio_indexer._blocks import BlockCutter, Framer, FrameRun

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PIECE = 1 << 20
# A few bytes of Zstandard can stand for many: it is fed what should come to a piece, by what came before.
_SIP, _LEAST_SIP = 4 << 10, 1 << 6
_GZIP_SIP = 64 << 10
# A member of more is a stream: as a block it would be decoded whole for each record.
MOST_MEMBER = 4 << 20


class GzipMember(NamedTuple):
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
) -> Iterator[bytes | GzipMember]:
    """Yield decoded bytes as they come, and a `GzipMember` where one ends.

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

    def member(self, *, reason: str | None = None, block: bool = True) -> GzipMember:
        """Return what was taken since the last call as a member."""
        found = GzipMember(self.offset - self.begin, self._crc, self.decoded, reason, block)
        self.begin, self._crc, self.decoded = self.offset, 0, 0
        return found


def _decode_one(
    stored: _StoredBytes, head: bytes, compression: Compression, limits: Limits, *, first: bool
) -> Iterator[bytes | GzipMember]:
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


class MemberBlocks:
    """Members as blocks, as long as each holds whole frames.

    Args:
        index: takes the blocks as their frames become known; of use where `finish` says so.
        limits: of a block of several records, and of one.

    Attributes:
        possible: no member has broken the rule so far.
    """

    def __init__(self, index: IndexBuilder, limits: Limits) -> None:
        self.possible = True
        self._index = index
        self._most = min(MOST_MEMBER, limits.block)
        self._longest = limits.record + 16
        self._members: list[GzipMember] = []  # ended, with frames that may not have been seen yet
        self._stops = np.empty(0, np.int64)  # decoded offsets, of the members that are not blocks yet
        self._begin = 0  # decoded offset of the first of them
        self._seen = 0  # decoded bytes in all runs

    def add(self, run: FrameRun) -> None:
        """Take what the framer found."""
        if not self.possible:
            return
        if run.reason is not None:
            # Bytes without a record cannot share a block with records.
            self._give_up()
            return
        if run.stops is not None:
            self._stops = np.concatenate([self._stops, run.stops + self._seen])
        self._seen += len(run.data)
        self._settle()
        if self._seen - self._begin > self._most and len(self._stops) > 1:
            self._give_up()

    def end_member(self, member: GzipMember) -> None:
        """Note that a member ended; its frames may be seen later."""
        if not self.possible:
            return
        if member.decoded_bytes and (member.reason is not None or not member.block):
            self._give_up()
            return
        self._members.append(member)
        self._settle()

    def finish(self) -> bool:
        """Tell whether all members became blocks."""
        return self.possible and not self._members and self._begin == self._seen

    def _settle(self) -> None:
        """Turn into blocks the members whose frames are all known."""
        known = int(self._stops[-1]) if len(self._stops) else self._begin
        while self._members:
            member = self._members[0]
            stop = self._begin + member.decoded_bytes
            if stop > known:
                return
            count = int(np.searchsorted(self._stops, stop, side="right")) if member.decoded_bytes else 0
            stops = self._stops[:count]
            if member.decoded_bytes and (not count or int(stops[-1]) != stop):
                self._give_up()
                return
            if member.decoded_bytes > (self._most if count > 1 else self._longest):
                self._give_up()
                return
            self._add(member, (stops - self._begin).astype(np.uint32))
            self._stops = self._stops[count:]
            self._begin = stop
            del self._members[0]

    def _add(self, member: GzipMember, stops: NDArray[np.uint32]) -> None:
        if len(stops):
            self._index.add_block(
                stored_bytes=member.stored_bytes,
                decoded_bytes=member.decoded_bytes,
                crc32c=member.crc32c,
                frame_stop=stops,
            )
        else:
            self._index.add_gap(
                stored_bytes=member.stored_bytes,
                decoded_bytes=0,
                crc32c=member.crc32c,
                reason=member.reason or "empty member",
            )

    def _give_up(self) -> None:
        self.possible = False
        self._members = []
        self._stops = np.empty(0, np.int64)


class DualScan:
    """Takes what `decode_members` yields.

    Args:
        framer: finds frames.
        members: take them as blocks.
        cutter: cuts the stream.
    """

    def __init__(self, framer: Framer, members: MemberBlocks, cutter: BlockCutter) -> None:
        self._framer = framer
        self._members = members
        self._cutter = cutter
        self._ended: list[GzipMember] = []

    def add(self, part: bytes | GzipMember) -> None:
        """Take decoded bytes, or the end of a member, whose frames are seen with the bytes that follow."""
        if isinstance(part, GzipMember):
            self._ended.append(part)
        else:
            self._end_members()
            self._feed(self._framer.feed(part))

    def finish(self) -> None:
        """Close what is open."""
        # A last line without its line feed ends before its member does.
        self._feed(self._framer.end())
        self._end_members()
        self._cutter.finish()

    def _feed(self, runs: Iterable[FrameRun]) -> None:
        for run in runs:
            self._members.add(run)
            self._cutter.add(run)

    def _end_members(self) -> None:
        for member in self._ended:
            self._members.end_member(member)
        self._ended.clear()
