"""HTTP servers, read-only, through the session of fsspec's HTTP filesystem."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

from shardio.storage._client import Client, Response, check_content_range, disable_retries
from shardio.storage._errors import StatusError
from shardio.storage._store import ObjectInfo
from shardio.storage._tuning import Tuning

# A compressed response has other lengths than the object.
_PLAIN = {"Accept-Encoding": "identity"}


def connect_http(options: Mapping[str, Any], tuning: Tuning) -> Any:
    """Return an HTTP filesystem of our own; fsspec's has no retries."""
    del tuning
    from fsspec.implementations.http import HTTPFileSystem

    # The other clients obey HTTPS_PROXY and NO_PROXY; aiohttp has to be told.
    client = {"trust_env": True, **(options.get("client_kwargs") or {})}
    return HTTPFileSystem(**{**options, "client_kwargs": client, "skip_instance_cache": True})


class HTTPClient(Client):
    """Range requests on a web server; paths are whole URLs, of which the root may be percent-encoded."""

    def __init__(self, fs: Any, root: str) -> None:
        self._fs = fs
        self._root = root

    async def _send(self, method: str, path: str, headers: Mapping[str, str]) -> Any:
        import yarl

        # The root is a URL as its owner wrote it; what follows is a key, whose characters mean themselves.
        root, query, _ = self._root.partition("?")
        key = urllib.parse.quote(path[len(self._root) :])
        url = yarl.URL(f"{root}{key}{query}{self._root[len(root) + len(query) :]}", encoded=True)
        options = dict(self._fs.kwargs)
        options["headers"] = {**(options.get("headers") or {}), **_PLAIN, **headers}
        session = disable_retries(await self._fs.set_session())
        # Some servers say of a file that ends with .gz that it is encoded; ranges are of the file as it lies.
        response = await session.request(method, url, **{**options, "auto_decompress": False})
        if response.status >= 300:
            async with response:
                words = (await response.content.read(500)).decode("utf-8", "replace")
                raise StatusError(response.status, words or response.reason or "", response.headers)
        return response

    async def fetch(self, path: str, start: int, stop: int) -> Response:
        async with await self._send("GET", path, {"Range": f"bytes={start}-{stop - 1}"}) as response:
            total = check_content_range(response.status, response.headers, start, stop)
            data = await response.read()
        return Response(data, total, _etag(response.headers))

    async def head(self, path: str) -> ObjectInfo | None:
        try:
            async with await self._send("HEAD", path, {}) as response:
                length, etag = response.headers.get("Content-Length", ""), _etag(response.headers)
        except StatusError as error:
            if error.status in {404, 410}:
                return None
            raise
        if not length.isdigit():
            raise StatusError(501, f"the server does not tell the size of objects ({path})")
        return ObjectInfo(path, int(length), etag)


def _etag(headers: Mapping[str, str]) -> str:
    etag = headers.get("ETag", "")
    # A weak ETag may differ among the machines behind one name.
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")
