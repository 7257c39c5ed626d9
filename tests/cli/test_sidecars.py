"""table and keys: what they print, as lines and as JSON, and how they end."""

from __future__ import annotations

from pathlib import Path

import duckdb

import shardio
from tests.cli.conftest import Run


def test_table(run: Run, birds: Path) -> None:
    ended = run("table", birds, "--features", "label,name_length", "--workers", 1, "--dry-run")
    assert ended.code == 0
    assert ended.out == "label, name_length: 2 shards, 30 records would be read\nnothing was changed\n"
    document = run("table", birds, "--features", "label, name_length", "--workers", 1, "--json").document
    assert (document["built"], document["version"], document["features"]) == (2, 2, ["label", "name_length"])
    ended = run("table", birds, "--workers", 1)
    assert (
        ended.out
        == "label, name_length: 0 shards, 0 records read\nthere was nothing to do; this is version 2\n"
    )
    files = run("table", birds, "--files").out.split()
    assert run("table", birds, "--files", "--json").document["files"] == files
    assert duckdb.read_parquet(files).aggregate("sum(label)").fetchall() == [(sum(range(30)),)]
    ended = run("table", birds, "--rebuild", "--workers", 1)
    assert "2 shards, 30 records read" in ended.out
    assert "this is version 3" in ended.out


def test_table_refuses(run: Run, birds: Path) -> None:
    for features, text in [
        ("lable", "did you mean 'label'"),
        ("image", "image_length is one"),
        ("vector", "holds single values"),
        ("label,,name", "expected names with commas between them"),
    ]:
        ended = run("table", birds, "--features", features, "--workers", 1)
        assert ended.code == 2
        assert text in ended.err
    ended = run("table", birds)
    assert ended.code == 2
    assert "no table yet" in ended.err
    assert run("table", birds, "--files").out == ""
    assert run("table", birds / "none", "--features", "label").code == 3
    assert shardio.open(birds, split="all").version == 1


def test_keys(run: Run, birds: Path) -> None:
    assert run("keys", birds, "--feature", "name", "--dry-run").out == (
        "2 shards of 2 would be read; nothing was changed\n"
    )
    ended = run("keys", birds, "--feature", "name", "--workers", 1)
    assert ended.code == 0
    assert "2 shards read\n30 keys in 1 run, " in ended.out
    assert "this is version 2" in ended.out
    document = run("keys", birds, "--feature", "label", "--workers", 1, "--json").document
    assert (document["keys"], document["duplicates"], document["version"]) == (30, [], 3)
    assert run("keys", birds, "--feature", "name", "--workers", 1).out.startswith("there are no new shards\n")
    found = run("keys", birds, "bird 4", "owl", "--split", "train", "--feature", "name", "--json").document
    assert [(each["key"], each["position"]) for each in found["found"]] == [("bird 4", 3)]
    assert found["missing"] == ["owl"]
    ended = run("keys", birds, "4", "--split", "train", "--feature", "label")
    assert ended.code == 0
    assert ended.out.splitlines()[1].split()[:3] == ["4", "train", "3"]
    assert run("keys", birds, "owl", "--feature", "name").out == "no record has the key 'owl'\n"
    splits = shardio.open(birds)
    assert set(splits) == {"train", "test"}
    for key in ("bird 0", "bird 4"):  # looked for in all splits, none being named
        (found,) = run("keys", birds, key, "--feature", "name", "--json").document["found"]
        assert splits[found["split"]][found["position"]]["name"] == key


def test_keys_refuses(run: Run, birds: Path) -> None:
    assert run("keys", birds).code == 2
    ended = run("keys", birds, "bird 4", "--split", "train")
    assert ended.code == 3
    assert "shardio keys URL --feature NAME" in ended.err
    ended = run("keys", birds, "--feature", "vector")
    assert ended.code == 2
    assert "keys are text" in ended.err
    run("keys", birds, "--feature", "label", "--workers", 1)
    ended = run("keys", birds, "four", "--split", "train")
    assert ended.code == 2
    assert "'four' is not a whole number" in ended.err


def test_keys_that_several_records_have_are_listed(run: Run, tmp_path: Path) -> None:
    with shardio.DatasetWriter(tmp_path / "x", schema={"id": "bytes"}) as out:
        for n in range(4):
            out.write({"id": bytes([n % 3])})
    ended = run("keys", tmp_path / "x", "--feature", "id", "--workers", 1)
    assert (
        "2 records share their key with another one, such as\n  b'\\x00': 2 records, data/train-" in ended.out
    )
    found = run("keys", tmp_path / "x", "00", "02", "--json").document["found"]
    assert [(each["key"], each["position"]) for each in found] == [("00", 0), ("00", 3), ("02", 2)]
