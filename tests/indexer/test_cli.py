"""`shardio-index`, and `shardio index`: what is printed, and with which exit code it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardio
from shardio.cli import main as shardio_main
from shardio_indexer.cli import main
from tests.indexer.shards import members, tar, tfrecord


@pytest.fixture
def folder(tmp_path) -> Path:
    for n in range(3):
        (tmp_path / f"train-{n}.tfrecord").write_bytes(tfrecord([b"%d" % n, b"x"]))
    (tmp_path / "val-0.tar").write_bytes(tar([("a.txt", b"1")]))
    return tmp_path


def test_the_last_line_opens_the_result(folder, capsys) -> None:
    """The last line printed is the line of Python that opens the result."""
    assert main([str(folder), "--split", "train=train*", "--split", "val=*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "shards: 4 adopted; 7 records, 10.3 kB" or lines[0].startswith(
        "shards: 4 adopted; 7 records"
    )
    names = {"shardio": shardio}
    exec(lines[-1], names)
    assert list(names["ds"]) == [b"0", b"x", b"1", b"x", b"2", b"x"]
    assert main([str(folder), "--split", "train=train*", "--split", "val=*"]) == 0
    assert capsys.readouterr().out.startswith("shards: 0 adopted, 4 known")


def test_damage_is_exit_code_1_with_address_and_reason(folder, capsys) -> None:
    (folder / "train-1.tfrecord").write_bytes(tfrecord([b"1"])[:-1])
    assert main([f"{folder}/train*"]) == 1
    found = capsys.readouterr()
    assert f"{folder}/train-1.tfrecord" in found.err
    assert "cut short" in found.err
    assert "2 adopted, 1 refused" in found.out
    assert main([f"{folder}/train*", "--salvage"]) == 0
    assert "left out" in capsys.readouterr().err


def test_stale_is_exit_code_1(folder, capsys) -> None:
    assert main([f"{folder}/train*"]) == 0
    (folder / "train-0.tfrecord").write_bytes(tfrecord([b"other"]))
    assert main([f"{folder}/train*"]) == 1
    assert "--update" in capsys.readouterr().err
    assert main([f"{folder}/train*", "--update"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nothing-here-*"], 3, "the pattern matches nothing"),
        (["absent.tfrecord"], 3, "no such file or folder"),
        (["--split", "a=b"], 2, "required"),
        (["x", "--format", "mp3"], 2, "invalid choice"),
        (["x.tfrecord", "--split", "train", "--split", "val"], 2, "need patterns"),
        (["x.tfrecord", "--schema", "{"], 2, "not JSON"),
        (["x.tfrecord", "--anon"], 2, "--anon is for buckets"),
        (["http://h/*.tar"], 2, "cannot be listed"),
        (["s3://"], 2, "names no bucket"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path, monkeypatch, capsys, arguments, code, text) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    err = capsys.readouterr().err
    assert text in err
    assert "Traceback" not in err


def test_json(folder, capsys) -> None:
    (folder / "train-1.tfrecord").write_bytes(b"x" * 50)
    assert main([f"{folder}/train*", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["adopted"], report["records"], report["version"]) == (False, 2, 4, 1)
    assert report["refused"][0]["kind"] == "FormatError"
    assert report["opens"].startswith("ds = shardio.open(")


def test_options_reach_the_scan(folder, capsys) -> None:
    import zlib

    (folder / "crc.tfrecord").write_bytes(tfrecord([b"a"], zlib.crc32))
    into = str(folder / "into")
    assert main([f"{folder}/crc.tfrecord", "--into", into]) == 1
    assert "--record-crc crc32" in capsys.readouterr().err
    assert main([f"{folder}/crc.tfrecord", "--into", into, "--record-crc", "crc32", "--no-schema"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    names = {"shardio": shardio}
    exec(line, names)
    assert list(names["ds"]) == [b"a"]
    assert shardio.verify(into, allow_roots={str(folder): {}}).ok
    (folder / "words").write_bytes(members([b"a\nb\n"], "zstd"))
    assert main([f"{folder}/words", "--into", into + "2", "--format", "text", "--quiet"]) == 0
    assert main([f"{folder}/val-0.tar", "--into", into + "3", "--schema", '{"txt": "int64"}']) == 0
    assert shardio.open(into + "3", allow_roots={str(folder): {}})[0]["txt"] == 1


def test_export_for_dali(folder, capsys) -> None:
    assert main([f"{folder}/train*", "--quiet"]) == 0
    assert main([str(folder), "--export", "dali"]) == 0
    assert capsys.readouterr().out.endswith("3 indexes written\n")
    assert (folder / "train-0.tfrecord.idx").read_text() == "0 17\n17 17\n"


def test_control_characters_in_names_do_not_reach_the_terminal(tmp_path, capsys) -> None:
    (tmp_path / "\x1b[31mred.tfrecord").write_bytes(tfrecord([b"a"]))
    assert main([str(tmp_path)]) == 3
    found = capsys.readouterr()
    assert "\x1b" not in found.err + found.out


def test_shardio_index_runs_the_program(folder, capfd) -> None:
    """`shardio index` runs `shardio-index` the way git and cargo run theirs, and is listed too."""
    program = Path(sys.executable).parent / "shardio-index"
    assert program.exists(), "install the package: `pip install -e .`"
    done = subprocess.run(
        [sys.executable, "-m", "shardio", "index", f"{folder}/train*", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"ds = shardio.open({str(folder)!r})"
    assert shardio_main(["--help"]) == 0
    assert re.search("^  index +adopt shards", capfd.readouterr().out, re.MULTILINE)
    assert shardio_main(["index", f"{folder}/nothing*"]) == 3


def test_progress_says_rate_and_time_left() -> None:
    from shardio_indexer import AdoptProgress
    from shardio_indexer._progress import ProgressLine

    text = ProgressLine._text(AdoptProgress(3, 10, 300_000_000, 1_000_000_000), 2.0)
    assert text == "index: 30%, 3 of 10 shards, 300.0 MB of 1.0 GB, 150.0 MB/s, 5 s left"
