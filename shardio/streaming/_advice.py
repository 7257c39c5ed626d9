"""What is worth a warning about a plan, in at most three sentences, each with what to do instead."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from shardio.order import ROW_BYTES, chunks_to_mix, nearest_multiples, recurrence
from shardio.streaming._plans import open_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.order import Order
    from shardio.streaming._plans import Resources

# Stored bytes of a dataset that is too small for its mixing, or for chunks fetched twice, to matter.
_LITTLE_BYTES = 64 << 20
# How much more often than by chance labels may recur before that is worth a warning.
_TOO_OFTEN = 1.5


def advice(
    order: Order,
    resources: Resources,
    *,
    global_batch: int,
    world_size: int = 1,
    workers: int = 0,
    shuffled: Sequence[bool] | None = None,
) -> list[str]:
    """Return what is worth a warning about ranks, workers, mixing and memory: at most three sentences.

    Args:
        order, resources: of a stream.
        global_batch: records of a step over all ranks.
        world_size: number of ranks.
        workers: loader processes of each rank; 0 for threads.
        shuffled: of each source, whether it was written in random order; None excludes mixing.
    """
    sentences = [
        _memory_advice(order, resources, global_batch, world_size),
        None if shuffled is None else mixing_advice(order, resources, shuffled=shuffled, parts=world_size),
        _fetch_advice(order, world_size, workers),
        _slice_advice(order, global_batch, world_size),
    ]
    return [sentence for sentence in sentences if sentence is not None][:3]


def _slice_advice(order: Order, global_batch: int, world_size: int) -> str | None:
    """Return what to do where slices of the global batch differ."""
    if global_batch % world_size == 0:
        return None
    low, high = global_batch // world_size, -(-global_batch // world_size)
    both = math.lcm(order.ranks, world_size)
    unit = both if both <= 2 * global_batch else world_size
    near = " or ".join(str(m) for m in nearest_multiples(global_batch, unit))
    return (
        f"global_batch={global_batch} gives {world_size} ranks slices of {low} and {high} rows: "
        f"weigh the mean loss of a rank by rows * {world_size} / {global_batch}, or use a batch of {near}"
    )


def _fetch_advice(order: Order, world_size: int, workers: int) -> str | None:
    """Return what to do where several processes fetch a chunk."""
    better = []
    if order.ranks % world_size:
        better.append(f"{_near_divisors(world_size, order.ranks)} ranks instead of {world_size}")
    more_workers = workers > 1 and order.workers % workers
    if more_workers:
        better.append(f"{_near_divisors(workers, order.workers)} workers instead of {workers}")
    stored = sum(source.sizes.total_stored_bytes for source in order.sources)
    if not better or stored < _LITTLE_BYTES:
        return None
    return (
        f"some chunks are fetched more than once: the plan suits numbers of ranks that divide {order.ranks}, "
        f"and of workers that divide {order.workers}; {' and '.join(better)} would fetch each chunk once"
        + (f"; a run that begins with plan=Plan(workers={workers}) does, too" if more_workers else "")
    )


def _near_divisors(value: int, of: int) -> str:
    below = max(d for d in range(1, min(value, of) + 1) if of % d == 0)
    above = [d for d in range(value + 1, of + 1) if of % d == 0][:1]
    return " or ".join(str(d) for d in [below, *above])


def mixing_advice(
    order: Order,
    resources: Resources,
    urls: Sequence[str] | None = None,
    *,
    shuffled: Sequence[bool],
    parts: int = 1,
) -> str | None:
    """Return what to do if records are sorted; None where the plan mixes them well enough.

    Args:
        order, resources: of the stream.
        urls: of its sources.
        shuffled: of each, whether it was written in random order.
        parts: ranks, whose own batches are looked at; 1 for global batches.
    """
    if not order.shuffle:
        return None
    often = {
        number: recurrence(plan, source.sizes.total_rows, parts)
        for number, (source, plan) in enumerate(zip(order.sources, order.plans, strict=True))
        if not shuffled[number] and source.sizes.total_stored_bytes >= _LITTLE_BYTES
    }
    weak = [number for number, times in often.items() if times >= _TOO_OFTEN]
    if not weak:
        return None
    named = [urls[number] if urls else f"source {number} of the mixture" for number in weak]
    if urls is None and len(order.sources) == 1:
        named = ["the dataset"]
    more = f" and {len(named) - 2} more" if len(named) > 2 else ""
    whose = "" if parts == 1 else " in the batches of a rank"
    return (
        f"if the records of {' and '.join(named[:2])}{more} are sorted, this plan mixes them too little: "
        f"labels recur {max(often.values()):.1f} times as often as by chance{whose}; "
        f'{_way_to_mix(order, resources, weak, parts)}; metadata={{"shuffled": True}} marks a dataset as not '
        'sorted; see "Sorted data" in docs/shuffling.md'
    )


def _way_to_mix(order: Order, resources: Resources, weak: Sequence[int], parts: int) -> str:
    """Return what mixes more: a disk, smaller chunks, or as much memory as it takes."""
    needs_requests = not (resources.is_local or resources.has_local_blocks)
    if needs_requests and not resources.scratch_bytes:
        return "scratch= with a folder on a local disk mixes nearly as well as random order"
    sizes = [order.sources[number].sizes for number in weak]
    plans = [order.plans[number] for number in weak]
    best = replace(resources, mixing="best", scratch_bytes=0).budgets(sizes, [1] * len(sizes))
    if any(
        max(1, round(budget.chunk_bytes / max(1.0, each.row_stored_bytes))) < plan.chunk_rows
        for budget, each, plan in zip(best, sizes, plans, strict=True)
    ):
        return 'mixing="best" mixes more, for more requests'
    memory, are_smaller = 0, False
    for plan, each in zip(plans, sizes, strict=True):
        rows = each.total_rows
        wanted = chunks_to_mix(plan, rows, parts) * plan.chunk_rows
        # At most half of the chunks are open, if not all; all of them must be smaller for that.
        if wanted > rows / 2:
            wanted, are_smaller = rows, True
        memory = max(memory, math.ceil(wanted * (each.row_decoded_bytes + ROW_BYTES) / 0.7))
    with_smaller = ' with mixing="best"' if are_smaller else ""
    return f"memory_bytes={((memory >> 20) + 2) << 20}{with_smaller} mixes as well as random order"


def _memory_advice(order: Order, resources: Resources, global_batch: int, world_size: int) -> str | None:
    """Return what to do where memory is too little for a record, or for chunks that are worth a request."""
    if order.asked:
        return None
    sizes = [source.sizes for source in order.sources]
    memory = resources.memory(sizes)
    windows = order.open_windows(global_batch, world_size)
    decoded = [each.row_decoded_bytes for each in sizes]
    held = open_bytes(order, decoded, global_batch=global_batch, world_size=world_size)
    if all(each == (1, 1) for each in windows) and held > memory:
        return (
            f"one record takes {held} bytes, more than memory_bytes={memory}: a process holds one at a time, "
            f"and a batch; give memory_bytes={math.ceil(held / 0.7)} or more"
        )
    budgets = resources.budgets(sizes, [1] * len(sizes))
    for each, plan, budget in zip(sizes, order.plans, budgets, strict=True):
        stored, block = each.row_stored_bytes, each.block_stored_bytes
        if resources.is_local or 2 * plan.chunk_rows * stored >= block or plan.chunk_rows >= each.total_rows:
            continue
        least = max(1, round(budget.chunk_bytes / stored) // 4)
        enough = math.ceil(least * (each.row_decoded_bytes + ROW_BYTES) * len(sizes) / 0.7)
        return (
            f"memory_bytes={memory} leaves chunks of {plan.chunk_rows} records, each read with its block: an "
            f"epoch reads {1 + (block - stored) / (plan.chunk_rows * stored):.0f} times its size in about "
            f"{each.total_rows // plan.chunk_rows:,} requests; memory_bytes={enough} is enough for chunks of "
            f"{least}"
        )
    return None
