"""Write the orders of other systems, by their own code; `order_plans.py --peers` runs it.

    python benchmarks/order_peers.py mosaicml|webdataset|tf.data ROWS SHARDS BATCH RANKS FIRST STEPS OUT.npy

It needs `mosaicml-streaming`, `webdataset` or `tensorflow-cpu`.  Records are numbers in shards of equal
size; what the systems do with shards, lanes and buffers is theirs, by the defaults of their pages.  OUT is
int64 [steps, batch], the global batches of FIRST and the following steps, ranks one after another.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import sys
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WORKERS = 8  # of a DataLoader, where there is one


def mosaicml(edges: np.ndarray, batch: int, ranks: int, first: int, steps: int) -> np.ndarray:
    """Return the batches of a StreamingDataset and its DataLoader, up to eight ranks a node."""
    # Its package imports clients of all clouds and more, of which these two need nothing.
    found = importlib.util.find_spec("streaming")
    for name in ("streaming", "streaming.base"):
        sys.modules[name] = package = types.ModuleType(name)
        package.__path__ = [str(Path(found.submodule_search_locations[0], *name.split(".")[1:]))]
    get_partitions = importlib.import_module("streaming.base.partition").get_partitions
    get_shuffle = importlib.import_module("streaming.base.shuffle").get_shuffle

    nodes, rows = max(1, ranks // 8), int(edges[-1])
    ids = get_partitions("relaxed", rows, nodes, nodes, ranks // nodes, WORKERS, batch // ranks, 0, nodes)
    block = max(4_000_000 // nodes, 1 << 18)  # as `StreamingDataset` chooses it
    warnings.simplefilter("ignore")
    order = get_shuffle("py1e", np.diff(edges), nodes, 0, 0, block)
    # A DataLoader takes a batch of each worker in turn.
    batches = ids.reshape(ranks, WORKERS, -1, batch // ranks).transpose(2, 1, 0, 3).reshape(-1, batch)
    return order[batches[first : first + steps]]


def webdataset(edges: np.ndarray, batch: int, ranks: int, first: int, steps: int) -> np.ndarray:
    """Return the batches of the usual pipeline: shuffled shards, split by node, and a buffer of 1,000."""
    import webdataset as wds

    def opened(shards: Iterable[dict[str, str]]) -> Iterator[int]:
        for shard in shards:
            number = int(shard["url"])
            yield from range(int(edges[number]), int(edges[number + 1]))

    def of_rank() -> np.ndarray:
        urls = [str(number) for number in range(edges.size - 1)]
        pipeline = wds.DataPipeline(
            wds.SimpleShardList(urls, seed=0), wds.split_by_node, opened, wds.shuffle(1000, initial=1000)
        )
        return _some(iter(pipeline), batch // ranks, first, steps)

    found = []
    for rank in range(ranks):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
        found.append(of_rank())
    return np.concatenate(found, axis=1)


def tf_data(edges: np.ndarray, batch: int, ranks: int, first: int, steps: int) -> np.ndarray:
    """Return the batches of shuffled shards, 16 of them interleaved, and a buffer of 10,000."""
    import tensorflow as tf

    tf.random.set_seed(0)
    bounds = tf.constant(edges)

    def of_rank(rank: int) -> np.ndarray:
        shards = tf.data.Dataset.range(edges.size - 1).shard(ranks, rank).shuffle(edges.size, seed=0)
        records = shards.interleave(
            lambda shard: tf.data.Dataset.range(bounds[shard], bounds[shard + 1]), cycle_length=16
        )
        batches = records.shuffle(10_000, seed=0).batch(batch // ranks).skip(first).take(steps)
        return np.stack(list(batches.as_numpy_iterator()))

    return np.concatenate([of_rank(rank) for rank in range(ranks)], axis=1)


def _some(records: Iterator[int], batch: int, first: int, steps: int) -> np.ndarray:
    own = itertools.islice(records, first * batch, (first + steps) * batch)
    return np.fromiter(own, np.int64, steps * batch).reshape(steps, batch)


def main() -> None:
    """Write one file."""
    kind, out = sys.argv[1], sys.argv[-1]
    rows, shards, batch, ranks, first, steps = map(int, sys.argv[2:-1])
    make: dict[str, Any] = {"mosaicml": mosaicml, "webdataset": webdataset, "tf.data": tf_data}
    np.save(out, make[kind](np.arange(shards + 1) * (rows // shards), batch, ranks, first, steps))


if __name__ == "__main__":
    main()
