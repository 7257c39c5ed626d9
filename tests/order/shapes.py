"""Small datasets for the tests of this room."""

from __future__ import annotations

from shardio.order import Identity, Plan, ShardSizes, Source, make_order

IDENTITY = Identity("uuid-1", 3, "print-1", "train")


def sizes_of(*rows, record=10, per_block=2):
    return ShardSizes(
        list(rows),
        [n * record for n in rows],
        [2 * n * record for n in rows],
        [-(-n // per_block) for n in rows],
    )


def order_of(sizes, *, global_batch, plan=None, **options):
    return make_order([Source(sizes, IDENTITY)], global_batch=global_batch, plan=plan, **options)


def mixed_order(all_sizes, mixture, *, global_batch, plan=None, **options):
    sources = [Source(s, Identity(f"uuid-{i}", 1, f"print-{i}", "train")) for i, s in enumerate(all_sizes)]
    return make_order(sources, global_batch=global_batch, plan=plan, mixture=mixture, **options)


def small_plan(ranks=2, workers=2, chunk_rows=4, interleave=1, window=None):
    return Plan(
        ranks=ranks,
        workers=workers,
        chunk_rows=chunk_rows,
        interleave=interleave,
        window=window or chunk_rows,
    )


def names_of(windows):
    """Return (source, cycle, lane, reader, number) of each window."""
    columns = windows.source, windows.cycle, windows.lane, windows.reader, windows.number
    return list(zip(*(column.tolist() for column in columns), strict=True))


def positions_in(windows, number):
    """Return the positions that a window holds."""
    first = int(windows.position[number])
    return range(first, first + int(windows.rows[number]))


def needs(schedule, *, rank=0, world_size=1, worker=0, workers=1):
    """Yield (step, window, positions) whenever a process comes to a window that its reader was not in."""
    held = {}
    for step in schedule.steps(worker=worker, workers=workers):
        parts, _ = schedule.parts(step, rank=rank, world_size=world_size)
        windows = schedule.lanes.locate(parts).windows
        for number, window in enumerate(names_of(windows)):
            if held.get(window[:4]) != window:
                held[window[:4]] = window
                yield step, window, positions_in(windows, number)


def random_sizes(rnd, shards, most):
    rows = [rnd.choice([0, 1, 2, 5, 9, rnd.randint(0, most)]) for _ in range(shards)]
    blocks = [rnd.randint(1, max(1, n)) + rnd.choice([0, 0, 3]) if n else rnd.choice([0, 1]) for n in rows]
    stored = [n * rnd.randint(1, 20) for n in rows]
    return ShardSizes(rows, stored, [2 * b for b in stored], blocks)


def random_plan(rnd, ranks, workers):
    rows = rnd.choice([1, 2, 3, 5, 8, 40, 1000])
    window = rnd.choice([rows, rows, rnd.randint(1, rows)])
    strands = rnd.choice([1, 1, 2, 3, 5, 9])
    return Plan(ranks=ranks, workers=workers, chunk_rows=rows, interleave=strands, window=window)
