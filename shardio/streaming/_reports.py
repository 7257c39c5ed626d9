"""What is worked out without reading a shard: the records of a step, and estimates of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.arguments import checked_options
from shardio.order import Mixing, Plan, ShardSizes, audit as audit_order, measured_mixing
from shardio.reader import DatasetReader
from shardio.reports import Report
from shardio.streaming._advice import advice, mixing_advice
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
    order, resources = made.order, made.resources
    urls = [component.order.identity.url or component.source.url for component in made.components]
    shuffled = [component.is_shuffled for component in made.components]
    mixing = mixing_advice(order, resources, urls, shuffled=shuffled, parts=world_size)
    others = advice(order, resources, global_batch=global_batch, world_size=world_size, workers=workers)
    return _estimate(made, world_size, workers), [*others, *([] if mixing is None else [mixing])]


def _estimate(made: Stream, world_size: int, workers: int) -> PlanReport:
    order, global_batch = made.order, made.global_batch
    schedule = order.schedule(0, global_batch)
    sizes = [_selected_sizes(component) for component in made.components]
    is_local = all(component.source.is_local for component in made.components)
    shares = [1.0] if order.mixture is None else [n / order.mixture.period for n in order.mixture.counts]
    passes = [
        schedule.rows * share / max(1, each.total_rows) for each, share in zip(sizes, shares, strict=True)
    ]
    epoch_bytes = sum(times * each.total_stored_bytes for times, each in zip(passes, sizes, strict=True))
    copies = order.readers_per_window(global_batch, world_size, workers)
    place = {"global_batch": global_batch, "world_size": world_size, "workers": workers}
    windows = order.open_windows(global_batch)
    requests, fetched = 0.0, copies * epoch_bytes
    if not is_local:
        if sum(each.total_decoded_bytes for each in sizes) > TUNING.first_bytes:
            # The first batch waits for its records alone.
            requests = min(global_batch, sum(each.total_blocks for each in sizes))
        fetched += requests * max(each.block_stored_bytes for each in sizes)
        for times, plan, each in zip(passes, order.plans, sizes, strict=True):
            own = copies * times * _requests(plan, each, world_size * max(1, workers))
            # Of n rows in a block, n - 1 ends are not the block's: a seam there has the block fetched twice.
            seams = max(0.0, own - len(each)) * max(0.0, 1 - each.total_blocks / max(1, each.total_rows))
            requests, fetched = requests + own, fetched + seams * each.block_stored_bytes
    held = open_bytes(order, made.row_bytes, **place)
    decoded = [each.row_decoded_bytes for each in sizes]
    step_bytes = min(global_batch, schedule.rows) / world_size * max(decoded)
    largest = max(step_bytes, *(each.rows * row for each, row in zip(windows, made.row_bytes, strict=True)))
    memory = math.ceil(held + _AHEAD * largest)
    if order.mixture is None:
        # Nothing is held twice, so windows that are the whole dataset leave nothing to fetch ahead.
        memory = min(memory, max(held, sizes[0].total_decoded_bytes))
    kept = [0.0 if each.source.is_local else row for each, row in zip(made.components, decoded, strict=True)]
    mixing, rank_mixing = measured_mixing(order, schedule, world_size)
    return PlanReport(
        records=schedule.rows,
        steps=schedule.stop,
        requests=round(requests),
        epoch_bytes=round(epoch_bytes),
        fetched_bytes=round(fetched),
        memory_bytes=memory,
        scratch_bytes=0 if made.scratch is None else open_bytes(order, kept, **place),
        scratch=made.scratch,
        shuffle_radius=min(schedule.rows, sum(plan.open_windows * plan.window for plan in order.plans)),
        mixing=mixing,
        rank_mixing=rank_mixing,
    )


def _requests(plan: Plan, sizes: ShardSizes, processes: int) -> float:
    """Estimate the requests of one pass over a dataset in a bucket.

    Args:
        plan, sizes: of the dataset.
        processes: that read it.
    """
    rows, shards, stored = max(1, sizes.total_rows), len(sizes), sizes.total_stored_bytes
    chunks = -(-rows // plan.chunk_rows)
    if chunks == 1:
        # All is opened at once, by calls that read what lies side by side.
        return max(math.ceil(stored / TUNING.task_bytes), processes) + shards - 1
    # A strand begins inside of a window, and most of its ends come with the beginning of the next one.
    windows = chunks * -(-plan.chunk_rows // plan.window) + round(plan.open_windows * (1 - 1 / plan.window))
    if 3 * plan.open_windows * plan.window >= 2 * rows:
        # Windows of one chunk come by one request.
        windows = min(windows, max(math.ceil(stored / TUNING.run_bytes), chunks))
    return min(rows, windows + shards)


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
