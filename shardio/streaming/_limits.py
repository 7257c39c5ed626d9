"""What a pass may hold, and how far it works ahead: by the plan, the memory and the distance of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.reader import JoinedSource
from shardio.streaming._planner import PassLimits
from shardio.streaming._tuning import TUNING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.streaming._components import Component
    from shardio.streaming._options import StreamOptions
    from shardio.streaming._plans import Resources


def pass_limits(
    options: StreamOptions,
    components: Sequence[Component],
    resources: Resources,
    open_bytes: int,
    *,
    threads: int,
    by_value: bool,
) -> PassLimits:
    """Return how a pass runs.

    Args:
        options, components, resources: of the stream.
        open_bytes: of the windows that this process has open.
        threads: that build.
        by_value: whether a function of the caller's sees every record.
    """
    local = all(component.source.is_local for component in components)
    images = components[0].source.options.images
    ahead_bytes = options.ahead_bytes or _ahead_bytes(components, local=local)
    # Each thread has a group, and others are ahead: few bytes ahead are small groups, too.
    group_bytes = min(TUNING.group_bytes, -(-ahead_bytes // 4))
    memory = options.memory_bytes
    if memory is None and local and options.ahead_bytes is None:
        sizes = [component.order.sizes for component in components]
        memory = resources.memory(sizes) if resources.has_local_blocks else None
    if memory is not None:
        left = memory - open_bytes
        if options.memory_bytes is None:  # a plan that was given, or came with a state, may hold more
            left = max(left, memory // 4)
        # A quarter for what is ahead, one for the chunks of the groups that are being built and delivered,
        # one for the batches that are gathered from them, one for blocks that are decoded.
        group_bytes = max(1, min(group_bytes, left // (4 * (threads + 2))))
        ahead_bytes = max(1, min(ahead_bytes, left // 4))
    io_threads = max(TUNING.io_threads, threads, min(4 * TUNING.io_threads, ahead_bytes // group_bytes))
    if threads == 0 or local:
        io_threads = 0
    is_slow = by_value or images is not None
    group_rows = TUNING.group_rows_by_value if is_slow else TUNING.group_rows
    if images is not None:
        # A row takes its payload and the image that is made of it; one image is what most records hold.
        rows = sum(component.order.sizes.total_rows for component in components)
        payloads = sum(component.order.sizes.total_decoded_bytes for component in components) / rows
        group_bytes = max(1, int(group_bytes * payloads / (payloads + images.bytes_each)))
        ahead_bytes = max(1, int(ahead_bytes * payloads / (payloads + images.bytes_each)))
    return PassLimits(threads, io_threads, group_bytes, group_rows, ahead_bytes)


def needs_identities(options: StreamOptions, components: Sequence[Component]) -> bool:
    """Whether batches need to know which records their rows are."""
    images = components[0].source.options.images
    if options.positions or options.random_transform is not None or (images is not None and images.random):
        return True
    return any(isinstance(component.source, JoinedSource) for component in components)


def _ahead_bytes(components: Sequence[Component], *, local: bool) -> int:
    """Return the default readahead in bytes; more for high-latency stores."""
    usual = TUNING.ahead_bytes
    if local:
        return usual
    latency = max(component.source.pool.latency() for component in components)
    if latency == float("inf"):
        return usual
    return max(usual, min(4 * usual, int(2 * latency * TUNING.bytes_per_second)))
