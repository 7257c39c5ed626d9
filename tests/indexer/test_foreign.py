"""Every folder that other systems' own writers wrote, adopted and compared value by value."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import shardio
import shardio_indexer
from shardio.format import Framing

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture
def copy(tmp_path):
    def copied(name: str) -> Path:
        return Path(shutil.copytree(GOLDEN / name, tmp_path / name))

    return copied


def expected(folder: Path):
    return json.loads((folder / "expected.json").read_text(encoding="utf-8"))


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("name", ["foreign/webdataset", "foreign/codewithgpu", "foreign/tfrecord-with-index"])
def test_nothing_that_others_wrote_is_touched(copy, name) -> None:
    folder = copy(name)
    before = files(folder)
    assert shardio_indexer.adopt(folder).ok
    after = files(folder)
    assert {key: after[key] for key in before} == before
    added = set(after) - set(before)
    assert all(key.startswith("_shardio/") or key.endswith(".shardidx") for key in added)
    assert shardio.verify(folder).ok


def test_webdataset(copy) -> None:
    folder = copy("foreign/webdataset")
    report = shardio_indexer.adopt(folder)
    wanted = [
        {name: value if name == "__key__" else base64.b64decode(value) for name, value in sample.items()}
        for sample in expected(folder)
    ]
    ds = shardio.open(folder)
    assert (report.ok, report.records) == (True, len(wanted))
    # What conversion makes of them, in the same types; the bytes that the library sees are there without.
    converted = folder.parent / "converted"
    shardio.convert_dataset(folder, converted, kind="webdataset", workers=1)
    assert shardio.open(converted).schema == ds.schema
    assert list(map(repr, ds)) == list(map(repr, shardio.open(converted)))
    shardio_indexer.adopt(folder, schema=False)
    ds = shardio.open(folder)
    assert list(ds) == wanted
    assert [ds[i] for i in range(len(ds))] == wanted
    assert ds.read([7, 2, 2, -1]) == [wanted[7], wanted[2], wanted[2], wanted[-1]]
    batch = ds.read_batch([3, 0])
    assert batch["__key__"] == [wanted[3]["__key__"], wanted[0]["__key__"]]
    assert batch["jpg"] == [wanted[3]["jpg"], wanted[0]["jpg"]]
    columns = list(shardio.stream(ds, global_batch=4, shuffle=False, remainder="keep"))
    assert [key for batch in columns for key in batch["__key__"]] == [sample["__key__"] for sample in wanted]
    assert [part for batch in columns for part in batch["seg.png"]] == [
        sample["seg.png"] for sample in wanted
    ]


def test_webdataset_through_a_schema(copy) -> None:
    """Members are decoded by their extension when a schema says so."""
    folder = copy("foreign/webdataset")
    schema = {"jpg": "bytes", "cls": "int64", "json": "json"}
    shardio_indexer.adopt(folder, schema=schema)
    ds = shardio.open(folder)
    wanted = expected(folder)
    assert ds[5]["cls"] == int(base64.b64decode(wanted[5]["cls"]))
    assert ds[5]["cls"].dtype == np.int64
    assert ds[5]["json"] == json.loads(base64.b64decode(wanted[5]["json"]))
    assert ds[5]["seg.png"] == base64.b64decode(wanted[5]["seg.png"]), (
        "what the schema does not name stays bytes"
    )
    labels = ds.read_batch(range(10))["cls"]
    assert labels.tolist() == [int(base64.b64decode(sample["cls"])) for sample in wanted[:10]]
    assert shardio.open(folder, features=["cls"])[0] == {"__key__": wanted[0]["__key__"], "cls": ds[0]["cls"]}


def test_codewithgpu(copy) -> None:
    """A record is what the index beside its file says; of its `FeatureMap` conversion knows more."""
    folder = copy("foreign/codewithgpu")
    wanted = []
    for path in sorted(folder.glob("*.index")):
        data = path.with_suffix(".data").read_bytes()
        for line in path.read_text().splitlines():
            offset, length = map(int, line.split())
            wanted.append(data[offset : offset + length])
    report = shardio_indexer.adopt(folder)
    ds = shardio.open(folder)
    assert (report.ok, len(ds)) == (True, len(expected(folder)))
    assert list(ds) == wanted
    assert ds[13] == wanted[13]


@pytest.mark.parametrize("index", ["not an index", "0 10\n", "0 10\n11 5\n", None])
def test_an_index_of_another_file_is_refused(copy, index) -> None:
    """Codewithgpu's index says where records end: it must cover the shard, to its last byte."""
    folder = copy("foreign/codewithgpu")
    path = folder / "00000.index"
    path.unlink() if index is None else path.write_text(index)
    report = shardio_indexer.adopt(folder)
    assert [refusal.url for refusal in report.refused] == [str(folder / "00000.data")]


def test_indexes_for_dali_are_those_of_the_tfrecord_package(copy) -> None:
    folder = copy("foreign/tfrecord-with-index")
    shardio_indexer.adopt(folder)
    written = shardio_indexer.export_indexes(folder)
    assert written == [str(folder / "a.tfrecord.idx")]
    assert (folder / "a.tfrecord.idx").read_bytes() == (folder / "a.index").read_bytes()
    assert shardio_indexer.export_indexes(folder) == written, "what is there already is right"
    (folder / "a.tfrecord.idx").write_bytes(b"0 1\n")
    with pytest.raises(shardio.errors.StorageError):
        shardio_indexer.export_indexes(folder)


def test_other_shards_get_no_index_for_dali(copy) -> None:
    folder = copy("foreign/webdataset")
    shardio_indexer.adopt(folder)
    with pytest.raises(shardio.errors.FormatError):
        shardio_indexer.export_indexes(folder)
    assert not list(folder.glob("*.idx"))


@pytest.mark.parametrize("kind", ["plain", "gzip", "zlib"])
@pytest.mark.filterwarnings("ignore:.*is one compressed stream")
def test_files_of_tensorflow(copy, kind) -> None:
    folder = copy("tensorflow")
    want = expected(folder)
    for path in folder.iterdir():
        if kind not in path.name and path.suffix == ".tfrecord":
            path.unlink()
    split = {name: f"{name}*" for name in ("examples", "sequences", "raw", "none")}
    report = shardio_indexer.adopt(folder / "*.tfrecord", into=folder, split=split, schema=False)
    assert report.ok, report
    assert report.splits["none"] == 0
    raw = list(shardio.open(folder, split="raw"))
    assert raw == [base64.b64decode(one) for one in want["raw"]]
    plain = GOLDEN / "tensorflow"
    for name in ("examples", "sequences"):
        twin = payloads(plain / f"{name}-plain.tfrecord")
        ds = shardio.open(folder, split=name)
        assert list(ds) == twin
        assert ds.read(range(len(ds) - 1, -1, -1)) == twin[::-1]
    assert shardio.verify(folder).ok


def test_the_schema_of_examples_is_inferred_and_stored(copy) -> None:
    folder = copy("tensorflow")
    report = shardio_indexer.adopt(folder / "examples-plain.tfrecord", into=folder)
    ds = shardio.open(folder)
    assert report.schema == ds.schema
    assert ds.schema["id"].short == "int64"
    assert [record["id"] for record in ds] == list(range(len(ds)))
    assert ds.schema["ragged"].short == "int64[?]"
    assert f"the schema was inferred from {len(ds)} of {len(ds)} records" in report.notes
    assert Framing.TFRECORD.value in set(ds.source.table.framing.tolist())


def payloads(path: Path) -> list[bytes]:
    from tests.indexer.shards import read_tfrecord

    return list(read_tfrecord(path.read_bytes()))
