"""Blocks of a shard: how one is checked and decoded, a diagnosis of damage, and a cache for lookups.

Promise: no payload leaves a block unless its stored bytes matched their CRC-32C, where they are compared, and
its part of `frame_stop` matched its own: `kernels.ShardIndex.open_block` compares both.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import CorruptBlockError, FormatError, ShardioError
from shardio.format import (
    TFRECORD_HEAD,
    TFRECORD_TAIL,
    Buffer,
    Compression,
    Framing,
    Limits,
    check_block,
    decompress,
)
from shardio.metadata import IndexHead, check_frames_part
from shardio.reader._files import ShardFiles

# Rows of a shard, ascending; and where payloads are: a buffer, and int64 starts and stops in it.
Rows: TypeAlias = "range | NDArray[np.int64]"
Placed: TypeAlias = "tuple[Any, NDArray[np.int64], NDArray[np.int64]]"

# Bytes before and behind a payload, -1 for the end of its line; and the least size of a frame.
_BOUNDS = {
    Framing.TFRECORD: (TFRECORD_HEAD, TFRECORD_TAIL, TFRECORD_HEAD + TFRECORD_TAIL),
    Framing.RAW: (0, 0, 0),
    Framing.LINES: (0, -1, 1),
    Framing.TAR_SAMPLE: (0, 0, 1),
}


def shard_index(
    head: IndexHead,
    frames: NDArray[np.uint32] | None,
    limits: Limits,
    *,
    verify: bool,
) -> kernels.ShardIndex:
    """Return what opens the blocks of a shard.

    Args:
        head: of its index, checked.
        frames: the `frame_stop` column; None where a block's part of it comes with the block.
        limits: upper bounds for decoding.
        verify: compare stored bytes with their checksums.
    """
    decodes = head.compression is not Compression.NONE and not head.stream
    return kernels.ShardIndex(
        head.block_stop,
        head.block_row_stop,
        head.block_decoded_bytes,
        head.block_frames_crc32c,
        frame_stops=frames,
        block_crcs=head.block_crc32c if verify else None,
        bounds=_BOUNDS[head.framing],
        decode=partial(_decode, head.compression, limits) if decodes else None,
    )


def _decode(compression: Compression, limits: Limits, stored: Buffer, size: int) -> Buffer:
    return decompress(stored, compression, size, limits=limits)


class WrongBlock(NamedTuple):
    """What is wrong with a block, or with some that cannot be read, and what can be used all the same.

    Attributes:
        first, stop: the blocks `[first, stop)`.
        frames, stored, decoding: why the part of `frame_stop` is wrong, why the stored bytes are not those
            that were written or cannot be read, and why they do not decode; None where that is not so.
        decoded: the decoded bytes of the block, None where there are none.
        stops: uint32 [rows], its part of `frame_stop`; None where that is wrong or was not read.
    """

    first: int
    stop: int
    frames: ShardioError | None = None
    stored: ShardioError | None = None
    decoding: ShardioError | None = None
    decoded: Buffer | None = None
    stops: NDArray[np.uint32] | None = None

    @property
    def error(self) -> ShardioError | None:
        """What readers raise."""
        return self.frames or self.stored or self.decoding


def diagnose(
    files: ShardFiles,
    column: NDArray[np.uint32] | None,
    number: int,
    stored: memoryview | None,
    part: memoryview | None,
) -> WrongBlock:
    """Diagnose a block that could not be opened; slow.

    Args:
        files: of the shard.
        column: all of `frame_stop`, or None.
        number: of the block.
        stored: from its first stored byte on; None where they were not read.
        part: its part of `frame_stop`; None for that of the column.
    """
    head = files.head
    (row, row_stop), (first, stop) = head.block_rows(number), head.block_bounds(number)
    places = {"url": files.data.url, "shard": files.key, "row": row, "start": first, "stop": stop}
    stops = decoded = frames = damage = decoding = None
    if part is not None:
        stops = np.frombuffer(part, "<u4").view(np.uint32)
    elif column is not None:
        stops = column[row:row_stop]
    if stops is not None:
        try:
            check_frames_part(head, number, stops, url=files.index.url)
        except FormatError as error:
            frames, stops = error.located(shard=files.key, row=row), None
    if stored is not None:
        stored = stored[: stop - first]
        try:
            if files.verify:
                check_block(stored, int(head.block_crc32c[number]))
        except CorruptBlockError as error:
            damage = error.located(**places)
        kind = Compression.NONE if head.stream else head.compression
        try:
            if row < row_stop:
                decoded = decompress(stored, kind, int(head.block_decoded_bytes[number]), limits=files.limits)
        except CorruptBlockError as error:
            decoding = error.located(**places)
    return WrongBlock(number, number + 1, frames, damage, decoding, decoded, stops)


def rows_between(rows: Rows, first: int, stop: int) -> Rows:
    """Return those of ascending rows that are among `first .. stop - 1`."""
    if isinstance(rows, range):
        return range(max(rows.start, first), min(rows.stop, stop))
    if rows[0] >= first and rows[-1] < stop:
        return rows
    # A few steps of Python's take less than one call of NumPy's.
    return rows[bisect_left(rows, first) : bisect_left(rows, stop)]


def rows_in(block: kernels.OpenBlock, rows: Rows, *, as_bytes: bool) -> Any:
    """Return, of those of ascending rows that are in a block, the payloads or where they are."""
    first = block.first_row
    rows = rows_between(rows, first, first + len(block))
    if as_bytes:
        return block.payloads(rows)
    if isinstance(rows, range):
        return (block.buffer, *block.places(rows.start, rows.stop))
    return (block.buffer, *block.places(first, first + len(block))[:, rows - first])


class DecodedBlocks:
    """The decoded blocks that lookups used last; safe to share among threads and with forked children.

    Nothing waits for its lock: where another thread holds it, or held it when this process was forked, a
    block is not kept.

    Args:
        max_bytes: that all of them together take, at most.
    """

    def __init__(self, max_bytes: int) -> None:
        self._most = max_bytes
        self._size = 0
        self._blocks: OrderedDict[tuple[bytes, int], kernels.OpenBlock] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, shard: bytes, number: int) -> kernels.OpenBlock | None:
        """Return a block of a shard, given by the digest of its index; None where it is not kept."""
        key = (shard, number)
        found = self._blocks.get(key)
        if found is not None and self._lock.acquire(blocking=False):
            try:
                if key in self._blocks:
                    self._blocks.move_to_end(key)
            finally:
                self._lock.release()
        return found

    def keep(self, shard: bytes, number: int, block: kernels.OpenBlock) -> None:
        """Keep a block, and forget those that were not used for longest."""
        if block.nbytes > self._most or not self._lock.acquire(blocking=False):
            return
        try:
            if (shard, number) not in self._blocks:
                self._blocks[shard, number] = block
                self._size += block.nbytes
                while self._size > self._most:
                    _, oldest = self._blocks.popitem(last=False)
                    self._size -= oldest.nbytes
        finally:
            self._lock.release()
