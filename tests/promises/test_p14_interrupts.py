"""P14: Ctrl-C at any moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shardio
from shardio.storage import Store
from tests.promises.interrupts import OPERATIONS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.sampled(11)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_ctrl_c_at_any_moment(operation, tmp_path, long):
    """Wherever it comes: no thread, process, descriptor or temporary file is left, nothing is lost or seen by
    half, and the same call succeeds in the same process.
    """
    command = [sys.executable, "-m", "tests.promises.interrupts", operation, tmp_path / "all"]
    done = subprocess.run(
        [*command, *([] if long else ["10"])],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, *tried = map(json.loads, done.stdout.splitlines())
    assert len(tried) >= (count // 2 if long else 8)
    assert [each for each in tried if each[2]] == []


@pytest.mark.parametrize("change", ["erase", "compact"])
def test_ctrl_c_behind_a_commit_removes_nothing(change, tmp_path, monkeypatch):
    """The new version is there, and with it what it names; its hint, which comes next, is not needed."""
    for n in range(4):
        with shardio.DatasetWriter(tmp_path / "ds", mode="append") as out:
            out.write(b"%d" % n)
            out.write(b"%d and a half" % n)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "overwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            if change == "erase":
                shardio.erase(tmp_path / "ds", [1, 6])
            else:
                shardio.compact(tmp_path / "ds", workers=1)
    ds = shardio.open(tmp_path / "ds")
    assert ds.version == 5
    wanted = [text for n in range(4) for text in (b"%d" % n, b"%d and a half" % n)]
    assert list(ds) == ([wanted[n] for n in (0, 2, 3, 4, 5, 7)] if change == "erase" else wanted)
    assert shardio.verify(tmp_path / "ds").ok


@pytest.mark.parametrize("there", [False, True])
def test_ctrl_c_behind_a_shard_leaves_it_its_index(there, tmp_path, monkeypatch):
    """And before it nothing, so that the next try can succeed."""
    put = shardio.ShardWriter._put

    def interrupted(writer, key, data):
        if there or isinstance(data, bytes):
            put(writer, key, data)
        if not isinstance(data, bytes):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shardio.ShardWriter, "_put", interrupted)
        with pytest.raises(KeyboardInterrupt), shardio.ShardWriter(tmp_path / "x.tfrecord") as out:
            out.write(b"wren")
    if not there:
        assert list(tmp_path.iterdir()) == []
        with shardio.ShardWriter(tmp_path / "x.tfrecord") as out:
            out.write(b"wren")
    assert list(shardio.open_shard(tmp_path / "x.tfrecord")) == [b"wren"]
