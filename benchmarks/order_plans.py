"""Measure what C, T, chunk_bytes and window cost and give: the tables of docs/order.md.

    python benchmarks/order_plans.py

Labels are taken to be sorted by shard, the worst case.  "Sameness" is the sum of squares of the records that
each shard gives to a global batch, divided by the batch: how many times the variance of a batch's mean label
is that of a batch of different labels.  Memory is simulated: a process holds the windows in use and those
that its next `AHEAD` steps will use, and a window leaves when the next one of its lane is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio.order import Identity, Order, Plan, ShardSizes, Source, default_plan, make_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardio.order import Schedule, Window

AHEAD = 4


def dataset(
    rows: int, rows_per_shard: int, record: int, ratio: float = 1.0, block: int = 1 << 16
) -> ShardSizes:
    """Return shards of equal records."""
    counts = np.full(-(-rows // rows_per_shard), rows_per_shard)
    counts[-1] -= counts.sum() - rows
    decoded = counts * record
    return ShardSizes(
        counts, (decoded * ratio).astype(int), decoded, np.maximum(1, decoded // max(block, record))
    )


DATASETS = {
    "1.28 M images of 110 KB": dataset(1_281_167, 2000, 110_000),
    "10 M records of 8 KB, zstd": dataset(10_000_000, 16_000, 8192, 0.5),
    "1,000 M texts of 500 B, zstd": dataset(1_000_000_000, 1_000_000, 500, 0.4),
    "65,536 records of 8 KB": dataset(65_536, 2048, 8192),
    "60,000 digits of 800 B": dataset(60_000, 60_000, 800),
    "1,000 records of 100 B": dataset(1000, 1000, 100),
}


def order_of(sizes: ShardSizes, batch: int, plan: Plan | None) -> Order:
    """Return the order of one dataset."""
    return make_order([Source(sizes, Identity("", 1, "", ""))], global_batch=batch, plan=plan)


def sameness(order: Order, batch: int) -> tuple[float, float]:
    """Return the sameness of the order's batches, and of batches drawn at random."""
    sizes, schedule = order.sources[0].sizes, order.schedule(0, batch)
    squares = []
    for step in (
        np.linspace(0, schedule.tail_start - 1, 40).astype(int)
        if schedule.tail_start
        else range(schedule.stop)
    ):
        shards = np.searchsorted(sizes.edges, schedule.batch(int(step)).positions, side="right")
        squares.append(float((np.unique(shards, return_counts=True)[1] ** 2).sum()) / batch)
    share = np.asarray(sizes.rows) / sizes.total_rows
    return float(np.mean(squares)), 1 + (batch - 1) * float((share**2).sum())


def needs(schedule: Schedule, ranks: int, stop: int) -> Iterator[tuple[int, Window]]:
    """Yield (step, window) whenever rank 0 comes to a window that its lane did not use just before."""
    held: dict[int, Window] = {}
    for step in range(min(stop, schedule.stop)):
        parts, _ = schedule.parts(step, rank=0, world_size=ranks)
        for window in schedule.lanes.locate(parts).windows:
            if held.get(window.lane) != window:
                held[window.lane] = window
                yield step, window


def memory(order: Order, batch: int, ranks: int) -> tuple[float, float, float]:
    """Return the most decoded bytes held by rank 0, the most fetched for one step, and the mean of that."""
    sizes, schedule = order.sources[0].sizes, order.schedule(0, batch)
    lanes = order.source_epoch(0, 0, 0)
    size = sizes.total_decoded_bytes / sizes.total_rows
    span = min(
        schedule.tail_start,
        3 * order.plans[0].window * order.ranks * order.workers // batch + 2 * order.workers,
    )
    held: dict[int, list[tuple[int, int]]] = {}
    most = 0.0
    fetched = []
    total = 0
    steps = range(0, span, max(1, span // 20_000))
    last = {}
    queue = needs(schedule, ranks, span)
    coming = next(queue, None)
    for step in steps:
        new = 0
        while coming is not None and coming[0] <= step + AHEAD:
            rows = -int(np.subtract(*lanes.window_range(coming[1].lane, coming[1].number)))
            held.setdefault(coming[1].lane, []).append((coming[0], rows))
            new += rows
            coming = next(queue, None)
        total += new
        for lane, windows in held.items():
            while len(windows) > 1 and windows[1][0] <= step:
                total -= windows.pop(0)[1]
            last[lane] = windows
        most = max(most, total * size)
        fetched.append(new * size)
    busy = fetched[len(fetched) // 3 :]
    return most, max(busy, default=0.0), float(np.mean(busy)) if busy else 0.0


def row(name: str, sizes: ShardSizes, batch: int, plan: Plan | None = None, *, simulate: bool = True) -> str:
    """Return one line of a table."""
    """Return one line of a table."""
    order = order_of(sizes, batch, plan)
    used = order.plans[0]
    figures = order.schedule(0, batch)
    epoch = order.source_epoch(0, 0, 0)
    widest = min(used.window, int(epoch.lane_lengths.max()))
    ours, random = sameness(order, batch)
    requests = epoch.piece_count()
    cells = [
        name,
        str(batch),
        f"{used.ranks} x {used.workers}",
        f"{used.chunk_bytes / 2**20:.2f}",
        f"{used.window:,}",
        f"{sizes.total_decoded_bytes / sizes.total_rows * widest / 2**20:.1f}",
        f"{requests / figures.stop:.2f}",
        f"{sizes.total_stored_bytes / requests / 2**20:.2f}",
        f"{ours:.2f} ({random:.2f})",
        f"{100 * (figures.stop - figures.tail_start) / figures.stop:.1f} %",
    ]
    for ranks in (1, 8) if simulate else ():
        most, peak, mean = memory(order, batch, ranks) if order.ranks % ranks == 0 else (0, 0, 0)
        cells.append(f"{most / 2**20:.0f}")
        cells.append(f"{peak / mean:.1f}" if mean else "-")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the tables."""
    head = "| dataset | batch | C x T | chunk MiB | window rows | window MiB | requests per batch "
    head += "| MiB per request | sameness (random) | tail |"
    more = " MiB in 1 process | peak / mean fetch | MiB in each of 8 | peak / mean fetch |"
    print(head + more + "\n" + "| --- " * 14 + "|")
    for name, sizes in DATASETS.items():
        for batch in (32, 256, 1024, 4096):
            if batch <= sizes.total_rows:
                print(row(name, sizes, batch, simulate=sizes.total_rows < 2_000_000))
    print("\nOne thing changed at a time, batch of 256:\n\n" + head + "\n|" + " --- |" * 10)
    for name in list(DATASETS)[:2]:
        sizes = DATASETS[name]
        mean = sizes.total_decoded_bytes / sizes.total_rows
        plan = default_plan(sizes, global_batch=256)
        shapes = [(c, plan.workers, plan.chunk_bytes) for c in (8, 16, 32, 128, 256)]
        shapes += [(plan.ranks, t, plan.chunk_bytes) for t in (1, 2, 8, 12)]
        shapes += [(plan.ranks, plan.workers, b << 18) for b in (1, 2, 4, 8, 16, 32)]
        for c, t, chunk in shapes:
            window = max(1, int((1 << 30) / (c * t * mean)))
            print(
                row(
                    name,
                    sizes,
                    256,
                    Plan(ranks=c, workers=t, chunk_bytes=chunk, window=window),
                    simulate=False,
                )
            )


if __name__ == "__main__":
    main()
