"""Small shards of many tasks become large ones before the commit, as many as their bytes ask for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import shardio
from tests.suites.datasets import numbers


def row(n: int) -> Any:
    if n % 11 == 10:
        message = "no such item"
        raise ValueError(message)
    return ("val" if n % 5 == 0 else "train", {"n": n, "data": bytes([n % 256]) * 100})


SCHEMA = {"n": "int64", "data": "bytes"}
GOOD = [n for n in range(300) if n % 11 != 10]
WANTED = {"train": [n for n in GOOD if n % 5], "val": [n for n in GOOD if n % 5 == 0]}


def written(url: Path, items: Any = range(300), **options: Any) -> Any:
    with ThreadPoolExecutor(2) as executor:
        return shardio.write_dataset(
            url, items, row, schema=SCHEMA, executor=executor, on_error="skip", **options
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("compression", "mode"),
    [(None, "create"), ("zstd", "append"), ("gzip", "overwrite"), ("zlib", "create")],
)
def test_few_items_make_few_shards(tmp_path, compression, mode) -> None:
    before = 0
    if mode != "create":
        written(tmp_path / "ds", range(20))
        before = 2 if mode == "append" else 0
    report = written(tmp_path / "ds", mode=mode, compression=compression)
    assert (report.tasks, report.version) == (32, 1 if mode == "create" else 2)
    assert report.records == {split: len(rows) for split, rows in WANTED.items()}
    assert sorted(bad.item for bad in report.skipped) == list(range(10, 300, 11))
    assert shardio.open(tmp_path / "ds", "all").num_shards == 2 + before
    for split, rows in WANTED.items():
        assert numbers(tmp_path / "ds", split)[-len(rows) :] == rows
    assert shardio.verify(tmp_path / "ds").ok
    # What the tasks had stored is gone: a shard and its index of each split are left, and those of before.
    again = 4 * (mode != "create")
    assert len(list((tmp_path / "ds" / "data").iterdir())) == 4 + again
    assert not list((tmp_path / "ds").rglob("*.receipt"))


def test_shards_are_near_their_size(tmp_path) -> None:
    written(tmp_path / "ds", shard_bytes=10_000)
    sizes = shardio.open(tmp_path / "ds", "train").source.table.stored_bytes.tolist()
    assert len(sizes) > 2
    assert all(5_000 < size <= 10_000 for size in sizes[:-1])
    assert numbers(tmp_path / "ds", "train") == WANTED["train"]


def test_iterators_too(tmp_path) -> None:
    written(tmp_path / "ds", iter(range(300)))
    assert shardio.open(tmp_path / "ds", "all").num_shards == 2
    assert numbers(tmp_path / "ds", "train") == WANTED["train"]


@pytest.mark.parametrize("options", [{"tasks": 8}, {"session": "mine"}, {"shard_bytes": 300}])
def test_what_stays_as_tasks_left_it(tmp_path, options) -> None:
    """The caller's tasks and sessions, and shards that are as large as was asked for."""
    written(tmp_path / "ds", **options)
    assert shardio.open(tmp_path / "ds", "all").num_shards > 8
    assert numbers(tmp_path / "ds", "train") == WANTED["train"]


def test_a_shuffle(tmp_path) -> None:
    written(tmp_path / "ds", shuffle=True, seed=3)
    written(tmp_path / "again", shuffle=True, seed=3, tasks=5)
    assert shardio.open(tmp_path / "ds", "all").num_shards == 2
    assert numbers(tmp_path / "ds", "train") == numbers(tmp_path / "again", "train") != WANTED["train"]
    assert sorted(numbers(tmp_path / "ds", "train")) == WANTED["train"]


def test_an_overwrite_does_not_begin_again_on_what_came_in_between(tmp_path) -> None:
    written(tmp_path / "ds", range(20))

    def commit_meanwhile(progress: Any) -> None:
        if progress.done and shardio.open(tmp_path / "ds", "all").version == 1:
            with shardio.DatasetWriter(tmp_path / "ds", mode="append") as out:
                out.write({"n": 1000, "data": b""}, split="train")

    with pytest.raises(shardio.errors.CommitConflictError):
        written(tmp_path / "ds", mode="overwrite", progress=commit_meanwhile)
    assert numbers(tmp_path / "ds", "train")[-1] == 1000
