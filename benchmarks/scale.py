"""What datasets of up to 10^10 records and jobs of up to 16,384 ranks cost, and the figure of docs/sizes.md.

    python benchmarks/scale.py [--shards 100 10000 1000000] [--ranks 1 8 64 512 4096 16384]
                               [--commits 100 1000 10000] [--plot FILE.svg]

Lists of shards and manifests are real, of shards with 10,000 records of about 1,000 bytes; the shards
themselves are not there.  Each line is a process of its own.  Seconds are those of its processor.  Requests,
bytes are those of `shardio plan` for a dataset in a bucket.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 10_000
SHARDS = [100, 10_000, 1_000_000]
COMMITS = [100, 1000, 10_000]
RANKS = [1, 8, 64, 512, 4096, 16_384]
# Requests a second for each prefix, as Amazon documents them for S3 and Google for a bucket of Cloud Storage
# that has not scaled up yet.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
# https://cloud.google.com/storage/docs/request-rate
LIMITS = {"S3": 5500, "GCS": 5000}


def table(shards: int) -> Any:
    """Return shards as a job of many tasks writes them, a thousand each."""
    from shardio.metadata import ShardTable, naming

    rng = np.random.default_rng(0)
    session = naming.session_id("run7")
    attempts = [naming.random_attempt() for _ in range(-(-shards // 1000))]
    keys = [
        naming.DataKey("train", session, k // 1000, attempts[k // 1000], k % 1000).key()
        for k in range(shards)
    ]
    size = 1016 * ROWS + rng.integers(0, 1 << 16, shards)
    rows, none = np.full(shards, ROWS), np.zeros(shards, np.int64)
    columns = {
        "split": ["train"] * shards, "key": keys, "index_key": [""] * shards, "etag": [""] * shards,
        "deletion_key": [""] * shards, "table_key": [""] * shards, "root": none, "framing": none + 1,
        "compression": none + 1, "stored_bytes": size, "decoded_bytes": size, "rows": rows,
        "deleted_rows": none, "blocks": none + 10, "crc32c": rng.integers(1 << 32, size=shards),
        "schema": none,
        "index_head_bytes": none + 700, "table_bytes": none,
        "uuid": rng.integers(0, 256, (shards, 16), np.uint8),
        "index_head_sha256": rng.integers(0, 256, (shards, 32), np.uint8),
        "deletion_sha256": np.zeros((shards, 32), np.uint8), "table_sha256": np.zeros((shards, 32), np.uint8),
    }  # fmt: skip
    return ShardTable.from_columns(columns)


def commit(url: str, shards: Any, session: str) -> None:
    """Commit shards, as a job array does."""
    from shardio.catalog import Catalog, commit_receipts
    from shardio.metadata import Receipt, SplitReceipt
    from shardio.storage import connect

    catalog = Catalog(connect(url))
    base = catalog.latest()
    receipt = Receipt(
        session=session, task=0, attempt="0" * 16, complete=True, table=shards,
        splits={"train": SplitReceipt(shards.sum("rows"), 0)}, schema=None, metadata={}, mode="append",
        base_version=base.number if base else 0,
    )  # fmt: skip
    commit_receipts(catalog, [receipt], mode="append")


def memory() -> dict[str, float]:
    """Return the memory of this process in MB: now, and at most since it was last asked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {
        line.split()[0][:-1]: int(line.split()[1]) / 1024
        for line in lines
        if "VmHWM" in line or "VmRSS" in line
    }
    Path("/proc/self/clear_refs").write_text("5")
    return found


def opened(url: str, _: int) -> dict[str, float]:
    """Measure an open, and the commit of one more shard; what is imported only once is imported before."""
    import shardio

    small = f"{url}-small"
    commit(small, table(3), "first")
    shardio.open(small)
    before, begin = memory(), time.process_time()
    ds = shardio.open(url)
    seconds, after = time.process_time() - begin, memory()
    more = table(3).take([1])
    begin = time.process_time()
    commit(url, more.with_columns(key=[f"data/more-{time.time_ns()}.tfrecord"]), f"more-{time.time_ns()}")
    return {
        "records": len(ds), "open_s": seconds, "open_mb": after["VmRSS"] - before["VmRSS"],
        "peak_mb": after["VmHWM"] - before["VmRSS"], "commit_s": time.process_time() - begin,
    }  # fmt: skip


def grown(url: str, commits: int) -> dict[str, float]:
    """Measure a dataset after so many appends of one shard: medians of nine appends, and of what reads it."""
    import shardio
    from shardio.catalog import Catalog
    from shardio.metadata import naming
    from shardio.storage import connect

    shard = table(3).take([1])

    def append() -> None:
        commit(url, shard.with_columns(key=[f"data/{time.time_ns()}.tfrecord"]), naming.random_session())

    latest = Catalog(connect(url)).latest()
    for _ in range(commits - (latest.number if latest else 0)):
        append()

    def seconds(deed: Any) -> float:
        times = []
        for _ in range(9):
            begin = time.process_time()
            deed()
            times.append(time.process_time() - begin)
        return sorted(times)[4]

    found = {"append_s": seconds(append), "open_s": seconds(lambda: shardio.open(url))}
    found |= {"log_s": seconds(lambda: shardio.log(url, 10)), "gc_s": seconds(lambda: shardio.gc(url))}
    kept = f"{url}-kept-{commits}"
    shutil.copytree(url, kept)
    shardio.gc(kept, keep=10, dry_run=False)
    return {**found, "next_gc_s": seconds(lambda: shardio.gc(kept))}


def planned(shards: int, ranks: int) -> dict[str, float]:
    """Return what `shardio plan` says of a job that reads from a bucket, and how long it took."""
    import shardio

    commit("memory://scale", table(shards), "all")
    ds = shardio.open("memory://scale")
    begin = time.process_time()
    figures, _ = shardio.plan_report(ds, global_batch=max(256, 16 * ranks), world_size=ranks)
    return {"plan_s": time.process_time() - begin, **dataclasses.asdict(figures)}


def child(*arguments: object) -> dict[str, float]:
    """Return what a process of its own measures."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, nargs="+", default=SHARDS)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--commits", type=int, nargs="+", default=COMMITS)
    parser.add_argument("--plot", help="file for the chart of seconds and memory of an open")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        what, one, two = given.child
        measure = {"open": opened, "grow": grown}.get(what)
        print(json.dumps(measure(one, int(two)) if measure else planned(int(one), int(two))))
        return
    opens = []
    print("| shards | records | open, s | MB after it | MB at most | commit of one more, s |\n|" + "---|" * 6)
    for shards in given.shards:
        with tempfile.TemporaryDirectory() as folder:
            url = f"{folder}/ds"
            commit(url, table(shards), "all")
            found = child("open", url, 0)
        opens.append((shards, found))
        print(
            f"| {shards:,} | {found['records']:,} | {found['open_s']:.2f} | {found['open_mb']:.0f} "
            f"| {found['peak_mb']:.0f} | {found['commit_s']:.3f} |",
            flush=True,
        )
    head = (
        "| commits | append, ms | open, ms | log -n 10, ms | gc dry run, s | the same after gc --keep 10, s |"
    )
    print(f"\n{head}\n|" + "---|" * 6)
    with tempfile.TemporaryDirectory() as folder:
        for commits in sorted(given.commits):
            found = child("grow", f"{folder}/ds", commits)
            shown = " | ".join(f"{1000 * found[key]:.1f}" for key in ("append_s", "open_s", "log_s"))
            collections = f"{found['gc_s']:.2f} | {found['next_gc_s']:.2f}"
            print(f"| {commits:,} | {shown} | {collections} |", flush=True)
    print(
        "\n| shards | ranks | plan, s | requests an epoch | MB of a rank "
        "| S3 at least | GCS at least |\n|" + "---|" * 7
    )
    for shards in given.shards:
        for ranks in given.ranks:
            found = child("plan", shards, ranks)
            # As many small requests go to the indexes.
            least = [f"{2 * found['requests'] / limit:,.0f} s" for limit in LIMITS.values()]
            print(
                f"| {shards:,} | {ranks:,} | {found['plan_s']:.2f} | {found['requests']:,} "
                f"| {found['memory_bytes'] / 1e6:,.0f} | {' | '.join(least)} |",
                flush=True,
            )
    if given.plot:
        plot(opens, given.plot)


def plot(opens: list[tuple[int, dict[str, float]]], path: str) -> None:
    """Draw seconds and memory of an open against the number of shards."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "shardio"
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    shards = [each for each, _ in opens]
    for axis, key, label in zip(
        figure.subplots(1, 2), ("open_s", "peak_mb"), ("open, seconds", "open, MB at most"), strict=True
    ):
        axis.plot(shards, [found[key] for _, found in opens], marker="o")
        axis.set(xscale="log", yscale="log", xlabel="shards", ylabel=label)
        axis.grid(visible=True, alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
