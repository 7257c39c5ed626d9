"""Several requests in one call of the engine: hedged, timed and bounded like any other, and nothing kept."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fsspec.asyn import get_loop

from shardio.storage import Tuning, _obstore
from shardio.storage._errors import StatusError
from shardio.storage._fetch import BatchRead, ObjectIdentity, RangeOf, RangeReader, read_apart
from shardio.storage._requests import Requests, begin_call
from shardio.storage._tuning import Clock

TUNING = Tuning(hedge_quantile=0.9, concurrency=4)
SIZE = 1000


class Engine:
    """Answers each call as told: after seconds, with an error, with bytes of another length, or "last".

    That is after a later call was answered, however long that took.
    """

    def __init__(self, *answers: float | str) -> None:
        self.answers = list(answers)
        self.last: list[Callable[[], None]] = []
        self.sent = self.cancelled = self.under_way = self.most = 0
        self.error: Exception = OSError("fails")

    def fetch_many(self, path: str, starts: list[int], stops: list[int]) -> asyncio.Future[Any]:
        answer = self.answers[min(self.sent, len(self.answers) - 1)]
        self.sent += 1
        self.under_way += len(starts)
        self.most = max(self.most, self.under_way)
        # As compiled libraries do: of the loop that runs, and answered by a thread of its own.
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        future.add_done_callback(lambda done: self.ended(done, len(starts)))

        def finish() -> None:
            if future.done():
                return
            if answer == "fails":
                future.set_exception(self.error)
            else:
                sizes = [b - a - (answer == "short") for a, b in zip(starts, stops, strict=True)]
                future.set_result(self.made(sizes))
            if answer != "last":
                while self.last:
                    self.last.pop()()

        if answer == "last":
            self.last.append(lambda: loop.call_soon_threadsafe(finish))
            return future
        seconds = answer if isinstance(answer, float) else 0
        timer = threading.Timer(seconds, lambda: loop.call_soon_threadsafe(finish))
        timer.daemon = True
        timer.start()
        return future

    def made(self, sizes: list[int]) -> Sequence[Any]:
        return [bytes(size) for size in sizes]

    def ended(self, future: asyncio.Future[Any], count: int) -> None:
        self.under_way -= count
        self.cancelled += future.cancelled()


def requests(tuning: Tuning = TUNING, seconds: float = 0.001) -> Requests:
    """Return those that know that a request usually takes so long: of 0.001, one is late after 0.02."""
    made = Requests(None, tuning, Clock())  # no client is built
    for _ in range(100):
        made.hedge.record(SIZE, seconds)
    return made


def begin(made: Requests, engine: Engine, calls: int = 1, ranges: int = 1) -> Any:
    batch = "key", [k * SIZE for k in range(ranges)], [(k + 1) * SIZE for k in range(ranges)]
    return BatchRead(made, TUNING, engine.fetch_many, [batch] * calls).begin()


@pytest.mark.parametrize(
    ("answers", "sent", "good"),
    [
        ((0.0,), 1, True),
        ((30.0, 0.0), 2, True),  # late: the second request wins
        (("last", "fails"), 2, True),  # late, and the second fails: the first may still answer
        (("fails",), 1, False),
        (("short",), 1, False),
        (("last", "short"), 2, True),  # the second one is wrong, and the first one still counts
    ],
)
def test_a_call_gives_all_its_bytes_or_nothing(answers: Any, sent: int, good: bool) -> None:
    made, engine = requests(seconds=30.0 if sent == 1 else 0.001), Engine(*answers)
    found = begin(made, engine)()
    assert (found is not None) == good
    assert found is None or [len(data) for data in found] == [SIZE]
    assert engine.sent == sent
    assert made.batches.closed == good
    assert made.sent[0] == sent


def test_a_call_without_an_answer_fails_in_time() -> None:
    tuning = dataclasses.replace(TUNING, stall=0.05, hedge_quantile=1.0)
    engine = Engine(30.0)
    batch = [("key", [0], [SIZE])]
    assert BatchRead(requests(tuning), tuning, engine.fetch_many, batch).begin()() is None
    assert engine.cancelled == 1


def test_calls_wait_for_permits_and_give_them_back() -> None:
    made, engine = requests(), Engine(0.01)
    found = begin(made, engine, calls=10, ranges=3)()
    assert found is not None
    assert len(found) == 30
    assert engine.most == 3  # of four that are allowed
    assert begin(made, Engine("fails"), calls=10, ranges=3)() is None
    assert begin(made, engine, calls=2, ranges=4)() is not None


def test_permits_that_an_interrupted_thread_gave_are_used() -> None:
    """What gives permits back begins the next call, in its thread, which may be interrupted just there."""
    made = requests(dataclasses.replace(TUNING, concurrency=1, stall=1.5))
    first, second = Engine(0.1), Engine(0.0)
    wait = begin(made, first)
    batch = BatchRead(made, made._tuning, second.fetch_many, [("b/key", [0], [SIZE])])
    limiter = made.limiter
    submit = limiter.submit

    def interrupted(attempt: Any) -> None:
        begin_it = attempt.send
        attempt.send = lambda _: setattr(attempt, "send", begin_it)
        submit(attempt)

    limiter.submit = interrupted
    wait_second = batch.begin()
    limiter.submit = submit
    assert wait() is not None
    assert wait_second() is not None
    assert second.sent == 1


def test_an_interrupt_cancels_what_is_under_way() -> None:
    made, engine = requests(dataclasses.replace(TUNING, hedge_quantile=1.0)), Engine(30.0)
    wait = begin(made, engine, calls=2)

    class Interrupted:
        def acquire(self, timeout: float) -> bool:
            assert timeout > 0
            assert engine.sent == 2
            raise KeyboardInterrupt

        def release(self) -> None:
            pass

    wait._batch._ended = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert engine.cancelled == 2


def test_a_call_that_is_not_waited_for_any_more_is_cancelled() -> None:
    """Another call has failed, or a stream was dropped: a silent server would keep the permits."""
    made, silent = requests(dataclasses.replace(TUNING, hedge_quantile=1.0)), Engine(30.0)
    waiting = [begin(made, silent, calls=2) for _ in range(4)]  # four have permits, the others wait for them
    assert silent.sent == 4
    del waiting
    found = begin(made, Engine(0.01), calls=4)()
    assert found is not None
    assert silent.cancelled == silent.sent == 4


def test_who_waits_is_woken_once() -> None:
    """However many calls it waits for: waking a thread costs a good part of what a request does."""
    made, engine = requests(dataclasses.replace(TUNING, hedge_quantile=1.0, concurrency=8)), Engine(0.01)
    wait = begin(made, engine, calls=8)
    woken = []
    ended = wait._batch._ended

    class Counted:
        def acquire(self, timeout: float) -> bool:
            woken.append(ended.acquire(timeout=timeout))
            return woken[-1]

        release = ended.release

    wait._batch._ended = Counted()
    assert len(wait()) == 8
    assert woken == [True]


def test_bytes_go_with_their_last_reference() -> None:
    """Not when the collector runs: windows of a stream are many megabytes."""

    class Held(bytearray):
        pass

    kept: list[weakref.ref[Any]] = []

    class Keeping(Engine):
        def made(self, sizes: list[int]) -> Sequence[Any]:
            found = [Held(data) for data in super().made(sizes)]
            kept.append(weakref.ref(found[0], lambda _: gone.set()))
            return found

    gone = threading.Event()
    gc.disable()
    try:
        wait = begin(requests(), Keeping(0.0))
        found = wait()
        assert found is not None
        assert not gone.is_set()
        del found
        assert gone.wait(10)
    finally:
        gc.enable()
    assert wait is not None


def test_one_that_fails_leaves_the_others() -> None:
    """Where they are of several objects: what did not come is asked for by itself, and not what came."""
    made, engine = (
        requests(dataclasses.replace(TUNING, hedge_quantile=1.0)),
        Engine(0.01, "fails", "short", 0.0),
    )
    batches = [(f"key{k}", [0, SIZE], [SIZE, 3 * SIZE]) for k in range(4)]
    found = BatchRead(made, TUNING, engine.fetch_many, batches, apart=True).begin()()
    assert [None if data is None else len(data) for data in found] == [
        SIZE,
        2 * SIZE,
        *[None] * 4,
        SIZE,
        2 * SIZE,
    ]
    assert not made.batches.closed
    assert begin(made, Engine(0.0), calls=2, ranges=4)() is not None  # all permits were given back


@pytest.mark.parametrize(
    ("error", "closed"),
    [(FileNotFoundError("gone"), True), (StatusError(416, ""), True), (StatusError(503, ""), False)],
)
def test_what_is_said_of_one_object_is_no_outage(error: Exception, closed: bool) -> None:
    """Where one shard was gone all requests went one by one for a while."""
    made, engine = requests(), Engine("fails")
    engine.error = error
    assert begin(made, engine)() is None
    assert made.batches.closed == closed


def test_errors_that_callbacks_have_taken_are_not_logged(caplog: Any) -> None:
    """Asyncio marks an error as not asked for after the callbacks, which a usual loop calls later."""
    future = begin_call(lambda: asyncio.get_running_loop().create_future())
    future.add_done_callback(lambda done: done.exception())
    future.set_exception(OSError("gone"))
    del future
    gc.collect()
    assert not caplog.records


class Reader:
    """Notes what is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int], list[int]]] = []

    def fetch_many(self, path: str, starts: list[int], stops: list[int]) -> asyncio.Future[Any]:
        self.asked.append((path, starts, stops))
        future = asyncio.get_running_loop().create_future()
        future.set_result([bytes(stop - start) for start, stop in zip(starts, stops, strict=True)])
        return future


def test_ranges_of_one_object_go_together() -> None:
    """Up to so many, and so many bytes; neighbours that touch do not, which obstore would make one of."""
    tuning = dataclasses.replace(TUNING, large_bytes=100, max_request_bytes=200)
    made = requests(tuning)
    made.engine.reader = Reader()
    known = ObjectIdentity(1000)

    def asked(*ranges: tuple[str, int, int]) -> list[tuple[str, list[int], list[int]]] | None:
        made.engine.reader.asked.clear()
        reading = read_apart(
            made, tuning, [RangeOf(path, known, start, stop) for path, start, stop in ranges]
        )
        if reading is None:
            return None
        assert [len(data) for data in reading.begin()()] == [stop - start for _, start, stop in ranges]
        return made.engine.reader.asked

    assert asked(("a", 0, 40), ("a", 50, 90), ("b", 100, 110)) == [
        ("a", [0, 50], [40, 90]),
        ("b", [100], [110]),
    ]
    assert asked(("a", 0, 40), ("a", 40, 80)) == [("a", [0], [40]), ("a", [40], [80])]
    assert asked(("a", 0, 40), ("a", 50, 120)) == [("a", [0], [40]), ("a", [50], [120])]
    many = [("a", 4 * k, 4 * k + 1) for k in range(20)]
    assert [len(starts) for _, starts, _ in asked(*many)] == [8, 8, 4]
    assert asked(("a", 0, 40), ("a", 900, 1001)) is None  # past the end: an error that is explained
    assert asked(("a", 0, 201)) is None
    assert asked(("a", 5, 5)) is None
    made.batches.failed()
    assert asked(("a", 0, 40)) is None


@pytest.mark.parametrize(("seconds", "sizes"), [(0.001, [32, 8]), (0.02, [8] * 5)])
def test_more_ranges_of_one_object_go_together_where_answers_are_near(
    seconds: float, sizes: list[int]
) -> None:
    """Obstore sends ten of a call side by side: further ones wait for a round trip, which may be short."""
    made = requests()
    for _ in range(200):
        made.hedge.record(SIZE, seconds)
    made.engine.reader = Reader()
    reader = RangeReader(made, TUNING, "a", ObjectIdentity(10**9), engine=True, checksummed=True, gap=0)
    starts = np.arange(40) * 10_000
    found = reader.begin(starts, starts + np.arange(1, 41))()
    assert [len(data) for data in found] == list(range(1, 41))
    assert [len(begins) for _, begins, _ in made.engine.reader.asked] == sizes


def test_credentials_are_asked_for_without_a_loop() -> None:
    """As by requests that are made without one; those of aiobotocore are told by a coroutine."""

    class Frozen:
        access_key, secret_key, token = "wren", "robin", None

    class Credentials:
        async def get_frozen_credentials(self) -> Frozen:
            await asyncio.sleep(0)
            return Frozen()

    class Plain:
        def get_frozen_credentials(self) -> Frozen:
            return Frozen()

    class Azure:
        async def get_token(self, scope: str) -> Any:
            await asyncio.sleep(0)
            return type("Token", (), {"token": scope, "expires_on": 0})

    loop = get_loop()
    for credentials in (Credentials(), Plain()):
        told = _obstore._aws_provider(credentials, loop)()
        assert (told["access_key_id"], told["secret_access_key"], told["token"]) == ("wren", "robin", None)
        assert told["expires_at"] > datetime.datetime.now(datetime.UTC)
    assert "azure" in _obstore._azure_provider(Azure(), loop)()["token"]
