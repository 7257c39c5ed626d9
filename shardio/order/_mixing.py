"""How well batches of sorted records are mixed: measured in an order, and expected of a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardio.order._keys import Array
from shardio.order._order import Order
from shardio.order._plan import ROW_BYTES, Budget, Plan
from shardio.order._schedule import Schedule, rank_slice
from shardio.order._sizes import ShardSizes
from shardio.reports import Report

_LABELS = 1000
_LAGS = 64
_MIXED_STEPS = 64
_MIXED_ROWS = 1 << 20  # of all steps that are looked at
# Stored bytes of a dataset that is too small for its mixing, or for chunks fetched twice, to matter.
LITTLE_BYTES = 64 << 20
# How much more often than by chance labels may come again before that is worth a warning.
TOO_OFTEN = 1.5


@dataclass(frozen=True)
class Mixing(Report):
    """Say how batches compare with random ones, were records sorted by 1,000 labels, the worst case.

    Attributes:
        distinct: different labels in a batch, of those in a random one: 1 is random.
        recurrence: pairs of one label in a batch and one of the next `lags`, of those in random ones: 1 is
            random, 2 twice too often. 1 where there are none.
        lags: over how many batches.
    """

    distinct: float
    recurrence: float
    lags: int


def measured_mixing(order: Order, schedule: Schedule, world_size: int) -> tuple[Mixing, Mixing]:
    """Return how global batches, and those of rank 0, compare with random ones, amid the epoch."""
    batch = schedule.global_batch
    count = min(_MIXED_STEPS + _LAGS, schedule.tail_start, max(2, _MIXED_ROWS // batch))
    first = max(0, (schedule.tail_start - count) // 2)
    before = np.concatenate([[0], np.cumsum([source.sizes.total_rows for source in order.sources])])
    total = int(before[-1])
    labels = min(_LABELS, total)
    found = []
    for step in range(first, first + count):
        made = schedule.batch(step)
        found.append((before[made.sources] + made.positions) * labels // total)
    own = rank_slice(batch, 0, world_size)[1]
    return _compared(found, batch, labels, total), _compared(found, max(1, own), labels, total)


def _compared(found: Sequence[Array], rows: int, labels: int, total: int) -> Mixing:
    if not found:
        return Mixing(1.0, 1.0, 0)
    seen = np.zeros((len(found), labels), np.float32)
    for step, own in enumerate(found):
        seen[step] = np.bincount(own[:rows], minlength=labels)
    each = total / labels
    # A label is missing from a random batch if all its records are among those that are not drawn.
    missing = (
        math.exp(_log_choose(total - each, rows) - _log_choose(total, rows)) if total - each >= rows else 0.0
    )
    distinct = float((seen > 0).sum(axis=1).mean()) / (labels * (1 - missing))
    lags = max(0, min(_LAGS, len(found) // 2))
    expected = rows * rows * max(0.0, each - 1) / max(1, total - 1)
    if not lags or not expected:
        return Mixing(distinct, 1.0, lags)
    pairs = sum(float((seen[lag:] * seen[:-lag]).sum()) / (len(found) - lag) for lag in range(1, lags + 1))
    return Mixing(distinct, pairs / lags / expected, lags)


def _log_choose(of: float, many: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(of - many + 1)


def recurrence(plan: Plan, sizes: ShardSizes, parts: int = 1) -> float:
    """Return how many times as often as by chance labels of sorted records come again, in the next batches.

    Args:
        plan, sizes: of the dataset.
        parts: of so many equal parts of every batch, in one.
    """
    rows = max(1, sizes.total_rows)
    chunk, open_rows = _chunk_rows(plan, sizes), plan.lanes * plan.window
    if plan.interleave:
        open_rows = round(plan.lanes * plan.interleave * chunk)
    chunks, held = rows / chunk, max(1.0, min(rows, open_rows) / parts / chunk)
    labels = min(_LABELS, rows)
    return 1 + labels * max(0.0, 1 / held - 1 / chunks) * _same_label(chunk, rows)


def _chunk_rows(plan: Plan, sizes: ShardSizes) -> float:
    rows = max(1, sizes.total_rows)
    return plan.chunk_rows or max(1.0, plan.chunk_bytes * rows / max(1, sizes.total_stored_bytes))


def _same_label(chunk: float, rows: int) -> float:
    """Return with what chance two records of a chunk have one label."""
    # Two records of chunks that are read side by side are of one chunk with a chance of 1 / their number.
    return (1 - 1 / chunk) * min(1.0, rows / min(_LABELS, rows) / chunk)


def enough_memory(plan: Plan, sizes: ShardSizes, parts: int = 1) -> tuple[int, bool]:
    """Return the `memory_bytes` with which labels of sorted records come again a tenth too often at most.

    Over a few batches that is as often as on average; over 64 a little more often, which is why the mean is
    taken to be 7 %.

    Args:
        plan, sizes: of the dataset.
        parts: of so many equal parts of every batch, in one.

    Returns:
        Bytes, and whether all chunks must be read side by side for it and so have to be smaller, too.
    """
    rows, chunk = max(1, sizes.total_rows), _chunk_rows(plan, sizes)
    same = max(1e-9, _same_label(chunk, rows))
    wanted = parts / (0.07 / (min(_LABELS, rows) * same) + chunk / rows) * chunk
    # Side by side are at most half the chunks, if not all.
    whole = wanted > rows / 2
    bytes_ = (rows if whole else wanted) * (sizes.row_decoded_bytes + ROW_BYTES) / 0.7
    return (math.ceil(bytes_ / 2**20) + 1) << 20, whole


def weak_sources(order: Order, shuffled: Sequence[bool], parts: int = 1) -> list[int]:
    """Return the sources whose windows are too small to mix sorted records; see `Mixing.recurrence`."""
    said = shuffled or [False] * len(order.sources)
    return [
        number
        for number, (source, plan) in enumerate(zip(order.sources, order.plans, strict=True))
        if order.shuffle
        and not said[number]
        and source.sizes.total_stored_bytes >= LITTLE_BYTES
        and recurrence(plan, source.sizes, parts) >= TOO_OFTEN
    ]


def smaller_chunks(plan: Plan, sizes: ShardSizes, budget: Budget | None) -> Plan | None:
    """Return a plan with the chunks of mixing="best"; None where those are not smaller."""
    if budget is None or not plan.interleaved:
        return None
    chunk = replace(budget, mixing="best").chunk_bytes(sizes)
    rows = max(1, round(chunk / max(1.0, sizes.row_stored_bytes)))
    return None if rows >= plan.chunk_rows else replace(plan, chunk_rows=rows, window=rows)
