"""The specification of versions: every state that small numbers of processes reach, and what histories do.

`docs/design/protocol.md` is the text, `protocol.py` what is explored here.
"""

from __future__ import annotations

import pytest

from shardio.catalog import Catalog
from shardio.metadata import HINT_KEY, MANIFESTS, SESSIONS, Manifest, manifest_key, parse_manifest
from tests.simulation.protocol import GUARDS, Process, explore, start
from tests.simulation.simulate import Schedule, run
from tests.simulation.world import PAST, SimulatedStore, World


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
    """P2, P3, P20, in every order of all steps, with a death or a lost or late request anywhere."""
    states, way = explore(WORLDS[world])
    assert not way, "\n".join(way)
    assert states > 400


@pytest.mark.slow
def test_no_state_of_a_larger_world_breaks_an_invariant():
    """1.4 million states."""
    states, way = explore(start(writer("x", "s"), writer("y", "s"), COLLECTOR, TAGGER, faults=2))
    assert not way, "\n".join(way)
    assert states > 1_000_000


@pytest.mark.parametrize("world", WORLDS)
def test_each_guard_is_needed(world):
    """Without one of them an invariant breaks, and the way there is known."""
    assert {guard for guard in GUARDS if explore(WORLDS[world], [guard])[1]} == NEEDED[world]


def test_every_guard_is_needed_somewhere():
    assert set().union(*NEEDED.values()) == GUARDS


@pytest.mark.parametrize("seed", range(500, 530))
def test_histories_are_behaviours_of_the_specification(seed):
    """What shardio does to a simulated store are steps that the specification allows."""
    history = run(Schedule.random(seed))
    assert history.wrong is None
    follow(history.world)


def follow(world: World) -> None:
    """Take the effects of a history one by one, and hold each to the guards of the specification."""
    chain: list[tuple[Manifest, frozenset[str]]] = []
    there: set[str] = set()
    doomed: set[str] = set()
    named: set[str] = set()
    for what, key in world.effects:
        if what == "remove":
            # What no version ever named may be taken back by who stored it.
            assert key in doomed or key not in named or key.startswith(SESSIONS), f"{key} was not given up"
            assert not key.startswith(MANIFESTS), f"{key} was removed"
            there.discard(key)
            continue
        there.add(key)
        if not key.startswith(MANIFESTS):
            continue
        number = len(chain) + 1
        assert key == manifest_key(number), f"{key} follows version {number - 1}"
        manifest = parse_manifest(world.ever[key], version=number, url=key)[0]
        names = names_of(world, manifest)
        assert names <= there, f"version {number} names {names - there}, which is not there"
        if chain:
            old, before = chain[-1]
            assert manifest.parent_version == old.version
            new = names - before
            restored = manifest.operation == "restore"
            assert restored or not new & doomed, f"version {number} adds what was given up: {new & doomed}"
            assert set(manifest.expiry.expired_versions) >= set(old.expiry.expired_versions)
            assert set(manifest.expiry.abandoned_sessions) >= set(old.expiry.abandoned_sessions)
            merged = {each.session for each in manifest.sessions} - {each.session for each in old.sessions}
            assert not merged & set(old.expiry.abandoned_sessions), f"version {number} merges {merged}"
        expired = set(manifest.expiry.expired_versions)
        assert not expired & set(manifest.tags.values()), f"version {number} expires what has a tag"
        chain.append((manifest, names))
        named |= names
        alive = [each for v, (_, each) in enumerate(chain, 1) if v not in expired]
        lost = set(manifest.expiry.doomed_keys) & frozenset[str]().union(*alive)
        assert not lost, f"version {number} gives up what a version names: {lost}"
        doomed |= set(manifest.expiry.doomed_keys)


def names_of(world: World, manifest: Manifest) -> frozenset[str]:
    """Return the objects that a version is read from: its lists, and what they name."""
    past = World(0, {}, {})
    past.objects = {key: (data, 1) for key, data in world.ever.items() if key != HINT_KEY}
    catalog = Catalog(SimulatedStore(past, PAST))
    names = {ref.key for ref in manifest.lists}
    for ref in manifest.lists:
        for shard in catalog.shards_of(ref):
            names |= {shard.key, shard.usual_index_key, shard.deletion_key, shard.table_key} - {""}
    return frozenset(names)
