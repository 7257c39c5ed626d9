"""One open shard: its index, its bytes, and the ways to read rows of it.

Promise: no payload leaves this module unless the stored bytes of its block matched their CRC-32C and its part
of `frame_stop` matched its own, or its frame alone its own two checksums.  A block of a mapped
file is checked once and remembered with one byte; bytes that were read are checked each time they are read;
what is decoded for lookups is kept within a bound.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from shardio.format import Compression, Framing
from shardio.metadata import IndexHead
from shardio.reader._alone import FramesAlone
from shardio.reader._blocks import BlockReader, DecodedBlocks, shard_index
from shardio.reader._files import (
    BlockSource,
    KnownEnd,
    ShardFiles,
    decoded_file,
    map_data,
    map_frames,
)
from shardio.reader._mapped import MappedRows
from shardio.storage import BlockCache


class OpenShard:
    """A shard with its index; safe to share among threads.

    Nothing it holds refers back to it: its files go with the last reference, not when the collector runs.

    Args:
        files: the shard and its index.
        frames: the `frame_stop` column, where it came with the head; checked when it is used.
        cache: of blocks on local disk, for files that are not there; or None.
        alone: lookups may compare frames alone, with their own checksums. Readers that skip damage compare
            whole blocks, so that what is left out does not depend on how it is read.
        kept: decoded blocks that lookups may use again, or None.
        known_ends: remember where the shard and its index were found to be cut, or None.

    Attributes:
        key, head, data: of the shard.
        blocks: its blocks, wherever they are.
        in_place: its rows, where these are cut out of the mapped file; else None.
        alone: its frames, where these may be fetched without their blocks; else None.
        record: returns the payload of a row; its frame or its block was compared.
        begin_rows: sends the requests for the blocks of rows, int64 ascending; returns what waits for their
            payloads.
        has_frame_runs: windows take runs of its frames, as blocks have them.
        explain: makes an error of what a store says of a file that is cut, gone or another one.
    """

    def __init__(
        self,
        files: ShardFiles,
        *,
        frames: memoryview | None = None,
        cache: BlockCache | None = None,
        alone: bool = True,
        kept: DecodedBlocks | None = None,
        known_ends: tuple[KnownEnd, KnownEnd] | None = None,
    ) -> None:
        head, index, data = files.head, files.index, files.data
        verify, limits, stats = files.verify, files.limits, files.stats
        self.key, self.head, self.index, self.data = files.key, head, index, data
        self.explain = files.explain
        data_end, index_end = (None, None) if known_ends is None else known_ends
        column = map_frames(index, head)
        mapped = map_data(data, head, files.key, adopted=files.adopted)
        framed, plain = head.framing is Framing.TFRECORD, head.compression is Compression.NONE
        cuts = framed and plain and mapped is not None and column is not None
        alone = alone and verify and head.has_frame_checksums
        held = None if frames is None else np.frombuffer(frames, "<u4").view(np.uint32)
        ends = held if column is None else column
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
                known_end=data_end,
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
                known_end=index_end,
            ),
            # Blocks are worth keeping where one holds several records.
            kept=kept if framed and not plain and head.rows > head.blocks else None,
        )
        self.in_place = MappedRows(files, self.blocks, alone=alone) if cuts else None
        fetched = mapped is None and held is not None and cache is None
        self.alone = FramesAlone(files, self.blocks) if alone and fetched else None
        self.record = (self.in_place or self.alone or self.blocks).record
        self.begin_rows = self.blocks.begin_rows
        self.has_frame_runs = framed and not head.gaps and not head.stream and not cuts

    def drop_pages(self, *, of_data: bool = True) -> None:
        """Give the pages of mapped files back; what is looked at again comes from the system's cache."""
        if of_data:
            self.data.drop_pages()
        self.index.drop_pages()


# What the cache calls a block: shard, block and checksum, so that a name means the same bytes forever.
def _data_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-{block}-{head.block_crc32c[block]:08x}"


def _frames_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-frames-{block}-{head.block_frames_crc32c[block]:08x}"
