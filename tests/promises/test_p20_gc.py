"""P20: garbage collection never removes live data.

Kills at every point of a run: `test_deeds.py`; random versions and sessions: the model in
`test_p03_concurrent.py`.
"""

from __future__ import annotations

import hashlib
import signal
import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

import shardio
from shardio.catalog import Catalog, publish
from shardio.errors import CommitConflictError, FormatError, NotFoundError, StorageError
from shardio.metadata import Expiry, naming, seal_manifest
from shardio.storage import connect
from shardio.v1 import manifest_pb2 as pb
from tests.metadata.crafted import list_of, manifest_message, sealed
from tests.promises.deeds import SMALL, records, seen, split_up, write
from tests.promises.places import GOLDEN, PLACES, copied, fresh
from tests.promises.stores import faultless, faulty
from tests.suites.errors import refused
from tests.suites.processes import Forked

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
    assert report.reclaimable_bytes == sum(info.size for info in dry.doomed) > 0
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
def test_a_fence_that_names_a_few_keys_is_not_complete(place, tmp_path):
    """A version that says `complete` MUST doom all objects there are that only its expired versions name: no
    later collection reads the manifests of these.
    """
    url = fresh(place, tmp_path)
    write(url, "create", 0, 20)
    write(url, "overwrite", 100, 20)
    only_old = named(url, 1) - named(url, 2)
    catalog = Catalog(connect(url))
    one = min(only_old)
    few = Expiry(expired_versions=(1,), doomed_keys=(one,))  # as on a full disk
    publish(catalog, lambda base: replace(base.manifest.carried, operation="gc", expiry=few))
    report = shardio.gc(url, dry_run=False)
    assert {info.key for info in report.doomed} == only_old
    whole = catalog.load().manifest.expiry
    assert (whole.complete, set(whole.doomed_keys)) == (True, only_old)
    write(url, "append", 200, 1)
    assert not catalog.load().manifest.expiry.complete


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
        with pytest.raises(NotFoundError) as caught:
            shardio.open(url, "all", **options)
        assert caught.value.advice == "the latest is version 3"
    # What it shared with a later version stays.
    assert seen(url) == before
    assert [version.number for version in shardio.log(url)] == [3, 2, 1], "manifests are never deleted"


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
    """P20: an open writer's shards, named or not, are not garbage until the caller says so."""
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
    with refused(CommitConflictError, "'late'"):
        late.close()
    for out in (unnamed, in_session):
        with pytest.raises(CommitConflictError):
            out.close()
    assert seen(url) == before
    # For good: the same session cannot come back.
    with (
        pytest.raises(CommitConflictError),
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
        pytest.raises(CommitConflictError),
    ):
        out.close()
    assert seen(url) == before


@EVERY_PLACE
def test_commits_in_between_are_followed(place, tmp_path):
    """P20: a commit while garbage is looked for neither loses anything nor stops the collection."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 10)
    write(url, "overwrite", 100, 10)
    late = shardio.DatasetWriter(url, mode="append", **SMALL)
    for record in records(700, 30):
        late.write(record, "a")
    rounds: list[int] = []

    def commit_first(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key.endswith(".manifest") and len(rounds) < 5:
            rounds.append(len(rounds))
            with faultless():
                if len(rounds) == 3:
                    late.close()  # its shards were listed as unused before
                else:
                    write(url, "append", 300 + 10 * len(rounds), 3, session=f"s{len(rounds)}")
        return ""

    only_old = named(url, 1) - named(url, 2)
    with faulty(commit_first):
        report = shardio.gc(url, expire=[1], dry_run=False)
    assert len(rounds) == 5
    assert report.version == 8
    assert not only_old & keys(url)
    assert report.deleted == len(only_old)
    found = seen(url)
    assert len(found["a"]) + len(found["b"]) == 10 + 4 * 3 + 30
    assert set(records(700, 30)) <= set(found["a"])


@EVERY_PLACE
def test_a_list_that_was_committed_meanwhile_is_kept(place, tmp_path):
    """P20: what was named by no version when objects were listed may be named by the time of the fence."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 10)
    stored, go_on = threading.Event(), threading.Event()

    def in_turn(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key.endswith("2.manifest"):
            if threading.current_thread() is writer:
                stored.set()
                assert go_on.wait(600)
            elif not go_on.is_set():
                # Garbage collection has listed the writer's list, and is about to doom it.
                go_on.set()
                writer.join(600)
                assert not writer.is_alive()
        return ""

    writer = threading.Thread(target=write, args=(url, "append", 100, 10))
    with faulty(in_turn):
        writer.start()
        assert stored.wait(600)
        assert lists(url) & {info.key for info in shardio.gc(url).doomed}, "its list is unused"
        report = shardio.gc(url, dry_run=False)
    assert go_on.is_set()
    assert [version.manifest.operation for version in shardio.log(url)] == ["gc", "append", "create"]
    assert (report.doomed, report.deleted) == ((), 0)
    assert seen(url) == {
        split: [*split_up(0, 10)[split], *split_up(100, 10)[split]] for split in split_up(0, 10)
    }


@EVERY_PLACE
def test_what_another_collection_gave_up_meanwhile_stays_given_up(place, tmp_path):
    """P20: of two collections at once neither forgets what the other has expired or abandoned."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 10)
    for start in (100, 200, 300):
        write(url, "overwrite", start, 10)
    begun: list[str] = []

    def collect_first(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key.endswith(".manifest") and not begun:
            begun.append(key)
            with faultless():
                shardio.gc(url, expire=[2], abandon=["gone"], dry_run=False)
        return ""

    with faulty(collect_first):
        report = shardio.gc(url, expire=[1], abandon=["lost"], dry_run=False)
    assert report.version == 6
    expiry = Catalog(connect(url)).load().manifest.expiry
    assert (expiry.expired_versions, expiry.abandoned_sessions) == ((1, 2), ("gone", "lost"))
    for number in (1, 2):
        with pytest.raises(NotFoundError):
            shardio.open(url, "all", version=number)
    assert not (named(url, 3, 4) - keys(url))


def test_what_came_and_expired_after_the_listing_is_doomed(tmp_path):
    url = str(tmp_path / "ds")
    write(url, "create", 0, 10)
    write(url, "overwrite", 100, 10)
    catalog = Catalog(connect(url))
    came: set[str] = set()

    def expire_a_new_one(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key.endswith(".manifest") and not came:
            with faultless():
                write(url, "overwrite", 200, 10)
                write(url, "overwrite", 300, 10)
                came.update(named(url, 3))
                expiry = Expiry(expired_versions=(3,))  # as an erasure leaves it
                publish(
                    catalog, lambda base: replace(base.manifest.carried, operation="erase", expiry=expiry)
                )
        return ""

    with faulty(expire_a_new_one):
        shardio.gc(url, expire=[1], dry_run=False)
    assert catalog.load().manifest.expiry.expired_versions == (1, 3)
    assert not came & keys(url)


@EVERY_PLACE
def test_a_session_that_is_merged_meanwhile_is_not_abandoned(place, tmp_path):
    """P20: what the caller gives up may be committed before the fence; then it stays."""
    url = fresh(place, tmp_path)
    write(url, "create", 0, 10)
    late = shardio.DatasetWriter(url, mode="append", session="late", **SMALL)
    for record in records(700, 30):
        late.write(record, "a")
    done: list[str] = []

    def commit_first(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key.endswith("2.manifest") and not done:
            done.append(key)
            with faultless():
                late.close()
        return ""

    with faulty(commit_first), refused(ValueError, "'late'"):
        shardio.gc(url, abandon=["late"], dry_run=False)
    assert done
    assert len(shardio.open(url, "a")) == len(split_up(0, 10)["a"]) + 30


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

    def append() -> None:
        with faulty(lambda verb, key: "kill before" if key.endswith("2.manifest") and "put" in verb else ""):
            write(url, "append", 100, 10)

    assert Forked(append).end()[0] == -signal.SIGKILL
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
    """Lists that a commit stores may be doomed before it is through."""
    url = fresh(place, tmp_path)
    # So many shards that the list of the next ones is not merged with theirs: its content stays the same.
    write(url, "create", 0, 120)
    doomed: list[str] = []

    def collect_first(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key.endswith("2.manifest") and not doomed:
            doomed.extend(info.key for info in shardio.gc(url).doomed)
            with faultless():
                assert shardio.gc(url, dry_run=False).deleted == 1
        return ""

    with faulty(collect_first):
        write(url, "append", 100, 2)
    assert len(doomed) == 1
    assert seen(url) == {
        split: [*split_up(0, 120)[split], *split_up(100, 2)[split]] for split in split_up(0, 120)
    }
    assert [version.manifest.operation for version in shardio.log(url)] == ["append", "gc", "create"]
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
    with pytest.raises(NotFoundError):
        shardio.gc(tmp_path / "nothing")


def test_what_lost_attempts_left_goes(tmp_path):
    """A session that was merged leaves what its lost attempts had stored: it goes, and is not unclaimed."""
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
    lost.abort()


def hostile_fence(url: str, key: str) -> None:
    """Commit what a hostile or broken program could: a version that dooms a key."""
    catalog = Catalog(connect(url))
    latest = catalog.load()
    manifest = replace(
        latest.manifest,
        version=latest.number + 1,
        parent_version=latest.number,
        parent_sha256=latest.sha256,
        expiry=Expiry(doomed_keys=(key,)),
    )
    connect(url).put_if_absent(naming.manifest_key(latest.number + 1), seal_manifest(manifest)[0])


OWN = "train-abcdefghk3v7q2mh-0004.tfrecord"


@pytest.mark.parametrize(
    "key",
    ["data/notes.txt", "data/mine/a.tfrecord", "notes.txt", "_shardio/latest", naming.manifest_key(1),
     "_shardio/lists/x.list", f"other/{OWN}", "train/a.tfrecord.shardidx", "data/a.tfrecord"],
)  # fmt: skip
def test_a_manifest_that_dooms_what_shardio_did_not_make_is_damaged(key, tmp_path):
    """A doomed key MUST be of shardio's making: a shard under the name that the dataset's layout gives it, an
    index below `data/` or `indexes/`, deleted rows (`data/<name>.rows`), a list, a receipt, a table, or a run
    of a key index. A manifest that dooms another is damaged.
    """
    url = fresh("local", tmp_path)
    write(url, "create", 0, 5)
    path = Path(url, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.exists() or path.write_bytes(b"mine")
    before = path.read_bytes()
    hostile_fence(url, key)
    for call in (shardio.open, shardio.log, lambda url: shardio.gc(url, keep=1, dry_run=False)):
        with pytest.raises(FormatError):
            call(url)
    assert path.read_bytes() == before


@pytest.mark.parametrize("linked", ["data/sub", "data", "indexes/sub", "indexes", "_shardio/lists"])
def test_nothing_behind_a_link_is_removed(linked, tmp_path):
    """Garbage collection MUST NOT follow a link below the root."""
    url = fresh("local", tmp_path)
    write(url, "create", 0, 20)
    write(url, "overwrite", 100, 20)
    # The same names as in the dataset, and doomed ones, where the link leads.
    folder = Path(url, linked)
    outside = tmp_path / "outside"
    if folder.exists():
        folder.rename(outside)
    outside.mkdir(exist_ok=True)
    (outside / f"{'0' * 32}.list").write_bytes(b"theirs")
    (outside / OWN).write_bytes(b"theirs")
    (outside / f"{OWN}.shardidx").write_bytes(b"theirs")
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(outside)
    there = {path.name: path.read_bytes() for path in outside.iterdir()}
    for key in (f"{linked}/{OWN}", f"{linked}/{'0' * 32}.list", f"{linked}/{OWN}.shardidx"):
        if naming.is_own_key(key):
            hostile_fence(url, key)
            with pytest.raises(StorageError):
                connect(url).delete(key)
    report = shardio.gc(url, expire=[1], dry_run=False)
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == there
    assert any(f"{linked} is a link" in note for note in report.unlisted)
    assert seen(url) == split_up(100, 20)


def test_what_somebody_put_among_the_shards_stays(tmp_path):
    """P20: also where a list of shards names it as shardio's own."""
    url = fresh("local", tmp_path)
    store = connect(url)
    data = list_of(key=["data/mine.tfrecord", "data/photo.jpg"])
    store.put_if_absent("_shardio/lists/0.list", data)
    sha256 = hashlib.sha256(data).digest()
    ref = pb.ListRef(key="_shardio/lists/0.list", bytes=len(data), sha256=sha256, shards=2)
    total = pb.SplitTotals(name="train", rows=20, shards=2, stored_bytes=320, decoded_bytes=320)
    store.put_if_absent(naming.manifest_key(1), sealed(manifest_message(lists=[ref], splits=[total])))
    for name in ("mine.tfrecord", "photo.jpg"):
        store.put_if_absent(f"data/{name}", b"theirs")
    # Version 2 leaves garbage of shardio's own, without which old lists are not looked at.
    write(url, "overwrite", 0, 3)
    write(url, "overwrite", 10, 3)
    only_old = named(url, 2) - named(url, 3)
    report = shardio.gc(url, expire=[1, 2], dry_run=False)
    assert only_old <= {info.key for info in report.doomed}
    assert not only_old & keys(url)
    left = {info.key for info in store.list("data/")} - named(url, 3)
    assert left == {"data/mine.tfrecord", "data/photo.jpg"}


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
