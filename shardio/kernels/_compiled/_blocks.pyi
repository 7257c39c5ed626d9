from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

class ShardIndex:
    def __init__(
        self,
        block_stops: NDArray[np.uint64],
        block_row_stops: NDArray[np.uint64],
        block_sizes: NDArray[np.uint32],
        frame_crcs: NDArray[np.uint32],
        *,
        frame_stops: NDArray[np.uint32] | None = None,
        block_crcs: NDArray[np.uint32] | None = None,
        bounds: tuple[int, int, int] = (12, 4, 16),
        decode: Callable[[Any, int], Any] | None = None,
    ) -> None: ...
    def open_block(
        self, number: int, buffer: Any, start: int = 0, frames: Any = None
    ) -> OpenBlock | None: ...
    @overload
    def read_rows(
        self,
        first: int,
        stop: int,
        buffer: Any,
        start: int,
        frames: Any = None,
        *,
        checked: NDArray[np.uint8] | None = None,
        as_bytes: Literal[True],
    ) -> list[bytes] | None: ...
    @overload
    def read_rows(
        self,
        first: int,
        stop: int,
        buffer: Any,
        start: int,
        frames: Any = None,
        *,
        checked: NDArray[np.uint8] | None = None,
        as_bytes: Literal[False],
    ) -> NDArray[np.int64] | None: ...

class OpenBlock:
    buffer: Any
    base: int
    first_row: int
    @property
    def nbytes(self) -> int: ...
    def payload(self, row: int) -> bytes: ...
    def payloads(self, rows: range | NDArray[np.int64]) -> list[bytes]: ...
    def places(self, first: int, stop: int) -> NDArray[np.int64]: ...
    @property
    def edges(self) -> NDArray[np.uint32]: ...
    def __len__(self) -> int: ...
