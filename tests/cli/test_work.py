"""verify, commit, gc: exit codes, findings, and nothing done that was not asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardio
from shardio.errors import StorageError
from shardio.storage import LocalStore
from tests.cli.conftest import Run, facts_in, shard_of


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.unlink()
    path.write_bytes(data)


def test_verify_without_damage(run: Run, birds: Path) -> None:
    ended = run("verify", birds)
    assert ended.code == 0
    assert ended.out.startswith(f"ok: {birds} version 1: 2 shards, 30 records, ")
    assert ended.out.count("\n") == 1
    assert run("verify", birds, "--json").document["ok"] is True
    assert run("verify", shard_of(birds)).code == 0


def test_verify_lists_every_finding(run: Run, plain: Path) -> None:
    damage(shard_of(plain), 14)
    damage(shard_of(plain), 100)
    ended = run("verify", plain)
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["block", "record", "record", "what to do", "DAMAGED"]
    assert "8 of 10 records are good" in lines[-1]
    document = run("verify", plain, "--json").document
    assert [finding["kind"] for finding in document["findings"]] == ["block", "record", "record"]
    assert run("verify", plain, "--json").code == 1


def test_verify_of_a_file_without_an_index_says_what_it_cannot_see(run: Run, plain: Path) -> None:
    shard = shard_of(plain)
    shard.with_name(shard.name + ".shardidx").unlink()
    ended = run("verify", shard)
    assert ended.code == 0
    assert "missing, duplicated and swapped records can't be detected" in ended.out
    assert run("verify", plain).code == 1


def test_verify_of_what_cannot_be_read_is_3(run: Run, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = LocalStore.open

    def fail(self, key, **options):
        if key.startswith("data/") and not key.endswith(".shardidx"):
            what = "the disk did not answer"
            raise StorageError(what, url=self.url_of(key))
        return original(self, key, **options)

    monkeypatch.setattr(LocalStore, "open", fail)
    ended = run("verify", plain)
    assert ended.code == 3
    assert "UNREADABLE" in ended.out


def test_a_damaged_manifest_is_damage(run: Run, plain: Path) -> None:
    (manifest,) = (plain / "_shardio" / "manifests").iterdir()
    damage(manifest, 40)
    for command in ("info", "head", "log", "verify"):
        assert run(command, plain).code == 1, command


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", ["head", "get"])
def test_a_cut_or_missing_shard_is_damage(run: Run, plain: Path, command: str) -> None:
    arguments = [plain, 5] if command == "get" else [plain]
    shard = shard_of(plain)
    data = shard.read_bytes()
    shard.unlink()
    assert run(command, *arguments).code == 1
    for size in range(len(data)):
        shard.write_bytes(data[:size])
        ended = run(command, *arguments)
        assert ended.code == 1, size
        assert ended.err.count("\n") == 1
        assert str(shard) in ended.err
        shard.unlink()


def test_commit(run: Run, tmp_path: Path) -> None:
    url = tmp_path / "array"
    for task in range(3):
        with shardio.DatasetWriter(url, session="run7", task=task, commit=False) as out:
            out.write(b"task %d" % task)
    ended = run("commit", url, "--session", "run7", "--tasks", 4)
    assert ended.code == 3
    assert "missing task 3" in ended.err
    document = run("commit", url, "--session", "run7", "--tasks", 3, "--json").document
    assert document["version"] == 1
    assert document["records"] == {"train": 3}
    again = run("commit", url, "--session", "run7", "--tasks", 3)
    assert again.code == 0
    assert facts_in(again.out) >= {("version", "1"), ("records", "train 3")}
    assert run("commit", url, "--session", "../x", "--tasks", 3).code == 2
    assert run("commit", url, "--session", "run7", "--tasks", 0).code == 2


def test_gc_is_a_dry_run_unless_told(run: Run, plain: Path) -> None:
    with shardio.DatasetWriter(plain, mode="overwrite") as out:
        out.write(b"new")
    files = sorted(plain.rglob("*"))
    ended = run("gc", plain, "--keep", 1)
    assert ended.code == 0
    assert "data/" in ended.out
    assert "nothing was changed; --yes does it" in ended.out
    assert sorted(plain.rglob("*")) == files
    document = run("gc", plain, "--expire", 1, "--json").document
    assert document["dry_run"] is True
    assert len(document["doomed"]) == 3
    ended = run("gc", plain, "--keep", 1, "--yes")
    assert ("deleted", "3") in facts_in(ended.out)
    assert run("gc", plain, "--yes").out.endswith("there was nothing to do\n")
    assert run("gc", plain, "--expire", 3).code == 2
    assert run("verify", plain).code == 0
    assert run("head", plain, "--version", 1).code == 3


def test_gc_names_unclaimed_sessions(run: Run, plain: Path) -> None:
    with shardio.DatasetWriter(plain, mode="append", session="lost", task=0, commit=False) as out:
        out.write(b"never committed")
    ended = run("gc", plain)
    assert "--abandon SESSION removes them" in ended.out
    assert "lost" in ended.out
    assert run("gc", plain, "--abandon", "lost", "--yes").code == 0
    assert run("gc", plain, "--json").document["unclaimed"] == {}
