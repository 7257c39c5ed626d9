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

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from shardio.ranges import Coalesced, coalesce, scatter
from shardio.storage._errors import BadResponseError, ChangedError, PastEndError, RetryError
from shardio.storage._requests import Pending, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from shardio.storage._client import FetchMany, Response
    from shardio.storage._requests import Sender
    from shardio.storage._store import Buffer, Offsets

# Requests of one call. obstore sends ten of them side by side, so that more wait for each other: that costs
# less than a call does only where answers are near.
_TOGETHER = 8
_TOGETHER_NEAR = 32
_NEAR_SECONDS = 0.005


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


class RangeReader:
    """Reads ranges of one object, held to what is known of it.

    Args:
        sender: of this process.
        path: the client's name for the object.
        identity: what is known of the object; responses are held to it.
        engine: read with the data engine, where there is one; otherwise with fsspec's client.
        checksummed: the caller has checksums, so several requests may go to the engine in one call.
        gap: bytes that may be fetched needlessly to save a request; None for that of the tuning.
    """

    def __init__(
        self,
        sender: Sender,
        path: str,
        identity: ObjectIdentity,
        *,
        engine: bool = False,
        checksummed: bool = False,
        gap: int | None = None,
    ) -> None:
        self._gap = sender.tuning.gap if gap is None else gap
        self._sender = sender
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
        many = self._many()
        if many is not None and len(starts) == 1:
            # What streams ask for: nothing to merge, to cut or to hand round.
            start, stop = int(starts[0]), int(stops[0])
            most = self._sender.tuning.max_request_bytes
            if 0 <= start < stop <= start + most and self._identity.reaches(stop):
                alone = [together(many, self._path, [start], [stop])]
                return self._begin_together(alone, _only, starts, stops)
        merged, groups = self._plan(starts, stops)
        pieces = [piece for group in groups for piece in group]
        past = bool(pieces) and not self._identity.reaches(int(merged.stops.max()))
        if many is None or past or not pieces:
            return self._begin_each(starts, stops, merged, groups)
        near = self._sender.hedge.fastest <= _NEAR_SECONDS
        runs = _batches(pieces, self._sender.tuning.large_bytes, _TOGETHER_NEAR if near else _TOGETHER)
        calls = [
            together(many, self._path, [start for start, _ in run], [stop for _, stop in run]) for run in runs
        ]

        def assemble(found: list[list[memoryview]]) -> list[memoryview]:
            return _hand_out([data for call in found for data in call], groups, merged, starts, stops)

        return self._begin_together(calls, assemble, starts, stops)

    def _many(self) -> FetchMany | None:
        """Return what reads several ranges in one call, None where each request is sent by itself."""
        if not (self._engine and self._checksummed and self._sender.batches.closed):
            return None
        reader = self._sender.engine.reader_of(self._path)
        return None if reader is None else reader.fetch_many

    def _begin_together(
        self,
        calls: list[Request],
        assemble: Callable[[list[list[memoryview]]], list[memoryview]],
        starts: Offsets,
        stops: Offsets,
    ) -> Callable[[], list[memoryview]]:
        wait = Pending(self._sender, calls).begin()

        def finish() -> list[memoryview]:
            try:
                found = wait()
            except RetryError:
                # Whatever it was comes again, one request at a time, and is reported then.
                return self._begin_each(starts, stops, *self._plan(starts, stops), again=True)()
            return assemble(found)

        return finish

    def _plan(self, starts: Offsets, stops: Offsets) -> tuple[Coalesced, list[list[tuple[int, int]]]]:
        most = self._sender.tuning.max_request_bytes
        merged = coalesce(starts, stops, gap=self._gap, max_bytes=most)
        return merged, _cut(merged, most)

    def _begin_each(
        self,
        starts: Offsets,
        stops: Offsets,
        merged: Coalesced,
        groups: list[list[tuple[int, int]]],
        *,
        again: bool = False,
    ) -> Callable[[], list[memoryview]]:
        """Send a request for each piece; `again`: the engine has failed to read these."""
        last = int(np.argmax(merged.stops)) if merged.stops.size else 0
        if merged.stops.size and not self._identity.reaches(int(merged.stops[last])):
            past = PastEndError(int(merged.starts[last]), int(merged.stops[last]), self._identity.size or 0)
            return lambda: _fail(past)
        engine = self._engine and not again
        wait = Pending(
            self._sender, [self._one(piece, engine) for group in groups for piece in group]
        ).begin()

        def finish() -> list[memoryview]:
            try:
                return _hand_out(wait(), groups, merged, starts, stops)
            except RetryError as error:
                self._identity.settle(error)
                raise

        return finish

    def _one(self, piece: tuple[int, int], engine: bool) -> Request:  # noqa: FBT001 - private
        start, stop = piece

        def begin(sender: Sender, tries: int) -> Future[Response]:
            if engine and not tries:
                return sender.fetch(self._path, start, stop)
            # Again by the client that tells what a service says of a refusal, as when to ask again.
            return sender.by_client(lambda client: client.fetch(self._path, start, stop))

        def check(response: Response) -> Buffer:
            return self._identity.check(response, start, stop, checksummed=self._checksummed).data

        return Request(begin, kind="data", size=stop - start, check=check)


def together(call: FetchMany, path: str, starts: list[int], stops: list[int]) -> Request:
    """Return the request for several ranges of one object in one call of the engine.

    Its answer is their bytes; of the object it tells nothing but the lengths.
    """

    def check(found: Sequence[Any]) -> list[memoryview]:
        views = [memoryview(data) for data in found]
        if [len(data) for data in views] != [b - a for a, b in zip(starts, stops, strict=True)]:
            raise BadResponseError("the response holds other numbers of bytes than were asked for")
        return views

    return Request(
        lambda sender, _: sender.fetch_many(call, path, starts, stops),
        kind="data",
        size=sum(stops) - sum(starts),
        count=len(starts),
        check=check,
        once=True,
    )


class RangeOf(NamedTuple):
    """A range of an object, whose responses are held to an identity."""

    path: str
    identity: ObjectIdentity
    start: int
    stop: int


def read_apart(sender: Sender, ranges: Sequence[RangeOf]) -> Callable[[], list[memoryview | None]] | None:
    """Send a request for each of some ranges and return what waits, None where they must go one by one.

    The caller has checksums; neighbours of one object go in one call of the engine. Where a call fails its
    ranges have None for bytes.
    """
    if not sender.batches.closed:
        return None
    call: FetchMany | None = None
    calls: list[FetchMany] = []
    runs: list[tuple[str, list[int], list[int]]] = []
    path, size = "", 0
    for each in ranges:
        if each.path != path:
            reader = sender.engine.reader_of(each.path)
            call = None if reader is None else reader.fetch_many
        length = each.stop - each.start
        fits = 0 < length <= sender.tuning.max_request_bytes and each.identity.reaches(each.stop)
        if call is None or not fits:
            return None
        size += length
        starts, stops = runs[-1][1:] if each.path == path else ([], [])
        large = size > sender.tuning.large_bytes
        if starts and len(starts) < _TOGETHER and not large and stops[-1] != each.start:
            starts.append(each.start)
            stops.append(each.stop)
        else:
            runs.append((each.path, [each.start], [each.stop]))
            calls.append(call)
            size = length
        path = each.path
    wanted = [together(call, *run) for call, run in zip(calls, runs, strict=True)]
    wait = Pending(sender, wanted, apart=True).begin()

    def finish() -> list[memoryview | None]:
        found: list[memoryview | None] = []
        for run, views in zip(runs, wait(), strict=True):
            found += [None] * len(run[1]) if views is None else views
        return found

    return finish


def _only(found: list[list[memoryview]]) -> list[memoryview]:
    return found[0]


def _fail(error: Exception) -> NoReturn:
    raise error


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
