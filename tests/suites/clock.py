"""Clocks that run only during pauses."""

from __future__ import annotations

import threading
import time

from shardio.storage._tuning import Clock


class FakeClock(Clock):
    """Time passes by pausing, at once; what is under way is waited for as long as it really takes.

    Attributes:
        slept: the seconds of each pause.
    """

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        wake = self.time + seconds
        # Others who pause at the same time wake with it, and not after it.
        time.sleep(0.001)
        self.time = max(self.time, wake)

    def pause(self, gate: threading.Lock, seconds: float) -> None:
        del gate
        self.sleep(seconds)


class SilenceClock(FakeClock):
    """A clock whose limits are over when a server says that it has fallen silent, however long that took."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = 0.0

    def ticks(self) -> float:
        return time.monotonic() + self._passed

    def wait(self, gate: threading.Lock, seconds: float) -> None:
        end = self.ticks() + seconds
        while not gate.acquire(timeout=0.005) and self.ticks() < end:
            pass

    def silent(self) -> None:
        """End the attempt that is under way; may be called from any thread."""
        self._passed += 1e6
