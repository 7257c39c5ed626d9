"""How a record is framed, and where the payload is in its frame.

A frame is one record as it is in a shard's decoded bytes.  The index holds where frames stop; this
module turns frame bounds into payload bounds, whole columns at a time.  The numbers of framings and checksums
are those of `protos/shardio/v1/index.proto`; a test compares them, so that this room needs no protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview

# u64 length and u32 masked CRC-32C of it, before the payload; u32 masked CRC-32C of the payload, after it.
# https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
TFRECORD_HEAD = 12
TFRECORD_TAIL = 4


class Framing(IntEnum):
    """How one record is in the shard's decoded bytes."""

    TFRECORD = 1
    RAW = 2
    LINES = 3
    TAR_SAMPLE = 4


class RecordCrc(IntEnum):
    """What the two checksums of a TFRECORD frame are."""

    ABSENT = 0  # framings without checksums of their own
    CRC32C = 1
    CRC32 = 2
    UNCHECKED = 3


def payload_bounds(
    framing: Framing,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    tails: Sequence[bytes] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    r"""Return starts and stops of the payloads of frames.

    Args:
        framing: any but `TAR_SAMPLE`, whose payload is a mapping and not a run of bytes.
        starts: int64, first byte of each frame.
        stops: int64, one past the last byte of each frame.
        tails: for `LINES`, the last (at most two) bytes of each frame: the line ending `\n` or `\r\n`
            is not part of the payload, and the last line of a file may lack it.
    """
    if framing is Framing.TFRECORD:
        return starts + TFRECORD_HEAD, stops - TFRECORD_TAIL
    if framing is Framing.LINES:
        if tails is None:
            raise TypeError("payload bounds of lines need the last bytes of each frame")
        cut = [2 if tail == b"\r\n" else tail.endswith(b"\n") for tail in tails]
        return starts, stops - np.asarray(cut, np.int64)
    return starts, stops
