"""From a URL to a store, without touching anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from shardio.storage._keys import split_url, url_text
from shardio.storage._local import LocalStore
from shardio.storage._memory import MemoryStore
from shardio.storage._store import Store
from shardio.storage._tuning import Tuning

_ENGINES = (None, "fsspec", "obstore")


def connect(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    engine: str | None = None,
    single_writer: bool = False,
    tuning: Tuning | None = None,
) -> Store:
    """Return the store under a root URL; nothing is read, and no connection is opened.

    Args:
        url: local path, `file://`, `memory://name`, or any URL that fsspec knows.
        storage_options: as in fsspec; for remote stores only.
        engine: what reads remote data: None for the best installed, "fsspec" or "obstore" to insist.
        single_writer: the caller guarantees that it is the only writer, so storage without exclusive creation
            may be written.
        tuning: how remote stores fetch and retry, where the defaults do not suit.

    Raises:
        ModuleNotFoundError: the package that serves such URLs is not installed; says which.
        ValueError: the URL is empty or names no bucket, or the engine is unknown or cannot serve it.
    """
    if engine not in _ENGINES:
        raise ValueError(f"engine must be None, 'fsspec' or 'obstore', found {engine!r}")
    root = split_url(url)
    if root.protocol == "file":
        return LocalStore(root.path, single_writer=single_writer)
    if root.protocol == "memory":
        return MemoryStore(root.path)
    from shardio.storage._backends import backend_of
    from shardio.storage._remote import RemoteStore

    backend = backend_of(root, storage_options, engine=engine, single_writer=single_writer)
    return RemoteStore(backend, tuning=tuning)


def connect_folder(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    engine: str | None = None,
) -> tuple[Store, str]:
    """Return the store that an object is in, and its key there: the folder and the name of a URL.

    The query of an HTTP URL, a signature, belongs to the folder: it goes with every request.

    Raises:
        ModuleNotFoundError, ValueError: as `connect`.
    """
    text = url_text(url)
    signed = text.startswith(("http://", "https://"))
    address, mark, query = text.partition("?") if signed else (text, "", "")
    folder, slash, name = address.rpartition("/")
    # "/x" is in "/", and "memory://x" in "memory://", which keep their slashes.
    root = folder if folder and not folder.endswith("/") else folder + slash
    return connect((root or ".") + mark + query, storage_options=storage_options, engine=engine), name
