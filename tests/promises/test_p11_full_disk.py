"""P11: a full disk never fails a read."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardio
from tests.servers.faults import fault_server
from tests.servers.s3 import options_for

SIZE = 1 << 20
# Three times the disk, and nothing that a file system could make smaller.
RECORDS = [
    row.tobytes() for row in np.random.default_rng(1).integers(0, 256, (3 * SIZE // 4096, 4096), np.uint8)
]

SCRIPT = """
import errno, logging, os, sys
from pathlib import Path
import shardio
from tests.promises.test_p11_full_disk import RECORDS, SIZE

url, options, folder, real = sys.argv[1], eval(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] == "real"
refused = 0

def full(number, parts):
    # A disk takes what it has room for, and then nothing.
    global refused
    data = b"".join(parts)
    room = SIZE - sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    refused += len(data) > room
    if not room:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return os.write(number, data[:room])

if not real:
    os.writev = full
lines = []
logging.getLogger("shardio").addFilter(lambda record: lines.append(record.getMessage()))
ds = shardio.open(url, storage_options=options, cache=shardio.CacheOptions(folder, max_bytes=1 << 30))
for _ in range(2):
    assert list(ds) == RECORDS
wanted = list(range(0, len(RECORDS), 37))
assert ds.read(wanted) == [RECORDS[k] for k in wanted]
batches = shardio.stream(ds, global_batch=32, seed=1, remainder="keep")
assert sorted(record for batch in batches for record in batch["payload"]) == sorted(RECORDS)
assert len(lines) == 1 and os.strerror(errno.ENOSPC) in lines[0], lines
assert real or refused
left = [path for path in folder.rglob("*") if path.is_file()]
assert {path.suffix for path in left} == {".block"}, left
assert sum(path.stat().st_size for path in left) > SIZE // 2
assert ds.stats["cache_hits"] > 0
"""


@functools.cache
def may_mount() -> bool:
    """Whether this user may mount file systems of its own; some systems allow that to root alone."""
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("disk", ["made of files", "real"])
def test_a_full_disk_never_fails_a_read(disk, tmp_path):
    """P11: a cache on a disk of 1 MiB: what fits is used, everything is read, and it is told once.

    The real disk is a tmpfs; without leave to mount one, both disks are a folder whose writes are counted.
    """
    with shardio.DatasetWriter(tmp_path / "birds", shard_bytes=1 << 19, block_bytes=1 << 16) as out:
        for record in RECORDS:
            out.write(record)
    folder = tmp_path / "cache"
    folder.mkdir()
    real = disk == "real" and may_mount()
    with fault_server() as server:
        server.load(tmp_path / "birds", "/bucket/birds")
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
        command += [
            "s3://bucket/birds",
            repr(options_for(server.url)),
            str(folder),
            "real" if real else "counted",
        ]
        if real:
            mounted = f'mount -t tmpfs -o size={SIZE} none "$0" && exec "$@"'
            command = ["unshare", "-Urm", "sh", "-c", mounted, str(folder), *command]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=600, cwd=Path(__file__).parents[2]
        )
    assert done.returncode == 0, done.stderr
    assert real == (list(folder.iterdir()) == [])
