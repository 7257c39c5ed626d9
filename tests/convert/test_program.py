"""`shardio convert` and `shardio export`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardio
from shardio.cli import main
from tests.cli.conftest import facts_in


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"n": n, "name": f"n{n}"}) + "\n" for n in range(20)) + "oops\n")
    return path


def test_convert_and_export(lines, tmp_path, capsys) -> None:
    url = str(tmp_path / "dataset")
    assert main(["convert", str(lines), url]) == 1
    assert "the line is not JSON" in capsys.readouterr().err
    arguments = ["--skip", "--type", "n=int32", "--compression", "zstd"]
    arguments += ["--split", "train=0.5", "--split", "test=0.5"]
    assert main(["convert", str(lines), url, *arguments]) == 1
    said = capsys.readouterr().out
    assert "skipped:" in said
    assert ("kind", "jsonl") in facts_in(said)
    assert "n: int32" in said
    assert set(shardio.open(url, split="all").splits) == {"train", "test"}
    assert main(["export", url, str(tmp_path / "back"), "--kind", "jsonl", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == ["test.jsonl", "train.jsonl"]
    assert sum(document["records"].values()) == 20


def test_json_and_usage(lines, tmp_path, capsys) -> None:
    lines.write_text('{"n": 1}\n')
    assert main(["convert", str(lines), str(tmp_path / "d"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["records"] == {"train": 1}
    assert document["schema"] == {"n": "int64"}
    assert main(["convert", str(lines), str(tmp_path / "d")]) == 3
    assert main(["convert", str(lines), str(tmp_path / "e"), "--fn", "no_such:thing"]) == 2
    assert main(["convert", str(lines), str(tmp_path / "e"), "--split", "a=0.4"]) == 2
    assert main(["convert", str(tmp_path / "none"), str(tmp_path / "e")]) == 3
    assert main(["export", str(tmp_path / "d"), str(tmp_path / "d"), "--kind", "jsonl"]) == 3
    capsys.readouterr()


def test_a_function_by_its_name(tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "my_loader_for_tests.py").write_text(
        "def load(line):\n    name, number = line.split()\n    return {'name': name, 'number': int(number)}\n"
    )
    (tmp_path / "list.txt").write_text("a 1\nb 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["convert", "list.txt", "d", "--fn", "my_loader_for_tests:load"]) == 0
    assert [value["name"] for value in shardio.open("d")] == ["a", "b"]
    capsys.readouterr()
