"""The protocol of versions as a specification: what a process may do next, and what must always hold.

`docs/design/protocol.md` says the same in words.  `explore` goes through every state that some processes can
reach, whatever their order, with as many faults as it is given; it is what a model checker does.  Content is
left out: a shard is a name, and a list names one shard.  A process that dies is one that takes no further
step: as invariants hold in each state, and no step waits for another process, deaths need no states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

# What the specification can do without, one at a time, to show that nothing is in it for nothing.
GUARDS = frozenset({"fence", "forget", "follow", "read back", "merged", "tags", "exclusive"})
_ENDED = frozenset({"done", "refused"})


class Manifest(NamedTuple):
    """A version: the objects that it names, and what it says of versions, sessions and objects before it."""

    by: str
    names: frozenset[str] = frozenset()
    sessions: frozenset[str] = frozenset()
    expired: frozenset[int] = frozenset()
    doomed: frozenset[str] = frozenset()
    abandoned: frozenset[str] = frozenset()
    tags: frozenset[int] = frozenset()


class Process(NamedTuple):
    """A process: what it is, where it stands, and what it remembers.

    Attributes:
        role: "writer", "collector" or "tagger".
        name: its own; of a writer also that of its shard.
        session: that a writer writes: one that reruns share, one of its own that later versions forget
            (it begins with `~`), or "rewritten", which is none. A collector gives up what looks given up
            where this is "abandon".
        at: its next step, or "done", "refused"; of one that has ended nothing else is remembered.
        base: the version that its next manifest follows.
        seen: the version up to which a writer has looked for doomed objects.
        stored: a writer's list; what a collector listed.
        plan: the manifest that it is about to create.
        lists: how many lists a writer has stored.
        latest: the version that a collector began with.
    """

    role: str
    name: str
    session: str = ""
    at: str = "shard"
    base: int = 0
    seen: int = 1
    stored: frozenset[str] = frozenset()
    plan: Manifest | None = None
    lists: int = 0
    latest: int = 0


class State(NamedTuple):
    """Everything there is: versions, objects, manifests still on their way, processes, faults to come."""

    chain: tuple[Manifest, ...]
    objects: frozenset[str]
    processes: tuple[Process, ...]
    late: frozenset[tuple[int, Manifest]] = frozenset()
    faults: int = 0


def session_of(name: str) -> str:
    """Return the session of a shard: names are `session/writer`, those of lists `list/...`."""
    return name.partition("/")[0]


def is_list(name: str) -> bool:
    return name.startswith("list/")


def is_unowned(name: str) -> bool:
    """Tell whether a name says no session, so that nothing says when it is given up."""
    return name.startswith(("list/", "rewritten/"))


def start(*processes: Process, faults: int = 0) -> State:
    """Return the state of a dataset with one version, of session `a`."""
    names = frozenset({"a/0", "list/0"})
    first = Manifest("a", names, frozenset({"a"}))
    return State((first,), names, processes, faults=faults)


def steps(state: State, without: frozenset[str] = frozenset()) -> Iterator[tuple[str, State]]:
    """Yield every step that may be next, with what it is in words."""
    for number, manifest in state.late:
        chain = state.chain
        rest = state.late - {(number, manifest)}
        if len(chain) + 1 == number:
            yield f"late {manifest.by}", state._replace(chain=(*chain, manifest), late=rest)
        elif len(chain) >= number:
            yield f"late {manifest.by}, without effect", state._replace(late=rest)
    for i, process in enumerate(state.processes):
        if process.at in _ENDED:
            continue
        taken = _create if process.at == "create" else _ROLES[process.role]
        for what, after, changed in taken(state, process, without):
            left = Process(*changed[:4]) if changed.at in _ENDED else changed
            others = (*after.processes[:i], left, *after.processes[i + 1 :])
            yield f"{process.name}: {what}", after._replace(processes=others)


Taken = Iterator[tuple[str, State, Process]]


def _create(state: State, process: Process, without: frozenset[str]) -> Taken:
    """Create the next manifest only if it is absent; look who it is where that failed or no reply came."""
    plan, number = process.plan, process.base + 1
    assert plan is not None
    after = "delete" if process.role == "collector" else "done"
    if len(state.chain) >= number:
        if state.chain[number - 1].by == plan.by and "read back" not in without:
            yield "finds its own manifest", state, process._replace(at=after)
            return
        if "exclusive" not in without:
            yield "lost the race", state, process._replace(at="read", plan=None)
            return
    chain = (*state.chain[: number - 1], plan, *state.chain[number:])
    created = state._replace(chain=chain)
    yield f"commits version {number}", created, process._replace(at=after)
    if state.faults:
        fewer = state.faults - 1
        yield "commits, reply lost", created._replace(faults=fewer), process
        late = state.late | {(number, plan)}
        yield "sends, no reply", state._replace(faults=fewer, late=late), process


def _writer(state: State, process: Process, without: frozenset[str]) -> Taken:
    shard = f"{process.session}/{process.name}"
    if process.at == "shard":
        yield "stores its shard", state._replace(objects=state.objects | {shard}), process._replace(at="read")
    elif process.at == "read":
        base, latest = len(state.chain), state.chain[-1]
        doomed = frozenset[str]().union(*(each.doomed for each in state.chain[process.seen : base]))
        stored = process.stored if "forget" in without else process.stored - doomed
        mine = process.session != "rewritten"
        if mine and process.session in latest.sessions and "merged" not in without:
            yield "finds its session merged", state, process._replace(at="done")
        elif process.session in latest.abandoned and "fence" not in without:
            yield "finds its session given up", state, process._replace(at="refused")
        elif shard in doomed and "fence" not in without:
            yield "finds its shard doomed", state, process._replace(at="refused")
        else:
            read = process._replace(at="list", base=base, seen=base, stored=stored)
            yield f"reads version {base}", state, read
    elif process.stored:
        latest = state.chain[process.base - 1]
        plan = latest._replace(
            by=process.name,
            names=latest.names | {shard} | process.stored,
            sessions=frozenset(each for each in latest.sessions if each[0] != "~") | {process.session},
            doomed=frozenset(),
        )
        yield "makes a manifest", state, process._replace(at="create", plan=plan)
    else:
        name = f"list/{process.name}.{process.lists}"
        stored = process._replace(stored=frozenset({name}), lists=process.lists + 1)
        yield "stores its list", state._replace(objects=state.objects | {name}), stored


def _collector(state: State, process: Process, without: frozenset[str]) -> Taken:
    if process.at == "shard":
        latest = len(state.chain)
        yield f"begins with version {latest}", state, process._replace(at="list", latest=latest)
    elif process.at == "list":
        yield "lists", state, process._replace(at="read", stored=state.objects)
    elif process.at == "read":
        # Versions that came since count, what came since they were listed is not looked at.
        base = len(state.chain)
        known = process.latest if "follow" in without else base
        plan = _collection(state.chain[:known], process, state.chain[base - 1], without)
        if plan is None:
            yield "finds what it was to give up committed", state, process._replace(at="refused")
        else:
            yield "plans", state, process._replace(at="create", base=base, plan=plan)
    else:
        plan = process.plan
        assert plan is not None
        rest = plan.doomed & state.objects
        if not rest:
            yield "ends", state, process._replace(at="done")
        for name in rest:
            yield f"deletes {name}", state._replace(objects=state.objects - {name}), process


def _collection(
    chain: tuple[Manifest, ...], process: Process, latest: Manifest, without: frozenset[str]
) -> Manifest | None:
    merged = frozenset[str]().union(*(each.sessions for each in chain))
    listed = {session_of(name) for name in process.stored if not is_unowned(name)}
    # What looks given up when it lists, by the versions of that time.
    then = frozenset[str]().union(*(each.sessions for each in chain[: process.latest]))
    abandon = frozenset(listed - then) if process.session == "abandon" else frozenset[str]()
    if abandon & merged:
        return None
    kept = latest.tags if "tags" not in without else frozenset[int]()
    expired = latest.expired | (frozenset(range(1, process.latest)) - kept)
    alive = [each for number, each in enumerate(chain, 1) if number not in expired]
    live = frozenset[str]().union(*(each.names for each in alive))
    dead = frozenset[str]().union(*(each.names for each in chain)) - live
    gone = latest.abandoned | abandon
    doomed = frozenset(
        name
        for name in process.stored - live
        if name in dead or is_unowned(name) or session_of(name) in gone | merged
    )
    return latest._replace(by=process.name, expired=expired, doomed=doomed, abandoned=gone)


def _tagger(state: State, process: Process, without: frozenset[str]) -> Taken:
    del without
    base, latest = len(state.chain), state.chain[-1]
    if 1 in latest.expired:
        yield "finds its version expired", state, process._replace(at="refused")
    else:
        plan = latest._replace(by=process.name, tags=latest.tags | {1}, doomed=frozenset())
        yield "plans", state, process._replace(at="create", base=base, plan=plan)


_ROLES: dict[str, Callable[[State, Process, frozenset[str]], Taken]] = {
    "writer": _writer,
    "collector": _collector,
    "tagger": _tagger,
}


def broken(state: State) -> str | None:
    """Say which invariant a state breaks, or None."""
    latest = state.chain[-1]
    for number, version in enumerate(state.chain, 1):
        if number not in latest.expired and version.names - state.objects:
            return f"version {number} names {set(version.names - state.objects)}, which is gone"
    if latest.tags & latest.expired:
        return f"versions {set(latest.tags & latest.expired)} have tags and are expired"
    sessions = [session_of(name) for name in latest.names if not is_list(name)]
    committed = [version.by for version in state.chain]
    if len(committed) != len(set(committed)):
        return f"a change was committed twice: {committed}"
    if len(sessions) != len(set(sessions)):
        return f"a session is there twice: {sorted(latest.names)}"
    writers = [process for process in state.processes if process.role == "writer"]
    for process in writers:
        told = {each.at for each in writers if each.session == process.session}
        if process.at == "done" and process.session not in sessions:
            return f"{process.session} was acknowledged and is not there"
        on_its_way = any(process.session in plan.sessions for _, plan in state.late)
        if told == {"refused"} and process.session in sessions and not on_its_way:
            return f"{process.session} was refused and is there"
    return None


def explore(first: State, without: Iterable[str] = ()) -> tuple[int, list[str]]:
    """Go through all states that can be reached, the nearest first.

    Returns:
        How many there are, and the shortest way to one that breaks an invariant; empty where none does.
    """
    without = frozenset(without)
    before: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        wrong = broken(state)
        if wrong is not None:
            way = [wrong]
            come = before[state]
            while come is not None:
                way.insert(0, come[1])
                come = before[come[0]]
            return len(before), way
        for what, after in steps(state, without):
            if after not in before:
                before[after] = (state, what)
                waiting.append(after)
    return len(before), []
