"""The place and its credentials are given once: functions take a URL, an `Address`, or a reader."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardio
from shardio.errors import NotFoundError
from tests.suites.errors import refused


@pytest.fixture(params=["path", "text", "address", "reader"])
def place(request, tmp_path) -> object:
    url = tmp_path / "ds"
    for day in range(3):
        with shardio.DatasetWriter(url, {"n": "int64"}, mode="append") as out:
            for n in range(4):
                out.write({"n": 10 * day + n}, split="train" if n else "test")
    kinds = {"path": url, "text": str(url), "address": shardio.Address(url)}
    return kinds[request.param] if request.param in kinds else shardio.open(url, "train")


def test_every_function_takes_it(place, tmp_path):
    shardio.tag(place, "v1", 1)
    assert shardio.tags(place) == {"v1": 1}
    shardio.untag(place, "v1")
    assert shardio.build_table(place, ["n"], workers=1).shards == 6
    assert shardio.build_keys(place, "n", workers=1).keys == 12
    assert shardio.delete(place, keys=[11], split="train").deleted == 1
    assert shardio.compact(place, workers=1).shards_after == 2
    assert shardio.diff(place, 1, 2).splits["train"].added == 3
    assert shardio.restore(place, 2).after == {"test": 2, "train": 6}
    assert shardio.rename_split(place, "test", "val").after == {"train": 6, "val": 2}
    assert shardio.remove_split(place, "val").after == {"train": 6}
    assert shardio.set_schema(place, rename={"n": "m"}).changes
    assert shardio.verify(place).ok
    assert shardio.repair(place).ok
    assert shardio.erase(place, [0], split="train", version=shardio.log(place)[0].number).deleted == 1
    assert shardio.gc(place, dry_run=False).deleted
    assert [int(value["m"]) for value in shardio.open(tmp_path / "ds")] == [2, 3, 11, 12, 13]


@pytest.mark.parametrize("remove", [shardio.delete, shardio.erase])
def test_positions_of_a_reader_are_its_own(remove, tmp_path):
    """Of its split, its version and its slice, whatever was committed since."""
    url = tmp_path / "ds"
    with shardio.DatasetWriter(url, {"n": "int64"}) as out:
        for n in range(20):
            out.write({"n": n}, split="train" if n % 2 else "test")
    part = shardio.open(url, "train")[3:8].select([4, 1, 0])
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write({"n": 20}, split="test")
    assert int(part[1]["n"]) == 9
    remove(part, [1])
    assert [int(value["n"]) for value in shardio.open(url, "train")] == [1, 3, 5, 7, 11, 13, 15, 17, 19]
    mask = [int(value["n"]) > 12 for value in shardio.open(url, "train")]
    remove(shardio.open(url, "train"), where=lambda columns: columns["n"] > 12, features=["n"])
    assert sum(mask) == 4
    assert [int(value["n"]) for value in shardio.open(url, "train")] == [1, 3, 5, 7, 11]


def test_options_that_belong_to_the_place(tmp_path):
    """They are refused where the place is not given as one value, and their values are not shown."""
    for name in ("storage_options", "allow_roots", "engine"):
        with refused(TypeError, "shardio.Address"):
            shardio.verify(tmp_path, **{name: None})
    address = shardio.Address("s3://bucket/birds", storage_options={"key": "SECRET"})
    assert "SECRET" not in repr(address)
    with pytest.raises(TypeError):
        shardio.Address("birds", storage_options="key")
    with pytest.raises(TypeError):
        shardio.verify(3)


def test_a_join_is_no_place(tmp_path):
    for name in ("left", "right"):
        with shardio.DatasetWriter(tmp_path / name, {"id": "int64", name: "int64"}) as out:
            out.write({"id": 1, name: 2})
    shardio.build_keys(tmp_path / "right", "id", workers=1)
    both = shardio.join(shardio.open(tmp_path / "left"), shardio.open(tmp_path / "right"), on="id")
    with pytest.raises(TypeError, match="two datasets"):
        shardio.delete(both, [0])


def test_a_dataset_that_is_not_there(tmp_path):
    with pytest.raises(NotFoundError):
        shardio.log(shardio.Address(Path(tmp_path, "none")))
