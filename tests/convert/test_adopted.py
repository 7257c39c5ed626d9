"""Adopted shards of every framing through every consumer: values go on, raw bytes do not."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
import shardio_indexer
from shardio import codecs, kernels
from shardio.errors import SchemaError

VALUES = [{"n": number, "word": f"word {number}"} for number in range(5)]


def tar_of(folder: Path) -> None:
    with tarfile.open(folder / "birds-000000.tar", "w") as out:
        for value in VALUES:
            for name, text in (("n", str(value["n"])), ("word.txt", value["word"])):
                info = tarfile.TarInfo(f"{value['n']:03}.{name}")
                info.size = len(text)
                out.addfile(info, io.BytesIO(text.encode()))


def lines_of(folder: Path) -> None:
    lines = [f'{{"n": {value["n"]}, "word": "{value["word"]}"}}\n' for value in VALUES]
    (folder / "birds.jsonl").write_text("".join(lines))


def tfrecord_of(folder: Path) -> None:
    frames, *_ = kernels.encode_frames([codecs.encode_example(value) for value in VALUES])
    (folder / "birds.tfrecord").write_bytes(memoryview(frames))


def text_of(folder: Path) -> None:
    (folder / "birds.txt").write_text("".join(f"{value['word']}\n" for value in VALUES))


FRAMINGS: dict[str, Callable[[Path], None]] = {
    "tar": tar_of,
    "lines": lines_of,
    "tfrecord": tfrecord_of,
    "text": text_of,
}
TYPES = {"tar": {"n": "int64", "word.txt": "text"}, "tfrecord": {"word": "text"}}


def plain(values: Any) -> list[Any]:
    """Return values without what a kind of file adds or cannot tell: keys, paths, and bytes that are text."""
    return sorted(map(text_in, values), key=str)


def text_in(value: Any) -> Any:
    if isinstance(value, dict):
        own = {name.removesuffix(".txt").removesuffix(".cls"): text_in(one) for name, one in value.items()}
        own = {name: one for name, one in own.items() if not name.startswith("__")}
        return own["text"] if set(own) == {"text"} else own
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


@pytest.fixture(params=FRAMINGS)
def framing(request, tmp_path) -> str:
    FRAMINGS[request.param](tmp_path)
    name = "birds.txt" if request.param == "text" else ""
    assert shardio_indexer.adopt(tmp_path / name, schema=TYPES.get(request.param)).ok
    return request.param


def wanted(framing: str) -> list[Any]:
    return plain([value["word"] for value in VALUES] if framing == "text" else VALUES)


def test_reading(framing, tmp_path) -> None:
    assert plain(shardio.open(tmp_path)) == wanted(framing)


def test_conversion(framing, tmp_path) -> None:
    """The folder is a dataset since it was adopted, so that is what is converted."""
    shardio.convert_dataset(tmp_path, tmp_path / "out" / "ds")
    ds = shardio.open(tmp_path / "out" / "ds")
    assert plain(ds) == wanted(framing)
    assert shardio.verify(tmp_path / "out" / "ds").ok


@pytest.mark.parametrize("kind", ["tfrecord", "jsonl", "parquet", "mds", "webdataset"])
def test_export_and_back(framing, tmp_path, kind) -> None:
    if framing == "text" and kind in ("parquet", "mds", "webdataset"):
        with pytest.raises(ValueError, match="needs"):
            shardio.export_dataset(tmp_path, tmp_path / "out", kind=kind)
        return
    shardio.export_dataset(tmp_path, tmp_path / "out", kind=kind)
    shardio.convert_dataset(tmp_path / "out", tmp_path / "back", kind=kind)
    found = plain(shardio.open(tmp_path / "back"))
    if framing == "text" and kind == "jsonl":
        found = plain(one["value"] for one in shardio.open(tmp_path / "back"))
    assert found == wanted(framing)


def test_samples_without_a_schema_are_no_tfrecords(tmp_path) -> None:
    tar_of(tmp_path)
    shardio_indexer.adopt(tmp_path, schema=False)
    with pytest.raises(SchemaError, match="cannot become TFRecord records without a schema"):
        shardio.export_dataset(tmp_path, tmp_path / "out", kind="tfrecord")
    assert not (tmp_path / "out").exists()
    # What the advice says works.
    shardio.export_dataset(tmp_path, tmp_path / "lines", kind="jsonl")
    shardio_indexer.adopt(tmp_path, schema=TYPES["tar"])
    shardio.export_dataset(tmp_path, tmp_path / "out", kind="tfrecord")
    shardio.convert_dataset(tmp_path / "out", tmp_path / "back", schema={"word.txt": "text"})
    assert plain(shardio.open(tmp_path / "back")) == plain(VALUES)
