"""What other systems' own writers wrote, converted and compared value by value with what they were given."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardio
from shardio import codecs
from tests.convert.conftest import FOREIGN, TENSORFLOW
from tests.format.test_streams import with_window
from tests.indexer.shards import tar, tfrecord


def expected(name: str) -> Any:
    return json.loads((FOREIGN / name / "expected.json").read_text(encoding="utf-8"))


def raw(text: str) -> bytes:
    return base64.b64decode(text)


def packed(folder: Path, algorithm: str, compress: Callable[[bytes], bytes]) -> Path:
    """Compress the shards of an MDS folder as MDSWriter does: beside `raw_data` the index has `zip_data`."""
    shutil.copytree(FOREIGN / "mds" / "plain", folder)
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        plain = folder / shard["raw_data"]["basename"]
        stored = compress(plain.read_bytes())
        name = f"{plain.name}.{algorithm}"
        (folder / name).write_bytes(stored)
        plain.unlink()
        shard |= {
            "compression": algorithm,
            "zip_data": {"basename": name, "bytes": len(stored), "hashes": {}},
        }
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def pixels(text: str, width: int, height: int) -> Any:
    return np.frombuffer(raw(text), np.uint8).reshape(height, width, 3)


def member(name: str, text: str) -> Any:
    """Return what a member of a tar file becomes by its ending."""
    read = {"__key__": str, "cls": lambda data: int(raw(data)), "json": lambda data: json.loads(raw(data))}
    return read.get(name, raw)(text)


BYTES = {"json": "bytes", "cls": "bytes"}
# Of a golden folder: the kind, options, and what its own library read as values by feature.
GOLDEN: dict[str, tuple[str, dict[str, Any], Callable[[Any], dict[str, Any]]]] = {
    **{
        f"mds/{name}": ("mds", {}, lambda each: {**each, "image": raw(each["image"])})
        for name in ("plain", "zstd", "br", "snappy", "gz", "bz2")
    },
    "torchrecord/db": (
        "torchrecord", {},
        lambda each: {
            "image": pixels(each["rgb"], each["width"], each["height"]), "label": each["label"]
        },
    ),
    "codewithgpu": (
        "codewithgpu", {},
        lambda each: {
            "image": raw(each["image"]), "label": each["label"], "weights": each["weights"],
            **{f"meta.{name}": item for name, item in each["meta"].items()},
        },
    ),
    "webdataset": (
        "webdataset", {}, lambda each: {name: member(name, text) for name, text in each.items()}
    ),
    "webdataset/*.tar": (
        "webdataset", {"schema": BYTES},
        lambda each: {name: text if name == "__key__" else raw(text) for name, text in each.items()},
    ),
    "tfrecord-with-index": ("tfrecord", {}, lambda each: {**each, "image": raw(each["image"])}),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_folder_is_what_its_own_library_reads(convert, tmp_path, name: str) -> None:
    """Kind, values, and the types of arrays."""
    kind, options, values_of = GOLDEN[name]
    algorithm = {"mds/gz": gzip.compress, "mds/bz2": bz2.compress}.get(name)
    source: Any = f"{FOREIGN}/{name}"
    if algorithm is not None:
        source = packed(tmp_path / "mds", name[4:], algorithm)
    values = convert(source, **options)
    assert convert.report.kind == kind
    for wanted, value in zip(expected(name.partition("/")[0]), values, strict=True):
        read = values_of(wanted)
        assert value.keys() >= read.keys()
        for feature, item in read.items():
            np.testing.assert_array_equal(value[feature], item)
            if isinstance(item, bytes | str):
                assert value[feature] == item
    types = {"mds": ("tokens", np.int32), "torchrecord": ("image", np.uint8)}
    if kind in types:
        feature, dtype = types[kind]
        assert {value[feature].dtype for value in values} == {np.dtype(dtype)}


def test_mds_with_lists_of_images(convert) -> None:
    """JPEG and PNG files as they are, raw images as PNG files with the same pixels."""
    values = convert(FOREIGN / "mds" / "lists")
    assert {name: feature.short for name, feature in convert.report.schema.items()} == {
        "array": "jpeg[?]",
        "jpegs": "jpeg[?]",
        "pils": "png[?]",
        "pngs": "png[?]",
    }
    read = json.loads((FOREIGN / "mds" / "lists-expected.json").read_text(encoding="utf-8"))
    assert [len(wanted["pils"]) for wanted in read] == [0, 1, 2, 3]
    for wanted, value in zip(read, values, strict=True):
        assert value["array"] == [raw(text) for text in wanted["array"]]
        assert value["jpegs"] == [raw(text) for text in wanted["jpegs"]]
        for name in ("pils", "pngs"):
            pixels = [np.asarray(Image.open(io.BytesIO(data))) for data in value[name]]
            assert [list(each.shape) for each in pixels] == [each["shape"] for each in wanted[name]]
            assert [each.tobytes() for each in pixels] == [raw(each["pixels"]) for each in wanted[name]]


def test_torchrecord_of_one_environment_a_database(convert, tmp_path) -> None:
    import lmdb

    environment = lmdb.open(str(FOREIGN / "torchrecord" / "db"), readonly=True, lock=False, max_dbs=9)
    parts: dict[str, list[tuple[bytes, bytes]]] = {}
    for number in range(4):
        database = environment.open_db(f"db{number}".encode(), create=False)
        with environment.begin(db=database) as reading:
            parts[f"db{number}"] = [(bytes(key), bytes(value)) for key, value in reading.cursor()]
    environment.close()
    for name, entries in parts.items():
        (tmp_path / "old" / name).mkdir(parents=True)
        with (
            lmdb.open(str(tmp_path / "old" / name), map_size=1 << 20) as one,
            one.begin(write=True) as writing,
        ):
            for key, value in entries:
                # Keys without zeros before them, as the later releases write them.
                writing.put(str(int(key) + 8).encode(), value)
    values = convert(tmp_path / "old")
    assert [value["label"] for value in values] == [wanted["label"] for wanted in expected("torchrecord")]


def _of_tensorflow(name: str) -> Any:
    return json.loads((TENSORFLOW / "expected.json").read_text(encoding="utf-8"))[name]


def _feature(value: Any) -> list[Any]:
    """Return what a feature of expected.json holds, as lists of bytes, integers, or the bits of floats."""
    if value is None:
        return []
    ((kind, items),) = value.items()
    return [raw(item) if kind == "bytes" else int(item) for item in items]


def _found(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return (value.view("<u4") if value.dtype == np.float32 else value).tolist()
    return list(value)


@pytest.mark.parametrize("compression", ["plain", "gzip", "zlib"])
def test_what_tensorflow_wrote(convert, compression: str) -> None:
    """Every payload byte for byte, and every value as TensorFlow was given it."""
    from shardio import codecs

    convert(TENSORFLOW / f"examples-{compression}.tfrecord")
    payloads = list(shardio.open(convert.url, decode=False))
    for wanted, payload in zip(_of_tensorflow("examples"), payloads, strict=True):
        found = codecs.decode_example(payload)
        assert {name: _found(value) for name, value in found.items()} == {
            name: _feature(value) for name, value in wanted.items()
        }
    assert convert(TENSORFLOW / f"raw-{compression}.tfrecord") == [
        raw(text) for text in _of_tensorflow("raw")
    ]
    assert convert(TENSORFLOW / f"none-{compression}.tfrecord") == []
    values = convert(TENSORFLOW / f"sequences-{compression}.tfrecord")
    for wanted, value in zip(_of_tensorflow("sequences"), values, strict=True):
        assert value["context"]["length"] == int(wanted["context"]["length"]["int64"][0])
        for name, steps in wanted["feature_lists"].items():
            assert len(value["feature_lists"].get(name) or []) == len(steps)


def test_a_folder_of_folders_that_are_splits(convert, tmp_path) -> None:
    for split in ("train", "val"):
        shutil.copytree(FOREIGN / "mds" / "plain", tmp_path / "source" / split)
    assert len(convert(tmp_path / "source")) == 52
    assert convert.report.records == {"train": 26, "val": 26}


@pytest.mark.parametrize("ending", ["jsonl", "tar", "tfrecord"])
def test_zstandard_windows_of_any_size(convert, tmp_path, ending):
    """A source is read once: what `zstd --ultra -22 --long=31` writes is not damaged."""
    wrens = [{"x": f"wren {n}", "y": "z" * 5000} for n in range(3000)]
    if ending == "jsonl":
        data = "".join(json.dumps(each) + "\n" for each in wrens).encode()
    elif ending == "tar":
        data = tar(
            [(f"{n}.{name}", text.encode()) for n, each in enumerate(wrens) for name, text in each.items()]
        )
    else:
        data = tfrecord([codecs.encode_example(each) for each in wrens])
    (tmp_path / f"data.{ending}.zst").write_bytes(with_window(data, 31))
    values = convert(tmp_path / f"data.{ending}.zst", schema={"x": "text", "y": "text"})
    assert [{"x": value["x"], "y": value["y"]} for value in values] == wrens
