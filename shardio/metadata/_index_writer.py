"""Building an index: blocks in, the bytes of the sidecar out.

Where the caller lends files for what is held of each row, memory does not grow with the rows.
"""

from __future__ import annotations

import io
import shutil
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import IO

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Compression, Framing, Limits, RecordCrc
from shardio.metadata._container import PackedColumn, ending, pack_head
from shardio.metadata._index import INDEX, IndexHead, parse_head

_COPY = 1 << 20


@dataclass(frozen=True)
class FinishedIndex:
    """An index, as it is stored and as a reader will find it.

    Attributes:
        data: the whole index file; empty where it was written to a file of the caller's.
        head: parsed from what was written, so that what no reader would take is refused here.
    """

    data: bytes
    head: IndexHead


class IndexBuilder:
    """Gather blocks in order; `finish` returns the index.

    Holds 28 bytes a block and 4 bytes a row; a file takes what is of rows.

    Args:
        uuid: 16 bytes, of the shard.
        framing, record_crc, compression: of the shard.
        writer: program and version, for people.
        frames: an open, empty file, such as a temporary one, that takes the ends of frames; `finish_to` then.
        limits: of an index and its header; one that no reader would take is refused.
    """

    def __init__(
        self,
        *,
        uuid: bytes,
        framing: Framing = Framing.TFRECORD,
        record_crc: RecordCrc | None = None,
        compression: Compression = Compression.NONE,
        writer: str = "",
        frames: IO[bytes] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.uuid = uuid
        self.framing = framing
        if record_crc is None:
            record_crc = RecordCrc.CRC32C if framing is Framing.TFRECORD else RecordCrc.ABSENT
        self.record_crc = record_crc
        self.compression = compression
        self.writer = writer
        self.stored_bytes = 0
        self.decoded_bytes = 0
        self.rows = 0
        self.crc32c = 0
        self._gaps: dict[int, str] = {}
        self._stream = False
        self._stops = array("Q")
        self._row_stops = array("Q")
        self._decoded = array("I")
        self._crcs = array("I")
        self._frame_crcs = array("I")
        self._frames = io.BytesIO() if frames is None else frames
        self._frames_crc32c = 0
        self._limits = limits

    @property
    def blocks(self) -> int:
        """Number of blocks so far."""
        return len(self._stops)

    def add_block(
        self,
        *,
        stored_bytes: int,
        decoded_bytes: int,
        crc32c: int,
        frame_stop: NDArray[np.uint32],
    ) -> None:
        """Take the next block.

        Args:
            stored_bytes, decoded_bytes: its sizes.
            crc32c: of its stored bytes.
            frame_stop: uint32, ends of its frames in its decoded bytes.

        Raises:
            FormatError: there are more rows than an index may hold.
        """
        self.add_blocks(
            stored_bytes=[stored_bytes],
            decoded_bytes=[decoded_bytes],
            crc32c=[crc32c],
            rows=[len(frame_stop)],
            frame_stop=frame_stop,
        )

    def add_blocks(
        self,
        *,
        stored_bytes: Sequence[int],
        decoded_bytes: Sequence[int],
        crc32c: Sequence[int],
        rows: Sequence[int],
        frame_stop: NDArray[np.uint32],
    ) -> None:
        """Take the next blocks: for each what `add_block` takes, and how many rows it has.

        The ends of frames of all blocks are one after another in one array.

        Raises:
            FormatError: there are more rows than an index may hold.
        """
        frames = np.ascontiguousarray(frame_stop, dtype="<u4")
        stops = list(accumulate(stored_bytes, initial=self.stored_bytes))
        row_stops = list(accumulate(rows, initial=self.rows))
        self.stored_bytes, self.rows = stops[-1], row_stops[-1]
        self.decoded_bytes += sum(decoded_bytes)
        self._check_size(self.index_bytes)
        cuts = [(a - row_stops[0], b - row_stops[0]) for a, b in pairwise(row_stops)]
        self._stops.extend(stops[1:])
        self._row_stops.extend(row_stops[1:])
        self._decoded.extend(decoded_bytes)
        self._crcs.extend(crc32c)
        self._frame_crcs.extend([kernels.crc32c(frames[a:b]) for a, b in cuts])
        self._frames_crc32c = kernels.crc32c(frames, self._frames_crc32c)
        self._frames.write(frames.data)

    def add_gap(self, *, stored_bytes: int, decoded_bytes: int, crc32c: int, reason: str) -> None:
        """Take the next block, which holds no rows, and why."""
        self._gaps[self.blocks] = reason
        self.add_block(
            stored_bytes=stored_bytes,
            decoded_bytes=decoded_bytes,
            crc32c=crc32c,
            frame_stop=np.empty(0, np.uint32),
        )

    def mark_stream(self, *, stored_bytes: int, crc32c: int) -> None:
        """Say, after the last block, that they describe decoded bytes; these two are of the object."""
        self._stream = True
        self.stored_bytes, self.crc32c = stored_bytes, crc32c

    def _check_size(self, size: int) -> None:
        if size > self._limits.index:
            raise FormatError(
                "the index of a shard would be larger than a reader takes",
                expected=f"at most {self._limits.index} bytes",
                found=f"{size} bytes for {self.rows} rows or more",
                advice="cut the records into several shards: an index holds 4 bytes for each",
            )

    @property
    def index_bytes(self) -> int:
        """About how long the index will be."""
        return 28 * self.blocks + 4 * self.rows

    def finish(self) -> FinishedIndex:
        """Return the index, as bytes."""
        file = io.BytesIO()
        return replace(self.finish_to(file), data=file.getvalue())

    def finish_to(self, file: IO[bytes]) -> FinishedIndex:
        """Write the index to a file that is open and empty."""
        values = {
            "uuid": np.frombuffer(self.uuid, np.uint8).reshape(1, 16),
            "framing": [int(self.framing)],
            "record_crc": [int(self.record_crc)],
            "compression": [int(self.compression)],
            "stream": [int(self._stream)],
            "stored_bytes": [self.stored_bytes],
            "decoded_bytes": [self.decoded_bytes],
            "crc32c": [self.crc32c],
            "writer": [self.writer],
            "gap_block": [*self._gaps],
            "gap_reason": [*self._gaps.values()],
            "block_stop": np.asarray(self._stops, "<u8"),
            "block_row_stop": np.asarray(self._row_stops, "<u8"),
            "block_decoded_bytes": np.asarray(self._decoded, "<u4"),
            "block_crc32c": np.asarray(self._crcs, "<u4"),
            "block_frames_crc32c": np.asarray(self._frame_crcs, "<u4"),
        }
        size = 4 * self.rows
        head = pack_head(
            INDEX, values, PackedColumn("frame_stop", "u32", self._frames_crc32c, self.rows, size, b"")
        )
        end = ending(size)
        self._check_size(len(head) + size + len(end))
        file.write(head)
        self._frames.seek(0)
        shutil.copyfileobj(self._frames, file, _COPY)
        file.write(end)
        return FinishedIndex(b"", parse_head(head, limits=self._limits))
