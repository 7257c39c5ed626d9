"""`shardio adopt`, and its second name `shardio-index`: what is printed, and with which exit code it ends."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardio
import shardio_indexer
from shardio.cli import main as shardio_main
from tests.cli.conftest import facts_in
from tests.indexer.shards import main, members, tar, tfrecord


@pytest.fixture
def folder(tmp_path) -> Path:
    for n in range(3):
        (tmp_path / f"train-{n}.tfrecord").write_bytes(tfrecord([b"%d" % n, b"x"]))
    (tmp_path / "val-0.tar").write_bytes(tar([("a.txt", b"1")]))
    return tmp_path


def test_the_last_line_opens_the_result(folder, capsys) -> None:
    """The last line printed is the line of Python that opens the result."""
    splits = ["--split", "train=train*", "--split", "val=*"]
    assert main([str(folder), *splits]) == 1
    assert "schema=False" in capsys.readouterr().err
    assert main([str(folder), *splits, "--no-schema"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert facts_in("\n".join(lines)) >= {("adopted", "4"), ("records", "7")}
    names = {"shardio": shardio}
    exec(lines[-1], names)
    assert list(names["ds"]) == [b"0", b"x", b"1", b"x", b"2", b"x"]
    assert main([str(folder), *splits]) == 0
    assert facts_in(capsys.readouterr().out) >= {("adopted", "0"), ("known", "4")}


def test_damage_is_exit_code_1_with_address_and_reason(folder, capsys) -> None:
    (folder / "train-1.tfrecord").write_bytes(tfrecord([b"1"])[:-1])
    assert main([f"{folder}/train*", "--into", str(folder)]) == 1
    found = capsys.readouterr()
    assert f"{folder}/train-1.tfrecord" in found.out
    assert "cut short" in found.out
    assert ("adopted", "2") in facts_in(found.out)
    assert main([f"{folder}/train*", "--into", str(folder), "--salvage"]) == 0
    assert "skipped:" in capsys.readouterr().out


def test_stale_is_exit_code_1(folder, capsys) -> None:
    assert main([f"{folder}/train*", "--into", str(folder)]) == 0
    (folder / "train-0.tfrecord").write_bytes(tfrecord([b"other"]))
    assert main([f"{folder}/train*", "--into", str(folder)]) == 1
    assert "--update" in capsys.readouterr().out
    assert main([f"{folder}/train*", "--into", str(folder), "--update"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nothing-here-*"], 3, "the pattern matches nothing"),
        (["absent.tfrecord"], 3, "no such file or folder"),
        (["--split", "a=b"], 2, "requires an argument"),
        (["x", "--format", "mp3"], 2, "Choose from"),
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
    assert main([f"{folder}/train*", "--into", str(folder), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["adopted"], report["records"], report["version"]) == (False, 2, 4, 1)
    assert report["refused"][0]["kind"] == "FormatError"
    assert report["opens"].startswith("ds = shardio.open(")


def test_options_reach_the_scan(folder, capsys) -> None:
    import zlib

    (folder / "crc.tfrecord").write_bytes(tfrecord([b"a"], zlib.crc32))
    into = str(folder.parent / f"{folder.name}-into")
    assert main([f"{folder}/crc.tfrecord", "--into", into]) == 1
    assert 'record_crc="crc32"' in capsys.readouterr().out
    assert main([f"{folder}/crc.tfrecord", "--into", into, "--record-crc", "crc32", "--no-schema"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    names = {"shardio": shardio}
    exec(line, names)
    assert list(names["ds"]) == [b"a"]
    assert shardio.verify(shardio.Address(into, allow_roots={str(folder): {}})).ok
    (folder / "words").write_bytes(members([b"a\nb\n"], "zstd"))
    assert main([f"{folder}/words", "--into", into + "2", "--format", "text", "--quiet"]) == 0
    assert main([f"{folder}/val-0.tar", "--into", into + "3", "--schema", '{"txt": "int64"}']) == 0
    assert shardio.open(into + "3", allow_roots={str(folder): {}})[0]["txt"] == 1


def test_export_for_dali(folder, capsys) -> None:
    assert main([f"{folder}/train*", "--into", str(folder), "--quiet"]) == 0
    assert main([str(folder), "--export", "dali"]) == 0
    assert capsys.readouterr().out.count(".tfrecord.idx") == 3
    assert (folder / "train-0.tfrecord.idx").read_text() == "0 17\n17 17\n"


def test_control_characters_in_names_do_not_reach_the_terminal(tmp_path, capsys) -> None:
    (tmp_path / "\x1b[31mred.tfrecord").write_bytes(tfrecord([b"a"]))
    assert main([str(tmp_path)]) == 1
    found = capsys.readouterr()
    assert "\x1b" not in found.err + found.out


@pytest.mark.slow
def test_shardio_index_is_a_command_with_a_second_name(folder, capfd) -> None:
    """`shardio-index` is `shardio adopt`."""
    program = Path(sys.executable).parent / "shardio-index"
    assert program.exists(), "install the package: `pip install -e .`"
    for command in ([program], [sys.executable, "-m", "shardio", "index"]):
        done = subprocess.run(
            [*command, f"{folder}/train*", "--into", folder, "--quiet"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == f"ds = shardio.open({str(folder)!r})"
    assert subprocess.run([program, f"{folder}/nothing*"], capture_output=True, check=False).returncode == 3
    assert shardio_main(["--help"]) == 0
    assert re.search(r"adopt \(index\) +Adopt shards", capfd.readouterr().out)


def test_an_interrupted_adoption_says_that_it_goes_on(folder, capsys, monkeypatch) -> None:
    @functools.wraps(shardio_indexer.adopt)
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("shardio.adoption.adopt", interrupted)
    assert main([str(folder)]) == 130
    assert "run it again to continue" in capsys.readouterr().err
