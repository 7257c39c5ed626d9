"""From what is typed to the objects that are meant."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

import shardio
import shardio_indexer
from shardio.cli import main
from shardio.errors import CommitConflictError, NotFoundError
from shardio.storage import MemoryStore
from tests.indexer.shards import tfrecord


def test_a_pattern_takes_no_sidecars(tmp_path) -> None:
    for name in ("train-0.tfrecord", "train-0.tfrecord.shardidx", "train-0.index", "_shardio/x.tfrecord"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(tfrecord([b"a"]) if name == "train-0.tfrecord" else b"x")
    report = shardio_indexer.adopt([f"{tmp_path}/train-0.*", f"{tmp_path}/**"], into=tmp_path / "into")
    assert (report.ok, report.adopted) == (True, 1)


@pytest.mark.parametrize("pattern", ["nothing-*", "absent.tfrecord", "empty"])
def test_what_matches_nothing_is_named_and_the_rest_done(tmp_path, pattern) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("words")
    with pytest.raises(NotFoundError, match=pattern.rstrip("*")):
        shardio_indexer.adopt(f"{tmp_path}/{pattern}")
    assert [path.name for path in (tmp_path / "_shardio").rglob("*.manifest")] == []
    report = shardio_indexer.adopt([f"{tmp_path}/{pattern}", f"{tmp_path}/notes.txt"], into=tmp_path / "into")
    assert (report.ok, report.adopted, len(report.refused)) == (False, 1, 1)
    assert pattern.rstrip("*") in str(report.refused[0].error)


def lines(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"n": 1}\n')


@pytest.mark.parametrize("named", ["data.jsonl", "*.jsonl", "{data,more}.jsonl", "a+b"])
def test_a_folder_that_was_not_named_becomes_no_dataset_beside_other_files(tmp_path, capsys, named) -> None:
    """A file or pattern, or several folders, among other data: the caller says where the dataset goes."""
    lines(*(tmp_path / name for name in ("data.jsonl", "more.jsonl", "a/0.jsonl", "b/0.jsonl", "c/0.jsonl")))
    urls = [str(tmp_path / name) for name in (["a", "b"] if named == "a+b" else [named])]
    with pytest.raises(ValueError, match=r"would become the dataset, and holds other files too") as caught:
        shardio_indexer.adopt(urls)
    assert "with into=" in str(caught.value)
    assert main(["index", *urls]) == 2
    assert "--into" in capsys.readouterr().err
    assert not (tmp_path / "_shardio").exists()
    # What the message says works: that folder, or another one; and again without saying it.
    assert main(["index", *urls, "--into", str(tmp_path.parent / f"{tmp_path.name}-into")]) == 0
    assert main(["index", *urls, "--into", str(tmp_path)]) == 0
    assert main(["index", *urls]) == 0
    assert shardio_indexer.adopt(urls).known > 0
    capsys.readouterr()


@pytest.mark.parametrize("named", ["data.jsonl", "*.jsonl", ""])
def test_a_folder_with_nothing_else_in_it_is_the_place(tmp_path, named) -> None:
    lines(tmp_path / "data.jsonl")
    for beside in ("README.md", "data.jsonl.idx", ".hidden", "_SUCCESS", "data.jsonl.md5"):
        (tmp_path / beside).write_bytes(b"")
    assert shardio_indexer.adopt(tmp_path / named).url == str(tmp_path)


def test_a_folder_that_is_named_is_the_place_whatever_it_holds(tmp_path) -> None:
    lines(tmp_path / "data.jsonl")
    (tmp_path / "photo.jpg").write_bytes(b"")
    assert shardio_indexer.adopt(tmp_path).url == str(tmp_path)


def test_datasets_are_not_nested(tmp_path) -> None:
    """A new dataset is neither within another one nor around one; one that is there goes on."""
    lines(tmp_path / "outer" / "data.jsonl", tmp_path / "above" / "x" / "data.jsonl", tmp_path / "l.jsonl")
    shardio_indexer.adopt(tmp_path / "outer")
    inner = tmp_path / "outer" / "deep" / "er"
    ways = [
        lambda url: shardio.convert_dataset(tmp_path / "l.jsonl", url),
        lambda url: shardio_indexer.adopt(tmp_path / "l.jsonl", into=url),
        shardio.DatasetWriter,
        lambda url: shardio.write_dataset(url, [1], json.dumps),
    ]
    for way in ways:
        with pytest.raises(CommitConflictError) as caught:
            way(inner)
        assert caught.value.found == f"a dataset at {tmp_path / 'outer'}"
        assert not (inner / "_shardio").exists()
    (tmp_path / "outer" / "linked").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "outer" / "linked")
    with pytest.raises(CommitConflictError):
        shardio.DatasetWriter(tmp_path / "link" / "deep")
    (tmp_path / "link").unlink()
    # What the advice says works.
    assert shardio.convert_dataset(tmp_path / "l.jsonl", tmp_path / "outside").version == 1
    shardio_indexer.adopt(tmp_path / "above" / "x")
    for into in (None, tmp_path / "above"):
        with pytest.raises(ValueError, match="is a dataset by itself, and a dataset at"):
            shardio_indexer.adopt(tmp_path / "above", into=into)
    lines(tmp_path / "outer" / "more.jsonl")
    assert shardio_indexer.adopt(tmp_path / "outer").version == 2


def test_creating_looks_once_into_each_folder_above_and_appending_into_none(monkeypatch) -> None:
    looked: list[str] = []
    head = MemoryStore.head

    def noted(store: MemoryStore, key: str) -> object:
        looked.append(store.url_of(key))
        return head(store, key)

    monkeypatch.setattr(MemoryStore, "head", noted)
    root = f"memory://nested{uuid.uuid4().hex}"
    above = [f"{root}{folder}/_shardio/latest" for folder in ("/a/b", "/a", "")]
    with shardio.DatasetWriter(f"{root}/a/b/c") as out:
        out.write(b"x")
    assert [url for url in looked if url in above] == above
    looked.clear()
    with shardio.DatasetWriter(f"{root}/a/b/c", mode="append") as out:
        out.write(b"y")
    assert not set(looked) & set(above)
    with pytest.raises(CommitConflictError):
        shardio.DatasetWriter(f"{root}/a/b/c/d")


@pytest.mark.parametrize("target", [".", "photos", "photos/.."])
def test_conversion_does_not_write_around_its_own_source(tmp_path, monkeypatch, target) -> None:
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "photos" / "data.jsonl")
    for source in ("photos", "photos/data.jsonl", "photos/*"):
        with pytest.raises(ValueError, match=r"holds the source .* choose another place"):
            shardio.convert_dataset(source, target)
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    for source, place in (("photos", "link"), ("link", "photos"), ("link/*", f"file://{tmp_path}/photos")):
        with pytest.raises(ValueError, match=r"holds the source .* choose another place"):
            shardio.convert_dataset(source, place)
    assert not list(tmp_path.rglob("_shardio"))
    shardio.convert_dataset("photos", "other")
