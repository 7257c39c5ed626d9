"""JSON lines, `<split>.jsonl`: an object a record, arrays as lists, bytes as `{"$base64": ...}`.

Missing values are left out.  Floating-point numbers are written so that they come back exactly; NaN and
infinities as `NaN` and `Infinity`, which Python reads and strict JSON does not know.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import IO, Any, ClassVar, cast

import numpy as np

from shardio.convert._target import TargetWriter

__all__ = ["JsonLinesWriter"]


class JsonLinesWriter(TargetWriter):
    """Write JSON lines."""

    compressions: ClassVar[tuple[str, ...]] = ("gzip",)
    _file: IO[bytes] | None = None

    @property
    def _name(self) -> str:
        return f"{self.split}.jsonl" + ".gz" * (self.compression == "gzip")

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            path = self.outbox.path(self._name)
            # mtime=0: the same records give the same bytes.
            self._file = cast(
                "IO[bytes]", gzip.GzipFile(path, "wb", 6, mtime=0) if self.compression else path.open("wb")
            )
        return self._file

    def add(self, value: Any) -> None:
        """Write a line."""
        self.records += 1
        if isinstance(value, Mapping):
            # Only features are missing; a null within a document is the document's own.
            value = {name: item for name, item in value.items() if item is not None}
        line = json.dumps(_plain(value), ensure_ascii=False)
        self._opened().write(line.encode() + b"\n")

    def close(self) -> None:
        """Close the file; a split without records is an empty one."""
        self._opened().close()
        self.outbox.finish(self._name)

    def abandon(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind == "c":
            return np.stack([value.real, value.imag], -1).tolist()
        return value.tolist()
    return value
