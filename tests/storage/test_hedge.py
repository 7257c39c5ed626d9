"""Second requests for stragglers: after a measured quantile, capped, the first reply wins."""

from __future__ import annotations

import asyncio
import dataclasses
import math

import pytest

from shardio.storage import Tuning
from shardio.storage._retry import Hedge
from shardio.storage._tuning import Clock

TUNING = Tuning(hedge_quantile=0.9, hedge_share=0.05)


def learned(tuning: Tuning = TUNING, seconds: float = 0.001, count: int = 100) -> Hedge:
    hedge = Hedge(tuning, Clock())
    for _ in range(count):
        hedge.record(1000, seconds)
    return hedge


def replies(*delays: float):
    """A request whose n-th sending takes so long; one below nothing fails at once.

    One that is infinite takes until another one has failed, however long that took.
    """
    sent: list[int] = []
    cancelled: list[int] = []
    failed = asyncio.Event()

    async def request() -> int:
        number = len(sent)
        sent.append(number)
        if delays[number] < 0:
            failed.set()
            raise OSError(f"failure {number}")
        try:
            await (failed.wait() if math.isinf(delays[number]) else asyncio.sleep(delays[number]))
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    return request, sent, cancelled


def test_nothing_is_late_before_enough_is_known() -> None:
    assert learned(count=31).limit(1000) is None
    assert learned(count=100).limit(1000) is not None
    # Sizes are compared with their like.
    assert learned().limit(1_000_000) is None


def test_the_limit_is_the_quantile_and_never_tiny() -> None:
    hedge = Hedge(TUNING, Clock())
    for k in range(100):
        hedge.record(1000, 1.0 + k / 100)
    assert hedge.limit(1000) == pytest.approx(1.9, abs=0.1)
    assert learned(seconds=1e-6).limit(1000) == 0.02


def test_the_fastest_of_late_tells_how_near_the_store_is() -> None:
    hedge = Hedge(TUNING, Clock())
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
    request, sent, cancelled = replies(30, 0)
    assert asyncio.run(learned().run(request, 1000)) == 1
    assert sent == [0, 1]
    assert cancelled == [0]


def test_a_punctual_request_is_sent_once() -> None:
    request, sent, _ = replies(0, 0)
    assert asyncio.run(learned().run(request, 1000)) == 0
    assert sent == [0]


def test_a_straggler_that_answers_after_the_second_failed_wins() -> None:
    request, sent, _ = replies(math.inf, -1)
    assert asyncio.run(learned().run(request, 1000)) == 0
    assert sent == [0, 1]


def test_when_both_fail_it_fails() -> None:
    request, sent, _ = replies(-1, -1)
    with pytest.raises(OSError, match="failure 0"):
        asyncio.run(learned().run(request, 1000))
    assert sent == [0]


def test_second_requests_are_capped() -> None:
    """A service that got slow as a whole is not asked twice as often."""
    hedge = learned(count=200)
    total = 0

    async def work() -> None:
        nonlocal total
        for _ in range(12):
            request, sent, _ = replies(0.03, 0.03)
            await hedge.run(request, 1000)
            total += len(sent) - 1

    asyncio.run(work())
    assert 1 <= total <= 5


def test_cancelling_the_call_cancels_both() -> None:
    request, sent, cancelled = replies(30, 30)

    async def work() -> None:
        both = asyncio.Event()

        async def noted() -> int:
            if sent:
                both.set()
            return await request()

        task = asyncio.ensure_future(learned().run(noted, 1000))
        await both.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert sorted(cancelled) == [0, 1]
