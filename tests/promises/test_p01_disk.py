"""P1, P2 on a disk: what is flushed before what, and permissions and space that run out."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shardio
from shardio.catalog import Catalog
from shardio.errors import CommitOutcomeUnknownError, StorageError
from shardio.metadata import naming
from shardio.storage import NotDurableError, connect
from tests.promises.deeds import BASE, beginnings, records, seen, write
from tests.promises.disk import FailingDisk
from tests.promises.places import copied
from tests.promises.test_p11_full_disk import may_mount
from tests.suites.processes import answer_of_child


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    root = beginnings(tmp_path_factory.mktemp("begun"))
    assert seen(str(root)) == BASE
    return root


def test_a_folder_that_cannot_be_flushed_is_no_success(begun, tmp_path):
    """P2: what a crash may undo is not acknowledged, and is not called a failure either."""

    def flushes(url: str, disk: FailingDisk) -> list[str]:
        """Return the folders that were flushed, from the dataset's on."""
        found = [call.removeprefix("fsync ") for call in disk.calls if call.startswith("fsync ")]
        return [os.path.relpath(tmp_path / each, url) for each in found if "shardio-tmp" not in each]

    calls = FailingDisk(tmp_path)
    url = copied(begun, "local", tmp_path)
    with calls():
        write(url, "append", 300, 4)
    folders = flushes(url, calls)
    assert {".", "..", "data", "_shardio", "_shardio/lists", "_shardio/manifests"} == set(folders)
    outcomes = set()
    for folder, number in {(each, k) for each in folders for k in range(folders.count(each))}:
        url = copied(begun, "local", tmp_path)
        name = f"fsync {os.path.relpath(Path(url) / folder, tmp_path)}"
        disk = FailingDisk(tmp_path, (name, number))
        outcome = "acknowledged"
        with disk():
            try:
                write(url, "append", 300, 4)
            except CommitOutcomeUnknownError:
                outcome = "unknown"
            except StorageError:
                outcome = "failed"
        if not disk.failed:
            continue  # threads that store shards may have flushed a folder for each other
        outcomes.add(outcome)
        at = [k for k, call in enumerate(disk.calls) if call == name][number]
        flushed = any(call.startswith("fsync") and call.endswith("manifests") for call in disk.calls[:at])
        # Once the manifest is flushed, the hint may be lost and nothing else.
        assert (outcome == "acknowledged") == flushed, disk.failed
        assert (outcome == "unknown") == (folder == "_shardio/manifests"), disk.failed
    assert {"unknown", "failed"} <= outcomes


def test_the_names_of_the_root_and_of_new_folders_are_flushed(tmp_path):
    """P2: a dataset whose folder's own name is lost in a crash is lost."""
    (tmp_path / "there").mkdir()
    for parts in (("new",), ("a", "b", "new"), ("there",)):
        disk = FailingDisk(tmp_path)
        url = tmp_path.joinpath(*parts)
        with disk():
            write(str(url), "create", 0, 3)
        flushed = {call.removeprefix("fsync ") for call in disk.calls if call.startswith("fsync ")}
        above = [
            os.path.relpath(folder, tmp_path)
            for folder in url.parents
            if tmp_path in (folder, *folder.parents)
        ]
        below = [
            os.path.relpath(url / key, tmp_path) for key in (".", "_shardio", "data", "_shardio/manifests")
        ]
        assert {*above, *below} <= flushed


def test_what_comes_after_what_on_the_disk(tmp_path):
    """P1, P2: bytes are flushed before they get a name, names of shard and index before the receipt has its
    own, that of the receipt before the manifest's; and no more is flushed than that takes.
    """
    url = str(tmp_path / "ds")
    # The first makes folders, and the second sees that there are more of them.
    for number in range(2):
        with shardio.DatasetWriter(url, session="run7", task=number, commit=False) as out:
            out.write(b"wren")
    task, commit = FailingDisk(tmp_path / "ds"), FailingDisk(tmp_path / "ds")
    with task(), shardio.DatasetWriter(url, session="run7", task=2, commit=False) as out:
        out.write(b"robin")
    with commit():
        shardio.commit(url, session="run7", tasks=3)

    def steps(calls: list[str]) -> list[str]:
        found = [call.partition("/.shardio-tmp-")[0] for call in calls]
        return [call for call in found if call.startswith(("fsync", "link"))]

    data, receipts = "data", "_shardio/sessions/run7"
    # The bytes of the receipt are flushed beside those of the shard, at any time before it gets its name.
    found = steps(task.calls)
    early = found.index(f"fsync {receipts}")
    assert early < found.index(f"link {receipts}")
    assert found[:early] + found[early + 1 :] == [
        *(f"fsync {data}", f"fsync {data}", f"link {data}", f"link {data}", f"fsync {data}"),
        *(f"link {receipts}", f"fsync {receipts}"),
    ]
    version = [step for step in steps(commit.calls) if step.endswith("/manifests")]
    assert version[-3:] == [f"{verb} _shardio/manifests" for verb in ("fsync", "link", "fsync")]
    assert seen(url)["train"] == [b"wren", b"wren", b"robin"]


def test_a_folder_made_anew_is_flushed_again(tmp_path):
    """P2: what this process remembers of a folder is not believed of another one of that name."""
    url = tmp_path / "ds"
    for made_by_hand in (False, True):
        if made_by_hand:
            shutil.rmtree(url)
            url.mkdir()
        disk = FailingDisk(tmp_path)
        with disk():
            write(str(url), "create", 0, 3)
        assert "fsync ." in disk.calls


def as_somebody(code: str, url: str) -> str:
    """Run code as a user that permissions bind; return what it prints."""

    def work() -> bytes:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(code, {"shardio": shardio, "os": os, "url": url})
        return said.getvalue().encode()

    return answer_of_child(work).decode()


APPEND = """
try:
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"wren", "a")
        LOSE
except BaseException as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def open_to_all(tmp_path, begun) -> str:
    url = tmp_path / "ds"
    shutil.copytree(begun, url)
    for path in (url, *url.rglob("*")):
        os.chown(path, 65534, 65534) if os.getuid() == 0 else None
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    return str(url)


def test_manifests_that_may_not_be_listed(open_to_all):
    """P2: mode 0300 lets a manifest be created and not be flushed; that is told before, not after."""
    folder = Path(open_to_all, "_shardio", "manifests")
    folder.chmod(0o300)
    said = as_somebody(APPEND.replace("LOSE", "pass"), open_to_all)
    folder.chmod(0o755)
    assert said.startswith("StorageError the filesystem refused: Permission denied"), said
    assert "manifests" in said
    assert seen(open_to_all) == BASE


def test_a_commit_that_is_not_durable_is_told_apart(begun, tmp_path, monkeypatch):
    """P2: the manifest can be read back, so only the disk's word says that a crash may undo it."""
    url = copied(begun, "local", tmp_path)
    store = connect(url)
    put = type(store)._put_if_absent

    def not_durable(self, key, data, *, move):
        created = put(self, key, data, move=move)
        if key == naming.manifest_key(3):
            raise NotDurableError("the disk failed", url=key)
        return created

    monkeypatch.setattr(type(store), "_put_if_absent", not_durable)
    with pytest.raises(CommitOutcomeUnknownError) as caught:
        write(url, "append", 300, 4)
    assert "the disk failed" in str(caught.value.found)
    monkeypatch.undo()
    assert Catalog(store).latest().number == 3


FULL = """
import os, sys
from pathlib import Path
import shardio
from tests.promises.deeds import write, seen
url = sys.argv[1] + "/ds"
write(url, "create", 0, 300)
write(url, "overwrite", 1000, 20)
before = seen(url)
room = 1 << 16
with open(sys.argv[1] + "/rest", "wb", buffering=0) as file:
    while room:
        try:
            file.write(b"x" * room)
        except OSError:
            room //= 2
try:
    write(url, "append", 2000, 20)
    raise SystemExit("there was room")
except shardio.errors.StorageError as error:
    assert "free some space" in str(error) or "make room" in str(error), error
assert seen(url) == before
doomed = shardio.gc(url, expire=[1]).doomed
report = shardio.gc(url, expire=[1], dry_run=False)
assert set(report.doomed) >= set(doomed), report
assert report.deleted == len(report.doomed) > 20, report
assert seen(url) == before
assert not [info for info in doomed if Path(url, info.key).exists()]
write(url, "append", 2000, 3)
assert shardio.gc(url).doomed == ()
"""


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="only a file system of our own can be full in earnest")
def test_gc_runs_on_a_full_disk(tmp_path):
    """P20: it works on a full disk, which is where it is needed."""
    mounted = 'mount -t tmpfs -o size=1M none "$0" && exec "$@"'
    command = [
        "unshare",
        "-Urm",
        "sh",
        "-c",
        mounted,
        str(tmp_path),
        sys.executable,
        "-c",
        FULL,
        str(tmp_path),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr


def test_a_gc_that_finds_no_room_names_its_keys_in_two_steps(begun, tmp_path, monkeypatch):
    """The same with a disk whose fullness is counted: a manifest fits once the hint is gone."""
    url = str(tmp_path / "ds")
    write(url, "create", 0, 200)
    write(url, "overwrite", 1000, 20)
    before = seen(url)
    store = connect(url)
    put = type(store)._put_if_absent
    refused = []

    def full(self, key, data, *, move):
        if "manifests" in key and not refused:
            refused.append(key)
            error = StorageError("the filesystem refused: No space left on device", url=key)
            raise error from OSError(errno.ENOSPC, "No space left on device")
        if "manifests" in key and len(refused) == 1:
            assert not Path(url, "_shardio", "latest").exists()
            refused.append(key)
            assert len(bytes(data)) < 2048, "what the hint took is all there is"
        return put(self, key, data, move=move)

    monkeypatch.setattr(type(store), "_put_if_absent", full)
    report = shardio.gc(url, expire=[1], dry_run=False)
    assert len(refused) == 2
    assert report.version == 4
    assert report.deleted == len(report.doomed) > 20
    assert seen(url) == before
    assert Path(url, "_shardio", "latest").read_bytes() == b"4"
    assert records(1000, 1)[0] in seen(url)["b"] + seen(url)["a"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
def test_many_blocks_that_are_written_together(tmp_path, number):
    """P1: blocks wait for each other; the write of any of them may fail."""

    def fill(url: Path) -> None:
        with shardio.DatasetWriter(url, block_bytes=100) as out:
            for _ in range(40):
                out.write(bytes(100))

    disk = FailingDisk(tmp_path)
    with disk():
        fill(tmp_path / "whole")
    writes = [k for k, call in enumerate(disk.calls) if call.startswith("write ")]
    for at in writes:
        failing = FailingDisk(tmp_path, at, number)
        url = tmp_path / f"at-{at}"
        raised = None
        with failing():
            try:
                fill(url)
            except StorageError as error:
                raised = error
        if at == writes[-1]:  # the hint, without which the version is there
            assert raised is None
        else:
            assert os.strerror(number) in str(raised)
            assert not list(url.glob("_shardio/manifests/*"))
            fill(url)
        assert len(shardio.open(url)) == 40


def test_a_gc_on_a_full_disk_forgets_nothing(tmp_path, monkeypatch):
    """It leaves the same as with room, and says the same, though the list is its largest object."""
    url, full = str(tmp_path / "ds"), str(tmp_path / "full")
    with shardio.DatasetWriter(url, shard_bytes=1500, block_bytes=1024) as out:
        for number in range(300):
            out.write(b"%04d" % number * 30)
    shardio.delete(url, range(0, 300, 5))
    shardio.compact(url, shard_bytes=1100)
    with shardio.DatasetWriter(url, mode="overwrite") as out:
        out.write(b"new")
    shutil.copytree(url, full)
    plain = shardio.gc(url, keep=1, dry_run=False)
    refuse_one_manifest(monkeypatch, full)
    report = shardio.gc(full, keep=1, dry_run=False)
    assert {*report.doomed} == {*plain.doomed}
    assert (report.deleted, report.unclaimed) == (plain.deleted, plain.unclaimed)
    assert list(shardio.open(full)) == [b"new"]
    few = tmp_path / "few"
    with shardio.DatasetWriter(few) as out:
        out.write(b"old")
    with shardio.DatasetWriter(few, mode="overwrite") as out:
        out.write(b"new")
    refuse_one_manifest(monkeypatch, str(few))
    assert shardio.gc(few, keep=1, dry_run=False).version == 3


def refuse_one_manifest(monkeypatch, url: str) -> None:
    """Let a store have no room for the next manifest."""
    store = type(connect(url))
    put, left = store._put_if_absent, [1]

    def refuse(self, key, data, *, move):
        if "manifests" in key and left:
            left.pop()
            error = StorageError("the filesystem refused: No space left on device", url=key)
            raise error from OSError(errno.ENOSPC, "No space left on device")
        return put(self, key, data, move=move)

    monkeypatch.setattr(store, "_put_if_absent", refuse)
