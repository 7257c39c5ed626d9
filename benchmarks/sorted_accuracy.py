"""What an order costs in accuracy where records are sorted by class: a small network, one epoch of each.

    python benchmarks/sorted_accuracy.py [--records 400000] [--bytes 8192] [--classes 1000 10] [--seeds 3]

Records stand class by class.  A record is a point near the centre of its class, and a network of one hidden
layer learns to tell the classes apart.  It sees the records in the order of each plan, worked out for records
of that size, and is then asked about points that it has not seen.  No bytes are read: an order is arithmetic,
and what a record holds follows from its number.
"""

from __future__ import annotations

import argparse
import statistics
from typing import TYPE_CHECKING

import numpy as np
import torch

from shardio.order import SCRATCH_BYTES, Budget, Identity, ShardSizes, Source, make_order

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH, WIDTH, HIDDEN, SPREAD = 256, 64, 256, 1.75

BUDGETS: dict[str, Budget | None] = {
    "random order": None,
    "local disk": Budget(local=True),
    "bucket": Budget(scratch_bytes=SCRATCH_BYTES),
    "bucket, scratch=1 GiB": Budget(scratch_bytes=1 << 30),
    "bucket, scratch=False": Budget(),
    'bucket, scratch=False, mixing="cheap"': Budget(mixing="cheap"),
    'bucket, scratch=False, mixing="best"': Budget(mixing="best"),
    'bucket, scratch=False, mixing="best", memory_bytes=2 GiB': Budget(mixing="best", memory_bytes=2 << 30),
}


def sizes_of(records: int, size: int) -> ShardSizes:
    """Return shards of 64 MB, of blocks of 64 KiB."""
    a_shard = max(1, 64_000_000 // size)
    rows = [min(a_shard, records - first) for first in range(0, records, a_shard)]
    stored = [n * size for n in rows]
    return ShardSizes(rows, stored, stored, [-(-n // max(1, (64 << 10) // size)) for n in rows])


def batches(budget: Budget | None, records: int, size: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the positions of each batch of an epoch."""
    if budget is None:
        order = np.random.default_rng(seed).permutation(records)
        yield from order[: records // BATCH * BATCH].reshape(-1, BATCH)
        return
    source = Source(sizes_of(records, size), Identity("0" * 32, 1, "0" * 64, "train"))
    schedule = make_order([source], global_batch=BATCH, seed=seed, budget=budget).schedule(0, BATCH)
    for step in range(schedule.stop):
        yield schedule.batch(step).positions


def accuracy(budget: Budget | None, records: int, size: int, classes: int, seed: int) -> float:
    """Return the share of unseen points of which a network tells the class after an epoch."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((classes, WIDTH), np.float32)
    labels = np.arange(records) * classes // records
    points = centres[labels] + SPREAD * rng.standard_normal((records, WIDTH), np.float32)
    net = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, classes)
    )
    steps = torch.optim.Adam(net.parameters(), lr=1e-3)
    for positions in batches(budget, records, size, seed):
        found = net(torch.from_numpy(points[positions]))
        loss = torch.nn.functional.cross_entropy(found, torch.from_numpy(labels[positions]))
        steps.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch gives it no types
        steps.step()
    asked = rng.integers(0, classes, 20_000)
    unseen = centres[asked] + SPREAD * rng.standard_normal((len(asked), WIDTH), np.float32)
    with torch.no_grad():
        told = net(torch.from_numpy(unseen)).argmax(1).numpy()
    return float((told == asked).mean())


def main() -> None:
    """Print a line for each order."""
    parser = argparse.ArgumentParser(description="accuracy after an epoch of sorted records, by order")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--bytes", type=int, default=8192, help="of a record")
    parser.add_argument("--classes", type=int, nargs="+", default=[1000, 10])
    parser.add_argument("--seeds", type=int, default=3, help="runs of each, of which the mean is printed")
    parser.add_argument("--orders", nargs="+", default=list(BUDGETS), choices=list(BUDGETS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| order | " + " | ".join(f"{n:,} classes" for n in arguments.classes) + " |")
    print("| --- |" + " --- |" * len(arguments.classes))
    for name in arguments.orders:
        found = [
            statistics.mean(
                accuracy(BUDGETS[name], arguments.records, arguments.bytes, classes, seed)
                for seed in range(arguments.seeds)
            )
            for classes in arguments.classes
        ]
        print(f"| {name} | " + " | ".join(f"{each:.3f}" for each in found) + " |", flush=True)


if __name__ == "__main__":
    main()
