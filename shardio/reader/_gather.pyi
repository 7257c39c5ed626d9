from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from shardio.metadata import IndexHead

ENTRY: np.dtype[Any]
SKIPPED: int  # the length of a row that is left out because of damage
READS_FILES: bool  # whether rows can be read past a map

def copy_rows(
    data: Any,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    table: int,
    target: int,
    place: int,
    checksums: bool,
) -> int: ...
def find_in_chunks(
    tables: NDArray[np.int64],
    chunks: NDArray[np.int64],
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    entries: NDArray[Any],
    ways: NDArray[np.int32],
) -> None: ...

class ShardFrames:
    def __init__(
        self,
        mapped: memoryview | None,
        size: int,
        head: IndexHead,
        frames: NDArray[np.uint32],
        *,
        verify: bool,
        path: bytes | None,
    ) -> None: ...
    @property
    def address(self) -> int: ...
    def bounds(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None: ...
    def record(self, row: int) -> bytes | None: ...
    def records(self, rows: NDArray[np.int64]) -> list[bytes] | None: ...

def find_in_shards(
    shards: NDArray[np.uint64],
    numbers: NDArray[np.int64],
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    entries: NDArray[Any],
    ways: NDArray[np.int32],
) -> int: ...
@overload
def gather(
    entries: NDArray[Any], ways: NDArray[np.int32], shards: NDArray[np.uint64], *, as_bytes: Literal[True]
) -> tuple[list[bytes], NDArray[np.int64], tuple[int, bool, int, int] | None]: ...
@overload
def gather(
    entries: NDArray[Any], ways: NDArray[np.int32], shards: NDArray[np.uint64], *, as_bytes: bool
) -> tuple[Any, NDArray[np.int64], tuple[int, bool, int, int] | None]: ...
