"""What is worked out without reading a shard: the records of a step, and the cost of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from shardio.arguments import checked_options
from shardio.order import (
    NEAR,
    PlanReport,
    ShardSizes,
    SourceReading,
    advice,
    audit as audit_order,
    more_scratch,
    report,
)
from shardio.reader import DatasetReader
from shardio.streaming._components import Component, Mix, components_of
from shardio.streaming._pipeline import budget_of, reads_by_block
from shardio.streaming._stream import stream

# Of a large selection, so many runs of so many rows are looked at.
_RUNS, _RUN = 64, 4096


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


def plan_report(
    ds: DatasetReader | Mix, *, global_batch: int, world_size: int = 1, workers: int = 0, **options: Any
) -> tuple[PlanReport, list[str]]:
    """Return the figures of an epoch for given ranks and loader workers, and what is worth a warning.

    Args:
        ds: from `shardio.open`, a part of it, or `shardio.mix`.
        global_batch: records of a step over all ranks.
        world_size: number of ranks.
        workers: loader processes of each rank; 0 for threads.
        options: further options of `stream` that decide the order: `shuffle`, `seed`, `remainder`, `plan`,
            `memory_bytes`, `first_batch_bytes`, `scratch`, `mixing`.
    """
    made = stream(ds, global_batch=global_batch, world_size=world_size, **options)
    mapped = all(component.source.is_mapped for component in made.components)
    # What is not compared is read without the rest of its block.
    by_block = not mapped or any(
        component.source.options.verify and reads_by_block([component]) for component in made.components
    )
    figures = report(
        made.order,
        global_batch=global_batch,
        world_size=world_size,
        workers=workers,
        mapped=mapped,
        local=all(component.source.is_local for component in made.components),
        by_block=by_block,
        read=[
            _reading_of(component, by_block=by_block, alone=plan.interleaved)._replace(
                unread=own.unread, scratch=own.scratch, record=_record_of(component)
            )
            for component, plan, own in zip(made.components, made.order.plans, made.reads, strict=True)
        ],
    )
    budget = budget_of(made.options, made.components)
    figures = replace(figures, more_scratch=more_scratch(made.order, budget, global_batch))
    return figures, advice(
        made.order,
        global_batch=global_batch,
        world_size=world_size,
        workers=workers,
        budget=budget,
        shuffled=[component.is_shuffled for component in made.components],
    )


def _record_of(component: Component) -> tuple[ShardSizes, float] | None:
    """Return shards and the bytes of a record, where records can be read without their blocks."""
    source, sizes = component.source, component.order.sizes
    options = source.options
    if not (source.has_record_checksums and options.verify and options.on_error == "raise" and len(source)):
        return None
    return sizes, sizes.total_stored_bytes / len(source)


def _reading_of(component: Component, *, by_block: bool, alone: bool) -> SourceReading:
    """Return how a dataset is read.

    Of a selection that is the blocks in which they are, or the records and what is between two that are
    near to one another. It is measured by some runs of rows, where the selection is large. What is decoded of
    them is held with all that is read, or, where windows have memory of their own, `alone`.
    """
    sizes, rows = component.order.sizes, component.order.sizes.total_rows
    live = len(component.source)
    if component.is_slice or not rows:
        return SourceReading(sizes, exact=not by_block and component.is_slice)
    record = sizes.total_stored_bytes / live
    in_block = max(1.0, live / max(1, sizes.total_blocks))
    firsts = np.unique(np.linspace(0, max(0, rows - _RUN), _RUNS).astype(np.int64))
    runs = [component.positions(np.arange(first, min(first + _RUN, rows))) for first in firsts]
    gap = min(store.network.gap for store in component.source.pool.stores.values())
    blocks, between, seen, breaks = 0, 0, 0, 0
    for run in runs:
        apart = np.diff(run) - 1
        between += int(apart[apart * record <= NEAR].sum())
        skipped = np.maximum(np.diff((run // in_block).astype(np.int64)) - 1, 0)
        near = skipped * in_block * record <= gap
        blocks += len(np.unique((run // in_block).astype(np.int64))) + int(skipped[near].sum())
        breaks += int(np.count_nonzero(~near))
        seen += len(run)
    if by_block:
        count = blocks / seen * rows
        bytes_ = count * in_block * record
    else:
        count, bytes_ = sizes.total_blocks, (1 + between / seen) * rows * record
    share = bytes_ / sizes.total_stored_bytes
    some = np.asarray(sizes.rows) > 0
    stored = np.ceil(np.asarray(sizes.stored_bytes) * share).astype(np.int64)
    whole = np.ceil(np.asarray(sizes.blocks) * (count / sizes.total_blocks)).astype(np.int64)
    held = rows / live if alone else min(1.0, share)
    decoded = np.ceil(np.asarray(sizes.decoded_bytes) * held).astype(np.int64)
    read = replace(sizes, stored_bytes=stored, decoded_bytes=decoded, blocks=np.maximum(whole, some))
    return SourceReading(read, exact=False, breaks=breaks / max(1, seen - len(runs)))
