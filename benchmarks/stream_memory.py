"""What a process holds and reads that streams under the default plan, by size of its records.

    python benchmarks/stream_memory.py [--stores local bucket] [--threads 2 0] [--ahead MIB]

Each line is a process of its own, with batches of 256 records, over a dataset of plain shards that is made
for it, on local disk or behind `range_server.py`.  "Held" is the most resident memory (`VmHWM`) less what the
process has after imports; what was wanted is 512 MiB and three batches.  Bytes that were read are of local
shards those of the process's own read calls (`rchar` of `/proc/self/io`), so what the page cache has counts,
too, and what is looked at in mapped indexes does not; from a bucket those that the server sent, indexes too.
A start and a resume (in the middle of the epoch) are what as many steps read as it takes to come through the
windows that are open where they begin.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from range_server import counted, open_dataset, served

RECORDS = {"100 B": 100, "1 KB": 1000, "8 KB": 8192, "100 KB": 100_000, "1 MB": 1_000_000}
BATCH = 256


def read(url: str) -> int:
    """Return the bytes that this process has read, or that the server has sent."""
    if url.startswith("http"):
        return counted(url)[1]
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def resident(what: str) -> int:
    """Return a figure of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(what)


def measure(url: str, what: str, threads: int, ahead: int) -> dict[str, Any]:
    """Return what one pass, a start or a resume holds and reads."""
    import shardio

    ds = open_dataset(url)
    stream = shardio.stream(
        ds, global_batch=BATCH, seed=1, num_threads=threads, ahead_bytes=ahead << 20 or None
    )
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before, begin = resident("VmRSS"), read(url)
    plan = stream.order.plans[0]
    # Every strand comes to its next chunk within so many steps.
    through = plan.chunk_rows * plan.lanes * plan.interleave // BATCH + 1
    steps = len(stream) if what == "pass" else min(through, len(stream) // 2)
    if what == "resume":
        stream.go_to(len(stream) // 2)
    batches = iter(stream)
    kept = [next(batches)]
    first = read(url) - begin
    for batch in itertools.islice(batches, steps - 1):
        kept = [*kept[-1:], batch]  # the one before, as a training loop may hold it
    done = read(url) - begin
    batches.close()
    return {
        "first": first,
        "read": done,
        "steps": steps,
        "held": resident("VmHWM") - before,
        "rows": len(ds),
        "stored": int(ds.source.table.stored_bytes.sum()),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=1_200_000_000, help="of each dataset")
    parser.add_argument("--records", nargs="+", choices=list(RECORDS), default=list(RECORDS))
    parser.add_argument(
        "--stores",
        nargs="+",
        choices=["local", "bucket"],
        default=["local", "bucket"],
        help="where shards are",
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 0])
    parser.add_argument("--ahead", type=int, default=0, help="MiB; the stream's own by default")
    parser.add_argument("--folder", help="where the data goes; a temporary folder by default")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        url, what, threads, ahead = chosen.child
        print(json.dumps(measure(url, what, int(threads), int(ahead))))
        return
    print(
        "| records | shards | threads | held MiB | wanted at most | first batch reads, MB | its records "
        "| an epoch reads, times its size | a start reads, MB | a resume, in as many steps |\n"
        + "| --- " * 10
        + "|"
    )
    for name in chosen.records:
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            write(Path(folder), RECORDS[name], chosen.bytes)
            with served(Path(folder)) as bucket:
                urls = {"local": f"{folder}/bench/ds", "bucket": bucket}
                for store, threads in itertools.product(chosen.stores, chosen.threads):
                    cells = line(urls[store], RECORDS[name], threads, chosen.ahead)
                    print("| " + " | ".join([name, store, str(threads), *cells]) + " |", flush=True)


def write(folder: Path, record: int, count: int) -> None:
    """Write so many bytes of records."""
    import shardio

    with shardio.DatasetWriter(folder / "bench" / "ds", shard_bytes=16 << 20) as out:
        for _ in range(count // record):
            out.write(os.urandom(16) + bytes(record - 16))


def line(url: str, record: int, threads: int, ahead: int) -> list[str]:
    """Return the cells of one line: a pass, a start and a resume, each in a process of its own."""
    found = {}
    for what in ("pass", "start", "resume"):
        command = [sys.executable, __file__, "--child", url, what, str(threads), str(ahead)]
        found[what] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    whole, start, resume = found["pass"], found["start"], found["resume"]
    size = whole["stored"] * whole["steps"] * BATCH / whole["rows"]
    return [
        f"{whole['held'] / 2**20:.0f}",
        f"{512 + 3 * BATCH * record / 2**20:.0f}",
        f"{whole['first'] / 1e6:.1f}",
        f"{BATCH * record / 1e6:.1f}",
        f"{whole['read'] / size:.2f}",
        f"{start['read'] / 1e6:.0f} in {start['steps']} steps",
        f"{resume['read'] / 1e6:.0f}",
    ]


if __name__ == "__main__":
    main()
