"""Several requests in one call of the engine: hedged, timed and bounded like any other, and nothing kept."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from shardio.storage import Tuning
from shardio.storage._fetch import BatchRead
from shardio.storage._requests import Requests
from shardio.storage._tuning import Clock

TUNING = Tuning(hedge_quantile=0.9, concurrency=4)
SIZE = 1000


class Engine:
    """Answers each call as told: after seconds, with an error, or with bytes of another length."""

    def __init__(self, *answers: float | str) -> None:
        self.answers = list(answers)
        self.sent = self.cancelled = self.under_way = self.most = 0

    async def fetch_many(self, starts: list[int], stops: list[int]) -> Sequence[Any]:
        answer = self.answers[min(self.sent, len(self.answers) - 1)]
        self.sent += 1
        self.under_way += len(starts)
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(answer if isinstance(answer, float) else 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= len(starts)
        if answer == "fails":
            raise OSError(answer)
        return [bytes(stop - start - (answer == "short")) for start, stop in zip(starts, stops, strict=True)]


def requests(tuning: Tuning = TUNING) -> Requests:
    made = Requests(None, tuning, Clock())  # no client is built
    for _ in range(100):
        made.hedge.record(SIZE, 0.001)
    return made


def begin(made: Requests, engine: Engine, calls: int = 1, ranges: int = 1) -> Any:
    batch = [k * SIZE for k in range(ranges)], [(k + 1) * SIZE for k in range(ranges)]
    return BatchRead(made, TUNING, engine.fetch_many, [batch] * calls).begin()


def cancelled(engine: Engine, calls: int) -> bool:
    """Whether so many calls are cancelled before long: it happens on the loop."""
    deadline = time.monotonic() + 10
    while engine.cancelled < calls and time.monotonic() < deadline:
        time.sleep(0.001)
    return engine.cancelled == calls


@pytest.mark.parametrize(
    ("answers", "sent", "good"),
    [
        ((0.0,), 1, True),
        ((30.0, 0.0), 2, True),  # late: the second request wins
        ((0.05, "fails"), 2, True),  # late, and the second fails: the first may still answer
        (("fails",), 1, False),
        (("short",), 1, False),
        ((30.0, "short", 0.0), 2, None),
    ],
)
def test_a_call_gives_all_its_bytes_or_nothing(answers: Any, sent: int, good: bool | None) -> None:
    made, engine = requests(), Engine(*answers)
    wait = begin(made, engine)
    if good is None:
        time.sleep(0.2)  # the first one is still under way, and the second cannot be it
        assert engine.sent == sent
        return
    found = wait()
    assert (found is not None) == good
    assert found is None or [len(data) for data in found] == [SIZE]
    assert engine.sent == sent
    assert made.batches.closed == good
    assert made.sent[0] == sent


def test_a_call_without_an_answer_fails_in_time() -> None:
    tuning = dataclasses.replace(TUNING, stall=0.05, hedge_quantile=1.0)
    engine = Engine(30.0)
    batch = [([0], [SIZE])]
    assert BatchRead(requests(tuning), tuning, engine.fetch_many, batch).begin()() is None
    assert cancelled(engine, 1)


def test_calls_wait_for_permits_and_give_them_back() -> None:
    made, engine = requests(), Engine(0.01)
    found = begin(made, engine, calls=10, ranges=3)()
    assert found is not None
    assert len(found) == 30
    assert engine.most == 3  # of four that are allowed
    assert begin(made, Engine("fails"), calls=10, ranges=3)() is None
    assert begin(made, engine, calls=2, ranges=4)() is not None


def test_an_interrupt_cancels_what_is_under_way() -> None:
    made, engine = requests(dataclasses.replace(TUNING, hedge_quantile=1.0)), Engine(30.0)
    wait = begin(made, engine, calls=2)

    class Answer:
        def result(self) -> None:
            while engine.sent < 2:
                time.sleep(0.001)
            raise KeyboardInterrupt

        def done(self) -> bool:
            return engine.sent == 2  # the loop may begin after this has taken its place

    wait.__self__._answer = Answer()
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert cancelled(engine, 2)


def test_bytes_go_with_their_last_reference() -> None:
    """Not when the collector runs: windows of a stream are many megabytes."""

    class Held(bytearray):
        pass

    kept: list[weakref.ref[Any]] = []

    class Keeping(Engine):
        async def fetch_many(self, starts: list[int], stops: list[int]) -> Sequence[Any]:
            found = [Held(data) for data in await super().fetch_many(starts, stops)]
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
