"""Files in memory: the columns of an index and the bytes of a shard, where they may be mapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio.errors import CorruptBlockError, FormatError, ShardioError, StaleIndexError
from shardio.metadata import INDEX_ADVICE, check_index_end

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.metadata import IndexHead
    from shardio.storage import DataFile, ShortReadError

__all__ = ["cut_short", "frame_parts", "map_data", "map_frames", "wrong_size"]


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
