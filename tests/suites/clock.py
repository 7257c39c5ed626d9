"""A clock that runs only during sleeps."""

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
