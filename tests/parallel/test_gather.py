"""Small shards of many tasks become large ones before the commit, as many as their bytes ask for."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import shardio
from shardio.metadata import ShardEntry, ShardTable
from shardio.parallel import _session
from shardio.parallel._gather import gathered


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


def numbers(url: Path, split: str) -> list[int]:
    return [int(value["n"]) for value in shardio.open(url, split)]


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


def test_a_copy_that_fails_leaves_nothing(tmp_path, monkeypatch) -> None:
    class Failing:
        def __init__(self, *_: object) -> None:
            pass

        def __call__(self, run: Any) -> Any:
            raise RuntimeError(run.split)

    monkeypatch.setattr(_session, "StoredPayloads", Failing)
    with pytest.raises(RuntimeError, match=r"train|val"):
        written(tmp_path / "ds")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    monkeypatch.undo()
    written(tmp_path / "ds")
    assert numbers(tmp_path / "ds", "val") == WANTED["val"]


def test_an_overwrite_does_not_begin_again_on_what_came_in_between(tmp_path, monkeypatch) -> None:
    written(tmp_path / "ds", range(20))
    run = _session.Driver.run

    def commit_meanwhile(self: Any, *parts: Any) -> None:
        run(self, *parts)
        monkeypatch.setattr(_session.Driver, "run", run)
        with shardio.DatasetWriter(tmp_path / "ds", mode="append") as out:
            out.write({"n": 1000, "data": b""}, split="train")

    monkeypatch.setattr(_session.Driver, "run", commit_meanwhile)
    with pytest.raises(shardio.errors.CommitConflictError):
        written(tmp_path / "ds", mode="overwrite")
    assert numbers(tmp_path / "ds", "train")[-1] == 1000


def table_of(sizes: list[tuple[str, int]]) -> ShardTable:
    facts: dict[str, Any] = {"uuid": bytes(16), "rows": 1, "blocks": 1, "crc32c": 0, "index_head_bytes": 0}
    return ShardTable.from_entries(
        ShardEntry(
            split=split,
            key=f"data/{number}.tfrecord",
            stored_bytes=size,
            decoded_bytes=size,
            index_head_sha256=bytes(32),
            **facts,
        )
        for number, (split, size) in enumerate(sizes)
    )


@given(
    sizes=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 400)), max_size=40),
    shard_bytes=st.integers(1, 2000),
)
def test_runs(sizes, shard_bytes) -> None:
    """Every shard is in one run of its split, in order; no run has room for the first shard of the next."""
    table = table_of(sizes)
    runs = gathered(table, shard_bytes)
    large = 4 * sum(size for _, size in sizes) >= shard_bytes * len(sizes)
    if runs is None:
        assert (
            large or max([len(table.of_split(split)) for split in "ab"]) < 2 or not fits(sizes, shard_bytes)
        )
        return
    assert not large
    for split in "ab":
        parts = [run.shards for run in runs if run.split == split]
        assert [key for part in parts for key in part.key] == list(table.of_split(split).key)
        held = [int(part.stored_bytes.sum()) for part in parts]
        assert all(size <= shard_bytes or len(part) == 1 for size, part in zip(held, parts, strict=True))
        firsts = [int(part.stored_bytes[0]) for part in parts[1:]]
        assert all(size + first > shard_bytes for size, first in zip(held, firsts, strict=False))


def fits(sizes: list[tuple[str, int]], shard_bytes: int) -> bool:
    """Tell whether any two neighbours of a split fit into one shard."""
    by_split = ([size for split, size in sizes if split == name] for name in "ab")
    return any(one + other <= shard_bytes for part in by_split for one, other in itertools.pairwise(part))
