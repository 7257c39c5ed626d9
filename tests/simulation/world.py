"""A simulated object store, its clients and the order in which their calls take effect.

Clients are threads of which one runs at a time: each waits before every call of its store until the schedule
gives it the turn.  A call may fail before or after its effect, lose its reply, take effect long after it was
given up, be answered by damaged bytes, or be the last that its process makes.  What is drawn at random
elsewhere (names, ids) comes from the schedule's seed too, so that a schedule always gives one history.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import importlib
import itertools
import pathlib
import random
import secrets
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple
from unittest import mock

from shardio.errors import FormatError, NotFoundError, ShardioError, StorageError
from shardio.metadata import parse_list, parse_manifest
from shardio.storage import (
    DataFile,
    ObjectInfo,
    ShortReadError,
    Store,
    UnknownOutcomeError,
    connect,
    connect_folder,
)
from shardio.v1 import manifest_pb2 as pb

Turn = tuple[int, int]

ROOT = "sim://world/ds"

CHANGES = {"create", "overwrite", "delete"}
READS = {"get", "read"}
# What may happen to a call, beside nothing, and to which verbs.
FAULTS: dict[str, set[str]] = {
    "fails": {*CHANGES, *READS, "open", "head", "list"},
    "dies before": {*CHANGES, *READS, "open", "head", "list"},
    "dies after": {*CHANGES, *READS, "open", "head", "list"},
    "lost": CHANGES,
    "done, reply lost": CHANGES,
    "late": CHANGES,
    "told taken": {"create"},
    "done, told taken": {"create"},
    "stale": {"get"},
    "damaged": READS,
}
UNANSWERED = {"lost", "done, reply lost", "late"}


class Killed(BaseException):
    """The process of a client is gone; its calls have no effect any more."""


class Call(NamedTuple):
    """One call of a store, for people."""

    client: int
    number: int
    verb: str
    key: str
    outcome: str

    def __str__(self) -> str:
        outcome = self.outcome and f" -> {self.outcome}"
        return f"  client {self.client} #{self.number}: {self.verb} {self.key}{outcome}"


class World:
    """Objects by key, and who may touch them next.

    Args:
        seed: of names and ids.
        switches: turn -> client that has it, and a number of 0..1: for calls that change something it has to
            be below `rates[1]`, for creations below `focus` below `rates[2]`, for others below `rates[0]`.
        faults: turn -> one of `FAULTS`, and by how many calls a late one is late.
        focus: what the keys of creations begin with that have turns of their own.

    A turn is a client and the number of its call, from 1; or -1, -2 ... for its creations below `focus`.
    """

    def __init__(
        self,
        seed: int,
        switches: dict[Turn, tuple[int, float]],
        faults: dict[Turn, tuple[str, int]],
        rates: tuple[float, float, float] = (1.0, 1.0, 1.0),
        focus: str = "",
    ) -> None:
        self.random = random.Random(seed)
        self.switches, self.faults, self.rates, self.focus = switches, faults, rates, focus
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.ever: dict[str, bytes] = {}  # whatever was there once, the hint aside
        self.replaced: dict[str, tuple[bytes, int]] = {}  # what was there before
        self.calls: list[Call] = []
        self.effects: list[tuple[str, str]] = []  # in the order in which they took place
        # Those of the switches and faults that had a part in what happened.
        self.switched: dict[Turn, tuple[int, float]] = {}
        self.met: dict[Turn, tuple[str, int]] = {}
        self.clients: list[Client] = []
        self.by_thread: dict[int, Client] = {}
        # What the oracle has parsed, by version and by key: none of it changes.
        self.manifests: dict[int, pb.Manifest] = {}
        self.lists: dict[str, tuple[list[int], set[str]]] = {}
        self.pasts: dict[int, tuple[list[int], frozenset[str]]] = {}
        self._late: list[tuple[int, str, Callable[[], object]]] = []
        self._stored = 0
        self._over = threading.Event()

    # Effects

    def create(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.write(key, data)
        return True

    def write(self, key: str, data: bytes) -> None:
        self._stored += 1
        self.effects.append(("write", key))
        if key in self.objects:
            self.replaced[key] = self.objects[key]
        self.objects[key] = (data, self._stored)
        self.ever.setdefault(key, data)

    def remove(self, key: str) -> bool:
        self.effects.append(("remove", key))
        return self.objects.pop(key, None) is not None

    # Turns

    def run(self, clients: list[Callable[[], None]]) -> None:
        """Run the clients to their ends; raises what no client expected."""
        self.clients = [Client(self, number, deeds) for number, deeds in enumerate(clients)]
        for client in self.clients:
            client.thread.start()
        self._pass(0)
        self._over.wait()
        for client in self.clients:
            client.thread.join()
        for client in self.clients:
            if client.failure is not None:
                raise client.failure
        for _, _, effect in self._late:
            effect()
        self._late = []

    def _pass(self, number: int) -> None:
        """Give the turn to a client, or to the next one that has not ended."""
        count = len(self.clients)
        for client in (self.clients[(number + k) % count] for k in range(count)):
            if not client.ended:
                client.turn.release()
                return
        self._over.set()

    def _wait(self, client: Client, to: int) -> None:
        """Give the turn to a client, and wait until it comes back."""
        self._pass(to)
        client.turn.acquire()

    def call(self, verb: str, key: str, effect: Callable[[], Any]) -> Any:
        """Take the effect of one call, when the schedule comes to it."""
        client = self.by_thread.get(threading.get_ident())
        if client is None:
            # Who looks on from outside.
            assert not self.clients or self._over.is_set(), "a thread that is not simulated"
            return effect()
        client.count += 1
        turns = [(client.number, client.count)]
        if verb == "create" and key.startswith(self.focus):
            client.created += 1
            turns.append((client.number, -client.created))
        for turn in turns:
            to, chance = self.switches.get(turn, (client.number, 1.0))
            rate = self.rates[2 if turn[1] < 0 else verb in CHANGES]
            if to % len(self.clients) != client.number and chance < rate:
                self.switched[turn] = (to, 0.0)
                self._wait(client, to)
        due, self._late = self._late, []
        for steps, what, late in due:
            if steps > 0:
                self._late.append((steps - 1, what, late))
            else:
                late()
                self.calls.append(Call(client.number, client.count, what, "", "takes effect now"))
        if client.dead:
            raise Killed
        fault, steps = "", 0
        for turn in turns:
            if verb in FAULTS.get(self.faults.get(turn, ("", 0))[0], ()):
                fault, steps = self.met[turn] = self.faults[turn]
        if fault:
            client.met.append(f"{fault}: {verb}")
        try:
            return self._take(client, verb, key, effect, fault, steps)
        finally:
            self.calls.append(Call(client.number, client.count, verb, key, fault))
            if fault in UNANSWERED and steps % 2:
                # Until it is given up, others go on.
                self._wait(client, client.number + 1 + steps)

    def _take(
        self, client: Client, verb: str, key: str, effect: Callable[[], Any], fault: str, steps: int
    ) -> Any:
        if fault == "fails":
            raise StorageError(f"made to fail before {verb}", url=f"{ROOT}/{key}")
        if fault == "late":
            self._late.append((steps, f"late {verb} {key}", effect))
        result = None if fault in {"lost", "late", "told taken", "dies before"} else effect()
        if fault.startswith("dies"):
            client.dead = True
            raise Killed
        if fault in UNANSWERED:
            raise UnknownOutcomeError(f"no answer to {verb}", url=f"{ROOT}/{key}")
        if fault.endswith("told taken"):
            # A 412 for no reason, and that of a request that came twice.
            return False
        if fault == "stale":
            # Only the hint is ever replaced, so only of it there is an older reply.
            return self.replaced.get(key, result)
        if fault == "damaged" and result is not None:
            return _damaged(result[0], steps, cut=verb == "get"), result[1]
        return result


def _damaged(data: bytes, dice: int, *, cut: bool) -> bytes:
    """Return what may become of bytes on their way: one bit is another, or their end is missing."""
    if not data:
        return data
    at = dice * 2_654_435_761 % len(data)
    if cut and dice % 3 == 0:
        return data[:at]
    return data[:at] + bytes([data[at] ^ 1 << dice % 8]) + data[at + 1 :]


class Client:
    """A thread of a world; `dead` until it begins again."""

    def __init__(self, world: World, number: int, deeds: Callable[[], None]) -> None:
        self.number, self.count, self.created = number, 0, 0
        self.met: list[str] = []  # faults, and what calls they met
        self.dead = self.ended = False
        self.turn = threading.Semaphore(0)
        self.failure: BaseException | None = None
        self._world, self._deeds = world, deeds
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.turn.acquire()
        self._world.by_thread[threading.get_ident()] = self
        try:
            self._deeds()
        except BaseException as error:  # noqa: BLE001 - raised by `World.run`
            self.failure = error
        self.ended = True
        self._world.by_thread.pop(threading.get_ident())
        self._world._pass(self.number + 1)


class SimulatedStore(Store):
    """The objects of a world, as one client sees them."""

    def __init__(self, world: World, url: str = ROOT) -> None:
        self.world, self.url = world, url

    def _put_if_absent(self, key: str, data: Any, *, move: bool) -> bool:
        content = data.read_bytes() if isinstance(data, pathlib.Path) else bytes(data)

        def create() -> bool:
            created = self.world.create(key, content)
            if created and move and isinstance(data, pathlib.Path):
                data.unlink(missing_ok=True)
            return created

        created: bool = self.world.call("create", key, create)
        return created

    def _overwrite(self, key: str, data: Any) -> None:
        content = bytes(data)
        self.world.call("overwrite", key, lambda: self.world.write(key, content))

    def read(self, verb: str, key: str, look: Callable[[bytes], bytes] = bytes) -> bytes:
        """Return what a call sees of an object."""

        def effect() -> tuple[bytes, int] | None:
            found = self.world.objects.get(key)
            return None if found is None else (look(found[0]), found[1])

        found = self.world.call(verb, key, effect)
        if found is None:
            raise NotFoundError("there is no such object", url=self.url_of(key))
        data: bytes = found[0]
        return data

    def _get(self, key: str, max_bytes: int) -> bytes:
        data = self.read("get", key)
        if len(data) > max_bytes:
            raise FormatError("the object is larger than it may be", url=self.url_of(key))
        return data

    def _head(self, key: str) -> ObjectInfo | None:
        found = self.world.call("head", key, lambda: self.world.objects.get(key))
        return None if found is None else ObjectInfo(key, len(found[0]), str(found[1]))

    def _list(self, prefix: str, *, linked: bool) -> Iterator[ObjectInfo]:
        def listed() -> list[ObjectInfo]:
            found = self.world.objects.items()
            return sorted(ObjectInfo(k, len(d), str(n)) for k, (d, n) in found if k.startswith(prefix))

        return iter(self.world.call("list", prefix, listed))

    def _delete(self, key: str) -> bool:
        gone: bool = self.world.call("delete", key, lambda: self.world.remove(key))
        return gone

    def open(self, key: str, *, size: int | None = None, stable: bool = False, etag: str = "") -> DataFile:
        del stable, etag
        return SimulatedFile(self, key, len(self.read("open", key)) if size is None else size)


class SimulatedFile(DataFile):
    """An object that is asked for again by each read, as those of buckets are."""

    def __init__(self, store: SimulatedStore, key: str, size: int) -> None:
        self.url = store.url_of(key)
        self._store, self._key, self._size = store, key, size

    @property
    def size(self) -> int:
        return self._size

    def read(self, start: int, stop: int) -> memoryview:
        return self.read_many([start], [stop])[0]

    def read_many(self, starts: Any, stops: Any) -> list[memoryview]:
        def look(data: bytes) -> bytes:
            ranges = list(zip(starts, stops, strict=True))
            last = max((stop for _, stop in ranges), default=0)
            if last > len(data):
                raise ShortReadError("the object ends before the bytes asked for", url=self.url)
            return b"".join(data[start:stop] for start, stop in ranges)

        found = memoryview(self._store.read("read", self._key, look))
        ends = itertools.accumulate(int(stop) - int(start) for start, stop in zip(starts, stops, strict=True))
        edges = [0, *ends]
        return [found[start:stop] for start, stop in itertools.pairwise(edges)]

    def close(self) -> None:
        pass


class InlineThread(threading.Thread):
    """Does its work where it is started."""

    start = threading.Thread.run


class Inline(concurrent.futures.Executor):
    """A pool without threads."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - for who asks
            future.set_exception(error)
        return future


def _remembering(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return what parses the same bytes once: half of the time of a schedule went into that."""

    @functools.lru_cache(2000)
    def known(data: bytes, version: int | None) -> Any:
        return parse(data) if version is None else parse(data, version=version)

    def parsed(data: Any, **options: Any) -> Any:
        try:
            return known(bytes(data), options.get("version"))
        except ShardioError:
            return parse(data, **options)  # which names the object

    return parsed


_manifest_of, _list_of = _remembering(parse_manifest), _remembering(parse_list)


@functools.cache
def _places(name: str, true: Any) -> list[Any]:
    """Return the modules of shardio, without the storage, that have something under a name."""
    for room in ("catalog", "writer", "reader", "parallel", "lifecycle", "maintenance"):
        importlib.import_module(f"shardio.{room}")
    rooms = [
        module
        for place, module in sys.modules.copy().items()
        if place.startswith("shardio") and ("storage" not in place or place == "shardio.storage._address")
    ]
    return [module for module in rooms if vars(module).get(name) is true]


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """Let every room see this world at `ROOT`, do in one thread what it does, and draw names from it."""

    def connected(url: str, **options: Any) -> Store:
        if not str(url).startswith("sim://"):
            return connect(url, **options)
        # Folders above are empty, and looked into only where a dataset is created.
        there = world if str(url) == ROOT else World(0, {}, {})
        return SimulatedStore(there, str(url))

    def connected_folder(url: str, **options: Any) -> tuple[Store, str]:
        root, _, key = str(url).rpartition("/")
        return (SimulatedStore(world), key) if root == ROOT else connect_folder(url, **options)

    def token_bytes(count: int = 32) -> bytes:
        return world.random.randbytes(count)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(bytes=token_bytes(16))

    class Clock(datetime):
        """A clock that jumps."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.fromtimestamp(world.random.randrange(1 << 32), tz)

    ways: dict[str, tuple[Any, Any]] = {
        "parse_list": (parse_list, _list_of),
        "parse_manifest": (parse_manifest, _manifest_of),
        "connect": (connect, connected),
        "connect_folder": (connect_folder, connected_folder),
        "ThreadPoolExecutor": (concurrent.futures.ThreadPoolExecutor, Inline),
    }
    with contextlib.ExitStack() as stack:
        for name, (true, ours) in ways.items():
            for module in _places(name, true):
                stack.enter_context(mock.patch.object(module, name, ours))
        stack.enter_context(mock.patch("shardio.storage._uploads.Thread", InlineThread))
        stack.enter_context(mock.patch("shardio.catalog._commit.datetime", Clock))
        stack.enter_context(mock.patch.object(secrets, "token_bytes", token_bytes))
        stack.enter_context(mock.patch.object(secrets, "token_hex", lambda n=32: token_bytes(n).hex()))
        stack.enter_context(mock.patch.object(uuid, "uuid4", uuid4))
        yield
