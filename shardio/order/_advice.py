"""What is said of a plan: refusals, warnings, and what to do instead; other files have the figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from shardio.order._mixing import (
    LITTLE_BYTES,
    TOO_OFTEN,
    enough_memory,
    recurrence,
    smaller_chunks,
    weak_sources,
)
from shardio.order._order import Order
from shardio.order._plan import ROW_BYTES, Budget, Plan, default_plans, least_first_batch, nearest_multiples
from shardio.order._report import SourceReading, before_a_batch, process_memory, with_ahead
from shardio.order._sizes import ShardSizes

# GiB of scratch more that are told of, as long as each has labels come again so much less often.
_MORE_GIB = (1, 2, 4, 12, 28)
_WORTH_SAYING = 0.01


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
    plans = [(order.plans[number], order.sources[number].sizes) for number in weak]
    if _lacks_scratch(budget):
        way = "scratch= with a folder on a local disk mixes nearly as well as random order"
    elif any(smaller_chunks(plan, sizes, budget) is not None for plan, sizes in plans):
        way = 'mixing="best" mixes more, for more requests'
    else:
        way = f"memory_bytes={max(enough_memory(*each)[0] for each in plans)} mixes as well as random order"
    return (
        f"if the records of {named}{more} are sorted, by class for example, this plan mixes them too little, "
        f'which costs accuracy: {way}; metadata={{"shuffled": True}} in the dataset says that they are not '
        'sorted; see "Sorted data" in docs/shuffling.md'
    )


def _lacks_scratch(budget: Budget | None) -> bool:
    """Return whether a disk is the cheapest way to mix more: none is used, and records are in a bucket."""
    return budget is not None and not (budget.local or budget.decoded or budget.scratch_bytes)


def more_scratch(order: Order, budget: Budget, global_batch: int) -> tuple[tuple[int, float], ...]:
    """Return bytes of scratch, some GiB more each, and how often labels would come again with them."""
    if budget.local or budget.decoded or not order.shuffle:
        return ()
    found: list[tuple[int, float]] = []
    latest = _recurrence(order, order.plans)
    for more in _MORE_GIB:
        given = replace(budget, scratch_bytes=budget.scratch_bytes + (more << 30))
        often = _recurrence(order, _other_plans(order, given, global_batch))
        if latest - often < _WORTH_SAYING:
            break
        found.append((given.scratch_bytes, often))
        latest = often
    return tuple(found)


def _recurrence(order: Order, plans: Sequence[Plan]) -> float:
    return max(recurrence(plan, one.sizes) for plan, one in zip(plans, order.sources, strict=True))


def _weak_mixing(
    order: Order, budget: Budget | None, global_batch: int, parts: int, shuffled: Sequence[bool]
) -> list[str]:
    """Return how little a plan mixes sorted records, and each way out with what it takes."""
    lines = []
    unbound = _without_first_batch(order, budget, global_batch)
    # A part of every batch is never mixed better than the whole.
    for number in weak_sources(order, shuffled, parts):
        plan, sizes = order.plans[number], order.sources[number].sizes
        often, ranks = recurrence(plan, sizes), recurrence(plan, sizes, parts)
        weak = often >= TOO_OFTEN
        which = f"source {number} of the mixture" if len(order.sources) > 1 else "the dataset"
        open_ = plan.lanes * (plan.interleave or 1)
        said, more = [], []
        if weak:
            said.append(
                f"batches are less mixed than random ones: {open_:,} chunks are read side by side, so labels "
                f"come again {often:.1f} times as often as by chance in the batches that follow"
            )
            more += _ways_out(plan, sizes, budget)
            if unbound is not None and (better := recurrence(unbound[number], sizes)) < 0.9 * often:
                more.append(f"without first_batch_bytes= it is {better:.1f} times")
        if parts > 1 and ranks >= TOO_OFTEN:
            often_ = (
                f"{ranks:.1f} times" if weak else f"labels come again {ranks:.1f} times as often as by chance"
            )
            said.append(f"{often_} in the batches of one of {parts} ranks alone")
            memory, whole = enough_memory(plan, sizes, parts)
            if not whole:
                more.append(f"memory_bytes={memory}, of which each rank holds its part, mixes theirs, too")
        if smaller_chunks(plan, sizes, budget) is not None:
            more.insert(0, 'mixing="best" mixes more for more requests')
        if _lacks_scratch(budget):
            more.insert(0, "scratch= with a folder on a local disk mixes more for no more requests")
        lines.append(
            f"if the records of {which} are sorted, {'; '.join(said)}; {', '.join(more)}, and a dataset that "
            'was written in random order, with "shuffled": true in its metadata, needs none of it'
        )
    return lines


def _ways_out(plan: Plan, sizes: ShardSizes, budget: Budget | None) -> list[str]:
    """Return what memory mixes as random order does, with chunks as they are and with smaller ones."""
    memory, whole = enough_memory(plan, sizes)
    smaller = smaller_chunks(plan, sizes, budget)
    less, all_ = (memory, whole) if smaller is None else enough_memory(smaller, sizes)
    mixes = "mixes as well as random order"
    if smaller is None or all_:
        best = ' with mixing="best"' if whole else ""
        return [f"memory_bytes={memory}{best} {mixes}"]
    lines = [] if whole else [f"memory_bytes={memory} {mixes}"]
    requests = f"for {plan.chunk_rows / smaller.chunk_rows:.0f} times the requests"
    if budget is not None and less <= budget.memory_bytes:
        return [*lines, f'mixing="best" alone {mixes}, {requests}']
    return [*lines, f'memory_bytes={less} with mixing="best" {mixes}, {requests}']


def _without_first_batch(order: Order, budget: Budget | None, global_batch: int) -> list[Plan] | None:
    """Return the plans as they would be without a bound of the first batch; None where there is none."""
    if budget is None or budget.first_batch_bytes is None:
        return None
    return _other_plans(order, replace(budget, first_batch_bytes=None), global_batch)


def _other_plans(order: Order, budget: Budget, global_batch: int) -> list[Plan]:
    """Return the plans of an order as they would be with another budget."""
    return default_plans(
        [source.sizes for source in order.sources],
        global_batch=global_batch,
        shuffle=order.shuffle,
        shares=None if order.mixture is None else order.mixture.counts,
        given=order.asked,
        budget=budget,
    )


def _large_first_batch(order: Order, budget: Budget | None, global_batch: int) -> list[str]:
    """Return a line where the first batch reads more than it may."""
    if budget is None or budget.first_batch_bytes is None:
        return []
    try:
        schedule = order.schedule(0, global_batch)
    except ValueError:
        return []  # a resumed epoch continues with a batch with which none could begin
    found = before_a_batch(order, schedule, 0, 1, mapped=budget.local, by_block=budget.by_block).bytes
    if found <= 1.1 * budget.first_batch_bytes:
        return []
    least = least_first_batch(
        [source.sizes for source in order.sources],
        global_batch=global_batch,
        shares=None if order.mixture is None else order.mixture.counts,
        given=order.asked if all(plan.interleaved for plan in order.asked) else None,
        budget=budget,
    )
    blocks = ", since blocks are read whole" if budget.by_block else ""
    line = (
        f"the first batch reads {found} bytes in a process that delivers whole global batches, more than "
        f"first_batch_bytes={budget.first_batch_bytes}; about {least} is the least that a plan with as many "
        f"chunks side by side reads{blocks}; a smaller global_batch= reads less, and so does each of several "
        "ranks"
    )
    return [line]


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
    """Return what is worth a warning about ranks, workers, mixing and the first batch, one line each.

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
        lines += _weak_mixing(order, budget, global_batch, world_size, shuffled)
    lines += _little_memory(order, budget, global_batch, world_size)
    return lines + _large_first_batch(order, budget, global_batch)
