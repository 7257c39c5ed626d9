"""The index of one shard on its way to its place: held where it is short, else in a temporary file.

So the memory of a scan does not grow with the number of records.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from shardio.metadata import IndexBuilder

__all__ = ["Sidecar", "finish_sidecar", "frames_file"]

_HELD = 8 << 20


@dataclass(frozen=True)
class Sidecar:
    """A finished index.

    Attributes:
        data: its bytes, or the temporary file that holds them.
        head_bytes, head_sha256: of its head, as a list of shards names them.
    """

    data: bytes | Path
    head_bytes: int
    head_sha256: bytes

    def read(self) -> bytes:
        """Return its bytes, however many."""
        return self.data.read_bytes() if isinstance(self.data, Path) else self.data

    def discard(self) -> None:
        """Remove the temporary file, if there is one that was not moved to its place."""
        if isinstance(self.data, Path):
            self.data.unlink(missing_ok=True)


def frames_file() -> IO[bytes]:
    """Return a file for the ends of frames, in memory while it is short; gone when it is closed."""
    return tempfile.SpooledTemporaryFile(max_size=_HELD)


def finish_sidecar(index: IndexBuilder) -> Sidecar:
    """Return the finished index; whoever stores it discards it then."""
    if index.index_bytes <= _HELD:
        done = index.finish()
        return Sidecar(done.data, done.head_bytes, done.head_sha256)
    number, name = tempfile.mkstemp(suffix=".shardidx")
    try:
        with os.fdopen(number, "wb") as file:
            done = index.finish_to(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    return Sidecar(Path(name), done.head_bytes, done.head_sha256)
