"""Going back, names for versions, and splits as a whole."""

from __future__ import annotations

from unittest import mock

import pytest

import shardio
import shardio.lifecycle
from shardio.errors import CommitConflictError, NotFoundError, UnsafeNameError
from shardio.metadata import naming
from tests.promises.places import PLACES, fresh
from tests.promises.stores import faultless, faulty
from tests.suites.errors import refused


@pytest.fixture(params=PLACES)
def url(request, tmp_path) -> str:
    """Three days, each a session: one, two and three records."""
    url = fresh(request.param, tmp_path)
    for day in range(1, 4):
        write_day(url, day)
    return url


def write_day(url: str, day: int, text: str = "good") -> None:
    with shardio.DatasetWriter(url, mode="append", session=f"day-{day}", metadata={"day": day}) as out:
        for k in range(day):
            out.write(f"{text} {day}.{k}".encode())


def days(*numbers: int) -> list[bytes]:
    return [f"good {day}.{k}".encode() for day in numbers for k in range(day)]


def at_the_line(number: int, deed):
    """A policy that does something right before the manifest of a version is created."""
    done = []

    def policy(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key == naming.manifest_key(number) and not done:
            done.append(key)
            with faultless():
                deed()
        return ""

    return policy


def test_a_bad_day_is_rolled_back(url):
    report = shardio.restore(url, 2)
    assert (report.version, report.base_version) == (4, 3)
    assert (report.before, report.after) == ({"train": 6}, {"train": 3})
    ds = shardio.open(url)
    assert (list(ds), dict(ds.metadata)) == (days(1, 2), {"day": 2})
    assert list(shardio.open(url, version=3)) == days(1, 2, 3), "nothing is dropped"
    latest = shardio.log(url)[0]
    assert (latest.operation, latest.manifest.restored_version, latest.records) == ("restore", 2, 3)
    assert shardio.restore(url, 3).version == 5, "undone by another"
    assert list(shardio.open(url)) == days(1, 2, 3)


def test_a_session_that_was_rolled_back_is_neither_lost_nor_doubled(url):
    """A commit of a session that was rolled back MUST fail with `CommitConflictError`.

    It is neither taken for one that was merged, which would lose its records silently,
    nor merged again.
    """
    shardio.restore(url, 1)
    for text in ("good", "other"):
        with refused(CommitConflictError, "'day-3'"):
            write_day(url, 3, text)
    with pytest.raises(CommitConflictError):
        shardio.commit(url, session="day-2", tasks=1)
    write_day(url, 1)  # part of the restored version: a success without a new version
    assert list(shardio.open(url)) == days(1)
    assert shardio.open(url).version == 4
    write_day(url, 4)
    with pytest.raises(CommitConflictError):
        write_day(url, 2)
    with shardio.DatasetWriter(url, mode="append", session="day-2-again") as out:
        out.write(b"as advised")
    assert list(shardio.open(url)) == [*days(1, 4), b"as advised"]
    shardio.restore(url, 5)
    # A restore of a version that holds their records: merged again, day 4 is not.
    shardio.restore(url, 3)
    write_day(url, 3)
    assert list(shardio.open(url)) == days(1, 2, 3)
    with pytest.raises(CommitConflictError):
        write_day(url, 4)
    shardio.restore(url, 5)
    write_day(url, 4)
    assert list(shardio.open(url)) == days(1, 4)


def test_rolled_back_sessions_that_stand_in_lists(tmp_path):
    url = str(tmp_path / "ds")
    with mock.patch.multiple("shardio.catalog._lists", _SESSIONS=2, _RATIO=1):
        for day in range(1, 9):
            write_day(url, day)
        assert shardio.log(url)[0].manifest.session_lists
        shardio.restore(url, 3)
        for day in range(4, 9):
            with pytest.raises(CommitConflictError):
                write_day(url, day)
        for day in range(1, 4):
            write_day(url, day)
        assert list(shardio.open(url)) == days(1, 2, 3)
    assert shardio.verify(url).ok


def test_a_restore_of_what_is_there_is_no_version(url):
    assert shardio.restore(url, 3).version is None
    assert shardio.restore(url, 2).version == 4
    assert shardio.restore(url, 2).version is None, "asked twice, done once"
    assert shardio.restore(url, 4).version is None


def test_a_dry_run_of_a_restore(url):
    report = shardio.restore(url, 1, dry_run=True)
    assert (report.version, report.before, report.after) == (None, {"train": 6}, {"train": 1})
    assert shardio.open(url).version == 3


def test_restores_that_are_refused(url, tmp_path):
    with pytest.raises(NotFoundError):
        shardio.restore(url, 7)
    with pytest.raises(NotFoundError):
        shardio.restore(url, 0)
    with refused(NotFoundError, "'v1'"):
        shardio.restore(url, "v1")
    shardio.gc(url, expire=[1], dry_run=False)
    with pytest.raises(NotFoundError):
        shardio.restore(url, 1)
    with pytest.raises(NotFoundError):
        shardio.restore(tmp_path / "nothing", 1)


def test_a_restore_follows_an_append_and_is_refused_where_its_version_expires(url):
    with faulty(at_the_line(4, lambda: write_day(url, 4))):
        assert shardio.restore(url, 2).version == 5
    assert list(shardio.open(url)) == days(1, 2)
    with pytest.raises(CommitConflictError):
        write_day(url, 4)
    with (
        faulty(at_the_line(6, lambda: shardio.gc(url, expire=[3], dry_run=False))),
        pytest.raises(NotFoundError),
    ):
        shardio.restore(url, 3)
    assert list(shardio.open(url)) == days(1, 2)
    assert shardio.restore(url, 4).version == 7


def test_a_tag_names_a_version(url):
    assert shardio.tag(url, "v1", 1).number == 1
    assert shardio.tag(url, "paper-2026").number == 4, "the latest is the one that says so of version 1"
    assert shardio.tags(url) == {"paper-2026": 4, "v1": 1}
    ds = shardio.open(url, version="v1")
    assert (ds.version, list(ds)) == (1, days(1))
    assert shardio.verify(url, version="v1").records == 1
    write_day(url, 4)
    with shardio.DatasetWriter(url, mode="overwrite") as out:
        out.write(b"new")
    shardio.restore(url, 2)
    shardio.delete(url, [0])
    assert shardio.tags(url) == {"paper-2026": 4, "v1": 1}, "every commit carries them on"
    assert list(shardio.open(url, version="paper-2026")) == days(1, 2, 3)
    assert shardio.open(url, version="3").version == 3, "no tag looks like a number"


def test_tags_that_there_are(url):
    shardio.tag(url, "v1", 1)
    with refused(CommitConflictError, "'v1'") as caught:
        shardio.tag(url, "v1", 2)
    assert caught.value.found == "version 1"
    assert shardio.tag(url, "v1", 1).number == 1, "asked twice, done once"
    assert shardio.open(url).version == 4
    shardio.tag(url, "v1", 2, move=True)
    assert shardio.tags(url) == {"v1": 2}
    assert shardio.untag(url, "v1") == 2
    assert shardio.tags(url) == {}
    with refused(NotFoundError, "'v1'"):
        shardio.untag(url, "v1")
    for number in (9, "other"):
        with pytest.raises(NotFoundError):
            shardio.tag(url, "v2", number)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["3", "1_000", "latest", "", "-x", ".x", "a b", "a/b", "é", "x" * 129, 7, None]
)
def test_names_that_are_none(name, url):
    """A tag's name MUST be `[A-Za-z0-9][A-Za-z0-9._+-]{0,127}`, not digits and underscores alone, and not
    `latest`.
    """
    with pytest.raises(UnsafeNameError):
        shardio.tag(url, name)
    with pytest.raises(UnsafeNameError):
        shardio.untag(url, name)
    for good in ("v1", "2026-01-02", "1.0", "Paper+A", "x" * 128):
        assert naming.check_tag(good) == good


def test_a_version_that_has_a_tag_does_not_expire(url):
    """A version that has a tag MUST NOT expire."""
    shardio.tag(url, "v1", 1)
    with refused(ValueError, "'v1'"):
        shardio.gc(url, expire=[1], dry_run=False)
    assert shardio.gc(url, keep=1, dry_run=False).expired_versions == (2, 3)
    assert list(shardio.open(url, version="v1")) == days(1)
    with pytest.raises(NotFoundError):
        shardio.tag(url, "v2", 2)
    shardio.untag(url, "v1")
    assert 1 in shardio.gc(url, keep=1, dry_run=False).expired_versions


def test_a_tag_and_gc_race(url):
    with (
        faulty(at_the_line(4, lambda: shardio.tag(url, "v1", 1))),
        refused(ValueError, "'v1'"),
    ):
        shardio.gc(url, expire=[1], dry_run=False)
    with faulty(at_the_line(5, lambda: shardio.tag(url, "v2", 2))):
        assert shardio.gc(url, keep=1, dry_run=False).expired_versions == (3,)
    with (
        faulty(at_the_line(7, lambda: shardio.gc(url, expire=[4], dry_run=False))),
        pytest.raises(NotFoundError),
    ):
        shardio.tag(url, "v4", 4)
    assert shardio.tags(url) == {"v1": 1, "v2": 2}
    with (
        faulty(at_the_line(8, lambda: shardio.tag(url, "v1", 6, move=True))),
        pytest.raises(CommitConflictError),
    ):
        shardio.untag(url, "v1")
    assert shardio.tags(url)["v1"] == shardio.untag(url, "v1") == 6


def test_a_split_is_renamed(url):
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"x", "val")
    assert shardio.rename_split(url, "train", "fit").after == {"fit": 6, "val": 1}
    assert list(shardio.open(url, "fit")) == days(1, 2, 3)
    assert list(shardio.open(url, "train", version=3)) == days(1, 2, 3)
    assert shardio.verify(url).ok
    for old, new, error in (
        ("train", "x", ValueError), ("fit", "val", ValueError), ("fit", "all", UnsafeNameError),
        ("fit", "a/b", UnsafeNameError), ("fit", "fit", ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            shardio.rename_split(url, old, new)
    with (
        faulty(at_the_line(6, lambda: shardio.remove_split(url, "val"))),
        pytest.raises(CommitConflictError),
    ):
        shardio.rename_split(url, "val", "test")
    assert [version.operation for version in shardio.log(url)][:2] == ["remove split", "rename split"]
    assert shardio.rename_split(url, "fit", "test").after == {"test": 6}

    def append() -> None:
        with shardio.DatasetWriter(url, mode="append") as out:
            out.write(b"y", "new")

    with (
        faulty(at_the_line(8, append)),
        pytest.raises(CommitConflictError),
    ):
        shardio.rename_split(url, "test", "new")
    assert shardio.open(url, "all").splits == {"new": 1, "test": 6}, "records of two splits are not mixed"


def test_a_split_is_removed(url):
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"x", "val")
    assert shardio.remove_split(url, "train", dry_run=True).after == {"val": 1}
    assert shardio.remove_split(url, "train").after == {"val": 1}
    assert list(shardio.open(url)) == [b"x"]
    write_day(url, 3)
    assert dict(shardio.open(url).splits) == {"val": 1}, "a session that was merged stays so"
    assert shardio.remove_split(url, "val").after == {}
    assert len(shardio.open(url)) == 0
    with refused(ValueError, "'val'"):
        shardio.remove_split(url, "val")
    shardio.restore(url, 3)
    assert list(shardio.open(url)) == days(1, 2, 3)
