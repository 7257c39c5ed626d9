"""What an epoch from a bucket costs, by the size of its records: bytes and requests, counted at the server.

    python benchmarks/bucket_bytes.py [--only 1000x200000 ...] [--plans default best] [--ranks 4]

Each line is an epoch of `shardio.stream(ds, global_batch=256)` in processes of their own, one a rank, over a
dataset of random records behind `range_server.py`.  Bytes are those that the server sent, indexes and
manifest too, over those of the records; requests are for each MiB of records; processor time is that of the
whole process after its imports, in seconds for each 10^9 bytes of records.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from range_server import counted, open_dataset, served

# Bytes of a record, and how many there are.
DATASETS = [(300, 600_000), (1000, 200_000), (1000, 800_000), (8192, 100_000), (100_000, 6_000)]
PLANS: dict[str, dict[str, object]] = {
    "default": {},
    "scratch=False": {"scratch": False},
    "best": {"mixing": "best"},
    "cheap": {"mixing": "cheap"},
    "shuffle=False": {"shuffle": False},
}
BATCH = 256


def write(url: Path, size: int, rows: int) -> None:
    """Write a dataset of random records."""
    import shardio

    some = np.random.default_rng(0).bytes(size + (1 << 20))
    with shardio.DatasetWriter(url) as out:
        for number in range(rows):
            start = number * 1021 % (1 << 20)
            out.write(some[start : start + size])


def processor() -> float:
    """Return the processor time of this process in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def epoch(url: str, plan: str, rank: int, world: int) -> None:
    """Print processor and other seconds of an epoch, seconds to its first batch, and bytes of its records."""
    import shardio

    ds = open_dataset(url)
    before, begin, first, size = processor(), time.perf_counter(), 0.0, 0
    for batch in shardio.stream(ds, global_batch=BATCH, seed=1, rank=rank, world_size=world, **PLANS[plan]):
        first = first or time.perf_counter() - begin
        size += sum(map(len, batch["payload"]))
    print(processor() - before, time.perf_counter() - begin, first, size)


def measure(url: str, plan: str, world: int) -> str:
    """Return a line of the table."""
    requests, sent = counted(url)
    command = [sys.executable, "-W", "ignore", __file__, "--epoch", url, plan]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world)], stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    found = np.array([list(map(float, rank.communicate()[0].split())) for rank in ranks])
    if any(rank.returncode for rank in ranks):
        raise SystemExit("an epoch failed; see above")
    after = counted(url)
    cpu, _, _, size = found.sum(0)
    return (
        f"{(after[1] - sent) / size:6.3f} x  {(after[0] - requests) / size * 2**20:6.2f} /MiB  "
        f"{cpu / size * 1e9:6.2f} s/GB  {size / found[:, 1].max() / 1e6:5.0f} MB/s  "
        f"first batch {found[:, 2].max():5.2f} s"
    )


def main() -> None:
    """Parse the arguments, make the datasets and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[f"{size}x{rows}" for size, rows in DATASETS])
    parser.add_argument("--plans", nargs="*", default=list(PLANS), choices=list(PLANS))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that each reply waits")
    parser.add_argument("--folder", type=Path, help="where the datasets are kept; else they are temporary")
    parser.add_argument("--epoch", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.epoch:
        url, plan, rank, world = arguments.epoch
        epoch(url, plan, int(rank), int(world))
        return
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only:
            size, rows = map(int, name.split("x"))
            root = (arguments.folder or Path(temporary)) / name
            if not root.is_dir():
                write(root / "bench" / "ds", size, rows)
            with served(root, arguments.latency) as url:
                for plan in arguments.plans:
                    print(f"{name:>16} {plan:<14}{measure(url, plan, arguments.ranks)}", flush=True)


if __name__ == "__main__":
    main()
