"""What an epoch from a bucket costs, by the size of its records: bytes and requests, counted at the server.

    python benchmarks/bucket_bytes.py [--only 1000x200000 1000x200000/10000 ...] [--ranks 4] [--cache]

`1000x200000/10000` is 200,000 records of 1,000 bytes in 10,000 shards; without a number shards are of the
usual size.  Each line is an epoch of `shardio.stream(ds, global_batch=256)` in processes of their own, one a
rank, over a dataset of random records behind `range_server.py`.  Bytes are those that the server sent,
indexes and manifest too, over those of the records; requests are for each MiB of records; processor time is
that of the whole process after its imports, in seconds for each 10^9 bytes of records.  The first batch has
the seconds since the imports, opening included, of the slowest rank, and the requests that there had been
when the first rank had it.  With `--cache` the ranks share an empty cache on a local disk, and a second line
is the same with that cache.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from range_server import counted, open_dataset, served

# Bytes of a record, and how many there are, in how many shards.
DATASETS = ["300x600000", "1000x200000", "1000x800000", "8192x100000", "100000x6000", "1000x200000/10000"]
PLANS: dict[str, dict[str, object]] = {
    "default": {},
    "scratch=False": {"scratch": False},
    "best": {"mixing": "best"},
    "cheap": {"mixing": "cheap"},
    "shuffle=False": {"shuffle": False},
}
BATCH = 256


def write(url: Path, size: int, rows: int, shards: int) -> None:
    """Write a dataset of random records."""
    import shardio

    some = np.random.default_rng(0).bytes(size + (1 << 20))
    # Less than the frames of a shard have, for the last one ends it, as it ends its block.
    most = max(1, rows // shards * (size + 16) - 16) if shards else 0
    how = {"shard_bytes": most, "block_bytes": min(most, 64 << 10)} if shards else {}
    with shardio.DatasetWriter(url, **how) as out:
        for number in range(rows):
            start = number * 1021 % (1 << 20)
            out.write(some[start : start + size])


def processor() -> float:
    """Return the processor time of this process in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def epoch(url: str, plan: str, rank: int, world: int, cache: str) -> None:
    """Print what an epoch takes.

    These are processor and other seconds, bytes of its records, seconds to its first batch, and requests that
    the server had had then.
    """
    import shardio

    __import__("obstore")
    __import__("s3fs")
    there = shardio.CacheOptions(cache, 100 << 30) if cache else None
    before, begin, first, requests, size = processor(), time.perf_counter(), 0.0, 0, 0
    ds = open_dataset(url, cache=there)
    for batch in shardio.stream(ds, global_batch=BATCH, seed=1, rank=rank, world_size=world, **PLANS[plan]):
        if not first:
            first = time.perf_counter() - begin
            requests = counted(url)[0] if url.startswith("http") else 0
        size += sum(map(len, batch["payload"]))
    print(processor() - before, time.perf_counter() - begin, size, first, requests)


def measure(url: str, plan: str, world: int, cache: str = "") -> str:
    """Return a line of the table."""
    remote = url.startswith("http")
    requests, sent = counted(url) if remote else (0, 0)
    command = [sys.executable, "-W", "ignore", __file__, "--epoch", url, plan]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), cache], stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    found = np.array([list(map(float, rank.communicate()[0].split())) for rank in ranks])
    if any(rank.returncode for rank in ranks):
        raise SystemExit("an epoch failed; see above")
    cpu, _, size, *_ = found.sum(0)
    after = counted(url) if remote else (0, 0)
    return (
        f"{(after[1] - sent) / size:6.3f} x  {(after[0] - requests) / size * 2**20:6.2f} /MiB  "
        f"{cpu / size * 1e9:6.2f} s/GB  {size / found[:, 1].max() / 1e6:5.0f} MB/s  "
        f"first batch {found[:, 3].max():5.2f} s, {found[:, 4].min() - requests:.0f} requests"
    )


def main() -> None:
    """Parse the arguments, make the datasets and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=DATASETS)
    parser.add_argument("--plans", nargs="*", default=list(PLANS), choices=list(PLANS))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--cache", action="store_true", help="one of all ranks, empty and then full")
    parser.add_argument("--local", action="store_true", help="the files, without a server")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that each reply waits")
    parser.add_argument("--folder", type=Path, help="where the datasets are kept; else they are temporary")
    parser.add_argument("--epoch", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.epoch:
        url, plan, rank, world, cache = arguments.epoch
        epoch(url, plan, int(rank), int(world), cache)
        return
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only:
            size, rows, shards = map(int, re.fullmatch(r"(\d+)x(\d+)(?:/(\d+))?", name).groups("0"))
            root = (arguments.folder or Path(temporary)) / name.replace("/", "in")
            dataset = root / "bench" / "ds"
            if not root.is_dir():
                write(dataset, size, rows, shards)
            local = contextlib.nullcontext(str(dataset))
            with local if arguments.local else served(root, arguments.latency) as url:
                for plan in arguments.plans:
                    with tempfile.TemporaryDirectory() as cache:
                        for state in ("cold", "warm") if arguments.cache else ("",):
                            line = measure(url, plan, arguments.ranks, cache if state else "")
                            print(f"{name:>18} {plan:<14}{state:<5}{line}", flush=True)


if __name__ == "__main__":
    main()
