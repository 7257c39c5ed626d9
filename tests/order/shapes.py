"""Small datasets for the tests of this room."""

from __future__ import annotations

import numpy as np

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


def small_plan(ranks=2, workers=2, chunk_bytes=30, window=4):
    return Plan(ranks=ranks, workers=workers, chunk_bytes=chunk_bytes, window=window)


def window_pieces(lanes, windows, number):
    """Return the pieces of one of some windows."""
    return lanes.many_pieces(windows.take(np.array([number])))[0]


def needs(schedule, *, rank=0, world_size=1, worker=0, workers=1):
    """Yield (step, window) whenever a process comes to a window that its lane did not use just before."""
    held = {}
    for step in schedule.steps(worker=worker, workers=workers):
        parts, _ = schedule.parts(step, rank=rank, world_size=world_size)
        windows = schedule.lanes.locate(parts).windows
        for number, window in enumerate(windows):
            if held.get(window[:3]) != window:
                held[window[:3]] = window
                yield step, window, window_pieces(schedule.lanes, windows, number)
