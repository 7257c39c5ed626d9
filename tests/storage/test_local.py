"""Local folders: the laws, and what only a disk can do to us."""

from __future__ import annotations

import errno
import os
import pathlib
import pickle
import stat
import sys
from typing import TYPE_CHECKING

import pytest

from shardio.errors import NotFoundError, StorageError
from shardio.storage import (
    LocalStore,
    ShortReadError,
    Store,
    UnknownOutcomeError,
    _create as creation,
    connect,
    linked_folders,
)
from tests.suites.descriptors import open_in
from tests.suites.errors import refused
from tests.suites.store import CONTENT, StoreLaws

if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[..., tuple[int, int]]


class TestLocal(StoreLaws):
    start_method = "fork"
    processes = 16

    @pytest.fixture
    def store(self, tmp_path: pathlib.Path) -> Store:
        return connect(tmp_path / "root")


@pytest.mark.slow
class TestWithoutLinks(StoreLaws):
    """A filesystem without hard links, such as exFAT or many FUSE mounts: rename without replacing."""

    start_method = "fork"
    processes = 16

    @pytest.fixture
    def store(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setattr(os, "link", refuse(errno.EPERM))
        return connect(tmp_path / "root")


def refuse(number: int):
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture
def store(tmp_path: pathlib.Path) -> LocalStore:
    found = connect(tmp_path)
    assert isinstance(found, LocalStore)
    return found


def files(store: LocalStore) -> list[str]:
    return sorted(os.listdir(store.url))


def test_connect_touches_nothing(tmp_path: pathlib.Path) -> None:
    for url in (tmp_path / "x", f"file://{tmp_path}/x/", f"{tmp_path}/y/../x"):
        assert connect(url).url == str(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_without_links_and_renames_only_a_single_writer_may_write(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    monkeypatch.setattr(creation, "_exclusive_rename", lambda: None)
    with refused(StorageError, "single_writer="):
        store.put_if_absent("a", b"1")
    assert files(store) == []
    alone = connect(store.url, single_writer=True)
    assert pickle.loads(pickle.dumps(alone)).put_if_absent("a", b"1")
    assert not alone.put_if_absent("a", b"2")
    assert alone.get("a", max_bytes=9) == b"1"


def test_a_lost_reply_of_link_is_found_out_by_the_link_count(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS: the first `link` took effect, its reply was lost, the repeated one says EEXIST."""
    link = os.link

    def lossy(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "exists")

    monkeypatch.setattr(os, "link", lossy)
    assert store.put_if_absent("a", b"1") is True
    assert files(store) == ["a"]


def test_an_outcome_that_cannot_be_told_is_unknown(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = os.stat
    monkeypatch.setattr(os, "link", refuse(errno.EIO))
    seen: list[str] = []

    def once(path: str) -> os.stat_result:
        if ".shardio-tmp-" in str(path):
            if seen:
                raise OSError(errno.ESTALE, "stale handle")
            seen.append(path)
        return stats(path)

    monkeypatch.setattr("shardio.storage._create.os.stat", once)
    with pytest.raises(UnknownOutcomeError):
        store.put_if_absent("a", b"1")


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_several_objects_are_there_though_an_outcome_was_unknown(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, failing: int, before: bool
) -> None:
    real, calls = creation._publish, []

    def publish(temporary: str, target: str, *, single_writer: bool) -> bool:
        calls.append(target)
        if len(calls) != failing:
            return real(temporary, target, single_writer=single_writer)
        if not before:
            real(temporary, target, single_writer=single_writer)
        raise UnknownOutcomeError("no answer came back")

    monkeypatch.setattr(creation, "_publish", publish)
    spool = tmp_path / "spool"
    spool.write_bytes(CONTENT)
    assert store.put_idempotent(("shard", spool), ("index", b"index"))
    assert store.get("shard", max_bytes=len(CONTENT)) == CONTENT
    assert store.get("index", max_bytes=5) == b"index"
    assert list(store.list_temporaries()) == []
    assert not store.put_idempotent(("shard", b"other"), ("third", b"3"))


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_a_failed_write_leaves_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, call: str, tmp_path: pathlib.Path
) -> None:
    if call == "write":
        monkeypatch.setattr("shardio.storage._create.shutil.copyfileobj", refuse(errno.ENOSPC))
    else:
        monkeypatch.setattr(f"shardio.storage._create.os.{call}", refuse(errno.ENOSPC))
    spool = tmp_path / "spool"
    spool.write_bytes(CONTENT)
    with pytest.raises(StorageError, match="free some space"):
        store.put_if_absent("a", spool)
    assert files(store) == ["spool"]


@pytest.mark.parametrize("refused", [b"first", b"second", b"third"])
def test_no_file_has_its_name_before_all_are_flushed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, refused: bytes
) -> None:
    fsync = os.fsync

    def refuse_content(number: int) -> None:
        # A folder cannot be read.
        if stat.S_ISREG(os.fstat(number).st_mode) and os.pread(number, 9, 0) == refused:
            raise OSError(errno.EIO, "made to fail")
        fsync(number)

    monkeypatch.setattr(os, "fsync", refuse_content)
    with pytest.raises(StorageError, match="made to fail"):
        store.put_idempotent(("a", b"first"), ("b", b"second"), ("c", b"third"))
    assert files(store) == []


def test_a_move_across_devices_copies(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(creation, "_adopt", lambda *_: False)
    spool = tmp_path / "spool"
    spool.write_bytes(CONTENT)
    assert store.put_if_absent("a", spool, move=True)
    assert files(store) == ["a"]
    assert store.get("a", max_bytes=1 << 20) == CONTENT


def test_a_moved_spool_has_the_rights_of_a_new_file(store: LocalStore, tmp_path: pathlib.Path) -> None:
    spool = tmp_path / "spool"
    spool.write_bytes(b"x")
    spool.chmod(0o600)
    store.put_if_absent("moved", spool, move=True)
    store.put_if_absent("written", b"x")
    assert stat.S_IMODE(os.stat(tmp_path / "moved").st_mode) == stat.S_IMODE(
        os.stat(tmp_path / "written").st_mode
    )


def test_a_move_that_lost_leaves_the_spool(store: LocalStore, tmp_path: pathlib.Path) -> None:
    spool = tmp_path / "spool"
    spool.write_bytes(b"x")
    store.put_if_absent("a", b"first")
    assert not store.put_if_absent("a", spool, move=True)
    assert spool.exists()


def test_a_relative_path_where_the_current_folder_is_gone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(NotFoundError):
        connect("birds")
    assert connect(str(tmp_path)).url == str(tmp_path)


def test_a_dangling_link_occupies_its_name(store: LocalStore, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").symlink_to("nowhere")
    assert not store.put_if_absent("a", b"1")
    assert store.head("a") is None


def test_temporaries_of_the_killed_are_listed(store: LocalStore, tmp_path: pathlib.Path) -> None:
    store.put_if_absent("data/a", b"1")
    (tmp_path / "data" / ".shardio-tmp-0123").write_bytes(b"half")
    assert [info.key for info in store.list("")] == ["data/a"]
    (left,) = store.list_temporaries()
    assert (left.key, left.size) == ("data/.shardio-tmp-0123", 4)


def test_a_file_truncated_after_opening_is_a_short_read(store: LocalStore, tmp_path: pathlib.Path) -> None:
    store.put_if_absent("a", CONTENT)
    with store.open("a") as file:
        os.truncate(tmp_path / "a", 100)
        assert bytes(file.read(0, 100)) == CONTENT[:100]
        with pytest.raises(ShortReadError) as caught:
            file.read(90, 110)
        assert (caught.value.expected, caught.value.found) == (20, 10)


def test_a_length_out_of_the_blue_allocates_nothing(store: LocalStore) -> None:
    store.put_if_absent("a", CONTENT)
    with store.open("a") as file, pytest.raises(ShortReadError):
        file.read(0, 2**62)


def test_a_pipe_is_not_waited_for(store: LocalStore, tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotFoundError):
        store.open("pipe")
    assert list(store.list("")) == []


def test_listing_follows_links_to_folders_only_where_asked_and_no_circle(
    store: LocalStore, tmp_path: pathlib.Path
) -> None:
    store = LocalStore(str(tmp_path / "root"))
    store.put_if_absent("a/file", b"1")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "other").write_bytes(b"2")
    (elsewhere / ".shardio-tmp-0").write_bytes(b"3")
    (tmp_path / "root" / "a" / "up").symlink_to("..")
    (tmp_path / "root" / "a" / "linked").symlink_to(elsewhere)
    (tmp_path / "root" / "a" / "one").symlink_to(elsewhere / "deep" / "other")
    assert [info.key for info in store.list("")] == ["a/file", "a/one"]
    assert [info.key for info in store.list("a/linked/")] == []
    assert [info.key for info in store.list("a/linked/de")] == []
    assert [info.key for info in store.list("", linked=True)] == ["a/file", "a/linked/deep/other", "a/one"]
    assert list(store.list_temporaries()) == []
    assert linked_folders(store, "a/") == ("a/linked", "a/up")
    assert linked_folders(store, "a/linked/") == ("a/linked",)
    # What is removed is the link, never what it leads to.
    assert store.delete("a/one")
    assert (elsewhere / "deep" / "other").exists()
    with pytest.raises(StorageError, match="behind a link"):
        store.delete("a/linked/deep/other")
    assert (elsewhere / "deep" / "other").exists()


def test_a_map_outlives_its_file(store: LocalStore) -> None:
    store.put_if_absent("a", CONTENT)
    store.put_if_absent("empty", b"")
    with store.open("a", stable=True) as file:
        view = file.map()
    store.delete("a")
    assert view is not None
    assert bytes(view) == CONTENT
    with pytest.raises(TypeError):
        view[0] = 1
    with store.open("empty", stable=True) as file:
        assert file.map() == b""


def test_ctrl_c_while_a_file_is_destroyed_leaves_no_descriptor(
    store: LocalStore, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_if_absent("k", CONTENT)
    file = store.open("k")
    assert len(open_in(tmp_path)) == 1

    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_type))
    with monkeypatch.context() as patch:
        patch.setattr(type(file), "close", interrupted)
        del file
    assert told == [KeyboardInterrupt]
    assert not open_in(tmp_path)


def test_reading_after_close_is_the_callers_mistake(store: LocalStore) -> None:
    store.put_if_absent("a", CONTENT)
    file = store.open("a")
    file.close()
    with refused(ValueError, "closed"):
        file.read(0, 1)


def test_no_permission_is_explained(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_if_absent("a", b"1")
    monkeypatch.setattr("shardio.storage._local.os.open", refuse(errno.EACCES))
    with refused(StorageError, "permissions") as caught:
        store.get("a", max_bytes=1)
    assert caught.value.url == store.url_of("a")
