"""One open shard: its index, its bytes, and the ways to read rows of it.

Promise: no payload leaves this module unless the stored bytes of its block matched their CRC-32C and its part
of `frame_stop` matched its own, or its frame matched both of its own checksums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.format import TFRECORD_HEAD, TFRECORD_TAIL, Compression, Framing
from shardio.metadata import IndexHead
from shardio.reader._blocks import BlockReader, DecodedBlocks, Rows, Wait, shard_index
from shardio.reader._files import (
    REFUSED,
    BlockSource,
    ShardFiles,
    decoded_file,
    map_data,
    map_frames,
)
from shardio.reader._gather import READS_FILES, ShardFrames
from shardio.reader._tuning import TUNING
from shardio.storage import BlockCache


class OpenShard:
    """A shard with its index; safe to share among threads.

    Nothing it holds refers back to it: its files go with the last reference, not when the collector runs.

    Args:
        files: the shard and its index.
        frames: the `frame_stop` column, where it came with the head; checked when it is used.
        is_local: it is a file.
        cache: of blocks on local disk, for files that are not there; or None.
        by_frame: lookups may check frames without their blocks. Readers that skip damage check whole blocks,
            so that what they skip does not depend on how it is read.
        kept: decoded blocks that lookups may use again, or None.

    Attributes:
        key, head, index, data: of the shard.
        blocks: its blocks, wherever they are.
        frames: gathers rows of a local shard without their blocks; None where blocks are read.
        explain: makes an error of what a store says of a file that is cut, gone or another one.
    """

    def __init__(
        self,
        files: ShardFiles,
        *,
        frames: memoryview | None = None,
        is_local: bool = False,
        cache: BlockCache | None = None,
        by_frame: bool = True,
        kept: DecodedBlocks | None = None,
    ) -> None:
        head, index, data = files.head, files.index, files.data
        verify, limits, stats = files.verify, files.limits, files.stats
        self.key, self.head, self.index, self.data = files.key, head, index, data
        self.explain = files.explain
        column = map_frames(index, head)
        mapped = map_data(data, head, files.key, adopted=files.adopted)
        is_framed = head.framing is Framing.TFRECORD
        ends = column if frames is None else np.frombuffer(frames, "<u4").view(np.uint32)
        self.blocks = BlockReader(
            files,
            shard_index(head, ends, limits, verify=verify),
            column=ends,
            data=BlockSource(
                decoded_file(data, head, limits, stats),
                head.block_bounds,
                stats,
                files.explain,
                cache=cache,
                name=partial(_data_name, head),
                checksummed=verify,
                view=mapped,
                fixed=mapped is not None,
            ),
            frames=BlockSource(
                index,
                head.frame_stop_bounds,
                stats,
                files.explain_index,
                cache=cache,
                name=partial(_frames_name, head),
                view=frames if column is None else column.view(np.uint8).data,
                fixed=column is not None,
            ),
            # Blocks are worth keeping where one holds several records.
            kept=kept
            if is_framed and head.compression is not Compression.NONE and head.rows > head.blocks
            else None,
        )
        self._stats = stats
        self.frames: ShardFrames | None = None
        self._fetched_frames: ShardFrames | None = None
        if by_frame and head.has_frame_checksums and ends is not None:
            if mapped is not None or (is_local and READS_FILES):
                path = None if mapped is not None else os.fsencode(data.url) + b"\0"
                self.frames = ShardFrames(mapped, head.stored_bytes, head, ends, verify=verify, path=path)
            elif verify and not is_local and cache is None:
                self._fetched_frames = ShardFrames(
                    None, head.stored_bytes, head, ends, verify=True, path=None
                )

    def record(self, row: int) -> bytes:
        """Return one payload; its frame or its block was checked.

        Raises:
            CorruptBlockError, FormatError, StaleIndexError, NotFoundError: damage, with its address.
            StorageError: the environment failed.
        """
        if self.frames is not None:
            payload = self.frames.record(row)
            if payload is not None:
                return payload
        elif self._fetched_frames is not None:
            found: bytes
            ((found,),) = self.begin(range(row, row + 1))[1](as_bytes=True)
            return found
        return self.blocks.record(row)

    def begin(self, rows: Rows, *, scattered: bool = True, gap: int | None = None) -> tuple[int, Wait]:
        """Send the requests for some rows.

        Args:
            rows: of the shard, ascending.
            scattered: not all rows of their blocks are wanted.
            gap: of blocks; see `BlockReader.begin`.

        Returns:
            Bytes that were asked for, and what waits for them.
        """
        if scattered and self.frames is not None:
            return 0, partial(_gather, self.frames, self.blocks, rows)
        bounds = None
        if scattered and self._fetched_frames is not None:
            bounds = self._fetched_frames.bounds(np.asarray(rows, np.int64))
        if bounds is None:
            return self.blocks.begin_rows(rows, gap=gap)
        starts, stops = bounds
        return int((stops - starts).sum()), self._begin_frames(rows, starts, stops)

    def _begin_frames(self, rows: Rows, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Wait:
        """Send the requests for frames without their blocks; what is not right is read by block, which says
        what is wrong.
        """  # noqa: D205 - one thought
        wait = self.data.begin_read(starts, stops, checksummed=True, gap=_gap_of(starts, stops))

        def finish(*, as_bytes: bool, skips: bool = False) -> Iterator[Any]:
            assert not skips  # noqa: S101 - readers that skip compare whole blocks
            try:
                frames = wait()
            except REFUSED as error:
                raise self.explain(error) from error
            data = frames[0] if len(frames) == 1 else b"".join(frames)
            ends = np.cumsum(stops - starts)
            begins = ends - (stops - starts)
            self._stats.bytes_read += len(data)
            if kernels.check_frames(data, begins, ends) >= 0:
                self._stats.refetched += 1
                yield from self.blocks.begin_rows(rows)[1](as_bytes=as_bytes)
            else:
                places = begins + TFRECORD_HEAD, ends - TFRECORD_TAIL
                yield kernels.slice_records(data, *places) if as_bytes else (data, *places)

        return finish

    def drop_pages(self, *, of_data: bool = True) -> None:
        """Give the pages of mapped files back; what is looked at again comes from the system's cache."""
        if of_data:
            self.data.drop_pages()
        self.index.drop_pages()


def _gather(
    frames: ShardFrames, blocks: BlockReader, rows: Rows, *, as_bytes: bool, skips: bool = False
) -> Iterator[Any]:
    """Yield rows of a local shard; what is wrong is read by block, which says what is."""
    # Only whole blocks are asked for by their places, or by those who skip.
    assert as_bytes and not skips  # noqa: S101, PT018
    payloads = frames.records(np.asarray(rows, np.int64))
    yield blocks.payloads(rows) if payloads is None else payloads


def _gap_of(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> int:
    """Return how far apart frames, int64 ascending, may be that one request fetches together."""
    gaps = np.sort(starts[1:] - stops[:-1])
    most = int(
        np.searchsorted(np.cumsum(np.maximum(gaps, 0)), (stops - starts).sum() // TUNING.gap_share, "right")
    )
    # A gap as wide as one that is too much stays a gap, too.
    narrow = gaps[:most] if most == gaps.size else gaps[: np.searchsorted(gaps, gaps[most])]
    return max(TUNING.gap, int(narrow[-1])) if narrow.size else TUNING.gap


# What the cache calls a block: shard, block and checksum, so that a name means the same bytes forever.
def _data_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-{block}-{head.block_crc32c[block]:08x}"


def _frames_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-frames-{block}-{head.block_frames_crc32c[block]:08x}"
