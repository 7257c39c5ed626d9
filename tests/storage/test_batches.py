"""Several requests in one call of the engine: hedged, timed and bounded like any other, and nothing kept."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fsspec.asyn import get_loop

from shardio.storage import Tuning, _obstore
from shardio.storage._errors import RetryError, StatusError
from shardio.storage._fetch import ObjectIdentity, RangeReader, together
from shardio.storage._requests import Attempt, Pending, Sender
from shardio.storage._tuning import Clock

# Without second requests, which a busy machine would add.
TUNING = Tuning(hedge_quantile=1.0, concurrency=4)
HEDGED = dataclasses.replace(TUNING, hedge_quantile=0.9)
SIZE = 1000


class Engine:
    """Answers each call as told: after seconds, with an error, with bytes of another length, or "last".

    That is after a later call was answered, however long that took.
    """

    def __init__(self, *answers: float | str) -> None:
        self.answers = list(answers)
        self.sent = self.cancelled = self.under_way = self.most = 0
        self.error: Exception = OSError("fails")
        self.later = asyncio.Event()
        self.by_key: dict[str, str] = {}

    async def fetch_many(self, path: str, starts: list[int], stops: list[int]) -> Sequence[Any]:
        answer = self.by_key.get(path, self.answers[min(self.sent, len(self.answers) - 1)])
        self.sent += 1
        self.under_way += len(starts)
        self.most = max(self.most, self.under_way)
        try:
            if answer == "last":
                await self.later.wait()
            elif isinstance(answer, float):
                await asyncio.sleep(answer)
            if answer == "fails":
                raise self.error
            return self.made([b - a - (answer == "short") for a, b in zip(starts, stops, strict=True)])
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            if answer != "last":
                # So that what it answers has been taken by then.
                asyncio.get_running_loop().call_later(0.02, self.later.set)
            self.under_way -= len(starts)

    def made(self, sizes: list[int]) -> Sequence[Any]:
        return [bytes(size) for size in sizes]


def sender(tuning: Tuning = TUNING, seconds: float = 0.001, clock: Clock | None = None) -> Sender:
    """Return those that know that a request usually takes so long: of 0.001, one is late after 0.02."""
    made = Sender(None, tuning, clock or Clock())  # no client is built
    for _ in range(100):
        made.hedge.record(SIZE, seconds)
    return made


def begin(made: Sender, engine: Engine, calls: int = 1, ranges: int = 1) -> Any:
    pieces = [(k * SIZE, k * SIZE + SIZE) for k in range(ranges)]
    return Pending(made, [together(engine.fetch_many, "key", pieces)] * calls).begin()


def read(made: Sender, engine: Engine, calls: int = 1, ranges: int = 1) -> list[memoryview] | None:
    try:
        return [data for call in begin(made, engine, calls, ranges)() for data in call]
    except RetryError:
        return None


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
    made, engine = sender(HEDGED, seconds=30.0 if sent == 1 else 0.001), Engine(*answers)
    found = read(made, engine)
    assert (found is not None) == good
    assert found is None or [len(data) for data in found] == [SIZE]
    assert engine.sent == sent
    assert made.batches.closed == good
    assert made.sent[0] == sent


def test_a_call_without_an_answer_fails_in_time() -> None:
    tuning = dataclasses.replace(TUNING, stall=0.05, concurrency=1)
    made, silent = sender(tuning), Engine(30.0)
    with pytest.raises(RetryError, match="no answer within"):
        begin(made, silent)()
    made.tuning = TUNING
    assert read(made, Engine(0.0)) is not None
    assert silent.cancelled == 1


def test_calls_wait_for_permits_and_give_them_back() -> None:
    made, engine = sender(), Engine(0.01)
    found = read(made, engine, calls=10, ranges=3)
    assert found is not None
    assert len(found) == 30
    assert engine.most == 3  # of four that are allowed
    assert read(made, Engine("fails"), calls=10, ranges=3) is None
    assert read(made, engine, calls=2, ranges=4) is not None


def test_permits_that_an_interrupted_thread_gave_are_used() -> None:
    """What gives permits back begins the next call, in its thread, which may be interrupted just there."""
    made = sender(dataclasses.replace(TUNING, concurrency=1))
    first, second = Engine(0.1), Engine(0.0)
    wait = begin(made, first)
    limiter = made._reads
    submit = limiter.submit

    def interrupted(attempt: Attempt) -> None:
        attempt.call.begin = lambda attempt: delattr(attempt.call, "begin")
        submit(attempt)

    limiter.submit = interrupted
    wait_second = begin(made, second)
    limiter.submit = submit
    assert wait() is not None
    assert wait_second() is not None
    assert second.sent == 1


def test_an_interrupt_cancels_what_is_under_way() -> None:
    silent = Engine(30.0)

    class Interrupted(Clock):
        def wait(self, gate: threading.Lock, seconds: float) -> None:
            assert seconds > 0
            if silent.sent == 2:
                raise KeyboardInterrupt
            super().wait(gate, min(seconds, 0.01))

    made = sender(dataclasses.replace(TUNING, concurrency=2), clock=Interrupted())
    wait = begin(made, silent, calls=2)
    with pytest.raises(KeyboardInterrupt):
        wait()
    silent.sent = 0
    assert read(made, Engine(0.01), calls=2) is not None
    assert silent.cancelled == 2


def test_a_call_that_is_not_waited_for_any_more_is_cancelled() -> None:
    """Another call has failed, or a stream was dropped: a silent server would keep the permits."""
    made, silent = sender(), Engine(30.0)
    waiting = [begin(made, silent, calls=2) for _ in range(4)]  # four have permits, the others wait for them
    del waiting
    assert read(made, Engine(0.01), calls=4) is not None
    assert silent.cancelled == silent.sent <= 4


def test_who_waits_is_woken_once() -> None:
    """However many calls it waits for: waking a thread costs a good part of what a request does."""
    woken = []

    class Counted(Clock):
        def wait(self, gate: threading.Lock, seconds: float) -> None:
            super().wait(gate, seconds)
            woken.append(seconds)

    tuning = dataclasses.replace(TUNING, concurrency=8)
    made, engine = sender(tuning, clock=Counted()), Engine(0.05)
    found = read(made, engine, calls=8)
    assert found is not None
    assert len(found) == 8
    assert len(woken) == 1


@pytest.mark.parametrize("answer", [0.0, "short"])
def test_bytes_go_with_their_last_reference(answer: float | str) -> None:
    """Not when the collector runs: windows of a stream are megabytes. Wrong ones are held by an error."""

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
        wait = begin(sender(), Keeping(answer))
        found = None
        with contextlib.suppress(RetryError):
            found = wait()
            assert not gone.is_set()
        assert (found is None) == (answer == "short")
        del found
        assert gone.wait(60)
    finally:
        gc.enable()
    assert wait is not None


@pytest.mark.parametrize(
    ("error", "closed"),
    [(FileNotFoundError("gone"), True), (StatusError(416, ""), True), (StatusError(503, ""), False)],
)
def test_what_is_said_of_one_object_is_no_outage(error: Exception, closed: bool) -> None:
    """Where one shard was gone all requests went one by one for a while."""
    made, engine = sender(), Engine("fails")
    engine.error = error
    assert read(made, engine) is None
    assert made.batches.closed == closed


class Reader:
    """Notes what is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int], list[int]]] = []

    async def fetch_many(self, path: str, starts: list[int], stops: list[int]) -> Sequence[Any]:
        self.asked.append((path, starts, stops))
        return [bytes(stop - start) for start, stop in zip(starts, stops, strict=True)]


def test_ranges_of_one_object_go_together() -> None:
    """Up to so many bytes; neighbours that touch do not, which obstore would make one of."""
    tuning = dataclasses.replace(TUNING, large_bytes=100, max_request_bytes=40)
    made = sender(tuning)
    made.engine.reader = Reader()

    def asked(*ranges: tuple[int, int]) -> list[tuple[list[int], list[int]]]:
        made.engine.reader.asked.clear()
        reader = RangeReader(made, "a", ObjectIdentity(1000), engine=True, checksummed=True, gap=0)
        found = reader.begin(*zip(*ranges, strict=True))()
        assert [len(data) for data in found] == [stop - start for start, stop in ranges]
        return sorted((starts, stops) for _, starts, stops in made.engine.reader.asked)

    assert asked((0, 40), (50, 90)) == [([0, 50], [40, 90])]
    assert asked((0, 40), (40, 80)) == [([0], [40]), ([40], [80])]
    assert asked((0, 40), (50, 80), (90, 130)) == [([0, 50], [40, 80]), ([90], [130])]


@pytest.mark.parametrize(("seconds", "sizes"), [(0.001, [32, 8]), (0.02, [8] * 5)])
def test_more_ranges_of_one_object_go_together_where_answers_are_near(
    seconds: float, sizes: list[int]
) -> None:
    """Obstore sends ten of a call side by side: further ones wait for a round trip, which may be short."""
    made = sender()
    for _ in range(200):
        made.hedge.record(SIZE, seconds)
    made.engine.reader = Reader()
    reader = RangeReader(made, "a", ObjectIdentity(10**9), engine=True, checksummed=True, gap=0)
    starts = np.arange(40) * 10_000
    found = reader.begin(starts, starts + np.arange(1, 41))()
    assert [len(data) for data in found] == list(range(1, 41))
    assert [len(begins) for _, begins, _ in sorted(made.engine.reader.asked)] == sizes


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
