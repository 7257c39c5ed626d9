"""Objects in this process's memory, shared with fsspec's `memory://`; for tests and notebooks."""

from __future__ import annotations

import os
import pathlib
import threading
from typing import TYPE_CHECKING

from shardio.errors import NotFoundError
from shardio.storage._keys import check_key
from shardio.storage._store import Buffer, DataFile, ObjectInfo, Offsets, Store, short_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec.implementations.memory import MemoryFile


_lock = threading.Lock()


def _renew_lock() -> None:
    # Another thread may have held it at the moment of the fork.
    global _lock  # noqa: PLW0603 - a forked child must not wait for a thread that it does not have
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class _MemoryFile(DataFile):
    def __init__(self, url: str, data: bytes) -> None:
        self.url = url
        self._data = memoryview(data)

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, start: int, stop: int) -> memoryview:
        if not 0 <= start <= stop:
            raise ValueError(f"a byte range needs 0 <= start <= stop, found [{start}, {stop})")
        view = self._data[start:stop]
        if len(view) != stop - start:
            raise short_read(self.url, start, stop, len(self._data))
        return view

    def read_many(self, starts: Offsets, stops: Offsets) -> list[memoryview]:
        return [self.read(int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)]


class MemoryStore(Store):
    """Objects under a path of the process-wide memory filesystem; a forked child has its own copy."""

    def __init__(self, path: str) -> None:
        path = path.strip("/")
        self.url = f"memory://{path}"
        self._base = f"/{path}/" if path else "/"

    def __reduce__(self) -> tuple[object, ...]:
        return MemoryStore, (self._base,)

    def open(self, key: str, *, size: int | None = None, stable: bool = False, etag: str = "") -> DataFile:
        del size, stable, etag
        check_key(key)
        return _MemoryFile(self.url_of(key), self._read(key))

    def _read(self, key: str) -> bytes:
        with _lock:
            file = _files().get(self._base + key)
            if file is None:
                raise NotFoundError("there is no such object in this process's memory", url=self.url_of(key))
            return bytes(file.getbuffer())

    def _put_if_absent(self, key: str, data: Buffer | pathlib.Path, *, move: bool) -> bool:
        content = data.read_bytes() if isinstance(data, pathlib.Path) else bytes(data)
        with _lock:
            created = self._base + key not in _files()
            if created:
                self._store(key, content)
        if created and move and isinstance(data, pathlib.Path):
            data.unlink(missing_ok=True)
        return created

    def _overwrite(self, key: str, data: Buffer | pathlib.Path) -> None:
        content = data.read_bytes() if isinstance(data, pathlib.Path) else bytes(data)
        with _lock:
            self._store(key, content)

    def _store(self, key: str, content: bytes) -> None:
        from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

        path = self._base + key
        MemoryFileSystem.store[path] = MemoryFile(MemoryFileSystem(), path, content)

    def _get(self, key: str, max_bytes: int) -> bytes:
        data = self._read(key)
        if len(data) > max_bytes:
            raise self._too_large(key, len(data), max_bytes)
        return data

    def _head(self, key: str) -> ObjectInfo | None:
        with _lock:
            file = _files().get(self._base + key)
            return None if file is None else _describe(key, file)

    def _list(self, prefix: str, *, linked: bool) -> Iterator[ObjectInfo]:
        del linked
        start = len(self._base)
        with _lock:
            found = [
                _describe(path[start:], file)
                for path, file in _files().items()
                if path.startswith(self._base + prefix)
            ]
        return iter(sorted(found))

    def _delete(self, key: str) -> bool:
        with _lock:
            return _files().pop(self._base + key, None) is not None


def _files() -> dict[str, MemoryFile]:
    from fsspec.implementations.memory import MemoryFileSystem

    files: dict[str, MemoryFile] = MemoryFileSystem.store
    return files


def _describe(key: str, file: MemoryFile) -> ObjectInfo:
    return ObjectInfo(key, file.getbuffer().nbytes, str(int(file.modified.timestamp() * 1e6)))
