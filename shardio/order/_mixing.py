"""How well batches of sorted records are mixed: measured in an order, and expected of a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardio.order._keys import Array
from shardio.order._order import Order
from shardio.order._plan import Plan
from shardio.order._schedule import Schedule, rank_slice
from shardio.reports import Report

_LABELS = 1000
_LAGS = 64
_MIXED_STEPS = 64
_MIXED_ROWS = 1 << 20  # of all steps that are looked at


@dataclass(frozen=True)
class Mixing(Report):
    """How batches compare with random ones, were records sorted by 1,000 labels, the worst case.

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


def recurrence(plan: Plan, rows: int, parts: int = 1) -> float:
    """Return how many times as often as by chance labels of sorted records recur in the next batches.

    Args:
        plan: of the dataset.
        rows: of the dataset.
        parts: of so many equal parts of every batch, in one.
    """
    rows = max(1, rows)
    chunks, labels = rows / plan.chunk_rows, min(_LABELS, rows)
    open_chunks = max(1.0, min(chunks, plan.open_windows) / parts)
    # Two records of chunks that are read concurrently are of one chunk with a chance of 1 / their number, and
    # of one label if they are.
    same_label = (1 - 1 / plan.chunk_rows) * min(1.0, rows / labels / plan.chunk_rows)
    return 1 + labels * max(0.0, 1 / open_chunks - 1 / chunks) * same_label
