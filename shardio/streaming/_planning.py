"""What a run will cost, before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.order import PlanReport, advice, report
from shardio.streaming._front import stream

if TYPE_CHECKING:
    from shardio.reader import DatasetReader
    from shardio.streaming._mix import Mix

__all__ = ["plan_report"]


def plan_report(
    ds: DatasetReader | Mix, *, global_batch: int, world_size: int = 1, workers: int = 0, **options: Any
) -> tuple[PlanReport, list[str]]:
    """Return the figures of an epoch for given ranks and loader workers, and what is worth a warning.

    Args:
        ds: as for `stream`.
        global_batch: as for `stream`.
        world_size: number of ranks.
        workers: loader worker processes of each rank; 0 for threads.
        options: further options of `stream` that decide the order: `shuffle`, `seed`, `remainder`, `plan`.
    """
    made = stream(ds, global_batch=global_batch, world_size=world_size, **options)
    figures = report(made.order, global_batch=global_batch, world_size=world_size, workers=workers)
    return figures, advice(made.order, global_batch=global_batch, world_size=world_size, workers=workers)
