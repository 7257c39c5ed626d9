"""Clients that change one dataset in every order and fail at every call, against an oracle outside.

The law is `simulate.check`; `python -m tests.simulation.simulate` runs as many schedules as one likes.
"""

from __future__ import annotations

import functools
from unittest import mock

import pytest

from tests.simulation.simulate import Schedule, run, search

AT_ONCE = 20


@functools.cache
def _first_history():
    return run(Schedule.random(7))


def test_a_seed_gives_one_history():
    """Names, ids, the order of calls and what became of them."""
    first, again = _first_history(), run(Schedule.random(7))
    assert first.wrong is None
    assert list(map(str, first.world.calls)) == list(map(str, again.world.calls))
    assert first.world.objects == again.world.objects


@pytest.mark.sampled(6)
@pytest.mark.parametrize("first", range(0, 240, AT_ONCE))
def test_schedules_keep_the_law(first, request):
    """P2, P3, P20: what was acknowledged is there once, what was refused is not, what lives is whole.

    Each history is also one of those that the specification allows.
    """
    found = search(first + 10_000 * request.config.getoption("--seed"), AT_ONCE)
    assert found is None, str(found)


# And a seed shortly before the first that falls into it.
HOLES = {
    "shardio.catalog._commit._check_fences": (228, lambda *_: None),
    "shardio.catalog._gc._follow": (17, lambda plan, _: plan),
}
LOST = (
    "gone or changed",
    "no such object",
    "not there",
    "given up",
    "gives up",
    "forgets",
)  # in words of the law


@pytest.mark.slow
@pytest.mark.parametrize("place", HOLES)
def test_a_hole_is_found_and_its_history_is_short(place):
    """Without the fence of garbage collection, and without its second look: told in a few deeds."""
    seed, hole = HOLES[place]
    with mock.patch(place, hole):
        found = search(seed, 3000, tries=150)
        assert found is not None
        assert any(word in (found.wrong or "") for word in LOST), found.wrong
        assert sum(map(len, found.schedule.deeds)) <= 5, str(found)
    assert run(found.schedule).wrong is None
