"""What a caller may choose about a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from shardio.order import Plan

__all__ = ["StreamOptions", "global_batch_of"]


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of `shardio.stream`, gathered; see there.

    Attributes:
        shuffle, seed, remainder, plan: decide the order, together with the dataset and the first batch.
        positions, valid: add the columns `_position` and `_valid`.
        transform, random_transform, batch_transform: the caller's functions.
        num_threads: threads that fetch, check, decode and transform; 0 does it all in the caller's.
        memory_bytes: bound of this process, or None.
        ahead_bytes: decoded bytes of the batches that are planned, and fetched for, ahead of the consumer.
    """

    shuffle: bool = True
    seed: int = 0
    remainder: str = "drop"
    plan: Plan | Sequence[Plan] | None = None
    positions: bool = False
    valid: bool = False
    transform: Callable[[Any], Any] | None = None
    random_transform: Callable[[Any, np.random.Generator], Any] | None = None
    batch_transform: Callable[[dict[str, Any]], Any] | None = None
    num_threads: int = 2
    memory_bytes: int | None = None
    ahead_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        """Refuse what makes no sense, by name."""
        for name in ("transform", "random_transform", "batch_transform"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                message = f"{name}= must be a function, found {type(given).__name__}"
                raise TypeError(message)
        if (
            isinstance(self.num_threads, bool)
            or not isinstance(self.num_threads, int)
            or self.num_threads < 0
        ):
            message = f"num_threads={self.num_threads!r} must be an integer of at least 0"
            raise ValueError(message)
        if self.transform is not None and self.random_transform is not None:
            raise ValueError(
                "give transform= or random_transform=, not both: the second one can do the work of both"
            )
        if self.valid and self.remainder != "pad":
            raise ValueError('valid=True needs remainder="pad": without it every row is valid')


def global_batch_of(global_batch: int | None, batch_size: int | None, world_size: int) -> int:
    """Return the rows of a global batch, of which one of two was given.

    Raises:
        ValueError: both or neither were given, or `batch_size` is below 1.
    """
    if (global_batch is None) == (batch_size is None):
        raise ValueError("give global_batch= or batch_size=, exactly one of them")
    if global_batch is not None:
        return global_batch
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        message = f"batch_size={batch_size!r} must be an integer of at least 1"
        raise ValueError(message)
    return batch_size * world_size
