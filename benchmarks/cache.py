"""What the cache of blocks costs: storing and finding runs, in processor time per gigabyte.

    python benchmarks/cache.py [--folder /nvme/scratch] [--runs 1 4 16 64]

Beside it is what a plain copy of the same bytes costs, written to and read from one file a run, without
checksums and names.  Medians of interleaved rounds; the folder's page cache is warm.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shardio.storage import BlockCache, CacheOptions

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 64 << 10
BYTES = 128 << 20


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(function: Callable[[], object]) -> tuple[float, float]:
    """Return wall and processor seconds of a call."""
    wall, own = time.perf_counter(), cpu()
    function()
    return time.perf_counter() - wall, cpu() - own


def name(number: int) -> str:
    return f"0123456789abcdef0123456789abcdef/block-{number}/crc-89abcdef"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 4, 16, 64], help="blocks of 64 KiB a run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    data = os.urandom(BYTES)
    print(f"{'':28s}" + "".join(f"{run * BLOCK >> 10:>9,} KiB" for run in options.runs))
    rows: dict[str, list[str]] = {}
    for run in options.runs:
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                measure(Path(folder), memoryview(data), run, found)
        for what, times in found.items():
            wall, own = (statistics.median(column) / BYTES * 1e9 for column in zip(*times, strict=True))
            rows.setdefault(what, []).append(f"{own:6.2f}/{wall:5.2f}")
    for what, cells in rows.items():
        print(f"{what:28s}" + "".join(f"{cell:>13s}" for cell in cells))
    print("processor seconds / seconds per GB")


def measure(folder: Path, data: memoryview, run: int, found: dict[str, list[tuple[float, float]]]) -> None:
    count = BYTES // BLOCK
    blocks = [data[place : place + BLOCK] for place in range(0, BYTES, BLOCK)]
    cache = BlockCache(CacheOptions(folder / "cache", max_bytes=16 * BYTES))

    def keep() -> None:
        for first in range(0, count, run):
            cache.keep(name, first, blocks[first : first + run])

    def find() -> None:
        for first in range(0, count, run):
            (piece,) = cache.find(name, first, first + run)
            assert len(piece.data) == run * BLOCK

    def absent() -> None:
        for first in range(count, 2 * count, run):
            assert cache.find(name, first, first + run) == []

    def write() -> None:
        for first in range(0, count, run):
            (folder / f"plain-{first}").write_bytes(data[first * BLOCK : (first + run) * BLOCK])

    def read() -> None:
        for first in range(0, count, run):
            (folder / f"plain-{first}").read_bytes()

    for what, function in {"store": keep, "find": find, "find nothing": absent, "plain write": write}.items():
        found.setdefault(what, []).append(timed(function))
    found.setdefault("plain read", []).append(timed(read))
    shutil.rmtree(folder / "cache")


if __name__ == "__main__":
    main()
