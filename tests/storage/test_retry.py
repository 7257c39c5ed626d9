"""The retry layer by itself, with a clock that runs only during sleeps (P16)."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import statistics
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shardio.storage import Tuning
from shardio.storage._errors import BadResponseError, ErrorKind, RetryError, StatusError, classify
from shardio.storage._requests import Pending, Request, Sender
from shardio.storage._retry import RetryBudget
from shardio.storage._tuning import Clock
from tests.suites.clock import FakeClock

TUNING = Tuning()


async def answered(value: object) -> object:
    """End so at once."""
    if isinstance(value, Exception):
        raise value
    return value


def failing(*results: Exception | str) -> Callable[..., Awaitable[Any]]:
    """A request that ends so, each time with the next of these; a text is its answer."""
    waiting = list(results)
    return lambda *_: answered(waiting.pop(0) if len(waiting) > 1 else waiting[0])


def sender(clock: Clock, tuning: Tuning = TUNING) -> Sender:
    return Sender(None, tuning, clock)  # no client is built


def send(made: Sender, request: Callable[..., Awaitable[Any]]) -> Any:
    return Pending(made, [Request(request)]).begin()()[0]


def test_it_waits_longer_each_time_with_full_jitter() -> None:
    first, fifth = [], []
    for _ in range(300):
        clock = FakeClock()
        errors = [StatusError(503, "busy")] * 5
        assert send(sender(clock), failing(*errors, "done")) == "done"
        first.append(clock.slept[0])
        fifth.append(clock.slept[4])
    # Uniform from nothing to the bound, which doubles.
    assert 0 <= min(first) < 0.05
    assert 0.15 < max(first) <= 0.2
    assert min(fifth) < 0.4
    assert 2.4 < max(fifth) <= 3.2
    assert 1.3 < statistics.mean(fifth) < 1.9


def test_it_draws_nothing_from_the_generator_of_the_program() -> None:
    """A retry must not change what a seeded program draws, nor what other threads' tests generate."""
    random.seed(7)
    before = random.getstate()
    clock = FakeClock()
    assert send(sender(clock), failing(StatusError(503, "busy"), "done")) == "done"
    assert clock.slept
    assert random.getstate() == before


def test_the_deadline_bounds_it() -> None:
    clock = FakeClock()
    made = sender(clock)
    send(made, failing("answered once"))
    with pytest.raises(RetryError) as caught:
        send(made, failing(StatusError(503, "busy")))
    assert clock.time - 1000 <= TUNING.deadline
    assert caught.value.seconds > TUNING.deadline - TUNING.max_backoff
    assert caught.value.attempts == len(clock.slept) + 1


def test_a_store_that_never_answered_is_given_up_sooner() -> None:
    clock = FakeClock()
    with pytest.raises(RetryError):
        send(sender(clock), failing(ConnectionRefusedError("refused")))
    assert clock.time - 1000 <= TUNING.first_deadline


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    clock = FakeClock()
    error = StatusError(503, "busy", {"Retry-After": "3600"})
    with pytest.raises(RetryError):
        send(sender(clock), failing(error))
    assert clock.slept == []


def test_a_wrong_reply_that_comes_again_is_an_error_soon() -> None:
    clock = FakeClock()
    with pytest.raises(RetryError) as caught:
        send(sender(clock), failing(BadResponseError("short")))
    assert caught.value.attempts == 4


def test_a_request_that_hangs_is_given_up() -> None:
    tuning = dataclasses.replace(TUNING, stall=0.01, slowest=1e9, deadline=1.0)

    with pytest.raises(RetryError) as caught:
        send(sender(FakeClock(), tuning), lambda *_: asyncio.get_running_loop().create_future())
    assert caught.value.last.kind is ErrorKind.CONNECTION
    assert caught.value.applied


def test_building_a_client_is_no_silence_of_the_service() -> None:
    """On a busy machine the imports of a client library took longer than any answer may."""
    looks = threading.Semaphore(0)

    class Watched(FakeClock):
        def ticks(self) -> float:
            return self.time

        def wait(self, gate: threading.Lock, seconds: float) -> None:
            looks.release()
            gate.acquire(timeout=min(seconds, 0.01))

    def wait_for_looks() -> None:
        """Wait until who waits for the request has looked at it, and found nothing to do."""
        while looks.acquire(blocking=False):
            pass
        for _ in range(2):
            assert looks.acquire(timeout=60)

    class Built:
        pass

    class Slow:
        def connect(self, *_: object, **__: object) -> Built:
            clock.time += 2 * TUNING.stall
            wait_for_looks()
            return Built()

    async def request(client: object) -> object:
        await asyncio.to_thread(wait_for_looks)
        return client

    clock = Watched()
    made = Sender(Slow(), TUNING, clock)
    assert isinstance(made.send(request), Built)
    assert clock.slept == []


def test_the_budget_is_a_stock_refilled_by_time_and_success() -> None:
    clock = FakeClock()
    budget = RetryBudget(TUNING, clock)
    assert [budget.spend() for _ in range(16)] == [0.0] * 16
    assert budget.spend() == pytest.approx(1 / 4)
    assert budget.spend() == pytest.approx(2 / 4)
    clock.time += 1
    assert budget.spend() == 0.0
    for _ in range(10):
        budget.succeeded()
    assert budget.spend() == 0.0
    clock.time += 3600
    assert [budget.spend() for _ in range(16)] == [0.0] * 16
    assert budget.spend() > 0


def test_many_readers_together_keep_to_the_budget() -> None:
    """P16: whatever the number of readers, an outage gets the stock of retries and what time adds to it."""
    clock = FakeClock()
    end = clock.time + 60
    sent = 0

    def request(*_: object) -> Awaitable[Any]:
        nonlocal sent
        sent += 1
        return answered(StatusError(503, "busy") if clock.time < end else "done")

    assert Pending(sender(clock), [Request(request)] * 200).begin()() == ["done"] * 200
    assert sent <= 200 + TUNING.retry_burst + (clock.time - 1000) * TUNING.retries_per_second + 1


def test_what_fails_while_nothing_waits_for_it_has_all_its_time_then() -> None:
    """Requests are begun ahead: one that is waited for after an outage of its neighbour is sent again."""
    clock = FakeClock()
    made = sender(clock)
    send(made, failing("answered once"))
    wait = Pending(made, [Request(failing(StatusError(503, "busy"), "done"))]).begin()
    clock.time += 2 * TUNING.deadline
    assert wait() == ["done"]


def test_a_service_says_when_to_ask_again() -> None:
    clock = FakeClock()
    asked: list[float] = []
    replies = [StatusError(429, "busy", {"Retry-After": "7"}), "done"]

    def request(*_: object) -> Awaitable[Any]:
        asked.append(clock.time)
        return answered(replies.pop(0))

    assert send(sender(clock), request) == "done"
    assert asked[1] - asked[0] >= 7


def test_expired_credentials_are_renewed_and_tried_at_once() -> None:
    clock = FakeClock()
    expired = StatusError(403, "ExpiredToken")
    made = sender(clock)
    made.renew = lambda: True
    assert send(made, failing(expired, "done")) == "done"
    assert clock.slept == []


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (404, "NoSuchKey", ErrorKind.NOT_FOUND),
        (403, "AccessDenied", ErrorKind.DENIED),
        (403, "ExpiredToken", ErrorKind.EXPIRED),
        (401, "Invalid Credentials", ErrorKind.EXPIRED),
        (412, "PreconditionFailed", ErrorKind.EXISTS),
        (409, "BlobAlreadyExists", ErrorKind.EXISTS),
        (409, "ConditionalRequestConflict", ErrorKind.UNAVAILABLE),
        (416, "InvalidRange", ErrorKind.PAST_END),
        (429, "", ErrorKind.UNAVAILABLE),
        (400, "RequestTimeout", ErrorKind.UNAVAILABLE),
        (503, "SlowDown", ErrorKind.UNAVAILABLE),
        (599, "", ErrorKind.UNAVAILABLE),
        (501, "NotImplemented", ErrorKind.REFUSED),
        (400, "InvalidArgument", ErrorKind.REFUSED),
    ],
)
def test_a_status_means_one_thing(status: int, text: str, kind: ErrorKind) -> None:
    found = classify(StatusError(status, text))
    assert found.kind is kind
    assert found.status == status
    # A gateway's 5xx says nothing about what was done, but that it cannot be done says enough.
    assert found.applied == (status >= 500 and status != 501)


def test_the_reason_is_found_behind_other_errors() -> None:
    error = OSError(22, "something")
    error.__cause__ = StatusError(404, "gone")
    assert classify(error).kind is ErrorKind.NOT_FOUND


def test_retry_after_may_be_a_date_and_our_clock_wrong() -> None:
    """P18: only the distance between the reply's own dates counts."""
    headers = {"Retry-After": "Fri, 01 Jan 1999 00:00:30 GMT", "Date": "Fri, 01 Jan 1999 00:00:00 GMT"}
    assert classify(StatusError(503, "", headers)).retry_after == 30
    assert classify(StatusError(503, "", {"Retry-After": "soon"})).retry_after == 0


def test_what_is_not_known_is_not_tried_again() -> None:
    found = classify(RuntimeError("a bug of ours"))
    assert not found.kind.worth_retrying
    assert "a bug of ours" in found.text
