"""P20: garbage collection never removes live data.

Kills at every point of a run: `test_p01_atomic.py`; random versions and sessions: the model in
`test_p03_concurrent.py`.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

import shardio
from shardio.catalog import Catalog
from shardio.errors import CommitConflictError, NotFoundError
from shardio.storage import connect
from tests.promises.deeds import SMALL, records, seen, split_up, write
from tests.promises.places import GOLDEN, PLACES, copied, fresh
from tests.promises.stores import FaultyStore, faulty

EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


def keys(url: str) -> set[str]:
    return {info.key for info in connect(url).list() if not info.key.startswith("_shardio/manifests/")}


def named(url: str, *numbers: int) -> set[str]:
    """Return every key that some versions name."""
    catalog = Catalog(connect(url))
    found = set()
    for number in numbers:
        version = catalog.load(number)
        found |= {ref.key for ref in version.manifest.lists}
        for entry in catalog.table(version):
            found |= {entry.key, entry.usual_index_key}
    return found


@EVERY_PLACE
def test_what_expired_goes_and_nothing_else(place, tmp_path):
    """A key that a version which did not expire names MUST NOT be deleted."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 20)
    write(url, "append", 100, 10)
    write(url, "overwrite", 200, 10)
    write(url, "append", 300, 10)
    only_old = named(url, 1, 2) - named(url, 3, 4)
    assert only_old
    kept = keys(url) - only_old
    wanted = {number: seen_at(url, number) for number in (3, 4)}

    dry = shardio.gc(url, expire=[1, 2])
    assert (dry.dry_run, dry.version, dry.deleted) == (True, None, 0)
    assert {info.key for info in dry.doomed} == only_old
    assert keys(url) == kept | only_old, "a dry run changes nothing"

    report = shardio.gc(url, expire=[1, 2], dry_run=False)
    assert (report.version, report.deleted, report.expired_versions) == (5, len(only_old), (1, 2))
    assert report.doomed_bytes == sum(info.size for info in dry.doomed) > 0
    assert keys(url) == kept
    for number in (3, 4):
        assert seen_at(url, number) == wanted[number]
    assert seen_at(url, 5) == wanted[4]
    again = shardio.gc(url, dry_run=False)
    assert (again.version, again.deleted, again.doomed) == (None, 0, ())


def seen_at(url: str, number: int) -> dict[str, list[bytes]]:
    splits = shardio.open(url, "all", version=number).splits
    return {split: list(shardio.open(url, split, version=number)) for split in splits}


@EVERY_PLACE
def test_an_expired_version_is_not_found(place, tmp_path):
    """An expired version MUST NOT be opened: it is `NotFoundError`."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 5)
    write(url, "append", 100, 5)
    before = seen(url)
    digest = shardio.open(url, "all", version=1).digest
    shardio.gc(url, keep=1, dry_run=False)
    for options in ({"version": 1}, {"version": 1, "digest": digest}):
        with pytest.raises(NotFoundError, match="version 1 expired") as caught:
            shardio.open(url, "all", **options)
        assert caught.value.advice == "the latest is version 3"
    # What it shared with a later version stays.
    assert seen(url) == before
    assert [version.number for version in shardio.log(url)] == [1, 2, 3], "manifests are never deleted"


@EVERY_PLACE
def test_manifests_stay(place, tmp_path):
    """Manifests MUST NOT be deleted, so a version number is never free twice."""
    url = fresh(place, tmp_path)
    for k in range(5):
        write(url, "overwrite", 100 * k, 5)
    deleted: list[str] = []

    def note(verb: str, key: str) -> str:
        if verb == "delete":
            deleted.append(key)
        return ""

    with faulty(note):
        shardio.gc(url, keep=1, dry_run=False)
    assert deleted
    assert not [key for key in deleted if "manifest" in key]
    write(url, "append", 900, 3)
    assert shardio.open(url, "all").version == 7


@EVERY_PLACE
def test_what_is_being_written_stays(place, tmp_path):
    """P20: an open writer's shards, named or not, are nobody's garbage until the caller says so."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 20)
    write(url, "overwrite", 50, 20)
    unnamed = shardio.DatasetWriter(url, mode="append", **SMALL)
    in_session = shardio.DatasetWriter(url, mode="append", session="mine", **SMALL)
    for out in (unnamed, in_session):
        for record in records(500, 30):
            out.write(record, "a")
    report = shardio.gc(url, keep=1, dry_run=False)
    assert set(report.unclaimed) == {unnamed.session, "mine"}
    assert report.deleted > 0
    unnamed.close()
    in_session.close()
    assert len(shardio.open(url, "a")) == len(split_up(50, 20)["a"]) + 60


@EVERY_PLACE
def test_a_commit_of_what_was_given_up_fails(place, tmp_path):
    """A commit that adds a key which a version since its base has doomed, or belongs to an abandoned session,
    MUST fail with `CommitConflictError`.
    """
    url = fresh(place, tmp_path)
    write(url, "create", 0, 10)
    before = seen(url)
    unnamed = shardio.DatasetWriter(url, mode="append", **SMALL)
    in_session = shardio.DatasetWriter(url, mode="append", session="mine", **SMALL)
    for out in (unnamed, in_session):
        for record in records(500, 30):
            out.write(record, "a")
    # Of this one nothing is stored yet, so only its name can stop it.
    late = shardio.DatasetWriter(url, mode="append", session="late")
    report = shardio.gc(url, abandon=[unnamed.session, "mine", "late"], dry_run=False)
    assert report.deleted > 10
    late.write(b"x", "a")
    with pytest.raises(CommitConflictError, match="'late' was abandoned by garbage collection"):
        late.close()
    for out in (unnamed, in_session):
        with pytest.raises(CommitConflictError, match=r"gave up objects|abandoned by garbage collection"):
            out.close()
    assert seen(url) == before
    # For good: the same session cannot come back.
    with (
        pytest.raises(CommitConflictError, match="abandoned"),
        shardio.DatasetWriter(url, mode="append", session="mine") as out,
    ):
        out.write(b"x", "a")
    assert seen(url) == before


@EVERY_PLACE
def test_the_fence_alone_stops_a_late_commit(place, tmp_path):
    """Even where the session's name says nothing: doomed keys are looked for since the base."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 10)
    out = shardio.DatasetWriter(url, mode="append", **SMALL)
    for record in records(500, 30):
        out.write(record, "a")
    shardio.gc(url, abandon=[out.session], dry_run=False)
    write(url, "append", 700, 3)
    before = seen(url)
    with (
        mock.patch("shardio.catalog._merge._Merge._check_base"),
        pytest.raises(
            CommitConflictError, match="garbage collection in version 2 gave up objects that this commit adds"
        ),
    ):
        out.close()
    assert seen(url) == before


@EVERY_PLACE
def test_a_commit_in_between_stops_the_collection(place, tmp_path):
    """P20: a plan made on an older version is dropped, and nothing is removed."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 10)
    write(url, "overwrite", 100, 10)
    there = keys(url)
    done: list[str] = []

    def commit_first(verb: str, key: str) -> str:
        if verb == "put_new" and key.endswith("3.manifest") and not done:
            done.append(key)
            with mock.patch.object(FaultyStore, "_do", lambda _self, _verb, _key, call, _half=None: call()):
                write(url, "append", 300, 3)
        return ""

    with faulty(commit_first), pytest.raises(CommitConflictError, match="nothing was removed"):
        shardio.gc(url, expire=[1], dry_run=False)
    assert there <= keys(url)
    assert shardio.open(url, "all", version=1).version == 1


@EVERY_PLACE
def test_a_run_that_was_killed_is_finished_by_the_next(place, tmp_path):
    """P20: phase two names what it deletes in the version that fences it, so nothing is forgotten."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 30)
    write(url, "overwrite", 100, 10)
    doomed = {info.key for info in shardio.gc(url, expire=[1]).doomed}
    left = [3]

    def give_up(verb: str, _key: str) -> str:
        if verb == "delete":
            left[0] -= 1
        return "before" if left[0] < 0 else ""

    with faulty(give_up), pytest.raises(shardio.errors.StorageError):
        shardio.gc(url, expire=[1], dry_run=False)
    assert len(doomed & keys(url)) == len(doomed) - 3
    report = shardio.gc(url, dry_run=False)
    assert report.deleted == len(doomed) - 3
    assert not doomed & keys(url)
    assert len(shardio.open(url, "all")) == 10


@EVERY_PLACE
def test_a_run_that_was_killed_is_finished_without_its_lists(place, tmp_path):
    """Where the list of an expired version went first, the fence still names the shards that it held.

    And their deletion sidecars, whose names say nothing.
    """
    url = copied(GOLDEN / "deleted", place, tmp_path)
    write(url, "overwrite", 100, 10)
    doomed = {info.key for info in shardio.gc(url, expire=[1]).doomed}
    with (
        faulty(lambda verb, _key: "before" if verb == "delete" else ""),
        pytest.raises(shardio.errors.StorageError),
    ):
        shardio.gc(url, expire=[1], dry_run=False)
    assert doomed <= keys(url)
    assert [key for key in doomed if key.endswith(".rows")]
    (first,) = [key for key in doomed if key.startswith("_shardio/lists/")]
    connect(url).delete(first)
    assert shardio.gc(url, dry_run=False).deleted == len(doomed) - 1
    assert not doomed & keys(url)


def lists(url: str) -> set[str]:
    return {key for key in keys(url) if key.startswith("_shardio/lists/")}


def test_the_list_of_a_killed_commit_goes(tmp_path):
    """P20: killed between its list and its manifest; what else it stored stays until it is given up."""
    url = fresh("local", tmp_path)
    write(url, "create", 0, 20)
    before, there = seen(url), keys(url)
    child = os.fork()
    if child == 0:
        try:
            with faulty(
                lambda verb, key: "kill before" if key.endswith("2.manifest") and "put" in verb else ""
            ):
                write(url, "append", 100, 10)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    (left,) = lists(url) - there
    stored = keys(url) - there - {left}
    assert stored
    assert [info.key for info in shardio.gc(url).doomed] == [left]
    report = shardio.gc(url, dry_run=False)
    assert (report.deleted, keys(url)) == (1, there | stored | {"_shardio/latest"})
    assert seen(url) == before
    assert shardio.gc(url, dry_run=False).version is None, "nothing is left to do"
    assert shardio.gc(url, abandon=report.unclaimed, dry_run=False).deleted == len(stored)


@EVERY_PLACE
def test_a_commit_whose_list_was_doomed_stores_it_again(place, tmp_path):
    """A commit whose list a version since its base has doomed MUST store that list again under a new name."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 20)
    doomed: list[str] = []

    def collect_first(verb: str, key: str) -> str:
        if verb == "put_new" and key.endswith("2.manifest") and not doomed:
            doomed.extend(info.key for info in shardio.gc(url).doomed)
            with mock.patch.object(FaultyStore, "_do", lambda _self, _verb, _key, call, _half=None: call()):
                assert shardio.gc(url, dry_run=False).deleted == 1
        return ""

    with faulty(collect_first):
        write(url, "append", 100, 10)
    assert len(doomed) == 1
    assert seen(url) == {
        split: [*split_up(0, 20)[split], *split_up(100, 10)[split]] for split in split_up(0, 20)
    }
    assert [version.manifest.operation for version in shardio.log(url)] == ["create", "gc", "append"]
    assert not lists(url) & set(doomed)
    assert shardio.gc(url).doomed == ()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"expire": [2]}, "cannot expire \\[2\\]"),
        ({"expire": [0]}, "cannot expire"),
        ({"expire": [99]}, "cannot expire"),
        ({"keep": 0}, "keep=0 must be at least 1"),
        ({"abandon": ["mine"]}, "'mine' is part of version 2"),
        ({"abandon": ["../x"]}, "not a name for a session"),
    ],
)
def test_what_cannot_be_given_up(options, match, tmp_path):
    url = fresh("memory", tmp_path)
    write(url, "create", 0, 5)
    write(url, "append", 100, 5, session="mine")
    there = keys(url)
    with pytest.raises(ValueError, match=match):
        shardio.gc(url, dry_run=False, **options)
    assert keys(url) == there


def test_nothing_to_collect_where_there_is_nothing(tmp_path):
    with pytest.raises(NotFoundError, match="there is no shardio dataset here"):
        shardio.gc(tmp_path / "nothing")


def test_what_lost_attempts_left_goes(tmp_path):
    """A session that was merged leaves what its lost attempts had stored; that goes without a word."""
    url = fresh("memory", tmp_path)
    write(url, "create", 0, 5)
    lost = shardio.DatasetWriter(url, mode="append", session="mine", **SMALL)
    for record in records(500, 30):
        lost.write(record, "a")
    write(url, "append", 100, 20, session="mine")
    before = seen(url)
    report = shardio.gc(url, dry_run=False)
    assert report.deleted > 0
    assert report.unclaimed == {}
    assert seen(url) == before


def test_temporaries_are_reported_and_left(tmp_path):
    url = str(tmp_path / "ds")
    write(url, "create", 0, 5)
    (tmp_path / "ds" / "data" / ".shardio-tmp-abc").write_bytes(b"x")
    report = shardio.gc(url, dry_run=False)
    assert [info.key for info in report.temporaries] == ["data/.shardio-tmp-abc"]
    assert (tmp_path / "ds" / "data" / ".shardio-tmp-abc").exists()


def test_readers_of_live_versions_never_notice(tmp_path):
    """P20: collection, appends and readers at once."""
    url = str(tmp_path / "ds")
    write(url, "create", 0, 20)
    stop = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                ds = shardio.open(url, "all")
                assert len(list(ds)) == len(ds)
        except NotFoundError as error:
            # The version that was the latest a moment ago may be expired by now; nothing else may happen.
            if "expired" not in str(error) and "no index" not in str(error) and "no such" not in str(error):
                problems.append(error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is shown below
            problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for k in range(8):
        write(url, "append", 100 * k, 5)
        latest = shardio.open(url, "all").version
        shardio.gc(url, expire=range(1, max(1, latest - 6)), dry_run=False)
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert len(shardio.open(url, "all")) == 60


def test_collections_killed_at_random_moments(tmp_path, long):
    """P20: state machine with kills: whatever was killed, live versions stay whole."""
    begun = tmp_path / "begun"
    write(str(begun), "create", 0, 20)
    for k in range(4):
        write(str(begun), "overwrite" if k % 2 else "append", 100 * (k + 1), 15)
    live = {number: seen_at(str(begun), number) for number in (3, 4, 5)}
    only_old = named(str(begun), 1, 2) - named(str(begun), 3, 4, 5)
    assert only_old
    dice = random.Random(5)
    for _ in range(60 if long else 8):
        url = copied(Path(begun), "local", tmp_path)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                try:
                    shardio.gc(url, expire=[1, 2], dry_run=False)
                    write(url, "append", 900, 2)
                finally:
                    os._exit(0)
            time.sleep(dice.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for number, wanted in live.items():
                assert seen_at(url, number) == wanted
        shardio.gc(url, expire=[1, 2], dry_run=False)
        assert not only_old & keys(url)
        for number, wanted in live.items():
            assert seen_at(url, number) == wanted
