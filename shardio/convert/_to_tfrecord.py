"""Plain TFRecord files, `<split>-00000.tfrecord`, payload for payload; with gzip as TensorFlow's GZIP."""

from __future__ import annotations

import gzip
from typing import Any, ClassVar

from shardio import kernels
from shardio.convert._target import NumberedFiles

__all__ = ["TfRecordWriter"]

_TOGETHER = 256
_TOGETHER_BYTES = 8 << 20


class TfRecordWriter(NumberedFiles):
    """Write TFRecord files without index or manifest."""

    decode: ClassVar[bool] = False
    compressions: ClassVar[tuple[str, ...]] = ("gzip",)
    pattern: ClassVar[str] = "{split}-{number:05d}.tfrecord"
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
            path = self.next_path(".gz" if self.compression else "")
            # mtime=0: the same records give the same bytes.
            self._file = gzip.GzipFile(path, "wb", 6, mtime=0) if self.compression else path.open("wb")
        self._file.write(memoryview(frames))
        self._size += len(frames)
        self._waiting, self._waiting_bytes = [], 0
        if self._size >= self.shard_bytes:
            self.finish()
            self._size = 0

    def close(self) -> None:
        """Write what is waiting."""
        if self.records and self._waiting:
            self._write()
        self.finish()
