"""How fast a plain local dataset streams by its default plan, by the other mixings, and by a windowed plan.

    python benchmarks/default_plan.py [--sizes 1000 8192 100000] [--megabytes 2048] [--plans default windowed]

2 GiB of records in shards of 64 MB, batches of 256, no threads, from the page cache; interleaved rounds, the
median of each.  Every measurement opens the dataset again, so that each compares all checksums.  An epoch of
512 MB would show what it costs to fill 360 MB of windows once, which a longer one pays once, too.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import shardio
from shardio import Plan

if TYPE_CHECKING:
    from collections.abc import Callable


# Of records of so many bytes.
PLANS: dict[str, Callable[[int], dict[str, Any]]] = {
    "default": lambda _size: {},
    "cheap": lambda _size: {"mixing": "cheap"},
    "best": lambda _size: {"mixing": "best"},
    "windowed": lambda size: {"plan": Plan(window=max(256, (128 << 20) // size))},
}


def processor_seconds() -> float:
    """Return what this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(folder: str, **options: Any) -> tuple[float, float]:
    """Return megabytes a second, and processor seconds per gigabyte, of one pass."""
    for path in Path(folder).rglob("*.tfrecord"):
        path.read_bytes()  # into the page cache, where other programs may have pushed it out
    stream = shardio.stream(shardio.open(folder), global_batch=256, seed=0, num_threads=0, **options)
    begin, used, received = time.perf_counter(), processor_seconds(), 0
    for batch in stream:
        received += sum(map(len, batch["payload"]))
    wall, own = time.perf_counter() - begin, processor_seconds() - used
    return received / wall / 1e6, own / received * 1e9


def main() -> None:
    """Print a line for each plan of each size."""
    parser = argparse.ArgumentParser(description="default plan against others")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1000, 8192, 100_000], help="bytes of a record"
    )
    parser.add_argument("--megabytes", type=int, default=2048, help="MiB of records in a dataset")
    parser.add_argument("--plans", nargs="+", choices=list(PLANS), default=list(PLANS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            record = np.random.default_rng(0).bytes(size)
            with shardio.DatasetWriter(folder, shard_bytes=64 << 20) as out:
                for _ in range((options.megabytes << 20) // size):
                    out.write(record, split="train")
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in options.plans}
            for _ in range(options.rounds):
                for name in options.plans:
                    found[name].append(measure(folder, **PLANS[name](size)))
            for name, rounds in found.items():
                speed, own = (statistics.median(column) for column in zip(*rounds, strict=True))
                print(f"{size:9,} bytes  {name:14s} {speed:7.0f} MB/s {own:6.2f} processor s/GB", flush=True)


if __name__ == "__main__":
    main()
