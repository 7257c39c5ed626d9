"""One shard, read once from the first byte to the last: its index comes out.

Memory holds a few pieces of the shard and some thirty bytes a block; what is kept of each record is spooled
to a temporary file once it is long.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from shardio import kernels
from shardio.adoption._external_index import codewithgpu_framer
from shardio.catalog import writer_name
from shardio.errors import FormatError, ShardioError
from shardio.format import DEFAULT_BLOCK_BYTES, DEFAULT_LIMITS, Compression, Framing, Limits
from shardio.metadata import IndexBuilder, IndexHead
from shardio.sources import sniff
from shardio.storage import DataFile, Store, temporary_files
from shardio_indexer._blocks import (
    BlockCutter,
    Bytes,
    Check,
    Framer,
    GapFound,
    SalvageOptions,
    least_block_bytes,
)
from shardio_indexer._compressed import add_members, decode_members
from shardio_indexer._lines import LineContent, LineFramer
from shardio_indexer._offsets import MdsFramer
from shardio_indexer._sniff import HEAD_BYTES, ShardKind
from shardio_indexer._tar import TarFramer
from shardio_indexer._tfrecord import TFRecordFramer

_HELD = 8 << 20


@dataclass(frozen=True)
class SpooledIndex:
    """A finished index.

    Attributes:
        data: its bytes, or the temporary file that holds them.
        head: of the index, as a reader will find it.
    """

    data: bytes | Path
    head: IndexHead

    def read(self) -> bytes:
        """Return its bytes, however many."""
        return self.data.read_bytes() if isinstance(self.data, Path) else self.data

    def discard(self) -> None:
        """Remove the temporary file, if there is one that was not moved to its place."""
        if isinstance(self.data, Path):
            self.data.unlink(missing_ok=True)


def rows_file() -> IO[bytes]:
    """Return a file for a column of rows, in memory while it is short; gone when it is closed."""
    return tempfile.SpooledTemporaryFile(max_size=_HELD)


def spool_index(index: IndexBuilder) -> SpooledIndex:
    """Return the finished index, which the caller discards after storing it."""
    if index.index_bytes <= _HELD:
        done = index.finish()
        return SpooledIndex(done.data, done.head)
    number, name = tempfile.mkstemp(suffix=".shardidx")
    try:
        with os.fdopen(number, "wb") as file:
            done = index.finish_to(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    return SpooledIndex(Path(name), done.head)


_LOCAL_PIECE = 4 << 20
_REMOTE_PIECE = 16 << 20
_MOST_TAKEN = 2
_LINES: dict[str, LineContent] = {"jsonl": "json", "text": "text"}
_CHECKS: dict[str, Check] = {"crc32c": "crc32c", "crc32": "crc32", "none": "none"}


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """How shards are scanned.

    Attributes:
        format: what the shards are; None for what is detected. A key of `FORMATS`.
        compression: of the objects, or None to find out.
        record_crc: the checksums that writers of TFRecord used: "crc32c", "crc32" or "none".
        trust: believe lengths and do not compute the checksums of records.
        salvage: leave damage out; bytes that do not decompress are refused all the same.
        lines: what a reader makes of a line, "json", "text" or "bytes"; None for what the format says.
        block_bytes: target size of a block.
        writer: program and version that the index names; "" for this one.
        limits: what is too large to believe.
    """

    format: str | None = None
    compression: Compression | None = None
    record_crc: str = "crc32c"
    trust: bool = False
    salvage: bool = False
    lines: LineContent | None = None
    block_bytes: int = DEFAULT_BLOCK_BYTES
    writer: str = ""
    limits: Limits = DEFAULT_LIMITS


@dataclass(frozen=True)
class ScanResult:
    """What a scan found.

    Attributes:
        index: the finished index, which the caller discards.
        skipped: damage that was left out, in decoded offsets.
        notes: what deserves attention, with how often it was seen.
    """

    index: SpooledIndex
    skipped: tuple[GapFound, ...] = ()
    notes: Counter[str] = field(default_factory=Counter)


def scan_shard(
    store: Store,
    key: str,
    uuid: bytes,
    options: ScanOptions,
    *,
    size: int | None = None,
    etag: str = "",
    hashes: Sequence[tuple[str, str]] = (),
    show: Callable[[int], None] | None = None,
) -> ScanResult:
    """Read a shard once and return its index.

    Args:
        store, key: its address.
        uuid: 16 bytes, of the shard.
        options: see `ScanOptions`.
        size, etag: of the object, which must not change meanwhile.
        hashes: names of `hashlib` and hexadecimal digests that the stored bytes must have.
        show: called with the number of stored bytes of each piece.

    Raises:
        FormatError: its kind is unknown, or it is damaged; with address and reason.
        StorageError: the environment failed.
    """
    try:
        with (
            temporary_files(),
            store.open(key, size=size, etag=etag) as file,
            rows_file() as frames,
        ):
            head = bytes(file.read(0, min(HEAD_BYTES, file.size)))
            strict = not options.salvage and options.record_crc == "crc32c"
            if options.format is not None and options.compression is not None:
                kind = ShardKind(options.format, options.compression)
            else:
                kind = sniff(head, key, options.format, strict=strict)
            framer = _framer(store, key, kind, options)
            pieces = _StoredPieces(file, _LOCAL_PIECE if store.is_local else _REMOTE_PIECE, hashes, show)
            build = partial(
                IndexBuilder,
                uuid=uuid,
                framing=framer.framing,
                record_crc=framer.record_crc,
                compression=kind.compression,
                writer=options.writer or writer_name(),
                limits=options.limits,
                frames=frames,
            )
            index = build()
            if kind.compression is Compression.NONE:
                return _cut(pieces, framer, index, options, file.size)
            pieces.summed = True
            if kind.framing is not Framing.TAR_SAMPLE and kind.compression is not Compression.ZLIB:
                members = decode_members(pieces, kind.compression, options.limits)
                if add_members(members, framer, index, options.limits):
                    index.crc32c = pieces.crc32c
                    return _result(index, [], framer)
                pieces.rewind()
                frames.seek(0)
                frames.truncate()
                framer, index = _framer(store, key, kind, options), build()
            parts = decode_members(pieces, kind.compression, options.limits)
            decoded = (part for part in parts if isinstance(part, bytes))
            return _cut(decoded, framer, index, options, file.size, stream=pieces)
    except ShardioError as error:
        raise error.located(url=store.url_of(key)) from error


class _StoredPieces:
    """The stored bytes, with their checksum; the next piece is under way while one is worked on.

    Attributes:
        summed: compute `crc32c`; of shards without compression it comes out of the checksums of their blocks.
        crc32c: of the bytes so far.
    """

    summed = False

    def __init__(
        self,
        file: DataFile,
        step: int,
        hashes: Sequence[tuple[str, str]],
        show: Callable[[int], None] | None,
    ) -> None:
        self.crc32c = 0
        self._hashes = [(hashlib.new(name, usedforsecurity=False), wanted) for name, wanted in hashes]
        self._file = file
        self._step = step
        self._show = show
        self._rest = file.pieces(step)
        self._taken: list[memoryview] = []  # the first pieces

    def __iter__(self) -> Iterator[memoryview]:
        while (piece := next(self._rest, None)) is not None:
            if len(self._taken) < _MOST_TAKEN:
                self._taken.append(piece)
            if self.summed:
                self.crc32c = kernels.crc32c(piece, self.crc32c)
            for digest, _ in self._hashes:
                digest.update(piece)
            yield piece
            if self._show is not None:
                self._show(len(piece))
        for digest, wanted in self._hashes:
            if digest.hexdigest() != wanted:
                raise FormatError(
                    f"the shard does not match its {digest.name}",
                    expected=wanted,
                    found=digest.hexdigest(),
                    advice="fetch the shard again",
                )

    def rewind(self) -> None:
        """Restart from the first byte; fetch it again if more than one piece was consumed."""
        many = len(self._taken) == _MOST_TAKEN
        self._rest = self._file.pieces(self._step) if many else itertools.chain(self._taken, self._rest)
        self.crc32c, self._taken = 0, []


def _cut(
    pieces: Iterable[Bytes],
    framer: Framer,
    index: IndexBuilder,
    options: ScanOptions,
    size: int,
    *,
    stream: _StoredPieces | None = None,
) -> ScanResult:
    """Cut decoded bytes into blocks; of a stream, `stream` are the stored ones."""
    block_bytes = least_block_bytes(options.block_bytes, size)
    cutter = BlockCutter(index, block_bytes=block_bytes, limits=options.limits)
    for run in itertools.chain(itertools.chain.from_iterable(map(framer.feed, pieces)), framer.end()):
        cutter.add(run)
    cutter.finish()
    index.crc32c = cutter.crc32c
    if stream is not None:
        index.mark_stream(stored_bytes=size, crc32c=stream.crc32c)
    return _result(index, cutter.gaps, framer)


def _result(index: IndexBuilder, gaps: list[GapFound], framer: Framer) -> ScanResult:
    return ScanResult(
        index=spool_index(index),
        skipped=tuple(gap for gap in gaps if gap.reason.startswith("damage")),
        notes=framer.notes,
    )


def _framer(store: Store, key: str, kind: ShardKind, options: ScanOptions) -> Framer:
    salvage = SalvageOptions(enabled=options.salvage, limits=options.limits)
    check = _CHECKS[options.record_crc]
    framing = kind.framing
    if kind.format == "mds":
        return MdsFramer(options.limits)
    if framing is Framing.RAW:
        return codewithgpu_framer(store, key, options.limits)
    if framing is Framing.TFRECORD:
        return TFRecordFramer(check=check, trust=options.trust, salvage=salvage)
    if framing is Framing.TAR_SAMPLE:
        return TarFramer(salvage=salvage)
    return LineFramer(content=options.lines or _LINES[kind.format], limits=options.limits)
