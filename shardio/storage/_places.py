"""How many requests may be under way at once: first come, first served, several places in one go.

Written for the hot path: who finds enough free places takes them without a task, a future or a lock, which
asyncio's semaphore cannot do for more than one.  Used from one event loop.
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Places", "Taken"]


class Places:
    """A number of places."""

    def __init__(self, count: int) -> None:
        self._most = count
        self._free = count
        self._waiting: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()

    async def take(self, count: int = 1) -> int:
        """Wait for so many places, or for all where there are fewer; return how many to give back."""
        count = min(count, self._most)
        if not self._waiting and self._free >= count:
            self._free -= count
            return count
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (count, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(count)
            else:
                self._waiting.remove(entry)
                self._call()
            raise
        return count

    def give(self, count: int) -> None:
        """Give places back; whoever has waited longest comes next."""
        self._free += count
        self._call()

    def _call(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            count, turn = self._waiting.popleft()
            self._free -= count
            turn.set_result(None)

    async def __aenter__(self) -> None:
        """Wait for one place."""
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        """Give it back."""
        self.give(1)


class Taken:
    """Places of several kinds, held while an `async with` lasts; taken in the order given."""

    __slots__ = ("_count", "_held", "_kinds")

    def __init__(self, kinds: tuple[Places, ...], count: int) -> None:
        self._kinds = kinds
        self._count = count
        self._held: list[tuple[Places, int]] = []

    async def __aenter__(self) -> None:
        """Wait for all of them."""
        try:
            for places in self._kinds:
                self._held.append((places, await places.take(self._count)))
        except BaseException:
            self._give()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give them back."""
        self._give()

    def _give(self) -> None:
        for places, count in self._held:
            places.give(count)
        self._held.clear()
