"""Files in memory: the columns of an index and the bytes of a shard, where they may be mapped.

Whole runs of blocks of a mapped, uncompressed TFRecord shard are compared and cut by one compiled call.
Promise: the same as `OpenShard`'s; what is not as its index says is left to it, which says what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio import kernels
from shardio.errors import CorruptBlockError, FormatError, ShardioError, StaleIndexError
from shardio.metadata import INDEX_ADVICE, check_index_end
from shardio.storage import advise_need

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.format import Buffer
    from shardio.metadata import IndexHead
    from shardio.reader._options import ReadStats
    from shardio.storage import DataFile, ShortReadError

__all__ = ["MappedRuns", "cut_short", "frame_parts", "map_data", "map_frames", "wrong_size"]


def map_frames(index: DataFile, head: IndexHead) -> NDArray[np.uint32] | None:
    """Return the `frame_stop` column as a view of the mapped index, or None where it cannot be mapped.

    Raises:
        FormatError: the file has another size or end than its header says.
    """
    view = index.map()
    if view is None:
        return None
    check_index_file(index, head)
    if head.rows == 0:
        return np.empty(0, np.uint32)
    return np.frombuffer(view, "<u4", head.rows, head.frame_stop_offset).view(np.uint32)


def check_index_file(index: DataFile, head: IndexHead) -> None:
    """Compare size and end of a local index with what its header says.

    Raises:
        FormatError: one of them is another.
    """
    if index.size != head.index_bytes:
        raise FormatError(
            "an index has another size than its header says",
            url=index.url,
            expected=f"{head.index_bytes} bytes",
            found=f"{index.size} bytes",
            advice=INDEX_ADVICE,
        )
    end = index.read(head.frame_stop_offset + 4 * head.rows, head.index_bytes)
    check_index_end(head, end, url=index.url)


def frame_parts(
    head: IndexHead, frame_stop: NDArray[np.uint32], blocks: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Return the parts of a mapped `frame_stop` of ascending blocks, one after another."""
    first, last = int(blocks[0]), int(blocks[-1])
    if last - first + 1 == len(blocks):
        return frame_stop[head.block_rows(first)[0] : head.block_rows(last)[1]]
    rows = head.rows_of_blocks(blocks)
    firsts = head.block_row_stop[blocks].astype(np.int64) - rows
    return frame_stop[np.repeat(firsts - (np.cumsum(rows) - rows), rows) + np.arange(int(rows.sum()))]


def map_data(data: DataFile, head: IndexHead, key: str, *, adopted: bool) -> memoryview | None:
    """Return a shard's bytes mapped, or None where they must be read.

    Raises:
        CorruptBlockError, StaleIndexError: the shard has another size than its index says.
    """
    # Where the size is to be had for nothing it is compared; a remote file answers with what it was told.
    if data.size != head.stored_bytes:
        raise wrong_size(data, head, key, f"{data.size} bytes", adopted=adopted)
    # A stream's blocks are cut from its decoded bytes, which are nowhere to be mapped.
    return None if head.stream else data.map()


def cut_short(index: DataFile, wanted: int, key: str, error: ShortReadError) -> FormatError:
    """Return the error for an index that ends before what is read of it."""
    return FormatError(
        "an index is cut short",
        url=index.url,
        shard=key,
        start=error.start,
        stop=error.stop,
        expected=f"at least {wanted} bytes",
        found=f"{error.found} of {error.expected} bytes asked for",
        advice=INDEX_ADVICE,
    )


def wrong_size(data: DataFile, head: IndexHead, key: str, found: str, *, adopted: bool) -> ShardioError:
    """Return the error for a shard that is longer or shorter than its index says."""
    expected = f"{head.stored_bytes} bytes"
    if adopted:
        return StaleIndexError(
            "the shard has another size than when it was indexed",
            url=data.url,
            shard=key,
            expected=expected,
            found=found,
            advice="index it again with `shardio index URL --update`",
        )
    return CorruptBlockError(
        "the shard has another size than its index says",
        url=data.url,
        shard=key,
        expected=expected,
        found=found,
        advice="it was cut or overwritten: restore it from a copy",
    )


class MappedRuns:
    """Cuts runs of blocks into payloads.

    Args:
        head: of the index.
        data: the mapped shard.
        frame_stop: the mapped column of the index.
        seen: one byte a block, 1 once it was compared; shared with whoever else compares.
        verify: compare the bytes with their checksums.
        stats: counts the blocks that are compared.
    """

    def __init__(
        self,
        head: IndexHead,
        data: Buffer,
        frame_stop: NDArray[np.uint32],
        seen: bytearray,
        *,
        verify: bool,
        stats: ReadStats,
    ) -> None:
        self._data = data
        self._populates = isinstance(data, memoryview)
        self._frame_stop = frame_stop
        self._seen = seen
        self._stats = stats
        # Of all blocks, made once: a run costs few calls.
        self._stops = head.block_row_stop.astype(np.int64)
        self._rows = np.diff(self._stops, prepend=0)
        self._bases = head.starts_of_blocks(np.arange(head.blocks))
        self._sizes = head.block_decoded_bytes.astype(np.int64)
        self._frame_crcs = head.block_frames_crc32c
        self._crcs = head.block_crc32c if verify else None

    def payloads(self, first: int, stop: int) -> list[bytes] | None:
        """Return all payloads of the blocks `first .. stop - 1`, or None where one of them is not right."""
        run = slice(first, stop)
        rows = self._rows[run]
        last = int(self._stops[stop - 1])
        part = self._frame_stop[last - int(rows.sum()) : last]
        if self._seen.find(0, first, stop) < 0:
            return kernels.slice_frames(self._data, self._bases[run], rows, part)
        self._populate(first, stop)
        crcs = None if self._crcs is None else self._crcs[run]
        checks = kernels.BlockChecks(self._sizes[run], self._frame_crcs[run], crcs)
        found = kernels.slice_blocks(self._data, self._bases[run], rows, part, checks)
        if found is not None:
            self._stats.blocks_opened += self._seen.count(0, first, stop)
            self._seen[run] = b"\1" * (stop - first)
        return found

    def _populate(self, first: int, stop: int) -> None:
        """Ask for all pages of a run by one call: met one by one, each sixteen cost a fault of their own."""
        if self._populates:
            end = int(self._bases[stop - 1] + self._sizes[stop - 1])
            # An older kernel, or a file system that cannot: pages come by faults, as ever.
            self._populates = advise_need(memoryview(self._data), int(self._bases[first]), end)
