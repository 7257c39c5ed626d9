"""The commands that change a dataset, in words and as JSON."""

from __future__ import annotations

from pathlib import Path

import shardio
from tests.cli.conftest import Run, facts_in


def test_delete(run: Run, birds: Path) -> None:
    dry = run("delete", birds, 0, 3, "--split", "test", "--dry-run", "--json")
    assert (dry.code, dry.document["deleted"], dry.document["version"]) == (0, 2, None)
    assert dry.document["after"] == {"test": 8, "train": 20}
    assert shardio.open(birds, "test").version == 1
    ended = run("delete", birds, 0, 3, "--split", "test")
    assert ended.code == 0
    assert facts_in(ended.out) >= {("deleted", "2"), ("read version", "1"), ("version", "2")}
    assert ("after", "test 8, train 20") in facts_in(ended.out)
    assert len(shardio.open(birds, "test")) == 8
    again = run("delete", birds, 0, "--split", "test", "--version", 1)
    assert (again.code, "deleted already in version 2" in again.err) == (3, True)
    for wrong in ([99, "--split", "test"], [-1, "--split", "test"], [1], [1, 1, "--split", "test"], []):
        ended = run("delete", birds, *wrong)
        assert ended.code == 2, ended.err
    assert shardio.open(birds, "test").version == 2


def test_delete_by_key(run: Run, tmp_path: Path, monkeypatch) -> None:
    """Keys are typed as their feature has them; the manifest says how, and the dataset is opened once."""
    url = tmp_path / "keys"
    with shardio.DatasetWriter(url, {"id": "int64", "name": "text", "code": "bytes"}) as out:
        for n in range(10):
            out.write({"id": n, "name": f"bird {n}", "code": bytes([n])}, "test" if n > 7 else "train")
    for name in ("id", "name"):
        shardio.build_keys(url, name, workers=1)
    shardio.set_schema(url, rename={"id": "number"})
    with monkeypatch.context() as patch:
        patch.delattr(shardio, "open")
        words = ["delete", url, "--split", "all"]
        dry = run(*words, "--key", 3, "--key", 9, "--feature", "number", "--dry-run", "--json")
        assert (dry.code, dry.document["deleted"], dry.document["version"]) == (0, 2, None)
        assert run(*words, "--key", 3, "--key", 9, "--feature", "number").code == 0
        assert run(*words, "--key", "bird 5", "--feature", "name").code == 0
        for wrong, why in (
            (["x", "--feature", "number"], "'x' is not a whole number"),
            (["3"], "indexes of several keys"),
            (["00", "--feature", "code"], "no index of keys 'code'"),
            (["3", "--feature", "number"], "no record has the key 3"),
        ):
            ended = run(*words, "--key", *wrong)
            assert ended.code in (2, 3)
            assert why in ended.err
    assert [int(value["number"]) for value in shardio.open(url, "all")] == [8, 0, 1, 2, 4, 6, 7]


def test_restore_tag_and_log(run: Run, birds: Path) -> None:
    shardio.delete(birds, [0], split="test")
    assert run("tag", birds, "v1", "--version", 1, "--json").document["version"] == 1
    assert run("tag", birds, "--json").document == {"url": str(birds), "tags": {"v1": 1}}
    assert ("tags", "v1 1") in facts_in(run("tag", birds).out)
    refused = run("tag", birds, "v1", "--version", 2)
    assert (refused.code, "there is a tag 'v1' already" in refused.err) == (3, True)
    assert "move=True" in refused.err
    assert run("tag", birds, "v1", "--version", 2, "--move", "--json").document["version"] == 2
    assert run("tag", birds, "v1", "--version", 1, "--move").code == 0
    assert run("info", birds, "--version", "v1", "--json").document["version"] == 1
    assert run("get", birds, 0, "--split", "test", "--version", "v1").code == 0
    dry = run("restore", birds, "v1", "--dry-run")
    assert "without --dry-run it is done" in dry.out
    ended = run("restore", birds, "v1", "--json")
    assert ended.document["after"] == {"test": 10, "train": 20}
    assert run("restore", birds, 1).out.endswith("there was nothing to do\n")
    log = run("log", birds, "--json").document["versions"]
    assert [each["version"] for each in log] == [6, 5, 4, 3, 2, 1]
    assert [each["records"] for each in log] == [30, 29, 29, 29, 29, 30]
    assert (log[-1]["tags"], log[-1]["metadata"], log[0]["restored_version"]) == (
        ["v1"],
        {"source": "made"},
        1,
    )
    text = run("log", birds).out
    assert "restore 1" in text
    assert '{"source": "made"}' in text
    kept = run("gc", birds, "--expire", 1)
    assert (kept.code, "shardio tag" in kept.err) == (2, True)
    removed = facts_in(run("tag", birds, "v1", "--delete").out)
    assert removed >= {("tag", "v1"), ("version", "1"), ("done", "removed")}
    for wrong in (["--delete"], ["v1", "--delete", "--move"], ["3"], ["--move"]):
        assert run("tag", birds, *wrong).code in (2, 3)
    assert run("restore", birds, "a/b").code == 2
    assert run("restore", birds, 99).code == 3


def test_split(run: Run, birds: Path) -> None:
    assert run("split", birds, "test", "--rename", "holdout", "--json").document["after"] == {
        "holdout": 10,
        "train": 20,
    }
    assert ("version", "3") in facts_in(run("split", birds, "holdout", "--remove").out)
    assert dict(shardio.open(birds).splits) == {"train": 20}
    for wrong in (["train"], ["train", "--remove", "--rename", "x"], ["nothing", "--remove"]):
        assert run("split", birds, *wrong).code == 2


def test_log_shows_tags_and_tables_apart(run: Run, birds: Path) -> None:
    run("tag", birds, "v1")
    with shardio.DatasetWriter(birds, mode="append") as out:
        out.write_many(list(shardio.open(birds, "test"))[:1], split="test")
    data, _, apart = run("log", birds).out.partition("leave the data unchanged:")
    assert [line.split()[0] for line in data.splitlines()[1:] if line.strip()][:2] == ["3", "1"]
    assert [line.split()[0] for line in apart.splitlines()[2:]] == ["2"]
    assert [each["version"] for each in run("log", birds, "--json").document["versions"]] == [3, 2, 1]


def test_erase(run: Run, birds: Path) -> None:
    run("tag", birds, "v1")
    refused = run("erase", birds, 0, "--split", "test")
    assert (refused.code, "has the tag 'v1'" in refused.err, "drop_tags" in refused.err) == (3, True, True)
    dry = run("erase", birds, 0, "--split", "test", "--drop-tags", "--dry-run")
    assert ("deleted", "1") in facts_in(dry.out)
    assert shardio.open(birds, "test").version == 2
    cache = birds.parent / "cache"
    ended = run("erase", birds, 0, "--split", "test", "--drop-tags", "--cache", cache)
    assert ended.code == 0
    assert facts_in(ended.out) >= {("version", "3"), ("expired versions", "1, 2"), ("dropped tags", "v1 1")}
    assert "may hold the bytes until `shardio gc" in ended.out
    assert run("erase", birds, 0, "--split", "test", "--json").document["expired_versions"] == [3]
    assert run("delete", birds, 0, "--split", "test", "--drop-tags").code == 2


def test_compact_and_diff(run: Run, tmp_path: Path) -> None:
    url = tmp_path / "days"
    for day in range(5):
        with shardio.DatasetWriter(url, mode="append") as out:
            out.write(b"day %d" % day)
    dry = run("compact", url, "--dry-run")
    assert "without --dry-run it is done" in dry.out
    assert shardio.open(url).version == 5
    assert (
        run("compact", url, "--workers", 1, "--compression", "zstd", "--json").document["shards_after"] == 1
    )
    assert "there was nothing to do" in run("compact", url).out
    assert run("compact", url, "--shard-bytes", 0).code == 2
    ended = run("diff", url, 2, 4)
    assert ["train", "2", "4", "2", "0"] in [line.split()[:5] for line in ended.out.splitlines()]
    assert run("diff", url, 5, "--json").document["rewritten"] is True
    assert "rewritten" in run("diff", url, 5, 6).out
    assert run("diff", url, 6, "--json").document["splits"] == {}
    run("restore", url, 5)
    assert ("rewritten", "yes") in facts_in(run("diff", url, 6, 7).out)
    assert run("diff", url, 6, 99).code == 3
