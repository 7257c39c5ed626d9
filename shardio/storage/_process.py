"""What a remote store holds in one process: clients, limits, statistics; rebuilt after a fork.

Clients of the network do not survive a fork: their threads are gone and their sockets are shared with the
parent.  The child therefore builds its own, and keeps the inherited ones alive untouched, since closing them
would write to the parent's connections; also those that were garbage already and not yet collected.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from shardio.storage._batches import Batching
from shardio.storage._engine import Engine
from shardio.storage._hedge import Hedge
from shardio.storage._loop import current_loop
from shardio.storage._places import Places, Taken
from shardio.storage._retry import Retrier

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardio.storage._client import Client
    from shardio.storage._tuning import Clock, Tuning

__all__ = ["Process", "Processes"]

_inherited: list[Any] = []
# The filesystems of all clients that were built here and are not collected yet.
_filesystems: dict[int, weakref.ref[Any]] = {}


def _keep_in_children(filesystem: Any) -> None:
    """Let children forked from now on keep a filesystem, whatever becomes of it."""
    _watch_forks()
    number = id(filesystem)
    _filesystems[number] = weakref.ref(filesystem, lambda _: _filesystems.pop(number, None))


@functools.cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_inherit)


def _inherit() -> None:
    _inherited.extend(found for each in list(_filesystems.values()) if (found := each()) is not None)


class Process:
    """The state of one store in one process."""

    def __init__(self, connect: Callable[[Client | None], Client], tuning: Tuning, clock: Clock) -> None:
        self.pid = os.getpid()
        self.loop = current_loop()
        self.retrier = Retrier(tuning, clock)
        self.hedge = Hedge(tuning, clock)
        self.engine = Engine()
        self.batching = Batching(clock)
        self.requests = Places(tuning.concurrency)
        self._large = Places(tuning.large_concurrency)
        self._fsspec = Places(tuning.fsspec_concurrency)
        self.uploads = Places(tuning.uploads)
        self._connect = connect
        self._tuning = tuning
        self.clock = clock
        self._client: Client | None = None
        self._expired: Client | None = None
        self._built = float("-inf")
        self._lock = threading.Lock()

    def places(self, size: int, count: int = 1) -> Taken:
        """Return places among the requests in flight, to be waited for; see `Tuning` for who has fewer.

        Args:
            size: bytes of the requests.
            count: number of requests.
        """
        kinds = [self.requests]
        if self.engine.reader is None:
            kinds.insert(0, self._fsspec)
        if size > self._tuning.large_bytes:
            kinds.insert(0, self._large)
        return Taken(tuple(kinds), count)

    async def client(self) -> Client:
        """Return the client of this process, built at its first use."""
        ready = self._client
        # Building may read files and ask metadata services, which must not hold the loop.
        return ready if ready is not None else await asyncio.to_thread(self._build)

    def _build(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = self._connect(self._expired)
                self._expired = None
                _keep_in_children(getattr(self._client, "_fs", self._client))
            return self._client

    def renew(self) -> bool:
        """Build the client anew because credentials expired, at most once per `Tuning.renewal` seconds.

        Returns:
            True if it was built anew; otherwise the caller waits, as for any other failure.
        """
        with self._lock:
            if self.clock.now() - self._built < self._tuning.renewal:
                return False
            self._built = self.clock.now()
            self._expired, self._client = self._client, None
            self.engine = Engine()
            return True


class Processes:
    """Gives the state that belongs to the process that asks."""

    def __init__(self, connect: Callable[[Client | None], Client], tuning: Tuning, clock: Clock) -> None:
        self._make: Callable[[], Process] = lambda: Process(connect, tuning, clock)
        self._now: Process | None = None
        self._lock = threading.Lock()
        self._lock_pid = os.getpid()

    def here(self) -> Process:
        """Return this process's state; it is made anew in a forked child."""
        state = self._now
        if state is not None and state.pid == os.getpid() and not state.loop.is_closed():
            return state
        if self._lock_pid != os.getpid():
            # A thread that does not exist here may hold it.
            self._lock, self._lock_pid = threading.Lock(), os.getpid()
        with self._lock:
            if self._now is not None and self._now.pid == os.getpid() and not self._now.loop.is_closed():
                return self._now
            if self._now is not None:
                _inherited.append(self._now)
            self._now = self._make()
            return self._now
