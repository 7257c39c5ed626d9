"""Plain TFRecord files, `<split>-00000.tfrecord`, payload for payload; compressed as by TensorFlow."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any, ClassVar

from shardio import kernels
from shardio.convert._target import NumberedFiles
from shardio.format import StreamCompressor

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TfRecordWriter"]

_TOGETHER = 256
_TOGETHER_BYTES = 8 << 20


class TfRecordWriter(NumberedFiles):
    """Write TFRecord files without index or manifest."""

    decode: ClassVar[bool] = False
    compressions: ClassVar[tuple[str, ...]] = ("gzip", "zlib")
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
            path = self.next_path({None: "", "gzip": ".gz", "zlib": ".zz"}[self.compression])
            if self.compression == "gzip":
                # mtime=0: the same records give the same bytes.
                self._file = gzip.GzipFile(path, "wb", 6, mtime=0)
            else:
                self._file = _ZlibFile(path) if self.compression else path.open("wb")
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


class _ZlibFile:
    """A file that is one ZLIB stream: TensorFlow reads the first of several and drops the rest."""

    def __init__(self, path: Path) -> None:
        self._stream = StreamCompressor()
        self._file = path.open("wb")

    def write(self, data: memoryview) -> None:
        self._file.write(self._stream.compress(data))

    def close(self) -> None:
        with self._file:
            self._file.write(self._stream.finish())
