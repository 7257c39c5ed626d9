"""Source -> dataset -> export -> source: byte for byte where the format allows it, else by value."""

from __future__ import annotations

import hashlib
import json
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard

import shardio
from tests.convert.conftest import FOREIGN, TENSORFLOW, picture


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def members(folder: Path) -> list[tuple[str, bytes]]:
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for info in archive:
                content = archive.extractfile(info)
                assert content is not None
                found.append((info.name, content.read()))
    return found


@pytest.mark.parametrize("splits", [("",), ("train/", "val/")])
def test_image_folders(convert, tmp_path, splits) -> None:
    source = tmp_path / "photos"
    for number, (split, name) in enumerate(
        (split, name) for split in splits for name in ("cat", "dög", "ant")
    ):
        for k, (form, ending) in enumerate((("JPEG", "jpg"), ("PNG", "png"))):
            path = source / split / name / f"{name} {k}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(10 * number + k, form))
    values = convert(source)
    assert convert.report.schema is not None
    assert convert.report.schema["image"].short == "image"
    labels = shardio.open(convert.url, split="all").schema["label"].classes
    assert labels == ("ant", "cat", "dög")
    assert all(f"/{labels[value['label']]}/" in f"/{value['path']}" for value in values)
    report = shardio.export_dataset(convert.url, tmp_path / "back", kind="images")
    assert sum(report.records.values()) == 6 * len(splits)
    assert files(tmp_path / "back") == files(source)


def test_webdataset(convert, tmp_path) -> None:
    """Every member of every sample: names, order and bytes."""
    convert(str(FOREIGN / "webdataset" / "*.tar"), schema={"json": "bytes", "cls": "bytes"})
    shardio.export_dataset(convert.url, tmp_path / "back", kind="webdataset", shard_bytes=60_000)
    assert members(tmp_path / "back") == members(FOREIGN / "webdataset")
    assert len(list((tmp_path / "back").iterdir())) > 1


@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
@pytest.mark.parametrize("name", ["examples", "sequences", "raw"])
def test_tfrecord(convert, tmp_path, name: str, compression) -> None:
    """Plain files come back as the very same bytes, whatever was in between."""
    convert(TENSORFLOW / f"{name}-plain.tfrecord", compression="zstd", block_bytes=100)
    shardio.export_dataset(convert.url, tmp_path / "back", kind="tfrecord", compression=compression)
    ((_, data),) = files(tmp_path / "back").items()
    if compression:
        stream = zlib.decompressobj(31 if compression == "gzip" else 15)
        data = stream.decompress(data)
        assert stream.eof
        assert not stream.unused_data
    assert data == (TENSORFLOW / f"{name}-plain.tfrecord").read_bytes()


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("folder", ["plain", "columns"])
def test_mds(convert, tmp_path, folder, compression) -> None:
    """The bytes that `MDSWriter` of mosaicml-streaming wrote: shards, hashes and index."""
    source = FOREIGN / "mds" / folder
    # `int` is int64, and pixels are not looked for in bytes.
    types = {"image": "bytes"} if folder == "plain" else {"raw": "bytes", "wide": "int8[?]"}
    convert(source, schema=types)
    options = {"kind": "mds", "compression": compression, "shard_bytes": 4096}
    report = shardio.export_dataset(convert.url, tmp_path / "back", **options)
    made = files(tmp_path / "back" / "train")
    assert report.files == [f"train/{name}" for name in (*sorted(made.keys() - {"index.json"}), "index.json")]
    index = json.loads(made.pop("index.json"))
    wanted = json.loads((source / "index.json").read_text())
    assert index["version"] == wanted["version"]
    for shard, original in zip(index["shards"], wanted["shards"], strict=True):
        if compression is None:
            assert shard == original
            assert made[shard["raw_data"]["basename"]] == files(source)[original["raw_data"]["basename"]]
            continue
        stored = made[shard["zip_data"]["basename"]]
        assert len(stored) == shard["zip_data"]["bytes"]
        assert hashlib.sha1(stored).hexdigest() == shard["zip_data"]["hashes"]["sha1"]
        # In one call, as the library decodes it: the frame says its size.
        data = zstandard.ZstdDecompressor().decompress(stored)
        assert len(data) == shard["raw_data"]["bytes"]
        # The shard says of itself that it is compressed, and with what; the samples are the same.
        count = shard["samples"]
        where = [int(offset) for offset in np.frombuffer(data, "<u4", count + 1, 4)]
        plain = files(source)[original["raw_data"]["basename"]]
        begin = int(np.frombuffer(plain, "<u4", 1, 4)[0])
        assert (count, data[where[0] :]) == (original["samples"], plain[begin:])
        head = json.loads(data[4 * (count + 2) : where[0]])
        assert head == {name: shard[name] for name in head}
        assert head["compression"] == "zstd"
    again = convert(tmp_path / "back", schema=types)
    assert repr(again) == repr(convert(source, schema=types))


def test_mds_of_several_splits(convert, tmp_path) -> None:
    """A folder each, as `StreamingDataset(split=)` wants them, that come back as the splits they were."""
    url = tmp_path / "dataset"
    with shardio.DatasetWriter(url, schema={"n": "int64"}, splits=["train", "val", "none"]) as out:
        for n in range(20):
            out.write({"n": n}, split="val" if n % 4 == 0 else "train")
    report = shardio.export_dataset(url, tmp_path / "back", kind="mds", split="val")
    assert report.files == ["val/shard.00000.mds", "val/index.json"]
    shardio.export_dataset(url, tmp_path / "all", kind="mds")
    convert(tmp_path / "all")
    assert convert.report.records == {"train": 15, "val": 5}
    assert [value["n"] for value in shardio.open(convert.url, "val")] == [0, 4, 8, 12, 16]


def test_a_dataset_of_ours_in_other_shards_and_splits(convert, tmp_path) -> None:
    """Re-sharding, re-compression, re-blocking and splitting keep every payload."""
    with shardio.DatasetWriter(tmp_path / "old", schema={"n": "int64"}, metadata={"a": 1}) as out:
        for n in range(500):
            out.write({"n": n}, split="test" if n % 5 == 0 else "train")
    values = convert(tmp_path / "old", compression="zstd", shard_bytes=2000, block_bytes=256)
    assert convert.report.kind == "shardio"
    assert convert.report.records == {"train": 400, "test": 100}
    made = shardio.open(convert.url, split="train")
    assert made.num_shards > 1
    assert made.metadata["a"] == 1
    assert sorted(int(value["n"]) for value in values) == list(range(500))
    convert(tmp_path / "old", split={"a": 0.8, "b": 0.2}, seed=3)
    first = {split: [int(v["n"]) for v in shardio.open(convert.url, split=split)] for split in ("a", "b")}
    assert sorted(first["a"] + first["b"]) == list(range(500))
    assert 60 < len(first["b"]) < 140
    convert(tmp_path / "old", split={"a": 0.8, "b": 0.2}, seed=3, workers=2)
    assert first["b"] == [int(v["n"]) for v in shardio.open(convert.url, split="b")]
    convert(tmp_path / "old", split="only", shuffle=True, seed=7)
    order = [int(value["n"]) for value in shardio.open(convert.url, split="only")]
    assert order != sorted(order)
    assert sorted(order) == list(range(500))
