"""This tree against another commit of it: opening, lookups, iteration, streams and writing.

    git worktree add /tmp/then COMMIT
    (cd /tmp/then && python setup.py -q build_ext --inplace)
    python benchmarks/against.py /tmp/then --rounds 7

Each tree reads what it wrote itself. Each figure is processor time in microseconds, from a process of its own
that has just begun, in interleaved rounds: the least of all rounds, their ratio, and the median of the ratios
within a round. The least moves least where the machine has other work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parents[1]
SCHEMA = {"id": "int64", "values": "float32[64]", "text": "text"}
COUNTS = {"small": 200_000, "tokens": 5_000, "examples": 20_000}


def records(kind: str) -> list[Any]:
    """Values of a kind, the same in each process."""
    import numpy as np

    rng = np.random.default_rng(0)
    count = COUNTS[kind]
    if kind == "examples":
        values = rng.standard_normal((count, 64), np.float32)
        return [{"id": n, "values": values[n], "text": f"record number {n}"} for n in range(count)]
    if kind == "tokens":
        return [row.tobytes() for row in rng.integers(0, 50_000, (count, 2048), dtype=np.int32)]
    noise = rng.bytes(1 << 20)
    sizes, starts = rng.integers(100, 500, count), rng.integers(0, 1 << 19, count)
    return [noise[a : a + n] for a, n in zip(starts.tolist(), sizes.tolist(), strict=True)]


def write(url: Path, kind: str) -> float:
    """The time of writing one record."""
    from shardio import DatasetWriter

    values, options = records(kind), {"compression": "zstd", "schema": SCHEMA} if kind == "examples" else {}
    began = time.process_time()
    with DatasetWriter(url, **options) as out:
        for value in values:
            out.write(value)
    return (time.process_time() - began) / len(values)


def opening(url: Path) -> float:
    """Opening and the first record, in a process that has done so before."""
    import shardio

    for _ in range(20):
        shardio.open(url)[0]
    began = time.process_time()
    for _ in range(300):
        shardio.open(url)[0]
    return (time.process_time() - began) / 300


def opening_at_first(url: Path) -> float:
    """Opening and the first record of a process, with all that is imported for it."""
    began = time.process_time()
    import shardio

    shardio.open(url)[0]
    return time.process_time() - began


def lookups(url: Path, by: int) -> float:
    """A record at random, read alone or with others."""
    import numpy as np

    import shardio

    ds = shardio.open(url)
    rows = np.random.default_rng(1).integers(0, len(ds), 51_200).tolist()
    ds[0]
    began = time.process_time()
    if by == 1:
        for row in rows:
            ds[row]
    else:
        for start in range(0, len(rows), by):
            ds.read(rows[start : start + by])
    return (time.process_time() - began) / len(rows)


def iteration(url: Path) -> float:
    """A record of three passes in storage order."""
    import shardio

    ds = shardio.open(url)
    began = time.process_time()
    for _ in range(3):
        for _ in ds:
            pass
    return (time.process_time() - began) / 3 / len(ds)


def streams(url: Path) -> float:
    """A record of three shuffled epochs, in batches of 256, without threads."""
    import shardio

    ds, stream = shardio.open(url), shardio.stream  # loaded when they are named
    began, count = time.process_time(), 0
    for epoch in range(3):
        for _ in stream(ds, global_batch=256, seed=0, epoch=epoch):
            count += 256
    return (time.process_time() - began) / count


CASES: dict[str, tuple[str, Callable[[Path], float]]] = {
    "import, open and first record": ("examples", opening_at_first),
    "open and first record": ("examples", opening),
    "lookup, 300 B": ("small", lambda url: lookups(url, 1)),
    "lookup, 8 KB": ("tokens", lambda url: lookups(url, 1)),
    "lookup by 256, 300 B": ("small", lambda url: lookups(url, 256)),
    "lookup, zstd Examples": ("examples", lambda url: lookups(url, 1)),
    "iteration, 300 B": ("small", iteration),
    "iteration, zstd Examples": ("examples", iteration),
    "stream, 300 B": ("small", streams),
    "stream, 8 KB": ("tokens", streams),
    "stream, zstd Examples": ("examples", streams),
    "write, 300 B": ("small", lambda url: write(url.with_name(f"{url.name}-{os.getpid()}"), "small")),
    "write, zstd Examples": (
        "examples",
        lambda url: write(url.with_name(f"{url.name}-{os.getpid()}"), "examples"),
    ),
}


def measured(tree: Path, root: Path, *what: str) -> float:
    """One figure, from a process of its own that imports shardio from that tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, __file__, str(tree), "--root", str(root), "--one", *what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout)


def one(tree: Path, root: Path, what: str) -> float:
    """One figure in this process; or the data for others, written."""
    import shardio

    if not Path(shardio.__file__).is_relative_to(tree):
        sys.exit(f"shardio comes from {shardio.__file__}, not from {tree}")
    if what in COUNTS:
        return write(root / what, what)
    kind, measure = CASES[what]
    return measure(root / kind)


def main() -> None:
    """Measure both trees in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("then", type=Path, help="a work tree of the other commit, with its compiled kernels")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(one(options.then, options.root, options.one))
        return
    trees = [options.then.resolve(), HERE]
    with tempfile.TemporaryDirectory() as folder:
        roots = [Path(folder, name) for name in ("then", "now")]
        for tree, root in zip(trees, roots, strict=True):
            root.mkdir()
            for kind in COUNTS:
                measured(tree, root, kind)
        print("| case | then, us | now, us | ratio | median ratio |\n|---|---|---|---|---|")
        for case in CASES:
            if options.only not in case:
                continue
            rounds = [
                [measured(tree, root, case) * 1e6 for tree, root in zip(trees, roots, strict=True)]
                for _ in range(options.rounds)
            ]
            then, now = (min(column) for column in zip(*rounds, strict=True))
            median = statistics.median(b / a for a, b in rounds)
            print(f"| {case} | {then:.3g} | {now:.3g} | {now / then:.2f} | {median:.2f} |", flush=True)


if __name__ == "__main__":
    main()
