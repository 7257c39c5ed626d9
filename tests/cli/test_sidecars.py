"""table and keys: what they print, as lines and as JSON, and how they end."""

from __future__ import annotations

from pathlib import Path

import duckdb

import shardio
from tests.cli.conftest import Run, facts_in


def test_table(run: Run, birds: Path) -> None:
    ended = run("table", birds, "--features", "label,name_length", "--workers", 1, "--dry-run")
    assert ended.code == 0
    assert facts_in(ended.out) >= {("features", "label, name_length"), ("built", "2"), ("records", "30")}
    assert "nothing was changed" in ended.out
    document = run("table", birds, "--features", "label, name_length", "--workers", 1, "--json").document
    assert (document["built"], document["version"], document["features"]) == (2, 2, ["label", "name_length"])
    ended = run("table", birds, "--workers", 1)
    assert facts_in(ended.out) >= {("built", "0"), ("version", "2")}
    files = run("table", birds, "--files").out.split()
    assert run("table", birds, "--files", "--json").document["files"] == files
    assert duckdb.read_parquet(files).aggregate("sum(label)").fetchall() == [(sum(range(30)),)]
    ended = run("table", birds, "--rebuild", "--workers", 1)
    assert facts_in(ended.out) >= {("built", "2"), ("records", "30"), ("version", "3")}


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
    dry = run("keys", birds, "--feature", "name", "--dry-run").out
    assert facts_in(dry) >= {("shards", "2"), ("read", "2")}
    assert "nothing was changed" in dry
    ended = run("keys", birds, "--feature", "name", "--workers", 1)
    assert ended.code == 0
    assert facts_in(ended.out) >= {("read", "2"), ("keys", "30"), ("runs", "1"), ("version", "2")}
    document = run("keys", birds, "--feature", "label", "--workers", 1, "--json").document
    assert (document["keys"], document["duplicates"], document["version"]) == (30, [], 3)
    assert ("read", "0") in facts_in(run("keys", birds, "--feature", "name", "--workers", 1).out)
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
    assert ("duplicate records", "2") in facts_in(ended.out)
    assert "duplicates:" in ended.out
    found = run("keys", tmp_path / "x", "00", "02", "--json").document["found"]
    assert [(each["key"], each["position"]) for each in found] == [("00", 0), ("00", 3), ("02", 2)]
