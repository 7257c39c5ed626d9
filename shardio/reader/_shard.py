"""One open shard: its index, its bytes, and the ways to read rows of it.

Promise: no payload leaves this module unless the stored bytes of its block matched their CRC-32C and its part
of `frame_stop` matched its own, or its frame alone the checksum that the index holds of it.  A block of a
mapped file is checked once and remembered with one byte; bytes that were read are checked each time they are
read; what is decoded for lookups is kept within a bound.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shardio.errors import NotFoundError
from shardio.format import Compression, Framing
from shardio.reader._alone import FramesAlone
from shardio.reader._blocks import BlockReader, shard_index
from shardio.reader._files import (
    BlockFetcher,
    RefusedError,
    cut_short,
    decoded_file,
    map_data,
    map_frames,
    map_records,
    missing_shard_error,
    wrong_size,
)
from shardio.reader._mapped import MappedRows
from shardio.storage import ChangedObjectError, ShortReadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardio.errors import ShardioError
    from shardio.format import Limits
    from shardio.metadata import IndexHead
    from shardio.reader._blocks import DecodedBlocks
    from shardio.reader._files import KnownEnd
    from shardio.reader._options import ReadStats
    from shardio.storage import BlockCache, DataFile


class OpenShard:
    """A shard with its index; safe to share among threads.

    Nothing it holds refers back to it: its files go with the last reference, not when the collector runs.

    Args:
        key: name of the shard, for messages.
        head: head of its index, checked.
        index: its index file.
        data: its data file.
        frames: the `frame_stop` column, where it came with the head; checked when it is used.
        adopted: another program wrote it and may change it.
        verify: compare block checksums.
        limits: upper bounds for decoding.
        stats: counts what is read.
        cache: of blocks on local disk, for files that are not there; or None.
        alone: lookups may compare records alone, where the index holds their checksums. Readers that skip
            damage compare whole blocks, so that what is left out does not depend on how it is read.
        kept: decoded blocks that lookups may use again, or None.
        known_ends: remember where the shard and its index were found to be cut, or None.
        check_expired: called when the shard is gone; raises where its version expired.

    Attributes:
        blocks: its blocks, wherever they are.
        in_place: its rows, where these are cut out of the mapped file; else None.
        alone: its frames, where these may be fetched without their blocks; else None.
        record: returns the payload of a row, compared with its own checksum or with that of its block.
        begin_rows: sends the requests for the blocks of rows, int64 ascending; returns what waits for their
            payloads.
        has_frame_runs: windows take runs of its frames, as blocks have them.
        ranged: nothing of its blocks but their stored bytes need be fetched, and these are compared.
        explain: makes an error of what a store says of a file that is cut, gone or another one.
    """

    def __init__(  # noqa: PLR0913 - made in one place
        self,
        key: str,
        head: IndexHead,
        index: DataFile,
        data: DataFile,
        *,
        frames: memoryview | None = None,
        adopted: bool = False,
        verify: bool = True,
        limits: Limits,
        stats: ReadStats,
        cache: BlockCache | None = None,
        alone: bool = True,
        kept: DecodedBlocks | None = None,
        known_ends: tuple[KnownEnd, KnownEnd] | None = None,
        check_expired: Callable[[], None] = lambda: None,
    ) -> None:
        self.key, self.head, self.index, self.data = key, head, index, data
        self.explain = partial(_data_refused, data, head, key, adopted=adopted, check_expired=check_expired)
        index_refused = partial(_index_refused, index, head, key, check_expired=check_expired)
        data_end, index_end = (None, None) if known_ends is None else known_ends
        column = map_frames(index, head)
        mapped = map_data(data, head, key, adopted=adopted)
        framed, plain = head.framing is Framing.TFRECORD, head.compression is Compression.NONE
        cuts = framed and plain and mapped is not None and column is not None
        # The checksums of records, where lookups compare records alone.
        own = map_records(index, head) if cuts and verify and alone else None
        held = None if frames is None else np.frombuffer(frames, "<u4").view(np.uint32)
        ends = held if column is None else column
        self.blocks = BlockReader(
            key,
            head,
            shard_index(head, ends, own, limits, verify=verify),
            (data.url, index.url),
            limits,
            stats,
            mapped=mapped,
            column=ends,
            data=None
            if mapped is not None
            else BlockFetcher(
                decoded_file(data, head, limits, stats),
                head.block_bounds,
                partial(_data_name, head),
                cache,
                stats,
                self.explain,
                checksummed=verify,
                known_end=data_end,
            ),
            frames=None
            if column is not None
            else BlockFetcher(
                index,
                head.frame_stop_bounds,
                partial(_frames_name, head),
                cache,
                stats,
                index_refused,
                held=frames,
                known_end=index_end,
            ),
            verify=verify,
            # Blocks are worth keeping where one holds several records.
            kept=kept if framed and not plain and head.rows > head.blocks else None,
        )
        self.in_place = (
            MappedRows(key, head, data, index.url, self.blocks, self.explain, own, verify=verify)
            if cuts
            else None
        )
        self.ranged = mapped is None and plain and verify and cache is None
        has_checksums = held is not None and head.block_records_crc32c is not None
        self.alone = (
            FramesAlone(index, data, self.blocks, self.explain, index_refused)
            if self.ranged and has_checksums and alone
            else None
        )
        self.record = (self.in_place or self.alone or self.blocks).record
        self.begin_rows = (self.alone or self.blocks).begin_rows
        self.has_frame_runs = framed and not head.gaps and not head.stream and not cuts

    def drop_pages(self, *, of_data: bool = True) -> None:
        """Give the pages of mapped files back; what is looked at again comes from the system's cache."""
        if of_data:
            self.data.drop_pages()
        self.index.drop_pages()

    def close(self) -> None:
        """Release the handles; blocks that were handed out stay valid."""
        self.index.close()
        self.data.close()


# What the cache calls a block: shard, block and checksum, so that a name means the same bytes forever.
def _data_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-{block}-{head.block_crc32c[block]:08x}"


def _frames_name(head: IndexHead, block: int) -> str:
    return f"{head.uuid.hex()}-frames-{block}-{head.block_frames_crc32c[block]:08x}"


def _data_refused(
    data: DataFile,
    head: IndexHead,
    key: str,
    error: RefusedError,
    *,
    adopted: bool,
    check_expired: Callable[[], None],
) -> ShardioError:
    if isinstance(error, ShortReadError):
        found = f"{error.found} of {error.expected}{' decoded' * head.stream} bytes"
    elif isinstance(error, ChangedObjectError) and error.expected == f"{head.stored_bytes} bytes":
        # Its size was told by its index: it is another one however often the dataset is opened again.
        found = str(error.found)
    elif isinstance(error, NotFoundError):
        check_expired()
        return missing_shard_error(error, key, adopted=adopted)
    else:
        return error.located(shard=key)
    return wrong_size(data, head, key, found, adopted=adopted)


def _index_refused(
    index: DataFile, head: IndexHead, key: str, error: RefusedError, *, check_expired: Callable[[], None]
) -> ShardioError:
    if isinstance(error, ShortReadError):
        return cut_short(index, head.index_bytes, key, error)
    if isinstance(error, NotFoundError):
        check_expired()
    return error.located(shard=key)
