"""Clients shared by the stores of a process: building one takes a tenth of a second and opens connections.

Stores of the same kind of service, with the same options in the same environment, use one client, whatever
buckets they read.  A few that nobody uses are kept for whoever opens the next dataset; a forked child begins
with none.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from shardio.storage._client import Client

__all__ = ["SharedClients", "fingerprint"]

_MOST = 8
# What the libraries below look for; changed variables mean another client.
_VARIABLES = ("AWS_", "BOTO", "AZURE_", "GOOGLE_", "GCLOUD", "GCSFS_", "CLOUDSDK_", "STORAGE_", "FSSPEC_")


class SharedClients:
    """The clients of this process by what they were built from."""

    def __init__(self) -> None:
        # With the options, because some are told apart by their identity, which must not be reused.
        self._built: dict[tuple[Any, ...], tuple[Client, object]] = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def get(
        self,
        kind: str,
        options: Mapping[str, Any],
        build: Callable[[], Client],
        *,
        loop: asyncio.AbstractEventLoop,
        instead_of: Client | None = None,
    ) -> Client:
        """Return a client; built where there is none, or only the one that is no good any more.

        Args:
            kind: of the service.
            options: in fsspec's terms.
            build: makes a client of these.
            loop: that it will run on.
            instead_of: the client whose credentials expired, or None.
        """
        if self._pid != os.getpid():
            # A thread that does not exist here may hold the lock; the clients are kept alive elsewhere.
            self._built, self._pid, self._lock = {}, os.getpid(), threading.Lock()
        key = (kind, fingerprint(options), id(loop))
        with self._lock:
            client, _ = self._built.pop(key, (None, None))
            if client is None or client is instead_of:
                client = build()
            # The last one used stands last.
            self._built[key] = client, (options, loop)
            while len(self._built) > _MOST:
                del self._built[next(iter(self._built))]
            return client


def fingerprint(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells apart clients of these options, in this environment, for as long as they are kept."""
    around = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES)))
    return _frozen(options), around


def _frozen(value: Any) -> Any:
    """Return what tells one value from another: content where it is plain, identity where it is not."""
    if isinstance(value, dict):
        return tuple(sorted((str(name), _frozen(inner)) for name, inner in value.items()))
    if isinstance(value, list | tuple):
        return tuple(_frozen(inner) for inner in value)
    if value is None or isinstance(value, str | int | float | bool):
        return type(value).__name__, value
    return "object", id(value)
