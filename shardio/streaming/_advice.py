"""What is worth a warning about a plan, in at most three sentences, each with what to do instead."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shardio.order import ROW_BYTES, nearest_multiples, recurrence
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
    order: Order, resources: Resources, *, global_batch: int, world_size: int = 1, workers: int = 0
) -> list[str]:
    """Return what is worth a warning about memory, ranks and workers: at most two sentences.

    Args:
        order, resources: of a stream.
        global_batch: records of a step over all ranks.
        world_size: number of ranks.
        workers: loader processes of each rank; 0 for threads.
    """
    sentences = [
        _memory_advice(order, resources, global_batch, world_size),
        _ranks_advice(order, global_batch, world_size, workers),
    ]
    return [sentence for sentence in sentences if sentence is not None]


def _ranks_advice(order: Order, global_batch: int, world_size: int, workers: int) -> str | None:
    """Return what to do where slices of the batch differ, or several processes fetch a chunk."""
    if global_batch % world_size:
        both = math.lcm(order.ranks, world_size)
        near = nearest_multiples(global_batch, both if both <= 2 * global_batch else world_size)
        low, high = global_batch // world_size, -(-global_batch // world_size)
        return (
            f"global_batch={global_batch} gives {world_size} ranks slices of {low} and {high} rows: weigh "
            f"the mean loss of a rank by rows * {world_size} / {global_batch}, or use a batch of "
            f"{' or '.join(map(str, near))}"
        )
    stored = sum(source.sizes.total_stored_bytes for source in order.sources)
    shared = order.ranks % world_size or order.workers % max(1, workers)
    if not shared or stored < _LITTLE_BYTES:
        return None
    return (
        f"some chunks are fetched more than once: the plan suits numbers of ranks that divide {order.ranks}, "
        f"and of workers that divide {order.workers}; a new run may begin with plan=Plan(workers={workers})"
    )


def mixing_advice(
    order: Order, resources: Resources, urls: Sequence[str], *, shuffled: Sequence[bool], parts: int = 1
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
        url: recurrence(plan, source.sizes.total_rows, parts)
        for url, source, plan, is_shuffled in zip(urls, order.sources, order.plans, shuffled, strict=True)
        if not is_shuffled and source.sizes.total_stored_bytes >= _LITTLE_BYTES
    }
    weak = [url for url, times in often.items() if times >= _TOO_OFTEN]
    if not weak:
        return None
    if not (resources.is_local or resources.has_local_blocks or resources.scratch_bytes):
        way = "scratch= with a folder on a local disk mixes nearly as well as random order"
    elif resources.mixing != "best":
        way = 'mixing="best" mixes more, for more requests'
    else:
        way = "a larger memory_bytes= mixes more"
    more = f" and {len(weak) - 2} more" if len(weak) > 2 else ""
    return (
        f"if the records of {' and '.join(weak[:2])}{more} are sorted, this plan mixes them too little: "
        f"labels recur {max(often.values()):.1f} times as often as by chance; {way}; "
        'metadata={"shuffled": True} marks a dataset as not sorted; see "Sorted data" in docs/shuffling.md'
    )


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
    for each, plan, budget in zip(
        sizes, order.plans, resources.budgets(sizes, [1] * len(sizes)), strict=True
    ):
        stored, block = each.row_stored_bytes, each.block_stored_bytes
        if resources.is_local or 2 * plan.chunk_rows * stored >= block or plan.chunk_rows >= each.total_rows:
            continue
        least = max(1, round(budget.chunk_bytes / stored) // 4)
        enough = math.ceil(least * (each.row_decoded_bytes + ROW_BYTES) * len(sizes) / 0.7)
        return (
            f"memory_bytes={memory} leaves chunks of {plan.chunk_rows} records, each read with its block: an "
            f"epoch reads {1 + (block - stored) / (plan.chunk_rows * stored):.0f} times its size; "
            f"memory_bytes={enough} is enough for chunks of {least}"
        )
    return None
