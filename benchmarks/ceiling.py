"""What this machine does at most with shuffled records of cached files, and what part a stream reaches.

    python benchmarks/ceiling.py [--records 100000] [--rounds 5]

The ceiling: one compiled call for every 16 MB reads frames of 8 KB tokens at random by `preadv` into memory
that is used again, and compares their CRC-32C; nothing is planned and nothing is made of them, and each call
runs without the interpreter's lock, in one thread or two. The stream: the same files into torch by the
default plan, in batches of 64. Rounds by turns, all in one process, after one round that is not counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from streaming import BATCH, TOKENS, token_rows

import shardio
from shardio.storage import OpenFiles
from shardio.torch import StreamingDataLoader, StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

AT_ONCE = 2048


def bare(url: Path, threads: int) -> Callable[[], int]:
    """Return what reads all frames of a dataset once, at random, and returns how many they are."""
    source = shardio.open(url).source
    shards = [source.pool.get(number) for number in range(len(source.table.key))]
    found = [shard.in_place.find_frames(np.arange(shard.head.rows)) for shard in shards]
    frames = np.concatenate(
        [
            np.stack([np.full(each.starts.size, k), each.starts, each.lengths, each.crcs], axis=1)
            for k, each in enumerate(found)
        ]
    )
    frames = np.random.default_rng(0).permutation(frames)
    files = [each.file for each in found]
    size = 4 * TOKENS
    held = [np.zeros(AT_ONCE * size, np.uint8) for _ in range(threads)]

    def part(number: int, own: NDArray[np.int64]) -> None:
        with OpenFiles(files) as opened:
            for low in range(0, len(own), AT_ONCE):
                some = own[low : low + AT_ONCE]
                assert opened.read_frames(some, held[number][: len(some) * size]).all()

    def run() -> int:
        parts = enumerate(np.array_split(frames, threads))
        running = [threading.Thread(target=part, args=each) for each in parts]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return len(frames)

    return run


def stream(url: Path, threads: int) -> Callable[[], int]:
    """Return what streams an epoch into torch, and returns how many records it had."""
    loader = StreamingDataLoader(
        StreamingDataset(shardio.open(url), global_batch=BATCH, seed=1), num_threads=threads
    )
    return lambda: sum(len(batch["tokens"]) for batch in loader)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the data goes; a temporary folder by default")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, {args.records:,} records of 8 KB"
    )
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        url = Path(folder) / "tokens"
        with shardio.DatasetWriter(url, schema={"tokens": f"int32[{TOKENS}]"}, encoding="array") as out:
            for row in token_rows(args.records):
                out.write(row)
        runs = {f"bare reads, {threads} threads": bare(url, threads) for threads in (1, 2)}
        runs |= {f"stream, {threads} threads": stream(url, threads) for threads in (0, 1, 2)}
        rates: dict[str, list[float]] = {name: [] for name in runs}
        costs: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(args.rounds + 1):
            for name, run in runs.items():
                began, worked = time.perf_counter(), time.process_time()
                count = run()
                if number:
                    rates[name].append(count / (time.perf_counter() - began))
                    costs[name].append(1e6 * (time.process_time() - worked) / count)
    print("| what | records/s | least | most | us of the processor a record |\n|---|---|---|---|---|")
    for name, found in rates.items():
        cells = [f"{each:,.0f}" for each in (statistics.median(found), min(found), max(found))]
        print(f"| {name} | {' | '.join(cells)} | {statistics.median(costs[name]):.2f} |")


if __name__ == "__main__":
    main()
