"""Web servers, read-only, by the session of fsspec's HTTP filesystem; paths are whole URLs."""

from __future__ import annotations

import contextlib
import email.utils
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shardio.storage._client import Client, Opened, answered, session_options, undefined
from shardio.storage._errors import StatusError
from shardio.storage._obstore import UntranslatableError, refuse_unknown
from shardio.storage._store import ObjectInfo


def filesystem(options: Mapping[str, Any], root: str) -> tuple[Any, str]:
    from fsspec.implementations.http import HTTPFileSystem

    client = session_options(options.get("client_kwargs"))
    return HTTPFileSystem(**{**options, "client_kwargs": client, "skip_instance_cache": True}), root


@contextlib.asynccontextmanager
async def _send(client: Client, method: str, path: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    import yarl

    # The root is a URL as its owner wrote it; what follows is a key, whose characters mean themselves.
    root, mark, query = client.root.partition("?")
    key = urllib.parse.quote(path[len(client.root) :])
    url = yarl.URL(f"{root}{key}{mark}{query}", encoded=True)
    options = dict(client.fs.kwargs)
    # A compressed response has other lengths than the object.
    options["headers"] = {**(options.get("headers") or {}), "Accept-Encoding": "identity", **headers}
    session = await client.fs.set_session()
    # Some servers say of a file that ends with .gz that it is encoded; ranges are of the file as it lies.
    async with answered(session.request(method, url, **{**options, "auto_decompress": False})) as response:
        yield response


@contextlib.asynccontextmanager
async def open_range(client: Client, path: str, start: int, stop: int) -> AsyncIterator[Opened]:
    async with _send(client, "GET", path, {"Range": f"bytes={start}-{stop - 1}"}) as response:
        headers = response.headers
        yield Opened(response.status, headers.get("Content-Range", ""), _etag(headers), response.content.read)


async def describe(client: Client, path: str) -> tuple[ObjectInfo, str | None]:
    async with _send(client, "HEAD", path, {}) as response:
        length = response.headers.get("Content-Length", "")
        if not length.isdigit():
            raise StatusError(501, f"the server does not tell the size of objects ({path})")
        return ObjectInfo(path, int(length), _etag(response.headers)), None


# The store refuses these before, as `can_list` and `read_only_reason` say.
find = put = delete = undefined


def _etag(headers: Mapping[str, str]) -> str:
    """Return the strong ETag of a response, or else its time of modification."""
    etag: str = headers.get("ETag", "")
    # A weak ETag may differ among the machines behind one name.
    found: str = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")
    return found


def by_options(options: dict[str, Any], root: str, common: dict[str, Any]) -> Any:
    from obstore.store import HTTPStore

    if "%" in root or "?" in root or "#" in root:
        raise UntranslatableError("obstore would encode the root's URL once more")
    client = options.pop("client_kwargs", None) or {}
    refuse_unknown(client, {"headers", "trust_env", "timeout"}, "client_kwargs")
    of_filesystem = {
        "simple_links",
        "block_size",
        "same_scheme",
        "size_policy",
        "cache_type",
        "cache_options",
    }
    refuse_unknown(options, of_filesystem | {"headers", "allow_redirects"}, "storage_options")
    headers = {**(client.get("headers") or {}), **(options.get("headers") or {})}
    network = common["client_options"]
    network["allow_http"] = root.startswith("http://")
    if headers:
        network["default_headers"] = {str(name): str(value) for name, value in headers.items()}
    return HTTPStore(root, **common)


async def by_filesystem(fs: Any, root: str, common: dict[str, Any]) -> Any:
    return by_options({**fs.kwargs, "client_kwargs": fs.client_kwargs}, root, common)


def etag_of(meta: Any) -> str:
    moment = meta["last_modified"]
    modified = email.utils.format_datetime(moment, usegmt=True) if moment.timestamp() else ""
    return _etag({"ETag": meta["e_tag"] or "", "Last-Modified": modified})
