"""Objects in this process's memory, shared with fsspec's `memory://`; for tests and notebooks.

A forked child has its own copy.
"""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardio.storage._client import Client
from shardio.storage._store import ObjectInfo, Reply

if TYPE_CHECKING:
    from fsspec.implementations.memory import MemoryFile


_lock = threading.Lock()


def _renew_lock() -> None:
    # Another thread may have held it at the moment of the fork.
    global _lock  # noqa: PLW0603 - a forked child must not wait for a thread that it does not have
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def filesystem(_options: Mapping[str, Any], root: str) -> tuple[Any, str]:
    from fsspec.implementations.memory import MemoryFileSystem

    path = root.removeprefix("memory://").strip("/")
    return MemoryFileSystem(), f"/{path}" if path else ""


def fetch(client: Client, path: str, start: int, stop: int) -> Reply:
    with _lock:
        file = _file(client, path)
        data = bytes(file.getbuffer()[start:stop])
        return Reply(data, *_describe(path, file)[1:])


def describe(client: Client, path: str) -> tuple[ObjectInfo, str | None]:
    with _lock:
        return _describe(path, _file(client, path)), None


def find(client: Client, prefix: str) -> list[ObjectInfo]:
    with _lock:
        return [_describe(path, file) for path, file in client.fs.store.items() if path.startswith(prefix)]


def put(client: Client, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str) -> bool:
    from fsspec.implementations.memory import MemoryFile

    del token  # nothing comes between this and the objects
    content = data if isinstance(data, bytes) else data.read_bytes()
    with _lock:
        if exclusive and path in client.fs.store:
            raise FileExistsError(path)
        client.fs.store[path] = MemoryFile(client.fs, path, content)
    return True


def delete(client: Client, path: str) -> None:
    with _lock:
        client.fs.store.pop(path, None)


def _file(client: Client, path: str) -> MemoryFile:
    file: MemoryFile | None = client.fs.store.get(path)
    if file is None:
        raise FileNotFoundError(path)
    return file


def _describe(path: str, file: MemoryFile) -> ObjectInfo:
    return ObjectInfo(path, file.getbuffer().nbytes, str(int(file.modified.timestamp() * 1e6)))
