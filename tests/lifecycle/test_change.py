"""One change is one commit: it follows what others commit meanwhile, or is refused; nothing half is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardio
from shardio.catalog import Catalog, Version, commit_change
from shardio.errors import CommitConflictError, StorageError
from shardio.storage import connect
from tests.promises.places import PLACES, fresh


@pytest.fixture(params=PLACES)
def url(request, tmp_path) -> str:
    url = fresh(request.param, tmp_path)
    append(url, b"first", session="named")
    append(url, b"second")
    return url


def append(url: str, record: bytes, **options) -> None:
    with shardio.DatasetWriter(url, mode="append", **options) as out:
        out.write(record)


def catalog_of(url: str) -> tuple[Catalog, Version]:
    catalog = Catalog(connect(url))
    version = catalog.latest()
    assert version is not None
    return catalog, version


def with_note(base: Version, _lists):
    return replace(base.manifest, metadata={**base.manifest.metadata, "note": base.number})


def test_a_change_is_the_next_version(url):
    catalog, latest = catalog_of(url)
    changed = commit_change(catalog, with_note, operation="note", seen=latest)
    assert (changed.number, changed.manifest.operation) == (3, "note")
    ds = shardio.open(url)
    assert (list(ds), dict(ds.metadata)) == ([b"first", b"second"], {"note": 2})
    # The writer's own sessions are remembered, random ones are not.
    assert [session.session for session in changed.manifest.sessions] == ["named"]


def test_a_lost_race_is_computed_anew(url):
    catalog, latest = catalog_of(url)
    seen = []

    def build(base, lists):
        if not seen:
            append(url, b"third")
        seen.append(base.number)
        return with_note(base, lists)

    assert commit_change(catalog, build, operation="note", seen=latest).number == 4
    assert seen == [2, 3]
    ds = shardio.open(url)
    assert (list(ds), dict(ds.metadata)) == ([b"first", b"second", b"third"], {"note": 3})


def test_a_change_that_no_longer_applies_commits_nothing(url):
    catalog, latest = catalog_of(url)

    def build(base, _lists):
        if base.number == 2:
            append(url, b"third")
            return base.manifest
        raise CommitConflictError("no longer")

    with pytest.raises(CommitConflictError):
        commit_change(catalog, build, operation="note", seen=latest)
    assert shardio.open(url).version == 3


def test_nothing_to_do_is_the_latest_version(url):
    catalog, latest = catalog_of(url)
    assert commit_change(catalog, lambda _base, _lists: None, operation="note", seen=latest).number == 2
    assert shardio.open(url).version == 2


def test_what_garbage_collection_doomed_is_not_doomed_again(url):
    append(url, b"third")
    shardio.gc(url, expire=[1, 2], dry_run=False)
    catalog, latest = catalog_of(url)
    changed = commit_change(catalog, with_note, operation="note", seen=latest)
    assert latest.manifest.expiry.doomed_keys
    assert changed.manifest.expiry.doomed_keys == ()
    assert changed.manifest.expiry.expired_versions == (1, 2)


def test_lists_are_kept_where_nothing_changes_and_stored_once_where_it_does(url):
    catalog, latest = catalog_of(url)

    def build(base, lists):
        kept, table = lists.edit(catalog, base.manifest.lists, lambda old: old)
        assert kept == base.manifest.lists
        assert list(table.key) == list(catalog.table(base).key)
        if base.number == 2:
            append(url, b"third")
        refs, table = lists.edit(catalog, base.manifest.lists, lambda old: old.take(range(len(old))))
        return replace(base.manifest, lists=refs)

    changed = commit_change(catalog, build, operation="note", seen=latest)
    assert list(shardio.open(url)) == [b"first", b"second", b"third"]
    assert len(catalog.table(changed)) == 3


def test_a_place_that_cannot_be_written_is_refused_before_anything(url, monkeypatch):
    catalog, latest = catalog_of(url)
    monkeypatch.setattr(type(catalog.store), "read_only_reason", "said the test")
    with pytest.raises(StorageError):
        commit_change(catalog, with_note, operation="note", seen=latest)
