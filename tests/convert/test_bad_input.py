"""Damaged and odd sources: refused by name, or left out and listed; never half a source published."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardio
from shardio import Feature
from shardio.errors import (
    CommitConflictError,
    FormatError,
    NotFoundError,
    SchemaError,
    ShardioError,
    UnsafeNameError,
)
from tests.convert.conftest import FOREIGN, picture
from tests.suites.errors import refused


def folder_of_images(root: Path, count: int = 6) -> Path:
    for n in range(count):
        path = root / ("cat" if n % 2 else "dog") / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(n))
    return root


# -------------------------------------------------------------------------------- the table of bad inputs


def tar(path: Path, members: list[tuple[Any, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def photo(name: str, data: bytes) -> Callable[[Path], Path]:
    """Return what makes a folder of six images with one that is wrong."""

    def make(folder: Path) -> Path:
        (folder_of_images(folder / "photos") / name).write_bytes(data)
        return folder / "photos"

    return make


def line(data: bytes) -> Callable[[Path], Path]:
    """Return what makes a file of 1,201 lines with one more that is wrong."""

    def make(folder: Path) -> Path:
        good = [json.dumps({"a": n}).encode() for n in range(1200)]
        (folder / "lines.jsonl").write_bytes(b"\n".join([*good, data, b'{"a": 7}']))
        return folder / "lines.jsonl"

    return make


def sample(*members: tuple[str, bytes]) -> Callable[[Path], Path]:
    """Return what makes a tar file of three samples with one more that is wrong."""
    good = [("a.txt", b"one"), ("b.txt", b"two")]
    return lambda folder: tar(folder / "x.tar", [*good, *members, ("z.txt", b"last")])


def file(name: str, data: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return make


def cut(name: str) -> Callable[[Path], Path]:
    """Return what makes a golden folder whose largest file was cut."""

    def make(folder: Path) -> Path:
        source = Path(shutil.copytree(FOREIGN / name, folder / "source"))
        shards = (path for path in source.iterdir() if path.suffix != ".json")
        victim = max(shards, key=lambda path: path.stat().st_size)
        victim.write_bytes(victim.read_bytes()[: victim.stat().st_size * 2 // 3])
        return source

    return make


def flipped(name: str, place: int, *keep: str) -> Callable[[Path], Path]:
    """Return what makes a golden folder of which one file has a byte with another bit."""

    def make(folder: Path) -> Path:
        source = Path(shutil.copytree((FOREIGN / name).parent, folder / "source"))
        data = bytearray((FOREIGN / name).read_bytes())
        data[place] ^= 1
        (source / Path(name).name).write_bytes(data)
        return source / Path(name).name if keep else source

    return make


def texts(data: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "texts").mkdir()
        (folder / "texts" / "a.txt").write_text("something")
        (folder / "texts" / "b.txt").write_bytes(data)
        return folder / "texts"

    return make


TEXT = {"schema": {"txt": "text"}}
LIST = {"kind": "list"}
# What makes the source, the options, what the refusal says, and with `on_error="skip"` how many records are
# left (None: not tried) and what the place of the one that is listed holds.
BAD: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str, int | None, str]] = {
    "empty image": (photo("cat/empty.jpg", b""), {}, "file is empty", 6, "empty.jpg"),
    "no image": (photo("cat/noise.jpg", b"no image at all"), {}, "cannot be decoded", 6, "noise.jpg"),
    "cut image": (
        photo("cat/cut.jpg", picture(1, size=(64, 64))[:700]), {}, "cannot be decoded", 6, "cut.jpg",
    ),
    "image of no class": (photo("stray.jpg", picture(2)), {}, "missing label", 6, "stray.jpg"),
    "name not UTF-8": (photo(os.fsdecode(b"cat/caf\xe9.jpg"), picture(9)), {}, "not UTF-8", 6, ".jpg"),
    "list: column twice": (file("l.csv", b"path,path\na,b\n"), LIST, "twice", None, ""),
    "list: short row": (file("l.csv", b"path,label\na\n"), LIST, "another number", None, ""),
    "list: open quote": (file("l.csv", b'path\n"a'), LIST, "not CSV", None, ""),
    "list: not UTF-8": (file("l.csv", b"path,label\n\xff,1\n"), LIST, "not UTF-8", None, ""),
    "line: cut": (line(b'{"a": 1'), {}, "not JSON", 1201, "lines.jsonl byte"),
    "line: key twice": (line(b'{"a": 1, "a": 2}'), {}, "comes twice", 1201, "lines.jsonl byte"),
    "line: not UTF-8": (line(b'{"a": "\xff"}'), {}, "not UTF-8", 1201, "lines.jsonl byte"),
    "line: another type": (line(b'{"a": "one"}'), {}, "does not fit", 1201, "lines.jsonl byte"),
    "line: another key": (line(b'{"b": 1}'), {}, "lacks feature|has a feature", 1201, "lines.jsonl byte"),
    "line: deep": (line(b"[" * 100_000), {}, "not JSON", 1201, "lines.jsonl byte"),
    "line: large number": (line(b'{"a": 1e999}'), {}, "larger than float64", 1201, "lines.jsonl byte"),
    "text: empty": (texts(b""), {}, "the file is empty", 1, "b.txt"),
    "text: not UTF-8": (texts(b"\xff\xfe"), {}, "not UTF-8", 1, "b.txt"),
    "tar: member twice": (sample(("c.txt", b"1"), ("c.txt", b"2")), TEXT, "has two members 'txt'", 3, ""),
    "tar: no ending": (sample(("c.", b"1")), TEXT, "no ending", 3, ""),
    "tar: __key__": (sample(("c.__key__", b"1")), TEXT, "has two members '__key__'", 3, ""),
    "tar: name": (sample((os.fsdecode(b"\xff.txt"), b"1")), TEXT, "not UTF-8", 3, ""),
    "tar: no text": (sample(("c.txt", b"\xff")), TEXT, "is not text", 3, "c"),
    "tar: empty": (file("y.tar", b""), {}, "empty", None, ""),
    "tar: none": (file("z.tar", b"no tar file" * 100), {}, "damaged", None, ""),
    **{
        f"cut {name}": (cut(name), {}, ".", None, "")
        for name in (
            "mds/plain", "mds/zstd", "mds/br", "mds/snappy", "mds/lists", "codewithgpu", "webdataset",
            "torchrecord/db",
        )
    },
    "flipped mds": (flipped("mds/plain/shard.00001.mds", 1000), {}, "does not match its sha1", 14, ".mds"),
    "flipped tfrecord": (
        flipped("tfrecord-with-index/a.tfrecord", 2000, "alone"), {}, "a.tfrecord", 11, "a.tfrecord",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_or_left_out(convert, tmp_path, name) -> None:
    """By default nothing is published, and the error says what and where; else one place is listed."""
    make, options, reason, left, place = BAD[name]
    source = make(tmp_path)
    convert.refused(source, ShardioError, reason, **options)
    if left is None:
        return
    assert len(convert(source, on_error="skip", **options)) == left
    (bad,) = convert.report.skipped
    assert place in bad.where
    assert re.search(reason, f"{bad.where}: {bad.reason}")


def test_a_tar_file_that_was_cut(convert, tmp_path) -> None:
    path = tar(tmp_path / "x.tar", [(f"{n}.bin", bytes([n]) * 600) for n in range(9)])
    path.write_bytes(path.read_bytes()[:5000])
    convert.refused(path, FormatError, "damaged")
    convert(path, on_error="skip")
    assert 1 <= convert.report.records["train"] < 9
    assert "damaged" in convert.report.skipped[-1].reason


def test_other_files_are_named(convert, tmp_path) -> None:
    source = folder_of_images(tmp_path / "photos")
    (source / "notes.txt").write_text("by hand")
    (source / ".DS_Store").write_bytes(b"\0")
    convert(source)
    assert convert.report.ignored == [".DS_Store", "notes.txt"]


def test_unknown_classes(convert, tmp_path) -> None:
    source = folder_of_images(tmp_path / "photos")
    convert.refused(source, FormatError, "there is no class 'dog'", options={"classes": ["cat"]})
    labels = [value["label"] for value in convert(source, options={"classes": ["dog", "cat"]})]
    assert labels == [1, 1, 1, 0, 0, 0]


# -------------------------------------------------------------------------------- lists


def load(line: str) -> Any:
    path, label = line.split()
    if label == "bad":
        raise RuntimeError("a label that the function does not like")
    return {"path": path, "label": int(label)}


def test_lines_and_a_function(convert, tmp_path) -> None:
    (tmp_path / "list.txt").write_text("a.jpg 1\nb.jpg 2\n\nc.jpg bad\nd.jpg 4\n")
    convert.refused(
        tmp_path / "list.txt", FormatError, "c.jpg bad.*does not like.*item 2", options={"fn": load}
    )
    values = convert(tmp_path / "list.txt", options={"fn": load}, on_error="skip")
    assert [(value["path"], int(value["label"])) for value in values] == [
        ("a.jpg", 1),
        ("b.jpg", 2),
        ("d.jpg", 4),
    ]
    assert "RuntimeError: a label" in convert.report.skipped[0].reason
    assert [value["label"] for value in convert(["x 1", "y 2"], options={"fn": load}, workers=2)] == [1, 2]


def test_a_list_of_images(convert, tmp_path) -> None:
    folder_of_images(tmp_path / "photos", 4)
    (tmp_path / "list.csv").write_text(
        "path,label,note\nphotos/dog/0.jpg,dog,x\nphotos/cat/1.jpg,cat,\n"
        "photos/none.jpg,cat,y\nphotos/dog/2.jpg,,z\n"
    )
    convert.refused(tmp_path / "list.csv", FormatError, "there is no file photos/none.jpg")
    values = convert(tmp_path / "list.csv", on_error="skip")
    assert [(int(value["label"]), value["note"]) for value in values] == [(1, "x"), (0, None)]
    assert values[0]["image"] == (tmp_path / "photos/dog/0.jpg").read_bytes()
    assert [each.reason.split(" ")[0] for each in convert.report.skipped] == ["there", "missing"]
    assert shardio.open(convert.url).schema["label"].classes == ("cat", "dog")


@pytest.mark.parametrize(("name", "reason"), [("", "must have 1 to 1024 bytes"), ("_position", "is taken")])
def test_names_that_no_feature_can_have_are_told_with_their_place(convert, tmp_path, name, reason):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' + json.dumps({"x": 2, name: 3}) + "\n")
    convert.refused(tmp_path / "a.jsonl", SchemaError, f"a.jsonl byte 9: feature name '{name}' {reason}")
    assert [value["x"] for value in convert(tmp_path / "a.jsonl", schema={name: None})] == [1, 2]


def test_mixed_columns(convert, tmp_path) -> None:
    """What contradicts itself is refused with both sides; the caller's word settles it."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n{"x": "three"}\n')
    convert.refused(tmp_path / "a.jsonl", SchemaError, "'x' are of different types.*int64 in 2.*text in 1")
    assert [value["x"] for value in convert(tmp_path / "a.jsonl", on_error="skip")] == [1, 2]
    assert [value["x"] for value in convert(tmp_path / "a.jsonl", schema={"x": "json"})] == [1, 2, "three"]


def test_ragged_types(convert, tmp_path) -> None:
    lines = [{"x": [1, 2]}, {"x": [[1], [2, 3]]}, {"x": []}, {"x": ["a", 1]}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert convert(tmp_path / "a.jsonl") == lines
    assert convert.report.schema is not None
    assert convert.report.schema["x"].short == "json"


def test_nothing_is_unpickled(convert, tmp_path) -> None:
    path = tar(
        tmp_path / "x.tar", [("a.pyd", b"cos\nsystem\n(S'false'\ntR."), ("a.npy", b"\x93NUMPY nothing")]
    )
    (value,) = convert(path)
    assert value == {"__key__": "a", "pyd": b"cos\nsystem\n(S'false'\ntR.", "npy": b"\x93NUMPY nothing"}


# -------------------------------------------------------------------------------- other systems' shards


@pytest.mark.parametrize("algorithm", ["br", "snappy", "zstd"])
@pytest.mark.parametrize("change", ["cut", "garbage", "more", "less"])
def test_compressed_shards_of_mds_without_hashes(convert, tmp_path, algorithm, change) -> None:
    """Nothing but the decoder and the sizes in the index tells that such a shard is damaged."""
    source = tmp_path / "source"
    shutil.copytree(FOREIGN / "mds" / algorithm, source)
    index = json.loads((source / "index.json").read_text())
    shard = index["shards"][0]
    shard["zip_data"]["hashes"] = shard["raw_data"]["hashes"] = {}
    shard["raw_data"]["bytes"] += {"more": -7, "less": 7}.get(change, 0)
    file = source / shard["zip_data"]["basename"]
    if change in ("cut", "garbage"):
        file.write_bytes(file.read_bytes()[:900] + b"\xff" * 60 * (change == "garbage"))
        shard["zip_data"]["bytes"] = file.stat().st_size
    (source / "index.json").write_text(json.dumps(index))
    convert.refused(source, FormatError, "does not decode|another size|cut short")
    assert len(convert(source, on_error="skip")) == 12


@pytest.mark.parametrize(
    ("folder", "package", "line"),
    [
        ("br", "pyarrow", r"compressed with br needs pyarrow: pip install \"shardio\[convert\]\"$"),
        ("snappy", "pyarrow", r"compressed with snappy needs pyarrow: pip install \"shardio\[convert\]\"$"),
        ("lists", "PIL", r"list\[pil\] needs Pillow: pip install \"shardio\[image\]\"$"),
    ],
)
def test_what_mds_needs_is_one_line_of_pip(convert, monkeypatch, folder, package, line) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    convert.refused(FOREIGN / "mds" / folder, ModuleNotFoundError, line)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda index: index["shards"][0]["column_encodings"].__setitem__(0, "pkl"), "would run code"),
        (
            lambda index: index["shards"][0]["column_encodings"].__setitem__(0, "ndarray:oops"),
            "makes no sense",
        ),
        (lambda index: index["shards"][0].__setitem__("samples", 13), "does not hold the samples"),
        (
            lambda index: index["shards"][0]["raw_data"].__setitem__("basename", "../plain/x"),
            "may not|component",
        ),
        (lambda index: index["shards"][0].pop("raw_data"), "does not describe"),
        (lambda index: index["shards"][0].__setitem__("compression", "br"), "not describe"),
        (lambda index: index["shards"][0]["raw_data"].__setitem__("bytes", 1 << 40), "has a number"),
    ],
)
def test_an_index_of_mds_that_lies(convert, tmp_path, change, error) -> None:
    source = tmp_path / "source"
    shutil.copytree(FOREIGN / "mds/plain", source)
    index = json.loads((source / "index.json").read_text())
    change(index)
    (source / "index.json").write_text(json.dumps(index))
    convert.refused(source, ShardioError, error)


@pytest.mark.parametrize("encoding", ["jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]"])
def test_lists_of_mds_that_are_none(convert, tmp_path, encoding) -> None:
    source = tmp_path / "source"
    shutil.copytree(FOREIGN / "mds/plain", source)
    index = json.loads((source / "index.json").read_text())
    for shard in index["shards"]:
        shard["column_encodings"][0] = encoding
    (source / "index.json").write_text(json.dumps(index))
    convert.refused(source, FormatError, "sample 0.* is damaged|is damaged.*sample 0")


def test_codewithgpu_whose_parts_disagree(convert, tmp_path) -> None:
    for name, change, error in (
        ("a", lambda root: (root / "00001.index").unlink(), "is missing"),
        ("b", lambda root: (root / "00001.index").write_text("0 99999\n"), "after the end"),
        ("c", lambda root: (root / "00001.index").write_text("x\n"), "not a text index"),
        ("d", lambda root: (root / "METADATA").write_text("{"), "METADATA is damaged"),
        ("e", lambda root: (root / "00001.index").write_text("0 9\n"), "records that METADATA says"),
    ):
        shutil.copytree(FOREIGN / "codewithgpu", tmp_path / name)
        change(tmp_path / name)
        convert.refused(tmp_path / name, FormatError, error)
    source = tmp_path / "f"
    shutil.copytree(FOREIGN / "codewithgpu", source)
    data = bytearray((source / "00000.data").read_bytes())
    data[0] = 0xFF
    (source / "00000.data").write_bytes(data)
    assert len(convert(source, on_error="skip")) == 25
    assert "00000.data row 0" in convert.report.skipped[0].where


def test_parquet_files_of_different_columns(convert, tmp_path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "p").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "p" / "1.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "p" / "2.parquet")
    convert.refused(tmp_path / "p", SchemaError, "'a' is not the same")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "p" / "2.parquet")
    assert convert(tmp_path / "p") == [{"a": 1, "b": None}, {"a": None, "b": 1}]
    assert sum("is missing in 1 of 2 files" in note for note in convert.report.notes) == 2
    (tmp_path / "p" / "2.parquet").write_bytes(b"PAR1 and nothing")
    convert.refused(tmp_path / "p", FormatError, "neither Parquet nor Arrow")
    assert len(convert(tmp_path / "p", on_error="skip")) == 1
    assert len(convert.report.skipped) == 1


def test_examples_that_differ_behind_the_first_thousand(convert, tmp_path) -> None:
    """An inferred schema is never wrong about a record that was not looked at."""
    from shardio import codecs

    with shardio.DatasetWriter(tmp_path / "raw") as out:
        for n in range(1500):
            out.write(codecs.encode_example({"x": [n, n] if n != 1400 else [n]}))
    shardio.export_dataset(tmp_path / "raw", tmp_path / "plain", kind="tfrecord")
    convert.refused(tmp_path / "plain", SchemaError, "row 1400")
    assert len(convert(tmp_path / "plain", on_error="skip")) == 1499
    assert len(convert(tmp_path / "plain", schema={"x": "int64[?]"})) == 1500


# -------------------------------------------------------------------------------- the caller's own


def test_callers_mistakes(convert, tmp_path) -> None:
    convert.refused(tmp_path, ValueError, "names no class", options={"classes": []})
    convert.refused(tmp_path / "nothing", NotFoundError, "no such file or folder")
    convert.refused(str(tmp_path / "*.tar"), NotFoundError, "matches nothing")
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    convert.refused(tmp_path / "a.jsonl", ValueError, "must be one of images", kind="jpeg")
    convert.refused(tmp_path / "a.jsonl", ValueError, "on_error", on_error="ignore")
    convert.refused(tmp_path / "a.jsonl", ValueError, "schema names 'b'", schema={"b": "int64"})
    convert.refused(tmp_path / "a.jsonl", ValueError, "sum must be 1", split={"a": 0.5})
    (tmp_path / "thing.xyz").write_text("?")
    convert.refused(tmp_path / "thing.xyz", ValueError, "cannot be told")
    convert(tmp_path / "a.jsonl")
    with pytest.raises(CommitConflictError):
        shardio.convert_dataset(tmp_path / "a.jsonl", convert.url)
    shardio.convert_dataset(tmp_path / "a.jsonl", convert.url, mode="append")
    assert len(shardio.open(convert.url)) == 2


def test_a_feature_may_be_left_out(convert, tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": 2}\n')
    assert convert(tmp_path / "a.jsonl", schema={"b": None, "a": "int8"}) == [{"a": 1}]
    assert convert(tmp_path / "a.jsonl", schema=shardio.Schema.parse({"b": "int32"})) == [{"b": 2}]


# -------------------------------------------------------------------------------- exports


@pytest.mark.parametrize("kind", ["tfrecord", "webdataset", "jsonl", "parquet", "mds", "images"])
def test_an_export_that_fails_leaves_nothing(tmp_path, kind) -> None:
    url = tmp_path / "dataset"
    with shardio.DatasetWriter(url, schema={"image": "jpeg", "label": "int64"}, block_bytes=256) as out:
        for n in range(40):
            # The first split is exported by the time that the damage in the second is found.
            out.write({"image": picture(n), "label": n}, split="a" if n < 20 else "b")
    (shard,) = (url / "data").glob("b-*.tfrecord")
    data = bytearray(shard.read_bytes())
    data[-200] ^= 1
    shard.write_bytes(data)
    with pytest.raises(FormatError):
        shardio.export_dataset(url, tmp_path / "out", kind=kind, shard_bytes=1000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset"]
    from shardio.storage import connect

    with pytest.raises(FormatError):
        shardio.export_dataset(url, f"memory://failed-export-{kind}", kind=kind, shard_bytes=1000)
    assert list(connect(f"memory://failed-export-{kind}").list()) == []
    report = shardio.export_dataset(url, f"memory://export-{kind}", kind=kind, on_error="skip")
    assert sorted(info.key for info in connect(f"memory://export-{kind}").list()) == sorted(report.files)
    assert report.records["a"] == 20
    assert 10 < report.records["b"] < 20
    assert len(report.skipped) == 20 - report.records["b"]


def test_names_that_lead_elsewhere_are_refused(tmp_path) -> None:
    url = tmp_path / "dataset"
    with shardio.DatasetWriter(url, schema={"image": "jpeg", "path": "text", "__key__": "text"}) as out:
        out.write({"image": picture(1), "path": "../../evil.jpg", "__key__": "../evil"})
    for kind in ("images", "webdataset"):
        with pytest.raises(UnsafeNameError):
            shardio.export_dataset(url, tmp_path / "out", kind=kind)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset"]


def test_exports_that_cannot_be(tmp_path) -> None:
    url = tmp_path / "dataset"
    with shardio.DatasetWriter(url, schema={"z": "complex64", "path": "text"}) as out:
        out.write({"z": 1j, "path": "a"})
    for kind, error in (
        ("images", "one image"), ("parquet", "complex64"), ("mds", "'z' is complex64"),
        ("zip", "must be one of"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=error):
            shardio.export_dataset(url, tmp_path / "out", kind=kind)
    with refused(ValueError, "compression"):
        shardio.export_dataset(url, tmp_path / "out", kind="webdataset", compression="gzip")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(CommitConflictError):
        shardio.export_dataset(url, tmp_path / "out", kind="jsonl")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("schema", "value", "error"),
    [
        ({"x": "bytes[?]"}, {"x": [b""]}, "'x' is a list of bytes, which no column of MDS can hold"),
        ({"x": "webp[2]"}, {"x": [b"RIFF\0\0\0\0WEBP"] * 2}, "'x' is a list of webp"),
        ({"x": "complex128[?]"}, {"x": [1]}, "'x' is complex128"),
        (None, b"x", "MDS needs columns"),
    ],
)
def test_what_mds_cannot_hold(tmp_path, schema, value, error) -> None:
    with shardio.DatasetWriter(tmp_path / "d", schema=schema) as out:
        out.write(value)
    with pytest.raises(ValueError, match=error):
        shardio.export_dataset(tmp_path / "d", tmp_path / "out", kind="mds")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_mds_has_no_missing_values(tmp_path) -> None:
    with shardio.DatasetWriter(tmp_path / "d", schema={"n": Feature("int64", optional=True)}) as out:
        for n in range(6):
            out.write({"n": n} if n % 3 else {})
    with refused(SchemaError, "'n'"):
        shardio.export_dataset(tmp_path / "d", tmp_path / "out", kind="mds")
    report = shardio.export_dataset(tmp_path / "d", tmp_path / "out", kind="mds", on_error="skip")
    assert (report.records, len(report.skipped)) == ({"train": 4}, 2)
    # What the advice says works.
    shardio.set_schema(tmp_path / "d", {"n": Feature("int64", default=-1)})
    assert shardio.export_dataset(tmp_path / "d", tmp_path / "all", kind="mds").records == {"train": 6}


def test_two_records_of_one_name(tmp_path) -> None:
    url = tmp_path / "dataset"
    with shardio.DatasetWriter(url, schema={"image": "jpeg", "path": "text"}) as out:
        out.write({"image": picture(1), "path": "a.jpg"})
        out.write({"image": picture(2), "path": "a.jpg"})
    with pytest.raises(CommitConflictError):
        shardio.export_dataset(url, tmp_path / "out", kind="images")
