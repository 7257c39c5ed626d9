"""Which share of a stream's time the interpreter's lock is held, by the size of records and their source.

    python benchmarks/lock_share.py [--py-spy PATH] [--seconds 6] [--sizes 1024 8192 102400]

That share is the ceiling of what one process can use of a large machine: what holds the lock does not run
beside itself. py-spy (`pip install py-spy`, Linux, may need root) looks 500 times a second from outside:
some seconds for whether a thread holds the lock, as many for whether threads are at work. The quotient is
printed, so that other work on the machine, which stretches both, falls out; without threads, for there both
are of the same thread. The stream runs freely in a process of its own, over 512 MB in batches of 64, by its
default plan. "Bucket" is obstore against `range_server.py` in another process.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from range_server import open_dataset, served

import shardio

TOTAL = 512 << 20
RATE = 500


def write(folder: Path, size: int) -> None:
    """Write rows of int32 that have `size` bytes."""
    rows = np.random.default_rng(0).integers(0, 1 << 15, (64, size // 4), dtype=np.int32)
    schema = {"x": f"int32[{size // 4}]"}
    with shardio.DatasetWriter(folder / "ds", schema=schema, encoding="array", shard_bytes=64 << 20) as out:
        for number in range(TOTAL // size):
            out.write({"x": rows[number % 64]})


def stream(url: str, seconds: float, threads: int) -> None:
    """Stream, say when it has begun, then what was read in the time given."""
    ds = open_dataset(url)
    batches = shardio.stream(ds, global_batch=64, seed=0, num_threads=threads)
    rows, taken = 0, iter(batches)
    next(taken)
    print("begun", flush=True)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for batch in taken:
            rows += len(batch["x"])
            if time.perf_counter() - began >= seconds:
                break
        else:
            taken = iter(batches)
    print(rows / (time.perf_counter() - began), flush=True)


def share(py_spy: str, url: str, seconds: int, threads: int) -> tuple[float, float]:
    """Return the share of working time with the lock held, and rows a second."""
    command = [sys.executable, __file__, "--one", url, str(2 * seconds + 3), str(threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        held = looks(py_spy, child.pid, seconds, "--gil")
        active = looks(py_spy, child.pid, seconds)
        rate = float(child.stdout.readline())
    return held / active, rate


def looks(py_spy: str, number: int, seconds: int, *options: str) -> int:
    """Return how often py-spy found a thread at work, or with `--gil` one that held the lock."""
    with tempfile.NamedTemporaryFile() as file:
        command = [
            py_spy, "record", "--rate", str(RATE), "--duration", str(seconds), "--format", "raw",
            "--nonblocking", "--pid", str(number), "--output", file.name, *options,
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        return sum(int(line.rsplit(" ", 1)[1]) for line in Path(file.name).read_text().splitlines())


def main() -> None:
    """Measure each source and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--py-spy", default=shutil.which("py-spy") or "py-spy")
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1024, 8192, 102_400])
    parser.add_argument("--threads", type=int, nargs="*", default=[0])
    parser.add_argument("--folder", help="where the data goes; a temporary folder by default")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        url, seconds, threads = arguments.one
        stream(url, float(seconds), int(threads))
        return
    print("| record | source | threads | lock held | MB/s |\n|---|---|---|---|---|")
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            folder = Path(name)
            write(folder / "bench", size)
            with served(folder) as bucket:
                for source, url in (("local", str(folder / "bench" / "ds")), ("bucket", bucket)):
                    for threads in arguments.threads:
                        held, rate = share(arguments.py_spy, url, arguments.seconds, threads)
                        line = (
                            f"| {size:,} B | {source} | {threads} | {held:.0%} | {rate * size / 1e6:,.0f} |"
                        )
                        print(line, flush=True)


if __name__ == "__main__":
    main()
