"""Bad input: a clear error of the tree, nothing lost, nothing half visible."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardio
import shardio_indexer
from shardio.convert import convert_dataset, export_dataset
from shardio.errors import (
    CommitConflictError,
    FormatError,
    NotFoundError,
    SchemaError,
    ShardioError,
    StorageError,
)
from shardio.sources import SplitUrl
from shardio.storage import connect
from tests.promises.places import PLACES, fresh
from tests.suites.errors import refused

EVERY_PLACE = pytest.mark.parametrize("place", PLACES)


def test_addresses_that_lead_nowhere_or_home(tmp_path):
    """A file URL may name the machine, no name holds a NUL, and other data does not belong into metadata."""
    url = tmp_path / "d"
    with shardio.DatasetWriter(f"file://localhost{url}") as out:
        out.write(b"wren")
    assert list(shardio.open(f"file://localhost{url}")) == list(shardio.open(url)) == [b"wren"]
    assert SplitUrl.parse(f"FILE://localhost{url}").url == str(url)
    for take in (shardio.open, shardio.DatasetWriter):
        with pytest.raises(ValueError, match="holds a character NUL"):
            take(f"{url}\0d")
    for inside in (url / "_shardio", url / "_shardio" / "other"):
        with pytest.raises(ValueError, match="holds the metadata of another dataset"):
            shardio.DatasetWriter(inside)


@pytest.mark.parametrize("version", [1.0, True])
def test_versions_are_integers_tags_or_none(tmp_path, version):
    with shardio.DatasetWriter(tmp_path / "d") as out:
        out.write(b"wren")
    assert len(shardio.open(tmp_path / "d", version=np.int64(1))) == 1
    with pytest.raises(TypeError, match=f"version must be an integer, found {version}"):
        shardio.open(tmp_path / "d", version=version)


def test_a_directory_that_is_no_dataset(tmp_path):
    (tmp_path / "notes.txt").write_text("wren")
    (tmp_path / "train-00000.tfrecord").write_bytes(b"")
    with pytest.raises(NotFoundError) as caught:
        shardio.open(tmp_path)
    assert caught.value.url == str(tmp_path)
    assert "shardio adopt" in str(caught.value)


@EVERY_PLACE
def test_an_empty_place(place, tmp_path):
    url = fresh(place, tmp_path)
    if place == "local":
        Path(url).mkdir()
    for call in (shardio.open, shardio.log, shardio.gc):
        with pytest.raises(NotFoundError):
            call(url)
    with shardio.DatasetWriter(url) as out:
        out.write(b"wren")
    assert list(shardio.open(url)) == [b"wren"]


def test_a_file_where_a_dataset_should_be(tmp_path):
    path = tmp_path / "wren.txt"
    path.write_text("wren")
    with pytest.raises(NotFoundError):
        shardio.open(path)
    with pytest.raises(ShardioError):
        shardio.DatasetWriter(path)
    assert path.read_text() == "wren"


@pytest.mark.parametrize(
    "data", [b"wren", b"\x89PNG\r\n\x1a\n" + bytes(100), bytes(1000), b"PAR1" * 50, b"{}\n" * 40]
)
def test_a_foreign_file(data, tmp_path):
    path = tmp_path / "foreign.tfrecord"
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="no index"):
        shard = shardio.open_shard(path)
    with pytest.raises(FormatError) as caught:
        list(shard)
    assert caught.value.url == str(path)


def test_an_index_of_an_older_file_of_the_same_name(tmp_path):
    for seed in (b"wren", b"hawk"):
        with shardio.ShardWriter(tmp_path / f"{seed.decode()}.tfrecord") as out:
            out.write(seed)
    (tmp_path / "wren.tfrecord").unlink()
    (tmp_path / "hawk.tfrecord").rename(tmp_path / "wren.tfrecord")
    with pytest.raises(ShardioError) as caught:
        list(shardio.open_shard(tmp_path / "wren.tfrecord"))
    assert caught.value.url == str(tmp_path / "wren.tfrecord")


SCHEMA = {"label": "int64", "beak": "float32[2]", "name": "text"}
RIGHT = {"label": 1, "beak": [0.5, 1.5], "name": "wren"}


@pytest.mark.parametrize(
    ("value", "feature"),
    [
        ({**RIGHT, "label": "seven"}, "label"),
        ({**RIGHT, "label": 1.5}, "label"),
        ({**RIGHT, "label": 1 << 63}, "label"),
        ({**RIGHT, "beak": [1.0]}, "beak"),
        ({**RIGHT, "beak": [[1.0, 2.0]]}, "beak"),
        ({**RIGHT, "name": b"\xff"}, "name"),
        ({**RIGHT, "name": "\ud800"}, "name"),
        ({**RIGHT, "name": None}, "name"),
        ({"label": 1, "beak": [1.0, 2.0]}, "name"),
        ({**RIGHT, "legs": 2}, "legs"),
    ],
)
@EVERY_PLACE
def test_a_value_that_does_not_fit(value, feature, place, tmp_path):
    """A value that does not fit the schema names the feature and the record number; writing may continue."""
    url = fresh(place, tmp_path)
    with shardio.DatasetWriter(url, SCHEMA) as out:
        out.write(RIGHT)
        out.write(RIGHT)
        with pytest.raises(SchemaError, match=f"'{feature}'") as caught:
            out.write(value)
        assert (caught.value.row, caught.value.url) == (2, url)
        assert "row 2" in str(caught.value)
        out.write({**RIGHT, "label": 3})
    found = list(shardio.open(url))
    assert [int(record["label"]) for record in found] == [1, 1, 3]


@pytest.mark.parametrize("value", ["text", 7, None, {"a": 1}, ["a"]])
def test_a_value_that_is_no_bytes(value, tmp_path):
    url = fresh("memory", tmp_path)
    with shardio.DatasetWriter(url) as out:
        out.write(b"one")
        with refused(TypeError, "bytes"):
            out.write(value)
        out.write(bytearray(b"two"))
        out.write(memoryview(b"three"))
    assert list(shardio.open(url)) == [b"one", b"two", b"three"]


def test_a_record_over_the_limit_has_an_address(tmp_path, monkeypatch):
    url = fresh("memory", tmp_path)
    with shardio.DatasetWriter(url, block_bytes=64) as out:
        out.write(b"before")
        monkeypatch.setattr(out._splits["train"].spool.blocks, "_max_record", 100)
        with pytest.raises(SchemaError) as caught:
            out.write(bytes(101))
        assert (caught.value.row, caught.value.url) == (1, url)
        out.write(b"after")
    assert list(shardio.open(url)) == [b"before", b"after"]


@pytest.fixture
def unwritable(tmp_path):
    """A folder that may not be written to; root may write everywhere, so the disk is made to refuse."""
    folder = tmp_path / "unwritable"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    yield folder
    folder.chmod(stat.S_IRWXU)


def test_an_unwritable_place(unwritable, monkeypatch):
    if os.geteuid() == 0:
        monkeypatch.setattr("pathlib.Path.mkdir", refuse)
        monkeypatch.setattr("os.mkdir", refuse)
    with pytest.raises(StorageError) as caught:
        shardio.DatasetWriter(unwritable / "ds")
    assert str(unwritable) in str(caught.value.url)
    assert "Permission denied" in str(caught.value)
    monkeypatch.undo()
    assert list(unwritable.iterdir()) == []


def refuse(path, *_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def test_a_place_that_is_read_only(tmp_path):
    with pytest.raises(StorageError):
        shardio.DatasetWriter("http://127.0.0.1:9/ds")


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("room", [0, 1, 50, 200])
def test_a_full_disk(room, tmp_path, monkeypatch):
    """A full disk ends the write with a clear error; nothing is visible, and nothing stays behind."""
    url = str(tmp_path / "ds")
    with shardio.DatasetWriter(url) as out:
        out.write(b"first")
    script = f"""
import resource, signal, shardio
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
out = shardio.DatasetWriter({url!r}, mode="append", block_bytes=64)
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
try:
    for k in range(100_000):
        out.write(b"record" * 10)
    out.close()
except shardio.errors.StorageError as error:
    print("refused:", error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("refused:"), done.stdout + done.stderr
    assert "File too large" in done.stdout
    assert list(shardio.open(url)) == [b"first"]
    assert list(connect(url).list_temporaries()) == []
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write(b"second")
    assert list(shardio.open(url)) == [b"first", b"second"]


def test_create_where_there_is_a_dataset(tmp_path):
    url = fresh("memory", tmp_path)
    shardio.DatasetWriter(url).close()
    with pytest.raises(CommitConflictError) as caught:
        shardio.DatasetWriter(url)
    assert caught.value.found == "version 1"
    assert 'mode="append"' in str(caught.value.advice)


@EVERY_PLACE
def test_schemas_that_do_not_follow(place, tmp_path):
    url = fresh(place, tmp_path)
    with shardio.DatasetWriter(url, {"a": "int64"}) as out:
        out.write({"a": 1})
    for schema in ({"a": "float32"}, {"b": "int64"}, {"a": "int64", "b": "text"}):
        with pytest.raises(SchemaError):
            shardio.DatasetWriter(url, schema, mode="append")
    # A writer that began before the dataset was there finds out at the commit.
    late = fresh(place, tmp_path)
    out = shardio.DatasetWriter(late, {"a": "float32"}, mode="append")
    out.write({"a": 1.0})
    with shardio.DatasetWriter(late, {"a": "int64"}) as first:
        first.write({"a": 1})
    with pytest.raises(SchemaError):
        out.close()
    assert [int(record["a"]) for record in shardio.open(late)] == [1]
    bare = shardio.DatasetWriter(url, mode="append")
    bare.write({"a": 2})
    bare.close()
    assert [int(record["a"]) for record in shardio.open(url)] == [1, 2]


WITH_A_URL = {
    "open": shardio.open,
    "open_shard": shardio.open_shard,
    "DatasetWriter": shardio.DatasetWriter,
    "ShardWriter": shardio.ShardWriter,
    "write_dataset": lambda url: shardio.write_dataset(url, [1], bytes),
    "commit": lambda url: shardio.commit(url, session="run", tasks=1),
    "log": shardio.log,
    "gc": shardio.gc,
    "verify": shardio.verify,
    "adopt": shardio_indexer.adopt,
    "export_indexes": lambda url: shardio_indexer.export_indexes(url, form="dali"),
    "convert": lambda url: convert_dataset("items.jsonl", url, kind="jsonl"),
    "convert from": lambda url: convert_dataset(url, "new", kind="jsonl"),
    "export": lambda url: export_dataset(url, "out", kind="jsonl"),
    "export to": lambda url: export_dataset("ds", url, kind="jsonl"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("url", [None, 7, b"wren", ""])
@pytest.mark.parametrize("call", WITH_A_URL)
def test_a_url_that_is_none(call, url, tmp_path, monkeypatch):
    """A forgotten URL is not a folder called None, nor the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.jsonl").write_text("{}\n")
    with shardio.DatasetWriter("ds", {"a": "int64"}) as out:
        out.write({"a": 1})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((TypeError, ValueError)):
        WITH_A_URL[call](url)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({1: 2}, "1"),
        ({"a": {2: 3}}, "2"),
        ({"a": [{"b": ({None: 1},)}]}, "None"),
        ({True: 1, "a": 2}, "True"),
    ],
)
def test_keys_that_are_not_text(metadata, key, tmp_path):
    """JSON would make text of them in silence."""
    with pytest.raises(ValueError, match=f"the key {key} is"):
        shardio.DatasetWriter(tmp_path / "ds", metadata=metadata)
    assert not list(tmp_path.iterdir())
    with shardio.DatasetWriter(fresh("memory", tmp_path), {"a": "json"}) as out:
        with pytest.raises(SchemaError, match=f"the key {key} is"):
            out.write({"a": metadata})
        out.write({"a": {"b": 1}})


@pytest.mark.parametrize("task", [-1, 10**6, 10**20, True, 1.0, "1", None])
def test_a_task_that_is_no_number(task, tmp_path):
    with pytest.raises((TypeError, ValueError), match=r"task(=| must be an integer)"):
        shardio.DatasetWriter(tmp_path / "ds", session="run", task=task, commit=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tasks", [-1, 0, 10**6 + 1, 10**20, True, 1.0, "1"])
def test_a_number_of_tasks_that_is_none(tasks, tmp_path):
    for call in (
        lambda: shardio.commit(tmp_path / "ds", session="run", tasks=tasks),
        lambda: shardio.write_dataset(tmp_path / "ds", [1], bytes, tasks=tasks),
    ):
        with pytest.raises((TypeError, ValueError), match=r"tasks(=| must be an integer)"):
            call()
    assert not list(tmp_path.iterdir())
