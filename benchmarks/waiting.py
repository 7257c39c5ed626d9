"""How long a training loop waits in `next()`, with a step as on a GPU and one in pure Python.

    python benchmarks/waiting.py

A step "on a GPU" leaves the processor alone for as long as it takes; one "in Python" holds the interpreter's
lock all the while. The ways of loading take turns, so that other work on the machine falls on all of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import TYPE_CHECKING

import numpy as np

import shardio

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, BATCH = 60_000, 256


def on_gpu(seconds: float) -> None:
    """Wait, as for an accelerator."""
    time.sleep(seconds)


def in_python(seconds: float) -> None:
    """Hold the interpreter's lock for most of the time."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(200))


def waits(url: str, threads: int, step: Callable[[float], None], seconds: float, steps: int) -> list[float]:
    """Return how long each `next()` took but the first few, in milliseconds."""
    stream = shardio.stream(shardio.open(url), global_batch=BATCH, num_threads=threads)
    out = []
    batches = iter(stream)
    for _ in range(steps):
        start = time.perf_counter()
        next(batches)
        out.append((time.perf_counter() - start) * 1e3)
        step(seconds)
    batches.close()
    return out[5:]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    ways = {"no threads": 0, "1 thread": 1, "2 threads": 2, "4 threads": 4}
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/d"
        rng = np.random.default_rng(0)
        with shardio.DatasetWriter(
            url, schema={"x": "uint8[4096]", "label": "int64"}, compression="zstd"
        ) as out:
            for n in range(ROWS):
                out.write({"x": rng.integers(0, 16, 4096, np.uint8), "label": n})
        print(
            f"{ROWS:,} records of 4 KiB, zstd; batches of {BATCH}; steps of {given.step_ms:g} ms; ms waited"
        )
        print("| step | way | median | mean | 90 % | longest |")
        print("| --- | --- | --- | --- | --- | --- |")
        for name, step in (("on a GPU", on_gpu), ("in Python", in_python)):
            found: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(given.rounds):
                for way, threads in ways.items():
                    found[way] += waits(url, threads, step, given.step_ms / 1e3, given.steps)
            for way, took in found.items():
                tenth = statistics.quantiles(took, n=10)[-1]
                print(
                    f"| {name} | {way} | {statistics.median(took):.2f} | {statistics.mean(took):.2f} | "
                    f"{tenth:.2f} | {max(took):.1f} |"
                )


if __name__ == "__main__":
    main()
