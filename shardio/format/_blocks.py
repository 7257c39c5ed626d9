"""Blocks: runs of whole frames, the unit of compression, checksum and I/O.

Bytes in, values out: a `BlockBuilder` turns payloads into blocks, `check_block` compares stored bytes with
their checksum, and `decompress` decodes them.  Where blocks are cut depends on the payloads and the target
alone, so the same records give the same shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import CorruptBlockError
from shardio.format._compression import Compression, Compressor
from shardio.format._framing import TFRECORD_HEAD, TFRECORD_TAIL, Buffer
from shardio.format._limits import DEFAULT_LIMITS, Limits

DEFAULT_BLOCK_BYTES = 64 << 10
FRAME_EXTRA = TFRECORD_HEAD + TFRECORD_TAIL

DAMAGE_ADVICE = "`shardio verify` lists all damage and says what to do about it"


class Block(NamedTuple):
    """One finished block.

    Attributes:
        stored: the bytes that go into the shard.
        decoded_bytes: size before compression.
        frame_stop: uint32, end of each frame in the decoded bytes.
        crc32c: of the stored bytes.
        decoded_crc32c: of the bytes before compression.
    """

    stored: bytes
    decoded_bytes: int
    frame_stop: NDArray[np.uint32]
    crc32c: int
    decoded_crc32c: int


class BlockBuilder:
    """Gather payloads and cut them into TFRecord blocks.

    A block is closed before the payload that would lift it over `block_bytes` decoded bytes; a payload
    larger than that becomes a block of its own.

    Attributes:
        fits: takes a payload and appends it, where there is nothing to decide; else returns False and takes
            nothing. A writer of many small records may ask it itself before it calls `add`.
        fits_many: takes payloads of a list, from a number on, up to the first for which there is something to
            decide; returns the number of that one.
    """

    def __init__(
        self,
        *,
        compression: Compression = Compression.NONE,
        level: int | None = None,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        # What does not compress grows by less than a thousandth, and must stay within a reader's limit.
        most = limits.block if compression is Compression.NONE else limits.block - (limits.block >> 8)
        if not 1 <= block_bytes <= most:
            raise ValueError(f"block_bytes={block_bytes} must be between 1 and {most}")
        self._compressor = Compressor(compression, level)
        self._target = block_bytes
        self._max_record = limits.record
        self._frames = kernels.FrameBuffer(min(block_bytes, limits.record + FRAME_EXTRA))
        self.fits: Callable[[bytes], bool] = self._frames.add
        self.fits_many: Callable[[list[bytes], int], int] = self._frames.add_many

    @property
    def rows(self) -> int:
        """Number of records that are not in a block yet."""
        return self._frames.rows

    def add(self, payload: bytes) -> Block | None:
        """Take one payload; return the block that it closed, if any.

        Raises:
            ValueError: the payload is over the limit; nothing was taken.
        """
        if self.fits(payload):
            return None
        size = len(payload)
        if size > self._max_record:
            raise ValueError(f"a record of {size} bytes is over the limit of {self._max_record} bytes")
        block = self.flush() if self._frames.size + size + FRAME_EXTRA > self._target else None
        self._frames.force(payload)
        return block

    def flush(self) -> Block | None:
        """Close the block that is being built; None when it is empty."""
        if not self._frames.rows:
            return None
        decoded, frame_stop, crc32c = self._frames.take()
        stored = self._compressor.compress(decoded)
        stored_crc32c = crc32c if stored is decoded else kernels.crc32c(stored)
        return Block(stored, len(decoded), frame_stop, stored_crc32c, crc32c)


def check_block(stored: Buffer, crc32c: int) -> None:
    """Raise `CorruptBlockError` unless the CRC-32C of the stored bytes is the one in the index."""
    found = kernels.crc32c(stored)
    if found != crc32c:
        raise CorruptBlockError(
            "a block does not match its checksum",
            expected=f"CRC-32C {crc32c:#010x}",
            found=f"{found:#010x}",
            advice=DAMAGE_ADVICE,
        )
