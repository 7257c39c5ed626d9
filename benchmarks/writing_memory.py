"""Write many gigabytes that are made up as they are written, and see how much memory each process takes.

    python benchmarks/writing_memory.py [GIGABYTES] [FOLDER]

Records of 100 KB that do not compress, 100 MB an item, in a pool of two processes; a sample is read back, and
all is removed in the end.  Prints the highest resident size of the caller and of the largest worker (Linux).
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import shardio

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORD = 100_000
RECORDS_PER_ITEM = 1_000


def make(item: int) -> Iterator[bytes]:
    """Yield the records of an item; each begins with its number."""
    noise = os.urandom(2 * RECORD)
    for k in range(RECORDS_PER_ITEM):
        number = item * RECORDS_PER_ITEM + k
        yield number.to_bytes(8, "little") + noise[k : k + RECORD - 8]


def main(gigabytes: float = 20, folder: str | None = None) -> None:
    """Write, check, remove, report."""
    items = max(1, int(gigabytes * 1e9 / RECORD / RECORDS_PER_ITEM))
    root = Path(tempfile.mkdtemp(prefix="shardio-memory-", dir=folder))
    free = shutil.disk_usage(root).free
    if free < gigabytes * 1.2e9:
        raise SystemExit(f"{root} has {free / 1e9:.0f} GB free, too few")
    try:
        begin = time.perf_counter()
        with ProcessPoolExecutor(2) as executor:
            report = shardio.write_dataset(
                root / "ds", range(items), make, executor=executor, progress=True, shard_bytes=256 << 20
            )
        seconds = time.perf_counter() - begin
        ds = shardio.open(root / "ds")
        some = range(0, len(ds), max(1, len(ds) // 500))
        assert [int.from_bytes(record[:8], "little") for record in ds.read(some)] == list(some)
        assert len(ds) == items * RECORDS_PER_ITEM == report.records["train"]
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{ds.num_bytes / 1e9:.1f} GB in {ds.num_shards} shards, {seconds:.0f} s")
        print(f"highest resident size: caller {own:.0f} MiB, largest worker {workers:.0f} MiB")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *sys.argv[2:3])
