"""Damaged and odd sources: refused by name, or left out and listed; never half a source published."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import tarfile
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


def skipped(convert) -> dict[str, str]:
    """Return the reasons by the last part of the place."""
    return {each.where.rpartition("/")[2]: each.reason for each in convert.report.skipped}


# -------------------------------------------------------------------------------- images


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("cat/empty.jpg", b"", "file is empty"),
        ("cat/noise.jpg", b"no image at all", "cannot be decoded"),
        ("cat/cut.jpg", picture(1, size=(64, 64))[:700], "cannot be decoded"),
        ("stray.jpg", picture(2), "missing label"),
    ],
)
def test_an_image_that_is_none(convert, tmp_path, name, data, reason) -> None:
    source = folder_of_images(tmp_path / "photos")
    (source / name).write_bytes(data)
    convert.refused(source, FormatError, reason)
    values = convert(source, on_error="skip")
    assert len(values) == 6
    assert len(convert.report.skipped) == 1
    assert reason in skipped(convert)[name.rpartition("/")[2]]


def test_a_name_that_is_not_utf8(convert, tmp_path) -> None:
    source = folder_of_images(tmp_path / "photos")
    (source / "cat" / os.fsdecode(b"caf\xe9.jpg")).write_bytes(picture(9))
    convert.refused(source, FormatError, "not UTF-8")
    assert len(convert(source, on_error="skip")) == 6
    assert list(skipped(convert).values()) == ["the name of the file is not UTF-8 text"]


def test_other_files_are_named(convert, tmp_path) -> None:
    source = folder_of_images(tmp_path / "photos")
    (source / "notes.txt").write_text("by hand")
    (source / ".DS_Store").write_bytes(b"\0")
    convert(source)
    assert convert.report.ignored == [".DS_Store", "notes.txt"]


def test_unknown_classes(convert, tmp_path) -> None:
    source = folder_of_images(tmp_path / "photos")
    convert.refused(source, FormatError, "there is no class 'dog'", options={"classes": ["cat"]})
    assert [value["label"] for value in convert(source, options={"classes": ["dog", "cat"]})] == [
        1,
        1,
        1,
        0,
        0,
        0,
    ]


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [("path,path\na,b\n", "twice"), ("path,label\na\n", "another number"), ('path\n"a', "not CSV")],
)
def test_a_csv_file_that_is_none(convert, tmp_path, text, reason) -> None:
    (tmp_path / "list.csv").write_text(text)
    convert.refused(tmp_path / "list.csv", FormatError, reason, kind="list")


def test_a_list_that_is_no_text(convert, tmp_path) -> None:
    (tmp_path / "list.csv").write_bytes(b"path,label\n\xff,1\n")
    convert.refused(tmp_path / "list.csv", FormatError, "not UTF-8")


# -------------------------------------------------------------------------------- JSON lines, text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "not JSON"),
        (b'{"a": 1, "a": 2}', "comes twice"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "one"}', "does not fit"),
        (b'{"b": 1}', "lacks feature|has a feature"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": 1e999}', "larger than float64"),
    ],
)
def test_a_line_that_is_wrong(convert, tmp_path, line, reason) -> None:
    good = [json.dumps({"a": n}).encode() for n in range(1200)]
    (tmp_path / "lines.jsonl").write_bytes(b"\n".join([*good, line, b'{"a": 7}']))
    convert.refused(tmp_path / "lines.jsonl", ShardioError, reason)
    values = convert(tmp_path / "lines.jsonl", on_error="skip")
    assert [int(value["a"]) for value in values] == [*range(1200), 7]
    assert len(convert.report.skipped) == 1
    assert "lines.jsonl byte" in convert.report.skipped[0].where


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


def test_an_empty_file(convert, tmp_path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("something")
    (tmp_path / "texts" / "b.txt").write_text("")
    convert.refused(tmp_path / "texts", FormatError, "the file is empty")
    assert len(convert(tmp_path / "texts", on_error="skip")) == 1
    (tmp_path / "texts" / "c.txt").write_bytes(b"\xff\xfe")
    assert len(convert(tmp_path / "texts", on_error="skip")) == 1
    assert len(convert.report.skipped) == 2


# -------------------------------------------------------------------------------- tar files


def tar(path: Path, members: list[tuple[Any, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ([("c.txt", b"1"), ("c.txt", b"2")], "has two members 'txt'"),
        ([("c.", b"1")], "no ending"),
        ([("c.__key__", b"1")], "has two members '__key__'"),
        ([(os.fsdecode(b"\xff.txt"), b"1")], "not UTF-8"),
        ([("c.txt", b"\xff")], "is not text"),
    ],
)
def test_an_odd_sample(convert, tmp_path, odd, reason) -> None:
    good = [("a.txt", b"one"), ("b.txt", b"two")]
    path = tar(tmp_path / "x.tar", [*good, *odd, ("z.txt", b"last")])
    options = {"schema": {"txt": "text"}}
    convert.refused(path, ShardioError, reason, **options)
    values = convert(path, on_error="skip", **options)
    assert [value["__key__"] for value in values] == ["a", "b", "z"]
    assert len(convert.report.skipped) == 1
    assert reason.split(":")[0] in convert.report.skipped[0].reason


def test_a_tar_file_that_was_cut(convert, tmp_path) -> None:
    path = tar(tmp_path / "x.tar", [(f"{n}.bin", bytes([n]) * 600) for n in range(9)])
    path.write_bytes(path.read_bytes()[:5000])
    convert.refused(path, FormatError, "damaged")
    convert(path, on_error="skip")
    assert 1 <= convert.report.records["train"] < 9
    assert "damaged" in convert.report.skipped[-1].reason
    (tmp_path / "y.tar").write_bytes(b"")
    convert.refused(tmp_path / "y.tar", FormatError, "empty")
    (tmp_path / "z.tar").write_bytes(b"no tar file" * 100)
    convert.refused(tmp_path / "z.tar", FormatError, "damaged")


def test_nothing_is_unpickled(convert, tmp_path) -> None:
    path = tar(
        tmp_path / "x.tar", [("a.pyd", b"cos\nsystem\n(S'false'\ntR."), ("a.npy", b"\x93NUMPY nothing")]
    )
    (value,) = convert(path)
    assert value == {"__key__": "a", "pyd": b"cos\nsystem\n(S'false'\ntR.", "npy": b"\x93NUMPY nothing"}


# -------------------------------------------------------------------------------- other systems' shards


@pytest.mark.parametrize(
    "folder",
    [
        "mds/plain", "mds/zstd", "mds/br", "mds/snappy", "mds/lists",
        "codewithgpu", "webdataset", "torchrecord/db",
    ],
)  # fmt: skip
def test_cut_shards_are_refused(convert, tmp_path, folder) -> None:
    source = tmp_path / "source"
    shutil.copytree(FOREIGN / folder, source)
    victim = max(
        (path for path in source.iterdir() if path.suffix != ".json"), key=lambda path: path.stat().st_size
    )
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size * 2 // 3])
    convert.refused(source, FormatError, ".")


def test_flipped_bits_of_mds_are_refused(convert, tmp_path) -> None:
    source = tmp_path / "source"
    shutil.copytree(FOREIGN / "mds/plain", source)
    data = bytearray((source / "shard.00001.mds").read_bytes())
    data[1000] ^= 1
    (source / "shard.00001.mds").write_bytes(data)
    convert.refused(source, FormatError, "does not match its sha1")
    assert len(convert(source, on_error="skip")) == 14
    assert len(convert.report.skipped) == 1


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
        ("c", lambda root: (root / "00001.index").write_text("x\n"), "start length"),
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


def test_damaged_tfrecord(convert, tmp_path) -> None:
    data = bytearray((FOREIGN / "tfrecord-with-index" / "a.tfrecord").read_bytes())
    data[2000] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(data)
    convert.refused(tmp_path / "a.tfrecord", FormatError, "a.tfrecord")
    convert(tmp_path / "a.tfrecord", on_error="skip")
    assert 1 < convert.report.records["train"] < 26
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
