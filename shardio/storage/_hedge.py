"""A second request for stragglers: after a measured quantile, capped in number, the first reply wins.

After J. Dean, L. A. Barroso, "The Tail at Scale" (CACM 56(2), 2013).
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shardio.storage._tuning import Clock, Tuning

__all__ = ["Hedge"]

T = TypeVar("T")

_ENOUGH = 32  # requests of one kind before their quantile means anything
_REMEMBERED = 256
_FASTEST = 0.02  # seconds; below this a second request costs more than it saves
_STOCK = 4.0  # second requests that may be sent in a row


class Hedge:
    """Remembers how long requests of a kind take, and sends a second one when one takes too long."""

    def __init__(self, tuning: Tuning, clock: Clock) -> None:
        self._tuning = tuning
        self._clock = clock
        self._seen: dict[int, collections.deque[float]] = {}
        self._counts: collections.Counter[int] = collections.Counter()
        self._limits: dict[int, float] = {}
        self._stock = 0.0

    def limit(self, size: int) -> float | None:
        """Return the seconds after which a request for `size` bytes is late; None if nobody knows yet."""
        if self._tuning.hedge_quantile >= 1 or self._stock < 1:
            return None
        return self._limits.get(_kind(size))

    def took(self, size: int, seconds: float) -> None:
        """Record that a request for `size` bytes took so long."""
        kind = _kind(size)
        seen = self._seen.setdefault(kind, collections.deque(maxlen=_REMEMBERED))
        seen.append(seconds)
        self._stock = min(_STOCK, self._stock + self._tuning.hedge_share)
        self._counts[kind] += 1
        if len(seen) >= _ENOUGH and (kind not in self._limits or self._counts[kind] % 16 == 0):
            ranked = sorted(seen)
            self._limits[kind] = max(_FASTEST, ranked[int(self._tuning.hedge_quantile * (len(ranked) - 1))])

    async def run(self, request: Callable[[], Awaitable[T]], size: int) -> T:
        """Send a request, and once more if it is late; the first to succeed answers.

        Raises:
            Exception: whatever the last of the two to fail raised.
        """
        begun = self._clock.now()
        limit = self.limit(size)
        reply = await (request() if limit is None else self._twice(request, limit))
        self.took(size, self._clock.now() - begun)
        return reply

    async def _twice(self, request: Callable[[], Awaitable[T]], limit: float) -> T:
        tasks = [asyncio.ensure_future(request())]
        try:
            done, _ = await asyncio.wait(tasks, timeout=limit)
            if not done:
                self._stock -= 1
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
