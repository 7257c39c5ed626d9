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


def test_jsonl(convert, tmp_path) -> None:
    lines = [
        {"id": n, "text": f"naïve {n} \n", "score": n / 3, "tags": ["a"] * (n % 3),
         "deep": {"x": [1, {"y": None}]}, "box": [0.5, 1.0, 2.0, n], "big": 2**60 + n, "yes": n % 2 == 0}
        for n in range(50)
    ]  # fmt: skip
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    source = tmp_path / "train.jsonl"
    source.write_text(text, encoding="utf-8")
    convert(source)
    shardio.export_dataset(convert.url, tmp_path / "back", kind="jsonl")
    back = (tmp_path / "back" / "train.jsonl").read_text(encoding="utf-8")
    # JSON has one kind of number: 2 and 2.0 are the same value in two spellings.
    assert [json.loads(line) for line in back.splitlines()] == lines
    convert(tmp_path / "back" / "train.jsonl")
    shardio.export_dataset(convert.url, tmp_path / "again", kind="jsonl")
    assert (tmp_path / "again" / "train.jsonl").read_bytes() == (
        tmp_path / "back" / "train.jsonl"
    ).read_bytes()


def test_jsonl_byte_for_byte(convert, tmp_path) -> None:
    text = "".join(
        json.dumps({"id": n, "name": f"n{n}", "half": n / 2, "list": [n]}) + "\n" for n in range(9)
    )
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")
    convert(tmp_path / "a.jsonl")
    shardio.export_dataset(convert.url, tmp_path / "back", kind="jsonl")
    assert (tmp_path / "back" / "train.jsonl").read_text(encoding="utf-8") == text


def test_bytes_through_jsonl(convert, tmp_path) -> None:
    url = tmp_path / "dataset"
    with shardio.DatasetWriter(url, schema={"raw": "bytes", "x": "float32[2]"}) as out:
        for n in range(3):
            out.write({"raw": bytes([n, 255]), "x": [n, np.nan]})
    shardio.export_dataset(url, tmp_path / "lines", kind="jsonl", compression="gzip")
    values = convert(tmp_path / "lines" / "train.jsonl.gz", schema={"x": "float32[2]"})
    assert repr(values) == repr(list(shardio.open(url)))


def test_parquet(convert, tmp_path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "id": pa.array(range(40), pa.uint16()),
            "small": pa.array([n / 4 for n in range(40)], pa.float32()),
            "name": [f"naïve {n}" for n in range(40)],
            "data": [bytes([n]) * n for n in range(40)],
            "tokens": pa.array([[1] * (n % 4) for n in range(40)], pa.list_(pa.int32())),
            "box": pa.array([[n, 1, 2, 3] for n in range(40)], pa.list_(pa.float64(), 4)),
            "maybe": [None if n % 5 == 0 else n for n in range(40)],
            "words": [["a", str(n)] for n in range(40)],
            "flag": [n % 2 == 0 for n in range(40)],
        }
    )
    (tmp_path / "source").mkdir()
    pq.write_table(table, tmp_path / "source" / "part-0.parquet", row_group_size=7)
    values = convert(tmp_path / "source")
    assert convert.report.schema is not None
    assert {name: feature.short for name, feature in convert.report.schema.items()} == {
        "id": "uint16", "small": "float32", "name": "text", "data": "bytes", "tokens": "int32[?]",
        "box": "float64[4]", "maybe": "int64", "words": "text[?]", "flag": "bool",
    }  # fmt: skip
    optional = {name for name, feature in convert.report.schema.items() if feature.optional}
    # Statistics do not tell an empty list from none.
    assert optional - {"tokens", "data"} == {"maybe"}
    assert [value["maybe"] for value in values[:3]] == [None, 1, 2]
    shardio.export_dataset(convert.url, tmp_path / "back", kind="parquet")
    back = pq.read_table(tmp_path / "back" / "train-00000.parquet")
    assert back.to_pylist() == table.to_pylist()
    kinds = [[str(field.type).replace("element", "item") for field in each.schema] for each in (back, table)]
    assert kinds[0] == kinds[1]


def test_every_type_through_parquet_and_webdataset(convert, tmp_path) -> None:
    schema = {
        "pixels": "uint8[?,?,3]", "half": "float16[2]", "brain": "bfloat16", "doc": "json", "image": "jpeg",
        "label": "int64", "gone": shardio.Feature("text", optional=True),
    }  # fmt: skip
    url = tmp_path / "dataset"
    with shardio.DatasetWriter(url, schema=schema) as out:
        for n in range(4):
            pixels = np.full((n + 1, 2, 3), n, np.uint8)
            value = {
                "pixels": pixels,
                "half": [n, 0.5],
                "brain": n / 2,
                "doc": {"n": [n]},
                "image": picture(n),
            }
            out.write(value | {"label": n} | ({"gone": "here"} if n else {}))
    shardio.export_dataset(url, tmp_path / "parquet", kind="parquet")
    values = convert(tmp_path / "parquet", schema={"doc": "json", "image": "jpeg"})
    assert [value["pixels"].tolist() for value in values] == [
        np.full((n + 1, 2, 3), n).tolist() for n in range(4)
    ]
    assert [float(value["brain"]) for value in values] == [0, 0.5, 1, 1.5]
    assert [value["gone"] for value in values] == [None, "here", "here", "here"]
    shardio.export_dataset(url, tmp_path / "tars", kind="webdataset")
    values = convert(tmp_path / "tars")
    assert set(values[1]) == {
        "__key__", "pixels.npy", "half.npy", "brain.npy", "doc.json", "image.jpg", "label.cls", "gone.txt",
    }  # fmt: skip
    assert [value["pixels.npy"].tolist() for value in values] == [
        np.full((n + 1, 2, 3), n).tolist() for n in range(4)
    ]
    assert [value["image.jpg"] for value in values] == [picture(n) for n in range(4)]
    assert [value["label.cls"] for value in values] == [0, 1, 2, 3]
    assert [value["doc.json"] for value in values] == [{"n": [n]} for n in range(4)]


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
