"""What is worked out without reading a shard: the records of a step, and the cost of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardio.arguments import checked_options
from shardio.order import PlanReport, ShardSizes, advice, audit as audit_order, report
from shardio.reader import DatasetReader
from shardio.streaming._components import Component, Mix, components_of
from shardio.streaming._limits import budget_of
from shardio.streaming._stream import stream


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
            `memory_bytes`, `scratch`, `mixing`.
    """
    made = stream(ds, global_batch=global_batch, world_size=world_size, **options)
    figures = report(
        made.order,
        global_batch=global_batch,
        world_size=world_size,
        workers=workers,
        local=all(component.source.is_local for component in made.components),
        read=[
            own._replace(sizes=_selected_sizes(component))
            for component, own in zip(made.components, made.reads, strict=True)
        ],
    )
    return figures, advice(
        made.order,
        global_batch=global_batch,
        world_size=world_size,
        workers=workers,
        budget=budget_of(made.options, made.components),
        shuffled=[component.is_shuffled for component in made.components],
    )


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
