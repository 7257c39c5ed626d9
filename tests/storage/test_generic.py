"""Filesystems of which only fsspec's contract is known: read-only, or for a single writer."""

from __future__ import annotations

import pathlib
import zipfile

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from shardio.errors import StorageError
from shardio.storage import Store, connect
from tests.suites.store import CONTENT, StoreLaws, read_ranges


class Plain(LocalFileSystem):
    """Files on a disk that is not known as one; like a network drive of an unknown make."""

    protocol = ("plainfs",)
    local_file = False


fsspec.register_implementation("plainfs", Plain, clobber=True)


class TestSingleWriter(StoreLaws):
    start_method = None

    @pytest.fixture
    def store(self, tmp_path: pathlib.Path) -> Store:
        return connect(f"plainfs://{tmp_path}/root", single_writer=True)

    def test_of_racing_threads_one_wins(self, store: Store) -> None:
        """The law that such storage cannot keep, unless the caller states that it is the only writer."""
        assert [store.put_if_absent("race/v1", bytes([n])) for n in range(4)] == [True, False, False, False]


def test_without_the_callers_word_it_is_read_only(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    store = connect(f"plainfs://{tmp_path}")
    assert store.read_only_reason
    assert read_ranges(store, "a", [1], [9])[0] == CONTENT[1:9]
    with pytest.raises(StorageError, match="cannot be written"):
        store.put_if_absent("b", b"")


def test_a_writer_that_fails_leaves_no_half(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = connect(f"plainfs://{tmp_path}/root", single_writer=True)

    def fail(*_: object, **__: object) -> None:
        raise PermissionError("no moving here")

    monkeypatch.setattr(Plain, "mv", fail)
    with pytest.raises(StorageError):
        store.put_if_absent("a", b"1")
    assert list(store.list("")) == []
    assert list(store.list_temporaries()) == []


def test_temporaries_of_the_killed_are_listed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".shardio-tmp-1").write_bytes(b"half")
    store = connect(f"plainfs://{tmp_path}", single_writer=True)
    assert list(store.list("")) == []
    (left,) = store.list_temporaries()
    assert left.key == "data/.shardio-tmp-1"


def test_the_inside_of_an_archive_is_a_store(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("root/data/a", CONTENT)
        archive.writestr("root/b", b"22")
    store = connect(f"zip://root::file://{tmp_path}/x.zip")
    assert store.read_only_reason
    assert [(info.key, info.size) for info in store.list("")] == [("b", 2), ("data/a", len(CONTENT))]
    assert store.get("data/a", max_bytes=1 << 20) == CONTENT
    assert read_ranges(store, "data/a", [5], [99])[0] == CONTENT[5:99]
    assert store.url_of("b") == f"zip://root/b::file://{tmp_path}/x.zip"
    assert connect("simplecache::http://host/x").url_of("b") == "simplecache::http://host/x/b"
    assert connect("simplecache::zip://::/x.zip").url_of("b") == "simplecache::zip://b::/x.zip"
