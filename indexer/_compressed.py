"""Compressed objects, decoded once in bounded memory: their members as blocks, or the whole as a stream.

Members are gzip members, Zstandard frames, or one ZLIB stream. Where every member holds whole frames within
the limits, members become blocks and records can be looked up; otherwise the object is a stream.  Both are
tried in one pass.

Salvage steps over a damaged member, where nothing of it was yielded yet: the next one is the first that
begins with the magic, decodes, has the checksum that it says, and is followed by another one or by the end.
A stream goes up to the first damage, since a decoder cannot step over that; blocks can.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import FormatError, StorageError
from shardio.format import ZSTD_HEAD, Compression, Limits, explain_zstd
from shardio.metadata import IndexBuilder
from shardio_indexer._blocks import BlockCutter, Bytes, Framer, FrameRun, GapFound, SalvageOptions

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PIECE = 1 << 20
# A few bytes of Zstandard can stand for many: it is fed what should come to a piece, by what came before.
_SIP, _LEAST_SIP = 4 << 10, 1 << 6
_GZIP_SIP = 64 << 10
# A member of more is a stream: as a block it would be decoded whole for each record.
MOST_MEMBER = 4 << 20
# Stored bytes that are looked at for one member, and that may be between two.
_LOOK = 8 << 20
_MOST_DAMAGE = 32 << 20
# A reader decodes about a mebibyte at a time; where that fails, it has none of it.
_DOUBTFUL = 2 << 20


class GzipMember(NamedTuple):
    """The end of a member.

    Attributes:
        stored_bytes, crc32c: of its stored bytes.
        decoded_bytes: what it decodes to.
        reason: why it can hold no records, or None.
        block: it may be a block: its size is declared, its window within the limit.
        stepped_over: it is damage, and other members follow.
    """

    stored_bytes: int
    crc32c: int
    decoded_bytes: int
    reason: str | None = None
    block: bool = True
    stepped_over: bool = False


def is_compressed(head: bytes) -> Compression | None:
    """Tell from the first bytes whether an object is gzip or Zstandard; None where they say nothing."""
    if head.startswith(_GZIP):
        return Compression.GZIP
    return Compression.ZSTD if head.startswith(_ZSTD) or _is_skippable(head) else None


def decode_members(
    pieces: Iterable[bytes | memoryview],
    compression: Compression,
    salvage: SalvageOptions,
    *,
    step_over: bool = False,
) -> Iterator[bytes | GzipMember]:
    """Yield decoded bytes as they come, and a `GzipMember` where one ends.

    Args:
        pieces: the stored bytes.
        compression: of them.
        salvage: leave damage out.
        step_over: a damaged member may be left out alone, and not all that follows it too.

    Raises:
        FormatError: the bytes do not decode, end in the middle, or others follow; `start` is a stored offset.
    """
    errors = (FormatError, zlib.error, _zstd_error(compression))
    stored = _Lookahead(pieces, keep=salvage.enabled)
    members = 0
    while head := stored.peek(ZSTD_HEAD):
        # What may yet turn out to be damaged is held, as far as it could be a block.
        held: list[bytes] = []
        try:
            for part in _decode_one(stored, head, compression, salvage.limits, first=not members):
                if isinstance(part, GzipMember):
                    yield from held
                    yield part
                    break
                held.append(part)
                stored.keeps = stored.keeps and stored.decoded <= MOST_MEMBER
                if not stored.keeps:
                    yield from _all_but_last(held, _DOUBTFUL if salvage.enabled else 0)
        except errors as error:
            what = error.what if isinstance(error, FormatError) else "a compressed file does not decode"
            known = None
            if compression is Compression.ZSTD:
                known = explain_zstd(head, salvage.limits.stream_window, error)
            if isinstance(known, StorageError) or (known is not None and not salvage.enabled):
                raise known.located(start=stored.begin) from error
            if known is not None:
                what = known.what
            if not salvage.enabled:
                raise FormatError(
                    what,
                    start=stored.offset,
                    found=None if isinstance(error, FormatError) else str(error),
                    advice="fetch it again, or index what decodes with salvage=True",
                ) from error
            if stored.keeps and step_over and _find_next(stored, compression, salvage.limits):
                yield stored.member(reason=f"damage: {what}", stepped_over=True)
            else:
                # What was decoded just before an error is not returned by every decoder.
                yield from _all_but_last(held, 0 if isinstance(error, FormatError) else _DOUBTFUL)
                while stored.fill():
                    stored.consume(len(stored.window))
                yield stored.member(reason=f"damage: {what}")
        members += 1


def _all_but_last(held: list[bytes], size: int) -> Iterator[bytes]:
    """Yield, and take out, what was held but for so many bytes at its end, or somewhat more."""
    count = sum(map(len, held))
    while held and count - len(held[0]) >= size:
        count -= len(held[0])
        yield held.pop(0)


class _Lookahead:
    """Stored bytes, looked at before they are taken.

    Attributes:
        window: the next bytes.
        offset: bytes taken.
        begin: where the member under way begins.
        decoded: what the member under way decoded to.
        keeps: the stored bytes of the member under way are kept, and `back` is possible.
    """

    def __init__(self, pieces: Iterable[bytes | memoryview], *, keep: bool = False) -> None:
        self.window = memoryview(b"")
        self.offset = self.decoded = 0
        self.keeps = self._keep = keep
        self._kept: list[memoryview] = []
        self._pieces = iter(pieces)
        self.begin = self._crc = 0

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
        if self.keeps:
            self._kept.append(self.window[:size])
            self.keeps = self.taken + size <= _LOOK
        self.offset += size
        self.window = self.window[size:]

    @property
    def taken(self) -> int:
        """How many bytes of the member under way were taken."""
        return self.offset - self.begin

    def back(self) -> None:
        """Put back what was taken of the member under way."""
        self.window = memoryview(b"".join([*self._kept, self.window]))
        self._kept.clear()
        self.offset, self._crc, self.decoded, self.keeps = self.begin, 0, 0, False

    def member(
        self, *, reason: str | None = None, block: bool = True, stepped_over: bool = False
    ) -> GzipMember:
        """Return what was taken since the last call as a member."""
        found = GzipMember(self.taken, self._crc, self.decoded, reason, block, stepped_over)
        self.begin, self._crc, self.decoded = self.offset, 0, 0
        self._kept.clear()
        self.keeps = self._keep
        return found


def _find_next(stored: _Lookahead, compression: Compression, limits: Limits) -> bool:
    """Take the damaged member under way, up to the next whole one; return False where none is found."""
    stored.back()
    magic = _GZIP if compression is Compression.GZIP else _ZSTD
    size = 1  # the member that begins here is the damaged one
    while stored.taken <= _MOST_DAMAGE:
        stored.consume(min(size, len(stored.window)))
        seen = stored.peek(_LOOK)
        size = seen.find(magic)
        if size < 0:
            if len(seen) < _LOOK:
                return False
            size = len(seen) - len(magic) + 1
        elif size:
            continue
        elif _is_whole(seen, compression, limits):
            return True
        else:
            size = 1
    return False


def _is_whole(data: bytes, compression: Compression, limits: Limits) -> bool:
    """Tell whether a member begins here that decodes, and is followed by another one or the end."""
    try:
        engine, block = _engine(data[:ZSTD_HEAD], compression, limits)
        if compression is Compression.ZSTD:
            return block and _decodes_as_declared(engine, data)
        engine.decompress(data, MOST_MEMBER + 1)
    except (FormatError, zlib.error, _zstd_error(compression)):
        return False
    return bool(engine.eof) and _member_follows(engine.unused_data, compression)


def _decodes_as_declared(engine: Any, data: bytes) -> bool:
    """Decode the Zstandard frame at the beginning; tell whether it holds what it declares, which is little.

    The library compares the sizes at the end of the frame, and a frame of a few megabytes can hold terabytes.
    """
    import zstandard

    declared = zstandard.get_frame_parameters(data).content_size
    place = decoded = 0
    sip = _LEAST_SIP
    while declared <= MOST_MEMBER and not engine.eof and place < len(data):
        part = data[place : place + sip]
        size = len(engine.decompress(part))
        place, decoded = place + len(part), decoded + size
        if decoded > declared:
            return False
        sip = _next_sip(sip, len(part), size)
    # What follows the frame within the last part is all that the decoder knows of.
    return bool(engine.eof) and _member_follows(engine.unused_data + data[place:], Compression.ZSTD)


def _next_sip(sip: int, stored: int, decoded: int) -> int:
    """Return how many bytes of Zstandard to decode next, after so many that decoded to so many."""
    return min(2 * sip, _SIP, max(_LEAST_SIP, _PIECE * stored // max(1, decoded)))


def _member_follows(rest: bytes, compression: Compression) -> bool:
    """Tell whether these bytes are the beginning of another member, or none."""
    if compression is Compression.GZIP:
        return not rest or rest.startswith(_GZIP)
    return not rest or rest.startswith(_ZSTD) or _is_skippable(rest)


def _decode_one(
    stored: _Lookahead, head: bytes, compression: Compression, limits: Limits, *, first: bool
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
            sip = _next_sip(sip, len(part), len(data))
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

    Attributes:
        damage: stored bytes that were left out, if the members are blocks.
        broken: where the stream ends before the object does, or None.
    """

    def __init__(
        self,
        framer: Framer,
        members: MemberBlocks,
        cutter: BlockCutter,
    ) -> None:
        self.damage: list[GapFound] = []
        self.broken: GapFound | None = None
        self._framer = framer
        self._members = members
        self._cutter = cutter
        self._ended: list[GzipMember] = []
        self._place = 0
        self._cut = False

    def feed(self, data: Bytes) -> None:
        """Take decoded bytes."""
        self._end_members()
        self._feed(self._framer.feed(data))

    def end_member(self, member: GzipMember, size: int) -> None:
        """Take the end of a member of an object of `size` bytes."""
        if member.reason is not None and member.reason.startswith("damage"):
            stop = self._place + member.stored_bytes
            self.damage.append(GapFound(self._place, stop, member.reason))
            self._cut = not member.stepped_over
            if member.stepped_over and self.broken is None:
                # What was begun in front of it has no end.
                self._cutter.add(FrameRun(b"", reason=member.reason))
                self.broken = GapFound(self._place, size, member.reason)
        self._place += member.stored_bytes
        self._ended.append(member)

    def finish(self) -> None:
        """Close what is open."""
        # A last line without its line feed ends before its member does.
        self._feed(self._framer.end(cut=self._cut))
        self._end_members()
        self._cutter.finish()

    def _feed(self, runs: Iterable[FrameRun]) -> None:
        for run in runs:
            self._members.add(run)
            if self.broken is None:
                self._cutter.add(run)

    def _end_members(self) -> None:
        for member in self._ended:
            self._members.end_member(member)
        self._ended.clear()
