"""What a plan will cost before a run begins: requests, bytes, memory, and how far records are shuffled.

Counts of chunks, windows and steps are exact.  Bytes are shares of the shards' sizes, because a manifest does
not say how long each record is; where processes share lanes, the figures are upper bounds, as said.  Mixing
is measured: some batches are worked out and compared with what chance would give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardio.order._plan import ROW_BYTES, default_plans, least_first_batch, nearest_multiples
from shardio.order._schedule import Schedule, rank_slice
from shardio.order._windows import remaining_rows, select_rows
from shardio.reports import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.order._keys import Array
    from shardio.order._order import Order
    from shardio.order._plan import Budget, Plan
    from shardio.order._schedule import Lanes
    from shardio.order._sizes import ShardSizes
    from shardio.order._windows import Pieces

_AHEAD = 4  # steps for which a process fetches before it needs them
_SAMPLED_STEPS = 8
_SAMPLED_ROWS = 256
# Bytes between two runs of a file that are read, because a call costs more; as the reader does.
NEAR = 4096
# What a window holds of a record that stays in its file: number of the file, place, size and checksum.
_UNREAD_ROW_BYTES = 32


PRICE_LIST = "Amazon S3 Standard, us-east-1, as listed in January 2025"
_DOLLARS_PER_REQUEST = 0.0004 / 1000
_DOLLARS_PER_BYTE = 0.09 / 1e9  # out to the internet; within the region it is free
_LABELS = 1000
_LAGS = 64
_MIXED_STEPS = 64
_MIXED_ROWS = 1 << 20  # of all steps that are looked at


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


@dataclass(frozen=True)
class PlanReport(Report):
    """Give the figures of one epoch for given ranks and workers; bytes are stored bytes if not said.

    Attributes:
        records, steps, chunks: of the epoch; for mixtures the chunks of one pass over every source.
        windows: windows read in the whole epoch, its last steps aside.
        open_windows: windows that the fullest process holds at a time.
        requests: range requests for data of all processes in an epoch, if each run of rows of a window is
            one; each comes with one for its part of the index.
        requests_per_step: the same for one global batch.
        request_bytes: mean stored bytes of one request.
        copies: how many processes fetch a chunk, on average over lanes: 1 where ranks and workers divide the
            plan's.
        epoch_bytes: stored bytes of the records of an epoch; of a selection, with what is read beside them.
        rank_bytes: stored bytes that the busiest rank fetches, an upper bound.
        bytes_twice: stored bytes that are fetched more than once, an upper bound: by several processes,
            because a block is on both sides of a seam between chunks or windows, or for the first batch,
            whose records may be read alone and again with their windows.
        memory_bytes: decoded bytes of the open windows of one process and of what it fetches ahead, an
            estimate; of records that stay in their files until they are delivered, what windows hold in place
            of them.
        first_batch_bytes, first_batch_requests: what the fullest rank reads before its first batch, at the
            beginning of an epoch.
        resume_batch_bytes, resume_batch_requests: the same after a resume in the middle of an epoch.
        resume_bytes: what it reads by then and afterwards of the windows that are open there, on average: of
            mapped files what was not delivered yet, from elsewhere also what is between.
        step_bytes: stored bytes that all ranks read for a step, on average.
        request_dollars: what all requests of an epoch cost, those to indexes too, at the list price
            `PRICE_LIST`.
        transfer_dollars: what the bytes of an epoch cost where they leave the cloud, at the same list.
        mixing: how batches compare with random ones, in the whole job.
        rank_mixing: the same for the batches of rank 0.
        window_rows, window_bytes: rows of a window, and bytes that it holds, the mean over sources: decoded
            ones, or 32 of each record that stays in its file; of interleaved plans with 8 bytes a row for
            where each record ends, and its place.
        shuffle_radius: rows among which a record may be placed by the second shuffle and the turns of the
            lanes.
        chunks_per_batch, shards_per_batch: different ones among the records of a global batch, the mean over
            sampled steps.
        tail_steps: steps at the end for which windows of all lanes are fetched once more.
    """

    records: int
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
    first_batch_bytes: int
    first_batch_requests: int
    resume_batch_bytes: int
    resume_batch_requests: int
    resume_bytes: int
    step_bytes: float
    request_dollars: float
    transfer_dollars: float
    mixing: Mixing
    rank_mixing: Mixing
    window_rows: float
    window_bytes: float
    shuffle_radius: int
    chunks_per_batch: float
    shards_per_batch: float
    tail_steps: int


@dataclass(frozen=True)
class _Load:
    """Sum up one source: bytes and pieces of what the epoch reads of it.

    Attributes:
        edge_stored: what the ends of a run add to its rows where blocks are read whole, on average.
    """

    passes: float
    chunks: int
    windows: int
    pieces: int
    seams: float
    stored: float
    decoded: float
    window_decoded: float
    window_rows: int
    row_stored: float
    edge_stored: float


def _loads(
    order: Order,
    schedule: Schedule,
    read: Sequence[SourceReading],
    *,
    mapped: bool,
    by_block: bool,
) -> list[_Load]:
    period = 1 if order.mixture is None else order.mixture.period
    counts: Sequence[int] = (1,) if order.mixture is None else order.mixture.counts
    loads = []
    for number, (source, plan, count) in enumerate(zip(read, order.plans, counts, strict=True)):
        sizes, breaks = source.sizes, 0.0 if mapped else source.breaks
        rows = max(1, sizes.total_rows)
        passes = schedule.rows * count / period / rows
        epoch = order.source_epoch(0, number, 0)
        windows = epoch.window_count()
        window_rows = min(plan.window, -(-int(epoch.lane_lengths.max(initial=0)) // (plan.interleave or 1)))
        pieces = epoch.piece_count()
        blocks = max(1, sizes.total_blocks)
        # Of n rows in a block, n - 1 ends are not the block's: a seam there has the block fetched twice.
        inside = (pieces - int(np.count_nonzero(sizes.rows))) * max(0.0, 1 - blocks / rows) * by_block
        twice = _read_again(inside / blocks) * blocks if mapped else inside
        row = sizes.total_stored_bytes / rows
        loads.append(
            _Load(
                passes=passes,
                chunks=epoch.chunks,
                windows=math.ceil(windows * passes),
                pieces=math.ceil((pieces + breaks * (rows - pieces)) * passes),
                seams=max(0.0, twice) * sizes.total_stored_bytes / blocks * passes,
                stored=passes * sizes.total_stored_bytes,
                decoded=passes * sizes.total_decoded_bytes,
                window_decoded=window_rows * sizes.total_decoded_bytes / rows,
                window_rows=window_rows,
                row_stored=row,
                edge_stored=max(0.0, sizes.total_stored_bytes / blocks - row) * by_block,
            )
        )
    return loads


def _read_again(seams: float) -> float:
    """Return what part of a block of a mapped file is read again, with so many seams inside, on average.

    The first window that has rows of it reads it whole, so that it is compared once; the others read their
    rows alone.
    """
    few = math.floor(max(0.0, seams))
    part = seams - few
    return (1 - part) * few / (few + 1) + part * (few + 1) / (few + 2) if seams > 0 else 0.0


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
    epochs = [order.source_epoch(0, number, 0) for number in range(len(order.sources))]
    chunks, shards = 0, 0
    for step in steps:
        batch = schedule.batch(step)
        for number, source in enumerate(order.sources):
            positions = batch.positions[batch.sources == number]
            chunks += np.unique(epochs[number].chunks_of(positions)).size
            shards += np.unique(np.searchsorted(source.sizes.edges, positions, side="right")).size
    return chunks / max(1, len(steps)), shards / max(1, len(steps))


def _mixing(order: Order, schedule: Schedule, world_size: int) -> tuple[Mixing, Mixing]:
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


class BatchReading(NamedTuple):
    """Say what one process reads for a batch if it holds nothing yet.

    Attributes:
        bytes, requests: stored bytes, and requests for them.
        alone: whether the records are read alone, each with its block, because their windows have more bytes.
    """

    bytes: int
    requests: int
    alone: bool


class SourceReading(NamedTuple):
    """Say how a dataset is read.

    Attributes:
        sizes: its shards as if they held nothing but what is read for its rows, and decoded nothing but what
            is held of them: of a selection less than all.
        exact: rows of a window that are apart are read without all that is between.
        breaks: the share of neighbouring rows that are too far apart for one request.
        unread: records stay in their files until they are delivered; what windows hold is where they are.
    """

    sizes: ShardSizes
    exact: bool
    breaks: float = 0.0
    unread: bool = False

    @property
    def held_row_bytes(self) -> float:
        """Bytes that a window holds of a row, on average."""
        if self.unread:
            return _UNREAD_ROW_BYTES
        return self.sizes.total_decoded_bytes / max(1, self.sizes.total_rows)


def reading_of(
    lanes: Lanes,
    parts: Array,
    sources: Sequence[SourceReading],
    *,
    begun: bool,
    mapped: bool,
    by_block: bool,
    may_be_alone: bool,
) -> BatchReading:
    """Return what is read for the records of `parts` where nothing is held yet.

    Args:
        lanes, parts: as of `Lanes.locate`.
        sources: how each is read.
        begun: the epoch has begun: of windows that are open, what was delivered is left out.
        mapped: shards are mapped files.
        by_block: blocks are read whole, though windows end inside of them.
        may_be_alone: records may be read without their windows.
    """
    windows, window, row = lanes.locate(parts)
    bytes_, requests, records, blocks = 0.0, 0, 0, 0.0
    for source, (sizes, exact, breaks, _) in enumerate(sources):
        total = max(1, sizes.total_rows)
        stored = sizes.total_stored_bytes / total
        block = sizes.total_stored_bytes / max(1, sizes.total_blocks)
        own = np.flatnonzero(windows.source == source)
        rows = int(np.count_nonzero(windows.source[window] == source))
        records += rows
        blocks += rows * max(block, stored)
        for cycle in np.unique(windows.cycle[own]).tolist():
            some = own[windows.cycle[own] == cycle]
            chosen = windows.take(some)
            pieces, counts = lanes.many_pieces(chosen)
            order = lanes.row_order(chosen) if begun else None
            if order is not None:
                keep = remaining_rows(order, counts, some, window, row)
                pieces, _ = select_rows(pieces, keep, exact=exact)
            # Rows of one window that are apart in a mapped file are read by one call with those of others.
            runs = len(chosen) if mapped else len(pieces.shards)
            wanted = float((pieces.stops - pieces.starts).sum())
            requests += runs if mapped else runs + round(breaks * (wanted - runs))
            # Each end of a run is inside a block, which may be read, and compared, whole.
            edges = runs * max(0.0, block - stored) if by_block else 0.0
            # Rows of a selection, whose pieces are not cut, are further apart than their numbers say.
            between = _between(pieces, stored) if by_block or exact else 0
            bytes_ += (wanted + between) * stored + edges
    if may_be_alone and not mapped and blocks < bytes_:
        return BatchReading(round(blocks), records, alone=True)
    return BatchReading(round(bytes_), requests, alone=False)


def _between(pieces: Pieces, stored: float) -> int:
    """Return the rows between pieces that are so near to one another that they are read by one call."""
    apart = (pieces.starts[1:] - pieces.stops[:-1])[pieces.shards[1:] == pieces.shards[:-1]]
    return int(apart[(apart > 0) & (apart * stored <= NEAR)].sum())


def reads_alone(plans: Sequence[Plan]) -> bool:
    """Return whether the first batch of a pass may read its records alone: where windows have several."""
    return all(plan.interleaved for plan in plans) and any(plan.chunk_rows > 1 for plan in plans)


def _before_a_batch(
    order: Order,
    schedule: Schedule,
    step: int,
    world_size: int,
    *,
    mapped: bool,
    by_block: bool,
    read: Sequence[SourceReading] | None = None,
) -> BatchReading:
    """Return what rank 0 reads for a step, if it holds nothing yet."""
    if not schedule.stop:
        return BatchReading(0, 0, alone=False)
    parts, _ = schedule.parts(min(step, schedule.stop - 1), rank=0, world_size=world_size)
    return reading_of(
        schedule.lanes,
        parts,
        read or _whole(order, by_block=by_block),
        begun=step > 0,
        mapped=mapped,
        by_block=by_block,
        may_be_alone=reads_alone(order.plans),
    )


def _whole(order: Order, *, by_block: bool) -> list[SourceReading]:
    """Return how datasets are read of which every record is."""
    return [SourceReading(source.sizes, exact=not by_block) for source in order.sources]


def _left_of(plan: Plan, rows: int, stored: float, source: SourceReading) -> float:
    """Return the rows of a window that are read again where it is open, on average over its turns."""
    if not plan.interleaved:
        return rows
    left = np.unique(np.linspace(1, rows, min(rows, _SAMPLED_ROWS)).round()) if rows else np.zeros(1)
    if not source.exact:
        # From the first to the last of n rows that are left of w: (n - 1) (w + 1) / (n + 1) + 1 on average.
        between = (left - 1) * (rows + 1) / (left + 1) + 1 - left if rows else np.zeros(1)
        return float(np.mean(left + (1 - source.breaks) * between))
    # The chance that d rows on from one that is left the next one is: C(w - d, n - 1) / C(w, n).
    chance, between = left / max(1, rows), np.zeros(left.size)
    for distance in range(1, min(int(NEAR // max(1.0, stored)) + 1, rows)):
        chance = chance * np.maximum(rows - distance - left + 1, 0) / (rows - distance)
        between += chance * distance
    return float(np.mean(left + (left - 1) * between))


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
    """

    open_windows: int
    window_rows: float
    window_bytes: float
    held_bytes: int
    largest_bytes: float


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
        order, global_batch, world_size, workers, read: as of `report`.
    """
    read = read or _whole(order, by_block=True)
    columns = _rank_columns(order, global_batch, world_size)
    lanes = max(stop - start for start, stop in columns) * _classes(order, workers)
    rows, bytes_, held = [], [], 0.0
    for source, plan in zip(read, order.plans, strict=True):
        strands = plan.interleave or 1
        longest = -(-source.sizes.total_rows // (plan.lanes * strands))
        rows.append(min(plan.window, longest))
        row = source.held_row_bytes + (plan.interleave is not None) * ROW_BYTES
        bytes_.append(rows[-1] * row)
        held += bytes_[-1] * lanes * strands
    count = len(rows)
    return ProcessMemory(
        lanes * sum(plan.interleave or 1 for plan in order.plans),
        sum(rows) / count,
        sum(bytes_) / count,
        math.ceil(held),
        max(bytes_),
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
    mapped: bool = False,
    local: bool = False,
    by_block: bool = True,
    read: Sequence[SourceReading] | None = None,
) -> PlanReport:
    """Work out the figures of the first epoch of an order.

    Args:
        order: what was laid down.
        global_batch, world_size: rows of a global batch, and how many ranks share it.
        workers: loader workers of each rank; 0 is none.
        mapped: shards are mapped files: a block that was compared once is not read whole again.
        local: shards are local files, mapped or not: nothing is to be paid.
        by_block: blocks are read whole, though windows end inside of them; not of mapped files whose records
            are compared with checksums of their own.
        read: of each source, how it is read; where it is not given, every record is.
    """
    read = read or _whole(order, by_block=by_block)
    sizes = [source.sizes for source in read]
    schedule = order.schedule(0, global_batch)
    if world_size > global_batch:
        msg = f"world_size {world_size} is larger than global_batch {global_batch}: a rank would get no row"
        raise ValueError(msg)
    loads = _loads(order, schedule, read, mapped=mapped, by_block=by_block)
    before = partial(_before_a_batch, mapped=mapped, by_block=by_block, read=read)
    makers = max(1, workers)
    worker_copies = makers // math.gcd(order.workers, makers)
    memory = process_memory(
        order, global_batch=global_batch, world_size=world_size, workers=workers, read=read
    )
    columns = _rank_columns(order, global_batch, world_size)
    touched = sum(stop - start for start, stop in columns)
    copies = touched / order.ranks * worker_copies
    stored = sum(load.stored for load in loads)
    begin = before(order, schedule, 0, world_size)
    middle = schedule.tail_start // 2
    again = before(order, schedule, middle, world_size)
    mixing, rank_mixing = _mixing(order, schedule, world_size)
    requests = sum(load.pieces for load in loads)
    fetched = stored + sum(load.seams for load in loads)
    # What is read of records alone comes again with their windows.
    alone = begin.alone * world_size
    widest = max(stop - start for start, stop in columns)
    resume = sum(
        widest
        * _classes(order, workers)
        * (plan.interleave or 1)
        * (_left_of(plan, load.window_rows, load.row_stored, source) * load.row_stored + load.edge_stored)
        for plan, load, source in zip(order.plans, loads, read, strict=True)
    )
    step_rows = min(global_batch, schedule.rows)
    step_bytes = sum(load.decoded for load in loads) / max(1, schedule.rows) * step_rows / world_size
    chunks_per_batch, shards_per_batch = _sample(order, schedule)
    tail_start = schedule.tail_start
    return PlanReport(
        records=schedule.rows,
        steps=schedule.stop,
        chunks=sum(load.chunks for load in loads),
        windows=sum(load.windows for load in loads),
        open_windows=memory.open_windows,
        requests=round(requests * copies) + alone * begin.requests,
        requests_per_step=requests * copies / max(1, schedule.stop),
        request_bytes=fetched / max(1, requests),
        copies=copies,
        epoch_bytes=round(stored),
        rank_bytes=round(fetched * widest / order.ranks * worker_copies),
        bytes_twice=round(fetched * copies - stored) + alone * begin.bytes,
        memory_bytes=_with_ahead(order, sizes, memory, step_bytes),
        first_batch_bytes=begin.bytes,
        first_batch_requests=begin.requests,
        resume_batch_bytes=again.bytes,
        resume_batch_requests=again.requests,
        resume_bytes=round(max(resume, again.bytes)),
        step_bytes=fetched * copies / max(1, schedule.stop),
        request_dollars=0.0 if local else 2 * requests * copies * _DOLLARS_PER_REQUEST,
        transfer_dollars=0.0 if local else fetched * copies * _DOLLARS_PER_BYTE,
        mixing=mixing,
        rank_mixing=rank_mixing,
        window_rows=memory.window_rows,
        window_bytes=memory.window_bytes,
        shuffle_radius=min(
            schedule.rows,
            sum(
                plan.lanes * (plan.interleave or 1) * load.window_rows
                for plan, load in zip(order.plans, loads, strict=True)
            ),
        ),
        chunks_per_batch=chunks_per_batch,
        shards_per_batch=shards_per_batch,
        tail_steps=schedule.stop - tail_start,
    )


def _with_ahead(order: Order, sizes: Sequence[ShardSizes], memory: ProcessMemory, step_bytes: float) -> int:
    # Windows end at different steps in different lanes, so what is ahead is a few windows, not all the next
    # ones; checked by simulation in benchmarks/order_plans.py.
    bytes_ = math.ceil(memory.held_bytes + (_AHEAD + 2) * max(memory.largest_bytes, step_bytes))
    if order.mixture is not None:
        return bytes_
    # Nothing is held twice, so windows that are the whole dataset leave nothing to fetch ahead.
    return min(bytes_, max(memory.held_bytes, sizes[0].total_decoded_bytes))


def check_memory(
    order: Order,
    *,
    global_batch: int,
    world_size: int = 1,
    memory_bytes: int | None = None,
    read: Sequence[SourceReading] | None = None,
) -> None:
    """Raise ValueError with both numbers if a process would hold more than `memory_bytes`, if given.

    Of an interleaved plan the windows count, of a windowed one also what is fetched ahead; of records that
    stay in their files, by `read`, where they are.
    """
    if memory_bytes is None:
        return
    memory = process_memory(order, global_batch=global_batch, world_size=world_size, read=read)
    needed, what = memory.held_bytes, ""
    if not order.asked and memory.open_windows == memory.window_rows == 1:
        return  # no plan is smaller: a warning says what it takes
    if not all(plan.interleaved for plan in order.plans):
        rows = max(1, sum(source.sizes.total_rows for source in order.sources))
        row = sum(source.sizes.total_decoded_bytes for source in order.sources) / rows
        step_bytes = row * min(rows, global_batch) / world_size
        sizes = [source.sizes for source in order.sources]
        needed, what = _with_ahead(order, sizes, memory, step_bytes), ", and what is fetched ahead"
    if needed > memory_bytes:
        msg = (
            f"the plan needs {needed} bytes in one process ({memory.open_windows} windows of "
            f"{memory.window_rows:.0f} rows{what}), but memory_bytes is {memory_bytes}; use a plan with a "
            "smaller window, more ranks, or a larger memory_bytes"
        )
        raise ValueError(msg)


def _near_divisors(value: int, of: int) -> str:
    below = max(d for d in range(1, min(value, of) + 1) if of % d == 0)
    above = [d for d in range(value + 1, of + 1) if of % d == 0][:1]
    return " or ".join(str(d) for d in [below, *above])


# Stored bytes below which it costs too little to speak of that chunks are fetched more than once.
_LITTLE = 64 << 20


# How much more often than by chance labels may come again before that is worth a warning.
_TOO_OFTEN = 1.5


def _recurrence(plan: Plan, sizes: ShardSizes, parts: int = 1) -> float:
    """Return how many times as often as by chance labels of sorted records come again, in the next batches.

    Args:
        plan, sizes: of the dataset.
        parts: of so many equal parts of every batch, in one.
    """
    rows = max(1, sizes.total_rows)
    chunk, open_rows = _chunk_rows(plan, sizes), plan.lanes * plan.window
    if plan.interleave:
        open_rows = round(plan.lanes * plan.interleave * chunk)
    chunks, held = rows / chunk, max(1.0, min(rows, open_rows / parts) / chunk)
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
    bytes_ = (rows if whole else wanted) * (sizes.total_decoded_bytes / rows + ROW_BYTES) / 0.7
    return (math.ceil(bytes_ / 2**20) + 1) << 20, whole


def _weak_sources(order: Order, shuffled: Sequence[bool], parts: int = 1) -> list[int]:
    """Return the sources whose windows are too small to mix sorted records; see `Mixing.recurrence`."""
    said = shuffled or [False] * len(order.sources)
    return [
        number
        for number, (source, plan) in enumerate(zip(order.sources, order.plans, strict=True))
        if order.shuffle
        and not said[number]
        and source.sizes.total_stored_bytes >= _LITTLE
        and _recurrence(plan, source.sizes, parts) >= _TOO_OFTEN
    ]


def mixing_warning(
    order: Order, urls: Sequence[str], *, shuffled: Sequence[bool], budget: Budget | None
) -> str | None:
    """Return what a run should know if the records of some of its sources are sorted; None where all is well.

    Args:
        order: of the run.
        urls: of its sources.
        shuffled: of each, whether it was written in random order.
        budget: what a default plan may cost.
    """
    weak = _weak_sources(order, shuffled)
    if not weak:
        return None
    named = " and ".join(urls[number] for number in weak[:2])
    more = f" and {len(weak) - 2} more" if len(weak) > 2 else ""
    plans = [(order.plans[number], order.sources[number].sizes) for number in weak]
    if any(smaller_chunks(plan, sizes, budget) is not None for plan, sizes in plans):
        way = 'mixing="best" mixes more, for more requests'
    else:
        way = f"memory_bytes={max(enough_memory(*each)[0] for each in plans)} mixes as random order does"
    return (
        f"if the records of {named}{more} are sorted, by class for example, this plan mixes them too little, "
        f'which costs accuracy: {way}; metadata={{"shuffled": True}} in the dataset says that they are not '
        'sorted; see "Sorted data" in docs/shuffling.md'
    )


def _weak_mixing(
    order: Order, budget: Budget | None, global_batch: int, parts: int, shuffled: Sequence[bool]
) -> list[str]:
    """Return how little a plan mixes sorted records, and each way out with what it takes."""
    lines = []
    unbound = _without_first_batch(order, budget, global_batch)
    # A part of every batch is never mixed better than the whole.
    for number in _weak_sources(order, shuffled, parts):
        plan, sizes = order.plans[number], order.sources[number].sizes
        often, ranks = _recurrence(plan, sizes), _recurrence(plan, sizes, parts)
        weak = often >= _TOO_OFTEN
        which = f"source {number} of the mixture" if len(order.sources) > 1 else "the dataset"
        open_ = plan.lanes * (plan.interleave or 1)
        said, more = [], []
        if weak:
            said.append(
                f"batches are less mixed than random ones: {open_:,} chunks are read side by side, so labels "
                f"come again {often:.1f} times as often as by chance in the batches that follow"
            )
            more += _ways_out(plan, sizes, budget)
            if unbound is not None and (better := _recurrence(unbound[number], sizes)) < 0.9 * often:
                more.append(f"without first_batch_bytes= it is {better:.1f} times")
        if parts > 1 and ranks >= _TOO_OFTEN:
            often_ = (
                f"{ranks:.1f} times" if weak else f"labels come again {ranks:.1f} times as often as by chance"
            )
            said.append(f"{often_} in the batches of one of {parts} ranks alone")
            memory, whole = enough_memory(plan, sizes, parts)
            if not whole:
                more.append(f"memory_bytes={memory}, of which each rank holds its part, mixes theirs, too")
        if smaller_chunks(plan, sizes, budget) is not None:
            more.insert(0, 'mixing="best" mixes more for more requests')
        lines.append(
            f"if the records of {which} are sorted, {'; '.join(said)}; {', '.join(more)}, and a dataset that "
            'was written in random order, with "shuffled": true in its metadata, needs none of it'
        )
    return lines


def _ways_out(plan: Plan, sizes: ShardSizes, budget: Budget | None) -> list[str]:
    """Return what memory mixes as random order does, with chunks as they are and with smaller ones."""
    memory, whole = enough_memory(plan, sizes)
    smaller = smaller_chunks(plan, sizes, budget)
    less, all_ = (memory, whole) if smaller is None else enough_memory(smaller, sizes)
    mixes = "mixes as random order does"
    if smaller is None or all_:
        best = ' with mixing="best"' if whole else ""
        return [f"memory_bytes={memory}{best} {mixes}"]
    lines = [] if whole else [f"memory_bytes={memory} {mixes}"]
    requests = f"for {plan.chunk_rows / smaller.chunk_rows:.0f} times the requests"
    if budget is not None and less <= budget.memory_bytes:
        return [*lines, f'mixing="best" alone {mixes}, {requests}']
    return [*lines, f'memory_bytes={less} with mixing="best" {mixes}, {requests}']


def smaller_chunks(plan: Plan, sizes: ShardSizes, budget: Budget | None) -> Plan | None:
    """Return a plan with the chunks of mixing="best"; None where those are not smaller."""
    if budget is None or not plan.interleaved:
        return None
    stored = max(1.0, sizes.total_stored_bytes / max(1, sizes.total_rows))
    rows = max(1, round(replace(budget, mixing="best").chunk_bytes(sizes) / stored))
    return None if rows >= plan.chunk_rows else replace(plan, chunk_rows=rows, window=rows)


def _without_first_batch(order: Order, budget: Budget | None, global_batch: int) -> list[Plan] | None:
    """Return the plans as they would be without a bound of the first batch; None where there is none."""
    if budget is None or budget.first_batch_bytes is None:
        return None
    return default_plans(
        [source.sizes for source in order.sources],
        global_batch=global_batch,
        shuffle=order.shuffle,
        shares=None if order.mixture is None else order.mixture.counts,
        given=order.asked,
        budget=replace(budget, first_batch_bytes=None),
    )


def _large_first_batch(order: Order, budget: Budget | None, global_batch: int) -> list[str]:
    """Return a line where the first batch reads more than it may."""
    if budget is None or budget.first_batch_bytes is None:
        return []
    try:
        schedule = order.schedule(0, global_batch)
    except ValueError:
        return []  # a resumed epoch continues with a batch with which none could begin
    found = _before_a_batch(order, schedule, 0, 1, mapped=budget.local, by_block=budget.by_block).bytes
    if found <= 1.1 * budget.first_batch_bytes:
        return []
    least = least_first_batch(
        [source.sizes for source in order.sources],
        global_batch=global_batch,
        shares=None if order.mixture is None else order.mixture.counts,
        given=order.asked if all(plan.interleaved for plan in order.asked) else None,
        budget=budget,
    )
    blocks = ", since blocks are read whole" if budget.by_block else ""
    line = (
        f"the first batch reads {found} bytes in a process that delivers whole global batches, more than "
        f"first_batch_bytes={budget.first_batch_bytes}; about {least} is the least that a plan with as many "
        f"chunks side by side reads{blocks}; a smaller global_batch= reads less, and so does each of several "
        "ranks"
    )
    return [line]


def _little_memory(order: Order, budget: Budget | None, global_batch: int, world_size: int) -> list[str]:
    """Return a line where memory is too little for a record, or for chunks that are worth a request."""
    if budget is None or order.asked:
        return []
    given = f"memory_bytes={budget.memory_bytes}"
    memory = process_memory(order, global_batch=global_batch, world_size=world_size)
    if memory.open_windows == memory.window_rows == 1 and memory.held_bytes > budget.memory_bytes:
        line = (
            f"one record takes {memory.held_bytes} bytes, more than {given}: a process holds one at a time, "
            f"and what a batch takes; memory_bytes={math.ceil(memory.held_bytes / 0.7)} is the least that "
            "is kept to"
        )
        return [line]
    lines = []
    for source, plan in zip(order.sources, order.plans, strict=True):
        sizes, rows = source.sizes, max(1, source.sizes.total_rows)
        stored, block = sizes.total_stored_bytes / rows, sizes.total_stored_bytes / max(1, sizes.total_blocks)
        if budget.local or not plan.interleaved or 2 * plan.chunk_rows * stored >= block:
            continue
        least = max(1, round(budget.chunk_bytes(sizes) / stored) // 4)
        enough = math.ceil(least * (sizes.total_decoded_bytes / rows + ROW_BYTES) * len(order.sources) / 0.7)
        lines.append(
            f"{given} leaves chunks of {plan.chunk_rows} records, each read with its block: an epoch reads "
            f"{1 + (block - stored) / (plan.chunk_rows * stored):.0f} times its size in about "
            f"{rows // plan.chunk_rows:,} requests; memory_bytes={enough} is enough for chunks of {least}"
        )
    return lines


def advice(
    order: Order,
    *,
    global_batch: int,
    world_size: int = 1,
    workers: int = 0,
    budget: Budget | None = None,
    shuffled: Sequence[bool] | None = None,
) -> list[str]:
    """Return what is worth a warning about ranks, workers, mixing and the first batch, one line each.

    None if all is well. Ranks and workers do not change the batches.

    Args:
        order, global_batch, world_size, workers: as for `report`.
        budget: what a default plan may cost.
        shuffled: of each source, whether it was written in random order; None leaves mixing out.
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
    more = workers > 1 and order.workers % workers
    if apart and stored >= _LITTLE:
        lines.append(
            f"some chunks are fetched more than once: the plan is made for divisors of "
            f"{order.ranks} ranks and of {order.workers} workers, "
            f"so {' and '.join(apart)} would fetch each once"
            + (f"; a run that begins with plan=Plan(workers={workers}) does, too" if more else "")
        )
    if shuffled is not None:
        lines += _weak_mixing(order, budget, global_batch, world_size, shuffled)
    lines += _little_memory(order, budget, global_batch, world_size)
    return lines + _large_first_batch(order, budget, global_batch)
