"""Rows of mapped shards, cut where they are: for lookups and iteration.

Promise: that of `OpenShard`.  A frame or block that is not as its index says is left to `BlockReader`, which
says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.reader._blocks import BlockReader
from shardio.reader._files import ShardFiles


class MappedRows:
    """Rows of a mapped, uncompressed TFRECORD shard, which are cut out of it as they are.

    A block is compared once and remembered with one byte, or each frame with its own checksums.

    Args:
        files: the shard and its index.
        blocks: opens blocks, and says what is wrong with them.
        alone: compare each frame with its own checksums, not whole blocks.
    """

    def __init__(self, files: ShardFiles, blocks: BlockReader, *, alone: bool) -> None:
        assert blocks.mapped is not None  # noqa: S101 - for the type checker
        self._mapped = blocks.mapped
        self._files, self._head, self._blocks, self._alone = files, files.head, blocks, alone
        self._seen = bytearray(
            self._head.blocks
        )  # 1 once a block was compared, for as long as it stays mapped
        self._rows = kernels.MappedRecords(self._mapped, blocks.index, self._seen, alone=alone)

    def record(self, row: int) -> bytes:
        """Return one payload, compared with its own checksum or with that of its block."""
        found = self._rows.record(row)
        return found if found is not None else self._record_by_block(row)

    def records(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Return some payloads, in the order given.

        Raises:
            CorruptBlockError, FormatError: one of them, or its part of the index, is damaged.
        """
        found = self._rows.records(rows)
        if found is None and not self._alone:
            # Blocks are compared first, those of all rows in one call.
            self._compare(rows)
            found = self._rows.records(rows)
        return [self.record(row) for row in rows.tolist()] if found is None else found

    def places(self, rows: NDArray[np.int64]) -> tuple[memoryview, NDArray[np.int64], NDArray[np.int64]]:
        """Return the map, and where payloads start and stop in it, int64; rows are int64, in any order.

        Raises:
            CorruptBlockError, FormatError: a block touched for the first time is damaged.
        """
        found = self._rows.places(rows)
        if found is None:
            self._compare(rows)
            found = self._rows.places(rows)
        if found is None:
            raise self._blocks.changed()
        return self._mapped, found[0], found[1]

    def lists(self, row: int, ends: Iterable[int]) -> Iterator[list[bytes]]:
        """Yield the payloads of consecutive rows.

        Args:
            row: the first of them.
            ends: the row at which each list ends, ascending.

        Raises:
            CorruptBlockError, FormatError: damage, with its address.
        """
        for end in ends:
            before = self._rows.opened
            found = self._rows.take(row, end)
            self._blocks.stats.blocks_opened += self._rows.opened - before
            if found is None:
                # Compared one by one, the block that is not right says what is wrong.
                found = self._blocks.begin([self._blocks.around(row, end)])()[0].payloads(row, end)
            yield found
            # Not held while the next list is made: its memory is still in the processor's cache.
            del found
            row = end

    def invalidate_verified(self, rows: NDArray[np.int64]) -> None:
        """Have the blocks of rows compared before they are used again, since one of them has changed."""
        np.frombuffer(self._seen, np.uint8)[self._head.blocks_of(rows)] = 0

    def _compare(self, rows: NDArray[np.int64]) -> None:
        """Compare the blocks of rows, where they were not compared before."""
        before = self._rows.opened
        wrong = self._rows.compare(self._head.blocks_of(rows))
        self._blocks.stats.blocks_opened += self._rows.opened - before
        if wrong >= 0:
            self._blocks.load(wrong)  # says what is wrong

    def _record_by_block(self, row: int) -> bytes:
        """Return a payload after all of its block was compared, or say what is wrong."""
        self._compare(np.array([row]))
        found = self._rows.record(row)
        if found is None:
            raise self._blocks.changed(row)
        return found
