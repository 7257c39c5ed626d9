"""Consecutive rows of shards, fetched as runs of frames, which windows of a stream are dealt from."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from shardio.format import Compression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardio.errors import ShardioError
    from shardio.reader._blocks import FetchedFrames
    from shardio.reader._shard import OpenShard
    from shardio.storage import NamedFile

    Frames: TypeAlias = list[FetchedFrames]


class RowRun(NamedTuple):
    """Consecutive rows of a shard that `has_frame_runs`.

    Attributes:
        shard: it.
        first, stop: numbers of the rows.
        local: it is a local file.
    """

    shard: OpenShard
    first: int
    stop: int
    local: bool

    @property
    def blocks(self) -> tuple[int, int]:
        """The run `[first, stop)` of blocks that they are in."""
        return self.shard.blocks.around(self.first, self.stop)

    @property
    def decoded_bytes(self) -> int:
        """Decoded bytes of their blocks."""
        return int(self.shard.head.block_decoded_bytes[slice(*self.blocks)].sum())

    def refusal(self) -> ShardioError | None:
        """Return the error of rows behind the end of a shard that was found to be cut; else None."""
        return self.shard.blocks.data.refusal([self.blocks])


def frames_in_cache(
    shard: OpenShard, rows: NDArray[np.int64]
) -> tuple[list[NamedFile], NDArray[np.int64], NDArray[np.int64]] | None:
    """Return where the frames of ascending rows of a shard are in the files of a cache.

    Returns:
        Files, and of each row the number of its file and where its frame begins there, int64 [rows]; None
        where not all are there as they are read: by themselves, in stored blocks.
    """
    blocks, head = shard.blocks, shard.head
    plain = shard.has_frame_runs and head.compression is Compression.NONE
    if not plain or not blocks.has_right_column:
        return None
    places: list[tuple[NamedFile, int]] = []
    for run in blocks.runs(rows):
        found = blocks.data.in_cache(run)
        if found is None:
            return None
        places += found
    assert blocks.column is not None  # noqa: S101 - for the type checker
    numbers, block = np.unique(head.blocks_of(rows), return_inverse=True)
    begins = np.where(numbers > 0, head.block_row_stop[numbers - 1], 0).astype(np.int64)
    starts = np.where(rows > begins[block], blocks.column[rows - 1], 0).astype(np.int64)
    starts += np.array([start for _, start in places])[block]
    return [file for file, _ in places], block, starts


def fetch_frames(runs: Sequence[RowRun]) -> Iterator[tuple[list[int], Callable[[], list[Frames]]]]:
    """Fetch runs of rows, in as few calls as possible.

    Yields:
        Numbers of some runs of one shard, and what returns the frames of each, or raises what is wrong with
        these alone: CorruptBlockError, FormatError, StaleIndexError or NotFoundError.

    Raises:
        StorageError: the environment failed.
    """
    by_shard: dict[int, list[int]] = {}
    for k, run in enumerate(runs):
        by_shard.setdefault(id(run.shard), []).append(k)
    waiting = []
    for own in by_shard.values():
        some = [runs[k] for k in own]
        if some[0].local:
            # Nothing is under way meanwhile, and a shard that waits holds descriptors.
            yield own, partial(_read_shard, some)
        else:
            waiting.append((own, _begin_shard(some)))
    yield from waiting


def _begin_shard(runs: Sequence[RowRun]) -> Callable[[], list[Frames]]:
    """Send the requests for runs of rows of one shard; return what waits for the frames of each."""
    # What is between runs is of other ranks, or of other times.
    wait = runs[0].shard.blocks.begin([run.blocks for run in runs], gap=0)
    return lambda: [found.frames(run.first, run.stop) for run, found in zip(runs, wait(), strict=True)]


def _read_shard(runs: Sequence[RowRun]) -> list[Frames]:
    found = _begin_shard(runs)()
    runs[0].shard.drop_pages()
    return found
