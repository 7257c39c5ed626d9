"""What a pass may hold, and how far it works ahead: by the plan, the memory and the distance of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio.order import Budget, check_memory, decoded_memory, process_memory, rank_slice
from shardio.reader import JoinedSource
from shardio.streaming._planner import PassLimits, PlannedSource
from shardio.streaming._scratch import scratch_choice
from shardio.streaming._tuning import TUNING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.order import Order, Plan, SourceReading
    from shardio.streaming._components import Component
    from shardio.streaming._options import StreamOptions


def planned_sources(
    order: Order,
    components: Sequence[Component],
    mapped: Sequence[bool],
    *,
    global_batch: int,
    place: tuple[int, int],
    workers: int,
) -> list[PlannedSource]:
    """Return what a planner knows of the datasets of a stream.

    Args:
        order, components: of the stream.
        mapped: of each dataset, whether its rows are gathered from mapped shards.
        global_batch: rows of a global batch, now.
        place: rank and world size.
        workers: loader workers.
    """
    start, stop = rank_slice(global_batch, *place)
    sources = []
    for plan, component, is_mapped in zip(order.plans, components, mapped, strict=True):
        sizes = component.order.sizes
        sources.append(
            PlannedSource(
                mapped=is_mapped,
                row_bytes=sizes.row_decoded_bytes,
                block_bytes=sizes.largest_block_bytes,
                chunk_rows=plan.chunk_rows if plan.interleaved else 0,
                rows=sizes.total_rows,
                lanes=_own_lanes(plan, global_batch, start, stop, max(1, workers)),
            )
        )
    return sources


def _own_lanes(plan: Plan, global_batch: int, start: int, stop: int, workers: int) -> np.ndarray:
    """Return which lanes one process alone delivers, that takes rows `start .. stop - 1` of a batch; bool."""
    share = global_batch // plan.ranks
    own = np.zeros(plan.ranks, bool)
    own[-(-start // share) : stop // share] = plan.workers % workers == 0
    return np.tile(own, plan.workers)


def pass_limits(
    options: StreamOptions,
    components: Sequence[Component],
    order: Order,
    read: Sequence[SourceReading],
    *,
    global_batch: int,
    threads: int,
    by_value: bool,
) -> PassLimits:
    """Return how a pass runs.

    Args:
        options, components, order: of the stream.
        read: how each dataset is read.
        global_batch: rows of a global batch, now.
        threads: that build.
        by_value: whether a function of the caller's sees every record.
    """
    local = all(component.source.is_local for component in components)
    images = components[0].source.options.images
    ahead_bytes = options.ahead_bytes or _ahead_bytes(components, local=local)
    # Each thread has a group, and others are ahead: few bytes ahead are small groups, too.
    group_bytes = min(TUNING.group_bytes, -(-ahead_bytes // 4))
    memory = options.memory_bytes
    if memory is None and local and options.ahead_bytes is None:
        budget = budget_of(options, components)
        memory = budget.memory_bytes if budget.decoded else None
    if memory is not None:
        world_size = options.rank_and_world_size[1]
        held = process_memory(order, global_batch=global_batch, world_size=world_size, read=read).held_bytes
        left = memory - held
        if options.memory_bytes is None:  # a plan that was given, or came with a state, may hold more
            left = max(left, memory // 4)
        # A quarter for what is ahead, one for the chunks of the groups that are being built and delivered,
        # one for the batches that are gathered from them, one for blocks that are decoded.
        group_bytes = max(1, min(group_bytes, left // (4 * (threads + 2))))
        ahead_bytes = max(1, min(ahead_bytes, left // 4))
    io_threads = max(TUNING.io_threads, threads, min(4 * TUNING.io_threads, ahead_bytes // group_bytes))
    if threads == 0 or local:
        io_threads = 0
    is_slow = by_value or images is not None
    group_rows = TUNING.group_rows_by_value if is_slow else TUNING.group_rows
    if images is not None:
        # A row takes its payload and the image that is made of it; one image is what most records hold.
        rows = sum(component.order.sizes.total_rows for component in components)
        payloads = sum(component.order.sizes.total_decoded_bytes for component in components) / rows
        group_bytes = max(1, int(group_bytes * payloads / (payloads + images.bytes_each)))
        ahead_bytes = max(1, int(ahead_bytes * payloads / (payloads + images.bytes_each)))
    return PassLimits(threads, io_threads, group_bytes, group_rows, ahead_bytes)


def needs_identities(options: StreamOptions, components: Sequence[Component]) -> bool:
    """Whether batches need to know which records their rows are."""
    images = components[0].source.options.images
    if options.positions or options.random_transform is not None or (images is not None and images.random):
        return True
    return any(
        isinstance(component.source, JoinedSource) or component.source.is_partitioned
        for component in components
    )


def _ahead_bytes(components: Sequence[Component], *, local: bool) -> int:
    """Return the default readahead in bytes; more for high-latency stores."""
    usual = TUNING.ahead_bytes
    if local:
        return usual
    latency = max(component.source.pool.latency() for component in components)
    if latency == float("inf"):
        return usual
    return max(usual, min(4 * usual, int(2 * latency * TUNING.bytes_per_second)))


def budget_of(options: StreamOptions, components: Sequence[Component]) -> Budget:
    """Return what the default plan of a stream may cost."""
    # Not by `mmap=`, which ranks may choose each for itself.
    local = all(component.source.is_plain_local for component in components)
    decoded = not local and all(component.source.has_local_blocks for component in components)
    memory = options.memory_bytes
    if memory is None and decoded:
        memory = decoded_memory([component.order.sizes for component in components])
    bound = {} if memory is None else {"memory_bytes": memory}
    return Budget(
        mixing=options.mixing,
        local=local,
        decoded=decoded,
        scratch_bytes=scratch_choice(options, components).bytes,
        **bound,
    )


def check_bound(
    order: Order,
    options: StreamOptions,
    read: Sequence[SourceReading],
    *,
    global_batch: int,
) -> None:
    """Raise ValueError, with both numbers, if one process of the plan needs more than the caller allows.

    A default plan is made to fit, so that this is about one that was given or came with a state.
    """
    world_size = options.rank_and_world_size[1]
    check_memory(
        order, global_batch=global_batch, world_size=world_size, memory_bytes=options.memory_bytes, read=read
    )
