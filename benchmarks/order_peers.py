"""Write the orders of other systems, by their own code; `order_plans.py --peers` runs it.

    python benchmarks/order_peers.py mosaicml|webdataset|tf.data ROWS SHARDS BATCH STEPS OUT.npz RANKS ...

It needs `mosaicml-streaming`, `webdataset` or `tensorflow-cpu`.  Records are numbers in shards of equal
size; what the systems do with shards, lanes and buffers is theirs, by the defaults of their pages.  OUT has
for each number of ranks two int64 [steps, batch], "first" and "middle": the global batches with which an
epoch begins, and those amid it, ranks one after another.

MosaicML's order is an array, so of more than `MOST` records it is that of some shards, drawn at random, whose
labels are those that they have in the whole dataset: its block of 4 million records has few shards of many
small records, and none sees the others.  The other two are gone through record by record, so that "amid"
comes after at most `FAR` records: what their buffers hold is then of as many shards as ever.
"""

from __future__ import annotations

import functools
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


MOST = 80_000_000
FAR = 3_000_000

Batches = tuple[np.ndarray, np.ndarray]


def mosaicml(shards: np.ndarray, rows: int, batch: int, ranks: int, steps: int) -> Batches:
    """Return the batches of a StreamingDataset and its DataLoader, up to eight ranks a node."""
    get_partitions, get_shuffle = _mosaicml()
    some = max(1, min(shards.size, MOST // rows))
    drawn = np.sort(np.random.default_rng(0).permutation(shards.size)[:some])
    nodes, total = max(1, ranks // 8), some * rows
    ids = get_partitions("relaxed", total, nodes, nodes, ranks // nodes, WORKERS, batch // ranks, 0, nodes)
    block = max(4_000_000 // nodes, 1 << 18)  # as `StreamingDataset` chooses it
    warnings.simplefilter("ignore")
    order = get_shuffle("py1e", np.full(some, rows), nodes, 0, 0, block)
    # A DataLoader takes a batch of each worker in turn.
    batches = ids.reshape(ranks, WORKERS, -1, batch // ranks).transpose(2, 1, 0, 3).reshape(-1, batch)
    middle = max(0, total // batch // 2 - steps // 2)
    own = (order[batches[first : first + steps]] for first in (0, middle))
    first, amid = (shards[drawn[each // rows]] + each % rows for each in own)
    return first, amid


@functools.cache
def _mosaicml() -> tuple[Any, Any]:
    # Its package imports clients of all clouds and more, of which these two need nothing.
    found = importlib.util.find_spec("streaming")
    for name in ("streaming", "streaming.base"):
        sys.modules[name] = package = types.ModuleType(name)
        package.__path__ = [str(Path(found.submodule_search_locations[0], *name.split(".")[1:]))]
    partition = importlib.import_module("streaming.base.partition")
    return partition.get_partitions, importlib.import_module("streaming.base.shuffle").get_shuffle


def webdataset(shards: np.ndarray, rows: int, batch: int, ranks: int, steps: int) -> Batches:
    """Return the batches of the usual pipeline: shuffled shards, split by node, and a buffer of 1,000."""
    import webdataset as wds

    def opened(given: Iterable[dict[str, str]]) -> Iterator[int]:
        for shard in given:
            begin = int(shards[int(shard["url"])])
            yield from range(begin, begin + rows)

    found = []
    for rank in range(ranks):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
        urls = [str(number) for number in range(shards.size)]
        pipeline = wds.DataPipeline(
            wds.SimpleShardList(urls, seed=0), wds.split_by_node, opened, wds.shuffle(1000, initial=1000)
        )
        found.append(_some(iter(pipeline), shards.size * rows, batch, ranks, steps))
    return _side_by_side(found)


def tf_data(shards: np.ndarray, rows: int, batch: int, ranks: int, steps: int) -> Batches:
    """Return the batches of shuffled shards, 16 of them interleaved, and a buffer of 10,000."""
    import tensorflow as tf

    tf.random.set_seed(0)
    begins = tf.constant(shards)
    middle = _middle(shards.size * rows, batch, steps)

    def of_rank(rank: int) -> Batches:
        own = tf.data.Dataset.range(shards.size).shard(ranks, rank).shuffle(shards.size, seed=0)
        records = own.interleave(
            lambda shard: tf.data.Dataset.range(begins[shard], begins[shard] + rows), cycle_length=16
        )
        batches = records.shuffle(10_000, seed=0).batch(batch // ranks)
        first, amid = (list(batches.skip(at).take(steps).as_numpy_iterator()) for at in (0, middle))
        return np.stack(first), np.stack(amid)

    return _side_by_side([of_rank(rank) for rank in range(ranks)])


def _middle(total: int, batch: int, steps: int) -> int:
    """Return the step at which what is amid the epoch begins, of systems that must be gone through."""
    return max(0, min(total // batch // 2 - steps // 2, FAR // batch))


def _some(records: Iterator[int], total: int, batch: int, ranks: int, steps: int) -> Batches:
    """Return the batches of a rank at the beginning and amid its epoch."""
    share, middle = batch // ranks, _middle(total, batch, steps)
    gone = np.fromiter(itertools.islice(records, (middle + steps) * share), np.int64)
    batches = gone.reshape(-1, share)
    return batches[:steps], batches[middle:]


def _side_by_side(of_ranks: list[Batches]) -> Batches:
    first, amid = (np.concatenate(column, axis=1) for column in zip(*of_ranks, strict=True))
    return first, amid


def main() -> None:
    """Write one file."""
    kind, out = sys.argv[1], sys.argv[6]
    rows, shards, batch, steps = map(int, sys.argv[2:6])
    make: dict[str, Any] = {"mosaicml": mosaicml, "webdataset": webdataset, "tf.data": tf_data}
    found = {}
    for ranks in map(int, sys.argv[7:]):
        each = rows // shards
        first, middle = make[kind](np.arange(shards) * each, each, batch, ranks, steps)
        found.update({f"first {ranks}": first, f"middle {ranks}": middle})
    np.savez(out, **found)


if __name__ == "__main__":
    main()
