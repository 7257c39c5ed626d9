"""The requests of one store in one process: one sender limits, retries, hedges and renews credentials.

Attempts run on the event loop that fsspec keeps in a thread of its own: one I/O thread per process, whatever
the number of stores and clients.  What came is noted there, and nothing else done.  The thread that waits for
requests looks after their time: it sends again what failed, a second time what is late, and gives up what has
no answer.

Clients of the network do not survive a fork: their threads are gone and their sockets are shared with the
parent.  A child therefore builds its own, and keeps the inherited ones alive untouched, since closing them
would write to the parent's connections; also those that were garbage already and not yet collected.  Nothing
starts before the first use.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from shardio.storage._backends import Backend
from shardio.storage._client import Client, Response
from shardio.storage._errors import ErrorKind, NoAnswerError, RetryError, classify
from shardio.storage._obstore import Engine
from shardio.storage._retry import Hedge, Retrier, Tries
from shardio.storage._tuning import Clock, Tuning

T = TypeVar("T")
Kind: TypeAlias = Literal["small", "data", "upload", "probe"]

_PAUSE = 10.0  # seconds without batches after a failure
_UNSENT_SECONDS = 1.0  # after which a call that has its permits is begun by the thread that waits for it
# What a service says of one object, and not of itself.
_OF_ONE_OBJECT = {ErrorKind.NOT_FOUND, ErrorKind.PAST_END}


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


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """What one or several requests of one call ask for.

    Args:
        begin: sends it once, given the sender and how often it was sent before; runs on the I/O thread.
        kind: of "data", late requests are sent twice; a "probe" is not limited. See `Tuning` for how many of
            each may be under way.
        size: bytes that it moves, for its time limit and its permits.
        count: of the requests that one sending makes.
        check: makes the answer of what was received, or raises what is wrong with it.
        once: a failure is final: the thread that waits asks in another way.
    """

    begin: Callable[[Sender, int], Awaitable[Any]]
    _: KW_ONLY
    kind: Kind = "small"
    size: int = 0
    count: int = 1
    check: Callable[[Any], Any] | None = None
    once: bool = False


class Attempt:
    """One sending of a request, its permits, and what it began on the I/O thread.

    Args:
        call: of which it is one.
        limiter: of the requests of its kind.
        needs: permits of each sort of the limiter.
    """

    __slots__ = ("call", "has", "limiter", "needs", "over", "since", "submitted", "task", "waits")

    def __init__(self, call: _Call, limiter: RequestLimiter, needs: tuple[int, ...]) -> None:
        self.call = call
        self.limiter = limiter
        self.needs = needs
        # Whether it was given to the I/O thread, what it began there, and whether that has ended or does not
        # matter any more.
        self.submitted = False
        self.task: asyncio.Future[Any] | None = None
        self.over = False
        # Whether it waits for permits or has them, and since when; changed by `RequestLimiter` alone.
        self.waits = self.has = False
        self.since = 0.0

    def begin(self) -> None:
        """Begin it, on the I/O thread."""
        if self.over:
            return
        try:
            # Futures of compiled libraries as they are: a coroutine around them would need a task.
            self.task = asyncio.ensure_future(self.call.request())
        except Exception as error:  # noqa: BLE001 - judged like what an attempt ends with
            self._end(None, error)
        else:
            self.task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        if task.cancelled():
            self._end(None, ConnectionAbortedError("the request was cancelled on its way"))
        else:
            # Asked for in any case: an error that was not is told to the loop's handler.
            error = task.exception()
            self._end(task.result() if error is None else None, error)

    def _end(self, value: Any, error: BaseException | None) -> None:
        self.task = None
        if not self.over:
            self.over = True
            self.call.answered(self, value, error)

    def drop(self) -> None:
        """Cancel it, from any thread, and give its permits back."""
        if not self.over:
            self.over = True
            if self.submitted:
                self.call.sender.cancel(self)
        self.limiter.release(self)


class RequestLimiter:
    """How many requests may be under way at a time, for calls that any thread begins and ends.

    First come, first served.

    Args:
        clock: tells since when an attempt has its permits.
        most: permits of each sort; what needs more of one sort needs them all.
    """

    def __init__(self, clock: Clock, *most: int) -> None:
        self._clock = clock
        self._most = most
        self._free = most
        self._lock = threading.Lock()
        self._waiting: collections.deque[Attempt] = collections.deque()

    def submit(self, attempt: Attempt) -> None:
        """Send an attempt as soon as there are permits: now, or in the thread that gives them back."""
        attempt.needs = tuple(map(min, attempt.needs, self._most))
        with self._lock:
            self._waiting.append(attempt)
            attempt.waits = True
            ready = self._ready()
        for each in ready:
            each.call.begin(each)

    def release(self, attempt: Attempt) -> None:
        """Give back the permits of an attempt that has ended, or is not to begin."""
        with self._lock:
            if attempt.waits:
                attempt.waits = False
                self._waiting.remove(attempt)
            if attempt.has:
                attempt.has = False
                self._free = tuple(map(int.__add__, self._free, attempt.needs))
            ready = self._ready()
        for each in ready:
            each.call.begin(each)

    def _ready(self) -> list[Attempt]:
        """Take permits for those that come first, with the lock held."""
        ready: list[Attempt] = []
        while self._waiting:
            first = self._waiting[0]
            free = tuple(map(int.__sub__, self._free, first.needs))
            if min(free) < 0:
                break
            self._free = free
            first.waits, first.has, first.since = False, True, self._clock.ticks()
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


class _Call:
    """One request until it is answered or has failed for good; late answers change nothing any more.

    Attributes:
        value: the answer, once it is there.
        over: whether it is there, or will never be.
    """

    def __init__(self, owner: Pending, request: Request) -> None:
        self.value: Any = None
        self.over = False
        self.sender = owner.sender
        self._owner = owner
        self._request = request
        self._tries = Tries()
        # Waiting for permits or under way; and when the first of them began.
        self._attempts: list[Attempt] = []
        self._begun: float | None = None
        self._late: float | None = None
        # Of the last attempt that ended, where none is left, and when that was.
        self._failure: tuple[BaseException, float] | None = None
        self._again: float | None = None

    def send(self) -> None:
        """Have the request sent, as soon as there are permits for it."""
        sender, request = self.sender, self._request
        self._tries.count += 1
        self._begun = self._again = None
        self._late = sender.hedge.limit(request.size) if request.kind == "data" else None
        self._send_one()

    def _send_one(self) -> None:
        limiter, needs = self.sender.limits(self._request)
        attempt = Attempt(self, limiter, needs)
        self._attempts.append(attempt)
        limiter.submit(attempt)

    def begin(self, attempt: Attempt) -> None:
        """Begin an attempt that has its permits; by any thread."""
        if self.over:
            # Between the end of all requests and now.
            attempt.drop()
            return
        self._begun = self.sender.clock.ticks() if self._begun is None else self._begun
        attempt.submitted = True
        self.sender.submit(attempt)

    def request(self) -> Awaitable[Any]:
        """Send the request, on the I/O thread."""
        self.sender.count(self._request.count)
        return self._request.begin(self.sender, self._tries.count - 1)

    def stop(self) -> None:
        """Cancel what is under way, and release the permits."""
        with self._owner.lock:
            self.over = True
            attempts, self._attempts = self._attempts, []
        for attempt in attempts:
            attempt.drop()

    def attend(self) -> tuple[float, bool]:
        """Do what is due: send again what failed and a second time what is late, or give up.

        Returns:
            The seconds until something may be due again, and whether that is the end of a pause.

        Raises:
            RetryError: it failed for good.
        """
        sender, clock = self.sender, self.sender.clock
        if self.over:
            return float("inf"), False
        if self._tries.begun is None:
            self._tries.begun = clock.now()
        if self._failure is not None:
            (error, ended), self._failure = self._failure, None
            self._judge(error, ended)
        if self._again is not None:
            left = self._again - clock.now()
            if left > 0:
                return left, True
            self.send()
        most = sender.tuning.timeout(self._request.size)
        if self._begun is None:
            return self._attend_unsent(most), False
        if sender.building:
            # The service is not silent then, however long a busy machine takes for it.
            return _UNSENT_SECONDS, False
        spent = clock.ticks() - max(self._begun, sender.built)
        if spent >= most:
            with self._owner.lock:
                attempts, self._attempts = self._attempts, []
            for attempt in attempts:
                attempt.drop()
            if attempts:
                self._judge(NoAnswerError(f"no answer within {most:.3g} s"), clock.now())
            return 0.0, False
        if self._late is None:
            return most - spent, False
        if spent < self._late:
            return self._late - spent, False
        self._late = None
        sender.hedge.sent()
        self._send_one()
        return most - spent, False

    def _judge(self, error: BaseException, ended: float) -> None:
        """Note when the request is sent again, or raise what its last failure means."""
        sender = self.sender
        if self._request.once:
            last = classify(error)
            if last.kind not in _OF_ONE_OBJECT:
                sender.batches.failed()
            raise RetryError(last, attempts=1, seconds=0.0, applied=False) from error
        self._again = ended + sender.retrier.pause(self._tries, error, sender.renew)

    def _attend_unsent(self, most: float) -> float:
        """Begin what has its permits and was not begun: who gave them may have been interrupted."""
        granted = [attempt for attempt in self._attempts if attempt.has]
        now = self.sender.clock.ticks()
        for attempt in granted:
            if now - attempt.since >= _UNSENT_SECONDS:
                self.begin(attempt)
        return min(most, _UNSENT_SECONDS) if granted else most

    def answered(self, attempt: Attempt, value: Any, error: BaseException | None) -> None:
        """Take what has come, on the I/O thread."""
        if error is None and self._request.check is not None:
            try:
                value = self._request.check(value)
            except Exception as found:  # noqa: BLE001 - judged by who waits
                error = found
        try:
            if error is None:
                self._succeeded(attempt, value)
            else:
                self._failed(attempt, error)
        finally:
            # An error holds this frame, which must not hold it.
            del error

    def _succeeded(self, attempt: Attempt, value: Any) -> None:
        owner, sender, request = self._owner, self.sender, self._request
        with owner.lock:
            if attempt not in self._attempts:
                return  # late: another one has answered, or time was up
            self.over = True
            self.value = value
            seconds = sender.clock.ticks() - (self._begun or 0.0)
        sender.retrier.succeeded()
        if request.kind == "data":
            sender.hedge.record(request.size, seconds)
        elif request.kind == "small":
            sender.hedge.note(seconds)
        self.stop()
        owner.finished()

    def _failed(self, attempt: Attempt, error: BaseException) -> None:
        owner = self._owner
        with owner.lock:
            if attempt not in self._attempts:
                return
            self._attempts.remove(attempt)
            left = bool(self._attempts)
            if not left:
                self._failure = error, self.sender.clock.now()
        attempt.drop()
        if not left:
            owner.wake()


class Pending:
    """Requests under way, for one thread that waits for all of them.

    Args:
        sender: of this process.
        requests: what to send.
    """

    def __init__(self, sender: Sender, requests: Sequence[Request]) -> None:
        self.sender = sender
        self.lock = threading.Lock()
        self._calls = [_Call(self, request) for request in requests]
        self._left = len(self._calls)
        # Held until everything is answered, or something failed.
        self._gate = threading.Lock()
        self._gate.acquire()

    def begin(self) -> Callable[[], list[Any]]:
        """Send everything; return what waits for the answers, once, in order.

        Dropped before that it cancels what is under way.

        Raises:
            RuntimeError: called from the I/O thread, which would wait for itself.
        """
        if on_io_thread():
            raise RuntimeError("a store was called from fsspec's own I/O thread; call it from another thread")
        try:
            for call in list(self._calls):
                call.send()
        except BaseException:
            self.end()
            raise
        return _Waiting(self)

    def wait(self) -> list[Any]:
        """Wait for the answers.

        Raises:
            RetryError: a request failed for good.
        """
        clock = self.sender.clock
        try:
            while self._left:
                # Until the next of them is due, and whether it pauses.
                seconds, pausing = min(call.attend() for call in self._calls)
                if self._left:
                    (clock.pause if pausing else clock.wait)(self._gate, seconds)
            found = [call.value for call in self._calls]
        finally:
            # Also after an interrupt of the wait.
            self.end()
        return found

    def finished(self) -> None:
        """Note that one more request has ended."""
        with self.lock:
            self._left -= 1
            last = not self._left
        if last:
            self.wake()

    def wake(self) -> None:
        """Wake who waits."""
        with contextlib.suppress(RuntimeError):  # it was not asleep since it was woken last
            self._gate.release()

    def drop(self) -> None:
        """Cancel what is under way, since what waited for it is gone; in the middle of anything."""
        sender = self.sender
        if sender.pid == os.getpid():
            # Here a lock might be held that ending needs.
            with contextlib.suppress(RuntimeError):  # at the end of the program the loop is closed
                sender.loop.call_soon_threadsafe(self.end)

    def end(self) -> None:
        """Cancel what is under way."""
        # They refer back: what they hold would stay until the collector runs.
        calls, self._calls = self._calls, []
        for call in calls:
            call.stop()


class _Waiting:
    """Waits for requests, once. Dropped before that it drops them, whose permits others may want."""

    def __init__(self, pending: Pending) -> None:
        self._pending: Pending | None = pending

    def __call__(self) -> list[Any]:
        pending, self._pending = self._pending, None
        assert pending is not None  # noqa: S101 - for the type checker
        return pending.wait()

    def __del__(self) -> None:
        if self._pending is not None:
            self._pending.drop()


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


class Sender:
    """Sends the requests of one store in one process.

    Attributes:
        engine: reads data.
        batches: whether several requests may be sent in one call.
        hedge: when a request for data is late.
        retrier: when one that failed is sent again.
        building: a client is being built, which takes seconds where packages are imported.
        built: when that was done last, by the clock's ticks.
    """

    def __init__(self, backend: Backend, tuning: Tuning, clock: Clock) -> None:
        self.pid = os.getpid()
        self.loop = _current_loop()
        self.clock = clock
        self.tuning = tuning
        self.engine = Engine(backend, tuning)
        self.batches = CircuitBreaker(clock)
        self.hedge = Hedge(tuning)
        self.retrier = Retrier(tuning, clock)
        self._backend = backend
        limits = tuning.concurrency, tuning.large_concurrency, tuning.fsspec_concurrency
        # What is to be begun on the loop's thread, and whether it was woken for that.
        self._submitted: collections.deque[Attempt] = collections.deque()
        self._woken = False
        self._reads = RequestLimiter(clock, *limits)
        self._uploads = RequestLimiter(clock, tuning.uploads)
        self.building = False
        self.built = float("-inf")
        self._requests = 0
        self._client: Client | None = None
        self._expired: Client | None = None
        self._renewed = float("-inf")
        self._lock = threading.Lock()

    def send(
        self, request: Callable[[Client], Coroutine[Any, Any, T]], *, kind: Kind = "small", size: int = 0
    ) -> T:
        """Send a request of fsspec's client until it succeeds, cannot succeed, or time is up.

        Args:
            request: sends it once, given a client; called again for each attempt.
            kind, size: as those of `Request`.

        Raises:
            RetryError: it failed for good.
        """
        one = Request(lambda sender, _: sender.by_client(request), kind=kind, size=size)
        answer: T = Pending(self, [one]).begin()()[0]
        return answer

    def submit(self, attempt: Attempt) -> None:
        """Have an attempt begun on the I/O thread; of many at once one wakes it."""
        self._submitted.append(attempt)
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        # Before: what is added from now on wakes it again.
        self._woken = False
        while self._submitted:
            self._submitted.popleft().begin()

    def cancel(self, attempt: Attempt) -> None:
        """Cancel what an attempt has begun, or begins yet."""
        with contextlib.suppress(RuntimeError):  # at the end of the program the loop is closed
            self.loop.call_soon_threadsafe(_cancel, attempt)

    async def by_client(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """Send a request of fsspec's client once."""
        client = self._client
        if client is None:
            # Building may read files and ask metadata services, which must not hold the loop.
            self.building = True
            client = await asyncio.to_thread(self._build)
        return await request(client)

    def fetch(self, path: str, start: int, stop: int) -> Awaitable[Response]:
        """Request a range once, of the engine that reads data."""
        return self.by_client(lambda client: self.engine.fetch(client, path, start, stop))

    @property
    def sent(self) -> tuple[int, int]:
        """Requests that were sent, and those of them that were sent again."""
        return self._requests, self.retrier.retries

    def count(self, requests: int) -> None:
        """Count requests that are sent, on the I/O thread."""
        self._requests += requests

    def limits(self, request: Request) -> tuple[RequestLimiter, tuple[int, ...]]:
        """Return what limits a request, and the permits that it needs there."""
        if request.kind in {"upload", "probe"}:
            return self._uploads, (int(request.kind == "upload"),)
        data = request.kind == "data"
        large = data and request.size > self.tuning.large_bytes
        return self._reads, (request.count, int(large), int(data and self.engine.reader is None))

    def _build(self) -> Client:
        try:
            with self._lock:
                if self._client is None:
                    self._client = self._backend.connect(
                        self.tuning, loop=self.loop, instead_of=self._expired
                    )
                    self._expired = None
                    _keep_in_children(getattr(self._client, "_fs", self._client))
                return self._client
        finally:
            self.built, self.building = self.clock.ticks(), False

    def renew(self) -> bool:
        """Build the client again because credentials expired, at most once per `Tuning.renewal` seconds.

        Returns:
            True if it was built again; otherwise the caller waits, as for any other failure.
        """
        with self._lock:
            if self.clock.now() - self._renewed < self.tuning.renewal:
                return False
            self._renewed = self.clock.now()
            self._expired, self._client = self._client, None
            self.engine = Engine(self._backend, self.tuning)
            return True


def _cancel(attempt: Attempt) -> None:
    if attempt.task is not None:
        attempt.task.cancel()


class PerProcess:
    """Gives the sender of the process that asks; remade in a forked child."""

    def __init__(self, backend: Backend, tuning: Tuning, clock: Clock) -> None:
        self._make: Callable[[], Sender] = lambda: Sender(backend, tuning, clock)
        self._current: Sender | None = None
        self._lock = threading.Lock()
        self._lock_pid = os.getpid()

    def current(self) -> Sender:
        """Return this process's sender."""
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
