"""Which client serves which URL, what each kind of store can do, and the clients that stores share.

Backends are values that pickle, and open nothing.  Building a client takes a tenth of a second and opens
connections, so stores of the same kind of service, with the same options in the same environment, use one,
whatever buckets they read.  A few that are not in use are kept for the next dataset; a forked child begins
with none.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from shardio.arguments import need
from shardio.storage._client import Client
from shardio.storage._keys import Root
from shardio.storage._tuning import Tuning

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
        """Return a client; built where there is none, or only the one that does not work any more.

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
            # The last one used is last.
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


_KINDS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "adl": "azure",
    "http": "http",
    "https": "http",
}
_BUCKETS = frozenset({"s3", "gcs", "azure"})  # whose URLs begin with one, and whose stores share clients
_PACKAGES = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs", "http": "aiohttp"}
_EXTRAS = {"s3": "shardio[s3]", "gcs": "shardio[gcs]", "azure": "shardio[azure]", "http": "aiohttp"}
_clients = SharedClients()
_ACCOUNT = re.compile(r"([^/@]+)@([^/.]+)\.(?:dfs|blob)\.core\.windows\.net(/.*|)")


@dataclasses.dataclass(frozen=True)
class Backend:
    """A remote root, and how to reach it.

    Attributes:
        kind: "s3", "gcs", "azure", "http" or "other".
        url: the normalised root.
        path: what its client calls the root: bucket and prefix, or the URL itself.
        options: storage_options in fsspec's terms.
        engine: None, "fsspec" or "obstore".
        single_writer: the caller states that it is the only writer.
    """

    kind: str
    url: str
    path: str
    options: Mapping[str, Any]
    engine: str | None
    single_writer: bool

    @property
    def read_only_reason(self) -> str | None:
        """Why nothing may be written here, or None."""
        if self.kind == "http":
            return "a web server takes no objects"
        if self.kind == "other" and not self.single_writer:
            return "it is not known whether this kind of storage can create an object only if it is absent"
        return None

    @property
    def can_list(self) -> bool:
        """Whether objects can be listed."""
        return self.kind != "http"

    def path_of(self, key: str) -> str:
        """Return the client's name for an object."""
        return f"{self.path}/{key}"

    def url_of(self, key: str) -> str:
        """Return the URL of an object, for messages."""
        if self.kind == "other" and "::" in self.url:
            inner, _, outer = self.url.partition("::")
            first, _, rest = outer.partition("::")
            head = inner if "://" in inner else f"{inner}://"
            return f"{head.rstrip('/')}/{key}::{first}{'::' + rest if rest else ''}"
        return f"{self.url}/{key}"

    def connect(
        self, tuning: Tuning, *, loop: asyncio.AbstractEventLoop, instead_of: Client | None = None
    ) -> Client:
        """Return this process's client, shared with other stores where it is not bound to the root.

        Args:
            tuning: its limits.
            loop: that it will run on.
            instead_of: a client whose credentials have expired.
        """
        if self.kind not in _BUCKETS:
            return self._build(tuning)
        build = functools.partial(self._build, tuning)
        kind = f"{self.kind} {tuning}"
        return _clients.get(kind, self.options, build, loop=loop, instead_of=instead_of)

    def _build(self, tuning: Tuning) -> Client:
        if self.kind == "s3":
            from shardio.storage._s3 import S3Client, connect_s3

            return S3Client(connect_s3(self.options, tuning), tuning)
        if self.kind == "gcs":
            from shardio.storage._gcs import GCSClient, connect_gcs

            return GCSClient(connect_gcs(self.options, tuning), tuning)
        if self.kind == "azure":
            from shardio.storage._azure import AzureClient, connect_azure

            return AzureClient(connect_azure(self.options, tuning), tuning)
        if self.kind == "http":
            from shardio.storage._http import HTTPClient, connect_http

            return HTTPClient(connect_http(self.options, tuning), self.path)
        from shardio.storage._generic import GenericClient, connect_generic

        fs, root = connect_generic(self.url, self.options, tuning)
        return GenericClient(fs, root, self.path)

    async def refusal(self, client: Client) -> str | None:
        """Return why this bucket cannot create exclusively, if the service says so beforehand."""
        from shardio.storage._gcs import GCSClient

        if isinstance(client, GCSClient) and await client.zonal(self.path):
            return "zonal buckets cannot create an object only if it is absent"
        return None


def backend_of(
    root: Root, options: Mapping[str, Any] | None, *, engine: str | None, single_writer: bool
) -> Backend:
    """Return the backend for a remote root.

    Raises:
        ModuleNotFoundError: the package for it, or for the engine insisted on, is not installed.
        ValueError: the URL names no bucket, fsspec knows no such protocol, or the engine cannot serve it.
    """
    chained = root.path.startswith((f"{root.protocol}://", f"{root.protocol}::"))
    kind = "other" if chained else _KINDS.get(root.protocol, "other")
    if kind == "other":
        if engine == "obstore":
            raise ValueError(f"engine='obstore' serves S3, GCS, Azure and HTTP, not {root.protocol}://")
        _check_known(root)
    package = _PACKAGES.get(kind)
    if package is not None:
        need(f"{root.protocol}://", _EXTRAS[kind], package)
    if engine == "obstore":
        need("engine='obstore'", "shardio[obstore]", "obstore")
    merged = dict(options or {})
    path = root.path
    if kind == "azure":
        match = _ACCOUNT.fullmatch(path)
        if match is not None:
            path = match[1] + match[3]
            merged.setdefault("account_name", match[2])
    url = root.path if chained else f"{root.protocol}://{root.path}"
    if kind in _BUCKETS and not path.strip("/"):
        raise ValueError(f"{url} names no bucket")
    if kind in {"http", "other"}:
        path = url
    return Backend(kind, url, path, merged, engine, single_writer)


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
