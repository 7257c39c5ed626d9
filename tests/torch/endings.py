"""A program that ends while a loader with worker processes is alive: `python endings.py URL METHOD`."""

from __future__ import annotations

import sys

import shardio
from shardio.torch import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    loader = StreamingDataLoader(
        StreamingDataset(shardio.open(sys.argv[1]), global_batch=4),
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context=sys.argv[2],
    )
    for _ in loader:
        pass
    under_way = iter(loader)
    print(len(next(under_way)["n"]))
