"""Clocks that run only during sleeps."""

from __future__ import annotations

import asyncio

from shardio.storage._tuning import Clock


class FakeClock(Clock):
    """Time passes by sleeping, at once; sleepers wake in the order of their times.

    Attributes:
        slept: the seconds of each sleep.
    """

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        wake = self.time + seconds
        await asyncio.sleep(0)
        self.time = max(self.time, wake)


class SilenceClock(FakeClock):
    """A clock whose limits are over when a server says that it has fallen silent, however long that took."""

    def limit(self, seconds: float) -> asyncio.Timeout:
        del seconds
        self._under_way = asyncio.get_running_loop(), asyncio.timeout(None)
        return self._under_way[1]

    def silent(self) -> None:
        """End the attempt that is under way; may be called from any thread."""
        loop, limit = self._under_way
        loop.call_soon_threadsafe(lambda: limit.reschedule(loop.time()))
