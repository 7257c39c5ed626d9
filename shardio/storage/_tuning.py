"""The numbers that steer remote reads, in one place, with the reasons for their defaults."""

from __future__ import annotations

import dataclasses
import threading
import time


class Clock:
    """Time as the sender of requests sees it; tests bring their own, in which pauses take no time."""

    def now(self) -> float:
        """Return seconds on a clock that never goes back: that of deadlines and pauses."""
        return time.monotonic()

    def ticks(self) -> float:
        """Return the same on the clock that says how long a request is under way."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def wait(self, gate: threading.Lock, seconds: float) -> None:
        """Wait for what is under way, until a lock is released, or for so long."""
        gate.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))

    def pause(self, gate: threading.Lock, seconds: float) -> None:
        """Wait until the next attempt is due, or a lock is released."""
        gate.acquire(timeout=seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """How remote stores fetch and retry.

    Attributes:
        concurrency: requests in flight per store and process; what 20 ms of latency and small ranges need.
        fsspec_concurrency: among them, those of fsspec's clients, which more only slow down.
        large_concurrency: among them, those for more than `large_bytes`, twice what the default plan asks for
            at once; together with `max_request_bytes` it bounds the memory of what is under way.
        gap: bytes fetched needlessly to save a request; what a connection moves in a millisecond or two.
        max_request_bytes: longest range of one request; longer ones are cut and fetched side by side.
        uploads: objects in flight; each holds at most two parts of `part_bytes` per connection in memory.
        part_bytes: size from which twice that much is uploaded in parts, and the size of the parts.
        deadline: seconds after which a call gives up retrying.
        first_deadline: the same before the store has ever answered, for a mistyped endpoint; less than
            `stall`, so that one that is silent is waited for once.
        backoff, max_backoff: seconds; the n-th retry waits a random time up to `backoff * 2**n`.
        retry_burst, retries_per_second, retry_share: budget of retries of a store: a stock, refilled by time
            and by this share of the successful requests.  Finding it empty means waiting, so an outage gets
            fewer requests than normal work, whatever the number of readers.
        stall: seconds within which a request must answer, beside `slowest` bytes per second for its body.
        hedge_quantile: a request slower than this quantile of its like is sent a second time; 1 turns it off.
        hedge_share: at most this share of requests is sent twice.
        renewal: seconds between two rebuilds of a client whose credentials expired.
    """

    concurrency: int = 256
    fsspec_concurrency: int = 32
    large_concurrency: int = 24
    large_bytes: int = 2 << 20
    gap: int = 128 << 10
    max_request_bytes: int = 8 << 20
    uploads: int = 4
    part_bytes: int = 16 << 20
    deadline: float = 180.0
    first_deadline: float = 5.0
    backoff: float = 0.1
    max_backoff: float = 20.0
    retry_burst: float = 16.0
    retries_per_second: float = 4.0
    retry_share: float = 0.1
    stall: float = 20.0
    slowest: float = float(128 << 10)
    hedge_quantile: float = 0.97
    hedge_share: float = 0.05
    renewal: float = 60.0

    def timeout(self, size: int) -> float:
        """Return the seconds that one request for `size` bytes may take."""
        return self.stall + size / self.slowest
