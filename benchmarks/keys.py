"""Measure an index of many keys: time and memory to sort and store it, and to look into it.

    python benchmarks/keys.py 100000000

Hashes are made, not read from records, as the keys of 10,000 shards; so this is what the index itself costs.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.format import DEFAULT_LIMITS
from shardio.lifecycle import write_run
from shardio.metadata import ENTRY, KeyIndex, PartHead
from shardio.reader import read_key_run
from shardio.storage import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS = 10_000
LOOKUPS = 1000


def made(keys: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the entries of each shard."""
    random = np.random.default_rng(0)
    for shard in range(SHARDS):
        entries = np.empty((shard + 1) * keys // SHARDS - shard * keys // SHARDS, ENTRY)
        entries["hash"] = random.integers(0, 2**64, len(entries), np.uint64)
        entries["shard"], entries["row"] = shard, np.arange(len(entries))
        yield entries


def peak() -> int:
    """Return the most memory that this process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    """Print what it takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("keys", type=int, nargs="?", default=10_000_000)
    keys = parser.parse_args().keys
    folder = tempfile.mkdtemp(prefix="shardio-benchmark-")
    try:
        store = connect(folder)
        heads = np.random.default_rng(1).integers(0, 256, (SHARDS, 32), np.uint8)
        before, begun = peak(), time.perf_counter()
        ref, objects = write_run(
            store, made(keys), feature="id", kind="text", most_entries=keys,
            shards=np.arange(SHARDS), heads=heads, limits=DEFAULT_LIMITS,
        )  # fmt: skip
        seconds = time.perf_counter() - begun
        stored = sum(info.size for info in store.list(""))
        print(f"{keys:,} keys: {seconds:.0f} s, {keys / seconds / 1e6:.2f} million a second")
        print(f"memory: {before} MiB before, {peak()} MiB at most")
        print(f"stored: {stored / 1e6:,.0f} MB in {len(objects)} objects, {stored / keys:.2f} bytes a key")
        run = read_key_run(store, ref, KeyIndex("id", "text", (ref,)), DEFAULT_LIMITS)
        wanted = np.concatenate([part["hash"][:1] for part in made(keys)])[:LOOKUPS]
        begun, size, found = time.perf_counter(), 0, 0
        for one in wanted:
            part = run.parts[int(run.part_of(np.array([one]))[0])]
            with store.open(part.key) as file:
                head = PartHead.parse(bytes(file.read(0, part.head_bytes)), part)
                first, stop = (int(edge[0]) for edge in head.pages_of(np.array([one])))
                for page in range(first, stop):
                    start, end = head.bounds(page)
                    entries = head.parse_page(file.read(start, end), page)
                    found += int(np.count_nonzero(entries["hash"] == one))
                    size += end - start
        seconds = (time.perf_counter() - begun) / len(wanted)
        pages = f"{size / len(wanted) / 1024:.0f} KiB of pages"
        print(f"a lookup: {seconds * 1e6:.0f} us, {pages}; {found} found")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
