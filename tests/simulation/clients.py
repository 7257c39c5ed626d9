"""What clients do to the dataset of a simulated world, and what they were told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import shardio
from shardio.errors import CommitConflictError, CommitOutcomeUnknownError, NotFoundError, ShardioError
from shardio.metadata import naming
from shardio.v1 import manifest_pb2 as pb
from tests.independent_reader import columns_of, fields, numbers, one
from tests.simulation.world import ROOT, Killed, World

SCHEMA = {"n": "int64"}
SMALL: dict[str, Any] = {"block_bytes": 64, "shard_bytes": 200}


@dataclass
class Deed:
    """One call of a client.

    Attributes:
        client, kind, number: who does what; the number chooses among what there is to choose from.
        ids: the records that it adds or takes out.
        before, after: the newest version when it began, and when it was answered.
        base: what an overwrite knew of, at least.
        outcome: "" while it runs, "done", "failed" (nothing happened) or "unknown".
        told: the error, in a line.
        error: itself, where it failed.
        met: the faults that its calls met, with their verbs.
    """

    client: int
    kind: str
    number: int
    ids: tuple[int, ...] = ()
    before: int = 0
    after: int = 0
    base: int = 0
    outcome: str = ""
    told: str = ""
    error: ShardioError | None = None
    met: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        ids = f" {list(self.ids)}" if self.ids else ""
        told = f": {self.told}" if self.told else ""
        what = f"client {self.client} {self.kind}({self.number}){ids}"
        return f"{what} -> {self.outcome}, {self.before}..{self.after}{told}"


@dataclass
class Client:
    """Does its deeds one after another; a deed that is killed ends there, and the next is a new process's."""

    world: World
    number: int
    deeds: list[tuple[str, int]]
    done: list[Deed]
    written: int = 0
    mine: list[int] = field(default_factory=list)
    sessions: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def run(self) -> None:
        for kind, number in self.deeds:
            deed = Deed(self.number, kind, number, before=newest(self.world))
            self.done.append(deed)
            client = self.world.clients[self.number]
            client.met = deed.met
            try:
                getattr(self, kind)(deed)
                deed.outcome = "done"
            except Killed:
                deed.outcome, deed.told = "unknown", "killed"
            except CommitOutcomeUnknownError as error:
                deed.outcome, deed.told = "unknown", error.what
            except ShardioError as error:
                # What `gc` and `erase` delete is deleted after their commit.
                late = kind in {"gc", "erase"} and not isinstance(error, CommitConflictError)
                deed.outcome, deed.error = "unknown" if late else "failed", error
                deed.told = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            deed.after = newest(self.world)
            client.dead = False

    def _new(self, count: int) -> tuple[int, ...]:
        first = (self.number + 1) * 1000 + self.written
        self.written += count
        return tuple(range(first, first + count))

    def _write(self, deed: Deed, mode: str) -> None:
        deed.ids = self._new(1 + deed.number % 4)
        with shardio.DatasetWriter(ROOT, SCHEMA, mode=mode, **SMALL) as out:
            deed.base = newest(self.world)
            for n in deed.ids:
                out.write({"n": n})
        self.mine += deed.ids

    def append(self, deed: Deed) -> None:
        self._write(deed, "append")

    def overwrite(self, deed: Deed) -> None:
        self._write(deed, "overwrite")

    def session(self, deed: Deed) -> None:
        """Begin a write under a name, or go on with the last one."""
        if deed.number % 2 == 0 or not self.sessions:
            self.sessions.append((f"run-{self.number}-{len(self.sessions)}", self._new(2 + deed.number % 5)))
        self._session(deed, *self.sessions[-1])

    def shared(self, deed: Deed) -> None:
        """Write, or go on with, the session that all clients know by the same name."""
        self._session(deed, "shared", (70, 71, 72, 73, 74))

    def _session(self, deed: Deed, name: str, ids: tuple[int, ...]) -> None:
        deed.ids = ids
        with shardio.DatasetWriter(ROOT, SCHEMA, mode="append", session=name, **SMALL) as out:
            for n in ids[out.written.get("train", 0) :]:
                out.write({"n": n})
        self.mine += ids

    def task(self, deed: Deed) -> None:
        """Write one task of a session of two, which all clients know by the same name."""
        self._task(deed.number % 2)

    def _task(self, task: int) -> None:
        ids = (50 + task * 10, 51 + task * 10)
        options: dict[str, Any] = {"mode": "append", "session": "array", "task": task, "commit": False}
        with shardio.DatasetWriter(ROOT, SCHEMA, **options, **SMALL) as out:
            for n in ids[out.written.get("train", 0) :]:
                out.write({"n": n})

    def merge(self, deed: Deed) -> None:
        deed.ids = (50, 51, 60, 61)
        for task in range(deed.number % 3):
            self._task(task)
        shardio.commit(ROOT, session="array", tasks=2)

    def delete(self, deed: Deed) -> None:
        self._remove(shardio.delete, deed)

    def erase(self, deed: Deed) -> None:
        self._remove(shardio.erase, deed, drop_tags=True)

    def _remove(self, function: Callable[..., Any], deed: Deed, **options: Any) -> None:
        rest = sorted(set(self.mine))
        deed.ids = tuple(rest[deed.number % 3 :: 3]) if rest else ()
        if deed.ids:
            gone = np.array(deed.ids)
            function(ROOT, where=lambda columns: np.isin(columns["n"], gone), features=["n"], **options)

    def compact(self, deed: Deed) -> None:
        shardio.compact(ROOT, shard_bytes=300 + 100 * (deed.number % 5), workers=1)

    def table(self, deed: Deed) -> None:
        del deed
        shardio.build_table(ROOT, ["n"], workers=1)

    def keys(self, deed: Deed) -> None:
        del deed
        shardio.build_keys(ROOT, "n", workers=1)

    def gc(self, deed: Deed) -> None:
        keep = 1 + deed.number % 3
        # Sessions that look given up, though they may be at work: the caller's word rules.
        abandon = shardio.gc(ROOT, keep=keep).unclaimed if deed.number % 4 == 0 else ()
        try:
            shardio.gc(ROOT, keep=keep, abandon=list(abandon), dry_run=False)
        except ValueError as error:
            if "is part of version" not in str(error):  # it was committed meanwhile
                raise

    def repair(self, deed: Deed) -> None:
        """Repair what nothing is wrong with, while others work; of what dead ones left it is told."""
        del deed
        report = shardio.repair(ROOT, dry_run=False, workers=1)
        assert not report.lost, report

    def tag(self, deed: Deed) -> None:
        shardio.tag(ROOT, "ab"[deed.number % 2], move=True)

    def untag(self, deed: Deed) -> None:
        shardio.untag(ROOT, "ab"[deed.number % 2])

    def restore(self, deed: Deed) -> None:
        shardio.restore(ROOT, max(1, newest(self.world) - deed.number % 3))

    def schema(self, deed: Deed) -> None:
        feature = shardio.Feature("int64", default=deed.number % 3)
        shardio.set_schema(ROOT, {"xyz"[deed.number % 3]: feature})

    def look(self, deed: Deed) -> None:
        """Open, let others work, read: the version that was opened, or that it expired."""
        del deed
        ds = shardio.open(ROOT)
        try:
            found = [int(value["n"]) for value in ds]
        except NotFoundError as error:
            if error.what != f"version {ds.version} expired while it was read":
                raise
            return
        wanted = contents(self.world, ds.version)
        assert sorted(found) == wanted, f"version {ds.version} holds {wanted}, a reader found {sorted(found)}"


DEEDS: dict[str, int] = {  # and how often
    "append": 6, "session": 4, "shared": 2, "task": 2, "merge": 2, "delete": 4, "erase": 2, "compact": 3,
    "overwrite": 1, "table": 2, "keys": 2, "gc": 4, "tag": 2, "untag": 1, "restore": 1, "schema": 1,
    "look": 2, "repair": 1,
}  # fmt: skip


def newest(world: World) -> int:
    """Return the number of the newest version that was ever committed."""
    number = 0
    while naming.manifest_key(number + 1) in world.ever:
        number += 1
    return number


def contents(world: World, version: int) -> list[int]:
    """Return the records of a version, from all objects that there ever were and no later manifest."""
    return past(world, version)[0]


def manifest_of(world: World, version: int) -> pb.Manifest:
    """Return what a version was when it was committed."""
    if version not in world.manifests:
        world.manifests[version] = _unsealed(world.ever[naming.manifest_key(version)])
    return world.manifests[version]


def past(world: World, version: int) -> tuple[list[int], frozenset[str]]:
    """Return the records of a version, and the keys of the objects that it needs.

    By the messages alone, without shardio's reader.
    """
    if version not in world.pasts:
        manifest = manifest_of(world, version)
        found: list[int] = []
        keys = {ref.key for ref in manifest.session_lists}
        for ref in manifest.lists:
            if ref.key not in world.lists:
                world.lists[ref.key] = _listed(world, ref.key)
            records, named = world.lists[ref.key]
            found += records
            keys |= named
        keys |= {run.key for index in manifest.keys for run in index.runs}
        world.pasts[version] = sorted(found), frozenset(keys)
    return world.pasts[version]


def _unsealed(data: bytes) -> pb.Manifest:
    message = pb.Manifest()
    message.ParseFromString(data[16:-44])
    return message


def _listed(world: World, key: str) -> tuple[list[int], set[str]]:
    columns, _ = columns_of(world.ever[key], 2)
    prefixes = columns["key_prefix"] or ("",)
    shards = [prefixes[k] + rest for k, rest in zip(columns["prefix"], columns["key_rest"], strict=True)]
    found: list[int] = []
    keys = {key, *shards, *columns["index_key"], *columns["deletion_key"], *columns["table_key"]} - {""}
    for shard, index, deletions in zip(shards, columns["index_key"], columns["deletion_key"], strict=True):
        keys.add(index or f"{shard}.shardidx")
        deleted = memoryview(world.ever[deletions]).cast("I").tolist() if deletions else ()
        found += [n for row, n in enumerate(_numbers(world.ever[shard])) if row not in deleted]
    return found, keys


def _numbers(shard: bytes) -> Iterator[int]:
    """Yield the number that each record of a plain TFRecord holds."""
    at = 0
    while at < len(shard):
        size = int.from_bytes(shard[at : at + 8], "little")
        example, at = fields(shard[at + 12 : at + 12 + size]), at + size + 16
        entries = [fields(entry) for entry in fields(one(example, 1))[1]]
        values = fields(one({one(entry, 1): [one(entry, 2)] for entry in entries}, b"n"))
        yield numbers(fields(one(values, 3)), 1)[0]
