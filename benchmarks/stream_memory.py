"""What a process holds and reads that streams local datasets under the default plan, by size of its records.

    python benchmarks/stream_memory.py

Each line is a process of its own, with two threads and batches of 256 records, over a dataset of plain
shards that is made for it.  "Held" is the most resident memory (`VmHWM`) less what the process has after
imports; what was wanted is 512 MiB and three batches.  Bytes that were read are those of the process's own
read calls (`rchar` of `/proc/self/io`), so what the page cache has counts, too, and what is looked at in
mapped indexes does not.  A start and a resume (in the middle of the epoch) are what as many steps read as it
takes to come through the windows that are open where they begin.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RECORDS = {"100 B": 100, "1 KB": 1000, "8 KB": 8192, "100 KB": 100_000, "1 MB": 1_000_000}
BATCH = 256


def read() -> int:
    """Return the bytes that this process has read."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def resident(what: str) -> int:
    """Return a figure of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(what)


def measure(url: str, what: str) -> dict[str, Any]:
    """Return what one pass, a start or a resume holds and reads."""
    import shardio

    ds = shardio.open(url)
    stream = shardio.stream(ds, global_batch=BATCH, seed=1)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before, begin = resident("VmRSS"), read()
    plan = stream.order.plans[0]
    # Every strand comes to its next chunk within so many steps.
    through = plan.chunk_rows * plan.lanes * plan.interleave // BATCH + 1
    steps = len(stream) if what == "pass" else min(through, len(stream) // 2)
    if what == "resume":
        stream.go_to(len(stream) // 2)
    batches = iter(stream)
    kept = [next(batches)]
    first = read() - begin
    for batch in itertools.islice(batches, steps - 1):
        kept = [*kept[-1:], batch]  # the one before, as a training loop may hold it
    done = read() - begin
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
    parser.add_argument("--child", nargs=2)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(measure(*chosen.child)))
        return
    import shardio

    print(
        "| records | held MiB | wanted at most | first batch reads, MB | its records | an epoch reads, times "
        "its size | a start reads, MB | a resume, in as many steps |\n" + "| --- " * 8 + "|"
    )
    for name, record in RECORDS.items():
        folder = tempfile.mkdtemp()
        try:
            url = f"{folder}/d"
            with shardio.DatasetWriter(url, shard_bytes=16 << 20) as out:
                for _ in range(chosen.bytes // record):
                    out.write(os.urandom(16) + bytes(record - 16))
            found = {}
            for what in ("pass", "start", "resume"):
                command = [sys.executable, __file__, "--child", url, what]
                found[what] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            whole, start, resume = found["pass"], found["start"], found["resume"]
            size = whole["stored"] * whole["steps"] * BATCH / whole["rows"]
            print(
                f"| {name} | {whole['held'] / 2**20:.0f} | {512 + 3 * BATCH * record / 2**20:.0f} "
                f"| {whole['first'] / 1e6:.1f} | {BATCH * record / 1e6:.1f} "
                f"| {whole['read'] / size:.2f} "
                f"| {start['read'] / 1e6:.0f} in {start['steps']} steps | {resume['read'] / 1e6:.0f} |",
                flush=True,
            )
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
