"""Adopted shards of every framing through every consumer: values go on, raw bytes do not."""

from __future__ import annotations

import ast
import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
import shardio_indexer
from shardio import codecs, kernels
from shardio.cli import main
from shardio.errors import SchemaError, StorageError
from tests.suites.errors import refused

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
    if isinstance(value, list):
        return [text_in(one) for one in value]
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


@pytest.fixture(params=FRAMINGS)
def framing(request, folder) -> str:
    FRAMINGS[request.param](folder)
    name = "birds.txt" if request.param == "text" else ""
    assert shardio_indexer.adopt(folder / name, schema=TYPES.get(request.param)).ok
    return request.param


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def wanted(framing: str) -> list[Any]:
    return plain([value["word"] for value in VALUES] if framing == "text" else VALUES)


def test_reading(framing, folder) -> None:
    assert plain(shardio.open(folder)) == wanted(framing)


def test_conversion(framing, folder, tmp_path) -> None:
    """The folder is a dataset since it was adopted, so that is what is converted."""
    shardio.convert_dataset(folder, tmp_path / "ds")
    assert plain(shardio.open(tmp_path / "ds")) == wanted(framing)
    assert shardio.verify(tmp_path / "ds").ok


def test_conversion_of_shards_that_are_elsewhere(framing, folder, tmp_path, capsys) -> None:
    """What the refusal advises works, in Python and in a shell."""
    into = tmp_path / "into"
    name = "birds.txt" if framing == "text" else ""
    assert shardio_indexer.adopt(folder / name, into=into, schema=TYPES.get(framing)).ok
    with refused(StorageError, "allow_roots") as caught:
        shardio.convert_dataset(into, tmp_path / "ds")
    (given,) = re.findall(r"allow_roots=(\{.*?\}\})", str(caught.value))
    shardio.convert_dataset(into, tmp_path / "ds", options={"allow_roots": ast.literal_eval(given)})
    assert main(["convert", str(into), str(tmp_path / "shell"), "--allow-root", str(folder)]) == 0
    capsys.readouterr()
    for url in ("ds", "shell"):
        assert plain(shardio.open(tmp_path / url)) == wanted(framing)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["tfrecord", "jsonl", "parquet", "mds", "webdataset"])
def test_export_and_back(framing, folder, tmp_path, kind) -> None:
    if framing == "text" and kind in ("parquet", "mds", "webdataset"):
        with refused(ValueError, "needs"):
            shardio.export_dataset(folder, tmp_path / "out", kind=kind)
        return
    shardio.export_dataset(folder, tmp_path / "out", kind=kind)
    shardio.convert_dataset(tmp_path / "out", tmp_path / "back", kind=kind)
    found = plain(shardio.open(tmp_path / "back"))
    if framing == "text" and kind == "jsonl":
        found = plain(one["value"] for one in shardio.open(tmp_path / "back"))
    assert found == wanted(framing)


def test_deleting_and_erasing(framing, folder, tmp_path, capsys) -> None:
    """Files of others are not rewritten: erasing is refused, and works after what the advice says."""
    before = {path: path.read_bytes() for path in folder.glob("birds*") if path.suffix != ".shardidx"}
    with pytest.raises(StorageError) as caught:
        shardio.erase(folder, [1])
    (command,) = re.findall(r"`shardio (.*?)`", str(caught.value))
    shardio.delete(folder, [1])
    left = [value for row, value in enumerate(VALUES) if row != 1]
    kept = plain([value["word"] for value in left] if framing == "text" else left)
    assert plain(shardio.open(folder)) == kept
    assert main(command.replace("URL", str(folder)).replace("NEW", str(tmp_path / "new")).split()) == 0
    own = folder if framing == "tfrecord" else tmp_path / "new"
    assert plain(shardio.open(own)) == kept
    assert shardio.erase(own, [0]).deleted == 1
    assert plain(shardio.open(own)) == kept[1:]
    capsys.readouterr()
    assert {path: path.read_bytes() for path in before} == before


def test_packing(framing, folder, tmp_path) -> None:
    """Documents are sequences of numbers, which none of these is: refused by name, and nothing is written."""
    with pytest.raises((SchemaError, ValueError, TypeError)):
        shardio.pack_dataset(folder, tmp_path / "packed", 8)
    assert not (tmp_path / "packed").exists()


def test_packing_of_adopted_documents(folder, tmp_path, capsys) -> None:
    """Also of those that are elsewhere: what the refusal advises works, in Python and in a shell."""
    (folder / "documents.jsonl").write_text("".join(f'{{"ids": {list(range(n + 1))}}}\n' for n in range(5)))
    shardio_indexer.adopt(folder, into=tmp_path / "into")
    with refused(StorageError, "allow_roots"):
        shardio.pack_dataset(tmp_path / "into", tmp_path / "rows", 5)
    report = shardio.pack_dataset(tmp_path / "into", tmp_path / "rows", 5, allow_roots={str(folder): {}})
    assert report.records == {"train": 3}
    command = ["pack", str(tmp_path / "into"), str(tmp_path / "shell"), "--length", "5"]
    assert main([*command, "--allow-root", str(folder)]) == 0
    capsys.readouterr()
    rows = [[value["ids"].tolist() for value in shardio.open(tmp_path / name)] for name in ("rows", "shell")]
    assert rows[0] == rows[1]
    assert sorted(one for row in rows[0] for one in row) == sorted(
        one for n in range(5) for one in range(n + 1)
    )


def test_samples_without_a_schema_are_no_tfrecords(folder, tmp_path) -> None:
    tar_of(folder)
    shardio_indexer.adopt(folder, schema=False)
    with pytest.raises(SchemaError):
        shardio.export_dataset(folder, tmp_path / "out", kind="tfrecord")
    assert not (tmp_path / "out").exists()
    # What the advice says works.
    shardio.export_dataset(folder, tmp_path / "lines", kind="jsonl")
    shardio_indexer.adopt(folder, schema=TYPES["tar"])
    shardio.export_dataset(folder, tmp_path / "out", kind="tfrecord")
    shardio.convert_dataset(tmp_path / "out", tmp_path / "back", schema={"word.txt": "text"})
    assert plain(shardio.open(tmp_path / "back")) == plain(VALUES)


def test_adopted_text_stays_text(tmp_path) -> None:
    """Its records are str; so are those of the dataset that it is converted to, and of one made of that."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.txt").write_text("line 1\nzeile \u00fc\n", encoding="utf-8")
    shardio.adopt(tmp_path / "x" / "a.txt", into=tmp_path / "a")
    roots = {str(tmp_path / "x"): {}}
    shardio.convert_dataset(tmp_path / "a", tmp_path / "b", options={"allow_roots": roots})
    shardio.convert_dataset(tmp_path / "b", tmp_path / "c")
    for name in ("b", "c"):
        ds = shardio.open(tmp_path / name)
        assert list(ds) == ["line 1", "zeile \u00fc"]
        assert ds[1] == ds.read([1])[0] == "zeile \u00fc"
        (batch,) = shardio.stream(ds, global_batch=2, seed=0)
        assert sorted(batch["text"]) == ["line 1", "zeile \u00fc"]
    # Beside bytes there is no word on which are text.
    with shardio.DatasetWriter(tmp_path / "bytes") as out:
        out.write(b"\xff")
    with pytest.raises(SchemaError):
        shardio.convert_dataset(tmp_path / "b", tmp_path / "bytes", mode="append")
