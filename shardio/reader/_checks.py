"""Checksums of many blocks, compared in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio import kernels
from shardio.errors import CorruptBlockError, FormatError
from shardio.format import check_block
from shardio.metadata import check_frames_part, frames_fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardio.format import Buffer
    from shardio.metadata import IndexHead

__all__ = ["BlockChecks"]


class BlockChecks:
    """Compares blocks with what the head of their index says.

    Args:
        head: of the index.
        key, data_url, index_url: for messages.
    """

    def __init__(self, head: IndexHead, *, key: str, data_url: str, index_url: str) -> None:
        self._head = head
        self._key = key
        self._data_url = data_url
        self._index_url = index_url

    def frames(self, blocks: NDArray[np.int64], part: NDArray[np.uint32]) -> None:
        """Compare the parts of `frame_stop` of some blocks, one after another in `part`.

        Raises:
            FormatError: with shard, row and bytes of the index.
        """
        if not frames_fit(self._head, blocks, part):
            self._find_wrong_frames(blocks, part)

    def stored(self, blocks: NDArray[np.int64], buffer: Buffer, starts: NDArray[np.int64]) -> None:
        """Compare the stored bytes of some blocks, each of which begins at `starts` in `buffer`.

        Raises:
            CorruptBlockError: with shard, row and bytes.
        """
        head = self._head
        sizes = head.block_stop[blocks].astype(np.int64) - head.starts_of_blocks(blocks)
        found = kernels.crc32c_many(buffer, starts, starts + sizes)
        wrong = np.flatnonzero(found != head.block_crc32c[blocks])
        if not wrong.size:
            return
        first = int(wrong[0])
        block, start = int(blocks[first]), int(starts[first])
        try:
            check_block(memoryview(buffer)[start : start + int(sizes[first])], int(head.block_crc32c[block]))
        except CorruptBlockError as error:
            raise self.located(error, block) from error

    def located(self, error: CorruptBlockError, block: int) -> CorruptBlockError:
        """Return the error with the address of a block."""
        start, stop = self._head.block_bounds(block)
        row = self._head.block_rows(block)[0]
        copy = error.located(url=self._data_url, shard=self._key, row=row, start=start, stop=stop)
        assert isinstance(copy, CorruptBlockError)  # noqa: S101 - `located` keeps the type
        return copy

    def _find_wrong_frames(self, blocks: NDArray[np.int64], part: NDArray[np.uint32]) -> None:
        at = 0
        for block in blocks.tolist():
            a, b = self._head.block_rows(block)
            try:
                check_frames_part(self._head, block, part[at : at + b - a], url=self._index_url)
            except FormatError as error:
                raise error.located(shard=self._key, row=a) from error
            at += b - a
        raise FormatError("the frames of an index do not fit its head", url=self._index_url, shard=self._key)
