"""Local folders: the laws, and what only a disk can do to us."""

from __future__ import annotations

import concurrent.futures
import ctypes
import errno
import mmap
import multiprocessing
import os
import pathlib
import pickle
import resource
import stat
import struct
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from crc32c import crc32c

from shardio.errors import NotFoundError, StorageError
from shardio.storage import (
    LocalStore,
    ShortReadError,
    Store,
    UnknownOutcomeError,
    _create as creation,
    _local as local,
    advise_need,
    connect,
    linked_folders,
)
from tests.independent_reader import masked
from tests.suites.descriptors import open_in
from tests.suites.store import CONTENT, StoreLaws, put_from_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Read = Callable[..., tuple[int, int]]

BYTES = bytes(range(256)) * 7
# What reads past maps, where it was compiled.
COMPILED = [local._pread] if local.READS_COMPILED else []


class TestLocal(StoreLaws):
    start_method = "fork"
    processes = 16

    @pytest.fixture
    def store(self, tmp_path: pathlib.Path) -> Store:
        return connect(tmp_path / "root")


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
    with pytest.raises(StorageError, match="single_writer=True"):
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


class Flushes:
    """Counts flushes of files, and fails that of any whose content begins as is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: list[bytes] = []
        self.refused = b"nothing"
        self._flush = creation._sync_file
        monkeypatch.setattr(creation, "_sync_file", self)

    def __call__(self, path: str) -> None:
        content = pathlib.Path(path).read_bytes()
        self.contents.append(content)
        if content.startswith(self.refused):
            raise OSError(errno.EIO, "made to fail")
        self._flush(path)


@pytest.mark.parametrize("refused", [b"first", b"second", b"third"])
def test_no_file_has_its_name_before_all_are_flushed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, refused: bytes
) -> None:
    """Flushed side by side, each of them; one that fails leaves none behind."""
    flushes = Flushes(monkeypatch)
    flushes.refused = refused
    objects = [("a", b"first"), ("b", b"second"), ("c", b"third")]
    with pytest.raises(StorageError, match="made to fail"):
        store.put_idempotent(*objects)
    assert files(store) == []
    assert sorted(flushes.contents) == [b"first", b"second", b"third"]


def test_what_is_written_ahead_is_flushed_once_and_before_it_has_its_name(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = Flushes(monkeypatch)
    with store.stage("a", b"ahead") as ready:
        assert store.put_idempotent(("a", ready))
    assert flushes.contents == [b"ahead"]
    flushes.refused = b"lost"
    with store.stage("b", b"lost") as ready, pytest.raises(StorageError, match="made to fail"):
        store.put_idempotent(("b", ready))
    with store.stage("c", b"lost"):
        pass  # never wanted, so nothing is raised
    assert files(store) == ["a"]


def test_files_are_flushed_where_no_thread_can_be_started(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_to_start(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    flushes = Flushes(monkeypatch)
    monkeypatch.setattr("threading.Thread.start", refuse_to_start)
    with store.stage("c", b"third") as ready:
        assert store.put_idempotent(("a", b"first"), ("b", b"second"), ("c", ready))
    assert sorted(flushes.contents) == [b"first", b"second", b"third"]
    assert files(store) == ["a", "b", "c"]


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
    with pytest.raises(NotFoundError, match=r"the current folder is gone.*\(birds\); .* give the whole path"):
        connect("birds")
    assert connect(str(tmp_path)).url == str(tmp_path)


def test_a_dangling_link_occupies_its_name(store: LocalStore, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").symlink_to("nowhere")
    assert not store.put_if_absent("a", b"1")
    assert store.head("a") is None


def test_temporaries_of_the_killed_are_listed_and_removed(store: LocalStore, tmp_path: pathlib.Path) -> None:
    store.put_if_absent("data/a", b"1")
    (tmp_path / "data" / ".shardio-tmp-0123").write_bytes(b"half")
    assert [info.key for info in store.list("")] == ["data/a"]
    (left,) = store.list_temporaries()
    assert (left.key, left.size) == ("data/.shardio-tmp-0123", 4)
    assert store.delete_temporary(left)
    assert not store.delete_temporary(left)
    with pytest.raises(ValueError, match="not a temporary"):
        store.delete_temporary(next(store.list("")))


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


def frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + masked(crc32c(length)) + payload + masked(crc32c(payload))


class Shards(NamedTuple):
    numbers: NDArray[np.int32]
    frames: NDArray[np.int64]
    payloads: list[bytes]
    folder: pathlib.Path


def test_where_nothing_was_compiled_maps_are_what_there_is(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_bytes(BYTES)
    with LocalStore(str(tmp_path)).open("file", stable=True) as file:
        assert (file.named is not None) == local.READS_COMPILED
        monkeypatch.setattr(local, "READS_COMPILED", False)
        assert file.named is None
        assert not file.read_into([0], [3], memoryview(bytearray(3)))
        assert file.map() == BYTES


class TestReadRanges:
    """Reads by position against slices of what is there."""

    @pytest.fixture(params=COMPILED)
    def read(self, request: pytest.FixtureRequest) -> Read:
        return request.param.read_ranges

    @pytest.fixture
    def number(self, tmp_path: pathlib.Path) -> Iterator[int]:
        (tmp_path / "file").write_bytes(BYTES)
        number = os.open(tmp_path / "file", os.O_RDONLY)
        yield number
        os.close(number)

    @pytest.mark.parametrize("seed", range(20))
    def test_what_comes_is_what_lies_there(self, read: Read, number: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        ranges = np.sort(rng.integers(0, len(BYTES) + 1, (int(rng.integers(0, 30)), 2)), axis=1)
        wanted = b"".join(BYTES[start:stop] for start, stop in ranges)
        out = bytearray(b"?" * (len(wanted) + 7))
        numbers = np.full(len(ranges), number, np.int32)
        assert read(numbers, ranges[:, 0], ranges[:, 1], memoryview(out)) == (len(wanted), 0)
        assert out == wanted + b"?" * 7

    def test_the_end_of_the_file_ends_it(self, read: Read, number: int) -> None:
        starts = np.array([0, len(BYTES) - 5, 0])
        out = bytearray(30)
        assert read(np.full(3, number, np.int32), starts, starts + 10, memoryview(out)) == (15, 0)
        assert out[:15] == BYTES[:10] + BYTES[-5:]

    def test_what_cannot_be_is_refused(self, read: Read, number: int) -> None:
        out = memoryview(bytearray(10))
        for starts, stops in [([0], [11]), ([0, 5], [5, 11]), ([5], [4]), ([0, 9], [9, 8]), ([-1], [1])]:
            with pytest.raises(ValueError, match="10 bytes must hold them all"):
                read(np.full(len(starts), number, np.int32), np.array(starts), np.array(stops), out)
        numbers = np.array([number, 1 << 20], np.int32)
        assert read(numbers, np.array([0, 0]), np.array([3, 3]), out) == (3, errno.EBADF)


@pytest.mark.parametrize("compiled", COMPILED)
def test_what_the_system_lacks_is_asked_for(compiled: Any, tmp_path: pathlib.Path) -> None:
    """Also where it has most of it. What came may be gone again, so each range has to have come once."""
    page, ranges = mmap.PAGESIZE, 1000
    (tmp_path / "file").write_bytes(os.urandom(8 * ranges * page))
    calls = ctypes.CDLL(None, use_errno=True)
    with (tmp_path / "file").open("rb") as file:
        os.fdatasync(file.fileno())  # pages that are not on the disk are kept
        view = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        present = np.zeros(8 * ranges, np.uint8)

        def has() -> NDArray[np.bool_]:
            address = ctypes.c_void_p(view.ctypes.data)
            assert (
                calls.mincore(address, ctypes.c_size_t(view.size), ctypes.c_void_p(present.ctypes.data)) == 0
            )
            return (present.reshape(ranges, 8)[:, :2] & 1 == 1).all(axis=1)

        # A file system in memory has them whatever it is told.
        os.posix_fadvise(file.fileno(), 6 * ranges * page, 2 * ranges * page, os.POSIX_FADV_DONTNEED)
        starts = np.arange(ranges) * 8 * page
        deadline, came = time.monotonic() + 60, has()
        while not came.all():
            assert time.monotonic() < deadline, np.flatnonzero(~came)
            compiled.advise_ranges(np.full(ranges, file.fileno(), np.int32), starts, starts + 2 * page)
            came |= has()


class TestReadFrames:
    """Frames against the payloads that they were made of."""

    @pytest.fixture(params=COMPILED)
    def read(self, request: pytest.FixtureRequest) -> Callable[..., tuple[NDArray[np.bool_], int, int, int]]:
        return request.param.read_frames

    @pytest.fixture(params=COMPILED)
    def read_records(self, request: pytest.FixtureRequest) -> Callable[..., tuple[Any, ...]]:
        return request.param.read_records

    @pytest.fixture
    def shards(self, tmp_path: pathlib.Path) -> Iterator[Shards]:
        """Two files of frames, the payloads and table of both in an order of their own."""
        rng = np.random.default_rng(5)
        payloads, rows, numbers = [], [], []
        for file in range(2):
            content = bytearray(b"?" * 7)
            for size in (0, 1, 300, 20_000, 8192, 5):
                payload = rng.bytes(size)
                rows.append((file, len(content), size, *struct.unpack("<I", masked(crc32c(payload)))))
                payloads.append(payload)
                content += frame(payload)
            (tmp_path / str(file)).write_bytes(content)
            numbers.append(os.open(tmp_path / str(file), os.O_RDONLY))
        order = rng.permutation(len(rows))
        yield Shards(
            np.array(numbers, np.int32), np.array(rows)[order], [payloads[k] for k in order], tmp_path
        )
        for number in numbers:
            os.close(number)

    def test_payloads_come_one_after_another(self, read, shards: Shards) -> None:
        out = np.zeros(sum(map(len, shards.payloads)), np.uint8)
        right, count, _, code = read(shards.numbers, shards.frames, out)
        assert right.all()
        assert (len(right), count, code) == (len(shards.frames), len(shards.frames), 0)
        assert out.tobytes() == b"".join(shards.payloads)
        nothing = read(shards.numbers, np.zeros((0, 4), np.int64), np.zeros(0, np.uint8))
        assert nothing[1:] == (0, 0, 0)

    @pytest.mark.parametrize("place", [0, 7, 8, 11, 12, 4000, 12 + 8192, 15 + 8192])
    def test_any_byte_that_is_changed_is_found(self, read, shards: Shards, place: int) -> None:
        at = int(np.flatnonzero(shards.frames[:, 2] == 8192)[0])
        file, start = shards.frames[at, :2].tolist()
        content = bytearray((shards.folder / str(file)).read_bytes())
        content[start + place] ^= 16
        (shards.folder / str(file)).write_bytes(content)
        out = np.zeros(sum(map(len, shards.payloads)), np.uint8)
        right, count, _, code = read(shards.numbers, shards.frames, out)
        assert np.flatnonzero(~right).tolist() == [at]
        assert (count, code) == (len(shards.frames), 0)
        shards.frames[at, 3] = -1  # nothing is to be compared
        assert read(shards.numbers, shards.frames, out)[0].all()

    def test_records_are_the_payloads(self, read_records, shards: Shards) -> None:
        shards.frames[4, 3] ^= 1
        records, right, count, _, code = read_records(shards.numbers, shards.frames)
        # The place of a frame that is not right may hold anything.
        assert records[:4] + records[5:] == shards.payloads[:4] + shards.payloads[5:]
        assert np.flatnonzero(~right).tolist() == [4]
        assert (count, code) == (len(records), 0)
        assert read_records(shards.numbers, np.zeros((0, 4), np.int64))[0] == []
        os.truncate(shards.folder / "1", 3)
        first = int(np.argmax(shards.frames[:, 0] == 1))
        assert read_records(shards.numbers, shards.frames)[2:] == (first, 0, 0)
        with pytest.raises(ValueError, match="frame 0 needs"):
            read_records(shards.numbers, np.array([(0, 7, -1, -1)]))

    def test_a_frame_that_is_right_but_another_one_is_found(self, read, shards: Shards) -> None:
        """An index says which payload it means, not only how long that is."""
        out = np.zeros(sum(map(len, shards.payloads)), np.uint8)
        shards.frames[3, 3] ^= 1
        assert np.flatnonzero(~read(shards.numbers, shards.frames, out)[0]).tolist() == [3]

    @pytest.mark.parametrize("left", [0, 5, 12, 4000, 12 + 20_000 + 3])
    def test_the_end_of_a_file_ends_it(self, read, shards: Shards, left: int) -> None:
        at = int(np.flatnonzero(shards.frames[:, 2] == 20_000)[0])
        file, start = shards.frames[at, :2].tolist()
        os.truncate(shards.folder / str(file), start + left)
        out = np.zeros(sum(map(len, shards.payloads[: at + 1])), np.uint8)
        first = np.array([row for row in shards.frames[:at] if row[0] != file or row[1] < start])
        frames = np.concatenate([first.reshape(-1, 4), shards.frames[at : at + 1]])
        assert read(shards.numbers, frames, out[: int(frames[:, 2].sum())])[1:] == (len(frames) - 1, left, 0)

    def test_what_cannot_be_is_refused(self, read, shards: Shards) -> None:
        out = np.zeros(300, np.uint8)
        for row in [(2, 7, 300, -1), (-1, 7, 300, -1), (0, -1, 300, -1), (0, 7, -1, -1), (0, 7, 301, -1)]:
            with pytest.raises(ValueError, match=r"needs a file|300 bytes"):
                read(shards.numbers, np.array([row]), out)
        with pytest.raises(ValueError, match="300 bytes"):
            read(shards.numbers, np.array([(0, 7, 0, -1)]), out)
        closed = np.array([1 << 20], np.int32)
        assert read(closed, np.array([(0, 7, 300, -1)]), out)[1:] == (0, 0, errno.EBADF)


@pytest.mark.parametrize("compiled", COMPILED)
def test_files_are_opened_together_and_known_by_their_inodes(compiled: Any, tmp_path: pathlib.Path) -> None:
    opened, closed = compiled.open_files, compiled.close_files
    paths = [tmp_path / name for name in ("a", "b c", "\u00e9")]
    for path in paths:
        path.write_bytes(path.name.encode())
    names = [os.fsencode(path) for path in paths]
    numbers, known, code = opened(names, os.O_RDONLY | os.O_CLOEXEC)
    assert not code
    assert [os.pread(number, 9, 0) for number in numbers] == [path.name.encode() for path in paths]
    assert known.tolist() == [[path.stat().st_dev, path.stat().st_ino] for path in paths]
    assert not any(os.get_inheritable(number) for number in numbers)
    closed(np.array([-1, *numbers], np.int32))
    for number in numbers:
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(number)
    paths[1].unlink()
    numbers, _, code = opened(names, os.O_RDONLY)
    assert (code, numbers[1:].tolist()) == (errno.ENOENT, [-1, -1])
    closed(numbers)
    numbers, known, code = opened([], os.O_RDONLY)
    assert (numbers.size, known.shape, code) == (0, (0, 2), 0)


def test_a_file_that_was_cut_says_which_bytes_are_missing(store: LocalStore) -> None:
    store.put_if_absent("a", BYTES)
    starts = np.array([0, len(BYTES) - 5, 7])
    with store.open("a", stable=True) as file:
        out = memoryview(bytearray(20))
        stops = starts + np.array([10, 5, 5])
        assert file.read_into(starts, stops, out)
        assert out == BYTES[:10] + BYTES[-5:] + BYTES[7:12]
        os.truncate(file.url, len(BYTES) - 2)
        with pytest.raises(ShortReadError) as caught:
            file.read_into(starts, stops, out)
    found = caught.value
    assert (found.start, found.stop, found.expected, found.found) == (len(BYTES) - 5, len(BYTES), 5, 3)


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
    with pytest.raises(ValueError, match="closed"):
        file.read(0, 1)


def test_no_permission_is_explained(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_if_absent("a", b"1")
    monkeypatch.setattr("shardio.storage._local.os.open", refuse(errno.EACCES))
    with pytest.raises(StorageError, match="permissions") as caught:
        store.get("a", max_bytes=1)
    assert caught.value.url == store.url_of("a")


def test_many_racers_for_many_names(store: LocalStore) -> None:
    """P3: of 16 processes that race for a version, one wins, every time."""
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(16, mp_context=context) as pool:
        jobs = [
            pool.submit(put_from_process, pickle.dumps(store), f"v{k}", bytes([n]))
            for k in range(20)
            for n in range(16)
        ]
        won = [job.result() for job in jobs]
    assert [won[k * 16 : k * 16 + 16].count(True) for k in range(20)] == [1] * 20


def test_pages_of_new_memory_come_at_once() -> None:
    size = 4 << 20
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if not advise_need(memoryview(memory), 0, size):
        return  # a system without the call: pages come when they are touched
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.frombuffer(memory, np.uint8)[:] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < size // mmap.PAGESIZE // 2
