"""Memory and time of `shardio.join(on=)` by the number of keys: `python benchmarks/joins.py [keys ...]`.

Each case runs in a process of its own, which has read records of both sides before it is measured; what a
line shows is the peak of anonymous resident memory beyond that (pages of shards that are mapped can be given
back at any time), sampled every millisecond, and processor time, reading the keys included.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import shardio


def write(url: str, kind: str, keys: np.ndarray, name: str) -> None:
    """Write a dataset of keys, and a number beside each."""
    with shardio.DatasetWriter(url, {"id": kind, name: "int32"}) as out:
        for row, key in enumerate(keys.tolist()):
            out.write({"id": key if kind == "int64" else f"{key:016x}", name: row})


def resident() -> int:
    """Return the anonymous resident memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def case(folder: str, kind: str) -> dict[str, object]:
    """Join two datasets by their keys, and measure."""
    left, right = (shardio.open(f"{folder}/{side}") for side in ("left", "right"))
    for reader in (left, right):
        reader.read_batch(range(4096))
    samples = [before := resident()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            samples.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.process_time()
    both = shardio.join(left, right, on="id")
    spent = time.process_time() - began
    done.set()
    watcher.join()
    assert int(both[5]["b"]) == len(both) - 1 - 5
    peak = max(samples) - before
    return {
        "keys": kind, "records a side": len(both), "peak MiB": round(peak / 2**20, 1),
        "bytes a key": round(peak / len(both) / 2, 1), "cpu s": round(spent, 2),
    }  # fmt: skip


def main(sizes: list[int]) -> None:
    """Run each case in a process of its own."""
    context = multiprocessing.get_context("spawn")
    for kind in ("int64", "text"):
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                keys = np.random.default_rng(0).permutation(size).astype(np.int64) * 7919
                write(str(Path(folder) / "left"), kind, keys, "a")
                write(str(Path(folder) / "right"), kind, keys[::-1], "b")
                with context.Pool(1) as pool:
                    print(json.dumps(pool.apply(case, (folder, kind))), flush=True)


if __name__ == "__main__":
    main([int(float(size)) for size in sys.argv[1:]] or [1_000_000, 4_000_000])
