"""The counters of a report of adoption: each number is of what happened, in every mix of what can happen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import shardio
from tests.indexer.shards import tfrecord

SPLIT = {"val": "val*", "train": "train*"}


def write(folder: Path, name: str, count: int) -> int:
    """Write a shard of so many records, newer than what was there; return its size."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.tfrecord"
    newer = path.stat().st_mtime_ns + 10**9 if path.exists() else None
    path.write_bytes(tfrecord([b"%d" % n for n in range(count)]))
    if newer is not None:
        os.utime(path, ns=(newer, newer))
    return path.stat().st_size


def counts(report) -> dict[str, object]:
    names = (
        "adopted",
        "known",
        "updated",
        "shards",
        "records",
        "stored_bytes",
        "splits",
        "dry_run",
        "version",
        "ok",
    )
    out = {name: getattr(report, name) for name in names}
    lists = ("refused", "stale", "missing", "dropped", "skipped", "ignored")
    return out | {name: len(getattr(report, name)) for name in lists if getattr(report, name)}


def test_every_counter_of_every_step(tmp_path) -> None:
    data = tmp_path / "data"

    def run(**options) -> dict[str, object]:
        return counts(shardio.adopt(data, split=SPLIT, workers=1, **options))

    sizes = {name: write(data, name, rows) for name, rows in (("train-0", 3), ("train-1", 4), ("val-0", 5))}
    plain = {"dry_run": False, "ok": True}
    shards = {"train": 2, "val": 1}
    total = sum(sizes.values())
    assert run(dry_run=True) == {
        "adopted": 3,
        "known": 0,
        "updated": 0,
        "shards": shards,
        "records": 0,
        "stored_bytes": total,
        "splits": {},
        "dry_run": True,
        "version": None,
        "ok": True,
    }
    first = {
        "shards": shards,
        "records": 12,
        "stored_bytes": total,
        "splits": {"train": 7, "val": 5},
        **plain,
    }
    assert run() == {"adopted": 3, "known": 0, "updated": 0, "version": 1, **first}
    assert run() == {"adopted": 0, "known": 3, "updated": 0, "version": 1, **first}

    # Two have changed, two are new, one cannot be read, one is of no split, and one is as it was.
    for name, rows in (("train-0", 6), ("val-0", 1), ("train-2", 2), ("val-1", 8), ("other", 1)):
        sizes[name] = write(data, name, rows)
    (data / "train-9.tfrecord").write_bytes(b"not records at all, but words")
    kept = {name: size for name, size in sizes.items() if name != "other"}
    left = {"refused": 1, "ignored": 1}
    tried = run(dry_run=True, update=True)
    assert (tried["adopted"], tried["known"], tried["updated"], tried["ignored"]) == (3, 1, 2, 1)
    assert tried["shards"] == {"train": 4, "val": 2}
    assert tried["stored_bytes"] == sum(kept.values()) + (data / "train-9.tfrecord").stat().st_size

    new = kept["train-1"] + kept["train-2"] + kept["val-1"]
    assert run() == {
        "adopted": 2,
        "known": 1,
        "updated": 0,
        "shards": {"train": 2, "val": 1},
        "records": 14,
        "stored_bytes": new,
        "splits": {"train": 9, "val": 13},
        "dry_run": False,
        "version": 2,
        "ok": False,
        "stale": 2,
        **left,
    }
    assert run(update=True) == {
        "adopted": 0,
        "known": 3,
        "updated": 2,
        "shards": {"train": 3, "val": 2},
        "records": 21,
        "stored_bytes": sum(kept.values()),
        "splits": {"train": 12, "val": 9},
        "dry_run": False,
        "version": 3,
        "ok": False,
        **left,
    }

    # Changed and new in one step: neither is counted as the other.
    sizes["train-0"], sizes["train-3"] = write(data, "train-0", 1), write(data, "train-3", 1)
    found = run(update=True)
    assert (found["adopted"], found["known"], found["updated"], found["records"]) == (1, 4, 1, 17)
    (data / "val-1.tfrecord").unlink()
    assert run()["missing"] == 1
    found = run(drop_missing=True)
    assert (found["dropped"], found.get("missing"), found["known"], found["splits"]) == (
        *(1, None, 5),
        {"train": 8, "val": 1},
    )


@pytest.mark.parametrize("salvage", [True, False])
def test_what_salvage_leaves_out_is_counted(tmp_path, salvage) -> None:
    write(tmp_path / "data", "train-0", 5)
    path = tmp_path / "data" / "train-0.tfrecord"
    data = bytearray(path.read_bytes())
    data[17 * 2 + 12] ^= 1  # the payload of the third record
    path.write_bytes(data)
    report = shardio.adopt(path, into=tmp_path / "out", salvage=salvage)
    assert (report.adopted, report.records, len(report.skipped), len(report.refused)) == (
        (1, 4, 1, 0) if salvage else (0, 0, 0, 1)
    )
    if salvage:
        (bad,) = report.skipped
        assert (bad.where, bad.start, bad.stop) == (str(path), 34, 51)
    assert report.ok is salvage
