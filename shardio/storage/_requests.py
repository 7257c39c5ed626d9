"""The requests of one store in one process: one call limits, retries, hedges and renews credentials.

Coroutines run on the event loop that fsspec keeps in a thread of its own, so there is one I/O thread per
process whatever the number of stores.  Clients of the network do not survive a fork: their threads are gone
and their sockets are shared with the parent.  A child therefore builds its own, and keeps the inherited ones
alive untouched, since closing them would write to the parent's connections; also those that were garbage
already and not yet collected.  Nothing starts before the first use.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from shardio.storage._obstore import Engine
from shardio.storage._retry import Hedge, Retrier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from shardio.storage._backends import Backend
    from shardio.storage._client import Client
    from shardio.storage._tuning import Clock, Tuning

T = TypeVar("T")

_PAUSE = 10.0  # seconds without batches after a failure


def _current_loop() -> asyncio.AbstractEventLoop:
    """Return this process's I/O loop; started where there is none, as in a forked child."""
    from fsspec.asyn import get_loop

    loop: asyncio.AbstractEventLoop = get_loop()
    return loop


def on_io_thread() -> bool:
    """Return whether this is the I/O thread, in which no store can be called; a finalizer may run there."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return False
    return running is _current_loop()


def refuse_io_thread() -> None:
    """Raise RuntimeError on the I/O thread: it would wait for itself."""
    if on_io_thread():
        msg = "a store was called from fsspec's own I/O thread; call it from another thread"
        raise RuntimeError(msg)


def submit(work: Coroutine[Any, Any, T]) -> Callable[[], T]:
    """Start a coroutine and return what waits for its result, once; an interrupt of the wait cancels it.

    Raises:
        RuntimeError: called from the I/O thread itself, which would wait for itself.
    """
    loop = _current_loop()
    try:
        refuse_io_thread()
    except RuntimeError:
        work.close()
        raise
    # An error holds the frames that it passed through, and all that their callers hold.  If one of them held
    # the error in turn, by the future, a writer would live until the collector runs, in whatever thread.
    pending = [asyncio.run_coroutine_threadsafe(work, loop)]

    def wait() -> T:
        future = pending.pop()
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            del future

    return wait


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result; see `submit`."""
    return submit(work)()


class _DirectLoop:
    """An event loop without a thread and a queue: what becomes ready is called where it becomes so.

    Futures of compiled libraries only ask their loop to have the result set, and callbacks called.
    """

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast("asyncio.AbstractEventLoop", self))

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        if context is None:
            callback(*args)
        else:
            context.run(callback, *args)

    call_soon_threadsafe = call_soon

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Say nothing: a future reports an error as not asked for that its own callbacks have taken."""


_direct = cast("asyncio.AbstractEventLoop", _DirectLoop())


def begin_call(function: Callable[..., asyncio.Future[Any]], *args: Any) -> asyncio.Future[Any]:
    """Call what returns a future of the running loop, though none runs: its callbacks come in any thread."""
    before = asyncio._get_running_loop()  # noqa: SLF001 - documented for those who write event loops
    asyncio._set_running_loop(_direct)  # noqa: SLF001 - as above
    try:
        return function(*args)
    finally:
        asyncio._set_running_loop(before)  # noqa: SLF001 - as above


class Semaphore:
    """A number of permits: first come, first served, several in one go; used from one event loop.

    On the hot path: where enough permits are free they are taken without a task, a future or a lock, which
    asyncio's semaphore cannot do for more than one.
    """

    def __init__(self, permits: int) -> None:
        self._permits = permits
        self._free = permits
        self._waiting: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()

    def take(self, count: int = 1) -> int | None:
        """Take so many permits, or all where there are fewer; return how many, None if it would wait."""
        count = min(count, self._permits)
        if self._waiting or self._free < count:
            return None
        self._free -= count
        return count

    async def acquire(self, count: int = 1) -> int:
        """Wait for so many permits, or for all where there are fewer; return how many to release."""
        taken = self.take(count)
        if taken is not None:
            return taken
        count = min(count, self._permits)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (count, granted)
        self._waiting.append(entry)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(count)
            elif entry in self._waiting:
                self._waiting.remove(entry)
                self._grant()
            raise
        return count

    def release(self, count: int) -> None:
        """Release permits; the waiter that has waited longest comes next."""
        self._free += count
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            count, granted = self._waiting.popleft()
            # One that is cancelled has not come to its handler yet.
            if not granted.done():
                self._free -= count
                granted.set_result(None)


class Permits:
    """Permits that were taken of some semaphores."""

    def __init__(self) -> None:
        self._held: list[tuple[Semaphore, int]] = []

    def add(self, semaphore: Semaphore, count: int) -> None:
        """Add permits that were taken."""
        self._held.append((semaphore, count))

    def release(self) -> None:
        """Release them, once."""
        while self._held:
            semaphore, count = self._held.pop()
            semaphore.release(count)


class Attempt:
    """A call of some requests, and its permits.

    Args:
        send: begins the call, given this; raises nothing.
        count: of its requests.
        large: whether they are for so many bytes that fewer of them may be under way.
    """

    def __init__(self, send: Callable[[Attempt], None], count: int, *, large: bool) -> None:
        self.send = send
        self.count = count
        self.large = large
        # Whether it waits for permits or has them, and since when; changed by `RequestLimiter` alone.
        self.waits = self.has = False
        self.since = 0.0


class RequestLimiter:
    """How many requests may be under way at a time, for calls that any thread begins and ends.

    First come, first served.

    Args:
        most: requests.
        large: those of them that are large.

    Attributes:
        sent: requests so far.
    """

    def __init__(self, most: int, large: int) -> None:
        self.sent = 0
        self._most = self._free = most
        self._free_large = large
        self._lock = threading.Lock()
        self._waiting: collections.deque[Attempt] = collections.deque()

    def submit(self, attempt: Attempt) -> None:
        """Send a call as soon as there are permits: now, or in the thread that gives them back."""
        with self._lock:
            self._waiting.append(attempt)
            attempt.waits = True
            ready = self._ready()
        for each in ready:
            each.send(each)

    def release(self, attempt: Attempt) -> None:
        """Give back the permits of a call that has ended, or is not to begin."""
        with self._lock:
            if attempt.waits:
                attempt.waits = False
                self._waiting.remove(attempt)
            if attempt.has:
                attempt.has = False
                self._free += min(attempt.count, self._most)
                self._free_large += attempt.large
            ready = self._ready()
        for each in ready:
            each.send(each)

    def _ready(self) -> list[Attempt]:
        """Take permits for those that come first, with the lock held."""
        ready = []
        while self._waiting:
            first = self._waiting[0]
            count = min(first.count, self._most)
            if count > self._free or self._free_large < first.large:
                break
            self._free -= count
            self._free_large -= first.large
            self.sent += first.count
            first.waits, first.has, first.since = False, True, time.monotonic()
            ready.append(self._waiting.popleft())
        return ready


class CircuitBreaker:
    """Whether something that has failed may be tried again now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._not_before = float("-inf")

    @property
    def closed(self) -> bool:
        """Whether there was no failure lately."""
        return self._clock.now() >= self._not_before

    def failed(self) -> None:
        """Record a failure."""
        self._not_before = self._clock.now() + _PAUSE


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


class Requests:
    """Sends the requests of one store in one process.

    Attributes:
        engine: reads data.
        limiter: of its calls for several requests.
        batches: whether several requests may be sent in one call.
        hedge: when a request for data is late.
    """

    def __init__(self, backend: Backend, tuning: Tuning, clock: Clock) -> None:
        self.pid = os.getpid()
        self.loop = _current_loop()
        self.clock = clock
        self.engine = Engine(backend, tuning)
        self.limiter = RequestLimiter(tuning.concurrency, tuning.large_concurrency)
        self.batches = CircuitBreaker(clock)
        self._backend = backend
        self._tuning = tuning
        self._retrier = Retrier(tuning, clock)
        self.hedge = Hedge(tuning, clock)
        self._requests = Semaphore(tuning.concurrency)
        self._large = Semaphore(tuning.large_concurrency)
        self._fsspec = Semaphore(tuning.fsspec_concurrency)
        self._uploads = Semaphore(tuning.uploads)
        self._client: Client | None = None
        self._expired: Client | None = None
        self._renewed = float("-inf")
        self._lock = threading.Lock()

    async def send(
        self,
        request: Callable[[Client], Awaitable[T]],
        *,
        kind: Literal["small", "data", "upload", "probe"] = "small",
        size: int = 0,
    ) -> T:
        """Send a request within the limits, until it succeeds, cannot succeed, or time is up.

        Args:
            request: sends it once, given a client; called again for each attempt.
            kind: of "data", late requests are sent twice; a "probe" is not limited. See `Tuning` for how many
                of each may be under way.
            size: bytes that it moves, for its time limit and its permits.

        Raises:
            RetryError: it failed for good.
        """
        permits = await self.acquire(kind, size)
        try:
            attempt = functools.partial(self._attempt, request)
            if kind == "data":
                attempt = functools.partial(self.hedge.run, attempt, size)
            elif kind == "small":
                attempt = functools.partial(self._timed, attempt)
            return await self._retrier.run(attempt, size=size, renew=self._renew)
        finally:
            permits.release()

    async def acquire(self, kind: str, size: int, count: int = 1) -> Permits:
        """Wait for the permits of some requests of a kind, of so many bytes together."""
        permits = Permits()
        try:
            for semaphore in self._semaphores(kind, size):
                permits.add(semaphore, await semaphore.acquire(count))
        except BaseException:
            # A wait that is cancelled releases those before.
            permits.release()
            raise
        return permits

    @property
    def sent(self) -> tuple[int, int]:
        """Requests that were sent, and those of them that were sent again."""
        return self._retrier.requests + self.limiter.sent, self._retrier.retries

    async def _attempt(self, request: Callable[[Client], Awaitable[T]]) -> T:
        client = self._client
        if client is None:
            # Building may read files and ask metadata services, which must not hold the loop.
            client = await asyncio.to_thread(self._build)
        return await request(client)

    async def _timed(self, attempt: Callable[[], Awaitable[T]]) -> T:
        begun = self.clock.now()
        response = await attempt()
        self.hedge.note(self.clock.now() - begun)
        return response

    def _semaphores(self, kind: str, size: int) -> list[Semaphore]:
        """Return the semaphores of a request, in the order in which they are acquired."""
        if kind == "probe":
            return []
        if kind == "upload":
            return [self._uploads]
        if kind == "small":
            return [self._requests]
        found = [self._large] if size > self._tuning.large_bytes else []
        if self.engine.reader is None:
            found.append(self._fsspec)
        return [*found, self._requests]

    def _build(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = self._backend.connect(self._tuning, loop=self.loop, instead_of=self._expired)
                self._expired = None
                _keep_in_children(getattr(self._client, "_fs", self._client))
            return self._client

    def _renew(self) -> bool:
        """Build the client again because credentials expired, at most once per `Tuning.renewal` seconds.

        Returns:
            True if it was built again; otherwise the caller waits, as for any other failure.
        """
        with self._lock:
            if self.clock.now() - self._renewed < self._tuning.renewal:
                return False
            self._renewed = self.clock.now()
            self._expired, self._client = self._client, None
            self.engine = Engine(self._backend, self._tuning)
            return True


class PerProcess:
    """Gives the requests of the process that asks; remade in a forked child."""

    def __init__(self, backend: Backend, tuning: Tuning, clock: Clock) -> None:
        self._make: Callable[[], Requests] = lambda: Requests(backend, tuning, clock)
        self._current: Requests | None = None
        self._lock = threading.Lock()
        self._lock_pid = os.getpid()

    def current(self) -> Requests:
        """Return this process's requests."""
        found = self._current
        if found is not None and found.pid == os.getpid() and not found.loop.is_closed():
            return found
        if self._lock_pid != os.getpid():
            # A thread that does not exist here may hold it.
            self._lock, self._lock_pid = threading.Lock(), os.getpid()
        with self._lock:
            found = self._current
            if found is None or found.pid != os.getpid() or found.loop.is_closed():
                if found is not None:
                    _inherited.append(found)
                found = self._current = self._make()
            return found
