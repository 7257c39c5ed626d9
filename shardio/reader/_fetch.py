"""The bytes of runs of blocks: from the cache on local disk where there is one, else by few large requests.

Runs are begun and finished apart, so that the requests of many shards are under way together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardio.storage import ShortReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardio.errors import ShardioError
    from shardio.reader._options import ReadStats
    from shardio.storage import BlockCache, DataFile

__all__ = ["BlockFetcher", "Fetched"]


class Fetched(NamedTuple):
    """The bytes of a run of blocks.

    Attributes:
        data: all of them, one block after another.
        fresh: runs of blocks that came from the source and are not in the cache yet.
    """

    data: memoryview
    fresh: list[tuple[int, int]]


class BlockFetcher:
    """Reads one file block by block.

    Args:
        file: shard or index.
        bounds: byte range of a block in the file.
        name: what the cache calls a block; says shard, block and checksum.
        cache: or None.
        stats: counts what is read.
        too_short: the error for a file that ends before a block does.
        checksummed: what is fetched will be compared with checksums.
        held: the bytes of all blocks, one after another, if somebody has read them already.
    """

    def __init__(
        self,
        file: DataFile,
        bounds: Callable[[int], tuple[int, int]],
        name: Callable[[int], str],
        cache: BlockCache | None,
        stats: ReadStats,
        too_short: Callable[[ShortReadError], ShardioError],
        *,
        checksummed: bool = True,
        held: memoryview | None = None,
    ) -> None:
        self._held = held
        self._file = file
        self._bounds = bounds
        self._name = name
        self._cache = cache
        self._stats = stats
        self._too_short = too_short
        self._checksummed = checksummed

    def begin(self, runs: Sequence[tuple[int, int]], *, cached: bool = True) -> Callable[[], list[Fetched]]:
        """Send the requests for some runs `[first, stop)` of blocks and return what waits for the bytes.

        Args:
            runs: of blocks, each at least one.
            cached: what the cache holds may be taken from there; without, a reply must also prove that it is
                of the object that was opened.

        Raises:
            FormatError, StaleIndexError: the file is shorter than it must be; when waited for.
            StorageError: the environment failed; when waited for.
        """
        whole = self._held
        if whole is not None and cached:
            base = self._bounds(0)[0]
            parts = [(self._bounds(first)[0], self._bounds(stop - 1)[1]) for first, stop in runs]
            return lambda: [Fetched(whole[start - base : stop - base], []) for start, stop in parts]
        found = [self._look_up(run) if cached else {} for run in runs]
        missing = [self._missing(run, held) for run, held in zip(runs, found, strict=True)]
        flat = [segment for segments in missing for segment in segments]
        starts = [self._bounds(first)[0] for first, _ in flat]
        stops = [self._bounds(stop - 1)[1] for _, stop in flat]
        checksummed = self._checksummed and cached
        if not cached:
            # If the wrong bytes were another object's, so are its size and ETag.
            self._file.invalidate()
        wait = self._file.begin_read(starts, stops, checksummed=checksummed) if flat else list

        def finish() -> list[Fetched]:
            try:
                replies = iter(wait())
            except ShortReadError as error:
                raise self._too_short(error) from error
            self._stats.bytes_read += sum(stops) - sum(starts)
            return [
                Fetched(self._join(run, held, [(segment, next(replies)) for segment in segments]), segments)
                for run, held, segments in zip(runs, found, missing, strict=True)
            ]

        return finish

    def keep(self, run: tuple[int, int], fetched: Fetched) -> None:
        """Store blocks in the cache; they were compared with their checksums."""
        if self._cache is None:
            return
        base = self._bounds(run[0])[0]
        for first, stop in fetched.fresh:
            for block in range(first, stop):
                start, end = self._bounds(block)
                self._cache.put(self._name(block), fetched.data[start - base : end - base])

    def _look_up(self, run: tuple[int, int]) -> dict[int, bytes]:
        if self._cache is None:
            return {}
        held = {block: self._cache.get(self._name(block)) for block in range(*run)}
        found = {block: data for block, data in held.items() if data is not None}
        self._stats.cache_hits += len(found)
        return found

    def _missing(self, run: tuple[int, int], held: dict[int, bytes]) -> list[tuple[int, int]]:
        if not held:
            return [run]
        segments: list[tuple[int, int]] = []
        for block in range(*run):
            if block in held:
                continue
            if segments and segments[-1][1] == block:
                segments[-1] = (segments[-1][0], block + 1)
            else:
                segments.append((block, block + 1))
        return segments

    def _join(
        self, run: tuple[int, int], held: dict[int, bytes], replies: list[tuple[tuple[int, int], memoryview]]
    ) -> memoryview:
        if not held and len(replies) == 1:
            return replies[0][1]
        parts: dict[int, bytes | memoryview] = {**held, **{first: data for (first, _), data in replies}}
        return memoryview(b"".join(parts[block] for block in range(*run) if block in parts))
