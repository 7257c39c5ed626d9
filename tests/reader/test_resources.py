"""What reading local shards holds: descriptors and maps, threads, processes, scratch and memory.

On every path; counted in /proc.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardio
import shardio_indexer
from shardio.codecs import encode_example
from shardio.errors import StorageError
from shardio.storage import descriptor_users
from tests.format import plain
from tests.reader.resources import WAYS, Held

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counted in /proc")

FEW, MANY = 100, 500  # shards
# Of threads that read side by side each may read from one that has just made room.
READ_NOW = min(8, os.cpu_count() or 1)
KINDS = ["own", "zstd", "adopted"]


def written(folder: Path, shards: int) -> Path:
    """Write a dataset of each kind; a block that is closed by the second record closes the shard."""
    for kind, compression in (("own", None), ("zstd", "zstd")):
        with shardio.DatasetWriter(
            folder / kind, {"n": "int64"}, compression, block_bytes=1, shard_bytes=1
        ) as out:
            for k in range(2 * shards):
                out.write({"n": k})
    (folder / "adopted").mkdir()
    for k in range(shards):
        (folder / "adopted" / f"{k:04d}.tfrecord").write_bytes(
            plain.frame(encode_example({"n": 2 * k})) + plain.frame(encode_example({"n": 2 * k + 1}))
        )
    assert shardio_indexer.adopt(str(folder / "adopted" / "*.tfrecord"), workers=1, schema={"n": "int64"}).ok
    for kind in KINDS:
        assert shardio.open(folder / kind).num_shards >= shards
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("few"), FEW)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("many"), MANY)


def run(url: Path, limit: int, most: int, ways: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.reader.resources", str(url), str(limit), str(most), *ways]
    # Temporary files are counted: in a folder where no other test makes any.
    with tempfile.TemporaryDirectory() as scratch:
        env = {**os.environ, "TMPDIR": scratch}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["way"] for each in found] == ways
    return found


def check_left(found: dict[str, Any]) -> None:
    """Nothing else is left either; what a way takes in memory is small, however many shards there are."""
    left = dict(found["left"])
    assert left.pop("MiB at most") <= 64, found
    assert set(left.values()) <= {0}, found


TORCH = ["map_dataset", "loader"]  # in few of the cases: torch takes longer to import than all ways to go
WHOLE = ["look_at_pages", "verify", "export", "convert"]  # open the dataset themselves
READING = [way for way in WAYS if way not in TORCH + WHOLE]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "limit", "ways"),
    [
        ("own", 1024, READING + WHOLE),
        ("own", 256, TORCH),
        ("zstd", 256, READING),
        ("adopted", 1024, READING + WHOLE),
        ("adopted", 256, READING),
        ("adopted", 256, TORCH + WHOLE),
    ],
)
def test_many_shards_within_the_limit_of_the_process(kind, limit, ways, large):
    """`ulimit -n 1024`, the usual one, is enough for any number of shards; so is a quarter of it."""
    for found in run(large / kind, limit, 0, ways):
        assert found["records"] == 2 * MANY, found
        assert found["most"][0] <= 2 * (limit // 4 + READ_NOW), found
        assert found["after"] == [0, 0], f"{found}: with its last reference everything goes, at once"
        check_left(found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "ways"), [("own", READING), ("zstd", READING), ("adopted", READING)])
@pytest.mark.slow
def test_descriptors_stay_within_twice_the_open_shards(kind, ways, folders):
    for found in run(folders / kind, 1024, 8, ways):
        assert found["records"] == 2 * FEW, found
        assert found["most"][0] <= 2 * (8 + READ_NOW), found
        # What a stream or a column of Arrow delivers from is held as long, which needs no descriptors.
        assert found["most"][1] <= 16 or found["way"] in {"stream", "to_arrow"}, found
        assert found["after"] == [0, 0], found
        check_left(found)


@pytest.fixture
def few() -> Iterator[None]:
    """Nearly all descriptors of this process taken by something else."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    # Other tests of this process may have some open; the limit is one of numbers, not of how many there are.
    gc.collect()
    # What readers of other tests hold would be given back in the middle of this one.
    for user in list(descriptor_users):
        while user.release_descriptors():
            pass
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(512, highest + 64), before[1]))
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        for _ in range(12):
            os.close(taken.pop())
        yield
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_shards_make_room_where_descriptors_run_out(kind, few, folders):
    """Others may have taken them: open shards are given back, those of other readers too."""
    records = [{"n": k} for k in range(2 * FEW)]
    readers = [shardio.open(folders / kind) for _ in range(3)]
    iterators = [iter(reader) for reader in readers]
    assert [list(each) for each in zip(*iterators, strict=True)] == [[record] * 3 for record in records]
    assert readers[0].read(range(2 * FEW)) == records
    assert len(shardio.open(folders / kind)) == 2 * FEW


def test_no_descriptor_at_all_says_so(few, folders):
    ds = shardio.open(folders / "adopted")
    taken = []
    with pytest.raises(StorageError, match="too many files are open in this process"):
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            ds[0]
    for number in taken:
        os.close(number)
    assert ds[0] == {"n": 0}


@pytest.mark.sampled(33)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"mmap": False}, {"on_error": "skip"}, {"verify": False}])
def test_a_reader_that_is_dropped_frees_everything(kind, options, folders):
    held = Held(str(folders))
    # What earlier tests have dropped in a cycle goes first.
    gc.collect()
    before = held.now()
    gc.disable()
    try:
        ds = shardio.open(folders / kind, **options)
        part = ds[10:20]
        assert part.read([0, 5]) == [{"n": 10}, {"n": 15}]
        assert len(list(ds)) == len(list(shardio.stream(ds, global_batch=1))) == 2 * FEW
        assert ds.locate(5).row == 1
        with pytest.raises(IndexError):
            ds[2 * FEW]
        watched = [weakref.ref(ds.source), weakref.ref(ds.source.pool), weakref.ref(ds.source.pool.get(7))]
        assert held.now() != before
        del ds, part
        assert [each() for each in watched] == [None] * 3
        assert held.now() == before
    finally:
        gc.enable()
