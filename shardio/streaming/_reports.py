"""What is worked out without reading a shard: the records of a step, and estimates of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.arguments import checked_options
from shardio.order import Mixing, Plan, ShardSizes, audit as audit_order, measured_mixing
from shardio.reader import DatasetReader
from shardio.reports import Report
from shardio.streaming._advice import advice
from shardio.streaming._components import Component, Mix, components_of
from shardio.streaming._plans import open_bytes
from shardio.streaming._stream import Stream, stream
from shardio.streaming._tuning import TUNING

_AHEAD = 6  # steps or windows for which a process fetches before it needs them


class AuditedRecord(NamedTuple):
    """One record of a step.

    Attributes:
        source: number of its dataset in the mixture; 0 without one.
        position: in its dataset, as the stream was given it: `ds[position]` is the record.
        shard: key of its shard.
        row: within the shard.
        valid: False where `remainder="pad"` filled the step up.
        url: of the shard's file, which for adopted shards may be outside of the dataset's folder.
    """

    source: int
    position: int
    shard: str
    row: int
    valid: bool
    url: str


@checked_options
def audit(
    ds: DatasetReader | Mix, state: Mapping[str, Any], step: int, *, rank: int = 0, world_size: int = 1
) -> list[AuditedRecord]:
    """Return which records a rank got, or will get, in a step of the state's epoch, in order.

    Reads no shard. Earlier steps went through the batches of the state; later ones continue with its last.

    Raises:
        ResumeError: the state is damaged or belongs to another dataset.
        IndexError: the epoch has no such step.
    """
    components = components_of(ds)
    sources = [component.order for component in components]
    batch = audit_order(state, sources, step, rank=rank, world_size=world_size)
    records = []
    rows = zip(batch.sources.tolist(), batch.positions.tolist(), batch.valid.tolist(), strict=True)
    for number, local, valid in rows:
        component = components[number]
        source = component.source
        shard, row = source.shard_of(component.position(local))
        where = (source.table.key[shard], row, valid, source.pool.url_of(shard))
        records.append(AuditedRecord(number, local, *where))
    return records


@dataclass(frozen=True)
class PlanReport(Report):
    """Estimates of an epoch for given ranks and workers; bytes are stored bytes if not said otherwise.

    Counts of records and steps are exact, mixing is measured, requests are within a fifth of what is sent.

    Attributes:
        records, steps: of the epoch.
        requests: for data, of all processes; 0 for local files. Parts of the index take as many again at
            most.
        epoch_bytes: of the records.
        fetched_bytes: what all processes fetch. It is more than `epoch_bytes` where several fetch a chunk,
            and where blocks are on both sides of a seam between chunks.
        memory_bytes: decoded bytes of the open chunks of one process and of what it fetches ahead, a bound.
        scratch_bytes: decoded bytes of open chunks that one process keeps on a local disk.
        scratch: the folder of the file with these; None where open chunks are held in memory.
        shuffle_radius: records among which a record is shuffled.
        mixing: how batches compare with random ones, in the whole job.
        rank_mixing: the same for the batches of rank 0.
    """

    records: int
    steps: int
    requests: int
    epoch_bytes: int
    fetched_bytes: int
    memory_bytes: int
    scratch_bytes: int
    scratch: str | None
    shuffle_radius: int
    mixing: Mixing
    rank_mixing: Mixing


def plan_report(
    ds: DatasetReader | Mix, *, global_batch: int, world_size: int = 1, workers: int = 0, **options: Any
) -> tuple[PlanReport, list[str]]:
    """Return estimates of an epoch for given ranks and loader workers, and what is worth a warning.

    Args:
        ds: from `shardio.open`, a part of it, or `shardio.mix`.
        global_batch: records of a step over all ranks.
        world_size: number of ranks.
        workers: loader processes of each rank; 0 for threads.
        options: further options of `stream` that decide the order: `shuffle`, `seed`, `remainder`, `plan`,
            `memory_bytes`, `scratch`, `mixing`.
    """
    made = stream(ds, global_batch=global_batch, world_size=world_size, **options)
    sentences = advice(
        made.order,
        made.resources,
        global_batch=global_batch,
        world_size=world_size,
        workers=workers,
        shuffled=[component.is_shuffled for component in made.components],
    )
    return _estimate(made, world_size, workers), sentences


class _Reads(NamedTuple):
    """What one pass over a dataset reads: requests, and stored bytes."""

    requests: float
    fetched: float


def _estimate(made: Stream, world_size: int, workers: int) -> PlanReport:
    order, global_batch = made.order, made.global_batch
    schedule = order.schedule(0, global_batch)
    sizes = [_selected_sizes(component) for component in made.components]
    local = all(component.source.is_local for component in made.components)
    shares = [1.0] if order.mixture is None else [n / order.mixture.period for n in order.mixture.counts]
    passes = [
        schedule.rows * share / max(1, each.total_rows) for each, share in zip(sizes, shares, strict=True)
    ]

    def total(amounts: Iterable[float]) -> float:
        return sum(times * amount for times, amount in zip(passes, amounts, strict=True))

    processes = world_size * max(1, workers)
    opens_all = sum(each.total_decoded_bytes for each in sizes) <= TUNING.first_bytes
    first = 0 if local or opens_all else _first_records(made, sizes)
    alone = 0 if opens_all or first else global_batch
    reads = [
        _reads_of(plan, each, processes, alone, opens_all=opens_all)
        for plan, each in zip(order.plans, sizes, strict=True)
    ]
    copies = order.readers_per_window(global_batch, world_size, workers)
    epoch_bytes = total(each.total_stored_bytes for each in sizes)
    requests, fetched = 0.0, copies * epoch_bytes
    if not local:
        blocks = max(1, sum(each.total_blocks for each in sizes))
        requests = copies * total(each.requests for each in reads) + first
        fetched = copies * total(each.fetched for each in reads)
        fetched += first * sum(each.total_stored_bytes for each in sizes) / blocks
    place = {"global_batch": global_batch, "world_size": world_size, "workers": workers}
    held = open_bytes(order, made.row_bytes, **place)
    decoded = [each.row_decoded_bytes for each in sizes]
    on_scratch = [made.scratch is not None and not component.source.is_local for component in made.components]
    step_rows = min(global_batch, schedule.rows) / world_size
    largest = max(
        [step_rows * total(each.total_decoded_bytes for each in sizes) / max(1, schedule.rows)]
        + [
            windows.rows * row
            for windows, row in zip(order.open_windows(global_batch), made.row_bytes, strict=True)
        ]
    )
    memory = math.ceil(held + _AHEAD * largest)
    if order.mixture is None:
        # Nothing is held twice, so windows that are the whole dataset leave nothing to fetch ahead.
        memory = min(memory, max(held, sizes[0].total_decoded_bytes))
    mixing, rank_mixing = measured_mixing(order, schedule, world_size)
    return PlanReport(
        records=schedule.rows,
        steps=schedule.stop,
        requests=round(requests),
        epoch_bytes=round(epoch_bytes),
        fetched_bytes=round(fetched),
        memory_bytes=memory,
        scratch_bytes=open_bytes(
            order, [row * kept for row, kept in zip(decoded, on_scratch, strict=True)], **place
        )
        if any(on_scratch)
        else 0,
        scratch=made.scratch,
        shuffle_radius=min(schedule.rows, sum(plan.open_windows * plan.window for plan in order.plans)),
        mixing=mixing,
        rank_mixing=rank_mixing,
    )


def _reads_of(plan: Plan, sizes: ShardSizes, processes: int, alone: int, *, opens_all: bool) -> _Reads:
    """Estimate what one pass over a dataset in a bucket reads.

    Args:
        plan, sizes: of the dataset.
        processes: that read it.
        alone: windows of the first step that are opened without others of their chunks, at most.
        opens_all: the first step opens what it can.
    """
    rows, shards = max(1, sizes.total_rows), int(np.count_nonzero(sizes.rows))
    chunks = -(-rows // plan.chunk_rows)
    windows = chunks * -(-plan.chunk_rows // plan.window)
    # A strand begins inside of a window, and most of its ends come with the beginning of the next one.
    requests = min(rows, windows + round(plan.open_windows * (1 - 1 / plan.window)) + shards)
    stored = sizes.total_stored_bytes
    if chunks == 1 or (opens_all and plan.open_windows * plan.window >= rows):
        # All is opened at once, by calls that read what lies side by side.
        requests = min(requests, max(math.ceil(stored / TUNING.task_bytes), processes) + shards - 1)
    elif 3 * plan.open_windows * plan.window >= 2 * rows:
        # Windows of one chunk come by one request.
        joined = max(math.ceil(stored / TUNING.run_bytes), chunks) + min(alone, plan.open_windows)
        requests = min(requests, joined + shards)
    # Of n rows in a block, n - 1 ends are not the block's: a seam there has the block fetched twice.
    seams = max(0.0, requests - shards) * max(0.0, 1 - sizes.total_blocks / rows)
    return _Reads(requests, stored + seams * sizes.block_stored_bytes)


def _first_records(made: Stream, sizes: list[ShardSizes]) -> int:
    """Return how many records of the first batch are fetched alone, a block for each, before their chunks."""
    order, rows = made.order, made.global_batch
    windows = sum(
        min(rows, each.number) * each.rows * size.row_decoded_bytes
        for each, size in zip(order.open_windows(rows), sizes, strict=True)
    )
    blocks = sum(each.total_blocks for each in sizes)
    block_bytes = max(max(each.largest_block_bytes, each.row_decoded_bytes) for each in sizes)
    if windows <= rows * block_bytes:
        return 0
    return min(rows, blocks)


def _selected_sizes(component: Component) -> ShardSizes:
    """Return the sizes of what is read of a dataset: of a selection the blocks that hold its records.

    Its records are taken to be anywhere.
    """
    sizes, live = component.order.sizes, len(component.source)
    if component.is_slice or not sizes.total_rows:
        return sizes
    chosen = sizes.total_rows / live
    touched = 1 - (1 - chosen) ** max(1.0, live / max(1, sizes.total_blocks))
    return ShardSizes(
        sizes.rows,
        _scaled(sizes.stored_bytes, touched),
        _scaled(sizes.decoded_bytes, chosen),
        np.maximum(_scaled(sizes.blocks, touched), np.asarray(sizes.rows) > 0),
    )


def _scaled(column: ArrayLike, share: float) -> NDArray[np.int64]:
    return np.ceil(np.asarray(column) * share).astype(np.int64)
