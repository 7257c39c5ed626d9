"""Folders named `key=value`: files of every kind get their keys as features; nothing is lost in silence."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from PIL import Image

import shardio
import shardio_indexer
from shardio import Feature, Schema, codecs, kernels
from shardio.cli import main
from shardio.errors import FormatError, SchemaError
from shardio.sources import SplitRules, folder_keys
from tests.suites.errors import refused


def parquet(path: Path, value: dict[str, Any]) -> None:
    pyarrow.parquet.write_table(pa.table({name: [item] for name, item in value.items()}), path)


def lines(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value) + "\n")


def tfrecord(path: Path, value: dict[str, Any]) -> None:
    frames, *_ = kernels.encode_frames([codecs.encode_example(value)])
    path.write_bytes(memoryview(frames))


def tar(path: Path, value: dict[str, Any]) -> None:
    with tarfile.open(path, "w") as out:
        for name, item in value.items():
            info = tarfile.TarInfo(f"000.{name}")
            info.size = len(str(item))
            out.addfile(info, io.BytesIO(str(item).encode()))


KINDS: dict[str, tuple[Callable[[Path, dict[str, Any]], None], dict[str, Any]]] = {
    "parquet": (parquet, {}),
    "jsonl": (lines, {}),
    "tfrecord": (tfrecord, {}),
    "tar": (tar, {"n": "int64"}),
}
FOLDERS = ["year=2020/lang=en", "year=2021/lang=d%20e%2F", "year=__HIVE_DEFAULT_PARTITION__/lang=007"]
KEYS = [{"year": 2020, "lang": "en"}, {"year": 2021, "lang": "d e/"}, {"year": None, "lang": "007"}]


def write(folder: Path, kind: str, folders: list[str] | None = None, **more: Any) -> Path:
    for number, name in enumerate(folders or FOLDERS):
        (folder / name).mkdir(parents=True, exist_ok=True)
        KINDS[kind][0](folder / name / f"part-0.{kind}", {"n": number, **more})
    return folder


def values(url: Path, **options: Any) -> list[dict[str, Any]]:
    found = shardio.open(url, split="all", **options)
    return [{name: item for name, item in value.items() if name != "__key__"} for value in found]


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_folders_are_features(tmp_path, kind) -> None:
    types = KINDS[kind][1] or None
    source = write(tmp_path / "in", kind)
    report = shardio.convert_dataset(source, tmp_path / "out", schema=types)
    assert report.schema is not None
    assert report.schema["year"] == Feature("int64", optional=True)
    assert report.schema["lang"] == Feature("text")
    wanted = [{"n": number, **keys} for number, keys in enumerate(KEYS)]
    assert values(tmp_path / "out") == wanted
    assert shardio.verify(tmp_path / "out").ok
    assert "features from folder names: year (year=2020), lang (lang=en)" in report.notes
    # A part alone, by its name, by a pattern and as a file, has the keys that it has in the whole.
    part = source / FOLDERS[0]
    for number, place in enumerate([part, part / "*", part / f"part-0.{kind}"]):
        shardio.convert_dataset(place, tmp_path / f"part{number}", schema=types)
        assert values(tmp_path / f"part{number}") == wanted[:1]


@pytest.mark.parametrize("kind", KINDS)
def test_what_leaves_them_out(tmp_path, kind, capsys) -> None:
    types = KINDS[kind][1]
    source = write(tmp_path / "in", kind)
    for number, options in enumerate(
        [
            {"options": {"partitions": None}, "schema": types or None},
            {"schema": {**types, "year": None, "lang": None}},
        ]
    ):
        report = shardio.convert_dataset(source, tmp_path / f"out{number}", **options)
        assert values(tmp_path / f"out{number}") == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert not any("folders:" in note for note in report.notes)
    more = [f"--type={name}={kind}" for name, kind in types.items()]
    assert main(["convert", str(source), str(tmp_path / "shell"), "--partitions", "none", *more]) == 0
    assert values(tmp_path / "shell") == [{"n": 0}, {"n": 1}, {"n": 2}]
    capsys.readouterr()


@pytest.mark.parametrize("kind", KINDS)
def test_the_caller_may_say_their_types(tmp_path, kind) -> None:
    source = write(tmp_path / "in", kind, ["zip=01234/share=0.5/on=true", "zip=7/share=1/on=false"])
    types = {**KINDS[kind][1], "zip": "text", "share": "float32", "on": "bool"}
    shardio.convert_dataset(source, tmp_path / "out", schema=types)
    assert values(tmp_path / "out") == [
        {"n": 0, "zip": "01234", "share": 0.5, "on": True},
        {"n": 1, "zip": "7", "share": 1.0, "on": False},
    ]
    with refused(SchemaError, "share=") as caught:
        shardio.convert_dataset(source, tmp_path / "no", schema={**types, "share": "int64"})
    assert 'schema={"share": "text"}' in str(caught.value)
    shardio.convert_dataset(source, tmp_path / "no", schema={**types, "share": "text"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_in_the_record_too(tmp_path, kind, capsys) -> None:
    types = {**KINDS[kind][1], "year": "int64"}
    source = write(tmp_path / "in", kind, ["year=2020", "year=2020/a"], year=2020)
    shardio.convert_dataset(source, tmp_path / "same", schema=types)
    assert [value["year"] for value in values(tmp_path / "same")] == [2020, 2020]
    write(source, kind, ["year=2021"], year=2020)
    with refused(SchemaError, "'year'") as caught:
        shardio.convert_dataset(source, tmp_path / "other", schema=types)
    assert '"partitions": None' in str(caught.value)
    more = [f"--type={name}={kind}" for name, kind in types.items()]
    assert main(["convert", str(source), str(tmp_path / "other"), *more]) == 1
    assert '"partitions": None' in capsys.readouterr().err
    report = shardio.convert_dataset(source, tmp_path / "skip", schema=types, on_error="skip")
    assert len(report.skipped) == 1
    shardio.convert_dataset(source, tmp_path / "own", schema=types, options={"partitions": None})
    assert [value["year"] for value in values(tmp_path / "own")] == [2020] * 3


def test_types_are_those_of_pyarrow(tmp_path) -> None:
    """But for integers that are larger than 32 bits, which Arrow calls text."""
    for number, found in enumerate(
        [["1", "2"], ["01", "-7"], ["1.5"], ["1", "x"], ["true"], ["a%2520b", ""]]
    ):
        source = write(tmp_path / str(number), "parquet", [f"k={text}" for text in found])
        table = pyarrow.dataset.dataset(source, partitioning="hive").to_table()
        report = shardio.convert_dataset(source, tmp_path / f"out{number}")
        kinds = {"int32": "int64", "string": "text"}
        assert report.schema["k"].short == kinds[str(table.schema.field("k").type)]
        assert sorted(value["k"] for value in values(tmp_path / f"out{number}")) == sorted(
            table["k"].to_pylist()
        )


@pytest.mark.parametrize("kind", KINDS)
def test_files_outside_such_folders_make_the_feature_optional(tmp_path, kind) -> None:
    source = write(tmp_path / "in", kind, ["year=2020", "old"])
    shardio.convert_dataset(source, tmp_path / "out", schema=KINDS[kind][1] or None)
    assert [value["year"] for value in values(tmp_path / "out")] == [None, 2020]


def test_records_that_hold_no_features_are_refused(tmp_path) -> None:
    folder = tmp_path / "in" / "year=2020"
    folder.mkdir(parents=True)
    frames, *_ = kernels.encode_frames([b"\xff\xff no Example"])
    (folder / "0.tfrecord").write_bytes(memoryview(frames))
    with pytest.raises(SchemaError) as caught:
        shardio.convert_dataset(tmp_path / "in", tmp_path / "out")
    assert '"partitions": None' in str(caught.value)
    assert not (tmp_path / "out").exists()
    shardio.convert_dataset(tmp_path / "in", tmp_path / "out", options={"partitions": None})
    assert list(shardio.open(tmp_path / "out")) == [b"\xff\xff no Example"]


def test_sequence_examples(tmp_path) -> None:
    folder = tmp_path / "in" / "year=2020"
    folder.mkdir(parents=True)
    payload = codecs.encode_sequence_example({"context": {"n": 1}, "feature_lists": {"f": [[1], [2]]}})
    frames, *_ = kernels.encode_frames([payload])
    (folder / "0.tfrecord").write_bytes(memoryview(frames))
    shardio.convert_dataset(tmp_path / "in", tmp_path / "out")
    (value,) = shardio.open(tmp_path / "out")
    assert value["context"] == {"n": 1, "year": 2020}
    assert len(value["feature_lists"]["f"]) == 2


def test_one_key_of_two_values(tmp_path) -> None:
    source = write(tmp_path / "in", "jsonl", ["year=2020/year=2021"])
    with refused(FormatError, "'year'") as caught:
        shardio.convert_dataset(source, tmp_path / "out")
    assert caught.value.advice == "rename one of them"
    (source / "year=2020").rename(source / "month=1")
    shardio.convert_dataset(source, tmp_path / "out")
    assert values(tmp_path / "out") == [{"n": 0, "month": 1, "year": 2021}]


def test_which_folders_count() -> None:
    """Those below the search, and those directly above it; not those of a project that holds the data."""
    for url, root, wanted in [
        ("/a=1/data/b=2/c/d=3/0.jsonl", "/a=1/data", ["b=2", "d=3"]),
        ("/a=1/data/b=2/c=3/0.jsonl", "/a=1/data/b=2/c=3", ["b=2", "c=3"]),
        ("s3://bucket/b=2/0.jsonl", "s3://bucket/b=2", ["b=2"]),
        ("/data/=1/b/c=/0=1.jsonl", "/data", ["c="]),
    ]:
        assert [str(key) for key in folder_keys(url, [root])] == wanted


SPLITS = {
    "split=test/0.jsonl": "test",
    "split=train/0.jsonl": "train",
    "split=mine/k=a_val/train-0.jsonl": "mine",
}


def test_a_key_called_split_names_the_split(tmp_path) -> None:
    for name in SPLITS:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(json.dumps({"at": name}) + "\n")
    shardio.convert_dataset(tmp_path / "in", tmp_path / "out")
    adopted = shardio_indexer.adopt(tmp_path / "in")
    assert adopted.splits == {"mine": 1, "test": 1, "train": 1}
    for name, split in SPLITS.items():
        (value,) = shardio.open(tmp_path / "out", split)
        assert value["at"] == name
        assert "split" not in value
    # Where the caller names the splits, it is a key as others are.
    report = shardio.convert_dataset(tmp_path / "in", tmp_path / "one", kind="jsonl", split="all-of-it")
    assert report.records == {"all-of-it": 3}
    assert {value["split"] for value in values(tmp_path / "one")} == {"mine", "test", "train"}
    # And where one of them is all that was named, too.
    alone = shardio.convert_dataset(tmp_path / "in" / "split=test" / "0.jsonl", tmp_path / "alone")
    assert alone.records == {"test": 1}


def test_images_in_such_folders(tmp_path) -> None:
    for name in ("camera=1/split=train/cat/1.png", "camera=2/split=test/dog/2.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(tmp_path / "in" / name)
    report = shardio.convert_dataset(tmp_path / "in", tmp_path / "out")
    assert report.records == {"test": 1, "train": 1}
    assert report.schema is not None
    assert report.schema["label"].classes == ("cat", "dog")
    (value,) = shardio.open(tmp_path / "out", "test")
    assert (value["camera"], value["label"]) == (2, 1)


@pytest.mark.parametrize("kind", ["jsonl", "tfrecord", "tar"])
def test_adoption_notes_them(tmp_path, kind) -> None:
    """Records in place hold what their files hold; the note names what they lack, and what adds it."""
    source = write(tmp_path / "in", kind)
    report = shardio_indexer.adopt(source)
    assert report.schema is not None
    assert list(report.schema) == [*["__key__"] * (kind == "tar"), "n"]
    (note,) = [note for note in report.notes if "shardio convert" in note]
    assert "year=" in note
    assert "lang=" in note
    copied = shardio.convert_dataset(
        [str(path) for path in sorted(source.rglob(f"*.{kind}"))], tmp_path / "out"
    )
    assert copied.schema is not None
    assert {"year", "lang"} <= set(copied.schema)


def test_a_whole_schema_takes_its_features_and_no_others(tmp_path) -> None:
    source = write(tmp_path / "in", "tfrecord")
    shardio.convert_dataset(source, tmp_path / "out", schema=Schema.parse({"n": "int64", "lang": "text"}))
    assert values(tmp_path / "out") == [
        {"n": number, "lang": keys["lang"]} for number, keys in enumerate(KEYS)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_part_after_part(tmp_path, kind) -> None:
    types = KINDS[kind][1] or None
    source = write(tmp_path / "in", kind, ["year=2020", "year=2021"])
    for number, folder in enumerate(["year=2020", "year=2021"]):
        mode = "append" if number else "create"
        shardio.convert_dataset(source / folder, tmp_path / "out", mode=mode, schema=types)
    assert [value["year"] for value in values(tmp_path / "out")] == [2020, 2021]


def test_numbers_behind_a_split_of_a_key() -> None:
    assert SplitRules().divide(["split=val/0.x", "split=validation/0.x"]).splits == ["validation"] * 2
    with pytest.raises(ValueError, match="tells no split"):
        division = SplitRules().divide(["split=val/0.x", "1.x"])
        division.refuse(division.silent)
