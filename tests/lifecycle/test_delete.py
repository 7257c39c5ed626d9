"""Deleting: exactly the records that were meant, in every way to read, whatever others do meanwhile."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import shardio
import shardio.lifecycle
import shardio_indexer
from shardio.errors import CommitConflictError, NotFoundError, StorageError
from shardio.metadata import naming
from tests.promises.places import PLACES, fresh
from tests.promises.stores import Counting, faultless, faulty
from tests.suites.datasets import numbers
from tests.suites.errors import refused

COUNT = 120


@pytest.fixture(params=PLACES)
def url(request, tmp_path) -> str:
    return made(fresh(request.param, tmp_path))


def made(url: str, **options) -> str:
    with shardio.DatasetWriter(url, {"n": "int64"}, shard_bytes=900, block_bytes=200, **options) as out:
        for n in range(COUNT):
            out.write({"n": n}, "test" if n % 4 == 3 else "train")
    return url


TRAIN = [n for n in range(COUNT) if n % 4 != 3]


def check_everywhere(url: str, split: str, wanted: list[int], tmp_path) -> None:
    """Length, lookup, order, batches, streams, resume, filter, torch, export and verify agree."""
    from shardio.torch import MapDataset

    ds = shardio.open(url, split)
    assert len(ds) == len(wanted) == ds.splits[split]
    assert numbers(ds) == wanted
    assert [int(ds[k]["n"]) for k in range(-len(ds), len(ds))] == wanted * 2
    backwards = range(len(ds) - 1, -1, -1)
    assert numbers(ds.read(backwards)) == wanted[::-1]
    assert ds.read_batch(backwards)["n"].tolist() == wanted[::-1]
    assert [n for batch in ds.iter_batches(7) for n in batch["n"].tolist()] == wanted
    assert numbers(pickle.loads(pickle.dumps(ds))) == wanted
    assert numbers(ds.filter(lambda columns: columns["n"] % 2 == 0)) == [n for n in wanted if n % 2 == 0]
    assert [int(MapDataset(ds)[k]["n"]) for k in range(len(ds))] == wanted
    stream = shardio.stream(ds, global_batch=4, seed=5, remainder="keep")
    whole = [n for batch in stream for n in batch["n"].tolist()]
    assert sorted(whole) == wanted
    stream = shardio.stream(ds, global_batch=4, seed=5, remainder="keep")
    batches = iter(stream)
    begun = [n for _ in range(3) for n in next(batches)["n"].tolist()]
    state = json.loads(json.dumps(stream.state_dict()))
    again = shardio.stream(shardio.open(url, split), global_batch=4, seed=5, remainder="keep")
    again.load_state_dict(state)
    assert begun + [n for batch in again for n in batch["n"].tolist()] == whole
    shardio.export_dataset(url, tmp_path / "out", kind="jsonl", split=split)
    files = sorted((tmp_path / "out").rglob("*.jsonl*"))
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert [json.loads(line)["n"] for line in lines] == wanted
    report = shardio.verify(url)
    assert report.ok, report.findings


def test_what_is_deleted_is_gone_in_every_way_to_read(url, tmp_path):
    gone = [0, 1, 2, 17, 44, len(TRAIN) - 1]
    report = shardio.delete(url, gone[::-1], split="train")
    wanted = [n for k, n in enumerate(TRAIN) if k not in gone]
    assert (report.version, report.deleted, report.read_version) == (2, len(gone), 1)
    assert report.before == {"test": 30, "train": 90}
    assert report.after == {"test": 30, "train": 84} == dict(shardio.open(url, "all").splits)
    assert sum(report.shards.values()) == len(gone)
    check_everywhere(url, "train", wanted, tmp_path)
    assert numbers(shardio.open(url, "train", version=1)) == TRAIN, "earlier versions keep them"
    # Positions of the new version, over the borders of shards, once more.
    shardio.delete(url, range(20, 40), split="train")
    check_everywhere(url, "train", wanted[:20] + wanted[40:], tmp_path / "second")


def test_whole_shards_and_whole_splits(url, tmp_path):
    shards = shardio.open(url, "train").source.stops.tolist()
    assert len(shards) > 2
    shardio.delete(url, range(shards[0], shards[1]), split="train")
    check_everywhere(url, "train", TRAIN[: shards[0]] + TRAIN[shards[1] :], tmp_path)
    report = shardio.delete(url, where=lambda columns: columns["n"] % 4 == 3, split="all", features=["n"])
    assert report.after == {"test": 0, "train": 90 - shards[1] + shards[0]}
    assert numbers(shardio.open(url, "test")) == []
    assert shardio.verify(url).ok
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write({"n": 1000}, "test")
    assert numbers(shardio.open(url, "test")) == [1000]


@pytest.mark.filterwarnings("ignore:.*one compressed stream:UserWarning")
@pytest.mark.parametrize("compression", ["zstd", "gzip", "zlib"])
def test_compressed_shards(compression, tmp_path):
    url = made(str(tmp_path / "ds"), compression=compression)
    shardio.delete(url, [3, 30], split="train")
    check_everywhere(url, "train", [n for k, n in enumerate(TRAIN) if k not in (3, 30)], tmp_path)


def test_adopted_shards(tmp_path):
    made(str(tmp_path / "own"))
    shards = sorted((tmp_path / "own" / "data").glob("train*.tfrecord"))
    before = {path: path.read_bytes() for path in shards}
    into = tmp_path / "into"
    shardio_indexer.adopt(shards, into=into)
    root = {str(tmp_path / "own" / "data"): {}, str(tmp_path / "own"): {}, f"{tmp_path}/own/data/": {}}
    # Their place need not be allowed, since they are not read.
    report = shardio.delete(into, [0, 50])
    assert report.deleted == 2
    ds = shardio.open(into, allow_roots=root)
    assert (sorted(numbers(ds)) == sorted(set(TRAIN)) and len(ds) == 90) or len(ds) == 88
    shardio.delete(
        shardio.Address(into, allow_roots=root), where=lambda columns: columns["n"] < 40, features=["n"]
    )
    assert min(numbers(shardio.open(into, allow_roots=root))) >= 40
    assert {path: path.read_bytes() for path in shards} == before
    assert shardio.verify(shardio.Address(into, allow_roots=root)).ok


def test_a_mask_and_a_function(url):
    mask = np.zeros(90, bool)
    mask[[4, 80]] = True
    assert shardio.delete(url, where=mask, split="train").deleted == 2
    assert numbers(shardio.open(url, "train")) == [n for k, n in enumerate(TRAIN) if k not in (4, 80)]
    with pytest.raises(ValueError, match="a mask needs the shape"):
        shardio.delete(url, where=mask, split="train")
    with refused(TypeError, "where="):
        shardio.delete(url, mask, split="train")


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ([90], IndexError, "record 90 is out of range: version 1 has 90"),
        ([2**63], IndexError, "out of range"),
        ([-1], ValueError, "position -1 is negative"),
        ([3, 5, 3], ValueError, "position 3 is given twice"),
        ([[1]], TypeError, "sequence of integers"),
        ([1.0], TypeError, "sequence of integers"),
        (["1"], TypeError, "sequence of integers"),
        ([True], TypeError, "a mask goes to where="),
        ([True, 2], TypeError, r"positions\[0\] must be an integer, found True"),
        (b"12", TypeError, "sequence of integers"),
        (iter(()), ValueError, "the iterator is empty"),
    ],
)
def test_positions_that_are_refused(url, wrong, error, match):
    with pytest.raises(error, match=match):
        shardio.delete(url, wrong, split="train")
    assert shardio.open(url, "all").version == 1


def test_what_else_is_refused(url, tmp_path):
    with pytest.raises(ValueError, match="has several splits"):
        shardio.delete(url, [1])
    with refused(ValueError, "'tain'"):
        shardio.delete(url, [1], split="tain")
    with pytest.raises(NotFoundError):
        shardio.delete(url, [1], split="train", version=9)
    with refused(NotFoundError, "'v9'"):
        shardio.delete(url, [1], split="train", version="v9")
    with pytest.raises(NotFoundError):
        shardio.delete(tmp_path / "nothing", [1])
    for choice in ({}, {"positions": [1], "where": np.zeros(90, bool)}):
        with pytest.raises(ValueError, match="give one of"):
            shardio.delete(url, split="train", **choice)
    with refused(ValueError, "weight"):
        shardio.delete(url, where=lambda c: c["weight"] > 3, features=["weight"], split="train")
    assert shardio.open(url, "all").version == 1


def test_nothing_to_delete_is_no_version(url):
    for report in (
        shardio.delete(url, [], split="train"),
        shardio.delete(url, where=lambda columns: columns["n"] > 5000, split="train"),
    ):
        assert (report.version, report.deleted, report.base_version) == (None, 0, 1)
    assert shardio.open(url, "all").version == 1


def test_a_dry_run_changes_nothing(url):
    counting = Counting()
    with faulty(counting):
        report = shardio.delete(url, [1, 2], split="train", dry_run=True)
    assert (report.version, report.deleted, report.after["train"]) == (None, 2, 88)
    assert {verb for verb, _ in counting.calls} <= {"get", "list", "head", "open"}


def test_a_place_that_cannot_be_written(url, monkeypatch):
    monkeypatch.setattr(shardio.storage.Store, "read_only_reason", "said the test")
    with pytest.raises(StorageError):
        shardio.delete(url, [1], split="train")


def test_positions_of_an_earlier_version_are_the_records_of_that_version(url):
    shardio.delete(url, [0, 1, 2], split="train")
    assert shardio.delete(url, [5], split="train", version=1).read_version == 1
    assert numbers(shardio.open(url, "train")) == [n for k, n in enumerate(TRAIN) if k not in (0, 1, 2, 5)]
    with pytest.raises(CommitConflictError):
        shardio.delete(url, [5, 6, 2], split="train", version=1)
    # What meets a condition need not be there any more.
    report = shardio.delete(url, where=lambda columns: columns["n"] < 10, split="train", version=1)
    assert (report.deleted, report.already_deleted) == (4, 4)


def test_records_whose_shards_are_gone_are_refused(url):
    """It MUST fail with `CommitConflictError` where one of its shards is no longer part of the dataset."""
    with shardio.DatasetWriter(url, {"n": "int64"}, mode="overwrite") as out:
        for n in range(50):
            out.write({"n": n}, "train")
    with pytest.raises(CommitConflictError):
        shardio.delete(url, [5], split="train", version=1)
    assert shardio.delete(url, [5], split="train").after == {"train": 49}
    shardio.rename_split(url, "train", "fit")
    # The split has another name; the record is the one that was meant.
    assert shardio.delete(url, [6], split="train", version=2).after == {"fit": 48}


@pytest.mark.parametrize("racer", ["append", "delete", "same", "overwrite", "rename", "gc"])
def test_a_race_never_deletes_another_record(racer, url):
    """A commit that lost a race follows the newer version with the rows that were meant, or is refused.

    A commit whose list or deletion sidecar a version since its base has doomed MUST store it again under a
    new name.
    """
    done: list[str] = []

    def race(verb: str, key: str) -> str:
        if verb == "put_if_absent" and key == naming.manifest_key(2) and not done:
            done.append(key)
            with faultless():
                if racer == "append":
                    with shardio.DatasetWriter(url, mode="append") as out:
                        out.write({"n": 1000}, "train")
                elif racer == "overwrite":
                    made(url, mode="overwrite")
                elif racer == "rename":
                    shardio.rename_split(url, "train", "fit")
                elif racer == "gc":
                    # Its own sidecar and list are garbage as long as no version names them.
                    report = shardio.gc(url, dry_run=False)
                    assert {info.key.rpartition(".")[2] for info in report.doomed} == {"rows", "list"}
                else:
                    shardio.delete(url, [0, 1] if racer == "delete" else [7], split="train")
        return ""

    refused = racer in ("same", "overwrite")
    with faulty(race):
        if refused:
            with pytest.raises(CommitConflictError):
                shardio.delete(url, [7, 60], split="train")
        else:
            assert shardio.delete(url, [7, 60], split="train").version == 3
    assert done
    left = [n for k, n in enumerate(TRAIN) if k not in (7, 60)]
    wanted = {
        "append": [*left, 1000],
        "delete": left[2:],
        "same": [n for k, n in enumerate(TRAIN) if k != 7],
        "overwrite": TRAIN,
        "rename": left,
        "gc": left,
    }[racer]
    assert numbers(shardio.open(url, "fit" if racer == "rename" else "train")) == wanted
    assert shardio.verify(url).ok
    # What the lost race stored needlessly is garbage, and nothing else is.
    shardio.gc(url, dry_run=False)
    assert numbers(shardio.open(url, "fit" if racer == "rename" else "train")) == wanted


def test_a_copy_of_a_shard_is_another_shard(tmp_path):
    """A shard and a copy of it are adopted, index and all: its records are deleted in one of them."""
    import shutil

    made(str(tmp_path / "own"))
    (tmp_path / "both").mkdir()
    shard = min((tmp_path / "own" / "data").glob("train*0000.tfrecord"))
    for name in ("a.tfrecord", "b.tfrecord"):
        shutil.copy(shard, tmp_path / "both" / name)
        shutil.copy(f"{shard}.shardidx", f"{tmp_path}/both/{name}.shardidx")
    shardio_indexer.adopt(tmp_path / "both")
    before = numbers(shardio.open(tmp_path / "both"))
    shardio.delete(tmp_path / "both", [0])
    assert numbers(shardio.open(tmp_path / "both")) == before[1:]


@pytest.mark.filterwarnings("ignore:.*(records are read|shards)")
def test_conditions_as_text_and_keys(tmp_path):
    url = str(tmp_path / "ds")
    with shardio.DatasetWriter(url, {"id": "text", "n": "int64"}) as out:
        for n in range(40):
            out.write({"id": f"bird {n % 30}", "n": n})
    assert shardio.delete(url, where="n >= 38").deleted == 2
    shardio.build_keys(url, feature="id", workers=1)
    report = shardio.delete(url, keys=["bird 3", "bird 20"])
    assert report.deleted == 3, "every record that has one of the keys"
    left = [n for n in range(38) if n not in (3, 33, 20)]
    assert numbers(shardio.open(url)) == left
    with refused(NotFoundError, "'bird 3'"):
        shardio.delete(url, keys=["bird 4", "bird 3"])
    with pytest.raises(TypeError, match="a list of keys"):
        shardio.delete(url, keys="bird 4")
    assert shardio.delete(url, keys=[]).version is None
    shardio.build_table(url, ["n"], workers=1)
    assert shardio.erase(url, where="n = 5").deleted == 1
    assert shardio.compact(url, compression="zstd", workers=1).version
    # What is known of shards by their identity is left out where they are others now.
    assert numbers(shardio.open(url).filter("n < 9")) == [0, 1, 2, 4, 6, 7, 8]
    assert shardio.open(url).find("bird 10") == left.index(10) - 1
    assert shardio.verify(url).ok
    shardio.gc(url, dry_run=False)
    assert numbers(shardio.open(url)) == [n for n in left if n != 5]
