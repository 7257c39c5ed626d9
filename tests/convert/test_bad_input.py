"""Damaged sources of every format: refused with the file, or listed; never half a source published.

A row of the table is a format and a damage; the cells say what the refusal names, and what is left where bad
records are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

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
from tests.convert.test_megatron import write as write_megatron
from tests.indexer.shards import tar as tar_bytes, tfrecord
from tests.sources.test_tfds import VERSION
from tests.suites.errors import refused

TABLE = pa.table({"x": list(range(6)), "name": [f"wren {n}" for n in range(6)]})


def made(name: str, write: Callable[[Path], Any]) -> Callable[[Path], tuple[Path, Path]]:
    """Return what makes a source of one file in a folder; gives source and victim."""

    def make(folder: Path) -> tuple[Path, Path]:
        write(folder / name)
        return folder / name, folder / name

    return make


def bytes_of(name: str, data: bytes) -> Callable[[Path], tuple[Path, Path]]:
    return made(name, lambda path: path.write_bytes(data))


def arrow(new: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with pa.OSFile(str(path), "wb") as file, new(file, TABLE.schema) as out:
            out.write_table(TABLE)

    return write


def copied(source: Path, victim: str) -> Callable[[Path], tuple[Path, Path]]:
    """Return what copies a golden folder, and gives one file of it as the victim."""

    def make(folder: Path) -> tuple[Path, Path]:
        place = Path(shutil.copytree(source, folder / "source"))
        return place, place / victim

    return make


def pictures(folder: Path) -> tuple[Path, Path]:
    for n in range(6):
        path = folder / "photos" / ("cat" if n % 2 else "dog") / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(n, "PNG", (32, 32)))
    return folder / "photos", folder / "photos/cat/3.png"


def listed(folder: Path) -> tuple[Path, Path]:
    pictures(folder)
    rows = [f"photos/{'cat' if n % 2 else 'dog'}/{n}.png,{n}" for n in range(6)]
    (folder / "list.csv").write_text("\n".join(["path,label", *rows]))
    return folder / "list.csv", folder / "list.csv"


def texts(folder: Path) -> tuple[Path, Path]:
    (folder / "texts").mkdir()
    for n in range(6):
        (folder / "texts" / f"{n}.txt").write_text(f"wren {n}")
    return folder / "texts", folder / "texts/3.txt"


def megatron(folder: Path) -> tuple[Path, Path]:
    prefix = write_megatron(folder / "corpus", [[[n, 1, 2]] for n in range(6)])
    return Path(f"{prefix}.idx"), Path(f"{prefix}.bin")


LINES = [json.dumps({"x": n, "name": f"wren {n}"}) for n in range(6)]
ROWS = "\n".join(["x,name", *(f"{n},wren {n}" for n in range(6)), ""])
GOOD: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    "parquet": made("a.parquet", lambda path: parquet.write_table(TABLE, path, compression="none")),
    "feather": made("a.feather", lambda path: feather.write_feather(TABLE, path)),
    "arrow file": made("a.arrow", arrow(pa.ipc.new_file)),
    "arrow stream": made("a.arrows", arrow(pa.ipc.new_stream)),
    "csv": bytes_of("a.csv", ROWS.encode()),
    "tsv": bytes_of("a.tsv", ROWS.replace(",", "\t").encode()),
    "jsonl": bytes_of("a.jsonl", "\n".join(LINES).encode()),
    "webdataset": bytes_of("a.tar", tar_bytes([(f"{n}.txt", b"wren" * 300) for n in range(6)])),
    "mds": copied(FOREIGN / "mds/plain", "shard.00001.mds"),
    "megatron": megatron,
    "torchrecord": copied(FOREIGN / "torchrecord/db", "data.mdb"),
    "codewithgpu": copied(FOREIGN / "codewithgpu", "00001.data"),
    "tfrecord": bytes_of("a.tfrecord", tfrecord([b"wren" * 100] * 6)),
    "tfds": copied(VERSION, "birds-train.tfrecord-00000-of-00002"),
    "image folder": pictures,
    "list": listed,
    "text files": texts,
}


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwritten(start: int = 0, data: bytes = b"\xffgarbage") -> Callable[[Path], object]:
    """Return what writes other bytes over those of a file from a place on."""

    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[:start] + data + content[start + len(data) :])

    return damage


def replaced(old: bytes, new: bytes) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new, 1))

    return damage


def rewritten(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def table(columns: dict[str, Any]) -> Callable[[Path], object]:
    return lambda path: parquet.write_table(pa.table(columns), path)


def members(*more: tuple[str, bytes]) -> Callable[[Path], object]:
    """Return what makes a tar file of six samples with others between them."""
    good = [(f"{n}.txt", b"wren" * 300) for n in range(6)]
    return lambda path: path.write_bytes(tar_bytes([*good[:5], *more, good[5]]))


def index_of(**facts: Any) -> Callable[[Path], object]:
    """Return what changes facts of the second shard in an index of MDS."""

    def damage(path: Path) -> None:
        index = json.loads((path.parent / "index.json").read_text())
        index["shards"][1] |= facts
        (path.parent / "index.json").write_text(json.dumps(index))

    return damage


def beside(ending: str, damage: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return what damages the file of another ending beside the one that holds the records."""
    return lambda path: damage(path.with_suffix(ending))


class Case(NamedTuple):
    """What a damaged source must do.

    Attributes:
        damage: what is done to the file that holds records.
        error: the class of the refusal.
        url: the end of its URL; "" for the file of records.
        left, listed: with `on_error="skip"`, records left and bad ones listed; None where that refuses, too.
        options: of the conversion.
    """

    damage: Callable[[Path], object]
    error: type[ShardioError] = FormatError
    url: str = ""
    left: int | None = None
    listed: int = 1
    options: dict[str, Any] | None = None


NEED = {"name": "text"}  # a feature that each record must have
ARROW = ("parquet", "feather", "arrow file", "arrow stream")
BAD: dict[tuple[str, str], Case] = {
    **{(name, "empty file"): Case(empty, NotFoundError) for name in (*ARROW, "jsonl")},
    ("list", "empty file"): Case(empty),
    **{(name, "empty file"): Case(empty, left=0) for name in ("csv", "tsv", "webdataset")},
    **{(name, "empty file"): Case(empty, left=5) for name in ("image folder", "text files")},
    **{(name, "cut"): Case(cut, left=0) for name in ARROW},
    **{(name, "wrong magic"): Case(overwritten(), left=0) for name in ARROW},
    ("mds", "empty file"): Case(empty, left=14),
    ("megatron", "empty file"): Case(empty, url="corpus.idx", left=0, listed=6),
    ("torchrecord", "empty file"): Case(empty),
    ("codewithgpu", "empty file"): Case(empty, url="00001.index"),
    ("jsonl", "cut"): Case(lambda path: path.write_bytes(path.read_bytes()[:-1]), left=5),
    ("webdataset", "cut"): Case(lambda path: path.write_bytes(path.read_bytes()[:5000]), left=2),
    ("mds", "cut"): Case(cut, left=14),
    ("megatron", "cut"): Case(cut, url="corpus.idx", left=3, listed=3),
    ("torchrecord", "cut"): Case(cut),
    ("codewithgpu", "cut"): Case(cut, url="00001.index"),
    ("tfrecord", "cut"): Case(lambda path: path.write_bytes(path.read_bytes()[:-1]), left=5),
    ("tfds", "cut"): Case(cut, left=7),
    ("image folder", "cut"): Case(cut, left=5),
    ("webdataset", "wrong magic"): Case(overwritten(), left=4, listed=2),
    ("mds", "wrong magic"): Case(overwritten(), left=14),
    ("megatron", "wrong magic"): Case(
        beside(".idx", overwritten()), url="corpus.idx", left=0, options={"kind": "megatron"}
    ),
    ("torchrecord", "wrong magic"): Case(overwritten(16)),
    ("codewithgpu", "wrong magic"): Case(overwritten(), left=25),
    ("tfrecord", "wrong magic"): Case(overwritten(), left=5),
    ("tfds", "wrong magic"): Case(overwritten(), left=8),
    ("image folder", "wrong magic"): Case(overwritten(), left=5),
    # Text that is not UTF-8.
    ("csv", "not UTF-8"): Case(replaced(b"wren 3", b"wren \xff"), left=3, listed=2),
    ("tsv", "not UTF-8"): Case(replaced(b"wren 3", b"wren \xff"), left=3, listed=2),
    ("jsonl", "not UTF-8"): Case(replaced(b"wren 3", b"wren \xff"), left=5),
    ("list", "not UTF-8"): Case(replaced(b"dog/2", b"dog/\xff")),
    ("text files", "not UTF-8"): Case(overwritten(), left=5),
    ("webdataset", "not UTF-8"): Case(
        members(("x.txt", b"\xff")), SchemaError, left=6, options={"schema": {"txt": "text"}}
    ),
    ("parquet", "not UTF-8"): Case(replaced(b"wren 3", b"wren \xff"), SchemaError, left=5),
    ("arrow file", "not UTF-8"): Case(replaced(b"wren 3", b"wren \xff"), SchemaError, left=5),
    # Rows of other columns than the first.
    ("csv", "ragged row"): Case(replaced(b"3,wren 3", b"3,wren,3"), left=5),
    ("tsv", "ragged row"): Case(replaced(b"3\twren 3", b"3"), left=5),
    ("list", "ragged row"): Case(replaced(b"2.png,2", b"2.png")),
    ("jsonl", "ragged row"): Case(
        replaced(b'"name": "wren 3"', b'"nam": 3'), SchemaError, left=5, options={"schema": NEED}
    ),
    # A required feature that is missing in a record.
    ("csv", "nothing"): Case(replaced(b"wren 3", b""), SchemaError, left=5, options={"schema": NEED}),
    ("tsv", "nothing"): Case(replaced(b"wren 3", b""), SchemaError, left=5, options={"schema": NEED}),
    ("jsonl", "nothing"): Case(replaced(b'"wren 3"', b"null"), SchemaError, left=5, options={"schema": NEED}),
    ("parquet", "nothing"): Case(
        table({"name": ["a", None, "c"]}), SchemaError, left=2, options={"schema": NEED}
    ),
    ("webdataset", "nothing"): Case(
        members(("x.cls", b"1")), SchemaError, left=6, options={"schema": {"txt": "text"}}
    ),
    # NaN where an integer is needed.
    ("csv", "NaN"): Case(replaced(b"3,", b"0.5,"), SchemaError, left=5, options={"schema": {"x": "int64"}}),
    ("parquet", "NaN"): Case(
        table({"x": [1.0, float("nan"), 3.0]}),
        SchemaError,
        left=0,
        listed=3,
        options={"schema": {"x": "int64"}},
    ),
    ("jsonl", "NaN"): Case(replaced(b'"x": 3', b'"x": NaN'), left=5),
    # Lengths that are more than there is, or than fits into memory.
    ("parquet", "huge length"): Case(
        lambda path: overwritten(path.stat().st_size - 8, b"\xff\xff\xff\x7f")(path), left=0
    ),
    ("arrow stream", "huge length"): Case(overwritten(4, b"\xff\xff\xff\x7f"), left=0),
    ("tfrecord", "huge length"): Case(overwritten(0, struct.pack("<Q", 1 << 62)), left=5),
    ("webdataset", "huge length"): Case(overwritten(124, b"77777777777"), left=4, listed=2),
    ("mds", "huge length"): Case(index_of(samples=1 << 31), left=14),
    ("mds", "number out of range"): Case(index_of(samples=1 << 40), url="index.json"),
    ("megatron", "huge length"): Case(
        beside(".idx", overwritten(18, struct.pack("<Q", 1 << 60))),
        url="corpus.idx",
        left=0,
        options={"kind": "megatron"},
    ),
    ("codewithgpu", "huge length"): Case(beside(".index", rewritten(b"0 99999999999\n")), url="00001.index"),
    # Names that come twice.
    ("csv", "name twice"): Case(replaced(b"x,name", b"x,x"), left=0),
    ("jsonl", "name twice"): Case(replaced(b'"x": 3', b'"x": 3, "x": 3'), left=5),
    ("list", "name twice"): Case(replaced(b"path,label", b"path,path")),
    ("webdataset", "name twice"): Case(members(("x.txt", b"1"), ("x.txt", b"2")), left=6),
    # A member that cannot be read.
    ("image folder", "no image"): Case(rewritten(b"no image at all"), left=5),
    ("list", "no file"): Case(replaced(b"dog/2", b"dog/7"), left=5),
    ("codewithgpu", "no METADATA"): Case(
        lambda path: (path.parent / "METADATA").write_text("{"), url="METADATA"
    ),
    ("mds", "no shard"): Case(lambda path: path.unlink(), left=14),
    ("tfds", "no shard"): Case(lambda path: path.unlink(), NotFoundError),
    ("megatron", "no tokens"): Case(lambda path: path.unlink(), NotFoundError),
    # What is wrong in ways of its own.
    **{
        ("jsonl", what): Case(replaced(LINES[3].encode(), line), error, left=5)
        for what, line, error in (
            ("cut line", b'{"x": 1', FormatError),
            ("deep", b"[" * 100_000, FormatError),
            ("large number", b'{"x": 1e999, "name": "a"}', FormatError),
        )
    },
    ("jsonl", "another type"): Case(replaced(b'"x": 3', b'"x": "one"'), SchemaError, url="a.jsonl", left=5),
    ("list", "open quote"): Case(replaced(b"photos/dog/2", b'"photos/dog/2')),
    ("list", "no label"): Case(replaced(b"2.png,2", b"2.png,"), left=5),
    ("csv", "no names"): Case(rewritten(b"1,2\n3,4\n"), left=0),
    ("csv", "UTF-16"): Case(rewritten(ROWS.encode("utf-16")), left=0),
    ("csv", "carriage returns"): Case(rewritten(ROWS.encode().replace(b"\n", b"\r")), left=0),
    ("csv", "open quote"): Case(replaced(b"3,wren 3", b'3,"wren 3'), left=3),
    ("image folder", "no class"): Case(
        lambda path: path.rename(path.parents[1] / "3.png"), url="photos/3.png", left=5
    ),
    ("image folder", "name not UTF-8"): Case(
        lambda path: path.rename(path.with_name(os.fsdecode(b"caf\xe9.png"))),
        url="9.png",
        left=5,
    ),
    ("webdataset", "no ending"): Case(members(("x.", b"1")), left=6),
    ("webdataset", "__key__"): Case(members(("x.__key__", b"1")), left=6),
    ("webdataset", "name not UTF-8"): Case(members((os.fsdecode(b"\xff.txt"), b"1")), left=6),
    ("webdataset", "no tar file"): Case(rewritten(b"no tar file" * 100), left=0, listed=2),
    ("tfrecord", "flipped bit"): Case(overwritten(1000, b"!"), left=5),
    ("megatron", "version"): Case(
        beside(".idx", overwritten(9, b"\2")), url="corpus.idx", left=0, options={"kind": "megatron"}
    ),
    ("megatron", "type"): Case(
        beside(".idx", overwritten(17, b"\x09")), url="corpus.idx", left=0, options={"kind": "megatron"}
    ),
    ("codewithgpu", "no index"): Case(beside(".index", rewritten(b"x\n")), url="00001.index"),
    ("codewithgpu", "fewer records"): Case(beside(".index", rewritten(b"0 9\n")), url="source"),
    ("codewithgpu", "half a pair"): Case(lambda path: path.with_suffix(".index").unlink(), url="source"),
    **{
        ("mds", what): Case(index_of(**facts), error, url=url)
        for what, facts, error, url in (
            ("pickles", {"column_encodings": ["pkl"] * 4}, SchemaError, "source"),
            ("array of no type", {"column_encodings": ["ndarray:oops"] * 4}, FormatError, "shard.00001.mds"),
            ("no names", {"column_names": None}, FormatError, "index.json"),
            ("a name too few", {"column_names": ["a"]}, FormatError, "index.json"),
            ("words for a number", {"samples": "x"}, FormatError, "index.json"),
            ("a name twice", {"column_names": ["a"] * 4}, FormatError, "shard.00001.mds"),
            ("no data", {"raw_data": None}, FormatError, "index.json"),
            ("no compressed data", {"compression": "br"}, FormatError, "index.json"),
            (
                "negative size",
                {"raw_data": {"basename": "shard.00001.mds", "bytes": -1}},
                FormatError,
                "index.json",
            ),
            ("path elsewhere", {"raw_data": {"basename": "../x", "bytes": 1}}, UnsafeNameError, "index.json"),
        )
    },
}


# Row and first byte that an error names, by kind of damage; where there is neither, it is about the file.
PLACES: dict[tuple[str, str], tuple[int | None, int | None]] = {
    **{("tfrecord", what): (0, 0) for what in ("wrong magic", "huge length")},
    **{("tfds", what): (0, 0) for what in ("cut", "wrong magic")},
    **{("jsonl", what): (None, 81) for what in ("not UTF-8", "ragged row", "nothing", "NaN", "name twice")},
    **{("jsonl", what): (None, 81) for what in ("cut line", "deep", "large number")},
    **{(name, what): (5, None) for name in ("csv", "tsv") for what in ("ragged row", "nothing")},
    **{("csv", what): (5, None) for what in ("NaN", "open quote")},
    **{("list", what): (2, None) for what in ("no file", "no label")},
    **{("list", what): (4, None) for what in ("ragged row", "open quote")},
    **{(name, "not UTF-8"): (3, None) for name in ("parquet", "arrow file")},
    **{("webdataset", what): (None, 10240) for what in ("not UTF-8", "nothing", "name twice", "no ending")},
    **{("webdataset", what): (None, 10240) for what in ("__key__", "name not UTF-8")},
    **{("webdataset", what): (None, 0) for what in ("wrong magic", "huge length", "no tar file")},
    ("webdataset", "cut"): (None, 4096), ("jsonl", "cut"): (None, 135), ("list", "not UTF-8"): (None, 49),
    ("tfrecord", "cut"): (5, 2080), ("tfrecord", "flipped bit"): (2, 832), ("parquet", "nothing"): (1, None),
    ("parquet", "NaN"): (0, None), ("codewithgpu", "wrong magic"): (0, None),
    ("megatron", "empty file"): (0, None), ("megatron", "cut"): (3, None),
}  # fmt: skip


@pytest.mark.parametrize(("name", "damage"), BAD)
def test_bad_input_is_refused_or_listed(convert, tmp_path, name, damage) -> None:
    """By default nothing is published, and the error names the file; else what is bad is listed."""
    case = BAD[name, damage]
    source, victim = GOOD[name](tmp_path)
    case.damage(victim)
    options = {"kind": "list", **(case.options or {})} if name == "list" else case.options or {}
    error = convert.refused(source, case.error, **options)
    assert str(error.url).endswith(case.url or victim.name)
    assert (error.row, error.start) == PLACES.get((name, damage), (None, None))
    if case.left is None:
        convert.refused(source, case.error, on_error="skip", **options)
        return
    convert(source, on_error="skip", **options)
    assert (sum(convert.report.records.values()), len(convert.report.skipped)) == (case.left, case.listed)
    assert all(str(tmp_path) in bad.where for bad in convert.report.skipped)


@pytest.mark.parametrize("algorithm", ["br", "snappy", "zstd"])
@pytest.mark.parametrize("change", ["cut", "garbage", "more", "less"])
def test_compressed_shards_of_mds_without_hashes(convert, tmp_path, algorithm, change) -> None:
    """Nothing but the decoder and the sizes in the index tells that such a shard is damaged."""
    source = Path(shutil.copytree(FOREIGN / "mds" / algorithm, tmp_path / "source"))
    index = json.loads((source / "index.json").read_text())
    shard = index["shards"][0]
    shard["zip_data"]["hashes"] = shard["raw_data"]["hashes"] = {}
    shard["raw_data"]["bytes"] += {"more": -7, "less": 7}.get(change, 0)
    file = source / shard["zip_data"]["basename"]
    if change in ("cut", "garbage"):
        file.write_bytes(file.read_bytes()[:900] + b"\xff" * 60 * (change == "garbage"))
        shard["zip_data"]["bytes"] = file.stat().st_size
    (source / "index.json").write_text(json.dumps(index))
    assert file.name in str(convert.refused(source, FormatError).url)
    assert len(convert(source, on_error="skip")) == 12


def no_records(folder: Path) -> dict[str, Path]:
    """Return sources of no record that are whole, by format."""
    empty = TABLE.slice(0, 0)
    parquet.write_table(empty, folder / "a.parquet")
    feather.write_feather(empty, folder / "a.feather")
    (folder / "a.csv").write_text("x,name\n")
    (folder / "a.tsv").write_text("x\tname\n")
    (folder / "a.tfrecord").write_bytes(b"")
    write_megatron(folder / "corpus", [])
    return {path.suffix: path for path in folder.iterdir() if path.suffix != ".bin"}


@pytest.mark.parametrize("ending", [".parquet", ".feather", ".csv", ".tsv", ".tfrecord", ".idx"])
def test_sources_without_records_are_datasets_without_records(convert, tmp_path, ending) -> None:
    assert convert(no_records(tmp_path)[ending]) == []
    assert convert.report.skipped == []


def folder_of_images(root: Path, count: int = 6) -> Path:
    for n in range(count):
        path = root / ("cat" if n % 2 else "dog") / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(n))
    return root


def tar(path: Path, members: list[tuple[Any, bytes]]) -> Path:
    path.write_bytes(tar_bytes(members))
    return path


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


def load(line: str) -> Any:
    path, label = line.split()
    if label == "bad":
        raise RuntimeError("a label that the function does not like")
    return {"path": path, "label": int(label)}


def test_lines_and_a_function(convert, tmp_path) -> None:
    (tmp_path / "list.txt").write_text("a.jpg 1\nb.jpg 2\n\nc.jpg bad\nd.jpg 4\n")
    convert.refused(
        tmp_path / "list.txt", FormatError, "item 2: 'c.jpg bad.*does not like", options={"fn": load}
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


@pytest.mark.parametrize("name", ["", "_position"])
def test_names_that_no_feature_can_have_are_told_with_their_place(convert, tmp_path, name):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' + json.dumps({"x": 2, name: 3}) + "\n")
    error = convert.refused(tmp_path / "a.jsonl", SchemaError)
    assert f"a.jsonl byte 9: feature name '{name}'" in error.what
    assert [value["x"] for value in convert(tmp_path / "a.jsonl", schema={name: None})] == [1, 2]


def test_mixed_columns(convert, tmp_path) -> None:
    """What contradicts itself is refused with both sides; the caller's word settles it."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n{"x": "three"}\n')
    convert.refused(tmp_path / "a.jsonl", SchemaError, "'x' are of different types.*int64 in 2.*text in 1")
    assert [value["x"] for value in convert(tmp_path / "a.jsonl", on_error="skip")] == [1, 2]
    assert [value["x"] for value in convert(tmp_path / "a.jsonl", schema={"x": "json"})] == [1, 2, "three"]


def test_nothing_is_unpickled(convert, tmp_path) -> None:
    path = tar(
        tmp_path / "x.tar", [("a.pyd", b"cos\nsystem\n(S'false'\ntR."), ("a.npy", b"\x93NUMPY nothing")]
    )
    (value,) = convert(path)
    assert value == {"__key__": "a", "pyd": b"cos\nsystem\n(S'false'\ntR.", "npy": b"\x93NUMPY nothing"}


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


@pytest.mark.parametrize("encoding", ["jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]"])
def test_lists_of_mds_that_are_none(convert, tmp_path, encoding) -> None:
    source = tmp_path / "source"
    shutil.copytree(FOREIGN / "mds/plain", source)
    index = json.loads((source / "index.json").read_text())
    for shard in index["shards"]:
        shard["column_encodings"][0] = encoding
    (source / "index.json").write_text(json.dumps(index))
    convert.refused(source, FormatError, "sample 0.* is damaged|is damaged.*sample 0")


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
    convert.refused(tmp_path / "thing.xyz", ValueError, "not clear from its file names")
    convert(tmp_path / "a.jsonl")
    with pytest.raises(CommitConflictError):
        shardio.convert_dataset(tmp_path / "a.jsonl", convert.url)
    shardio.convert_dataset(tmp_path / "a.jsonl", convert.url, mode="append")
    assert len(shardio.open(convert.url)) == 2


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
