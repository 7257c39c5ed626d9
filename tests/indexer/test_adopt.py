"""Adoption at scale: again, killed, beside others, with one bad shard among many."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import shardio
import shardio_indexer
from shardio import codecs
from shardio.adoption import ScanOptions, _adopt
from shardio.catalog import Catalog
from shardio.errors import (
    CommitConflictError,
    FormatError,
    NotFoundError,
    SchemaError,
    StaleIndexError,
    UnsafeNameError,
)
from shardio.metadata import naming
from tests.indexer.shards import members, tar, tfrecord
from tests.parallel.programs import wait_until_gone, workers_of
from tests.promises.stores import FaultyStore
from tests.suites.errors import refused


def payload(shard: int, row: int) -> bytes:
    return b"%d:%d:" % (shard, row) + bytes(row)


def write(folder: Path, shards: range, rows: int = 5) -> list[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for shard in shards:
        payloads = [payload(shard, row) for row in range(rows)]
        (folder / f"part-{shard:05}.tfrecord").write_bytes(tfrecord(payloads))
        out += payloads
    return out


def indexes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.rglob("*.shardidx")}


@pytest.mark.slow
def test_a_thousand_shards(tmp_path) -> None:
    """1,000 shards, in processes; adopted again, nothing is done."""
    wanted = write(tmp_path, range(1000))
    seen = []
    report = shardio_indexer.adopt(tmp_path, progress=seen.append, workers=2)
    assert (report.ok, report.adopted, report.records) == (True, 1000, 5000)
    assert (seen[-1].done_shards, seen[-1].done_bytes) == (1000, seen[-1].total_bytes)
    ds = shardio.open(tmp_path)
    assert list(ds) == wanted
    assert ds.read([4999, 0, 2501]) == [wanted[4999], wanted[0], wanted[2501]]
    again = shardio_indexer.adopt(tmp_path)
    assert (again.version, again.adopted, again.known, again.records) == (1, 0, 1000, 5000)


def test_new_shards_are_added_by_running_it_again(tmp_path) -> None:
    wanted = write(tmp_path, range(3))
    first = shardio_indexer.adopt(tmp_path)
    wanted += write(tmp_path, range(3, 5))
    second = shardio_indexer.adopt(tmp_path)
    assert (second.version, second.adopted, second.known) == (2, 2, 3)
    assert list(shardio.open(tmp_path)) == wanted
    assert len(shardio.open(tmp_path, version=1)) == first.records == 15
    assert (
        shardio.open(tmp_path).source.version.manifest.dataset_uuid
        == shardio.open(tmp_path, version=1).source.version.manifest.dataset_uuid
    )


def test_a_shard_is_known_whatever_folder_it_is_found_below(tmp_path, monkeypatch) -> None:
    """The root that is noted is the folder that all shards of one call share: a shard may have several."""
    into = tmp_path / "birds"
    wanted = write(tmp_path / "data" / "old", range(2))
    shardio_indexer.adopt(tmp_path / "data" / "old", into=into, split="train")
    wanted += write(tmp_path / "data" / "new", range(2, 3))
    folders = [tmp_path / "data" / "old", tmp_path / "data" / "new"]
    roots = {str(folder): {} for folder in (tmp_path / "data", *folders)}
    index = _adopt._Adoption.index

    def overtaken(self, *options: object) -> None:
        monkeypatch.undo()
        shardio_indexer.adopt(folders[1], into=into, split="train")
        index(self, *options)

    monkeypatch.setattr(_adopt._Adoption, "index", overtaken)
    report = shardio_indexer.adopt(folders, into=into, split="train")
    assert (report.known, report.version) == (2, 2)
    assert list(shardio.open(into, allow_roots=roots)) == wanted
    os.utime(tmp_path / "data" / "old" / "part-00001.tfrecord", (1, 1))
    assert len(shardio_indexer.adopt(tmp_path / "data", into=into, split="train").stale) == 1
    assert shardio_indexer.adopt(tmp_path / "data", into=into, split="train", update=True).updated == 1
    assert list(shardio.open(into, allow_roots=roots)) == wanted
    shardio.compact(shardio.Address(into, allow_roots=roots), adopted=True, workers=1)
    os.utime(tmp_path / "data" / "old" / "part-00000.tfrecord", (2, 2))
    assert shardio_indexer.adopt(tmp_path / "data" / "old" / "*", into=into, split="train").adopted == 0
    assert list(shardio.open(into, allow_roots=roots)) == wanted


def test_adopting_more_carries_on_what_every_version_does(tmp_path) -> None:
    """Tags and sessions that were rolled back are carried on by every later manifest."""
    write(tmp_path, range(2))
    shardio_indexer.adopt(tmp_path)
    for version in (1, 2):
        with shardio.DatasetWriter(tmp_path, mode="append", session=f"day-{version}") as out:
            out.write(b"more")
    shardio.tag(tmp_path, "paper")
    shardio.restore(tmp_path, 2)
    write(tmp_path, range(2, 3))
    shardio_indexer.adopt(tmp_path)
    assert shardio.tags(tmp_path) == {"paper": 3}
    with refused(ValueError, "'paper'"):
        shardio.gc(tmp_path, expire=[3], dry_run=False)
    with (
        pytest.raises(CommitConflictError),
        shardio.DatasetWriter(tmp_path, mode="append", session="day-2") as out,
    ):
        out.write(b"again")


def test_files_that_compaction_has_replaced_are_not_adopted_again(tmp_path) -> None:
    """Their records are in shards of the dataset's own: adopted once more, each would be there twice."""
    written = write(tmp_path, range(3))
    shardio_indexer.adopt(tmp_path, split="train")
    shardio.compact(tmp_path, adopted=True, workers=1)
    written += write(tmp_path, range(3, 4))
    report = shardio_indexer.adopt(tmp_path, split={"train": "part-*"})
    assert report.adopted == 1
    assert any("3 shards" in note and "old files" in note for note in report.notes), report.notes
    assert list(shardio.open(tmp_path)) == written
    # Touched, or read in another way: its records are still there once; new ones come under another name.
    os.utime(tmp_path / "part-00001.tfrecord", (1, 1))
    report = shardio_indexer.adopt(
        tmp_path, split={"train": "part-*"}, scan=ScanOptions(record_crc="crc32c", lines="bytes")
    )
    assert report.adopted == 0
    assert any("other names" in note for note in report.notes), report.notes
    assert list(shardio.open(tmp_path)) == written
    write(tmp_path, range(4, 5))
    (tmp_path / "part-00004.tfrecord").rename(tmp_path / "part-00001.tfrecord")
    assert str(tmp_path / "part-00001.tfrecord") in shardio_indexer.adopt(tmp_path).ignored
    (tmp_path / "part-00001.tfrecord").rename(tmp_path / "part-00004.tfrecord")
    assert shardio_indexer.adopt(tmp_path).adopted == 1


def test_files_are_adopted_again_where_a_version_before_their_compaction_was_restored(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path) as out:
        out.write(b"own")
    written = write(tmp_path, range(3))
    shardio_indexer.adopt(tmp_path, split="train")
    shardio.compact(tmp_path, adopted=True, workers=1)
    shardio.restore(tmp_path, 1)
    report = shardio_indexer.adopt(tmp_path, split="train")
    assert report.adopted == 3
    assert any("of a dataset of shardio" in note for note in report.notes), report.notes
    assert list(shardio.open(tmp_path)) == [b"own", *written]


def test_what_own_writers_left_is_not_adopted(tmp_path) -> None:
    """Deleted records do not come back, and those that were never committed do not come."""
    with shardio.DatasetWriter(tmp_path) as out:
        out.write(b"first")
    with shardio.DatasetWriter(tmp_path, mode="overwrite") as out:
        out.write(b"second")
    with shardio.DatasetWriter(tmp_path, mode="append", session="lost", commit=False) as out:
        out.write(b"third")
    for urls in (tmp_path, f"{tmp_path}/data/*.tfrecord"):
        report = shardio_indexer.adopt(urls, into=tmp_path)
        assert (report.adopted, report.version) == (0, 2)
        assert len(report.ignored) == 2
        assert list(shardio.open(tmp_path)) == [b"second"]


def test_shards_of_another_dataset_are_adopted_by_name_only(tmp_path) -> None:
    """Its deleted records would come back, and those that are not committed would come."""
    with shardio.DatasetWriter(tmp_path / "other") as out:
        for k in range(3):
            out.write(b"%d" % k)
    shardio.delete(tmp_path / "other", [1])
    for urls in (tmp_path / "other", f"{tmp_path}/other/data/*.tfrecord", f"{tmp_path}/*/data/*.tfrecord"):
        with pytest.raises(NotFoundError):
            shardio_indexer.adopt(urls, into=tmp_path / "new")
    (shard,) = (tmp_path / "other" / "data").glob("*.tfrecord")
    assert shardio_indexer.adopt(shard, into=tmp_path / "new").adopted == 1
    assert shardio_indexer.adopt(f"{tmp_path}/other/data/*.tfrecord", into=tmp_path / "new").known == 1


def test_a_first_session_is_not_adopted_before_it_is_committed(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path, session="first", commit=False) as out:
        out.write(b"once")
    with pytest.raises(NotFoundError) as caught:
        shardio_indexer.adopt(tmp_path)
    assert "shardio commit" in str(caught.value)
    write(tmp_path, range(1))
    assert shardio_indexer.adopt(tmp_path, dry_run=True).adopted == 1
    (tmp_path / "part-00000.tfrecord").unlink()
    shardio.commit(tmp_path, session="first", tasks=1)
    assert list(shardio.open(tmp_path)) == [b"once"]


def test_changed_shards_are_reported_as_stale_and_updated_when_asked(tmp_path) -> None:
    write(tmp_path, range(3))
    shardio_indexer.adopt(tmp_path)
    shard = tmp_path / "part-00001.tfrecord"
    shard.write_bytes(tfrecord([b"new", b"and", b"other"]))
    report = shardio_indexer.adopt(tmp_path)
    assert (report.ok, report.stale, report.version) == (False, (str(shard),), 1)
    with pytest.raises(StaleIndexError):
        list(shardio.open(tmp_path))
    before = indexes(tmp_path)
    report = shardio_indexer.adopt(tmp_path, update=True)
    assert (report.ok, report.updated, report.known, report.version) == (True, 1, 2, 2)
    assert list(shardio.open(tmp_path))[5:8] == [b"new", b"and", b"other"]
    after = indexes(tmp_path)
    assert {name: after[name] for name in before} == before, "an index is never overwritten"
    (renewed,) = set(after) - set(before)
    assert renewed.startswith("part-00001.tfrecord.")
    assert shardio.verify(tmp_path).ok
    assert shardio_indexer.adopt(tmp_path).ok


def test_deleted_records_stay_deleted_where_a_shard_is_indexed_again(tmp_path) -> None:
    """As long as its bytes are the same; what another file holds instead is told."""
    wanted = write(tmp_path, range(2))
    shardio_indexer.adopt(tmp_path)
    shardio.delete(tmp_path, [1, 6])
    left = [wanted[row] for row in (0, 2, 3, 4, 5, 7, 8, 9)]
    shard = tmp_path / "part-00001.tfrecord"
    os.utime(shard, (1, 1))
    (tmp_path / "part-00000.tfrecord.shardidx").unlink()
    report = shardio_indexer.adopt(tmp_path, update=True)
    assert report.updated == 2
    assert not [note for note in report.notes if "deleted" in note]
    assert list(shardio.open(tmp_path)) == left
    shard.write_bytes(tfrecord(wanted[5:9]))
    report = shardio_indexer.adopt(tmp_path, update=True)
    assert [note for note in report.notes if "part-00001" in note and "deletions of 1 record" in note]
    assert list(shardio.open(tmp_path)) == [*left[:4], *wanted[5:9]]
    (tmp_path / "part-00000.tfrecord").unlink()
    report = shardio_indexer.adopt(tmp_path, drop_missing=True)
    assert [note for note in report.notes if "part-00000" in note and "deletions of 1 record" in note]


KILLED = """
    import sys, threading, shardio_indexer
    def show(progress):
        if progress.done_shards >= 10:
            print("ten", flush=True)
            threading.Event().wait()
    shardio_indexer.adopt(sys.argv[1], workers=int(sys.argv[2]), progress=show)
"""


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_in_the_middle_and_run_again(tmp_path, workers) -> None:
    """A rerun continues after a kill: indexes are kept, nothing is visible before, no process is left."""
    folder = tmp_path / "data"
    wanted = write(folder, range(150))
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(folder), str(workers)]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ten\n"
        children = workers_of(process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_until_gone(children)
    done = indexes(folder)
    assert 0 < len(done) < 150
    assert not (folder / "_shardio").exists()
    with pytest.raises(shardio.errors.NotFoundError):
        shardio.open(folder)
    report = shardio_indexer.adopt(folder, workers=1)
    assert (report.ok, report.adopted) == (True, 150)
    after = indexes(folder)
    assert {name: after[name] for name in done} == done
    assert list(shardio.open(folder)) == wanted
    assert shardio.verify(folder).ok
    assert len(list(folder.rglob(".shardio-tmp-*"))) <= workers, "one half-written index a process at most"


def test_an_index_of_another_state_of_the_shard_is_not_taken(tmp_path) -> None:
    """Killed before the commit, then the shard changed: its index is made again under another name."""
    write(tmp_path, range(2))
    shardio_indexer.adopt(tmp_path)
    import shutil

    shutil.rmtree(tmp_path / "_shardio")
    (tmp_path / "part-00000.tfrecord").write_bytes(tfrecord([b"changed"]))
    before = indexes(tmp_path)
    report = shardio_indexer.adopt(tmp_path)
    assert report.ok
    assert next(iter(shardio.open(tmp_path))) == b"changed"
    assert len(indexes(tmp_path)) == 3
    assert indexes(tmp_path)["part-00001.tfrecord.shardidx"] == before["part-00001.tfrecord.shardidx"]


def test_one_bad_shard_among_many(tmp_path) -> None:
    """The bad ones are named with address and reason, the rest continues; the report is not ok."""
    wanted = write(tmp_path, range(20))
    (tmp_path / "part-00007.tfrecord").write_bytes(b"x" * 100)
    data = bytearray((tmp_path / "part-00003.tfrecord").read_bytes())
    data[30] ^= 1
    (tmp_path / "part-00003.tfrecord").write_bytes(data)
    report = shardio_indexer.adopt(tmp_path)
    assert (report.ok, report.adopted) == (False, 18)
    assert {Path(refusal.url).name for refusal in report.refused} == {
        "part-00003.tfrecord",
        "part-00007.tfrecord",
    }
    assert all(isinstance(refusal.error, FormatError) for refusal in report.refused)
    assert all(refusal.url in str(refusal.error) for refusal in report.refused)
    assert list(shardio.open(tmp_path)) == wanted[:15] + wanted[20:35] + wanted[40:]
    # When they are repaired, running it again adds them.
    write(tmp_path, range(7, 8))
    again = shardio_indexer.adopt(tmp_path)
    assert (again.adopted, again.known, len(again.refused)) == (1, 18, 1)


def test_all_bad_is_no_dataset(tmp_path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(b"nothing of the kind")
    report = shardio_indexer.adopt(tmp_path)
    assert (report.ok, report.version, report.opens) == (False, None, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tfrecord"]


def test_a_shard_that_changes_while_it_is_read(tmp_path) -> None:
    write(tmp_path, range(2))
    path = tmp_path / "part-00000.tfrecord"

    def touch(_: object) -> None:
        with path.open("ab") as file:
            file.write(tfrecord([b"more"]))

    report = shardio_indexer.adopt(path, into=tmp_path, progress=touch)
    error = report.refused[0].error
    assert isinstance(error, StaleIndexError)
    assert error.advice == "adopt it again when it is no longer being written"
    assert indexes(tmp_path) == {}
    again = shardio_indexer.adopt(tmp_path / "part-00000.tfrecord", into=tmp_path)
    assert again.ok
    assert list(shardio.open(tmp_path))[-1] == b"more"


def test_names_with_spaces_and_other_scripts(tmp_path) -> None:
    names = [
        "with spaces.tfrecord",
        "名前/Ünïcode-été.tfrecord",
        "emoji 🦆/x%20y#1.tfrecord",
        "[brackets]*.tfrecord",
    ]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(tfrecord([str(number).encode()]))
    report = shardio_indexer.adopt(tmp_path)
    assert (report.ok, report.adopted) == (True, 4)
    assert sorted(shardio.open(tmp_path)) == [b"0", b"1", b"2", b"3"]
    into = tmp_path.parent / (tmp_path.name + " andere Stelle ü")
    assert shardio_indexer.adopt(tmp_path, into=into).ok
    assert len(shardio.open(into, allow_roots={str(tmp_path): {}})) == 4


def test_names_that_no_index_could_hold_are_refused(tmp_path) -> None:
    write(tmp_path, range(1))
    (tmp_path / "back\\slash.tfrecord").write_bytes(tfrecord([b"a"]))
    (tmp_path / "new\nline.tfrecord").write_bytes(tfrecord([b"a"]))
    report = shardio_indexer.adopt(tmp_path)
    assert (report.adopted, len(report.refused)) == (1, 2)
    assert len(shardio.open(tmp_path)) == 5


def test_two_adoptions_at_once(tmp_path) -> None:
    """Safe like an append: each shard is there once."""
    wanted = write(tmp_path, range(12))
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: shardio_indexer.adopt(tmp_path, workers=1), range(4)))
    assert all(report.ok for report in reports)
    assert list(shardio.open(tmp_path)) == wanted
    assert len(indexes(tmp_path)) == 12


class Counting(Executor):
    """The least that an executor is."""

    def __init__(self) -> None:
        self.calls = 0

    def submit(self, fn, /, *args, **kwargs):
        import pickle

        self.calls += 1
        future = Future()
        fn, args = pickle.loads(pickle.dumps((fn, args)))
        future.set_result(pickle.loads(pickle.dumps(fn(*args, **kwargs))))
        return future


def test_any_executor(tmp_path) -> None:
    wanted = write(tmp_path, range(40))
    executor = Counting()
    assert shardio_indexer.adopt(tmp_path, executor=executor).ok
    assert executor.calls > 1
    assert list(shardio.open(tmp_path)) == wanted


class Losing(Counting):
    """Loses the worker of one job, as often as it is tried."""

    lost: object = None

    def submit(self, fn, /, *args, **kwargs):
        if self.calls == 1 and self.lost is None:
            self.lost = args[0]
        if args[0] is self.lost:
            future = Future()
            future.set_exception(CancelledError("node died"))
            return future
        return super().submit(fn, *args, **kwargs)


def test_a_lost_worker_costs_its_shards_only(tmp_path) -> None:
    write(tmp_path, range(40))
    report = shardio_indexer.adopt(tmp_path, executor=Losing())
    assert 0 < len(report.refused) < 40
    assert "worker" in str(report.refused[0].error)
    again = shardio_indexer.adopt(tmp_path)
    assert (again.ok, again.adopted) == (True, len(report.refused))


# splits, kinds, schemas


def test_splits_by_pattern(tmp_path) -> None:
    (tmp_path / "test").mkdir()
    for name in ("train-0", "train-1", "val-0", "test/0", "other"):
        (tmp_path / f"{name}.tfrecord").write_bytes(tfrecord([name.encode()]))
    split = {"train": "train-*", "val": "val*", "test": "test/*"}
    report = shardio_indexer.adopt(tmp_path, split=split)
    assert report.splits == {"test": 1, "train": 2, "val": 1}
    assert any("other.tfrecord" in note for note in report.notes)
    assert report.opens.endswith("split='train')") or "split='test'" in report.opens
    assert list(shardio.open(tmp_path, split="test")) == [b"test/0"]


def test_a_split_holds_records_of_one_kind(tmp_path) -> None:
    write(tmp_path, range(3))
    (tmp_path / "odd.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(SchemaError) as caught:
        shardio_indexer.adopt(tmp_path)
    assert {caught.value.expected.split(",")[0], caught.value.found} == {"TFRECORD", "LINES"}
    index = tmp_path / "odd.jsonl.shardidx"
    made = index.stat().st_mtime_ns
    splits = {"lines": "*.jsonl", "train": "*"}
    with pytest.raises(SchemaError):
        shardio_indexer.adopt(tmp_path, split=splits)
    report = shardio_indexer.adopt(tmp_path, split=splits, schema=False)
    assert report.splits == {"lines": 1, "train": 15}
    assert index.stat().st_mtime_ns == made
    assert not any("stays" in note for note in report.notes)
    assert list(shardio.open(tmp_path, split="lines")) == ['{"a": 1}']
    with pytest.raises(SchemaError):
        shardio.open(tmp_path, split="all")
    assert len(list(shardio.open(tmp_path, split="all", decode=False))) == 16


def test_lines(tmp_path) -> None:
    (tmp_path / "a.txt").write_bytes("wren\r\nröbin\n\nlast".encode())
    shardio_indexer.adopt(tmp_path / "a.txt", into=tmp_path / "text")
    ds = shardio.open(tmp_path / "text", allow_roots={str(tmp_path): {}})
    assert list(ds) == ["wren", "röbin", "", "last"]
    assert ds.read_batch([1, 3]) == {"text": ["röbin", "last"]}
    (tmp_path / "b.jsonl").write_text('{"n": 1}\n[2]\n"three"\n')
    whole = shardio.Schema.parse({"json": "json"}, encoding="bytes")
    report = shardio_indexer.adopt(tmp_path / "b.jsonl", into=tmp_path / "json", schema=whole)
    assert report.schema is not None
    ds = shardio.open(tmp_path / "json", allow_roots={str(tmp_path): {}})
    assert [ds[i] for i in range(3)] == [{"n": 1}, [2], "three"]
    assert ds.read_batch([0]) == {"json": [{"n": 1}]}
    (batch,) = shardio.stream(ds, global_batch=3, shuffle=False)
    assert batch == {"json": [{"n": 1}, [2], "three"]}
    (tmp_path / "c.jsonl").write_text('{"n": 1}\nno json\n')
    shardio_indexer.adopt(tmp_path / "c.jsonl", into=tmp_path / "bad", schema=False)
    assert shardio.open(tmp_path / "bad", allow_roots={str(tmp_path): {}})[1] == "no json"
    report = shardio_indexer.adopt(tmp_path / "c.jsonl", into=tmp_path / "worse", schema={"json": "json"})
    assert "a line is not JSON" in str(report.refused[0].error)


def test_more_shards_must_fit_the_schema_of_the_first(tmp_path) -> None:
    examples = [codecs.encode_example({"n": n}) for n in range(5)]
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(examples))
    report = shardio_indexer.adopt(tmp_path)
    assert report.schema["n"].short == "int64"
    (tmp_path / "b.tfrecord").write_bytes(tfrecord(examples))
    assert shardio_indexer.adopt(tmp_path).version == 2
    assert [record["n"] for record in shardio.open(tmp_path)] == [*range(5), *range(5)]
    (tmp_path / "c.tfrecord").write_bytes(tfrecord([codecs.encode_example({"m": 1.5})]))
    with refused(SchemaError, "'n'"):
        shardio_indexer.adopt(tmp_path)
    assert shardio.open(tmp_path).version == 2


def test_adopted_shards_beside_shards_of_shardio(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path) as out:
        out.write(b"own")
    (tmp_path / "data" / "foreign.tfrecord").write_bytes(tfrecord([b"adopted"]))
    report = shardio_indexer.adopt(tmp_path)
    assert (report.ok, report.adopted, report.known, report.version) == (True, 1, 1, 2)
    assert sorted(shardio.open(tmp_path)) == [b"adopted", b"own"]
    with shardio.DatasetWriter(tmp_path, mode="append") as out:
        out.write(b"later")
    assert sorted(shardio.open(tmp_path)) == [b"adopted", b"later", b"own"]


def test_garbage_collection_leaves_what_others_wrote(tmp_path) -> None:
    """Shards that others wrote are never deleted, whatever versions expire."""
    # In the folder where shardio keeps its own.
    write(tmp_path / "data", range(2))
    shardio_indexer.adopt(tmp_path)
    with shardio.DatasetWriter(tmp_path, mode="overwrite") as out:
        out.write(b"own")
    report = shardio.gc(tmp_path, expire=[1], dry_run=False)
    assert report is not None
    assert sorted(path.name for path in tmp_path.glob("data/part-*.tfrecord")) == [
        "part-00000.tfrecord",
        "part-00001.tfrecord",
    ]
    assert list(shardio.open(tmp_path)) == [b"own"]


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_every_reader_sees_the_same(tmp_path, kind) -> None:
    """ds[i], ds.read, read_batch, iteration and streams agree, for blocks and for compressed streams."""
    payloads = [payload(0, row % 300) for row in range(500)]
    data = tfrecord(payloads)
    (tmp_path / "blocks.tfrecord").write_bytes(
        members([tfrecord(payloads[:250]), tfrecord(payloads[250:])], kind)
    )
    (tmp_path / "stream.tfrecord").write_bytes(members([data[:700], data[700:]], kind))
    for name in ("blocks", "stream"):
        into = tmp_path / name
        assert shardio_indexer.adopt(tmp_path / f"{name}.tfrecord", into=into).ok
        ds = shardio.open(into, allow_roots={str(tmp_path): {}})
        assert [ds[i] for i in range(500)] == list(ds) == ds.read(range(500)) == payloads
        assert ds.read_batch(range(500)) == {"payload": payloads}
        batches = shardio.stream(ds, global_batch=50, seed=3)
        assert sorted(one for batch in batches for one in batch["payload"]) == sorted(payloads)
        assert shardio.verify(shardio.Address(into, allow_roots={str(tmp_path): {}})).ok
        assert ds.num_shards == 1


def test_tar_columns_have_none_where_a_sample_lacks_a_member(tmp_path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.tar").write_bytes(tar([("a.txt", b"1"), ("a.cls", b"7"), ("b.txt", b"2")]))
    shardio_indexer.adopt(tmp_path / "in")
    ds = shardio.open(tmp_path / "in")
    assert list(ds) == [{"__key__": "a", "txt": "1", "cls": 7}, {"__key__": "b", "txt": "2", "cls": None}]
    shardio_indexer.adopt(tmp_path / "in", schema=False)
    ds = shardio.open(tmp_path / "in")
    assert ds.read_batch([0, 1]) == {"__key__": ["a", "b"], "txt": [b"1", b"2"], "cls": [b"7", None]}
    into = tmp_path / "typed"
    schema = {"txt": "text", "cls": shardio.Feature("int64", default=-1)}
    shardio_indexer.adopt(tmp_path / "in", into=into, schema=schema)
    ds = shardio.open(into, allow_roots={str(tmp_path / "in"): {}})
    assert ds[1] == {"__key__": "b", "txt": "2", "cls": -1}
    assert ds.read_batch([0, 1])["cls"].tolist() == [7, -1]
    # A type alone leaves a feature optional that some samples lack; a whole schema means what it says.
    shardio_indexer.adopt(tmp_path / "in", into=tmp_path / "still", schema={"cls": "int32"})
    assert shardio.open(tmp_path / "still", allow_roots={str(tmp_path / "in"): {}})[1]["cls"] is None
    strict = shardio.Schema.parse({"txt": "text", "cls": "int64"})
    with refused(SchemaError, "'cls'"):
        shardio_indexer.adopt(tmp_path / "in", into=tmp_path / "strict", schema=strict)


def test_arrays_in_tar_files_are_loaded_without_pickle(tmp_path) -> None:
    import io

    import numpy as np

    (tmp_path / "in").mkdir()
    good, bad = io.BytesIO(), io.BytesIO()
    np.save(good, np.arange(6, dtype=np.float32).reshape(2, 3))
    np.save(bad, np.array([{"evil": 1}], object), allow_pickle=True)
    (tmp_path / "in" / "x.tar").write_bytes(tar([("a.x.npy", good.getvalue()), ("b.x.npy", bad.getvalue())]))
    shardio_indexer.adopt(tmp_path / "in")
    schema = {"x.npy": "float32[?,3]"}
    with pytest.raises(SchemaError):
        shardio_indexer.adopt(tmp_path / "in", into=tmp_path / "a", schema=schema)
    (tmp_path / "in" / "x.tar").write_bytes(tar([("a.x.npy", good.getvalue())]))
    shardio_indexer.adopt(tmp_path / "in", into=tmp_path / "b", schema=schema)
    ds = shardio.open(tmp_path / "b", allow_roots={str(tmp_path / "in"): {}})
    assert ds[0]["x.npy"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_name_that_could_leave_its_root_is_refused(tmp_path) -> None:
    """Where drives have letters, a folder `C:` is not below the root; the shards beside it continue."""
    (wanted,) = write(tmp_path, range(1), rows=1)
    write(tmp_path / "C:", range(1))
    report = shardio_indexer.adopt(tmp_path)
    assert [refusal.url for refusal in report.refused] == [str(tmp_path / "C:" / "part-00000.tfrecord")]
    assert "drive letter" in str(report.refused[0].error)
    assert list(shardio.open(tmp_path)) == [wanted]


def test_a_commit_whose_list_was_doomed_stores_it_again(tmp_path, monkeypatch) -> None:
    """As a writer's does: garbage collection came between the list and the manifest."""
    wanted = write(tmp_path, range(1))
    shardio_indexer.adopt(tmp_path)
    wanted += write(tmp_path, range(1, 3))
    doomed = []

    def collect_first(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key.endswith("2.manifest") and not doomed:
            doomed.extend(info.key for info in shardio.gc(tmp_path, dry_run=False).doomed)
        return ""

    monkeypatch.setattr(_adopt, "Catalog", lambda store: Catalog(FaultyStore(store, collect_first)))
    assert shardio_indexer.adopt(tmp_path).version == 3
    assert len(doomed) == 1
    assert list(shardio.open(tmp_path)) == wanted


def test_indexes_that_only_expired_versions_name_are_collected(tmp_path) -> None:
    """Those in shardio's own folder; of what the user owns nothing, whatever it is called."""
    theirs, into = tmp_path / "theirs", tmp_path / "mine"
    wanted = write(theirs, range(2))
    old = theirs / "part-00001.tfrecord"
    shardio_indexer.adopt(theirs, into=into)
    before = (old.read_bytes(), old.stat())
    old.write_bytes(tfrecord([b"changed"]))
    assert shardio_indexer.adopt(theirs, into=into, update=True).updated == 1
    (into / "indexes" / "notes.txt").write_text("the user's")
    kept, gone = indexes(into), shardio.gc(into, expire=[1], dry_run=False).doomed
    (index,) = [info.key for info in gone if info.key.startswith("indexes/")]
    assert kept.keys() - indexes(into).keys() == {Path(index).name}
    assert (into / "indexes" / "notes.txt").exists()
    assert shardio.verify(shardio.Address(into, allow_roots={str(theirs): {}})).ok
    # The same object as before once more: its index was given up, and its name is not used again.
    old.write_bytes(before[0])
    os.utime(old, ns=(before[1].st_atime_ns, before[1].st_mtime_ns))
    assert shardio_indexer.adopt(theirs, into=into, update=True).updated == 1
    ds = shardio.open(into, allow_roots={str(theirs): {}})
    assert list(ds) == wanted
    assert index not in {entry.usual_index_key for entry in ds.source.table}
    shardio.gc(into, dry_run=False)
    assert list(ds) == wanted


def test_an_index_that_is_doomed_meanwhile_stops_the_adoption(tmp_path, monkeypatch) -> None:
    """It was there already, for the shard as it is; the next run makes another one."""
    theirs, into = tmp_path / "theirs", tmp_path / "mine"
    (payload,) = write(theirs, range(1), rows=1)
    shardio_indexer.adopt(theirs, into=into)
    with shardio.DatasetWriter(into, mode="overwrite") as out:
        out.write(b"mine")

    def collect_first(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key.endswith("3.manifest"):
            monkeypatch.setattr(_adopt, "Catalog", Catalog)
            assert any(
                info.key.startswith("indexes/") for info in shardio.gc(into, keep=1, dry_run=False).doomed
            )
        return ""

    monkeypatch.setattr(_adopt, "Catalog", lambda store: Catalog(FaultyStore(store, collect_first)))
    with pytest.raises(CommitConflictError):
        shardio_indexer.adopt(theirs, into=into)
    shardio_indexer.adopt(theirs, into=into)
    assert list(shardio.open(into, allow_roots={str(theirs): {}})) == [b"mine", payload]


def test_a_shard_of_others_has_no_name_of_ours(tmp_path) -> None:
    """Once its version has expired, it could not be told from what lost attempts of a session left."""
    name = naming.DataKey("train", naming.session_id("mine"), 0, "k3v7q2mh", 0).key()
    with shardio.DatasetWriter(tmp_path / "ds", session="mine") as out:
        out.write(b"mine", "train")
    theirs = tmp_path / "ds" / name
    theirs.write_bytes(tfrecord([b"theirs"]))
    report = shardio_indexer.adopt(theirs, into=tmp_path / "ds")
    assert (report.ok, report.adopted, report.version) == (False, 0, 1)
    (refusal,) = report.refused
    assert isinstance(refusal.error, UnsafeNameError)
    assert shardio_indexer.adopt(theirs, into=tmp_path / "elsewhere").adopted == 1
    theirs.rename(tmp_path / "ds" / "theirs.tfrecord")
    assert shardio_indexer.adopt(tmp_path / "ds" / "theirs.tfrecord", into=tmp_path / "ds").adopted == 1
    assert list(shardio.open(tmp_path / "ds")) == [b"mine", b"theirs"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"schema": "n"}, "schema= takes a mapping, found str"),
        ({"schema": True}, "schema= takes a mapping, found bool"),
        ({"types": ["n"]}, "types= takes a mapping, found list"),
        ({"split": ["train"]}, "split= takes a mapping, found list"),
        ({"split": {"train": 1}}, "the pattern of split 'train' must be text, found 1"),
        ({"scan": {"format": "tar"}}, "scan= takes a ScanOptions, found {"),
        ({"into": b"x"}, "a URL is text or a pathlib.Path, not bytes"),
        ({"urls": None}, "a URL is text or a pathlib.Path, not NoneType"),
        ({"urls": b"x"}, "a URL is text or a pathlib.Path, not bytes"),
        ({"urls": [1]}, "a URL is text or a pathlib.Path, not int"),
        ({"storage_options": "secret"}, "storage_options= takes a mapping, found str"),
        ({"into_options": 1}, "into_options= takes a mapping, found int"),
        ({"executor": 4}, "executor= takes an executor of concurrent.futures, found 4"),
    ],
    ids=str,
)
def test_an_argument_of_another_type_leaves_nothing(tmp_path, given, says) -> None:
    write(tmp_path, range(1))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TypeError, match=says):
        shardio_indexer.adopt(**{"urls": tmp_path, **given})
    assert sorted(tmp_path.iterdir()) == before
