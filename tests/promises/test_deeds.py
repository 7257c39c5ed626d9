"""P1, P2, P4: operations x places x points of failure, one table.

Whatever fails, and wherever the process is killed: what is seen is the dataset as it was or as it should
become, what was acknowledged is there, and life goes on. A new operation is one line of `DEEDS`
(tests/promises/deeds.py), a new way to fail one of `WAYS`.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardio
from shardio.catalog import Catalog
from shardio.errors import FormatError, NotFoundError, StorageError
from shardio.storage import connect
from tests.promises.deeds import BASE, DAMAGED, DEEDS, Deed, Seen, beginnings, records, seen, write
from tests.promises.failures import Killed, KilledAtARequest, Outcome, StoreCall, SystemCall
from tests.promises.places import PLACES, copied
from tests.promises.stores import EFFECTS, faulty
from tests.suites.processes import Forked

WAYS = {
    **{
        f"a call of the {place} store fails: {effect}": (
            place,
            StoreCall(effect, number + 4 * PLACES.index(place)),
        )
        for place in PLACES
        for number, effect in enumerate(EFFECTS)
    },
    **{
        f"a system call fails: {way}": ("local", SystemCall(way))
        for way in ("once", "for good", "after its effect")
    },
    "killed": ("local", Killed()),
    "killed at a request": ("s3", None),
}


def cases() -> Iterator[Any]:
    """Yield all; each way begins with another operation, so that samples meet many, and no dear ones."""
    dear = [name for name, deed in DEEDS.items() if deed.columns]
    cheap = [name for name in DEEDS if name not in dear]
    for number, way in enumerate(WAYS):
        for deed in [*cheap[number:], *cheap[:number], *dear]:
            yield pytest.param(
                deed, way, id=f"{deed}-{way}", marks=[pytest.mark.slow] if WAYS[way][0] == "s3" else []
            )


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """The datasets that deeds begin with."""
    root = beginnings(tmp_path_factory.mktemp("begun"))
    assert seen(str(root)) == BASE
    return root


def what_is_there(url: str) -> Seen:
    try:
        return seen(url)
    except (FormatError, NotFoundError):
        return DAMAGED


def versions(url: str) -> int:
    latest = Catalog(connect(url)).latest()
    return 0 if latest is None else latest.number


def check_life_goes_on(url: str, deed: Deed, found: Seen) -> None:
    if found == DAMAGED:
        deed.do(url)
        found = seen(url)
        assert found == deed.after
    if found is None:
        write(url, "create", 900, 3)
        assert seen(url) == {"a": records(901, 2), "b": records(900, 1)}
        return
    assert isinstance(found, dict)
    more = deed.go_on(url)
    # Looked at once, after gc, which leaves the latest version as it is.
    shardio.gc(url, keep=1, dry_run=False)
    assert seen(url) == {**found, "a": [*found["a"], more]}


@pytest.mark.sampled(len(DEEDS))
@pytest.mark.parametrize(("deed", "way"), [*cases()])
def test_what_fails_changes_nothing_or_everything(deed, way, begun, tmp_path, long, request):
    """P1, P2: an error that is no unknown outcome says that nothing happened; a new version is visible whole.

    Once the manifest may be under its name, a commit MUST end as a success or as `CommitOutcomeUnknownError`.
    """
    place, failure = WAYS[way]
    if failure is None:
        failure = KilledAtARequest(request.getfixturevalue("s3"))
    todo = DEEDS[deed]

    def begin() -> str:
        return copied(todo.source(begun), place, tmp_path)

    before = versions(url := begin())
    points = failure.points(lambda: todo.do(url), tmp_path, every=long)
    ended: set[Outcome] = set()
    for at in points:
        url = begin()
        outcome = failure.fail(lambda url=url: todo.do(url), tmp_path, at)
        ended.add(outcome)
        found = what_is_there(url)
        assert found in ((todo.after,) if outcome.acknowledged else (todo.before, todo.after)), at
        if not outcome.acknowledged and not outcome.unknown:
            assert found == todo.before, f"{at}: said that nothing happened"
            # Where gc cannot delete, it has committed what is garbage; the next one deletes it.
            assert deed == "gc" or versions(url) == before, f"{at}: a version was made"
        check_life_goes_on(url, todo, found)
        if place == "local":
            shutil.rmtree(url)
    assert ended, "nothing was tried"


@pytest.mark.parametrize(
    "kills", [8, pytest.param(1000, marks=[pytest.mark.rare, pytest.mark.timeout(3600)])]
)
def test_killed_at_random_moments(kills, begun, tmp_path, seeded):
    """P1, P2: what a process said it committed before it was killed is there, in order."""
    for _ in range(kills):
        url, acknowledged = copied(begun, "local", tmp_path), tmp_path / "acknowledged"
        acknowledged.write_bytes(b"")

        def append(url: str = url, acknowledged: Path = acknowledged) -> None:
            with acknowledged.open("ab", buffering=0) as out:
                for k in itertools.count():
                    write(url, "append", 1000 * (k + 1), 4)
                    out.write(b"x")

        child = Forked(append)
        time.sleep(seeded.uniform(0, 0.15))
        child.kill()
        assert child.end()[0] == -signal.SIGKILL
        known, found = len(acknowledged.read_bytes()), seen(url)
        assert isinstance(found, dict)
        count = (sum(map(len, found.values())) - sum(map(len, BASE.values()))) // 4
        assert count in (known, known + 1), f"{known} acknowledged, {count} there"
        wanted = {split: list(BASE[split]) for split in BASE}
        for k in range(count):
            for number, each in enumerate(records(1000 * (k + 1), 4)):
                wanted["b" if number % 3 == 0 else "a"].append(each)
        assert found == wanted
        shutil.rmtree(url)


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
