"""MDS in place: samples of MosaicML's shards are read where they are, as the library itself reads them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
from shardio import Feature
from shardio.errors import FormatError, SchemaError, ShardioError, StaleIndexError
from shardio.storage import connect
from tests.servers import s3
from tests.suites.errors import refused

MDS = Path("tests/golden/foreign/mds")


@pytest.fixture(name="mds")
def mds_fixture(tmp_path: Path) -> Path:
    """A folder of two splits."""
    schema = {"n": "int64", "word": "text", "pixels": "uint8[?,?,3]"}
    with shardio.DatasetWriter(tmp_path / "own", schema=schema) as out:
        for n in range(60):
            out.write(row(n), split="val" if n % 6 == 0 else "train")
    shardio.export_dataset(tmp_path / "own", tmp_path / "mds", kind="mds", shard_bytes=400)
    return tmp_path / "mds"


def row(n: int) -> dict[str, Any]:
    return {"n": n, "word": f"wren {n}", "pixels": np.full((n % 3 + 1, 2, 3), n, np.uint8)}


def plain(value: Any) -> Any:
    """Return a value as JSON has it, as the golden files do."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("name", ["plain", "columns", "lists", "types"])
def test_adoption_and_conversion_give_the_same(tmp_path: Path, name: str) -> None:
    shutil.copytree(MDS / name, tmp_path / "mds")
    notes = shardio.adopt(tmp_path / "mds").notes
    assert any("'pkl'" in note for note in notes) == (name == "types")
    schema = {"obj": "bytes"} if name == "types" else None
    shardio.convert_dataset(MDS / name, tmp_path / "copy", schema=schema)
    shardio.convert_dataset(tmp_path / "mds", tmp_path / "again")
    adopted, copies = shardio.open(tmp_path / "mds"), [tmp_path / "copy", tmp_path / "again"]
    for copy in map(shardio.open, copies):
        assert adopted.schema is not None
        assert copy.schema is not None
        assert dict(adopted.schema) == dict(copy.schema)
        for ours, theirs in zip(adopted, copy, strict=True):
            assert sorted(map(repr, ours.items())) == sorted(map(repr, theirs.items()))
    assert shardio.verify(tmp_path / "mds", decode=True).ok


def test_splits_lookups_batches_and_streams(mds: Path) -> None:
    report = shardio.adopt(mds)
    assert (report.splits, report.refused, report.ignored) == ({"train": 50, "val": 10}, (), ())
    train = shardio.open(mds, "train")
    numbers = [n for n in range(60) if n % 6]
    assert [plain(value) for value in train.read([7, 3, 3])] == [plain(row(numbers[n])) for n in (7, 3, 3)]
    assert train.read_batch([4, 2])["word"] == [f"wren {numbers[4]}", f"wren {numbers[2]}"]
    assert [value["n"] for value in shardio.open(mds, "train", features=["n"])] == numbers
    stream = shardio.stream(train, global_batch=8, seed=3, remainder="keep")
    seen = list(next(iter(stream))["n"])
    rest = shardio.stream(train, global_batch=8, seed=3, remainder="keep")
    rest.load_state_dict(stream.state_dict())
    seen += [n for batch in rest for n in batch["n"]]
    assert sorted(seen) == numbers


def test_nothing_of_it_changes_and_it_is_idempotent(mds: Path) -> None:
    before = {path: path.read_bytes() for path in mds.rglob("*") if path.is_file()}
    first = shardio.adopt(mds)
    assert shardio.adopt(mds).known == first.adopted
    assert {path: path.read_bytes() for path in before} == before
    shutil.copytree(mds / "val", mds / "test")
    more = shardio.adopt(mds)
    assert (more.splits["test"], more.version) == (10, 2)


def test_a_schema_may_say_more(mds: Path) -> None:
    shardio.adopt(mds, types={"pixels": None, "word": "bytes", "n": Feature("int64", description="count")})
    ds = shardio.open(mds, "val")
    assert ds[1] == {"n": 6, "word": b"wren 6"}
    shardio.set_schema(mds, rename={"word": "name"})
    assert shardio.open(mds, "val")[1] == {"n": 6, "name": b"wren 6"}
    with pytest.raises(SchemaError):
        shardio.adopt(mds, types={"n": "text"})


def test_it_is_not_appended_to(mds: Path) -> None:
    shardio.adopt(mds)
    with refused(ValueError, "MDS"), shardio.DatasetWriter(mds, mode="append") as out:
        out.write(row(1), split="train")


def test_merged_indexes_name_each_shard_once(mds: Path) -> None:
    parts = [json.loads((mds / split / "index.json").read_text()) for split in ("train", "val")]
    for split, part in zip(("train", "val"), parts, strict=True):
        for shard in part["shards"]:
            shard["raw_data"]["basename"] = f"{split}/{shard['raw_data']['basename']}"
    merged = {"version": 2, "shards": [shard for part in parts for shard in part["shards"]]}
    (mds / "index.json").write_text(json.dumps(merged))
    assert shardio.adopt(mds).splits == {"train": 50, "val": 10}


def test_from_a_bucket(mds: Path, moto_endpoint: str) -> None:
    url = f"s3://{s3.make_bucket(moto_endpoint)}/mds"
    options = {"storage_options": s3.options_for(moto_endpoint)}
    store = connect(url, **options)
    for path in mds.rglob("*.*"):
        store.put_if_absent(path.relative_to(mds).as_posix(), path.read_bytes())
    assert shardio.adopt(url, **options).splits == {"train": 50, "val": 10}
    assert plain(shardio.open(url, "val", **options)[3]) == plain(row(18))


def edited(path: Path, **facts: Any) -> None:
    """Change what the index says of its first shard."""
    index = json.loads((path / "index.json").read_text())
    index["shards"][0] |= facts
    (path / "index.json").write_text(json.dumps(index))


def flipped(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def unhashed(mds: Path) -> None:
    shard = json.loads((mds / "val" / "index.json").read_text())["shards"][0]
    edited(mds / "val", raw_data={**shard["raw_data"], "hashes": {}})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "count", "table", "longer"])
def test_damage_is_refused_with_the_shard(mds: Path, damage: str) -> None:
    shard = mds / "val" / "shard.00000.mds"
    if damage == "flip":
        flipped(shard, -1)
    elif damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "longer":
        shard.write_bytes(shard.read_bytes() + b"x")
    elif damage == "gone":
        shard.unlink()
    elif damage == "count":
        edited(mds / "val", samples=9)
    else:
        unhashed(mds)
        flipped(shard, 5)
    report = shardio.adopt(mds)
    (refusal,) = report.refused
    assert refusal.url == str(shard)
    assert isinstance(refusal.error, ShardioError)
    assert report.splits["train"] == 50


def test_damage_after_adoption_is_found(mds: Path) -> None:
    shardio.adopt(mds)
    shard = mds / "val" / "shard.00000.mds"
    stat = shard.stat()
    flipped(shard, -1)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises((FormatError, StaleIndexError)):
        list(shardio.open(mds, "val"))
    assert not shardio.verify(mds).ok


@pytest.mark.parametrize("name", ["zstd", "br", "snappy"])
def test_compressed_shards_are_to_be_converted(tmp_path: Path, name: str) -> None:
    shutil.copytree(MDS / name, tmp_path / "mds")
    with pytest.raises(FormatError) as caught:
        shardio.adopt(tmp_path / "mds")
    assert "shardio convert" in str(caught.value.advice)
    assert not (tmp_path / "mds" / "_shardio").exists()


def test_shards_of_other_columns_are_to_be_converted(mds: Path) -> None:
    edited(mds / "val", column_names=["n", "pixels", "other"])
    with pytest.raises(FormatError) as caught:
        shardio.adopt(mds)
    assert "shardio convert" in str(caught.value.advice)


def test_other_columns_are_not_added(tmp_path: Path, mds: Path) -> None:
    shutil.move(mds / "val", tmp_path / "val")
    shardio.adopt(mds)
    shutil.rmtree(mds / "train")
    shutil.copytree(MDS / "plain", mds / "val")
    with pytest.raises(SchemaError):
        shardio.adopt(mds)
