"""Exports of some features, and of readers: the records, features and splits that the reader shows."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
from shardio import Feature
from shardio.cli import main
from shardio.errors import CommitConflictError, FormatError, SchemaError
from shardio.formats import AtomicOutput
from shardio.storage import connect
from tests.convert.conftest import picture
from tests.suites.cases import one_fast
from tests.suites.errors import refused

pytestmark = pytest.mark.filterwarnings("ignore:.*has no index")

KINDS = ["tfrecord", "webdataset", "jsonl", "parquet", "mds"]


@pytest.fixture(name="url")
def url_fixture(tmp_path: Path) -> Path:
    schema = {"id": "int64", "word": "text", "image": "jpeg", "score": Feature("float32", default=1.5)}
    with shardio.DatasetWriter(tmp_path / "ds", schema=schema) as out:
        for n in range(24):
            row = {"id": n, "word": f"w{n}", "image": picture(n)}
            out.write(row | ({"score": n} if n % 2 else {}), split="val" if n % 4 == 0 else "train")
    return tmp_path / "ds"


def record(n: int, *names: str) -> dict[str, Any]:
    score = np.float32(n if n % 2 else 1.5)
    return {
        name: {"id": n, "word": f"w{n}", "image": picture(n), "score": score, "note": f"n{n // 2}"}[name]
        for name in names
    }


def back(folder: Path, kind: str) -> dict[str, list[Any]]:
    """Return the records of each split of an export, converted and called as they were."""
    names = {
        "word.txt": "word",
        "note.txt": "note",
        "image.jpg": "image",
        "score.npy": "score",
        "id.cls": "id",
    }
    shardio.convert_dataset(folder, folder.with_name("back"), kind=kind)
    found = shardio.open(folder.with_name("back"), "all")
    return {
        split: [
            {
                names.get(name, name): item.decode() if isinstance(item, bytes) and len(item) < 9 else item
                for name, item in value.items()
                if name != "__key__"
            }
            for value in shardio.open(folder.with_name("back"), split)
        ]
        for split in found.splits
    }


VAL, TRAIN = [n for n in range(24) if n % 4 == 0], [n for n in range(24) if n % 4]


@pytest.mark.parametrize("kind", one_fast(KINDS, 0))
def test_some_features(url, tmp_path, kind) -> None:
    shardio.export_dataset(url, tmp_path / "out", kind=kind, features=["word", "score"])
    wanted = {
        "train": [record(n, "word", "score") for n in TRAIN],
        "val": [record(n, "word", "score") for n in VAL],
    }
    assert back(tmp_path / "out", kind) == wanted


@pytest.mark.parametrize("kind", one_fast(KINDS, 1))
def test_tensors_keep_their_bytes(tmp_path, kind) -> None:
    types = {"x": "tensor:float32[?]", "any": Feature("tensor", optional=kind != "mds")}
    with shardio.DatasetWriter(tmp_path / "ds", schema=types) as out:
        out.write({"x": [1, 2], "any": np.array(["a", "bc"])})
        out.write({"x": [], "any": np.arange(6, dtype="i2").reshape(2, 3)})
        if kind != "mds":
            out.write({"x": [3]})
    shardio.export_dataset(tmp_path / "ds", tmp_path / "out", kind=kind)
    shardio.convert_dataset(tmp_path / "out", tmp_path / "back", schema=types)
    found = list(shardio.open(tmp_path / "back"))
    for value, wanted in zip(found, shardio.open(tmp_path / "ds"), strict=True):
        assert value["x"].tolist() == wanted["x"].tolist()
        assert repr(value["any"]) == repr(wanted["any"])


@pytest.mark.parametrize("kind", one_fast(KINDS, 2))
def test_a_filtered_reader(url, tmp_path, kind) -> None:
    """Splits stay apart; how the reader decodes images makes no difference."""
    ds = shardio.open(url, "all", features=["id", "image"], decode="image")
    some = ds.filter(lambda columns: columns["id"] >= 10, features=["id"])
    report = shardio.export_dataset(some, tmp_path / "out", kind=kind)
    assert (report.url, report.version, report.digest) == (ds.source.url, 1, ds.digest)
    wanted = {
        "train": [record(n, "id", "image") for n in TRAIN if n >= 10],
        "val": [record(n, "id", "image") for n in VAL if n >= 10],
    }
    assert report.records == {split: len(rows) for split, rows in wanted.items()}
    assert back(tmp_path / "out", kind) == wanted


@pytest.mark.parametrize("kind", one_fast(KINDS, 3))
def test_a_selection_keeps_its_order(url, tmp_path, kind) -> None:
    ds = shardio.open(url, "all")
    report = shardio.export_dataset(ds.select([20, 3, 19, 3, 17, 0]), tmp_path / "out", kind=kind)
    assert report.records == {"train": 4, "val": 2}
    found = back(tmp_path / "out", kind)
    assert [row["id"] for row in found["train"]] == [TRAIN[3], TRAIN[3], TRAIN[17], TRAIN[0]]
    assert [row["id"] for row in found["val"]] == [VAL[2], VAL[1]]


@pytest.mark.parametrize("kind", one_fast(KINDS, 4))
def test_a_join(url, tmp_path, kind) -> None:
    with shardio.DatasetWriter(
        tmp_path / "notes", schema={"id": "int64", "note": "text", "photo": "jpeg"}
    ) as out:
        for n in range(24):
            out.write({"id": n, "note": f"n{n // 2}", "photo": picture(n)})
    left, right = shardio.open(url, "train", decode="image"), shardio.open(tmp_path / "notes", decode="image")
    both = shardio.join(left, right, on="id")
    shardio.export_dataset(both[::2], tmp_path / "out", kind=kind, features=["word", "note", "image"])
    assert back(tmp_path / "out", kind) == {"train": [record(n, "word", "note", "image") for n in TRAIN[::2]]}
    if kind == "mds":
        shardio.export_dataset(both, tmp_path / "photos", kind=kind, features=["photo"])
        shards = json.loads((tmp_path / "photos" / "train" / "index.json").read_text())["shards"]
        assert shards[0]["column_encodings"] == ["jpeg"]


def test_payloads_are_copied_where_nothing_is_chosen(url, tmp_path) -> None:
    ds = shardio.open(url, "train")
    shardio.export_dataset(ds[5:9], tmp_path / "out", kind="tfrecord")
    found = list(shardio.open_shard(tmp_path / "out" / "train-00000.tfrecord"))
    assert found == list(shardio.open(url, "train", decode=False)[5:9])
    # Encoded again, a record holds what the reader shows: the default too, and names that were changed.
    shardio.set_schema(url, rename={"word": "name"})
    shardio.export_dataset(url, tmp_path / "some", kind="tfrecord", split="train", features=["name", "score"])
    first = next(iter(shardio.open_shard(tmp_path / "some" / "train-00000.tfrecord")))
    assert set(shardio.codecs.decode_example(first)) == {"name", "score"}


def test_damage_is_left_out_where_the_reader_leaves_it_out(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", {"n": "int64"}, block_bytes=1) as out:
        for n in range(11):
            out.write({"n": n})
    place = shardio.open(tmp_path / "ds").locate(5)
    file = Path(place.url.removeprefix("file://"))
    data = bytearray(file.read_bytes())
    data[place.stop - 5] ^= 1
    file.write_bytes(data)
    ds = shardio.open(tmp_path / "ds")
    with pytest.raises(FormatError):
        shardio.export_dataset(ds[3:], tmp_path / "out", kind="jsonl")
    skipping = shardio.open(tmp_path / "ds", on_error="skip")
    for number, options in enumerate(({"url": skipping[3:]}, {"url": ds[3:], "on_error": "skip"})):
        report = shardio.export_dataset(target=tmp_path / f"{number}", kind="jsonl", **options)
        assert report.records == {"train": 7}
        assert [bad.where for bad in report.skipped] == [f"{ds.source.url} train 5"]


def test_sequence_examples(tmp_path) -> None:
    schema = {"context": {"a": "int64", "b": "text"}, "feature_lists": {"c": "int64", "d": "text"}}
    with shardio.DatasetWriter(tmp_path / "ds", schema=schema, encoding="sequence_example") as out:
        out.write({"context": {"a": 1, "b": "x"}, "feature_lists": {"c": [1, 2], "d": ["y"]}})
    shardio.export_dataset(tmp_path / "ds", tmp_path / "lines", kind="jsonl", features=["b", "c"])
    line = json.loads((tmp_path / "lines" / "train.jsonl").read_text())
    assert line == {"context": {"b": "x"}, "feature_lists": {"c": [1, 2]}}
    shardio.export_dataset(tmp_path / "ds", tmp_path / "records", kind="tfrecord", features=["a", "d"])
    (payload,) = shardio.open_shard(tmp_path / "records" / "train-00000.tfrecord")
    record = shardio.codecs.decode_sequence_example(payload)
    assert {name: set(group) for name, group in record.items()} == {"context": {"a"}, "feature_lists": {"d"}}


def test_what_makes_no_sense(url, tmp_path) -> None:
    def refused(error: type[Exception], match: str, source: Any = url, **options: Any) -> None:
        with pytest.raises(error, match=match):
            shardio.export_dataset(source, tmp_path / "out", kind="jsonl", **options)
        assert not (tmp_path / "out").exists()

    refused(ValueError, "there is no feature 'x'", features=["x"])
    refused(TypeError, "features= takes a list of names", features="word")
    refused(ValueError, r"features=\[\] names no feature", features=[])
    reader = shardio.open(url, "train")
    refused(ValueError, "split='val': a reader has that already", reader, split="val")
    refused(ValueError, "version=1: a reader has that already", reader, version=1)
    refused(ValueError, "storage_options=", reader, storage_options={"anon": True})
    with shardio.DatasetWriter(tmp_path / "bytes") as out:
        out.write(b"x")
    refused(ValueError, "features= needs a schema", tmp_path / "bytes", features=["x"])


def test_leaving_out_what_the_kind_cannot_hold(tmp_path) -> None:
    schema = {"n": "int64", "z": "complex64", "note": Feature("text", optional=True)}
    with shardio.DatasetWriter(tmp_path / "ds", schema=schema) as out:
        out.write({"n": 3, "z": 1j})
    with refused(ValueError, "'z'"):
        shardio.export_dataset(tmp_path / "ds", tmp_path / "out", kind="mds")
    with refused(SchemaError, "'note'", "features="):
        shardio.export_dataset(tmp_path / "ds", tmp_path / "out", kind="mds", features=["n", "note"])
    shardio.export_dataset(tmp_path / "ds", tmp_path / "out", kind="mds", features=["n"])
    assert back(tmp_path / "out", "mds") == {"train": [{"n": 3}]}


def test_the_command(url, tmp_path, capsys) -> None:
    target = str(tmp_path / "out")
    assert (
        main(["export", str(url), target, "--kind", "jsonl", "--features", "id,word", "--split", "val"]) == 0
    )
    lines = (tmp_path / "out" / "val.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [record(n, "id", "word") for n in VAL]
    assert main(["export", str(url), str(tmp_path / "no"), "--kind", "jsonl", "--features", "nothing"]) == 2
    assert "there is no feature 'nothing'" in capsys.readouterr().err


class Twice(ThreadPoolExecutor):
    """Does each job twice, as where a worker is lost before it says that it is done."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        super().submit(fn, *args, **kwargs).result()
        return super().submit(fn, *args, **kwargs)


@pytest.mark.parametrize("kind", one_fast(KINDS, 0))
def test_jobs_export_what_one_process_does(url, tmp_path, kind) -> None:
    options: dict[str, Any] = {"kind": kind, "features": ["word", "score"], "shard_bytes": 2000}
    with Twice(2) as executor:
        report = shardio.export_dataset(url, tmp_path / "out", executor=executor, **options)
        bucket = f"memory://{tmp_path.name}-{kind}"
        assert shardio.export_dataset(url, bucket, executor=executor, **options).files == report.files
    assert report.records == {"train": len(TRAIN), "val": len(VAL)}
    assert len(report.files) > 4
    assert set(report.files) == {info.key for info in connect(bucket).list()}
    assert back(tmp_path / "out", kind) == {
        "train": [record(n, "word", "score") for n in TRAIN],
        "val": [record(n, "word", "score") for n in VAL],
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "ds", "out"]


def test_jobs_that_want_the_same_name_leave_nothing(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", schema={"image": "jpeg", "path": "text"}) as out:
        for n in range(8):
            out.write({"image": picture(n), "path": f"{n % 7}.jpg"})
    bucket = f"memory://{tmp_path.name}"
    with ThreadPoolExecutor(2) as executor:
        said = {tmp_path / "out": "two files of the export want", bucket: "another writer wrote this file"}
        for target, words in said.items():
            with pytest.raises(CommitConflictError, match=words):
                shardio.export_dataset(
                    tmp_path / "ds", target, kind="images", shard_bytes=1, executor=executor
                )
    assert list(connect(bucket).list()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["ds"]


def test_jobs_end_before_what_they_write_is_removed(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", schema={"image": "jpeg", "path": "text"}) as out:
        for n in range(1600):
            out.write({"image": picture(0), "path": f"{max(n, 1)}.jpg"})
    size = shardio.open(tmp_path / "ds").num_bytes
    with ThreadPoolExecutor(2) as executor, pytest.raises(CommitConflictError):
        shardio.export_dataset(
            tmp_path / "ds", tmp_path / "out", kind="images", shard_bytes=size // 2, executor=executor
        )
    assert [path.name for path in tmp_path.iterdir()] == ["ds"]


def test_an_interrupt_between_two_jobs_leaves_nothing(url, tmp_path, monkeypatch) -> None:
    """Jobs that still run when Ctrl-C comes between two results hand over what is removed."""
    bucket, take, taken = f"memory://{tmp_path.name}-ctrl-c", AtomicOutput.take, threading.Event()

    def interrupted(output: AtomicOutput, names: list[str]) -> None:
        take(output, names)
        taken.set()
        raise KeyboardInterrupt

    class Held(ThreadPoolExecutor):
        """Ends the first job, and the others when that was taken."""

        first = True

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            first, self.first = self.first, False
            return super().submit(lambda: (first or taken.wait(60), fn(*args, **kwargs))[1])

    monkeypatch.setattr(AtomicOutput, "take", interrupted)
    for target in (tmp_path / "out", bucket):
        taken.clear()
        with Held(8) as executor, pytest.raises(KeyboardInterrupt):
            shardio.export_dataset(url, target, kind="jsonl", shard_bytes=2000, executor=executor)
    assert list(connect(bucket).list()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["ds"]


class Slow(Executor):
    """Does the first job, fails in the second, and never ends the others."""

    def __init__(self) -> None:
        self.jobs = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.jobs += 1
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        if self.jobs == 1:
            future.set_result(fn(*args, **kwargs))
        elif self.jobs == 2:
            future.set_exception(FormatError("damage"))
        return future


def test_jobs_that_outlive_a_failed_export_are_told(url, tmp_path, monkeypatch, recwarn) -> None:
    monkeypatch.setattr("shardio.parallel._jobs._ENDING_SECONDS", 0.0)
    bucket = f"memory://{tmp_path.name}-slow"
    for target in (tmp_path / "out", bucket):
        executor = Slow()
        with pytest.raises(FormatError):
            shardio.export_dataset(url, target, kind="jsonl", shard_bytes=2000, executor=executor)
    assert list(connect(bucket).list()) == []
    local, remote = (str(told.message) for told in recwarn)
    assert f"{executor.jobs - 2} others still run on the executor" in remote
    assert str(tmp_path) in local
    assert bucket in remote
