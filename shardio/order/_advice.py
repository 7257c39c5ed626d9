"""What is said of a plan: refusals, warnings, and what to do instead; other files have the figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardio.order._mixing import (
    LITTLE_BYTES,
    enough_memory,
    recurrence,
    smaller_chunks,
    weak_sources,
)
from shardio.order._order import Order
from shardio.order._plan import ROW_BYTES, Budget, nearest_multiples
from shardio.order._report import SourceReading, process_memory, with_ahead


def check_memory(
    order: Order,
    *,
    global_batch: int,
    world_size: int = 1,
    memory_bytes: int | None = None,
    read: Sequence[SourceReading] | None = None,
) -> None:
    """Raise ValueError with both numbers if a process would hold more than `memory_bytes`, if given.

    Of an interleaved plan the windows count, of a windowed one also what is fetched ahead; of records that
    stay in their files, by `read`, where they are.
    """
    if memory_bytes is None:
        return
    memory = process_memory(order, global_batch=global_batch, world_size=world_size, read=read)
    needed, what = memory.held_bytes, ""
    if not order.asked and memory.open_windows == memory.window_rows == 1:
        return  # no plan is smaller: a warning says what it takes
    if not all(plan.interleaved for plan in order.plans):
        rows = max(1, sum(source.sizes.total_rows for source in order.sources))
        row = sum(source.sizes.total_decoded_bytes for source in order.sources) / rows
        step_bytes = row * min(rows, global_batch) / world_size
        sizes = [source.sizes for source in order.sources]
        needed, what = with_ahead(order, sizes, memory, step_bytes), ", and what is fetched ahead"
    if needed > memory_bytes:
        raise ValueError(
            f"the plan needs {needed} bytes in one process ({memory.open_windows} windows of "
            f"{memory.window_rows:.0f} rows{what}), but memory_bytes={memory_bytes}; use a plan with a "
            "smaller window, more ranks, or a larger memory_bytes="
        )


def _near_divisors(value: int, of: int) -> str:
    below = max(d for d in range(1, min(value, of) + 1) if of % d == 0)
    above = [d for d in range(value + 1, of + 1) if of % d == 0][:1]
    return " or ".join(str(d) for d in [below, *above])


def mixing_warning(
    order: Order, urls: Sequence[str], *, shuffled: Sequence[bool], budget: Budget | None
) -> str | None:
    """Return what a run should know if the records of some of its sources are sorted; None where all is well.

    Args:
        order: of the run.
        urls: of its sources.
        shuffled: of each, whether it was written in random order.
        budget: what a default plan may cost.
    """
    weak = weak_sources(order, shuffled)
    if not weak:
        return None
    named = " and ".join(urls[number] for number in weak[:2])
    more = f" and {len(weak) - 2} more" if len(weak) > 2 else ""
    return (
        f"if the records of {named}{more} are sorted, by class for example, this plan mixes them too little, "
        f'which costs accuracy: {_way_to_mix(order, weak, budget)}; metadata={{"shuffled": True}} in the '
        'dataset says that they are not sorted; see "Sorted data" in docs/shuffling.md'
    )


def _way_to_mix(order: Order, weak: Sequence[int], budget: Budget | None, parts: int = 1) -> str:
    """Return what mixes more: a disk, smaller chunks, or as much memory as it takes."""
    plans = [(order.plans[number], order.sources[number].sizes) for number in weak]
    if budget is not None and not (budget.local or budget.decoded or budget.scratch_bytes):
        return "scratch= with a folder on a local disk mixes nearly as well as random order"
    if any(smaller_chunks(plan, sizes, budget) is not None for plan, sizes in plans):
        return 'mixing="best" mixes more, for more requests'
    enough, smaller = max(enough_memory(*each, parts) for each in plans)
    with_smaller = ' with mixing="best"' if smaller else ""
    return f"memory_bytes={enough}{with_smaller} mixes as well as random order"


def _weak_mixing(order: Order, budget: Budget | None, parts: int, shuffled: Sequence[bool]) -> list[str]:
    """Return how often labels of sorted records come again, and what mixes more."""
    lines = []
    for number in weak_sources(order, shuffled, parts):
        often = recurrence(order.plans[number], order.sources[number].sizes, parts)
        which = f"source {number} of the mixture" if len(order.sources) > 1 else "the dataset"
        whose = "the batches" if parts == 1 else "the batches of a rank"
        lines.append(
            f"if the records of {which} are sorted, labels come again {often:.1f} times as often as by "
            f"chance in {whose} that follow: {_way_to_mix(order, [number], budget, parts)}; a dataset that "
            'was written in random order, with "shuffled": true in its metadata, needs none of it'
        )
    return lines


def _little_memory(order: Order, budget: Budget | None, global_batch: int, world_size: int) -> list[str]:
    """Return a line where memory is too little for a record, or for chunks that are worth a request."""
    if budget is None or order.asked:
        return []
    given = f"memory_bytes={budget.memory_bytes}"
    memory = process_memory(order, global_batch=global_batch, world_size=world_size)
    if memory.open_windows == memory.window_rows == 1 and memory.held_bytes > budget.memory_bytes:
        line = (
            f"one record takes {memory.held_bytes} bytes, more than {given}: a process holds one at a time, "
            f"and a batch; give memory_bytes={math.ceil(memory.held_bytes / 0.7)} or more"
        )
        return [line]
    lines = []
    for source, plan in zip(order.sources, order.plans, strict=True):
        sizes, rows = source.sizes, max(1, source.sizes.total_rows)
        stored, block = sizes.row_stored_bytes, sizes.block_stored_bytes
        if budget.local or not plan.interleaved or 2 * plan.chunk_rows * stored >= block:
            continue
        least = max(1, round(budget.chunk_bytes(sizes) / stored) // 4)
        enough = math.ceil(least * (sizes.row_decoded_bytes + ROW_BYTES) * len(order.sources) / 0.7)
        lines.append(
            f"{given} leaves chunks of {plan.chunk_rows} records, each read with its block: an epoch reads "
            f"{1 + (block - stored) / (plan.chunk_rows * stored):.0f} times its size in about "
            f"{rows // plan.chunk_rows:,} requests; memory_bytes={enough} is enough for chunks of {least}"
        )
    return lines


def advice(
    order: Order,
    *,
    global_batch: int,
    world_size: int = 1,
    workers: int = 0,
    budget: Budget | None = None,
    shuffled: Sequence[bool] | None = None,
) -> list[str]:
    """Return what is worth a warning about ranks, workers, mixing and memory, one line each.

    None if all is well. Ranks and workers do not change the batches.

    Args:
        order: of a stream.
        global_batch: records of a step over all ranks.
        world_size: number of ranks.
        workers: loader processes of each rank; 0 for threads.
        budget: what a default plan may cost.
        shuffled: of each source, whether it was written in random order; None leaves mixing out.
    """
    lines = []
    if global_batch % world_size:
        low, high = global_batch // world_size, -(-global_batch // world_size)
        both = math.lcm(order.ranks, world_size)
        unit = both if both <= 2 * global_batch else world_size
        near = " or ".join(str(m) for m in nearest_multiples(global_batch, unit))
        lines.append(
            f"global_batch={global_batch} gives {world_size} ranks slices of {low} and {high} rows: "
            f"weigh the mean loss of a rank by rows * {world_size} / {global_batch}, or use a batch of {near}"
        )
    apart = []
    if order.ranks % world_size:
        apart.append(f"{_near_divisors(world_size, order.ranks)} ranks instead of {world_size}")
    if workers > 1 and order.workers % workers:
        apart.append(f"{_near_divisors(workers, order.workers)} workers instead of {workers}")
    stored = sum(source.sizes.total_stored_bytes for source in order.sources)
    more = workers > 1 and order.workers % workers
    if apart and stored >= LITTLE_BYTES:
        lines.append(
            f"some chunks are fetched more than once: the plan suits numbers of ranks that divide "
            f"{order.ranks}, and of workers that divide {order.workers}; "
            f"{' and '.join(apart)} would fetch each chunk once"
            + (f"; a run that begins with plan=Plan(workers={workers}) does, too" if more else "")
        )
    if shuffled is not None:
        lines += _weak_mixing(order, budget, world_size, shuffled)
    return lines + _little_memory(order, budget, global_batch, world_size)
