from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

def checked_bounds(
    starts: ArrayLike, stops: ArrayLike, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def slice_records(buffer: Any, starts: ArrayLike, stops: ArrayLike) -> list[bytes]: ...
def gather_fixed(buffer: Any, starts: ArrayLike, length: int, out: NDArray[np.uint8]) -> None: ...
def gather(
    buffer: Any, starts: ArrayLike, stops: ArrayLike
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]: ...
def gather_from(
    buffers: Sequence[Any], which: ArrayLike, starts: ArrayLike, stops: ArrayLike
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]: ...
