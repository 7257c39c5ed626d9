"""The function `stream`: what a caller types, with every option by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.streaming._options import StreamOptions, global_batch_of
from shardio.streaming._stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from shardio.order import Plan
    from shardio.reader import DatasetReader
    from shardio.streaming._mix import Mix

__all__ = ["stream"]


def stream(  # noqa: PLR0913 - the options are the public contract
    ds: DatasetReader | Mix,
    *,
    global_batch: int | None = None,
    batch_size: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    rank: int = 0,
    world_size: int = 1,
    remainder: str = "drop",
    positions: bool = False,
    valid: bool = False,
    plan: Plan | Sequence[Plan] | None = None,
    memory_bytes: int | None = None,
    transform: Callable[[Any], Any] | None = None,
    random_transform: Callable[[Any, np.random.Generator], Any] | None = None,
    batch_transform: Callable[[dict[str, Any]], Any] | None = None,
    num_threads: int = 2,
) -> Stream:
    """Stream a dataset, or a mixture, in batches of NumPy columns.

    The global batch of step s holds the same records in the same order whatever the number of ranks and
    workers, and `state_dict` resumes exactly on any other number; see docs/order.md.

    Args:
        ds: from `shardio.open`, a slice of it, or `shardio.mix`.
        global_batch: records of a step over all ranks; or else
        batch_size: records of a step of one rank, times `world_size` now.
        shuffle: False is storage order.
        seed: the only seed.
        epoch: number of the first epoch.
        rank, world_size: which slice of each global batch is wanted here.
        remainder: a short last step is left out ("drop"), filled up ("pad"), or delivered short ("keep").
        positions: add the int64 column `_position`.
        valid: with "pad", add the bool column `_valid`.
        plan: shape of the order; by default a function of the dataset and the global batch.
        memory_bytes: refuse a plan that needs more than this in one process.
        transform: `f(value)` for every record, in the threads of the stream.
        random_transform: `f(value, rng)`, the generator keyed by seed, epoch and the record's position: the
            same augmentation wherever the record is delivered.
        batch_transform: `f(columns)` for every batch.
        num_threads: threads that fetch, check, decode and transform; 0 does it all in the caller's.

    Raises:
        ValueError: sizes, ranks or weights that make no sense; names both numbers.
    """
    options = StreamOptions(
        shuffle=shuffle,
        seed=seed,
        remainder=remainder,
        plan=plan,
        positions=positions,
        valid=valid,
        transform=transform,
        random_transform=random_transform,
        batch_transform=batch_transform,
        num_threads=num_threads,
        memory_bytes=memory_bytes,
    )
    return Stream(
        ds,
        global_batch=global_batch_of(global_batch, batch_size, world_size),
        epoch=epoch,
        rank=rank,
        world_size=world_size,
        options=options,
    )
