"""P3: concurrent writers never lose or mix data; overwrites conflict loudly."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

import shardio
from shardio.errors import CommitConflictError, NotFoundError
from tests.promises.places import EVERYWHERE, IN_A_BUCKET, PLACES, fresh
from tests.promises.racing import check_overwriters, check_processes, check_racers, write_one
from tests.suites.errors import refused


@EVERYWHERE
def test_of_16_racers_for_one_version_one_wins(place, tmp_path):
    """P3: 16 racers for one version, one winner.

    A commit MUST create the manifest of the next version only if there is none; exactly one writer wins.
    """
    shardio.DatasetWriter(fresh("memory", tmp_path)).abort()  # everything is imported now
    check_racers(fresh(place, tmp_path))


@EVERYWHERE
def test_of_16_overwriters_one_wins(place, tmp_path):
    """An overwrite MUST fail with `CommitConflictError` unless its base is still the latest."""
    check_overwriters(fresh(place, tmp_path))


@pytest.mark.parametrize("place", PLACES)
def test_writers_that_draw_the_same_name_lose_nothing(place, tmp_path, monkeypatch):
    """P3: a writer that chance gave the names of another one fails, and removes nothing of that one's."""
    url = fresh(place, tmp_path)
    drawn = secrets.token_bytes
    monkeypatch.setattr(secrets, "token_bytes", lambda size=32: bytes(5) if size == 5 else drawn(size))
    write_one(url, "create", b"first")
    with pytest.raises(CommitConflictError):
        write_one(url, "append", b"second")
    assert list(shardio.open(url)) == [b"first"]
    assert shardio.verify(url).ok


@pytest.mark.parametrize("place", ["local", IN_A_BUCKET])
@pytest.mark.parametrize("kills", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_appends_of_racing_and_killed_processes_are_whole(kills, place, tmp_path):
    """P3: appends of processes that race are all there; of those killed, each whole or not at all."""
    check_processes(fresh(place, tmp_path), kills)


RECORDS = st.dictionaries(
    st.sampled_from(["a", "b-c"]), st.lists(st.binary(max_size=9), min_size=1, max_size=4)
)


class Datasets(RuleBasedStateMachine):
    """A dataset against a list of dicts: open writers, closed in any order, readers of every version, gc."""

    writers = Bundle("writers")
    place = "memory"

    @initialize()
    def begin(self) -> None:
        self.url = fresh(self.place, Path())
        self.versions: list[dict[str, list[bytes]]] = []
        self.opened: list[shardio.DatasetWriter] = []
        self.expired: set[int] = set()
        # What each version remembers of sessions, which of them are rolled back, and the tags.
        self.sessions: list[dict[str, dict[str, list[bytes]]]] = []
        self.rolled_back: set[str] = set()
        self.tags: dict[str, int] = {}

    def follow(self, version, sessions=None):
        """The next version is this one."""
        self.versions.append(version)
        before = self.sessions[-1] if self.sessions else {}
        self.sessions.append(before if sessions is None else sessions)

    @rule(target=writers, mode=st.sampled_from(["create", "append", "overwrite"]), records=RECORDS)
    def opens(self, mode, records):
        if mode == "create" and self.versions:
            with pytest.raises(CommitConflictError):
                shardio.DatasetWriter(self.url, mode=mode)
            return None
        out = shardio.DatasetWriter(self.url, mode=mode, block_bytes=20, shard_bytes=30)
        self.opened.append(out)
        for split, values in records.items():
            for value in values:
                out.write(value, split)
        return out, mode, len(self.versions), records

    def teardown(self) -> None:
        for out in getattr(self, "opened", ()):
            out.abort()

    @rule(writer=consumes(writers))
    def commits(self, writer):
        if writer is None:
            return
        out, mode, base, records = writer
        late = len(self.versions) != base
        if (mode == "create" and self.versions) or (mode == "overwrite" and late):
            with pytest.raises(CommitConflictError):
                out.close()
            return
        out.close()
        assert out.version == len(self.versions) + 1
        old = self.versions[-1] if self.versions and mode == "append" else {}
        self.follow({split: old.get(split, []) + records.get(split, []) for split in {**old, **records}})

    @rule(writer=consumes(writers))
    def gives_up(self, writer):
        if writer is not None:
            writer[0].abort()

    @precondition(lambda self: self.versions)
    @rule(name=st.sampled_from(["one", "two"]), records=RECORDS)
    def runs_a_session(self, name, records):
        with contextlib.ExitStack() as stack:
            known = self.sessions[-1].get(name)
            if name in self.rolled_back or (known is not None and known != records):
                stack.enter_context(pytest.raises(CommitConflictError))
            out = shardio.DatasetWriter(self.url, mode="append", session=name)
            for split, values in records.items():
                for value in values:
                    out.write(value, split)
            out.close()
        if known is None and name not in self.rolled_back:
            old = self.versions[-1]
            self.follow(
                {split: old.get(split, []) + records.get(split, []) for split in {**old, **records}},
                {**self.sessions[-1], name: records},
            )

    @precondition(lambda self: self.versions)
    @rule(data=st.data(), late=st.booleans())
    def deletes(self, data, late):
        """Records of an earlier version or the latest, by position: the same records, or a refusal."""
        number = data.draw(st.integers(1, len(self.versions))) if late else len(self.versions)
        version = self.versions[number - 1]
        splits = sorted(split for split, values in version.items() if values)
        if number in self.expired or not splits:
            return
        split = data.draw(st.sampled_from(splits))
        chosen = data.draw(st.sets(st.integers(0, len(version[split]) - 1), min_size=1, max_size=3))
        # Which records are meant is known only where every record is another one.
        places = self.places(number, split)
        meant = [places[k] for k in chosen]
        now = {
            where: (name, k) for name in self.versions[-1] for k, where in enumerate(self.places(None, name))
        }
        if any(where not in now for where in meant):
            with pytest.raises(CommitConflictError):
                shardio.delete(self.url, sorted(chosen), split=split, version=number)
            return
        report = shardio.delete(self.url, sorted(chosen), split=split, version=number)
        assert (report.version, report.deleted) == (len(self.versions) + 1, len(chosen))
        gone = {now[where] for where in meant}
        self.follow(
            {
                name: [record for k, record in enumerate(values) if (name, k) not in gone]
                for name, values in self.versions[-1].items()
            }
        )

    def places(self, number, split):
        """Where the records of a split are, by shard and row."""
        ds = shardio.open(self.url, split, version=number)
        return [ds.locate(k)[1:3] for k in range(len(ds))]

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def restores(self, data):
        number = data.draw(st.integers(1, len(self.versions)))
        if number in self.expired:
            with pytest.raises(NotFoundError):
                shardio.restore(self.url, number)
            return
        report = shardio.restore(self.url, number)
        if report.version is None:
            assert self.versions[number - 1] == self.versions[-1]
            return
        assert report.version == len(self.versions) + 1
        merged = self.sessions[number - 1]
        self.rolled_back = (self.rolled_back | {*self.sessions[-1]}) - {*merged}
        self.follow(self.versions[number - 1], merged)

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def erases(self, data):
        """A record of the latest version; every earlier version expires."""
        splits = sorted(split for split, values in self.versions[-1].items() if values)
        if not splits:
            return
        split = data.draw(st.sampled_from(splits))
        values = self.versions[-1][split]
        k = data.draw(st.integers(0, len(values) - 1))
        report = shardio.erase(self.url, [k], split=split, drop_tags=True)
        assert report.version == len(self.versions) + 1
        assert {*report.expired_versions} == {*range(1, report.version)} - self.expired
        assert report.dropped_tags == self.tags
        self.tags.clear()
        self.expired |= {*report.expired_versions}
        left = values[:k] + values[k + 1 :]
        version = {**self.versions[-1], split: left}
        if split not in shardio.open(self.url, "all").splits:
            assert not left, "a split goes with its last shard"
            del version[split]
        self.follow(version)

    @precondition(lambda self: self.versions)
    @rule(shard_bytes=st.sampled_from([40, 1 << 20]), compression=st.sampled_from(["same", "zstd", None]))
    def compacts(self, shard_bytes, compression):
        report = shardio.compact(self.url, shard_bytes=shard_bytes, compression=compression, workers=1)
        if report.version is not None:
            assert report.version == len(self.versions) + 1
            gone = {split for split in self.versions[-1] if split not in shardio.open(self.url, "all").splits}
            assert all(not self.versions[-1][split] for split in gone)
            self.follow({k: v for k, v in self.versions[-1].items() if k not in gone})

    @precondition(lambda self: self.versions)
    @rule(data=st.data(), name=st.sampled_from(["v1", "paper"]), move=st.booleans())
    def tags_a_version(self, data, name, move):
        number = data.draw(st.integers(1, len(self.versions)))
        there = self.tags.get(name)
        if number in self.expired:
            with pytest.raises(NotFoundError):
                shardio.tag(self.url, name, number, move=move)
        elif there is not None and there != number and not move:
            with pytest.raises(CommitConflictError):
                shardio.tag(self.url, name, number)
        else:
            assert shardio.tag(self.url, name, number, move=move).number == number
            if there != number:
                self.tags[name] = number
                self.follow(self.versions[-1])

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def removes_a_tag(self, data):
        name = data.draw(st.sampled_from(sorted(self.tags)))
        assert shardio.untag(self.url, name) == self.tags.pop(name)
        self.follow(self.versions[-1])

    @precondition(lambda self: self.versions and self.versions[-1])
    @rule(data=st.data(), new=st.sampled_from([None, "c", "d"]))
    def changes_a_split(self, data, new):
        split = data.draw(st.sampled_from(sorted(self.versions[-1])))
        old = self.versions[-1]
        if new is None:
            shardio.remove_split(self.url, split)
        elif new in old:
            with refused(ValueError, "already"):
                shardio.rename_split(self.url, split, new)
            return
        else:
            shardio.rename_split(self.url, split, new)
        names = {name: new if name == split else name for name in old if name != split or new is not None}
        self.follow({names[name]: old[name] for name in names})

    @precondition(lambda self: len(self.versions) > 1)
    @rule(data=st.data())
    def collects(self, data):
        numbers = st.sets(st.integers(1, len(self.versions) - 1), max_size=3)
        expire = data.draw(numbers)
        if expire & {*self.tags.values()}:
            with pytest.raises(ValueError, match="has the tag"):
                shardio.gc(self.url, expire=expire)
            return
        doomed = shardio.gc(self.url, expire=expire)
        report = shardio.gc(self.url, expire=expire, dry_run=False)
        assert report.doomed == doomed.doomed
        if report.version is not None:
            self.follow(self.versions[-1])
        self.expired |= expire if report.version is not None else set()

    @invariant()
    def every_version_is_what_it_was(self):
        for number, version in enumerate(self.versions, 1):
            if number in self.expired:
                with pytest.raises(NotFoundError):
                    shardio.open(self.url, "all", version=number)
                continue
            whole = shardio.open(self.url, "all", version=number)
            assert dict(whole.splits) == {split: len(values) for split, values in version.items()}
            for split, values in version.items():
                assert list(shardio.open(self.url, split, version=number)) == values
        if self.versions:
            assert shardio.open(self.url, "all").version == len(self.versions)
            assert shardio.tags(self.url) == self.tags
            for name, number in self.tags.items():
                assert shardio.open(self.url, "all", version=name).version == number


Datasets.TestCase.settings = settings(
    max_examples=max(20, settings().max_examples // 10), stateful_step_count=15, deadline=None
)
test_datasets_are_what_a_model_says = Datasets.TestCase


class DatasetsInABucket(Datasets):
    place = "s3"


DatasetsInABucket.TestCase.settings = settings(
    Datasets.TestCase.settings, max_examples=max(4, settings().max_examples // 100), stateful_step_count=12
)
test_datasets_in_a_bucket_are_what_a_model_says = pytest.mark.slow(
    pytest.mark.usefixtures("s3")(DatasetsInABucket.TestCase)
)
