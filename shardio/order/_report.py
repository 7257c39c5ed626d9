"""What a plan will cost before a run begins: requests, bytes, memory, and how far records are shuffled.

Counts of chunks, windows and steps are exact.  Bytes are shares of the shards' sizes, because a manifest does
not say how long each record is; where processes share lanes, the figures are upper bounds, as said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardio.order._plan import nearest_multiples
from shardio.order._schedule import Schedule, rank_slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.order._order import Order

__all__ = ["PlanReport", "advice", "check_memory", "report"]

_SAMPLED_STEPS = 8


@dataclass(frozen=True)
class PlanReport:
    """Give the figures of one epoch for given ranks and workers; bytes are stored bytes if not said.

    Attributes:
        rows, steps, chunks: of the epoch; for mixtures the chunks of one pass over every source.
        windows: windows read in the whole epoch, its last steps aside.
        open_windows: windows that the fullest process holds at a time.
        requests: range requests for data of all processes in an epoch, if each run of rows of a window is
            one; each comes with one for its part of the index.
        requests_per_step: the same for one global batch.
        request_bytes: mean stored bytes of one request.
        copies: how many processes fetch a chunk, in the mean over lanes: 1 where ranks and workers divide the
            plan's.
        epoch_bytes: stored bytes of the records of an epoch.
        rank_bytes: stored bytes that the busiest rank fetches, an upper bound.
        bytes_twice: stored bytes that are fetched more than once, an upper bound: by several processes, or
            because a block lies on both sides of a seam between chunks or windows.
        memory_bytes: decoded bytes of the open windows of one process and of what it fetches ahead, an
            estimate.
        window_rows, window_bytes: rows and decoded bytes of a window, the mean over sources.
        shuffle_radius: rows among which a record may come to lie by the second shuffle and the turns of the
            lanes.
        chunks_per_batch, shards_per_batch: different ones among the records of a global batch, the mean over
            sampled steps.
        tail_steps: steps at the end for which windows of all lanes are fetched once more.
    """

    rows: int
    steps: int
    chunks: int
    windows: int
    open_windows: int
    requests: int
    requests_per_step: float
    request_bytes: float
    copies: float
    epoch_bytes: int
    rank_bytes: int
    bytes_twice: int
    memory_bytes: int
    window_rows: float
    window_bytes: float
    shuffle_radius: int
    chunks_per_batch: float
    shards_per_batch: float
    tail_steps: int


@dataclass(frozen=True)
class _Load:
    """Sum up one source: bytes and pieces of what the epoch reads of it."""

    passes: float
    chunks: int
    windows: int
    pieces: int
    seams: float
    stored: float
    decoded: float
    window_decoded: float
    window_rows: int


def _loads(order: Order, schedule: Schedule) -> list[_Load]:
    period = 1 if order.mixture is None else order.mixture.period
    counts: Sequence[int] = (1,) if order.mixture is None else order.mixture.counts
    loads = []
    for number, (source, plan, count) in enumerate(zip(order.sources, order.plans, counts, strict=True)):
        sizes, rows = source.sizes, max(1, source.sizes.total_rows)
        passes = schedule.rows * count / period / rows
        epoch = order.source_epoch(0, number, 0)
        windows = epoch.window_edges().size - 1
        window_rows = min(plan.window, int(epoch.lane_lengths.max()))
        pieces = epoch.piece_count()
        blocks = max(1, sizes.total_blocks)
        # Of n rows in a block, n - 1 ends are not the block's: a seam there has the block fetched twice.
        inside = (pieces - int(np.count_nonzero(sizes.rows))) * max(0.0, 1 - blocks / rows)
        loads.append(
            _Load(
                passes=passes,
                chunks=epoch.chunks,
                windows=math.ceil(windows * passes),
                pieces=math.ceil(pieces * passes),
                seams=max(0.0, inside) * sizes.total_stored_bytes / blocks * passes,
                stored=passes * sizes.total_stored_bytes,
                decoded=passes * sizes.total_decoded_bytes,
                window_decoded=window_rows * sizes.total_decoded_bytes / rows,
                window_rows=window_rows,
            )
        )
    return loads


def _rank_columns(order: Order, global_batch: int, world_size: int) -> list[tuple[int, int]]:
    """Return for each rank the lanes [first, last + 1) of a class from which its slices take rows."""
    share = global_batch // order.ranks
    slices = [rank_slice(global_batch, rank, world_size) for rank in range(world_size)]
    return [(start // share, -(-stop // share)) for start, stop in slices]


def _sample(order: Order, schedule: Schedule) -> tuple[float, float]:
    """Return how many chunks and shards the records of a global batch come from."""
    steps = (
        sorted({schedule.stop * i // _SAMPLED_STEPS for i in range(_SAMPLED_STEPS)}) if schedule.stop else []
    )
    chunks, shards = 0, 0
    for step in steps:
        batch = schedule.batch(step)
        for number, source in enumerate(order.sources):
            positions = batch.positions[batch.sources == number]
            edges = order.source_epoch(0, number, 0).chunk_edges()
            chunks += np.unique(np.searchsorted(edges, positions, side="right")).size
            shards += np.unique(np.searchsorted(source.sizes.edges, positions, side="right")).size
    return chunks / max(1, len(steps)), shards / max(1, len(steps))


def _memory(loads: Sequence[_Load], windows: int, step_bytes: float, ahead: int) -> int:
    """Return the bytes that one process holds with so many windows of each source open."""
    # Windows end at different steps in different lanes, so what is ahead is a few windows, not all the next
    # ones; checked by simulation in benchmarks/order_plans.py.
    largest = max(load.window_decoded for load in loads)
    held = sum(load.window_decoded for load in loads) * windows
    return math.ceil(held + (ahead + 2) * max(largest, step_bytes))


def report(
    order: Order, *, global_batch: int, world_size: int = 1, workers: int = 0, ahead: int = 4
) -> PlanReport:
    """Work out the figures of the first epoch of an order.

    Args:
        order: what was laid down.
        global_batch, world_size: rows of a global batch, and how many ranks share it.
        workers: loader workers of each rank; 0 is none.
        ahead: steps for which a process fetches before it needs them.
    """
    schedule = order.schedule(0, global_batch)
    if world_size > global_batch:
        msg = f"world_size {world_size} is larger than global_batch {global_batch}: a rank would get no row"
        raise ValueError(msg)
    loads = _loads(order, schedule)
    # Worker w makes steps w, w + W, ...; the classes among them are those congruent to w modulo gcd(T, W).
    makers = max(1, workers)
    worker_copies = makers // math.gcd(order.workers, makers)
    classes = order.workers // math.gcd(order.workers, makers)
    columns = _rank_columns(order, global_batch, world_size)
    touched = sum(stop - start for start, stop in columns)
    copies = touched / order.ranks * worker_copies
    stored = sum(load.stored for load in loads)
    requests = sum(load.pieces for load in loads)
    fetched = stored + sum(load.seams for load in loads)
    widest = max(stop - start for start, stop in columns)
    open_windows = widest * classes * len(loads)
    step_bytes = sum(load.decoded for load in loads) / max(1, schedule.rows) * global_batch / world_size
    chunks_per_batch, shards_per_batch = _sample(order, schedule)
    tail_start = schedule.tail_start
    return PlanReport(
        rows=schedule.rows,
        steps=schedule.stop,
        chunks=sum(load.chunks for load in loads),
        windows=sum(load.windows for load in loads),
        open_windows=open_windows,
        requests=round(requests * copies),
        requests_per_step=requests * copies / max(1, schedule.stop),
        request_bytes=fetched / max(1, requests),
        copies=copies,
        epoch_bytes=round(stored),
        rank_bytes=round(fetched * widest / order.ranks * worker_copies),
        bytes_twice=round(fetched * copies - stored),
        memory_bytes=_memory(loads, widest * classes, step_bytes, ahead),
        window_rows=sum(load.window_rows for load in loads) / len(loads),
        window_bytes=sum(load.window_decoded for load in loads) / len(loads),
        shuffle_radius=min(
            schedule.rows, order.ranks * order.workers * sum(load.window_rows for load in loads)
        ),
        chunks_per_batch=chunks_per_batch,
        shards_per_batch=shards_per_batch,
        tail_steps=schedule.stop - tail_start,
    )


def check_memory(figures: PlanReport, memory_bytes: int | None) -> None:
    """Raise ValueError with both numbers if a process would hold more than `memory_bytes`, if given."""
    if memory_bytes is not None and figures.memory_bytes > memory_bytes:
        msg = (
            f"the plan needs {figures.memory_bytes} bytes in one process ({figures.open_windows} windows "
            f"of {figures.window_rows:.0f} rows, and what is fetched ahead), but memory_bytes is "
            f"{memory_bytes}; use a plan with a smaller window, more ranks, or a larger memory_bytes"
        )
        raise ValueError(msg)


def _near_divisors(value: int, of: int) -> str:
    below = max(d for d in range(1, min(value, of) + 1) if of % d == 0)
    above = [d for d in range(value + 1, of + 1) if of % d == 0][:1]
    return " or ".join(str(d) for d in [below, *above])


# Stored bytes below which it costs too little to speak of that chunks are fetched more than once.
_LITTLE = 64 << 20


def advice(order: Order, *, global_batch: int, world_size: int = 1, workers: int = 0) -> list[str]:
    """Return what is worth a warning about ranks and workers, one line each; empty if all divides.

    The batches are the same in any case.
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
    if apart and stored >= _LITTLE:
        lines.append(
            f"some chunks are fetched more than once: the plan is made for divisors of "
            f"{order.ranks} ranks and of {order.workers} workers, "
            f"so {' and '.join(apart)} would fetch each once"
        )
    return lines
