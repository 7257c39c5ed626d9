"""The range engine: few large requests, several in flight, each response checked before it counts.

A response counts when it holds exactly the bytes asked for, of the object that was opened: its length, the
range it claims, the size and the ETag it reports must all agree.  Everything else is asked for again, and
becomes an error in the end.

Where the caller has checksums of its own, the engine may send several requests in one call: a fraction of
the CPU time, and no claims in the responses but their lengths.  Whatever fails there is asked for again by
one request at a time, which are retried, checked and explained; and for a while there are no batches, so that
an outage does not get every request twice.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from shardio.ranges import Coalesced, coalesce, scatter
from shardio.storage._errors import BadResponseError, ChangedError, PastEndError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from shardio.storage._client import Client, FetchMany, Response
    from shardio.storage._requests import Requests
    from shardio.storage._store import Buffer, Offsets
    from shardio.storage._tuning import Tuning

__all__ = ["ObjectIdentity", "RangeReader"]

T = TypeVar("T")

_TOGETHER = 8  # requests of one call, which obstore sends side by side; more win little


class ObjectIdentity:
    """What is known of an object: its size and ETag, given when it was opened or learned from responses."""

    def __init__(self, size: int | None = None, etag: str = "") -> None:
        self.size = size
        self.etag = etag

    def check(self, response: Response, start: int, stop: int) -> Response:
        """Return the response if it can be true.

        Raises:
            ChangedError, BadResponseError: it is another object's, or not what was asked for.
            PastEndError: the object ends before `stop`.
        """
        if response.total is not None and self.size is not None and response.total != self.size:
            raise ChangedError(f"{self.size} bytes", f"{response.total} bytes")
        if response.etag and self.etag and response.etag != self.etag:
            raise ChangedError(f"ETag {self.etag}", f"ETag {response.etag}")
        if len(response.data) != stop - start:
            total = response.total
            if total is not None and total < stop and len(response.data) == total - start:
                raise PastEndError(start, stop, total)
            raise BadResponseError(
                f"the response holds {len(response.data)} bytes where {stop - start} were asked for"
            )
        # Only a response that counts may teach us.
        self.size = self.size if response.total is None else response.total
        self.etag = self.etag or response.etag
        return response

    def refuse_past_end(self, stop: int, start: int) -> None:
        """Raise `PastEndError` where the size is known and no request can succeed."""
        if self.size is not None and stop > self.size:
            raise PastEndError(start, stop, self.size)


class RangeReader:
    """Reads ranges of one object, held to what is known of it.

    Args:
        requests: of this process.
        tuning: gap, sizes.
        path: the client's name for the object.
        identity: what is known of the object; responses are held to it.
        engine: read with the data engine, where there is one; otherwise with fsspec's client.
        checksummed: the caller has checksums, so several requests may go to the engine in one call.
    """

    def __init__(
        self,
        requests: Requests,
        tuning: Tuning,
        path: str,
        identity: ObjectIdentity,
        *,
        engine: bool = False,
        checksummed: bool = False,
    ) -> None:
        self._requests = requests
        self._tuning = tuning
        self._path = path
        self._identity = identity
        self._engine = engine
        self._checksummed = checksummed

    async def read(self, starts: Offsets, stops: Offsets) -> list[memoryview]:
        """Return the bytes of many ranges, in the order asked.

        Raises:
            RetryError: a request failed for good.
            PastEndError: the object ends before a range does.
        """
        merged = coalesce(starts, stops, gap=self._tuning.gap, max_bytes=self._tuning.max_request_bytes)
        if merged.stops.size:
            last = int(np.argmax(merged.stops))
            self._identity.refuse_past_end(int(merged.stops[last]), int(merged.starts[last]))
        groups = _cut(merged, self._tuning.max_request_bytes)
        pieces = [piece for group in groups for piece in group]
        found: Sequence[Buffer] | None = None
        reader = self._requests.engine.reader_of(self._path) if self._engine and self._checksummed else None
        if reader is not None and reader.fetch_many is not None and pieces and self._requests.batches.closed:
            found = await self._read_batches(reader.fetch_many, pieces)
        if found is None:
            received = await _in_order(self._read_one, pieces, self._tuning.concurrency)
            found = [response.data for response in received]
        responses = iter(found)
        buffers = [_join([next(responses) for _ in group]) for group in groups]
        return scatter(buffers, merged, starts, stops)

    async def _read_one(self, piece: tuple[int, int]) -> Response:
        size = piece[1] - piece[0]
        return await self._requests.send(functools.partial(self._fetch, piece), kind="data", size=size)

    async def _fetch(self, piece: tuple[int, int], client: Client) -> Response:
        if self._engine:
            response = await self._requests.engine.fetch(client, self._path, *piece)
        else:
            response = await client.fetch(self._path, *piece)
        return self._identity.check(response, *piece)

    async def _read_batches(
        self, fetch_many: FetchMany, pieces: Sequence[tuple[int, int]]
    ) -> list[memoryview] | None:
        """Return the bytes of pieces; None where that failed and is to be tried one by one."""
        batches = _batches(pieces, self._tuning.large_bytes)
        try:
            found = await _in_order(functools.partial(self._read_batch, fetch_many), batches, len(batches))
        except Exception:  # noqa: BLE001 - whatever it was comes again, one request at a time, and is told then
            self._requests.batches.failed()
            return None
        return [data for batch in found for data in batch]

    async def _read_batch(self, fetch_many: FetchMany, batch: Sequence[tuple[int, int]]) -> list[memoryview]:
        starts, stops = [start for start, _ in batch], [stop for _, stop in batch]

        async def request(_: Client) -> list[memoryview]:
            found = await fetch_many(self._path, starts, stops)
            if [len(data) for data in found] != [stop - start for start, stop in batch]:
                raise BadResponseError("a response to a range request is of another length")
            return found

        size = sum(stops) - sum(starts)
        return await self._requests.send(request, kind="batch", size=size, count=len(batch))


def _cut(merged: Coalesced, longest: int) -> list[list[tuple[int, int]]]:
    """Cut what is longer than one request into equal parts."""
    groups = []
    for start, stop in zip(merged.starts.tolist(), merged.stops.tolist(), strict=True):
        count = -(-(stop - start) // longest)
        edges = [start + (stop - start) * i // count for i in range(count + 1)]
        groups.append(list(itertools.pairwise(edges)))
    return groups


def _batches(pieces: Sequence[tuple[int, int]], most_bytes: int) -> list[Sequence[tuple[int, int]]]:
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


def _join(parts: list[Buffer]) -> Buffer:
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _in_order(
    call: Callable[[Any], Coroutine[Any, Any, T]], items: Sequence[Any], at_once: int
) -> list[T]:
    """Call for all items, in as many tasks as may run at once; the first failure cancels the rest."""
    if len(items) == 1:
        return [await call(items[0])]
    found: dict[int, T] = {}
    waiting = iter(enumerate(items))

    async def work() -> None:
        for number, item in waiting:
            found[number] = await call(item)

    tasks = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(items)))]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return [found[number] for number in range(len(items))]
