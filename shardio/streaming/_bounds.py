"""How much a pass may hold: strides, what is planned ahead, and the caller's own bound of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardio.order import check_memory, report

if TYPE_CHECKING:
    from shardio.order import Order
    from shardio.streaming._options import StreamOptions

__all__ = ["check_bound", "spare_bytes", "stride_rows"]

# Rows of a stride: enough that NumPy's overhead is small, few enough that the first batches come soon.
_STRIDE_ROWS = 4096
_STRIDE_BYTES = 16 << 20
# Where each row costs a call of the caller's function or an image, that overhead is small anyway.
_STRIDE_ROWS_TRANSFORMED = 256


def check_bound(order: Order, options: StreamOptions, *, global_batch: int, world_size: int) -> None:
    """Raise ValueError, with both numbers, if one process of the plan needs more than the caller allows."""
    if options.memory_bytes is not None:
        figures = report(order, global_batch=global_batch, world_size=world_size, workers=1)
        check_memory(figures, options.memory_bytes)


def stride_rows(options: StreamOptions, *, images: bool) -> int:
    """Return how many rows are decoded together at most, where a step has not more itself."""
    transforms = options.transform is not None or options.random_transform is not None
    return _STRIDE_ROWS_TRANSFORMED if transforms or images else _STRIDE_ROWS


def spare_bytes(
    order: Order, options: StreamOptions, *, global_batch: int, world_size: int, threads: int
) -> tuple[int, int]:
    """Return the bytes of a stride, and of what is planned ahead, within what the caller allows."""
    if options.memory_bytes is None:
        return _STRIDE_BYTES, options.ahead_bytes
    figures = report(order, global_batch=global_batch, world_size=world_size, workers=1)
    left = options.memory_bytes - int(figures.open_windows * figures.window_bytes)
    # A quarter for what is ahead, one for the windows of the strides that are being made and delivered, one
    # for the batches that are gathered from them, and one for blocks that are being decoded.
    return min(_STRIDE_BYTES, left // (4 * (threads + 2))), min(options.ahead_bytes, left // 4)
