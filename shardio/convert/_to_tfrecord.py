"""Plain TFRecord files, `<split>-00000.tfrecord`, payload for payload; with gzip as TensorFlow's GZIP."""

from __future__ import annotations

import gzip
from typing import IO, Any, ClassVar, cast

from shardio import kernels
from shardio.convert._target import TargetWriter

__all__ = ["TfRecordWriter"]

_TOGETHER = 256
_TOGETHER_BYTES = 8 << 20


class TfRecordWriter(TargetWriter):
    """Write TFRecord files without index or manifest."""

    decode: ClassVar[bool] = False
    compressions: ClassVar[tuple[str, ...]] = ("gzip",)
    _file: IO[bytes] | None = None
    _name = ""
    _number = 0
    _size = 0

    def add(self, value: Any) -> None:
        """Take a payload."""
        if not self.records:
            self._waiting: list[bytes] = []
            self._waiting_bytes = 0
        self.records += 1
        self._waiting.append(value)
        self._waiting_bytes += len(value)
        if len(self._waiting) >= _TOGETHER or self._waiting_bytes >= min(_TOGETHER_BYTES, self.shard_bytes):
            self._write()

    def _write(self) -> None:
        frames, *_ = kernels.encode_frames(self._waiting)
        if self._file is None:
            self._name = f"{self.split}-{self._number:05d}.tfrecord" + ".gz" * (self.compression == "gzip")
            path = self.outbox.path(self._name)
            # mtime=0: the same records give the same bytes.
            self._file = cast(
                "IO[bytes]", gzip.GzipFile(path, "wb", 6, mtime=0) if self.compression else path.open("wb")
            )
            self._number += 1
        self._file.write(memoryview(frames))
        self._size += len(frames)
        self._waiting, self._waiting_bytes = [], 0
        if self._size >= self.shard_bytes:
            self._finish()

    def _finish(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._size = None, 0
            self.outbox.finish(self._name)

    def close(self) -> None:
        """Write what is waiting."""
        if self.records and self._waiting:
            self._write()
        self._finish()

    def abandon(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()
