"""P1: a dataset is seen whole or not at all."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import shardio
from shardio.errors import CommitOutcomeUnknownError, NotFoundError, ShardioError, StorageError
from tests.promises.deeds import BASE, DEEDS, Deed, beginnings, check_killed_appender, records, seen, write
from tests.promises.places import PLACES, copied
from tests.promises.stores import EFFECTS, Counting, faulty
from tests.servers.proxy import Exchange, Proxy, proxy

EVERY_DEED = pytest.mark.parametrize("deed", DEEDS)

# Before each of these something on a disk may change; the interpreter tells us when one is about to happen.
POINTS = {"open", "os.link", "os.remove", "os.rename", "os.mkdir", "os.chmod", "os.listdir", "os.scandir"}


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A dataset that every deed but "create" begins with."""
    root = beginnings(tmp_path_factory.mktemp("begun"))
    assert seen(str(root)) == BASE
    return root


def setting(deed: Deed, begun: Path, place: str, tmp_path: Path) -> str:
    return copied(deed.source(begun), place, tmp_path)


def check_alive(url: str, deed: Deed, *, acknowledged: bool, unknown: bool = True) -> None:
    """The dataset is what it was or what it should become; and life continues."""
    found = seen(url)
    assert found in ((deed.after,) if acknowledged else (deed.before, deed.after))
    if not acknowledged and not unknown and deed.before != deed.after:
        assert found == deed.before
    if found is None:
        write(url, "create", 900, 3)
        assert seen(url) == {"a": records(901, 2), "b": records(900, 1)}
        return
    more = deed.go_on(url)
    # Looked at once, after gc, which leaves the latest version as it is.
    shardio.gc(url, keep=1, dry_run=False)
    assert seen(url) == {**found, "a": [*found["a"], more]}


@pytest.mark.sampled(len(DEEDS))
@EVERY_DEED
@pytest.mark.parametrize("fault", EFFECTS)
@pytest.mark.parametrize("place", PLACES)
def test_every_store_call_failing_in_turn(deed, fault, place, begun, tmp_path, long):
    """P1: every store call failing in turn (before, after, half effect)."""
    todo = DEEDS[deed]
    counting = Counting()
    with faulty(counting):
        todo.do(setting(todo, begun, place, tmp_path))
    assert len(counting.calls) > 5
    # Both places see the same calls; the short run tries every eighth in each, on a disk others.
    stride = 1 if long else 8
    first = EFFECTS.index(fault) + 4 * PLACES.index(place)
    for at, (verb, key) in list(enumerate(counting.calls))[first % stride :: stride]:
        url = setting(todo, begun, place, tmp_path)
        acknowledged, unknown = True, False
        with faulty(Counting(at, fault)):
            try:
                todo.do(url)
            except ShardioError as error:
                acknowledged = False
                # Anything else says that nothing happened, and the caller writes once more.
                unknown = isinstance(error, CommitOutcomeUnknownError)
        assert acknowledged or not fault.startswith("lost"), f"{verb} {key}: a lost reply is not a failure"
        check_alive(url, todo, acknowledged=acknowledged, unknown=unknown)


def killed_at(do: Callable[[], None], oracle: Path, at: int) -> tuple[int, bool]:
    """Run `do` in a forked child that kills itself before point `at`.

    Returns how many points it came by, and whether it lived to acknowledge, which it writes outside.
    """
    oracle.unlink(missing_ok=True)
    count = oracle.with_suffix(".count")
    child = os.fork()
    if child == 0:
        passed = 0

        def hook(event: str, arguments: tuple) -> None:
            nonlocal passed
            if event in POINTS:
                if passed == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                passed += 1

        try:
            sys.addaudithook(hook)
            do()
            at = -1
            oracle.write_text("done")
            count.write_text(str(passed))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    done = oracle.exists()
    assert done or os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return int(count.read_text()) if done else at, done


@pytest.mark.parametrize("suffix", [".tfrecord", ".shardidx"])
def test_no_receipt_of_a_shard_that_was_not_stored(suffix, tmp_path):
    """P1: a task whose shard or index could not be stored leaves no word that it has ended."""

    def policy(verb: str, key: str) -> str:
        return "before" if verb == "put_if_absent" and key.endswith(suffix) else ""

    url = str(tmp_path / "ds")
    with (
        faulty(policy),
        pytest.raises(StorageError),
        shardio.DatasetWriter(url, session="run7", commit=False) as out,
    ):
        out.write(b"wren")
    with pytest.raises(NotFoundError):
        shardio.commit(url, session="run7", tasks=1)
    assert not list(tmp_path.rglob("*.receipt"))
    assert not list(tmp_path.rglob(".shardio-tmp-*"))


# At how many points each can be killed on a disk, less a few, in a process that has imported all it needs:
# files of libraries that are still to be imported are points, too.
LEAST_POINTS = {
    "create": 78, "append": 78, "overwrite": 78, "compressed": 74, "session": 100, "array": 100, "gc": 90,
    "delete": 36, "restore": 22, "erase": 56, "compact": 43, "tag": 20, "remove": 25, "schema": 20,
    "table": 70, "keys": 48, "rename": 25,
}  # fmt: skip


@pytest.mark.sampled(len(DEEDS))
@EVERY_DEED
def test_killed_at_every_point_on_a_disk(deed, begun, tmp_path, long):
    """P1: SIGKILL at every named point of create, append, overwrite, gc."""
    todo = DEEDS[deed]
    oracle = tmp_path / "oracle"
    url = setting(todo, begun, "local", tmp_path)
    points, done = killed_at(lambda: todo.do(url), oracle, -1)
    assert done
    assert points >= LEAST_POINTS[deed]
    for at in range(0, points, 1 if long else 16):
        url = setting(todo, begun, "local", tmp_path)
        _, done = killed_at(functools.partial(todo.do, url), oracle, at)
        check_alive(url, todo, acknowledged=done)
        shutil.rmtree(url)


class Killer:
    """Kills a process when a numbered request passes by: before the server sees it, or after its reply."""

    def __init__(self, relay: Proxy, at: int, *, answered: bool) -> None:
        self._relay, self._at, self._answered = relay, at, answered
        self.child = 0

    def __call__(self, exchange: Exchange, answered: bool) -> int | None:
        if exchange.number != self._at or answered != self._answered:
            return None
        os.kill(self.child, signal.SIGKILL)
        return 0 if answered else -1


def run_in_child(do: Callable[[], None], relay: Proxy, killer: Killer | None, oracle: Path) -> bool:
    """Do it in a child that talks to the proxy; return whether it lived to acknowledge it."""
    oracle.unlink(missing_ok=True)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(reading, 1)
            os.environ["AWS_ENDPOINT_URL"] = relay.url
            do()
            oracle.write_text("done")
        finally:
            os._exit(0)
    if killer is not None:
        killer.child = child
        relay.plan = killer
    os.write(writing, b"x")
    os.close(reading)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    assert oracle.exists() or os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return oracle.exists()


@pytest.mark.slow
@pytest.mark.sampled(len(DEEDS))
@EVERY_DEED
def test_killed_at_every_request_to_a_bucket(deed, begun, s3, tmp_path, long):
    """P1: SIGKILL before any request reaches the store, and after any reply has left it."""
    todo = DEEDS[deed]
    source = todo.source(begun)
    oracle = tmp_path / "oracle"
    with proxy(s3) as relay:
        url = copied(source, "s3", tmp_path)
        assert run_in_child(lambda: todo.do(url), relay, None, oracle)
        said = relay.exchanges
    (commit,) = (each.number for each in said if each.method == "PUT" and "/manifests/" in each.path)
    # In the short run one of the early points, and those before and after the commit.
    points = [(commit // 2, True), (commit, False), (commit, True)]
    if long:
        points = [(at, answered) for at in range(len(said)) for answered in (False, True)]
    for at, answered in points:
        with proxy(s3) as relay:
            url = copied(source, "s3", tmp_path)
            killer = Killer(relay, at, answered=answered)
            done = run_in_child(lambda url=url: todo.do(url), relay, killer, oracle)
            assert not done or long
            check_alive(url, todo, acknowledged=done)


@pytest.mark.parametrize(
    "kills", [8, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_killed_at_random_moments(kills, begun, tmp_path, seeded):
    """P1: SIGKILL at random moments, with an oracle of acknowledged commits kept outside."""
    for _ in range(kills):
        url = setting(DEEDS["append"], begun, "local", tmp_path)
        check_killed_appender(url, tmp_path / "acknowledged", seeded.uniform(0, 0.15))
        shutil.rmtree(url)
