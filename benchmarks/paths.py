"""Every way to read a record: processor time a record, of one checkout or of two in turn.

    python benchmarks/paths.py [--against FOLDER] [--rounds 5] [--only "zstd 8192"] [--size 8192 ...]

Each line is one path: how shards are compressed, bytes of a record, where they are (mapped, local and not
mapped, in a bucket of this process), and the way that they are read.  With `--against` the same is measured
with another checkout's shardio, whose kernels are compiled, in a process of its own; the two take turns, and
the last column is this one's median divided by the other's.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ("none", "zstd", "gzip")
SIZES = (300, 8192)
PLACES = ("mapped", "read", "bucket")
MEGABYTES = 12
LOOKUPS = 1024


def prepare(url: str, kind: str, size: int) -> None:
    """Write a dataset of two shards; it is the same wherever it is written."""
    import numpy as np

    import shardio

    rng = np.random.default_rng(0)
    schema = {"tokens": f"int32[{size // 4}]", "n": "int64"}
    compression = None if kind == "none" else kind
    with shardio.DatasetWriter(url, schema=schema, compression=compression, shard_bytes=8 << 20) as out:
        for n in range((MEGABYTES << 20) // size):
            out.write({"tokens": (rng.zipf(1.3, size // 4) % 50_000).astype(np.int32), "n": n})


def consume(items: Any) -> None:
    """Take all items, and keep none."""
    deque(items, maxlen=0)


def one(url: str, options: dict[str, Any]) -> tuple[Callable[[], object], int]:
    """Lookups of one record each, at random: nearly each of them the first touch of its block."""
    ds, rows = _rows(url, options)
    return lambda: [ds[row] for row in rows], len(rows)


def neighbours(url: str, options: dict[str, Any]) -> tuple[Callable[[], object], int]:
    """Lookups of one record each, in order: decoded blocks are kept."""
    import shardio

    ds = shardio.open(url, decode=False, **options)
    return lambda: [ds[row] for row in range(LOOKUPS)], LOOKUPS


def many(url: str, options: dict[str, Any]) -> tuple[Callable[[], object], int]:
    """Lookups of 256 records each, at random."""
    ds, rows = _rows(url, options)
    return lambda: [ds.read(rows[k : k + 256]) for k in range(0, len(rows), 256)], len(rows)


def columns(url: str, options: dict[str, Any]) -> tuple[Callable[[], object], int]:
    """Batches of 256 records in order, as columns."""
    import shardio

    ds = shardio.open(url, **options)
    return lambda: consume(ds.iter_batches(256)), len(ds)


def in_order(url: str, options: dict[str, Any]) -> tuple[Callable[[], object], int]:
    """All records in order, as bytes."""
    import shardio

    ds = shardio.open(url, decode=False, **options)
    return lambda: consume(ds), len(ds)


def skipping(url: str, options: dict[str, Any]) -> tuple[Callable[[], object], int]:
    """All records in order, by a reader that would skip damage."""
    return in_order(url, {**options, "on_error": "skip"})


def window(url: str, options: dict[str, Any]) -> tuple[Callable[[], object], int]:
    """An epoch of a shuffled stream."""
    import shardio

    ds = shardio.open(url, decode=False, **options)
    return lambda: consume(shardio.stream(ds, global_batch=64, seed=0)), len(ds)


def verify(url: str, options: dict[str, Any]) -> tuple[Callable[[], object], int]:
    """All that `shardio verify` compares."""
    import shardio

    del options
    return lambda: shardio.verify(url), (MEGABYTES << 20) // int(url.rpartition("-")[2])


def _rows(url: str, options: dict[str, Any]) -> tuple[Any, list[int]]:
    import numpy as np

    import shardio

    # Kept blocks would be those of earlier lookups.
    ds = shardio.open(url, decode=False, decoded_bytes=0, **options)
    return ds, np.random.default_rng(1).permutation(len(ds))[:LOOKUPS].tolist()


WAYS = {each.__name__: each for each in (one, neighbours, many, in_order, columns, skipping, window, verify)}


def serve(folder: str) -> None:
    """Measure the paths that are asked for by lines on the standard input."""
    import shardio

    sys.stdout.write(f"{Path(shardio.__file__).parents[1]}\n")
    made: set[str] = set()
    for line in sys.stdin:
        kind, size, place, way = line.split()
        name = f"{kind}-{size}"
        url = f"memory://paths/{name}" if place == "bucket" else f"{folder}/{name}"
        if place == "bucket" and url not in made:
            prepare(url, kind, int(size))
            made.add(url)
        call, rows = WAYS[way](url, {"mmap": False} if place == "read" else {})
        gc.collect()
        begun = time.process_time()
        call()
        sys.stdout.write(json.dumps((time.process_time() - begun) / rows * 1e6) + "\n")
        sys.stdout.flush()


class Child:
    """A process that measures with the shardio of one checkout."""

    def __init__(self, checkout: Path, folder: str) -> None:
        # The checkout goes before what is installed.
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        command = [sys.executable, __file__, "--serve", folder]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        found = self._line()
        if Path(found) != checkout:
            raise SystemExit(f"{checkout} was to be measured, and {found} is imported")

    def measure(self, path: tuple[Any, ...]) -> float:
        """Return microseconds of processor time a record."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, path)) + "\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit("a process that measures has ended")
        return line


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="paths whose names hold all of these words")
    parser.add_argument("--size", type=int, nargs="*", default=SIZES)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    here = Path(__file__).resolve().parents[1]
    checkouts = [here, *([] if given.against is None else [given.against.resolve()])]
    paths = [
        path
        for path in itertools.product(KINDS, given.size, PLACES, WAYS)
        if all(word in map(str, path) for word in given.only.split()) and path[2:] != ("read", "verify")
    ]
    with tempfile.TemporaryDirectory() as folder:
        for kind, size in dict.fromkeys(path[:2] for path in paths):
            prepare(f"{folder}/{kind}-{size}", kind, size)
        children = [Child(checkout, folder) for checkout in checkouts]
        for path in paths:
            found = [[child.measure(path) for child in children] for _ in range(given.rounds)]
            medians = [statistics.median(each) for each in zip(*found, strict=True)]
            times = "".join(f"{median:10.2f}" for median in medians)
            ratio = f"{medians[0] / medians[1]:8.3f}" if len(medians) > 1 else ""
            print(f"{'  '.join(f'{part!s:<10}' for part in path)}{times}{ratio}", flush=True)


if __name__ == "__main__":
    main()
