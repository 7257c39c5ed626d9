"""What verification says about each kind of damage, and that nothing found stops the search."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import shardio
from shardio.errors import NotFoundError, StorageError, UnsupportedVersionError
from shardio.maintenance import VerifyProgress
from shardio.metadata import parse_head
from shardio.storage import LocalStore
from tests.maintenance.made import delete_rows, flip, index_of, make_dataset, payloads, rewrite, shards
from tests.suites.errors import refused


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    records = {"test": payloads(40), "train": payloads(80)}
    return make_dataset(tmp_path / "ds", records, shard_bytes=2000)


def kinds(report: shardio.maintenance.VerifyReport) -> list[str]:
    return [finding.kind for finding in report.findings]


def test_a_dataset_without_damage(dataset: Path) -> None:
    report = shardio.verify(dataset)
    assert report.ok
    assert not report.damaged
    assert (report.version, report.records, report.good_records) == (1, 120, 120)
    assert report.shards == len(shards(dataset)) > 4
    assert report.stored_bytes == sum(path.stat().st_size for path in shards(dataset))
    assert report.digest == shardio.open(dataset, "all").digest


def test_every_finding_is_listed_in_order(dataset: Path) -> None:
    paths = shards(dataset)
    for path in (paths[0], paths[2], paths[-1]):
        size = path.stat().st_size
        flip(path, size - 20)
        flip(path, 20)
    flip(index_of(paths[1]), parse_head(index_of(paths[1]).read_bytes()).frame_stop_offset + 1)
    report = shardio.verify(dataset)
    found = [(finding.shard, finding.kind, finding.row) for finding in report.findings]
    assert [path.name for path in paths if any(path.name in str(shard) for shard, _, _ in found)] == [
        paths[k].name for k in (0, 1, 2, len(paths) - 1)
    ]
    assert kinds(report).count("block") == 6
    assert kinds(report).count("record") == 6
    assert kinds(report).count("frames") == 1
    by_shard: dict[str | None, list[int]] = {}
    for finding in report.findings:
        by_shard.setdefault(finding.shard, []).append(finding.start or 0)
    assert all(starts == sorted(starts) for starts in by_shard.values())
    assert shardio.verify(dataset) == report
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        assert shardio.verify(dataset, executor=executor) == report, "wherever it is looked at"


def test_shards_whose_worker_is_always_lost_were_not_looked_at(dataset: Path) -> None:
    class Losing(Executor):
        def submit(self, _fn, /, _job):
            future: Future = Future()
            future.set_exception(CancelledError())
            return future

    report = shardio.verify(dataset, executor=Losing())
    assert {finding.kind for finding in report.findings} == {"unreadable"}
    assert sorted(str(f.shard) for f in report.findings) == sorted(f"data/{p.name}" for p in shards(dataset))
    assert not report.damaged


def test_damaged_records_of_an_uncompressed_block_are_named_each(tmp_path: Path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", block_bytes=1 << 16) as out:
        for value in payloads(100):
            out.write(value)
    (shard,) = shards(tmp_path / "ds")
    reader = shardio.open(tmp_path / "ds")
    for row in (3, 4, 50):
        flip(shard, reader.locate(row).start + 14)
    report = shardio.verify(tmp_path / "ds")
    assert [(finding.kind, finding.row, finding.row_stop) for finding in report.findings] == [
        ("block", 0, 100),
        ("record", 3, 5),
        ("record", 50, 51),
    ]
    assert report.findings[2].start == reader.locate(50).start
    assert report.findings[2].stop == reader.locate(50).stop
    assert report.good_records == 97


def test_only_one_split(dataset: Path) -> None:
    flip(next(path for path in shards(dataset) if path.name.startswith("train")), 30)
    assert shardio.verify(dataset, split="test").ok
    report = shardio.verify(dataset, split="train")
    assert report.damaged
    assert report.records == 80
    with refused(ValueError, "'other'", "'test'", "'train'"):
        shardio.verify(dataset, split="other")


def test_missing_objects(dataset: Path) -> None:
    paths = shards(dataset)
    paths[0].unlink()
    index_of(paths[1]).unlink()
    report = shardio.verify(dataset)
    assert kinds(report) == ["missing", "missing"]
    assert [finding.url for finding in report.findings] == [str(paths[0]), str(index_of(paths[1]))]
    # The list of shards has the checksum of a shard whose index is lost.
    assert 0 < report.records - report.good_records < 40


def test_a_damaged_index_does_not_hide_a_damaged_shard(dataset: Path) -> None:
    shard = shards(dataset)[0]
    flip(index_of(shard), 20)
    assert kinds(shardio.verify(dataset)) == ["index"]
    flip(shard, 40)
    report = shardio.verify(dataset)
    assert kinds(report) == ["index", "checksum", "record"]
    assert report.findings[2].row == 0
    assert report.records - report.good_records == 1


def test_without_its_index_a_cut_shard_is_held_against_the_list(dataset: Path) -> None:
    shard = shards(dataset)[0]
    index_of(shard).unlink()
    stop = shardio.open(dataset, "train").locate(0).stop
    rewrite(shard, shard.read_bytes()[:stop])
    report = shardio.verify(dataset)
    assert kinds(report) == ["missing", "size"]
    rewrite(shard, shard.read_bytes()[:-1])
    assert kinds(shardio.verify(dataset)) == ["missing", "size", "record"]


def test_swapped_shards_and_indexes(dataset: Path) -> None:
    first, second = shards(dataset)[:2]
    shutil.copy(first, dataset / "held")
    rewrite(first, second.read_bytes())
    rewrite(second, (dataset / "held").read_bytes())
    report = shardio.verify(dataset)
    assert {finding.shard for finding in report.findings} == {f"data/{first.name}", f"data/{second.name}"}
    original = index_of(first).read_bytes()
    rewrite(index_of(first), index_of(second).read_bytes())
    rewrite(index_of(second), original)
    report = shardio.verify(dataset)
    assert kinds(report).count("index") == 2
    assert kinds(report).count("checksum") + kinds(report).count("size") == 2


def test_deletions(dataset: Path) -> None:
    sidecar = delete_rows(dataset, [1, 3])
    report = shardio.verify(dataset)
    assert report.ok
    assert report.records == 120
    assert shardio.verify(dataset, split="test").records == 40
    original = sidecar.read_bytes()
    flip(sidecar, 0)
    assert kinds(shardio.verify(dataset)) == ["deletions"]
    rewrite(sidecar, original + b"\0\0\0\0")
    assert kinds(shardio.verify(dataset)) == ["deletions"]
    sidecar.unlink()
    assert kinds(shardio.verify(dataset)) == ["missing"]


def test_the_manifests_of_earlier_versions(dataset: Path) -> None:
    for number in range(3):
        with shardio.DatasetWriter(dataset, mode="append") as out:
            out.write(b"more", split="train" if number else "test")
    manifests = sorted((dataset / "_shardio" / "manifests").iterdir())
    assert shardio.verify(dataset).ok
    assert shardio.verify(dataset, version=2).version == 2
    flip(manifests[2], 30)
    assert kinds(shardio.verify(dataset)) == ["manifest"]
    assert shardio.verify(dataset, version=2).ok
    manifests[0].unlink()
    assert kinds(shardio.verify(dataset)) == ["manifest", "missing"]


def test_a_replaced_manifest_breaks_the_chain(dataset: Path, tmp_path: Path) -> None:
    with shardio.DatasetWriter(dataset, mode="append") as out:
        out.write(b"more", split="train")
    other = make_dataset(tmp_path / "other", {"train": payloads(2)})
    name = "_shardio/manifests/00000000000000000001.manifest"
    rewrite(dataset / name, (other / name).read_bytes())
    (finding,) = shardio.verify(dataset).findings
    assert finding.kind == "manifest"
    assert "version 2 was built on" in finding.message


def test_lists_are_looked_at_one_by_one(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardio.catalog._lists._RATIO", 0)  # no list is merged with the next
    before = set((dataset / "_shardio" / "lists").iterdir())
    old = set(shards(dataset))
    with shardio.DatasetWriter(dataset, mode="append") as out:
        for value in payloads(10):
            out.write(value, split="train")
    (first,) = before
    flip(first, 40)
    (new,) = set(shards(dataset)) - old
    flip(new, 20)
    report = shardio.verify(dataset)
    assert kinds(report)[0] == "list"
    assert "block" in kinds(report)
    assert report.shards == 1
    first.unlink()
    assert "is not there" in shardio.verify(dataset).findings[0].message


def test_a_pin(dataset: Path) -> None:
    digest = shardio.open(dataset, "all").digest
    assert shardio.verify(dataset, digest=digest).ok
    (finding,) = shardio.verify(dataset, digest="sha256:" + "0" * 64).findings
    assert finding.kind == "manifest"
    assert finding.found == digest


def test_what_cannot_be_read_is_no_damage(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = shards(dataset)[1].name
    original = LocalStore.open

    def fail(self, key, **options):
        if key.endswith(bad):
            what = "the disk did not answer"
            raise StorageError(what, url=self.url_of(key))
        return original(self, key, **options)

    monkeypatch.setattr(LocalStore, "open", fail)
    report = shardio.verify(dataset)
    assert kinds(report) == ["unreadable"]
    assert not report.ok
    assert not report.damaged
    assert 0 < report.good_records < 120


def test_a_read_that_fails_in_the_middle_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuning: Callable[..., None]
) -> None:
    from shardio.storage._local import LocalFile

    tuning(walk_bytes=1000)
    root = make_dataset(tmp_path / "ds", {"train": payloads(80)})
    (shard,) = shards(root)
    original = LocalFile.read

    def fail(self, start, stop):
        if self.url == str(shard) and start <= 2500 < stop:
            what = "a bad sector"
            raise StorageError(what, url=self.url, start=start, stop=stop)
        return original(self, start, stop)

    monkeypatch.setattr(LocalFile, "read", fail)
    flip(shard, 5000)
    report = shardio.verify(root)
    assert kinds(report) == ["unreadable", "block", "record"]
    assert report.findings[0].row_stop is not None


def test_a_newer_index_is_not_called_damage(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardio.reader import _pool

    def refuse(*_, url: str, **__):
        what = "a shard index was written by a newer shardio"
        raise UnsupportedVersionError(what, url=url)

    monkeypatch.setattr(_pool, "parse_head", refuse)
    report = shardio.verify(dataset)
    assert set(kinds(report)) == {"unreadable"}
    assert not report.damaged
    assert report.good_records == 120


def test_places_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        shardio.verify(tmp_path)
    with pytest.raises(NotFoundError):
        shardio.verify(tmp_path / "absent.tfrecord")


def test_an_empty_split_and_an_empty_version(tmp_path: Path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds"):
        pass
    report = shardio.verify(tmp_path / "ds")
    assert report.ok
    assert report.records == 0


def test_progress_rises_to_the_end(dataset: Path) -> None:
    flip(shards(dataset)[0], 5)
    shards(dataset)[1].unlink()
    states: list[tuple[int, int, int]] = []

    def watch(state: VerifyProgress) -> None:
        states.append((state.done_bytes, state.total_bytes, len(state.findings)))

    report = shardio.verify(dataset, progress=watch)
    assert states == sorted(states)
    assert states[-1] == (report.stored_bytes, report.stored_bytes, len(report.findings))


def test_a_report_is_ready_for_json(dataset: Path) -> None:
    flip(shards(dataset)[0], 20)
    report = shardio.verify(dataset)
    document = json.loads(json.dumps(report.to_dict()))
    assert document["ok"] is False
    assert document["findings"][0]["kind"] == "block"
    assert document["findings"][0]["expected"].startswith("CRC-32C 0x")
    assert "row" in document["findings"][0]
    text = str(report.findings[0])
    assert text.startswith("block: a block does not match its checksum")
    assert str(shards(dataset)[0]) in text
