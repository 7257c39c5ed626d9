"""Files that are cut or overwritten in place while they are read: an error, never the end of the process."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardio
import shardio_indexer
from shardio.errors import ShardioError
from tests.format import plain
from tests.streaming.datasets import flip
from tests.suites.errors import refused

READ = """
import json, os, pickle, sys
import shardio
from shardio.errors import ShardioError

url, part, way = sys.argv[1:4]
ds = shardio.open(url, **json.loads(sys.argv[4]))
if way == "pickled":
    ds = pickle.loads(pickle.dumps(ds))
stream = shardio.stream(ds, global_batch=4, seed=1)
if way == "resumed":
    state = stream.state_dict()
    stream = shardio.stream(ds, global_batch=4, seed=1)
    stream.load_state_dict(state)
assert ds[0] == b"0" * 9000  # everything is open
for folder, _, names in os.walk(url):
    for name in names:
        if name.endswith(part):
            os.truncate(os.path.join(folder, name), 5000 if part == ".tfrecord" else 64)
ways = {
    "iterate": lambda: list(ds),
    "pickled": lambda: list(ds),
    "look up": lambda: ds[len(ds) - 1],
    "read": lambda: ds.read(range(len(ds))),
    "batch": lambda: ds.read_batch(range(len(ds))),
    "locate": lambda: ds.locate(len(ds) - 1),
    "stream": lambda: list(stream),
    "resumed": lambda: list(stream),
}
try:
    ways[way]()
except ShardioError as error:
    print(type(error).__name__)
else:
    print("read")
"""
WAYS = ["iterate", "look up", "read", "batch", "locate", "stream", "resumed", "pickled"]


def made(kind: str, folder: Path) -> Path:
    records = [b"%d" % (k % 10) * 9000 for k in range(40)]
    if kind == "adopted":
        folder.mkdir()
        (folder / "a.tfrecord").write_bytes(b"".join(map(plain.frame, records)))
        assert shardio_indexer.adopt(str(folder / "a.tfrecord")).ok
    else:
        with shardio.DatasetWriter(folder, block_bytes=20_000) as out:
            for record in records:
                out.write(record)
    return folder


def run(url: Path, part: str, way: str, **options: object) -> tuple[int, str]:
    command = [sys.executable, "-c", READ, str(url), part, way, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.strip()


@pytest.mark.slow
@pytest.mark.sampled(16)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", [".tfrecord", ".shardidx"])
@pytest.mark.parametrize(("kind", "options"), [("adopted", {}), ("own", {"mmap": False})])
def test_a_shard_that_is_cut_while_it_is_open(kind, options, part, way, tmp_path):
    """Neither adopted shards nor the indexes beside them are mapped: others may cut them."""
    code, found = run(made(kind, tmp_path / "ds"), part, way, **options)
    assert code == 0
    # The ends of so few frames came with the head of the index.
    assert (found != "read") == (part == ".tfrecord" and way != "locate")


def test_an_adopted_index_is_not_mapped(tmp_path):
    ds = shardio.open(made("adopted", tmp_path / "ds"))
    assert len(list(ds)) == 40
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_a_mapped_shard_that_is_cut_ends_the_process(tmp_path):
    """What the pages say of the default; should this ever change, they do too."""
    assert run(made("own", tmp_path / "ds"), ".tfrecord", "iterate")[0] in (-7, -10)


@pytest.mark.parametrize("mmap", [True, False])
def test_mmap_or_not_the_records_are_the_same(mmap, tmp_path):
    url = made("own", tmp_path / "ds")
    ds = shardio.open(url, mmap=mmap)
    copy = pickle.loads(pickle.dumps(ds))
    assert copy.source.options.mmap is mmap
    assert list(ds) == list(copy) == list(shardio.open(url)) == ds.read(np.arange(len(ds)))
    shardio.open(url, mmap=mmap, verify=False)
    (data,) = (url / "data").glob("*.tfrecord")
    data.chmod(0o644)
    flip(data, 20_000)
    with pytest.raises(ShardioError):
        list(shardio.open(url, mmap=mmap))


def test_limits_are_the_callers(tmp_path):
    """A caller may raise a limit or lower it, of a dataset, a shard, and a check."""
    url = made("own", tmp_path / "ds")
    low = shardio.Limits(index=100)
    with pytest.raises(ShardioError):
        shardio.open(url, limits=shardio.Limits(manifest=100))
    with refused(ShardioError, "limit"):
        shardio.open(url, limits=low)[0]
    (data,) = (url / "data").glob("*.tfrecord")
    with refused(ShardioError, "limit"):
        shardio.open_shard(data, limits=low)
    assert not shardio.verify(url, limits=low).ok
    assert not shardio.verify(data, limits=low).ok
    high = shardio.Limits(record=1 << 31, manifest=1 << 30)
    assert list(shardio.open(url, limits=high)) == list(shardio.open(url))
    assert pickle.loads(pickle.dumps(shardio.open(url, limits=high))).source.options.limits == high
    assert shardio.verify(url, limits=high).ok
