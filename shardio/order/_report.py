"""What a plan will cost before a run begins: requests, bytes, memory, and how far records are shuffled.

Counts of chunks, windows and steps are exact.  Bytes are shares of the shards' sizes, because a manifest does
not say how long each record is; where processes share lanes, the figures are upper bounds, as said.  Mixing
is measured: some batches are worked out and compared with what chance would give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from shardio.order._keys import Array
from shardio.order._mixing import Mixing, measured_mixing
from shardio.order._order import Order
from shardio.order._plan import ROW_BYTES, RUN_BYTES, UNREAD_ROW_BYTES, Plan, reads_whole
from shardio.order._schedule import Lanes, Schedule, rank_slice
from shardio.order._sizes import ShardSizes
from shardio.order._windows import Pieces, remaining_rows, select_rows
from shardio.reports import Report

_AHEAD = 4  # steps for which a process fetches before it needs them
_SAMPLED_STEPS = 8
_SAMPLED_ROWS = 256
# Bytes between two runs of a file that are read, because a call costs more; as the reader does.
NEAR = 4096
_CHECKSUM_BYTES = 4


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
    """Give the figures of one epoch for given ranks and workers; bytes are stored bytes if not said.

    Attributes:
        records, steps, chunks: of the epoch; for mixtures the chunks of one pass over every source.
        windows: windows read in the whole epoch, its last steps aside.
        open_windows: windows that the fullest process holds at a time.
        requests: range requests for data of all processes in an epoch, at most. A dataset that fits in its
            windows takes one for each run of neighbours. Others take one for each run of rows of a window, of
            which a few come together. Parts of the index take as many again at most.
        requests_per_step: the same for one global batch.
        request_bytes: mean stored bytes of one request.
        copies: how many processes fetch a chunk, on average over lanes: 1 where ranks and workers divide the
            plan's.
        epoch_bytes: stored bytes of the records of an epoch; of a selection, with what is read beside them.
        rank_bytes: stored bytes that the busiest rank fetches, an upper bound.
        bytes_twice: stored bytes that are fetched more than once, an upper bound. Several processes may fetch
            them, or a block is on both sides of a seam between chunks or windows. Records of the first batch
            may be read alone and again with their windows.
        memory_bytes: decoded bytes of the open windows of one process and of what it fetches ahead, an
            estimate. For records that stay in their files until they are delivered, it is what windows hold
            in their place.
        scratch_bytes: decoded bytes of the open windows that one process keeps on a local disk.
        first_batch_bytes, first_batch_requests: what the fullest rank reads before its first batch, at the
            beginning of an epoch.
        resume_batch_bytes, resume_batch_requests: the same after a resume in the middle of an epoch.
        resume_bytes: what it reads by then and afterwards of the windows that are open there, on average. Of
            mapped files it is what was not delivered yet, from elsewhere also what is between. From a bucket
            it is up to three sixteenths of the windows more, which had come early.
        step_bytes: stored bytes that all ranks read for a step, on average.
        request_dollars: what all requests of an epoch cost, those to indexes too, at the prices
            `PRICES`.
        transfer_dollars: what the bytes of an epoch cost where they leave the cloud, at the same list.
        mixing: how batches compare with random ones, in the whole job.
        rank_mixing: the same for the batches of rank 0.
        window_rows, window_bytes: rows of a window, and bytes that it holds, the mean over sources. The bytes
            are decoded ones, or 32 for each record that stays in its file. Interleaved plans add 8 bytes a
            row for where each record ends, and its place.
        shuffle_radius: rows among which a record may be placed by the second shuffle and the turns of the
            lanes.
        chunks_per_batch, shards_per_batch: different ones among the records of a global batch, the mean over
            sampled steps.
        tail_steps: steps at the end for which windows of all lanes are fetched once more.
        more_scratch: bytes of scratch that a new run may be given, and how often labels of sorted records
            would come again with it, by the rule of thumb that chooses plans; see `Mixing.recurrence`.
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
    scratch_bytes: int
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
    more_scratch: tuple[tuple[int, float], ...] = ()


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
    readers: int | None,
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
        if readers and plan.interleaved and reads_whole(plan, sizes):
            # Neighbours of one process come by one request; those of others are between.
            joined = max(sizes.total_stored_bytes / RUN_BYTES, epoch.chunks * (1 - 1 / readers))
            pieces = min(pieces, math.ceil(joined) + int(np.count_nonzero(sizes.rows)))
        blocks = max(1, sizes.total_blocks)
        # Of n rows in a block, n - 1 ends are not the block's: a seam there has the block fetched twice.
        inside = (pieces - int(np.count_nonzero(sizes.rows))) * max(0.0, 1 - blocks / rows) * by_block
        twice = _read_again(inside / blocks) * blocks if mapped else inside
        loads.append(
            _Load(
                passes=passes,
                chunks=epoch.chunks,
                windows=math.ceil(windows * passes),
                pieces=math.ceil((pieces + breaks * (rows - pieces)) * passes),
                seams=max(0.0, twice) * sizes.total_stored_bytes / blocks * passes,
                stored=passes * sizes.total_stored_bytes,
                decoded=passes * sizes.total_decoded_bytes,
                window_rows=window_rows,
                row_stored=sizes.row_stored_bytes,
                edge_stored=max(0.0, sizes.block_stored_bytes - sizes.row_stored_bytes) * by_block,
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


class BatchReading(NamedTuple):
    """Say what one process reads for a batch if it holds nothing yet.

    Attributes:
        bytes, requests: stored bytes, and requests for them.
        alone: whether the records are read alone, without their windows, because those have more bytes.
        without_blocks: of each source, whether its records then come without their blocks, too, where they
            can be.
    """

    bytes: int
    requests: int
    alone: bool
    without_blocks: tuple[bool, ...] = ()


class SourceReading(NamedTuple):
    """Say how a dataset is read.

    Attributes:
        sizes: its shards as if they held nothing but what is read for its rows, and decoded nothing but what
            is held of them: of a selection less than all.
        exact: rows of a window that are apart are read without all that is between.
        breaks: the share of neighbouring rows that are too far apart for one request.
        unread: records stay in their files until they are delivered; what windows hold is where they are.
        scratch: records are kept on a local disk until they are delivered.
        record: the shards as they are, and the stored bytes of a record, where records can be read without
            their blocks; else None.
    """

    sizes: ShardSizes
    exact: bool
    breaks: float = 0.0
    unread: bool = False
    scratch: bool = False
    record: tuple[ShardSizes, float] | None = None

    @property
    def held_row_bytes(self) -> float:
        """Bytes that a window holds of a row, on average."""
        return UNREAD_ROW_BYTES if self.unread or self.scratch else self.sizes.row_decoded_bytes


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
        lanes: of an epoch.
        parts: int64 [n, 3] of (lane, start, stop): places [start, stop) of a lane.
        sources: how each is read.
        begun: the epoch has begun: of windows that are open, what was delivered is left out.
        mapped: shards are mapped files.
        by_block: blocks are read whole, though windows end inside of them.
        may_be_alone: records may be read without their windows.
    """
    windows, window, row = lanes.locate(parts)
    bytes_, requests, records, blocks, alone = 0.0, 0, 0, 0.0, 0.0
    without = []
    for source, (sizes, exact, breaks, *_, record) in enumerate(sources):
        stored, block = sizes.row_stored_bytes, sizes.block_stored_bytes
        own = np.flatnonzero(windows.source == source)
        rows = int(np.count_nonzero(windows.source[window] == source))
        records += rows
        blocks += rows * max(block, stored)
        without.append(record is not None and _needs_no_blocks(record[0], rows))
        alone += rows * (record[1] if record is not None and without[-1] else max(block, stored))
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
        return BatchReading(round(alone), records, alone=True, without_blocks=tuple(without))
    return BatchReading(round(bytes_), requests, alone=False)


def _needs_no_blocks(sizes: ShardSizes, rows: int) -> bool:
    """Tell whether the checksums of all records are little beside blocks of so many rows of the dataset."""
    blocks = rows * (sizes.block_stored_bytes - sizes.row_stored_bytes)
    shards = int(np.count_nonzero(sizes.rows))
    return rows >= 4 * shards and blocks > 2 * _CHECKSUM_BYTES * sizes.total_rows


def _between(pieces: Pieces, stored: float) -> int:
    """Return the rows between pieces that are so near to one another that they are read by one call."""
    apart = (pieces.starts[1:] - pieces.stops[:-1])[pieces.shards[1:] == pieces.shards[:-1]]
    return int(apart[(apart > 0) & (apart * stored <= NEAR)].sum())


def reads_alone(plans: Sequence[Plan]) -> bool:
    """Return whether the first batch of a pass may read its records alone: where windows have several."""
    return all(plan.interleaved for plan in plans) and any(plan.chunk_rows > 1 for plan in plans)


def before_a_batch(
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
    # One of which no row was delivered is not open yet.
    left = np.unique(np.linspace(0, max(0, rows - 1), min(max(1, rows), _SAMPLED_ROWS)).round())
    if not source.exact:
        # From the first to the last of n rows that are left of w: (n - 1) (w + 1) / (n + 1) + 1 on average.
        between = (left > 0) * ((left - 1) * (rows + 1) / (left + 1) + 1 - left)
        return float(np.mean(left + (1 - source.breaks) * between))
    # The chance that d rows on from one that is left the next one is: C(w - d, n - 1) / C(w, n).
    chance, between = left / max(1, rows), np.zeros(left.size)
    for distance in range(1, min(int(NEAR // max(1.0, stored)) + 1, rows)):
        chance = chance * np.maximum(rows - distance - left + 1, 0) / (rows - distance)
        between += chance * distance
    return float(np.mean(left + np.maximum(left - 1, 0) * between))


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
        read: how each source is read; None for whole blocks of each.
    """
    read = read or _whole(order, by_block=True)
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
    readers = None if local or mapped else world_size * max(1, workers)
    loads = _loads(order, schedule, read, mapped=mapped, by_block=by_block, readers=readers)
    before = partial(before_a_batch, mapped=mapped, by_block=by_block, read=read)
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
    mixing, rank_mixing = measured_mixing(order, schedule, world_size)
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
    if again.alone:
        # What came by itself does not come again with its windows.
        resume += again.bytes - stored / max(1, schedule.rows) * step_rows / world_size
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
        memory_bytes=with_ahead(order, sizes, memory, step_bytes),
        scratch_bytes=memory.scratch_bytes,
        first_batch_bytes=begin.bytes,
        first_batch_requests=begin.requests,
        resume_batch_bytes=again.bytes,
        resume_batch_requests=again.requests,
        resume_bytes=round(max(resume, again.bytes)),
        step_bytes=fetched * copies / max(1, schedule.stop),
        request_dollars=0.0 if local else 2 * requests * copies * PRICES.request,
        transfer_dollars=0.0 if local else fetched * copies * PRICES.byte,
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


def with_ahead(order: Order, sizes: Sequence[ShardSizes], memory: ProcessMemory, step_bytes: float) -> int:
    # Windows end at different steps in different lanes, so what is ahead is a few windows, not all the next
    # ones.
    bytes_ = math.ceil(memory.held_bytes + (_AHEAD + 2) * max(memory.largest_bytes, step_bytes))
    if order.mixture is not None:
        return bytes_
    # Nothing is held twice, so windows that are the whole dataset leave nothing to fetch ahead.
    return min(bytes_, max(memory.held_bytes, sizes[0].total_decoded_bytes))
