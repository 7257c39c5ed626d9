"""What a process holds of memory while it streams, as the system counts it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import shardio
from tests.servers import s3
from tests.servers.faults import fault_server

linux = pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")

TOKENS = 2048
# Prints the most resident bytes beyond those that the process had before its first pass, of each epoch; what
# the system may take back at any time, pages of mapped files, aside.
CHILD = """
import gc, json, sys
from pathlib import Path
import numpy as np
import shardio, shardio.streaming

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return sum(int(found[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))

url, epochs, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
ds = shardio.open(url, storage_options=options.pop("storage_options", None))
np.zeros(1 << 20)
gc.collect()
before, most = resident(), []
for epoch in range(epochs):
    held = 0
    for number, _ in enumerate(shardio.stream(ds, global_batch=64, seed=epoch, **options)):
        if number % 10 == 0:
            held = max(held, resident() - before)
    most.append(held)
print(json.dumps(most))
"""


def write(url, rows, **options):
    """Write rows of 8 KB of tokens, which compress to five eighths; a few hundred of them differ."""
    values = np.random.default_rng(0).integers(0, 1 << 16, (256, TOKENS), dtype=np.int32)
    schema = {"tokens": f"int32[{TOKENS}]"}
    with shardio.DatasetWriter(url, schema=schema, shard_bytes=8 << 20, **options) as out:
        for number in range(rows):
            out.write({"tokens": values[number % 256]})
    return shardio.open(url)


def held(url, epochs, **options):
    """Return the bytes that each epoch of a stream in a process of its own held at most."""
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(url), str(epochs), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@linux
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("compression", "threads"), [("zstd", 0), ("zstd", 2), ("gzip", 2)])
def test_a_process_holds_what_its_plan_says(tmp_path, compression, threads):
    """Windows of compressed shards are held decoded, and nothing else grows from epoch to epoch."""
    ds = write(tmp_path / "d", 3400, compression=compression)
    options = {"memory_bytes": 20 << 20}
    figures = shardio.plan_report(ds, global_batch=64, **options)[0]
    windows = figures.memory_bytes
    assert 9 << 20 < windows < options["memory_bytes"]
    first, *later = held(tmp_path / "d", 3, num_threads=threads, **options)
    # What threads gather, and what the allocator keeps of it, beside windows.
    assert max(first, *later) < windows + (10 + 8 * threads << 20)
    assert max(later) < first + (4 + 2 * threads << 20)


@pytest.mark.slow
@linux
@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [2, 0])
def test_tokens_of_compressed_shards_by_default(tmp_path, threads):
    """Without an option: the plan's bound and 200 MB, however many epochs."""
    ds = write(tmp_path / "d", 12_000, compression="zstd")
    windows = shardio.plan_report(ds, global_batch=64)[0].memory_bytes
    most = held(tmp_path / "d", 30, num_threads=threads)
    # Readahead has 32 MiB and each thread 16. A leak of 7 MB an epoch would be seen.
    assert windows // 2 < max(most) < windows + 200_000_000


@pytest.mark.slow
@linux
def test_tokens_in_a_bucket_by_default(tmp_path):
    """Threads that fetch, and those of every pass, don't keep memory of their own: 364 MiB in 10 epochs."""
    write(tmp_path / "d", 12_000)
    with fault_server() as server:
        server.load(tmp_path / "d", "/bucket/d")
        options = s3.options_for(server.url)
        ds = shardio.open("s3://bucket/d", storage_options=options)
        windows = shardio.plan_report(ds, global_batch=64)[0].memory_bytes
        most = held("s3://bucket/d", 12, storage_options=options)
    assert max(most) < windows + 200_000_000


@pytest.mark.parametrize(
    ("compression", "local", "decoded"),
    [
        ("zstd", True, True),
        ("gzip", True, True),
        ("zlib", True, False),  # one stream, of which smaller chunks would be decoded more often
        (None, True, False),
        ("zstd", False, False),
    ],
)
def test_what_a_default_plan_is_made_for(tmp_path, compression, local, decoded):
    """Where blocks are decoded and cost no request, chunks are smaller."""
    url = tmp_path / "d" if local else f"memory://{tmp_path.name}/d"
    ds = write(url, 300, compression=compression)
    for options in ({}, {"memory_bytes": 64 << 20}):
        stream = shardio.stream(ds, global_batch=64, **options)
        resources = stream.resources
        assert resources.has_local_blocks == decoded
        assert resources.is_local == (local and compression is None)
        assert resources.memory_bytes >> 20 == (64 if options else 512)
    # Whether files are mapped may differ from rank to rank.
    read = shardio.open(url, mmap=False)
    assert shardio.stream(read, global_batch=64, **options).resources == resources


@pytest.mark.filterwarnings("ignore:one record takes")
def test_a_bound_takes_the_states_of_its_own_runs(tmp_path):
    """Where a record counts as more than the bound: resumed, pickled, and another state after the first."""
    ds = write(tmp_path / "d", 300, compression="zstd")
    options = {"global_batch": 8, "seed": 1, "memory_bytes": 64, "positions": True}
    stream = shardio.stream(ds, **options)
    wanted = [batch["_position"].tolist() for batch in shardio.stream(ds, **options)]
    passing = iter(stream)
    found = [next(passing)["_position"].tolist() for _ in range(3)]
    state = stream.state_dict()
    again = shardio.stream(ds, **options)
    again.load_state_dict(state)
    assert pickle.loads(pickle.dumps(again)).state_dict() == state
    assert found + [batch["_position"].tolist() for batch in again] == wanted
    # A stream whose plan was left open takes the state of a run with another one, before and after the first.
    plan = shardio.Plan(ranks=1, workers=1, chunk_rows=4, interleave=2)
    other = shardio.stream(ds, global_batch=8, seed=1, plan=plan)
    for _ in range(2):
        plain = shardio.stream(ds, global_batch=8, seed=1)
        plain.load_state_dict(shardio.stream(ds, global_batch=8, seed=1).state_dict())
        plain.load_state_dict(other.state_dict())
        assert plain.order.plans == other.order.plans


def test_records_that_stay_in_their_files_count_as_where_they_are(tmp_path):
    """Windows of them hold a table; the bound refused what holds a fiftieth of it."""
    with shardio.DatasetWriter(tmp_path / "large") as out:
        for number in range(400):
            out.write(bytes([number % 256]) * 20_000)
    ds = shardio.open(tmp_path / "large")
    plan = shardio.Plan(ranks=1, workers=1, chunk_rows=100, interleave=4, window=100)
    figures = shardio.plan_report(ds, global_batch=8, plan=plan)[0]
    assert figures.memory_bytes < 1 << 20
    stream = shardio.stream(ds, global_batch=8, seed=1, plan=plan, memory_bytes=4 << 20)
    assert sum(len(batch["payload"]) for batch in stream) == 400
