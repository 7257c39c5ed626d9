"""torchdata's nodes: a stream as the source of a pipeline, which resumes exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardio.arguments import need
from shardio.streaming import Mix, stream

need("shardio.engines.torchdata", "shardio[torchdata]", "torchdata")

from torchdata.nodes import BaseNode  # noqa: E402 - after the line that says how it is installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardio.reader import DatasetReader


class ShardioNode(BaseNode[Any]):
    """Yield the batches of `shardio.stream`, one epoch after another.

    Its state is that of the stream: small, and exact on any number of ranks, so that a
    `torchdata.nodes.Loader` over a pipeline of nodes goes on with the batch after the last one it gave.

    Args:
        ds: a reader, a mixture, or the URL of a dataset of one split.
        options: those of `shardio.stream`, such as `global_batch=`, `shuffle=`, `rank=` and `world_size=`.

    Raises:
        TypeError, ValueError: as `shardio.stream`.
    """

    def __init__(self, ds: DatasetReader | Mix | str | Path, **options: Any) -> None:
        super().__init__()
        self.stream = stream(ds, **options)
        self._batches: Iterator[Any] = iter(())

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin an epoch, the next one where the last came to its end; or go on from a state."""
        super().reset(initial_state)
        if initial_state is not None:
            self.stream.load_state_dict(initial_state)
        self._batches = iter(self.stream)

    def next(self) -> Any:
        """Return the next batch of this rank."""
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """Return how far the stream has come."""
        return self.stream.state_dict()
