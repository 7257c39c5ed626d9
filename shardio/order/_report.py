"""What a plan will cost before a run begins: requests, bytes, memory, and how well it shuffles.

Requests and bytes are estimates from the sizes of the shards. Mixing is measured: some batches are worked out
and compared with what chance would give.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardio.order._mixing import Mixing, measured_mixing
from shardio.order._order import Order
from shardio.order._plan import ROW_BYTES, RUN_BYTES, UNREAD_ROW_BYTES, Plan, reads_whole
from shardio.order._schedule import rank_slice
from shardio.order._sizes import ShardSizes, chunk_counts
from shardio.reports import Report

_AHEAD = 4  # steps for which a process fetches before it needs them


class PriceList(NamedTuple):
    """What a store asks for, in dollars.

    Attributes:
        store: which one.
        listed: when its list said so.
        request, byte: of reading an object; of a byte that leaves the region, within which it is free.
    """

    store: str
    listed: str
    request: float
    byte: float


PRICES = PriceList("Amazon S3 Standard, us-east-1", "January 2025", 0.0004 / 1000, 0.09 / 1e9)


@dataclass(frozen=True)
class PlanReport(Report):
    """Estimate an epoch for given ranks and workers; bytes are stored bytes if not said otherwise.

    Counts of records and steps are exact, mixing is measured, requests are within a fifth of what is sent.

    Attributes:
        records, steps: of the epoch.
        chunks: of the epoch; of a mixture those of one pass over every source.
        requests: range requests for data of all processes. Parts of the index take as many again at most.
        copies: how many processes fetch a chunk, the mean: 1 where ranks and workers divide the plan's.
        epoch_bytes: of the records.
        fetched_bytes: what all processes fetch. It is more than `epoch_bytes` where several fetch a chunk,
            and where blocks are on both sides of a seam between chunks.
        memory_bytes: decoded bytes of the open chunks of one process and of what it fetches ahead, a bound.
        scratch_bytes: decoded bytes of open chunks that one process keeps on a local disk.
        open_windows: windows, the open parts of chunks, that the fullest process holds at a time.
        shuffle_radius: records among which a record is shuffled.
        request_dollars: what the requests of an epoch cost, those to indexes too, at the prices `PRICES`.
        transfer_dollars: what its bytes cost where they leave the cloud, at the same list.
        mixing: how batches compare with random ones, in the whole job.
        rank_mixing: the same for the batches of rank 0.
    """

    records: int
    steps: int
    chunks: int
    requests: int
    copies: float
    epoch_bytes: int
    fetched_bytes: int
    memory_bytes: int
    scratch_bytes: int
    open_windows: int
    shuffle_radius: int
    request_dollars: float
    transfer_dollars: float
    mixing: Mixing
    rank_mixing: Mixing


class _Load(NamedTuple):
    """What an epoch reads of one source.

    Attributes:
        chunks: how many there are.
        requests: for them, by one reader.
        fetched: stored bytes of them.
    """

    chunks: int
    requests: float
    fetched: float


def _load_of(plan: Plan, sizes: ShardSizes, readers: int) -> _Load:
    """Estimate what one pass over a source reads; `readers` is 0 for local files, which no request is for."""
    rows, shards = max(1, sizes.total_rows), int(np.count_nonzero(sizes.rows))
    if plan.interleaved:
        chunks, per_chunk = -(-rows // plan.chunk_rows), -(-plan.chunk_rows // plan.window)
        # A strand ends inside of a window, and is gone into inside of another one.
        cuts = round(2 * plan.lanes * plan.interleave * (1 - 1 / plan.window))
    else:
        chunks, per_chunk = int(chunk_counts(sizes, plan.chunk_bytes).sum()), 1
        cuts = rows // plan.window + plan.lanes
    requests = min(rows, chunks * per_chunk + cuts + shards)
    if readers and plan.interleaved and reads_whole(plan, sizes):
        # Neighbours of one process come by one request; those of others are between.
        joined = max(sizes.total_stored_bytes / RUN_BYTES, chunks * (1 - 1 / readers))
        requests = min(requests, math.ceil(joined) + shards)
    # Of n rows in a block, n - 1 ends are not the block's: a seam there has the block fetched twice.
    seams = (requests - shards) * max(0.0, 1 - sizes.total_blocks / rows) if readers else 0.0
    return _Load(chunks, requests, sizes.total_stored_bytes + max(0.0, seams) * sizes.block_stored_bytes)


def _rank_columns(order: Order, global_batch: int, world_size: int) -> list[tuple[int, int]]:
    """Return for each rank the lanes [first, last + 1) of a class from which its slices take rows."""
    share = global_batch // order.ranks
    slices = [rank_slice(global_batch, rank, world_size) for rank in range(world_size)]
    return [(start // share, -(-stop // share)) for start, stop in slices]


class SourceReading(NamedTuple):
    """Say what is read, and held, of a dataset.

    Attributes:
        sizes: its shards as if they held nothing but what is read for its rows, and decoded nothing but what
            is held of them: of a selection less than all.
        unread: records stay in their files until they are delivered; what is held is where they are.
        scratch: records are kept on a local disk until they are delivered.
    """

    sizes: ShardSizes
    unread: bool = False
    scratch: bool = False

    @property
    def held_row_bytes(self) -> float:
        """Bytes that a window holds of a row, on average."""
        return UNREAD_ROW_BYTES if self.unread or self.scratch else self.sizes.row_decoded_bytes


def reads_alone(plans: Sequence[Plan]) -> bool:
    """Return whether the first batch of a pass may read its records alone: where windows have several."""
    return all(plan.interleaved for plan in plans) and any(plan.chunk_rows > 1 for plan in plans)


class ProcessMemory(NamedTuple):
    """Say what the windows of the fullest process take.

    Attributes:
        open_windows: how many it holds at a time.
        window_rows: rows of one, the mean over sources.
        window_bytes: decoded bytes of one, the mean over sources, or those of what says where its records
            are, if they stay in their files; of interleaved plans with 8 bytes a row for where each record
            ends, and its place.
        held_bytes: those of all of them.
        largest_bytes: those of one of the source with the largest ones.
        scratch_bytes: decoded bytes of the records of windows that are kept on a local disk.
    """

    open_windows: int
    window_rows: float
    window_bytes: float
    held_bytes: int
    largest_bytes: float
    scratch_bytes: int


def process_memory(
    order: Order,
    *,
    global_batch: int,
    world_size: int = 1,
    workers: int = 1,
    read: Sequence[SourceReading] | None = None,
) -> ProcessMemory:
    """Return what the windows of the fullest process take.

    Args:
        order: of a stream.
        global_batch: records of a step over all ranks.
        world_size: number of ranks.
        workers: loader processes of each rank.
        read: what is held of each source; None for its decoded rows.
    """
    read = read or [SourceReading(source.sizes) for source in order.sources]
    columns = _rank_columns(order, global_batch, world_size)
    lanes = max(stop - start for start, stop in columns) * _classes(order, workers)
    rows, bytes_, held, kept = [], [], 0.0, 0.0
    for source, plan in zip(read, order.plans, strict=True):
        strands = plan.interleave or 1
        longest = -(-source.sizes.total_rows // (plan.lanes * strands))
        rows.append(min(plan.window, longest))
        row = source.held_row_bytes + (plan.interleave is not None) * ROW_BYTES
        bytes_.append(rows[-1] * row)
        held += bytes_[-1] * lanes * strands
        kept += source.scratch * rows[-1] * source.sizes.row_decoded_bytes * lanes * strands
    count = len(rows)
    return ProcessMemory(
        lanes * sum(plan.interleave or 1 for plan in order.plans),
        sum(rows) / count,
        sum(bytes_) / count,
        math.ceil(held),
        max(bytes_),
        math.ceil(kept),
    )


def _classes(order: Order, workers: int) -> int:
    """Return how many classes of lanes a worker reads: those congruent to it modulo gcd(T, W)."""
    return order.workers // math.gcd(order.workers, max(1, workers))


def report(
    order: Order,
    *,
    global_batch: int,
    world_size: int = 1,
    workers: int = 0,
    local: bool = False,
    read: Sequence[SourceReading] | None = None,
) -> PlanReport:
    """Estimate the first epoch of an order.

    Args:
        order: what was laid down.
        global_batch, world_size: rows of a global batch, and how many ranks share it.
        workers: loader workers of each rank; 0 is none.
        local: shards are local files: nothing is to be paid, and no block is fetched twice.
        read: of each source, what is read and held of it; None for all of it, decoded.
    """
    schedule = order.schedule(0, global_batch)
    if world_size > global_batch:
        msg = f"world_size {world_size} is larger than global_batch {global_batch}: a rank would get no row"
        raise ValueError(msg)
    makers = max(1, workers)
    sources = [source.sizes for source in read or order.sources]
    shares = [1.0] if order.mixture is None else [n / order.mixture.period for n in order.mixture.counts]
    passes = [
        schedule.rows * share / max(1, sizes.total_rows) for sizes, share in zip(sources, shares, strict=True)
    ]
    loads = [
        _load_of(plan, sizes, 0 if local else world_size * makers)
        for plan, sizes in zip(order.plans, sources, strict=True)
    ]
    lanes = sum(stop - start for start, stop in _rank_columns(order, global_batch, world_size))
    copies = lanes / order.ranks * (makers // math.gcd(order.workers, makers))

    def total(amounts: Iterable[float]) -> int:
        return round(sum(times * amount for times, amount in zip(passes, amounts, strict=True)))

    requests = round(copies * total(load.requests for load in loads))
    fetched = round(copies * total(load.fetched for load in loads))
    if not local and any(plan.interleaved and plan.chunk_rows > 1 for plan in order.plans):
        # Records of the first batch are fetched alone, a block for each, and again with their chunks.
        blocks = sum(sizes.total_blocks for sizes in sources)
        first = min(schedule.rows, global_batch, blocks)
        requests += first
        fetched += round(first * sum(sizes.total_stored_bytes for sizes in sources) / max(1, blocks))
    memory = process_memory(
        order, global_batch=global_batch, world_size=world_size, workers=workers, read=read
    )
    decoded = total(sizes.total_decoded_bytes for sizes in sources)
    step_bytes = decoded / max(1, schedule.rows) * min(global_batch, schedule.rows) / world_size
    mixing, rank_mixing = measured_mixing(order, schedule, world_size)
    return PlanReport(
        records=schedule.rows,
        steps=schedule.stop,
        chunks=sum(load.chunks for load in loads),
        requests=requests,
        copies=copies,
        epoch_bytes=total(sizes.total_stored_bytes for sizes in sources),
        fetched_bytes=fetched,
        memory_bytes=with_ahead(order, sources, memory, step_bytes),
        scratch_bytes=memory.scratch_bytes,
        open_windows=memory.open_windows,
        shuffle_radius=min(
            schedule.rows, sum(plan.lanes * (plan.interleave or 1) * plan.window for plan in order.plans)
        ),
        request_dollars=0.0 if local else 2 * requests * PRICES.request,
        transfer_dollars=0.0 if local else fetched * PRICES.byte,
        mixing=mixing,
        rank_mixing=rank_mixing,
    )


def with_ahead(order: Order, sizes: Sequence[ShardSizes], memory: ProcessMemory, step_bytes: float) -> int:
    # Windows end at different steps in different lanes, so what is ahead is a few windows, not all the next
    # ones.
    bytes_ = math.ceil(memory.held_bytes + (_AHEAD + 2) * max(memory.largest_bytes, step_bytes))
    if order.mixture is not None:
        return bytes_
    # Nothing is held twice, so windows that are the whole dataset leave nothing to fetch ahead.
    return min(bytes_, max(memory.held_bytes, sizes[0].total_decoded_bytes))
