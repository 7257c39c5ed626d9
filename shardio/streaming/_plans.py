"""What the default plan of a stream is made for: storage, memory, scratch and mixing; and what it costs.

What is worth a warning about a plan is said in at most three sentences, each with what to do instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardio.order import ROW_BYTES, Budget, nearest_multiples, recurrence
from shardio.streaming._arena import FREE_TIMES, find_folder, launched, scratch_bytes
from shardio.streaming._options import MIXINGS, TUNING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.order import Order, ShardSizes
    from shardio.streaming._components import Component
    from shardio.streaming._options import StreamOptions

# Of `memory_bytes`, what open windows may take; the rest is for what is fetched and built ahead.
_WINDOWS_SHARE = 0.7
# A chunk of mapped files, where it costs no request; of buckets, small records are read by so much that there
# is less than a request for a MiB though strands and shards cut chunks in two, larger ones by less, so that
# there are more chunks to mix.
_LOCAL_CHUNK = 32 << 10
_MOST_CHUNK = 5 << 18
_LEAST_CHUNK = 256 << 10
_ONE_CHUNK = 1 << 34
# Of compressed local files, whose blocks at the two ends of a chunk are decoded by two chunks. Two blocks
# cost a quarter more CPU than eight, which mix sorted records at twice chance.
_DECODED_BLOCKS = 3
# In storage order nothing is mixed, so chunks are large; blocks at their ends are read twice.
_STORAGE_ORDER_CHUNK = 16 << 20
# On a local disk chunks have room that are worth a request each. From so many on, larger ones mix as well.
_SCRATCH_CHUNKS = 8192
_SCRATCH_CHUNK = 17 << 16
_MOST_SCRATCH_CHUNK = 2 << 20
# Bytes held for a record that stays in its file, or in scratch, until it is delivered: an entry of its chunk
# with place, size and checksum.
UNREAD_ROW_BYTES = 16
# Stored bytes of a dataset that is too small for its mixing, or for chunks fetched twice, to matter.
_LITTLE_BYTES = 64 << 20
# How much more often than by chance labels may recur before that is worth a warning.
_TOO_OFTEN = 1.5


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a stream may use.

    Attributes:
        is_local: shards are uncompressed local files, of which small chunks cost little.
        has_local_blocks: shards are local files of compressed blocks. Where neither is so, a chunk costs a
            request.
        memory_bytes: what a process that delivers whole global batches may hold beside them.
        scratch_bytes: what such a process may keep of open chunks on a local disk.
        mixing: "default", "best" for smaller chunks, "cheap" for larger ones.
        shuffle: False for storage order.
    """

    is_local: bool = False
    has_local_blocks: bool = False
    memory_bytes: int = 512 << 20
    scratch_bytes: int = 0
    mixing: str = "default"
    shuffle: bool = True

    @classmethod
    def of_stream(cls, options: StreamOptions, components: Sequence[Component]) -> Resources:
        """Return what a stream may use."""
        # Not by `mmap=`, which ranks may choose each for itself.
        is_local = all(component.source.is_plain_local for component in components)
        return cls(
            is_local=is_local,
            has_local_blocks=not is_local
            and all(component.source.has_local_blocks for component in components),
            memory_bytes=options.memory_bytes or cls.memory_bytes,
            scratch_bytes=scratch_bytes(options, components),
            mixing=options.mixing,
            shuffle=options.shuffle,
        )

    def budgets(self, sources: Sequence[ShardSizes], shares: Sequence[int] = (1,)) -> list[Budget]:
        """Return what the default plan of each source may cost, given the places of each in a period."""
        memory = self.memory_bytes
        whole = sum(sizes.total_decoded_bytes + ROW_BYTES * sizes.total_rows for sizes in sources)
        needs_requests = not (self.is_local or self.has_local_blocks)
        # As soon as not all of it can be open in memory.
        on_scratch = needs_requests and memory * _WINDOWS_SHARE < min(self.scratch_bytes, whole)
        budgets = []
        for sizes, share in zip(sources, shares, strict=True):
            part = share / sum(shares)
            open_bytes = memory * _WINDOWS_SHARE * part
            if on_scratch:
                row = sizes.row_decoded_bytes + ROW_BYTES
                most = open_bytes / (UNREAD_ROW_BYTES + ROW_BYTES) * row
                open_bytes = max(open_bytes, min(self.scratch_bytes * part, most))
            chunk_bytes = self._chunk_bytes(sizes, open_bytes if on_scratch else 0)
            run_bytes = TUNING.run_bytes if needs_requests else 0
            budgets.append(Budget(open_bytes=int(open_bytes), chunk_bytes=chunk_bytes, run_bytes=run_bytes))
        return budgets

    def _chunk_bytes(self, sizes: ShardSizes, scratch: float) -> float:
        """Return the stored bytes that a chunk should have, given what scratch holds, or 0."""
        if not self.shuffle:
            return _STORAGE_ORDER_CHUNK
        if scratch:
            size = min(max(scratch / _SCRATCH_CHUNKS, _SCRATCH_CHUNK), _MOST_SCRATCH_CHUNK)
        elif self.is_local:
            size = _LOCAL_CHUNK
        else:
            size = min(max(_ONE_CHUNK / max(1.0, sizes.row_stored_bytes), _LEAST_CHUNK), _MOST_CHUNK)
            if self.has_local_blocks:
                size = min(max(_DECODED_BLOCKS * sizes.block_stored_bytes, _LOCAL_CHUNK), size)
        size *= MIXINGS[self.mixing]
        return min(size, _LEAST_CHUNK) if self.mixing == "best" else size


def open_bytes(
    order: Order,
    row_bytes: Sequence[float],
    *,
    global_batch: int,
    world_size: int = 1,
    workers: int = 1,
) -> int:
    """Return the bytes of the windows that the fullest process has open.

    Args:
        order: of a stream.
        row_bytes: what is held of a record of each source, beside 8 bytes, on average.
        global_batch: records of a step over all ranks.
        world_size: number of ranks.
        workers: loader processes of each rank.
    """
    windows = order.open_windows(global_batch, world_size, workers)
    return math.ceil(
        sum(
            each.number * each.rows * (held + ROW_BYTES)
            for each, held in zip(windows, row_bytes, strict=True)
        )
    )


def check_memory(
    order: Order,
    row_bytes: Sequence[float],
    memory_bytes: int | None,
    *,
    global_batch: int,
    world_size: int = 1,
) -> None:
    """Raise ValueError with both numbers if the open windows of a process need more than `memory_bytes`.

    A default plan is made to fit, so this is about one that was given or came with a state. `row_bytes` is
    that of `open_bytes`.
    """
    windows = order.open_windows(global_batch, world_size)
    if memory_bytes is None or (not order.asked and all(each == (1, 1) for each in windows)):
        return  # no plan is smaller than one record: a warning says what it takes
    needed = open_bytes(order, row_bytes, global_batch=global_batch, world_size=world_size)
    if needed > memory_bytes:
        count, rows = (sum(column) for column in zip(*windows, strict=True))
        raise ValueError(
            f"the plan needs {needed} bytes in one process ({count} windows of {rows / len(windows):.0f} rows"
            f"), but memory_bytes={memory_bytes}; use a plan with a smaller window, more ranks, or a larger "
            "memory_bytes="
        )


def scratch_folder(
    order: Order,
    options: StreamOptions,
    components: Sequence[Component],
    row_bytes: Sequence[float],
    memory_bytes: int,
    *,
    global_batch: int,
) -> str | None:
    """Return the folder of scratch for the open chunks of a plan; None where they are held in memory.

    Args:
        order, options, components, global_batch: of the stream.
        row_bytes: of `open_bytes`, were everything held in memory.
        memory_bytes: that open chunks may take.

    Raises:
        ValueError: neither memory nor a disk has room for them; says what has.
    """
    if all(component.source.is_local for component in components):
        return None
    if open_bytes(order, row_bytes, global_batch=global_batch) <= memory_bytes:
        return None
    world_size = options.rank_and_world_size[1]
    own = open_bytes(order, row_bytes, global_batch=global_batch, world_size=world_size)
    size = own * launched("LOCAL_WORLD_SIZE")  # ranks of one machine share its disk
    folder, refusal = find_folder(options, components, size)
    # A plan of the caller's may take what it takes, where nothing bounds it.
    if folder is not None or own <= memory_bytes or (order.asked and options.memory_bytes is None):
        return folder
    raise ValueError(
        f"the plan keeps {own} bytes of open chunks in this process, more than memory_bytes={memory_bytes}, "
        f"and there is no scratch for them: {refusal}. Give scratch= with a folder on a local disk that has "
        f"{FREE_TIMES * size} bytes free, or memory_bytes={own}; a new run may give scratch=False, in all "
        "its ranks"
    )


def advice(
    order: Order, resources: Resources, *, global_batch: int, world_size: int = 1, workers: int = 0
) -> list[str]:
    """Return what is worth a warning about memory, ranks and workers: at most two sentences.

    Args:
        order, resources: of a stream.
        global_batch: records of a step over all ranks.
        world_size: number of ranks.
        workers: loader processes of each rank; 0 for threads.
    """
    sentences = [
        _memory_advice(order, resources, global_batch, world_size),
        _ranks_advice(order, global_batch, world_size, workers),
    ]
    return [sentence for sentence in sentences if sentence is not None]


def _ranks_advice(order: Order, global_batch: int, world_size: int, workers: int) -> str | None:
    """Return what to do where slices of the batch differ, or several processes fetch a chunk."""
    if global_batch % world_size:
        both = math.lcm(order.ranks, world_size)
        near = nearest_multiples(global_batch, both if both <= 2 * global_batch else world_size)
        low, high = global_batch // world_size, -(-global_batch // world_size)
        return (
            f"global_batch={global_batch} gives {world_size} ranks slices of {low} and {high} rows: weigh "
            f"the mean loss of a rank by rows * {world_size} / {global_batch}, or use a batch of "
            f"{' or '.join(map(str, near))}"
        )
    stored = sum(source.sizes.total_stored_bytes for source in order.sources)
    shared = order.ranks % world_size or order.workers % max(1, workers)
    if not shared or stored < _LITTLE_BYTES:
        return None
    return (
        f"some chunks are fetched more than once: the plan suits numbers of ranks that divide {order.ranks}, "
        f"and of workers that divide {order.workers}; a new run may begin with plan=Plan(workers={workers})"
    )


def mixing_advice(
    order: Order, resources: Resources, urls: Sequence[str], *, shuffled: Sequence[bool], parts: int = 1
) -> str | None:
    """Return what to do if records are sorted; None where the plan mixes them well enough.

    Args:
        order, resources: of the stream.
        urls: of its sources.
        shuffled: of each, whether it was written in random order.
        parts: ranks, whose own batches are looked at; 1 for global batches.
    """
    if not order.shuffle:
        return None
    often = {
        url: recurrence(plan, source.sizes.total_rows, parts)
        for url, source, plan, is_shuffled in zip(urls, order.sources, order.plans, shuffled, strict=True)
        if not is_shuffled and source.sizes.total_stored_bytes >= _LITTLE_BYTES
    }
    weak = [url for url, times in often.items() if times >= _TOO_OFTEN]
    if not weak:
        return None
    if not (resources.is_local or resources.has_local_blocks or resources.scratch_bytes):
        way = "scratch= with a folder on a local disk mixes nearly as well as random order"
    elif resources.mixing != "best":
        way = 'mixing="best" mixes more, for more requests'
    else:
        way = "a larger memory_bytes= mixes more"
    more = f" and {len(weak) - 2} more" if len(weak) > 2 else ""
    return (
        f"if the records of {' and '.join(weak[:2])}{more} are sorted, this plan mixes them too little: "
        f"labels recur {max(often.values()):.1f} times as often as by chance; {way}; "
        'metadata={"shuffled": True} marks a dataset as not sorted; see "Sorted data" in docs/shuffling.md'
    )


def _memory_advice(order: Order, resources: Resources, global_batch: int, world_size: int) -> str | None:
    """Return what to do where memory is too little for a record, or for chunks that are worth a request."""
    if order.asked:
        return None
    sizes = [source.sizes for source in order.sources]
    memory = resources.memory_bytes
    windows = order.open_windows(global_batch, world_size)
    decoded = [each.row_decoded_bytes for each in sizes]
    held = open_bytes(order, decoded, global_batch=global_batch, world_size=world_size)
    if all(each == (1, 1) for each in windows) and held > memory:
        return (
            f"one record takes {held} bytes, more than memory_bytes={memory}: a process holds one at a time, "
            f"and a batch; give memory_bytes={math.ceil(held / 0.7)} or more"
        )
    for each, plan, budget in zip(
        sizes, order.plans, resources.budgets(sizes, [1] * len(sizes)), strict=True
    ):
        stored, block = each.row_stored_bytes, each.block_stored_bytes
        if resources.is_local or 2 * plan.chunk_rows * stored >= block or plan.chunk_rows >= each.total_rows:
            continue
        least = max(1, round(budget.chunk_bytes / stored) // 4)
        enough = math.ceil(least * (each.row_decoded_bytes + ROW_BYTES) * len(sizes) / 0.7)
        return (
            f"memory_bytes={memory} leaves chunks of {plan.chunk_rows} records, each read with its block: an "
            f"epoch reads {1 + (block - stored) / (plan.chunk_rows * stored):.0f} times its size; "
            f"memory_bytes={enough} is enough for chunks of {least}"
        )
    return None
