"""From a URL to a store, without touching anything."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from shardio.arguments import need
from shardio.storage._keys import Root, split_url, url_text
from shardio.storage._local import LocalStore
from shardio.storage._memory import MemoryStore
from shardio.storage._remote import Backend, RemoteStore
from shardio.storage._services import AZURE, GENERIC, SERVICES
from shardio.storage._store import Store

_ENGINES = (None, "fsspec", "obstore")
_AZURE_ACCOUNT = re.compile(r"([^/@]+)@([^/.]+)\.(?:dfs|blob)\.core\.windows\.net(/.*|)")


def connect(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    engine: str | None = None,
    single_writer: bool = False,
) -> Store:
    """Return the store under a root URL; nothing is read, and no connection is opened.

    Args:
        url: local path, `file://`, `memory://name`, or any URL that fsspec knows.
        storage_options: as in fsspec; for remote stores only.
        engine: what reads remote data: None for the best installed, "fsspec" or "obstore" to insist. Local
            folders and memory need neither, and "fsspec" changes nothing there.
        single_writer: the caller guarantees that it is the only writer, so storage without exclusive creation
            may be written.

    Raises:
        ModuleNotFoundError: the package that serves such URLs is not installed; says which.
        ValueError: the URL is empty or names no bucket, or the engine is unknown or cannot serve it.
    """
    if engine not in _ENGINES:
        raise ValueError(f"engine must be None, 'fsspec' or 'obstore', found {engine!r}")
    root = split_url(url)
    chained = root.path.startswith((f"{root.protocol}://", f"{root.protocol}::"))
    url = root.path if chained else f"{root.protocol}://{root.path}"
    protocol = "" if chained else root.protocol
    service = SERVICES.get(protocol, GENERIC)
    if engine == "obstore" and not service.package:
        place = "local folders" if protocol == "file" else f"{root.protocol}://"
        raise ValueError(f"engine='obstore' serves S3, GCS, Azure and HTTP, not {place}")
    if protocol == "file":
        return LocalStore(root.path, single_writer=single_writer)
    if protocol == "memory":
        return MemoryStore(root.path)
    if service.package:
        need(f"{root.protocol}://", service.extra, service.package)
    else:
        _check_known(root)
    if engine == "obstore":
        need("engine='obstore'", "shardio[obstore]", "obstore")
    merged, path = dict(storage_options or {}), root.path
    account = _AZURE_ACCOUNT.fullmatch(path) if service is AZURE else None
    if account is not None:
        path = account[1] + account[3]
        merged.setdefault("account_name", account[2])
    if not service.has_buckets:
        path = url
    elif not path.strip("/"):
        raise ValueError(f"{url} names no bucket")
    return RemoteStore(Backend(protocol, url, path, merged, engine, single_writer))


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


def _check_known(root: Root) -> None:
    """Find out before the first request whether there are filesystems for a URL's protocols.

    Raises:
        ModuleNotFoundError: a package is missing.
        ValueError: a protocol is unknown.
    """
    from fsspec import get_filesystem_class
    from fsspec.registry import known_implementations, registry

    for link in root.path.split("::") if "::" in root.path else [f"{root.protocol}://"]:
        protocol, separator, _ = link.partition("://")
        known = protocol in known_implementations or protocol in registry
        if not known and separator:
            raise ValueError(
                f"{protocol}:// is not a kind of storage that fsspec knows; "
                "fsspec.available_protocols() lists them"
            )
        if known:
            try:
                get_filesystem_class(protocol)
            except ImportError as error:
                raise ModuleNotFoundError(f"{protocol}:// needs a package: {error}") from error
