"""The one retry layer, and second requests for stragglers; retries of the libraries below are turned off.

Backoff with full jitter after M. Brooker, "Exponential Backoff and Jitter" (AWS Architecture Blog, 2015); the
budget follows "Addressing Cascading Failures" in Site Reliability Engineering (O'Reilly, 2016); second
requests ("hedging") follow J. Dean, L. A. Barroso, "The Tail at Scale" (CACM 56(2), 2013).
"""

from __future__ import annotations

import asyncio
import collections
import random
import threading
from typing import TYPE_CHECKING, TypeVar

from shardio.storage._errors import ErrorKind, RequestFailure, RetryError, classify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shardio.storage._tuning import Clock, Tuning

T = TypeVar("T")

# A wrong response that comes again is the server's habit, not an accident.
_BAD_RESPONSES = 4
# Not the global generator: a program that seeded that one must draw the same numbers whatever a network does.
_jitter = random.SystemRandom()


class RetryBudget:
    """A stock of retries, refilled by time and by success; finding it empty gives the time to wait."""

    def __init__(self, tuning: Tuning, clock: Clock) -> None:
        self._tuning = tuning
        self._clock = clock
        self._stock = tuning.retry_burst
        self._filled = clock.now()

    def succeeded(self) -> None:
        """Count a successful request."""
        self._stock = min(self._tuning.retry_burst, self._stock + self._tuning.retry_share)

    def take(self) -> float:
        """Take one retry and return the seconds until it may be used."""
        now = self._clock.now()
        refill = (now - self._filled) * self._tuning.retries_per_second
        self._stock = min(self._tuning.retry_burst, self._stock + refill) - 1
        self._filled = now
        return max(0.0, -self._stock / self._tuning.retries_per_second)

    def give_back(self) -> None:
        """Return a retry that was taken and not used."""
        self._stock += 1


class Retrier:
    """Runs requests of one store until they succeed, cannot succeed, or time is up; used from one loop."""

    def __init__(self, tuning: Tuning, clock: Clock) -> None:
        self._tuning = tuning
        self._clock = clock
        self._budget = RetryBudget(tuning, clock)
        self._answered = False
        self._succeeded = False
        self.requests = self.retries = 0

    async def run(
        self, request: Callable[[], Awaitable[T]], *, size: int = 0, renew: Callable[[], bool] = lambda: False
    ) -> T:
        """Send a request until it succeeds.

        Args:
            request: sends it once; called again for each attempt.
            size: bytes it moves, for its time limit.
            renew: called when credentials have expired; True if there is a fresh client to try at once.

        Raises:
            RetryError: it failed for good.
        """
        begun = self._clock.now()
        attempts = bad = 0
        applied = False
        while True:
            attempts += 1
            self.requests += 1
            self.retries += attempts > 1
            timeout = self._tuning.timeout(size)
            limit = self._clock.limit(timeout)
            try:
                # Not `wait_for`, which makes a task of each request.
                async with limit:
                    response = await request()
            except Exception as error:  # noqa: BLE001 - five libraries, each with its own; diagnosed below
                last, cause = classify(error), error
                if limit.expired():
                    last = last._replace(text=f"no answer within {timeout:.3g} s")
            else:
                self._answered = self._succeeded = True
                self._budget.succeeded()
                return response
            applied |= last.applied
            bad += last.kind is ErrorKind.BAD_RESPONSE
            if last.status is not None:
                self._answered = True
            pause = self._pause(last, attempts, begun)
            if last.kind is ErrorKind.EXPIRED:
                if renew():
                    pause = 0.0
                elif not self._succeeded:
                    # A service that has never taken them: waiting is for those that are being renewed.
                    pause = None
            if pause is None or bad >= _BAD_RESPONSES:
                spent = self._clock.now() - begun
                try:
                    raise RetryError(last, attempts=attempts, seconds=spent, applied=applied) from cause
                finally:
                    # The error holds this frame, which must hold neither it nor the limit, whose task has
                    # it, too: see `_loop.submit`.
                    del cause, limit
            await self._clock.sleep(pause)

    def _pause(self, last: RequestFailure, attempts: int, begun: float) -> float | None:
        """Return the seconds until the next attempt, or None if there is to be none."""
        if not last.kind.worth_retrying:
            return None
        tuning = self._tuning
        # Full jitter: uniform from nothing to the bound.
        bound = min(tuning.max_backoff, tuning.backoff * 2.0 ** min(attempts, 30))
        pause = last.retry_after + _jitter.uniform(0.0, bound)
        pause = max(pause, self._budget.take())
        deadline = tuning.deadline if self._answered else min(tuning.first_deadline, tuning.deadline)
        if last.kind is ErrorKind.EXPIRED:
            # What was not renewed by the next time that it would be read again is renewed by nothing.
            deadline = min(deadline, tuning.renewal)
        if self._clock.now() + pause > begun + deadline:
            self._budget.give_back()
            return None
        return pause


_ENOUGH = 32  # requests of one kind before their quantile means anything
_REMEMBERED = 256
_FASTEST = 0.02  # seconds; below this a second request costs more than it saves
_STOCK = 4.0  # second requests that may be sent in a row
_COMPARED = 64  # requests of which the fastest tells how near the store is


class Hedge:
    """Remembers how long requests of a kind take, and sends a second one when one takes too long.

    Attributes:
        fastest: seconds that the fastest request of late took; infinite before the first.
    """

    def __init__(self, tuning: Tuning, clock: Clock) -> None:
        self._tuning = tuning
        self._clock = clock
        self._seen: dict[int, collections.deque[float]] = {}
        self._counts: collections.Counter[int] = collections.Counter()
        self._limits: dict[int, float] = {}
        self._stock = 0.0
        self.fastest = self._least = float("inf")
        self._noted = 0
        # Threads record, too.
        self._lock = threading.Lock()

    def limit(self, size: int) -> float | None:
        """Return the seconds after which a request for `size` bytes is late; None if it is not known yet."""
        if self._tuning.hedge_quantile >= 1 or self._stock < 1:
            return None
        return self._limits.get(_kind(size))

    def sent(self) -> None:
        """Count a second request."""
        with self._lock:
            self._stock -= 1

    def note(self, seconds: float) -> None:
        """Record that a request of whatever kind took so long: the fastest tell how near the store is."""
        with self._lock:
            self._noted += 1
            self._least = min(self._least, seconds)
            if self._noted % _COMPARED == 0:
                self.fastest, self._least = self._least, float("inf")
            elif self._noted < _COMPARED:
                self.fastest = self._least

    def record(self, size: int, seconds: float) -> None:
        """Record that a request for `size` bytes of data took so long."""
        self.note(seconds)
        kind = _kind(size)
        with self._lock:
            seen = self._seen.setdefault(kind, collections.deque(maxlen=_REMEMBERED))
            seen.append(seconds)
            self._stock = min(_STOCK, self._stock + self._tuning.hedge_share)
            self._counts[kind] += 1
            if len(seen) >= _ENOUGH and (kind not in self._limits or self._counts[kind] % 16 == 0):
                ranked = sorted(seen)
                self._limits[kind] = max(
                    _FASTEST, ranked[int(self._tuning.hedge_quantile * (len(ranked) - 1))]
                )

    async def run(self, request: Callable[[], Awaitable[T]], size: int) -> T:
        """Send a request, and once more if it is late; the first to succeed answers.

        Raises:
            Exception: whatever the last of the two to fail raised.
        """
        begun = self._clock.now()
        limit = self.limit(size)
        response = await (request() if limit is None else self._twice(request, limit))
        self.record(size, self._clock.now() - begun)
        return response

    async def _twice(self, request: Callable[[], Awaitable[T]], limit: float) -> T:
        tasks = [asyncio.ensure_future(request())]
        try:
            done, _ = await asyncio.wait(tasks, timeout=limit)
            if not done:
                self.sent()
                tasks.append(asyncio.ensure_future(request()))
            return await _first_success(tasks)
        finally:
            await _cancel(tasks)


def _kind(size: int) -> int:
    """Return the class of sizes whose times are compared: factors of four."""
    return size.bit_length() // 2


async def _first_success(tasks: Sequence[asyncio.Future[T]]) -> T:
    pending = set(tasks)
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        best = next((task for task in done if task.exception() is None), None)
        if best is not None or not pending:
            return (best or done.pop()).result()


async def _cancel(tasks: Sequence[asyncio.Future[T]]) -> None:
    late = [task for task in tasks if not task.done()]
    for task in late:
        task.cancel()
    if late:
        await asyncio.gather(*late, return_exceptions=True)
    for task in tasks:
        # Looked at, so that asyncio does not report it as never retrieved.
        if not task.cancelled():
            task.exception()
