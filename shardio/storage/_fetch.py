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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import itemgetter
from typing import Any, NoReturn, TypeAlias

from shardio.ranges import Coalesced, coalesce, scatter
from shardio.storage._client import FetchMany, Response
from shardio.storage._errors import BadResponseError, ChangedError, PastEndError, RetryError
from shardio.storage._requests import Pending, Request, Sender
from shardio.storage._store import Buffer, Offsets

# Requests of one call. obstore sends ten of them side by side, so that more wait for each other: that costs
# less than a call does only where answers are near.
_TOGETHER = 8
_TOGETHER_NEAR = 32
_NEAR_SECONDS = 0.005

# Start and stop of what one request asks for.
Piece: TypeAlias = tuple[int, int]


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


@dataclass(eq=False, repr=False)
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

    sender: Sender
    path: str
    identity: ObjectIdentity
    _: KW_ONLY
    engine: bool = False
    checksummed: bool = False
    gap: int | None = None

    def begin(self, starts: Offsets, stops: Offsets) -> Callable[[], list[memoryview]]:
        """Send the requests for many ranges; return what waits for their bytes, in the order asked.

        Raises:
            RetryError: a request failed for good; by what is returned.
            PastEndError: the object ends before a range does; likewise.
        """
        sender = self.sender
        longest = sender.tuning.max_request_bytes
        gap = sender.tuning.gap if self.gap is None else self.gap
        merged = coalesce(starts, stops, gap=gap, max_bytes=longest)
        if not merged.ranges:
            return lambda: scatter([], merged)
        last = max(merged.ranges, key=itemgetter(1))
        if not self.identity.reaches(last[1]):
            past = PastEndError(*last, self.identity.size or 0)
            return lambda: _fail(past)
        pieces = [piece for each in merged.ranges for piece in _cut(each, longest)]
        near = sender.hedge.fastest <= _NEAR_SECONDS
        calls = (
            _calls(sender, self.path, pieces, _TOGETHER_NEAR if near else _TOGETHER)
            if self.engine and self.checksummed and sender.batches.closed
            else None
        )
        if calls is None:
            return self._begin_each(merged, pieces, engine=self.engine)
        wait = Pending(sender, calls).begin()

        def finish() -> list[memoryview]:
            try:
                found = wait()
            except RetryError:
                # Whatever it was comes again, one request at a time, and is reported then.
                return self._begin_each(merged, pieces, engine=False)()
            return _hand_out([data for call in found for data in call], merged)

        return finish

    def _begin_each(
        self, merged: Coalesced, pieces: list[Piece], *, engine: bool
    ) -> Callable[[], list[memoryview]]:
        """Send a request for each piece, with the engine where it has not failed to read them."""
        wait = Pending(self.sender, [self._one(piece, engine) for piece in pieces]).begin()

        def finish() -> list[memoryview]:
            try:
                return _hand_out(wait(), merged)
            except RetryError as error:
                self.identity.settle(error)
                raise

        return finish

    def _one(self, piece: Piece, engine: bool) -> Request:  # noqa: FBT001 - private
        start, stop = piece

        def begin(sender: Sender, tries: int) -> Awaitable[Response]:
            if engine and not tries:
                return sender.fetch(self.path, start, stop)
            # Again by the client that tells what a service says of a refusal, as when to ask again.
            return sender.by_client(lambda client: client.fetch(self.path, start, stop))

        def check(response: Response) -> Buffer:
            return self.identity.check(response, start, stop, checksummed=self.checksummed).data

        return Request(begin, kind="data", size=stop - start, check=check)


def together(fetch: FetchMany, path: str, pieces: Sequence[Piece]) -> Request:
    """Return the request for several ranges of one object in one call of the engine.

    Its answer is their bytes; of the object it tells nothing but the lengths.
    """
    starts, stops = [start for start, _ in pieces], [stop for _, stop in pieces]
    sizes = [stop - start for start, stop in pieces]

    def check(found: Sequence[Any]) -> list[memoryview]:
        views = [memoryview(data) for data in found]
        if [len(data) for data in views] != sizes:
            raise BadResponseError("the response holds other numbers of bytes than were asked for")
        return views

    return Request(
        lambda _sender, _tries: fetch(path, starts, stops),
        kind="data",
        size=sum(sizes),
        count=len(sizes),
        check=check,
        once=True,
    )


def _calls(sender: Sender, path: str, pieces: Sequence[Piece], most: int) -> list[Request] | None:
    """Return the calls of the engine for ranges of one object; None where it reads none of it now.

    Each is for at most so many ranges and, if they are more than one, so many bytes.  Pieces that touch are
    never in one call: the engine would make one request of them.
    """
    reader = sender.engine.reader_of(path)
    if reader is None:
        return None
    runs: list[list[Piece]] = []
    size = 0
    for start, stop in pieces:
        size += stop - start
        if runs and len(runs[-1]) < most and size <= sender.tuning.large_bytes and runs[-1][-1][1] != start:
            runs[-1].append((start, stop))
        else:
            runs.append([(start, stop)])
            size = stop - start
    return [together(reader.fetch_many, path, run) for run in runs]


def _fail(error: Exception) -> NoReturn:
    raise error


def _cut(piece: Piece, longest: int) -> list[Piece]:
    """Cut what is longer than one request into equal parts."""
    start, stop = piece
    count = -(-(stop - start) // longest)
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    return list(itertools.pairwise(edges))


def _hand_out(found: Sequence[Buffer], merged: Coalesced) -> list[memoryview]:
    """Return the bytes of each range, from those of the pieces that the merged ranges were cut into."""
    if len(found) > len(merged.ranges):
        pieces = iter(found)
        found = [_join(pieces, stop - start) for start, stop in merged.ranges]
    return scatter(found, merged)


def _join(pieces: Iterator[Buffer], size: int) -> Buffer:
    """Return the next so many bytes of some pieces, of which each ends with one."""
    parts = [next(pieces)]
    left = size - len(parts[0])
    while left:
        parts.append(next(pieces))
        left -= len(parts[-1])
    return parts[0] if len(parts) == 1 else b"".join(parts)
