"""Epochs of a shuffled stream from a bucket, against raw obstore, by CPU seconds and by throughput.

    python benchmarks/bucket_epochs.py [--megabytes 1024] [--rounds 3] [--record-bytes 8192] [--latency 0.0]

The first epoch reads indexes and takes memory; the second and the third are what a run of hours feels. Each
run is a process of its own, both contestants read from one server, rounds are interleaved, figures are
medians. Imports come before what is measured. Compare within one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

# Last: files beside this one have names that packages have, too.
sys.path.append(str(Path(__file__).parent))
import object_store
from range_server import counted, served

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCHS = 3


def measured(url: str, work: Callable[[], float]) -> dict[str, float]:
    """Return what a function takes, which returns the seconds to its first batch."""
    sent, begun, spent = counted(url), time.perf_counter(), object_store.cpu()
    first = work()
    seconds, cpu = time.perf_counter() - begun, object_store.cpu() - spent
    after = counted(url)
    return {
        "seconds": seconds,
        "cpu": cpu,
        "first": first,
        "requests": after[0] - sent[0],
        "sent": after[1] - sent[1],
    }


def run_shardio(url: str) -> list[dict[str, float]]:
    """Return the figures of each epoch of the default plan."""
    import shardio

    for name in ("obstore", "shardio.reader", "shardio.streaming"):
        __import__(name)
    begun = time.perf_counter()
    stream = None

    def epoch() -> float:
        nonlocal stream
        if stream is None:
            ds = object_store.open_shardio(url, "obstore")
            stream = shardio.stream(ds, global_batch=object_store.BATCH, seed=1)
        first = 0.0
        for batch in stream:
            first = first or time.perf_counter() - begun
            assert batch
        return first

    return [measured(url, epoch) for _ in range(EPOCHS)]


def run_raw(url: str) -> list[dict[str, float]]:
    """Return the figures of reading everything by raw obstore, in pieces of 2 MiB."""

    def whole() -> float:
        run = object_store.stream_raw_obstore(url)
        next(run)
        next(run)
        return 0.0

    __import__("obstore")
    return [measured(url, whole) for _ in range(EPOCHS)]


def one(name: str, url: str, folder: str) -> list[dict[str, float]]:
    """Run a contestant in a process of its own."""
    command = [sys.executable, "-P", "-W", "ignore", __file__, "--one", name, url]
    environment = {**os.environ, **object_store.KEYS, "BENCH_FOLDER": folder}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
    # What happens to a contestant at its exit, after its figures, is not measured.
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if not last.startswith("["):
        raise RuntimeError(f"{name}: exit {done.returncode}: {done.stderr[-300:]}")
    found: list[dict[str, float]] = json.loads(last)
    return found


def ratio(
    ours: list[list[dict[str, float]]], raw: list[list[dict[str, float]]], epochs: slice, name: str
) -> float:
    """Return the median over rounds of one figure of some epochs as a multiple of raw obstore's."""
    return statistics.median(
        statistics.mean(epoch[name] for epoch in own[epochs])
        / statistics.mean(each[name] for each in other[1:])
        for own, other in zip(ours, raw, strict=True)
    )


def main() -> None:
    """Prepare the data, run both by turns, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record-bytes", type=int, default=object_store.RECORD)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds, added to each reply")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, url = arguments.one
        print(json.dumps({"shardio": run_shardio, "raw": run_raw}[name](url)))
        return
    if arguments.record_bytes != object_store.RECORD:
        os.environ["BENCH_RECORD"] = str(arguments.record_bytes)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    with tempfile.TemporaryDirectory() as folder:
        object_store.prepare(Path(folder), arguments.megabytes * (1 << 20) // object_store.RECORD)
        ours, raw = [], []
        for _ in range(arguments.rounds):
            for name, found in (("shardio", ours), ("raw", raw)):
                with served(Path(folder), arguments.latency) as url:
                    found.append(one(name, url, folder))
    mebibytes = arguments.megabytes
    gigabytes = mebibytes * (1 << 20) / 1e9
    cpu = statistics.median(each["cpu"] for run in raw for each in run[1:]) / gigabytes
    print(
        f"{mebibytes} MiB, records of {object_store.RECORD} bytes, {arguments.latency * 1000:.0f} ms added, "
        f"load {os.getloadavg()[0]:.1f}; raw obstore {cpu:.2f} CPU s/GB\n"
    )
    print("| epochs | CPU, x raw obstore | throughput, of raw obstore | requests a MiB | bytes |")
    print("|---|---|---|---|---|")
    for title, epochs in (("1", slice(0, 1)), ("2 and 3", slice(1, None))):
        requests, sent = (
            statistics.median(statistics.mean(each[name] for each in run[epochs]) for run in ours)
            for name in ("requests", "sent")
        )
        cpu, seconds = (ratio(ours, raw, epochs, name) for name in ("cpu", "seconds"))
        print(
            f"| {title} | {cpu:.2f} | {1 / seconds:.2f} | {requests / mebibytes:.2f} "
            f"| {sent / mebibytes / (1 << 20):.3f} |"
        )
    print(f"\nfirst batch after {1000 * statistics.median(run[0]['first'] for run in ours):.0f} ms")


if __name__ == "__main__":
    main()
