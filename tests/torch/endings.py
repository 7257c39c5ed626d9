"""A program that ends while a loader with threads or worker processes is alive: `endings.py URL METHOD`."""

from __future__ import annotations

import sys

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    how = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": sys.argv[2]}
    loader = StreamingDataLoader(
        StreamingDataset(shardio.open(sys.argv[1]), global_batch=4),
        **({"num_threads": 2} if sys.argv[2] == "threads" else how),
    )
    for _ in loader:
        pass
    under_way = iter(loader)
    print(len(next(under_way)["n"]))
