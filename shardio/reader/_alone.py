"""Frames that are fetched without their blocks, each compared with its own two checksums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.reader._blocks import BlockReader
from shardio.reader._files import REFUSED, ShardFiles
from shardio.reader._tuning import TUNING


class FramesAlone:
    """Frames of a shard, fetched alone where the ends of all frames came with the head and are right.

    Args:
        files: the shard and its index.
        blocks: its blocks, whose column of frames' ends is here.
    """

    def __init__(self, files: ShardFiles, blocks: BlockReader) -> None:
        assert blocks.column is not None  # noqa: S101 - for the type checker
        self._files, self._blocks, self._ends = files, blocks, blocks.column

    def places(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return where the frames of rows are that may be fetched alone; None where whole blocks are read.

        Args:
            rows: int64, ascending.

        Returns:
            Starts and stops of the frames in the stored object, int64.
        """
        if not self._blocks.has_right_column:
            return None
        head, ends = self._blocks.head, self._ends
        blocks = head.blocks_of(rows)
        bases = head.starts_of_blocks(blocks)
        firsts = head.block_row_stop[blocks].astype(np.int64) - head.rows_of_blocks(blocks)
        return np.where(rows > firsts, ends[rows - 1], 0) + bases, ends[rows] + bases

    def begin(
        self, rows: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> Callable[[], list[bytes]]:
        """Send the requests for the frames of some rows alone; what is not right is read by the block, which
        says what is wrong.

        Args:
            rows: int64, ascending.
            starts, stops: of their frames, as `places` returns them.
        """  # noqa: D205 - one thought
        wait = self._files.data.begin_read(starts, stops, checksummed=True, gap=_gap_of(starts, stops))

        def finish() -> list[bytes]:
            try:
                frames = wait()
            except REFUSED as error:
                raise self._files.explain(error) from error
            self._blocks.stats.bytes_read += int((stops - starts).sum())
            found = kernels.cut_frames(frames)
            if found is None:
                self._blocks.stats.refetched += 1
                found = self._blocks.begin_rows(rows)()
            return found

        return finish

    def record(self, row: int) -> bytes:
        """Return one payload."""
        rows = np.array([row])
        places = self.places(rows)
        return (self._blocks.begin_rows(rows) if places is None else self.begin(rows, *places))()[0]


def _gap_of(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> int:
    """Return how far apart frames, int64 ascending, may be that one request fetches together."""
    gaps = np.sort(starts[1:] - stops[:-1])
    most = int(
        np.searchsorted(np.cumsum(np.maximum(gaps, 0)), (stops - starts).sum() // TUNING.gap_share, "right")
    )
    # A gap as wide as one that is too much stays a gap, too.
    narrow = gaps[:most] if most == gaps.size else gaps[: np.searchsorted(gaps, gaps[most])]
    return max(TUNING.gap, int(narrow[-1])) if narrow.size else TUNING.gap
