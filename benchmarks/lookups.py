"""Lookups on local disk: processor time and size on disk, by record size, compression and block size.

    python benchmarks/lookups.py [--megabytes 100] [--rounds 3]

Records of 300 bytes are words by Zipf's law, those of 8 KB are tokens (int32) by the same.  Each measurement
is a process of its own that has just begun, with the files in the page cache: positions at random, each once,
so that nearly every lookup is the first touch of its block.  Medians of interleaved rounds, in microseconds
of processor time a record: one at a time; 256 at once; one at a time from 0 on, where neighbours share a
block that is kept (`decoded_bytes`).
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

if TYPE_CHECKING:
    import numpy as np

LOOKUPS = 4096
SIZES = (300, 8192)
KINDS = {
    "none": {},
    "zstd, blocks of 64 KiB (default)": {"compression": "zstd"},
    "zstd, 16 KiB": {"compression": "zstd", "block_bytes": 16 << 10},
    "zstd, 4 KiB": {"compression": "zstd", "block_bytes": 4 << 10},
    "zstd, a block a record (block_bytes=1)": {"compression": "zstd", "block_bytes": 1},
}


def record_of(size: int, rng: np.random.Generator, words: list[bytes]) -> bytes:
    """Return one record."""
    import numpy as np

    if size > 1000:
        return (rng.zipf(1.3, size // 4) % 50_000).astype(np.int32).tobytes()
    return b" ".join(words[k] for k in rng.zipf(1.2, size // 4) % len(words))[:size]


def prepare(url: Path, size: int, megabytes: int, options: dict[str, object]) -> None:
    """Write a dataset; the records of one size are the same in each kind."""
    import numpy as np

    import shardio

    rng = np.random.default_rng(0)
    words = [bytes(rng.integers(97, 123, k, np.uint8)) for k in rng.integers(2, 9, 2000)]
    count = (megabytes << 20) // size
    made = [record_of(size, rng, words) for _ in range(min(count, 20_000))]
    with shardio.DatasetWriter(url, **options) as out:
        for number in rng.integers(0, len(made), count).tolist():
            out.write(made[number])


def measure(url: str, way: str) -> None:
    """Print microseconds of processor time a lookup, first touches included."""
    import numpy as np

    import shardio

    # Blocks that are kept would be those of earlier lookups: what is measured is one that finds none.
    ds = shardio.open(url, **({} if way == "in order" else {"decoded_bytes": 0}))
    rows = np.random.default_rng(1).permutation(len(ds))[: LOOKUPS + 1].tolist()
    ds[rows.pop()]
    begun = time.process_time()
    if way == "256 at once":
        for k in range(0, LOOKUPS, 256):
            ds.read(rows[k : k + 256])
    else:
        for row in rows if way == "single" else range(LOOKUPS):
            ds[row]
    print(json.dumps((time.process_time() - begun) / LOOKUPS * 1e6))


def main() -> None:
    """Measure all kinds in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return
    ways = ["single", "256 at once", "in order"]
    print("| compression | record, bytes | on disk | single | 256 at once | in order |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        cases = {(kind, size): Path(folder) / f"{k}-{size}" for k, kind in enumerate(KINDS) for size in SIZES}
        for (kind, size), url in cases.items():
            prepare(url, size, options.megabytes, KINDS[kind])
        found: dict[tuple[str, int, str], list[float]] = {}
        for _ in range(options.rounds):
            for (kind, size), url in cases.items():
                for way in ways:
                    command = [sys.executable, __file__, "--measure", str(url), way]
                    told = subprocess.run(command, check=True, capture_output=True, env=os.environ).stdout
                    found.setdefault((kind, size, way), []).append(json.loads(told))
        for (kind, size), url in cases.items():
            stored = sum(path.stat().st_size for path in url.rglob("*") if path.is_file())
            share = stored / (options.megabytes << 20)
            cells = [f"{statistics.median(found[kind, size, way]):.1f}" for way in ways]
            print(f"| {kind} | {size:,} | {share:.2f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
