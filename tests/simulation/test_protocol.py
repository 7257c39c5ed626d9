"""The specification of versions: every state that small numbers of processes reach, and what histories do.

`docs/design/protocol.md` is the text, `protocol.py` what is explored here.
"""

from __future__ import annotations

import pytest

from tests.simulation.protocol import GUARDS, Process, explore, start


def writer(name: str, session: str) -> Process:
    return Process("writer", name, session)


COLLECTOR = Process("collector", "g", "abandon")
TAGGER = Process("tagger", "t")

WORLDS = {
    "a session that runs twice": start(writer("x", "s"), writer("y", "s"), COLLECTOR, faults=1),
    "sessions that are forgotten": start(writer("x", "~x"), writer("y", "~y"), faults=2),
    "a rewrite": start(writer("x", "rewritten"), Process("collector", "g"), writer("y", "t"), faults=1),
    "two collections": start(writer("x", "s"), COLLECTOR, Process("collector", "h"), faults=1),
    "a tag": start(TAGGER, Process("collector", "g"), writer("x", "~x"), faults=1),
}
# How many states each has, as docs/design/protocol.md says.
STATES = {
    "a session that runs twice": 12_080,
    "sessions that are forgotten": 278,
    "a rewrite": 18_630,
    "two collections": 27_695,
    "a tag": 5_057,
}
# The guards that each of them needs.
NEEDED = {
    "a session that runs twice": {"exclusive", "fence", "follow", "merged", "read back"},
    "sessions that are forgotten": {"exclusive", "read back"},
    "a rewrite": {"exclusive", "fence", "follow", "forget", "read back"},
    "two collections": {"exclusive", "fence", "follow", "forget", "read back"},
    "a tag": {"exclusive", "follow", "forget", "read back", "tags"},
}


@pytest.mark.parametrize("world", WORLDS)
def test_no_state_breaks_an_invariant(world):
    """P2, P3, P20, in every order of all steps, where any process may stop, with a lost or late request."""
    states, way = explore(WORLDS[world])
    assert not way, "\n".join(way)
    assert states == STATES[world]


@pytest.mark.slow
def test_no_state_of_a_larger_world_breaks_an_invariant(long):
    larger = start(writer("x", "s"), writer("y", "s"), COLLECTOR, TAGGER, faults=2 if long else 1)
    states, way = explore(larger)
    assert not way, "\n".join(way)
    assert states == (616_644 if long else 180_547)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world", WORLDS)
def test_each_guard_is_needed(world, long):
    """Without one of them an invariant breaks, and the way there is known; other worlds need the others."""
    tried = GUARDS if long else NEEDED[world]
    assert {guard for guard in tried if explore(WORLDS[world], [guard])[1]} == NEEDED[world]


def test_every_guard_is_needed_somewhere():
    assert set().union(*NEEDED.values()) == GUARDS
