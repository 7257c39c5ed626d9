"""When a failed request is sent again, and when a late one is sent twice; the libraries below do neither.

Backoff with full jitter after M. Brooker, "Exponential Backoff and Jitter" (AWS Architecture Blog, 2015); the
budget follows "Addressing Cascading Failures" in Site Reliability Engineering (O'Reilly, 2016); second
requests ("hedging") follow J. Dean, L. A. Barroso, "The Tail at Scale" (CACM 56(2), 2013).
"""

from __future__ import annotations

import collections
import random
import threading
from collections.abc import Callable

from shardio.storage._errors import ErrorKind, RequestFailure, RetryError, classify
from shardio.storage._tuning import Clock, Tuning

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
        self._lock = threading.Lock()

    def succeeded(self) -> None:
        """Count a successful request."""
        # A turn lost to another thread is a tenth of a retry.
        self._stock = min(self._tuning.retry_burst, self._stock + self._tuning.retry_share)

    def spend(self) -> float:
        """Take one retry and return the seconds until it may be used."""
        with self._lock:
            now = self._clock.now()
            refill = (now - self._filled) * self._tuning.retries_per_second
            self._stock = min(self._tuning.retry_burst, self._stock + refill) - 1
            self._filled = now
            return max(0.0, -self._stock / self._tuning.retries_per_second)

    def give_back(self) -> None:
        """Return a retry that was taken and not used."""
        with self._lock:
            self._stock += 1


class Tries:
    """What became of one request so far.

    Attributes:
        begun: when its answer was first waited for: one that was begun ahead has all of its time then.
        count: how often it was sent, second requests for late ones aside.
        bad: how many answers were not what was asked for.
        applied: whether a write may have taken effect.
    """

    __slots__ = ("applied", "bad", "begun", "count")

    def __init__(self) -> None:
        self.begun: float | None = None
        self.count = self.bad = 0
        self.applied = False


class Retrier:
    """Says when the requests of one store are sent again; threads share it.

    Attributes:
        retries: requests that were sent again.
    """

    def __init__(self, tuning: Tuning, clock: Clock) -> None:
        self._tuning = tuning
        self._clock = clock
        self._budget = RetryBudget(tuning, clock)
        self._answered = False
        self._succeeded = False
        self.retries = 0

    def succeeded(self) -> None:
        """Note that a request was answered as it should be."""
        self._answered = self._succeeded = True
        self._budget.succeeded()

    def pause(self, tries: Tries, error: BaseException, renew: Callable[[], bool] = lambda: False) -> float:
        """Return the seconds until a request that failed is sent again.

        Args:
            tries: of the request; this failure is added.
            error: what its client raised.
            renew: called when credentials have expired; True if there is a fresh client to try at once.

        Raises:
            RetryError: it failed for good.
        """
        last = classify(error)
        tries.applied |= last.applied
        tries.bad += last.kind is ErrorKind.BAD_RESPONSE
        self._answered |= last.status is not None
        now = self._clock.now()
        begun = now if tries.begun is None else tries.begun
        pause = self._pause(last, tries.count, now - begun)
        if last.kind is ErrorKind.EXPIRED:
            if renew():
                pause = 0.0
            elif not self._succeeded:
                # A service that has never taken them: waiting is for those that are being renewed.
                pause = None
        if pause is None or tries.bad >= _BAD_RESPONSES:
            spent = now - begun
            raise RetryError(last, attempts=tries.count, seconds=spent, applied=tries.applied) from error
        self.retries += 1
        return pause

    def _pause(self, last: RequestFailure, attempts: int, spent: float) -> float | None:
        """Return the seconds until the next attempt, or None if there is to be none."""
        if not last.kind.worth_retrying:
            return None
        tuning = self._tuning
        # Full jitter: uniform from nothing to the bound.
        bound = min(tuning.max_backoff, tuning.backoff * 2.0 ** min(attempts, 30))
        pause = last.retry_after + _jitter.uniform(0.0, bound)
        pause = max(pause, self._budget.spend())
        deadline = tuning.deadline if self._answered else min(tuning.first_deadline, tuning.deadline)
        if last.kind is ErrorKind.EXPIRED:
            # What was not renewed by the next time that it would be read again is renewed by nothing.
            deadline = min(deadline, tuning.renewal)
        if spent + pause > deadline:
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

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._seen: dict[int, collections.deque[float]] = {}
        self._counts: collections.Counter[int] = collections.Counter()
        self._limits: dict[int, float] = {}
        self._stock = 0.0
        self.fastest = self._least = float("inf")
        self._noted = 0

    def limit(self, size: int) -> float | None:
        """Return the seconds after which a request for `size` bytes is late; None if it is not known yet."""
        if self._tuning.hedge_quantile >= 1 or self._stock < 1:
            return None
        return self._limits.get(_kind(size))

    def sent(self) -> None:
        """Count a second request."""
        # A turn lost to another thread is a twentieth of a request, or one.
        self._stock -= 1

    def note(self, seconds: float) -> None:
        """Record, on the I/O thread, that a request of whatever kind took so long: the fastest tell how near
        the store is.
        """  # noqa: D205 - one thought
        self._noted += 1
        self._least = min(self._least, seconds)
        if self._noted % _COMPARED == 0:
            self.fastest, self._least = self._least, float("inf")
        elif self._noted < _COMPARED:
            self.fastest = self._least

    def record(self, size: int, seconds: float) -> None:
        """Record, likewise, that a request for `size` bytes of data took so long."""
        self.note(seconds)
        kind = _kind(size)
        seen = self._seen.setdefault(kind, collections.deque(maxlen=_REMEMBERED))
        seen.append(seconds)
        self._stock = min(_STOCK, self._stock + self._tuning.hedge_share)
        self._counts[kind] += 1
        if len(seen) >= _ENOUGH and (kind not in self._limits or self._counts[kind] % 16 == 0):
            ranked = sorted(seen)
            self._limits[kind] = max(_FASTEST, ranked[int(self._tuning.hedge_quantile * (len(ranked) - 1))])


def _kind(size: int) -> int:
    """Return the class of sizes whose times are compared: factors of four."""
    return size.bit_length() // 2
