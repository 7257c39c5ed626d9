"""The range engine: few large requests, several in flight, each reply checked before it counts.

A reply counts when it holds exactly the bytes asked for, of the object that was opened: its length, the range
it claims, the size and the stamp it reports must all agree.  Everything else is asked for again, and becomes
an error in the end.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardio.ranges import Coalesced, coalesce, scatter
from shardio.storage._batches import fetch_batches
from shardio.storage._verdict import BadReplyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shardio.storage._batches import Batch
    from shardio.storage._client import Reply
    from shardio.storage._face import Buffer, Offsets
    from shardio.storage._process import Process
    from shardio.storage._tuning import Tuning

__all__ = ["ChangedError", "Identity", "PastEndError", "fetch_many"]


class ChangedError(BadReplyError):
    """The reply is of another version of the object than the one that was opened."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"the object has changed: expected {expected}, found {found}")
        self.expected = expected
        self.found = found


class PastEndError(Exception):
    """The object ends before the range does: an answer, not an accident."""

    def __init__(self, start: int, stop: int, total: int) -> None:
        super().__init__(f"bytes [{start}, {stop}) of an object of {total}")
        self.start = start
        self.stop = stop
        self.total = total


class Identity:
    """What is known of an object: its size and stamp, given when it was opened or learned from replies."""

    def __init__(self, size: int | None = None, stamp: str = "") -> None:
        self.size = size
        self.stamp = stamp

    def check(self, reply: Reply, start: int, stop: int) -> Reply:
        """Return the reply if it can be true.

        Raises:
            ChangedError, BadReplyError: it is another object's, or not what was asked for.
            PastEndError: the object ends before `stop`.
        """
        if reply.total is not None and self.size is not None and reply.total != self.size:
            raise ChangedError(f"{self.size} bytes", f"{reply.total} bytes")
        if reply.stamp and self.stamp and reply.stamp != self.stamp:
            raise ChangedError(f"stamp {self.stamp}", f"stamp {reply.stamp}")
        if len(reply.data) != stop - start:
            if reply.total is not None and reply.total < stop and len(reply.data) == reply.total - start:
                raise PastEndError(start, stop, reply.total)
            raise BadReplyError(
                f"the reply holds {len(reply.data)} bytes where {stop - start} were asked for"
            )
        # Only a reply that counts may teach us.
        self.size = self.size if reply.total is None else reply.total
        self.stamp = self.stamp or reply.stamp
        return reply

    def refuse_past_end(self, stop: int, start: int) -> None:
        """Raise `PastEndError` where the size is known and no request can succeed."""
        if self.size is not None and stop > self.size:
            raise PastEndError(start, stop, self.size)


class _Piece(NamedTuple):
    """Part of a merged range that one request fetches."""

    start: int
    stop: int


async def fetch_many(
    fetch: Callable[[int, int], Awaitable[Reply]],
    identity: Identity,
    state: Process,
    tuning: Tuning,
    ranges: tuple[Offsets, Offsets],
    *,
    batch: Batch | None = None,
) -> list[memoryview]:
    """Fetch many ranges of one object and return their bytes in the order asked.

    Args:
        fetch: sends one request for `[start, stop)`.
        identity: what is known of the object; replies are held to it.
        state: limits and retries of this process.
        tuning: gap, sizes.
        ranges: columns of starts and stops.
        batch: sends several requests in one call, where the engine can and the caller has checksums.

    Raises:
        GaveUpError: a request failed for good.
        PastEndError: the object ends before a range does.
    """
    starts, stops = ranges
    merged = coalesce(starts, stops, gap=tuning.gap, max_bytes=tuning.max_request_bytes)
    if merged.stops.size:
        last = int(np.argmax(merged.stops))
        identity.refuse_past_end(int(merged.stops[last]), int(merged.starts[last]))
    pieces = _cut(merged, tuning.max_request_bytes)

    async def one(piece: _Piece) -> Reply:
        async def request() -> Reply:
            reply = await fetch(piece.start, piece.stop)
            return identity.check(reply, piece.start, piece.stop)

        size = piece.stop - piece.start
        async with state.places(size):
            return await state.retrier.run(
                lambda: state.hedge.run(request, size), size=size, renew=state.renew
            )

    flat = [piece for group in pieces for piece in group]
    found: Sequence[Buffer] | None = None
    if batch is not None and flat and state.batching.allowed():
        found = await fetch_batches(batch, flat, state, tuning)
    if found is None:
        found = [reply.data for reply in await _all(one, flat, tuning.concurrency)]
    replies = iter(found)
    buffers = [_join([next(replies) for _ in group]) for group in pieces]
    return scatter(buffers, merged, starts, stops)


def _cut(merged: Coalesced, longest: int) -> list[list[_Piece]]:
    """Cut what is longer than one request into equal parts."""
    groups = []
    for start, stop in zip(merged.starts.tolist(), merged.stops.tolist(), strict=True):
        count = -(-(stop - start) // longest)
        edges = [start + (stop - start) * i // count for i in range(count + 1)]
        groups.append([_Piece(a, b) for a, b in itertools.pairwise(edges)])
    return groups


def _join(parts: list[Buffer]) -> Buffer:
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _all(one: Callable[[_Piece], Awaitable[Reply]], pieces: list[_Piece], at_once: int) -> list[Reply]:
    """Fetch all pieces, in as many tasks as may run at once; the first failure cancels the rest."""
    if len(pieces) == 1:
        return [await one(pieces[0])]
    replies: dict[int, Reply] = {}
    waiting = iter(enumerate(pieces))

    async def work() -> None:
        for number, piece in waiting:
            replies[number] = await one(piece)

    tasks = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(pieces)))]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return [replies[number] for number in range(len(pieces))]
