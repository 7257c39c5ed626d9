"""`shardio cat` writes what `shardio export` writes, to a pipe; `--where` chooses records."""

from __future__ import annotations

import subprocess
import sys
import tarfile

import numpy as np
import pytest

import shardio

CAT = [sys.executable, "-m", "shardio", "cat"]


def _cat(*arguments) -> bytes:
    return subprocess.run([*CAT, *map(str, arguments)], check=True, capture_output=True).stdout


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("form", "kind"), [("jsonl", "jsonl"), ("tar", "webdataset")])
def test_it_writes_what_an_export_writes(birds, tmp_path, form, kind) -> None:
    shardio.export_dataset(birds, tmp_path / "out", kind=kind, split="train")
    (file,) = (tmp_path / "out").iterdir()
    piped = _cat(birds, "--split", "train", "--format", form)
    if form == "jsonl":
        assert piped == file.read_bytes()
        return
    (tmp_path / "piped.tar").write_bytes(piped)
    with tarfile.open(file) as one, tarfile.open(tmp_path / "piped.tar") as two:
        assert [member.name for member in one] == [member.name for member in two]
        for member in one:
            assert one.extractfile(member).read() == two.extractfile(member.name).read()


def test_raw_is_the_payloads(birds) -> None:
    payloads = list(shardio.open(birds, split="test", decode=False))
    assert _cat(birds, "--split", "test", "--format", "raw") == b"".join(payloads)


@pytest.mark.slow
def test_webdataset_reads_the_pipe(birds) -> None:
    webdataset = pytest.importorskip("webdataset")
    pipe = f"pipe:{' '.join(CAT)} {birds} --split train --format tar"
    samples = list(webdataset.WebDataset(pipe, shardshuffle=False))
    ds = shardio.open(birds, split="train")
    assert [int(sample["label.cls"]) for sample in samples] == [int(value["label"]) for value in ds]
    assert [sample["image.jpg"] for sample in samples] == [value["image"] for value in ds]


@pytest.mark.slow
def test_parts_are_the_dataset(birds) -> None:
    whole = _cat(birds, "--features", "label", "--split", "train").splitlines()
    parts = [
        _cat(birds, "--features", "label", "--split", "train", "--rank", f"{rank}/3").splitlines()
        for rank in range(3)
    ]
    assert [line for part in parts for line in part] == whole
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.slow
def test_a_reader_that_closes_the_pipe_ends_it(birds) -> None:
    with subprocess.Popen([*CAT, str(birds), "--split", "train"], stdout=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(600) in (0, 141)


@pytest.mark.slow
def test_a_condition_chooses_records(birds, run) -> None:
    where = ("--where", "label BETWEEN 3 AND 6", "--split", "train")
    labels = [3, 4, 6]
    head = run("head", birds, *where, "-n", 2, "--json").document["records"]
    assert [record["value"]["label"] for record in head] == labels[:2]
    found = run("get", birds, *where, "--json").document["records"]
    assert [record["value"]["label"] for record in found] == labels
    ds = shardio.open(birds, split="train")
    assert [int(ds[record["position"]]["label"]) for record in found] == labels
    assert _cat(birds, *where, "--features", "label").split() == [
        b'{"label":',
        b"3}",
        b'{"label":',
        b"4}",
        b'{"label":',
        b"6}",
    ]


def test_positions_and_a_condition_exclude_each_other(birds, run) -> None:
    for arguments in ((), ("1", "--where", "label = 3")):
        ended = run("get", birds, "--split", "train", *arguments)
        assert ended.code == 2
        assert "--where" in ended.err


def test_what_a_format_cannot_hold_is_refused(tmp_path, run) -> None:
    with shardio.DatasetWriter(tmp_path / "ds", schema={"x": "float32"}) as out:
        out.write({"x": np.float32(1)})
    assert run("cat", tmp_path / "ds", "--json").code == 2
    with shardio.DatasetWriter(tmp_path / "bytes") as out:
        out.write(b"one")
    ended = run("cat", tmp_path / "bytes", "--format", "tar")
    assert (ended.code, ended.out) == (2, "")
