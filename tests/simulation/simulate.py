"""One schedule of one world, the law of what it leaves behind, and the shortest history that breaks it.

As a program it goes through many: `python -m tests.simulation.simulate [first seed] [schedules]`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import shardio
from shardio.errors import CommitConflictError, FormatError, StaleIndexError, StorageError
from shardio.metadata import naming
from shardio.v1 import manifest_pb2 as pb
from tests.simulation.clients import DEEDS, ROOT, Client, Deed, contents, manifest_of, newest, past
from tests.simulation.world import FAULTS, Turn, World, simulated

# Deeds that add records.
BATCHES = {"append", "overwrite", "session", "shared", "merge"}

# Deeds that have to do with each other: of every second schedule.
THEMES = (
    ("gc", "tag", "untag"), ("gc", "session"), ("gc", "task", "merge"), ("gc", "compact", "delete"),
    ("session", "restore"), ("gc", "erase", "tag"), ("gc", "table", "keys", "compact"),
    ("gc", "restore", "schema"), ("shared", "restore"), ("gc", "shared"), ("compact", "delete"),
    ("gc", "merge", "compact"),
)  # fmt: skip

# How often the turn goes to another: before reads, changes, and creations that have turns of their own.
RATES = ((0.0, 0.02, 0.5), (0.0, 0.1, 0.3), (0.02, 0.3, 0.3), (0.1, 0.3, 0.3), (0.4, 0.4, 0.4))


@dataclass
class Schedule:
    """What happens: one seed gives one history.

    Attributes:
        seed: of names and ids.
        deeds: of each client.
        switches, faults, rates, focus: as `World` takes them.
    """

    seed: int
    deeds: list[list[tuple[str, int]]]
    switches: dict[Turn, tuple[int, float]] = field(default_factory=dict)
    faults: dict[Turn, tuple[str, int]] = field(default_factory=dict)
    rates: tuple[float, float, float] = (1.0, 1.0, 1.0)
    focus: str = naming.MANIFESTS

    def __str__(self) -> str:
        lines = [f"seed {self.seed}"]
        lines += [f"client {k}: {deeds}" for k, deeds in enumerate(self.deeds)]
        return "\n".join([*lines, f"switches {self.switches}", f"faults {self.faults}"])

    @classmethod
    def random(cls, seed: int) -> Schedule:
        """Return the schedule of a seed: two to four clients, a mood that favours switches or faults."""
        draw = random.Random(seed)
        clients = draw.randint(2, 4)
        kinds = draw.sample(list(DEEDS), draw.choice([1, 2, 3, 3, 5, len(DEEDS)]))
        kinds.append("append")
        if seed % 2:
            kinds = [*draw.choice(THEMES), "append"]
        weights = [DEEDS[kind] for kind in kinds]
        deeds = [
            [(kind, draw.randrange(60)) for kind in draw.choices(kinds, weights, k=draw.randint(1, 6))]
            for _ in range(clients)
        ]
        few = draw.sample(list(FAULTS), draw.choice([1, 2, 4]))
        faults = draw.choice([few, few, [*FAULTS], ["late", "fails"], ["dies before", "dies after"]])
        failing, creating = draw.choice([(0.0, 0.0), (0.0, 0.3), (0.02, 0.1), (0.08, 0.1)])
        turns = [(client, count) for client in range(clients) for count in range(-40, 300)]
        return cls(
            seed,
            deeds,
            {turn: (draw.randrange(clients), draw.random()) for turn in turns},
            {
                turn: (draw.choice(faults), draw.randrange(40))
                for turn in turns
                if draw.random() < (failing if turn[1] > 0 else creating)
            },
            draw.choice(RATES),
            draw.choice([naming.MANIFESTS, "_shardio/"]),
        )

    def simpler(self) -> Iterator[Schedule]:
        """Yield schedules with less in them, those with much less first."""
        for k, deeds in enumerate(self.deeds):
            if deeds:
                yield replace(self, deeds=[[] if j == k else each for j, each in enumerate(self.deeds)])
        for k, deeds in enumerate(self.deeds):
            for i in range(len(deeds)):
                fewer = [*deeds[:i], *deeds[i + 1 :]]
                yield replace(self, deeds=[fewer if j == k else each for j, each in enumerate(self.deeds)])
        for name in ("faults", "switches"):
            there = list(getattr(self, name).items())
            size = len(there)
            while size:
                for start in range(0, len(there), size):
                    yield replace(self, **{name: dict(there[:start] + there[start + size :])})
                size //= 2
        for k, deeds in enumerate(self.deeds):
            for i, (kind, number) in enumerate(deeds):
                for less in {0, number % 6} - {number}:
                    smaller = [*deeds[:i], (kind, less), *deeds[i + 1 :]]
                    yield replace(
                        self, deeds=[smaller if j == k else each for j, each in enumerate(self.deeds)]
                    )


@dataclass
class History:
    """What one schedule came to: the deeds, the world, and what is wrong, or None."""

    schedule: Schedule
    world: World
    deeds: list[Deed]
    wrong: str | None
    versions: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        deeds, calls = map(str, self.deeds), map(str, self.world.calls)
        parts = [[str(self.wrong)], [str(self.schedule)], deeds, calls, self.versions]
        return "\n\n".join("\n".join(part) for part in parts)


def run(schedule: Schedule) -> History:
    """Run a schedule and judge what it leaves behind."""
    world = World(schedule.seed, schedule.switches, schedule.faults, schedule.rates, schedule.focus)
    done: list[Deed] = []
    with simulated(world):
        with shardio.DatasetWriter(ROOT, {"n": "int64"}) as out:
            out.write({"n": 0})
        clients = [Client(world, k, deeds, done) for k, deeds in enumerate(schedule.deeds)]
        try:
            world.run([client.run for client in clients])
            check(world, done)
        except Exception as error:  # noqa: BLE001 - whatever it is, it was not to happen
            import traceback

            wrong = "".join(traceback.format_exception(error))
            return History(schedule, world, done, wrong, list(_versions(world)))
    return History(schedule, world, done, None)


def _versions(world: World) -> Iterator[str]:
    for v in range(1, newest(world) + 1):
        try:
            yield f"version {v}: {operation_of(world, v)} {contents(world, v)}"
        except Exception as error:  # noqa: BLE001 - it may be what is wrong
            yield f"version {v}: {error}"


def operation_of(world: World, version: int) -> str:
    return manifest_of(world, version).operation


def check(world: World, deeds: list[Deed]) -> None:
    """The law: versions follow each other by one deed each, and what was acknowledged is among them, once."""
    last = newest(world)
    held = [Counter(contents(world, v)) if v else Counter[int]() for v in range(last + 1)]
    added: dict[frozenset[int], list[int]] = {}
    taken: list[tuple[int, frozenset[int]]] = []
    for v in range(2, last + 1):
        assert max(held[v].values(), default=1) == 1, f"version {v} holds a record twice: {held[v]}"
        new, gone = frozenset(held[v] - held[v - 1]), frozenset(held[v - 1] - held[v])
        operation = operation_of(world, v)
        if operation == "restore":
            assert held[v] in held[:v], f"version {v} restores what no version was"
        elif operation == "overwrite":
            added.setdefault(frozenset(held[v]), []).append(v)
        elif new:
            assert (operation, gone) == ("append", frozenset()), f"version {v}, {operation}: {new}, -{gone}"
            added.setdefault(new, []).append(v)
        elif gone:
            assert operation in {"delete", "erase"}, f"version {v}, {operation}: {gone} went"
            taken.append((v, gone))
    check_told(deeds, held)
    check_added(deeds, added)
    check_taken(deeds, taken, held)
    follow(world)
    check_present(world, last)


def follow(world: World) -> None:
    """Take the effects of a history one by one, and hold each to the guards of the specification."""
    chain: list[tuple[pb.Manifest, frozenset[str]]] = []
    there: set[str] = set()
    doomed: set[str] = set()
    named: set[str] = set()
    for what, key in world.effects:
        if what == "remove":
            # What no version ever named may be taken back by who stored it.
            assert key in doomed or key not in named or key.startswith(naming.SESSIONS), (
                f"{key} was not given up"
            )
            assert not key.startswith(naming.MANIFESTS), f"{key} was removed"
            there.discard(key)
            continue
        there.add(key)
        if not key.startswith(naming.MANIFESTS):
            continue
        number = len(chain) + 1
        assert key == naming.manifest_key(number), f"{key} follows version {number - 1}"
        manifest = manifest_of(world, number)
        names = past(world, number)[1]
        assert names <= there, f"version {number} names {names - there}, which is not there"
        if chain:
            old, before = chain[-1]
            assert manifest.parent_version == old.version, (
                f"version {number} follows {manifest.parent_version}"
            )
            new = names - before
            restored = manifest.operation == "restore"
            assert restored or not new & doomed, f"version {number} adds what was given up: {new & doomed}"
            for given_up in ("expired_versions", "abandoned_sessions"):
                lost = set(getattr(old.expiry, given_up)) - set(getattr(manifest.expiry, given_up))
                assert not lost, f"version {number} forgets {given_up} {lost}"
            merged = {each.session for each in manifest.sessions} - {each.session for each in old.sessions}
            assert not merged & set(old.expiry.abandoned_sessions), f"version {number} merges {merged}"
        expired = set(manifest.expiry.expired_versions)
        assert not expired & {tag.version for tag in manifest.tags}, (
            f"version {number} expires what has a tag"
        )
        chain.append((manifest, names))
        named |= names
        alive = [each for v, (_, each) in enumerate(chain, 1) if v not in expired]
        needed = set(manifest.expiry.doomed_keys) & frozenset[str]().union(*alive)
        assert not needed, f"version {number} gives up what a version names: {needed}"
        doomed |= set(manifest.expiry.doomed_keys)


def check_told(deeds: list[Deed], held: list[Counter[int]]) -> None:
    """What was refused was refused for a reason: shardio tries again, and knows what it has committed."""
    for deed in deeds:
        if isinstance(deed.error, CommitConflictError):
            there = [set(deed.ids) <= held[v].keys() for v in range(deed.before, deed.after + 1)]
            # Stores know the answer to a request of theirs that came twice; this one does not.
            twice = any(each.startswith("done, told taken") for each in deed.met)
            assert twice or deed.kind not in BATCHES or not all(there), f"{deed}, and all versions hold it"
        elif isinstance(deed.error, StorageError | FormatError | StaleIndexError):
            # What fails, and a deletion without an answer, are tried again by stores, which are below this.
            below = any(each.startswith("fails") or each.endswith("delete") for each in deed.met)
            assert below or len(deed.met) > 2, f"{deed}, and met only {deed.met}"


def check_added(deeds: list[Deed], added: dict[frozenset[int], list[int]]) -> None:
    """Each batch was added as a whole and once, if it was acknowledged; not, if it was refused."""
    batches: dict[frozenset[int], list[Deed]] = {}
    for deed in deeds:
        if deed.ids and deed.kind in BATCHES:
            batches.setdefault(frozenset(deed.ids), []).append(deed)
    for batch, versions in added.items():
        assert batch in batches, f"version {versions[0]} adds {set(batch)}, which no deed wrote"
        assert len(versions) == 1, f"{set(batch)} was added by versions {versions}"
    for batch, tries in batches.items():
        versions = added.get(batch, [])
        told = {deed.outcome for deed in tries}
        if "done" in told:
            assert versions, f"{set(batch)} was acknowledged, and no version adds it"
            first = min(deed.after for deed in tries if deed.outcome == "done")
            assert versions[0] <= first, f"{set(batch)} was acknowledged before it was committed"
            assert versions[0] > tries[0].before, f"{set(batch)} is older than its deed"
        elif told == {"failed"}:
            assert not versions, f"{set(batch)} was refused, and version {versions} adds it"
    for deed in deeds:
        if deed.kind == "overwrite" and (versions := added.get(frozenset(deed.ids), [])):
            lost = [v for batch in added.values() for v in batch if deed.base < v < versions[0]]
            assert not lost, f"{deed} took out versions {lost}, of which it did not know"


def check_taken(deeds: list[Deed], taken: list[tuple[int, frozenset[int]]], held: list[Counter[int]]) -> None:
    """What went was taken out by a deed, and what was acknowledged as taken out went."""
    removals = [deed for deed in deeds if deed.kind in {"delete", "erase"} and deed.ids]
    for v, gone in taken:
        assert any(
            gone <= set(deed.ids)
            and deed.before < v
            # A manifest may come late, of which it was said that this is unknown.
            and (v <= deed.after or deed.outcome == "unknown")
            and deed.outcome != "failed"
            for deed in removals
        ), f"version {v} lacks {set(gone)}, which no deed took out"
    for deed in removals:
        if deed.outcome == "done":
            there = range(deed.before, deed.after + 1)
            assert any(not set(deed.ids) & set(held[v]) for v in there), f"{deed}, and all versions hold some"


def check_present(world: World, last: int) -> None:
    """What is there now: each version that has not expired, whole; and nothing else after a collection."""
    expired = set(manifest_of(world, last).expiry.expired_versions)
    for v in sorted(set(range(1, last + 1)) - expired):
        records, keys = past(world, v)
        gone = [k for k in keys if world.objects.get(k, (b"",))[0] != world.ever.get(k, b"")]
        assert not gone, f"version {v} has not expired and held {records}; gone or changed are {gone}"
    report = shardio.verify(ROOT)
    assert report.ok, report.findings
    first = shardio.gc(ROOT, dry_run=False)
    expired = set(manifest_of(world, newest(world)).expiry.expired_versions)
    numbers = range(1, newest(world) + 1)
    alive, dead = (
        frozenset[str]().union(*(past(world, v)[1] for v in numbers if (v in expired) is gone))
        for gone in (False, True)
    )
    kept = world.objects.keys() & (dead - alive)
    assert not kept, f"a collection left {kept}, which only versions named that expired"
    if first.unclaimed:
        shardio.gc(ROOT, abandon=list(first.unclaimed), dry_run=False)
    again = shardio.gc(ROOT, dry_run=True)
    assert (again.doomed, again.unclaimed) == ((), {}), f"left after a collection: {again}"
    left = {
        key
        for key in world.objects.keys() - alive - {naming.HINT_KEY}
        if not key.startswith((naming.MANIFESTS, naming.SESSIONS))
    }
    assert not left, f"left after a collection, and told nowhere: {left}"
    found = sorted(int(value["n"]) for value in shardio.open(ROOT))
    assert found == contents(world, last), f"a collection changed {contents(world, last)} to {found}"


def shrink(history: History, tries: int = 1000) -> History:
    """Return a shorter history that is wrong, too; it took as many runs at most."""
    history.schedule = replace(_used(history), rates=(1.0, 1.0, 1.0))
    place, better = 0, False
    while True:
        schedule = next(islice(history.schedule.simpler(), place, None), None)
        if schedule is None and not better:
            return history
        if schedule is None:  # once more through all of them
            place, better = 0, False
            continue
        if (tries := tries - 1) < 0:
            return history
        found = run(schedule)
        if found.wrong is None:
            place += 1
        else:
            found.schedule = _used(found)
            history, better = found, True


def _used(history: History) -> Schedule:
    """Return the schedule without what had no part in the history."""
    return replace(history.schedule, switches=history.world.switched, faults=history.world.met)


def search(
    first: int,
    count: int,
    tell: Callable[[int], None] = lambda _seed: None,
    *,
    tries: int = 1000,
    seconds: float = 1e9,
) -> History | None:
    """Return a history that breaks the law, made short, or None where none of the schedules does.

    It ends after so many schedules, or seconds of a processor.
    """
    end = time.process_time() + seconds
    for seed in range(first, first + count):
        history = run(Schedule.random(seed))
        if history.wrong is not None:
            return shrink(history, tries)
        tell(seed)
        if time.process_time() > end:
            break
    return None


def main(first: int = 0, count: int = 1000, tries: int = 1000, seconds: float = 1e9) -> None:
    """Go through schedules; with hashes that do not differ from process to process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tests.simulation.simulate", *sys.argv[1:]]
        raise SystemExit(subprocess.call(command, env={**os.environ, "PYTHONHASHSEED": "0"}))
    began = time.monotonic()

    def tell(seed: int) -> None:
        done = seed - first + 1
        if done % 100 == 0:
            rate = done / (time.monotonic() - began)
            print(f"{done} of {count} schedules, {rate:.0f} a second", flush=True)

    found = search(first, count, tell, tries=tries, seconds=seconds)
    if found is not None:
        raise SystemExit(str(found))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(*map(int, arguments[:3]), *map(float, arguments[3:]))
