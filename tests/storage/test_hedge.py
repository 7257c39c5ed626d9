"""Second requests for stragglers: after a measured quantile, capped, the first reply wins."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import threading
from typing import Any

import pytest

from shardio.storage import Tuning
from shardio.storage._errors import RetryError
from shardio.storage._requests import Pending, Request, Sender
from shardio.storage._retry import Hedge
from shardio.storage._tuning import Clock

TUNING = Tuning(hedge_quantile=0.9, hedge_share=0.05)


def learned(tuning: Tuning = TUNING, seconds: float = 0.001, count: int = 100) -> Hedge:
    hedge = Hedge(tuning)
    for _ in range(count):
        hedge.record(1000, seconds)
    return hedge


class Replies:
    """A request whose n-th sending takes so long; one below nothing fails at once.

    One that is infinite takes until another one has failed, however long that took.
    """

    def __init__(self, *delays: float) -> None:
        self.delays = delays
        self.sent: list[int] = []
        self.cancelled: list[int] = []
        self.failed = asyncio.Event()
        self.ended = threading.Semaphore(0)

    async def __call__(self, *_: object) -> int:
        number = len(self.sent)
        self.sent.append(number)
        delay = self.delays[number]
        try:
            if delay < 0:
                # So that the failure has been looked at when the other one answers.
                asyncio.get_running_loop().call_later(0.05, self.failed.set)
                raise OSError(f"failure {number}")
            if math.isinf(delay):
                await self.failed.wait()
            else:
                await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.ended.release()
        return number


def sender(hedge: Hedge | None = None, clock: Clock | None = None) -> Sender:
    made = Sender(None, TUNING, clock or Clock())  # no client is built
    made.hedge = hedge or learned()
    return made


def send(replies: Replies, made: Sender | None = None) -> Any:
    return Pending(made or sender(), [Request(replies, kind="data", size=1000, once=True)]).begin()()[0]


def test_nothing_is_late_before_enough_is_known() -> None:
    assert learned(count=31).limit(1000) is None
    assert learned(count=100).limit(1000) is not None
    # Sizes are compared with their like.
    assert learned().limit(1_000_000) is None


def test_the_limit_is_the_quantile_and_never_tiny() -> None:
    hedge = Hedge(TUNING)
    for k in range(100):
        hedge.record(1000, 1.0 + k / 100)
    assert hedge.limit(1000) == pytest.approx(1.9, abs=0.1)
    assert learned(seconds=1e-6).limit(1000) == 0.02


def test_the_fastest_of_late_tells_how_near_the_store_is() -> None:
    hedge = Hedge(TUNING)
    assert hedge.fastest == float("inf")
    for seconds in (0.3, 0.1, 0.2):
        hedge.note(seconds)
    assert hedge.fastest == 0.1, "known from the first request on"
    hedge.record(1000, 0.05)
    assert hedge.fastest == 0.05
    for _ in range(128):
        hedge.record(1000, 0.5)
    assert hedge.fastest == 0.5, "the network has changed"


def test_a_quantile_of_one_turns_it_off() -> None:
    assert learned(dataclasses.replace(TUNING, hedge_quantile=1.0)).limit(1000) is None


def test_the_second_request_wins_over_a_straggler() -> None:
    replies = Replies(30, 0)
    assert send(replies) == 1
    assert replies.sent == [0, 1]
    assert replies.ended.acquire(timeout=60)
    assert replies.ended.acquire(timeout=60)
    assert replies.cancelled == [0]


def test_a_straggler_that_cannot_be_cancelled_changes_nothing() -> None:
    """What it brings in the end is not looked at, and not told a second time."""
    sent: list[int] = []
    checked: list[int] = []
    late = asyncio.Event()
    ended = threading.Event()

    async def begin(*_: object) -> int:
        number = len(sent)
        sent.append(number)
        while not (number or late.is_set()):
            with contextlib.suppress(asyncio.CancelledError):
                await late.wait()
        if not number:
            asyncio.get_running_loop().call_soon(ended.set)
        return number

    made = sender()

    def check(value: int) -> int:
        checked.append(value)
        return value

    request = Request(begin, kind="data", size=1000, check=check)
    pending = Pending(made, [request])
    assert pending.begin()() == [1]
    made.loop.call_soon_threadsafe(late.set)
    assert ended.wait(60)
    assert pending._left == 0
    assert checked == [1]
    assert made._reads._free == (TUNING.concurrency, TUNING.large_concurrency, TUNING.fsspec_concurrency)


def test_a_punctual_request_is_sent_once() -> None:
    replies = Replies(0, 0)
    assert send(replies, sender(learned(seconds=30.0))) == 0
    assert replies.sent == [0]


def test_a_straggler_that_answers_after_the_second_failed_wins() -> None:
    replies = Replies(math.inf, -1)
    assert send(replies) == 0
    assert replies.sent == [0, 1]


def test_when_both_fail_it_fails() -> None:
    replies = Replies(-1, -1)
    with pytest.raises(RetryError) as caught:
        send(replies, sender(learned(seconds=30.0)))
    assert str(caught.value.__cause__) == "failure 0"
    assert replies.sent == [0]


def test_second_requests_are_capped() -> None:
    """A service that got slow as a whole is not asked twice as often."""
    made = sender(learned(count=200))
    total = 0
    for _ in range(12):
        replies = Replies(0.05, 0.05)
        send(replies, made)
        total += len(replies.sent) - 1
    assert 1 <= total <= 5


def test_interrupting_the_wait_cancels_both() -> None:
    replies = Replies(30, 30)

    class Interrupted(Clock):
        def wait(self, gate: threading.Lock, seconds: float) -> None:
            if len(replies.sent) == 2:
                raise KeyboardInterrupt
            super().wait(gate, min(seconds, 0.01))

    with pytest.raises(KeyboardInterrupt):
        send(replies, sender(clock=Interrupted()))
    assert replies.ended.acquire(timeout=60)
    assert replies.ended.acquire(timeout=60)
    assert sorted(replies.cancelled) == [0, 1]
