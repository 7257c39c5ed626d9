"""Several range requests in one call of the engine: a fraction of the CPU time, and no claims in the replies.

Only for callers with checksums of their own.  Lengths are compared here.  Anything that goes wrong is left to
the way of one request at a time, which retries, checks claims and explains; for a while that way is taken at
once, so that an outage does not get every request twice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shardio.storage._verdict import BadReplyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shardio.storage._process import Process
    from shardio.storage._tuning import Clock, Tuning

    Batch = Callable[[list[int], list[int]], Awaitable[list[memoryview]]]

__all__ = ["Batching", "fetch_batches"]

_TOGETHER = 8  # requests of one call, which obstore sends side by side; more win little
_PAUSE = 10.0  # seconds without batches after a failure


class Batching:
    """Whether a store may try batches now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._not_before = float("-inf")

    def allowed(self) -> bool:
        """Return whether no batch has failed lately."""
        return self._clock.now() >= self._not_before

    def failed(self) -> None:
        """Note that a batch has failed."""
        self._not_before = self._clock.now() + _PAUSE


async def fetch_batches(
    batch: Batch, pieces: Sequence[tuple[int, int]], state: Process, tuning: Tuning
) -> list[memoryview] | None:
    """Fetch pieces of one object; None where that failed and is to be tried one by one."""

    async def one(run: Sequence[tuple[int, int]]) -> list[memoryview]:
        starts, stops = [start for start, _ in run], [stop for _, stop in run]
        size = sum(stops) - sum(starts)

        async def request() -> list[memoryview]:
            found = await batch(starts, stops)
            if [len(data) for data in found] != [stop - start for start, stop in run]:
                raise BadReplyError("a reply to a range request is of another length")
            return found

        async with state.places(size, len(run)), asyncio.timeout(tuning.patience(size)):
            return await state.hedge.run(request, size)

    runs = _cut(pieces, tuning.large_bytes)
    tasks: list[asyncio.Task[list[memoryview]]] = []
    try:
        if len(runs) == 1:
            return await one(runs[0])
        tasks += [asyncio.ensure_future(one(run)) for run in runs]
        return [data for found in await asyncio.gather(*tasks) for data in found]
    except Exception:  # noqa: BLE001 - whatever it was comes again, one request at a time, and is told then
        state.batching.failed()
        return None
    finally:
        late = [task for task in tasks if not task.done()]
        for task in late:
            task.cancel()
        if late:
            await asyncio.gather(*late, return_exceptions=True)


def _cut(pieces: Sequence[tuple[int, int]], most_bytes: int) -> list[Sequence[tuple[int, int]]]:
    """Cut into runs of a few requests and of at most so many bytes, if they are more than one.

    Pieces that touch are never in one run: they were cut from a range too long for one request.
    """
    runs: list[list[tuple[int, int]]] = []
    size = 0
    for start, stop in pieces:
        size += stop - start
        if runs and len(runs[-1]) < _TOGETHER and size <= most_bytes and runs[-1][-1][1] != start:
            runs[-1].append((start, stop))
        else:
            runs.append([(start, stop)])
            size = stop - start
    return list(runs)
