"""What goes through the pipeline: strides with their windows on the way in, batches on the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio.order import Draw, Stride

if TYPE_CHECKING:
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from shardio.streaming._windows import WindowData

__all__ = ["Batch", "Made", "Planned", "Records"]


class Batch(NamedTuple):
    """What one step delivers: its number in the epoch, and its columns (or what transforms made of them)."""

    step: int
    columns: Any


class Made(NamedTuple):
    """The batches of a stride, up to the first that could not be made, and why not."""

    batches: list[Batch]
    error: Exception | None


class Records(NamedTuple):
    """Who the rows of a stride are, in the order of delivery; int64 arrays of one length.

    Attributes:
        positions: position of each record in its dataset.
        sources: number of its dataset.
        cycles: how often its dataset had ended before, in this epoch of a mixture.
    """

    positions: NDArray[np.int64]
    sources: NDArray[np.int64]
    cycles: NDArray[np.int64]


class Planned(NamedTuple):
    """A stride whose windows are being fetched.

    Attributes:
        stride: which steps, and where each one's rows stand.
        draw: where the rows lie in the windows.
        windows: the data of `draw.windows`, as it comes.
        records: who the rows are, where somebody wants to know.
    """

    stride: Stride
    draw: Draw
    windows: list[Future[WindowData]]
    records: Records | None

    def single(self, k: int) -> Planned:
        """Return the k-th step of the stride alone, with the windows that it needs."""
        stride = self.stride
        low, high = int(stride.edges[k]), int(stride.edges[k + 1])
        turn = stride.turn[low:high]
        used, which = np.unique(self.draw.which[turn], return_inverse=True)
        draw = Draw([self.draw.windows[i] for i in used.tolist()], which, self.draw.local[turn])
        count = high - low
        alone = Stride(
            [stride.steps[k]], np.array([0, count]), [stride.valid[k]], stride.parts, np.arange(count)
        )
        records = None if self.records is None else Records(*(column[low:high] for column in self.records))
        return Planned(alone, draw, [self.windows[i] for i in used.tolist()], records)
