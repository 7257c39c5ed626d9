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
import contextlib
import functools
import itertools
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from shardio.ranges import Coalesced, coalesce, scatter
from shardio.storage._errors import (
    BadResponseError,
    ChangedError,
    ErrorKind,
    PastEndError,
    RetryError,
    classify,
)
from shardio.storage._requests import Attempt, begin_call, refuse_io_thread, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import TypeAlias

    from shardio.storage._client import Client, FetchMany, Response
    from shardio.storage._requests import Requests
    from shardio.storage._store import Buffer, Offsets
    from shardio.storage._tuning import Tuning

    # Path of an object, starts and stops.
    Batch: TypeAlias = tuple[str, list[int], list[int]]
    Assemble: TypeAlias = Callable[[list[memoryview]], list[memoryview]]

T = TypeVar("T")

# Requests of one call. obstore sends ten of them side by side, so that more wait for each other: that costs
# less than a call does only where answers are near.
_TOGETHER = 8
_TOGETHER_NEAR = 32
_NEAR_SECONDS = 0.005
_UNSENT_SECONDS = 1.0  # after which a call that has its permits is begun by the thread that waits for it
# What a service says of one object, and not of itself.
_OF_ONE_OBJECT = {ErrorKind.NOT_FOUND, ErrorKind.PAST_END}


class ObjectIdentity:
    """What is known of an object: its size and ETag, given when it was opened or learned from responses.

    Attributes:
        size, etag: those of the object that was opened.
        end: where it ends, if a request found that to be before its size.
    """

    def __init__(self, size: int | None = None, etag: str = "") -> None:
        self.size = size
        self.etag = etag
        self.end: int | None = None
        self._given = size, etag
        # What the object is now, where it is another one: the size or ETag that a request found to its end.
        self._settled = ""

    def check(self, response: Response, start: int, stop: int, *, checksummed: bool = False) -> Response:
        """Return the response if it can be true.

        Args:
            response: to a request for `[start, stop)`.
            start, stop: of the range.
            checksummed: the caller compares the bytes, so that what is left of an object that is settled
                to be another one may be taken.

        Raises:
            ChangedError, BadResponseError: it is another object's, or not what was asked for.
            PastEndError: the object ends before `stop`.
        """
        change = self._change(response)
        if change is not None and not (checksummed and change.settled):
            raise change
        if len(response.data) != stop - start:
            total = response.total
            if total is not None and total < stop and len(response.data) == total - start:
                raise PastEndError(start, stop, total)
            raise BadResponseError(
                f"the response holds {len(response.data)} bytes where {stop - start} were asked for"
            )
        if change is not None:
            return response
        # Only a response that counts may teach us.
        self.size = self.size if response.total is None else response.total
        self.etag = self.etag or response.etag
        self.end = None
        return response

    def _change(self, response: Response) -> ChangedError | None:
        if response.total is not None and self.size is not None and response.total != self.size:
            expected, found = f"{self.size} bytes", f"{response.total} bytes"
        elif response.etag and self.etag and response.etag != self.etag:
            expected, found = f"ETag {self.etag}", f"ETag {response.etag}"
        else:
            return None
        return ChangedError(expected, found, settled=found == self._settled, total=response.total)

    def afresh(self) -> ObjectIdentity:
        """Return what is known without what responses have told of the object that was opened."""
        copy = ObjectIdentity(*self._given)
        copy._settled, copy.end = self._settled, self.end
        return copy

    def settle(self, error: RetryError) -> None:
        """Note what the object is now, where a request failed for good because it is another one.

        What is asked for afterwards is asked for once, and taken if the caller compares it: of a shard that
        was cut all blocks may be read one by one to find those that are left.
        """
        cause = error.__cause__
        if isinstance(cause, ChangedError):
            self._settled = cause.found
        if isinstance(cause, ChangedError | PastEndError):
            self.found_size(cause.total)

    def found_size(self, size: int | None) -> None:
        """Note the size of what is there now."""
        if size is not None and self.size is not None and size < self.size:
            self.end = size

    def reaches(self, stop: int) -> bool:
        """Return whether the object may hold `[..., stop)`, as far as is known."""
        return self.size is None or stop <= self.size

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
        gap: bytes that may be fetched needlessly to save a request; None for that of the tuning.
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
        gap: int | None = None,
    ) -> None:
        self._gap = tuning.gap if gap is None else gap
        self._requests = requests
        self._tuning = tuning
        self._path = path
        self._identity = identity
        self._engine = engine
        self._checksummed = checksummed

    def begin(self, starts: Offsets, stops: Offsets) -> Callable[[], list[memoryview]]:
        """Send the requests for many ranges; return what waits for their bytes, in the order asked.

        Raises:
            RetryError: a request failed for good; by what is returned.
            PastEndError: the object ends before a range does; likewise.
        """
        together = self._wanted_together(starts, stops)
        if together is None:
            return submit(self._read(starts, stops))
        batch, assemble = together
        wait = batch.begin()

        def finish() -> list[memoryview]:
            found = wait()
            # Whatever it was comes again, one request at a time, and is reported then.
            return submit(self._read(starts, stops))() if found is None else assemble(found)

        return finish

    def _wanted_together(self, starts: Offsets, stops: Offsets) -> tuple[BatchRead, Assemble] | None:
        """Return what to send in few calls of the engine, or None where each request is sent by itself."""
        if not (self._engine and self._checksummed and self._requests.batches.closed):
            return None
        reader = self._requests.engine.reader_of(self._path)
        if reader is None or reader.fetch_many is None:
            return None
        most = self._tuning.max_request_bytes
        if len(starts) == 1:
            # What streams ask for: nothing to merge, to cut or to hand round.
            start, stop = int(starts[0]), int(stops[0])
            if 0 <= start < stop <= start + most and self._identity.reaches(stop):
                alone = [(self._path, [start], [stop])]
                return BatchRead(self._requests, self._tuning, reader.fetch_many, alone), list
        merged = coalesce(starts, stops, gap=self._gap, max_bytes=most)
        if not merged.stops.size or not self._identity.reaches(int(merged.stops.max())):
            return None
        groups = _cut(merged, most)
        pieces = [piece for group in groups for piece in group]
        near = self._requests.hedge.fastest <= _NEAR_SECONDS
        together = _TOGETHER_NEAR if near else _TOGETHER
        batches = [
            (self._path, [start for start, _ in batch], [stop for _, stop in batch])
            for batch in _batches(pieces, self._tuning.large_bytes, together)
        ]
        batch = BatchRead(self._requests, self._tuning, reader.fetch_many, batches)
        return batch, lambda found: _hand_out(found, groups, merged, starts, stops)

    async def _read(self, starts: Offsets, stops: Offsets) -> list[memoryview]:
        merged = coalesce(starts, stops, gap=self._gap, max_bytes=self._tuning.max_request_bytes)
        if merged.stops.size:
            last = int(np.argmax(merged.stops))
            self._identity.refuse_past_end(int(merged.stops[last]), int(merged.starts[last]))
        groups = _cut(merged, self._tuning.max_request_bytes)
        pieces = [piece for group in groups for piece in group]
        received = await _in_order(self._read_one, pieces, self._tuning.concurrency)
        return _hand_out([response.data for response in received], groups, merged, starts, stops)

    async def _read_one(self, piece: tuple[int, int]) -> Response:
        size = piece[1] - piece[0]
        try:
            return await self._requests.send(functools.partial(self._fetch, piece), kind="data", size=size)
        except RetryError as error:
            self._identity.settle(error)
            raise

    async def _fetch(self, piece: tuple[int, int], client: Client) -> Response:
        if self._engine:
            response = await self._requests.engine.fetch(client, self._path, *piece)
        else:
            response = await client.fetch(self._path, *piece)
        return self._identity.check(response, *piece, checksummed=self._checksummed)


class RangeOf(NamedTuple):
    """A range of an object, whose responses are held to an identity."""

    path: str
    identity: ObjectIdentity
    start: int
    stop: int


def read_apart(requests: Requests, tuning: Tuning, ranges: Sequence[RangeOf]) -> BatchRead | None:
    """Return what sends a request for each of some ranges, None where they must go one by one.

    The caller has checksums; neighbours of one object go in one call of the engine.
    """
    if not requests.batches.closed:
        return None
    fetch_many: FetchMany | None = None
    batches: list[Batch] = []
    path, size = "", 0
    for each in ranges:
        if each.path != path:
            reader = requests.engine.reader_of(each.path)
            fetch_many = None if reader is None else reader.fetch_many
        length = each.stop - each.start
        fits = 0 < length <= tuning.max_request_bytes and each.identity.reaches(each.stop)
        if fetch_many is None or not fits:
            return None
        size += length
        starts, stops = batches[-1][1:] if each.path == path else ([], [])
        if starts and len(starts) < _TOGETHER and size <= tuning.large_bytes and stops[-1] != each.start:
            starts.append(each.start)
            stops.append(each.stop)
        else:
            batches.append((each.path, [each.start], [each.stop]))
            size = length
        path = each.path
    return None if fetch_many is None else BatchRead(requests, tuning, fetch_many, batches, apart=True)


class BatchRead:
    """Calls of the engine for several requests each, without an event loop between them and who waits.

    Threads of the engine note what has come, and who waits is woken once, by the last of it. Until then it
    looks after the time: a call that is late is made a second time, one without an answer in time has failed.
    A loop in a thread of its own costs more than sending the requests does, most of it in waking.

    Args:
        requests: of this process.
        tuning: time limits.
        fetch_many: sends the requests of a batch, given what it is.
        batches: path, starts and stops of each.
        apart: one that fails leaves the others: its requests have None for bytes.
    """

    def __init__(
        self,
        requests: Requests,
        tuning: Tuning,
        fetch_many: FetchMany,
        batches: Sequence[Batch],
        *,
        apart: bool = False,
    ) -> None:
        self.requests = requests
        self.tuning = tuning
        self.fetch_many = fetch_many
        self.lock = threading.Lock()
        self._apart = apart
        self._calls = [_Call(self, *batch) for batch in batches]
        self._left = len(self._calls)
        self._found: list[Any] | None = None
        self._over = False
        # Held until the answer is there.
        self._ended = threading.Lock()
        self._ended.acquire()

    def begin(self) -> Callable[[], list[Any] | None]:
        """Send everything; return what waits for the bytes of all requests, in order: None where any failed.

        Raises:
            RuntimeError: called from the I/O thread, which must not wait.
        """
        refuse_io_thread()
        for call in list(self._calls):
            call.send()
        return _Waiting(self)

    def wait(self) -> list[Any] | None:
        """Wait for the bytes, as what `begin` returns does."""
        try:
            while not self._ended.acquire(timeout=self._attend()):
                pass
        except BaseException:
            # An interrupt of the wait.
            self._end(None)
            raise
        # Once: what waits may hold this longer than the bytes.
        found, self._found = self._found, None
        return found

    def _attend(self) -> float:
        """Send late calls again, end those without an answer; return the seconds until the next is due."""
        now = time.monotonic()
        due = self.tuning.stall
        for call in self._calls:
            due = min(due, call.attend(now))
        return due

    def finished(self) -> None:
        """Note that one more call has its bytes."""
        with self.lock:
            self._left -= 1
            last = not self._left
        if last:
            everything = [data for call in self._calls for data in call.found]
            self._end([None if data is None else memoryview(data) for data in everything])

    def failed(self, call: _Call, error: BaseException | None = None) -> None:
        """Note that a call failed; the others are of no use, if they are not apart."""
        if error is None or classify(error).kind not in _OF_ONE_OBJECT:
            self.requests.batches.failed()
        if self._apart:
            call.give_up()
        else:
            self._end(None)

    def drop(self) -> None:
        """Cancel what is under way, since what waited for it is gone; in the middle of anything."""
        requests = self.requests
        if requests.pid == os.getpid():
            # Here a lock might be held that ending needs.
            with contextlib.suppress(RuntimeError):  # at the end of the program the loop is closed
                requests.loop.call_soon_threadsafe(self._end, None)

    def _end(self, found: list[Any] | None) -> None:
        with self.lock:
            if self._over:
                return
            self._over = True
            calls = self._calls
            # They refer back: what they hold would stay until the collector runs.
            self._calls = []
            self._found = found
        for call in calls:
            call.stop()
        self._ended.release()


class _Waiting:
    """Waits for a batch, once. Dropped before that it drops the batch, whose permits others may want."""

    def __init__(self, batch: BatchRead) -> None:
        self._batch: BatchRead | None = batch

    def __call__(self) -> list[Any] | None:
        batch, self._batch = self._batch, None
        assert batch is not None  # noqa: S101 - for the type checker
        return batch.wait()

    def __del__(self) -> None:
        if self._batch is not None:
            self._batch.drop()


class _Call:
    """One call of the engine, its time limit, and the second one if it is late.

    Attributes:
        found: the bytes of each request, once they are there.
    """

    def __init__(self, owner: BatchRead, path: str, starts: list[int], stops: list[int]) -> None:
        self.found: Sequence[Any] = ()
        self._owner = owner
        self._ranges = (starts, stops)
        self._path = path
        self._size = sum(stops) - sum(starts)
        self._limit = owner.requests.hedge.limit(self._size)
        self._begun: float | None = None
        self._attempts: list[Attempt] = []
        self._futures: list[asyncio.Future[Any]] = []
        self._failed = 0
        self._settled = False

    def send(self) -> None:
        """Have the requests sent, as soon as there are permits for them."""
        attempt = Attempt(
            self._begin, len(self._ranges[0]), large=self._size > self._owner.tuning.large_bytes
        )
        self._attempts.append(attempt)
        self._owner.requests.limiter.submit(attempt)

    def stop(self) -> None:
        """Cancel what is under way, and release the permits."""
        with self._owner.lock:
            self._settled = True
            attempts, self._attempts = self._attempts, []
            futures, self._futures = self._futures, []
        for future in futures:
            future.cancel()
        for attempt in attempts:
            self._owner.requests.limiter.release(attempt)

    def give_up(self) -> None:
        """End without bytes, while others go on."""
        with self._owner.lock:
            first, self._settled = not self._settled, True
        if first:
            self.found = [None] * len(self._ranges[0])
            self.stop()
            self._owner.finished()

    def attend(self, now: float) -> float:
        """Send the requests again if they are late, or give up; return the seconds until the next is due."""
        owner = self._owner
        most = owner.tuning.timeout(self._size)
        limit = most if self._limit is None else min(most, self._limit)
        if self._settled:
            return limit
        if self._begun is None:
            return self._attend_unsent(now, limit)
        spent = now - self._begun
        if spent >= most:
            owner.failed(self)
            return most
        if self._limit is None:
            return most - spent
        if spent < self._limit:
            return self._limit - spent
        self._limit = None
        owner.requests.hedge.sent()
        self.send()
        return most - spent

    def _attend_unsent(self, now: float, limit: float) -> float:
        """Begin what has its permits and was not begun: who gave them may have been interrupted."""
        granted = [attempt for attempt in self._attempts if attempt.has]
        for attempt in granted:
            if now - attempt.since >= _UNSENT_SECONDS:
                self._begin(attempt)
        return min(limit, _UNSENT_SECONDS) if granted else limit

    def _begin(self, attempt: Attempt) -> None:
        owner = self._owner
        if self._settled:
            # Between the end of all calls and now.
            owner.requests.limiter.release(attempt)
            return
        if self._begun is None:
            self._begun = time.monotonic()
        try:
            future = begin_call(owner.fetch_many, self._path, *self._ranges)
        except Exception:  # noqa: BLE001 - whatever it was comes again, one request at a time, and is reported then
            owner.failed(self)
            return
        with owner.lock:
            settled = self._settled
            if not settled:
                self._futures.append(future)
        if settled:
            future.cancel()
        else:
            future.add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[Any]) -> None:
        """Take what has come, in the thread that it came in: any one."""
        # Asked for in any case: asyncio logs errors that are not.
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or self._settled:
            return
        owner = self._owner
        right = error is None and self._fits(future.result())
        with owner.lock:
            first = right and not self._settled
            self._settled |= right
            self._failed += not right
            failed = not self._settled and self._failed == len(self._attempts)
        if failed:
            owner.failed(self, error)
        if not first:
            return
        assert self._begun is not None  # noqa: S101 - for the type checker
        owner.requests.hedge.record(self._size, time.monotonic() - self._begun)
        self.found = future.result()
        self.stop()
        owner.finished()

    def _fits(self, found: Sequence[Any]) -> bool:
        starts, stops = self._ranges
        return [len(data) for data in found] == [b - a for a, b in zip(starts, stops, strict=True)]


def _cut(merged: Coalesced, longest: int) -> list[list[tuple[int, int]]]:
    """Cut what is longer than one request into equal parts."""
    ranges = zip(merged.starts.tolist(), merged.stops.tolist(), strict=True)
    if not (merged.stops - merged.starts > longest).any():
        return [[each] for each in ranges]
    groups = []
    for start, stop in ranges:
        count = -(-(stop - start) // longest)
        edges = [start + (stop - start) * i // count for i in range(count + 1)]
        groups.append(list(itertools.pairwise(edges)))
    return groups


def _batches(
    pieces: Sequence[tuple[int, int]], most_bytes: int, most: int
) -> list[Sequence[tuple[int, int]]]:
    """Cut into runs of at most so many requests and, if they are more than one, bytes.

    Pieces that touch are never in one run: they were cut from a range too long for one request.
    """
    runs: list[list[tuple[int, int]]] = []
    size = 0
    for start, stop in pieces:
        size += stop - start
        if runs and len(runs[-1]) < most and size <= most_bytes and runs[-1][-1][1] != start:
            runs[-1].append((start, stop))
        else:
            runs.append([(start, stop)])
            size = stop - start
    return list(runs)


def _hand_out(
    found: Sequence[Buffer],
    groups: Sequence[Sequence[tuple[int, int]]],
    merged: Coalesced,
    starts: Offsets,
    stops: Offsets,
) -> list[memoryview]:
    """Return the bytes of each range, from those of the pieces that the merged ranges were cut into."""
    pieces = iter(found)
    return scatter([_join([next(pieces) for _ in group]) for group in groups], merged, starts, stops)


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
