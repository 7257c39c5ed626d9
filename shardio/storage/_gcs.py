"""Google Cloud Storage through gcsfs's session and credentials: one request per call, no hidden retries."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import pathlib
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shardio.storage._client import Client, Response, check_content_range, disable_retries
from shardio.storage._errors import StatusError
from shardio.storage._store import ObjectInfo
from shardio.storage._tuning import Tuning

_OCTETS = "application/octet-stream"
_STEP = 256 << 10  # parts of a resumable upload are multiples of this


def connect_gcs(options: Mapping[str, Any], tuning: Tuning) -> Any:
    """Return a gcsfs filesystem of our own, without its retries.

    The plain class is taken, because the one for zonal and hierarchical buckets asks a second service about
    each bucket; zonal buckets cannot create an object only if it is absent, and the probe refuses them.
    """
    del tuning
    from gcsfs.core import GCSFileSystem

    # aiohttp obeys HTTPS_PROXY and NO_PROXY only where it is told to.
    session = {"trust_env": True, **(options.get("session_kwargs") or {})}
    fs = GCSFileSystem(**{**options, "session_kwargs": session, "skip_instance_cache": True})
    # Its retries are a decorator; underneath is the single attempt.
    once = getattr(GCSFileSystem._request, "__wrapped__", None)  # noqa: SLF001 - there is no option for it
    if once is not None:
        fs._request = functools.partial(once, fs)  # noqa: SLF001 - as above
    return fs


class GCSClient(Client):
    """Requests on buckets of Google Cloud Storage, by its JSON API.

    It keeps no tokens: uploads are POST requests, which no library repeats by itself.  Resumable uploads
    cannot be listed, and vanish after a week.
    """

    def __init__(self, fs: Any, tuning: Tuning) -> None:
        self._fs = fs
        self._tuning = tuning

    async def _send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        stored: bool = False,
        **params: Any,
    ) -> Any:
        """Return an open response, which the caller closes; `stored`: its body as it lies, not decoded."""
        fs = self._fs
        await fs._set_session()  # noqa: SLF001 - gcsfs has no public face for a response with its headers
        query = fs._get_params(params)  # noqa: SLF001 - as above
        sent = fs._get_headers(dict(headers or {}))  # noqa: SLF001 - as above
        session = disable_retries(fs.session)
        response = await session.request(
            method, url, params=query, headers=sent, data=data, auto_decompress=not stored
        )
        if response.status >= 300:
            async with response:
                text = (await response.read())[:500].decode("utf-8", "replace")
            raise StatusError(response.status, text, response.headers)
        return response

    def _object(self, path: str, service: str = "storage") -> Any:
        import yarl

        bucket, _, key = path.partition("/")
        text = f"{self._fs._location}/{service}/v1/b/{_quote(bucket)}/o/{_quote(key)}"  # noqa: SLF001 - as above
        return yarl.URL(text, encoded=True)

    async def fetch(self, path: str, start: int, stop: int) -> Response:
        url = self._object(path, "download/storage").with_query(alt="media")
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        async with await self._send("GET", url, headers=headers, stored=True) as response:
            total = check_content_range(response.status, response.headers, start, stop)
            data = await response.read()
        etag = response.headers.get("x-goog-generation") or response.headers.get("ETag") or ""
        return Response(data, total, etag)

    async def head(self, path: str) -> ObjectInfo | None:
        try:
            async with await self._send("GET", self._object(path)) as response:
                return _describe(path, json.loads(await response.read()))
        except StatusError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        bucket, _, start = prefix.partition("/")
        url = f"{self._fs._location}/storage/v1/b/{_quote(bucket)}/o"  # noqa: SLF001 - as above
        token = None
        while True:
            async with await self._send("GET", url, prefix=start, pageToken=token) as response:
                page = json.loads(await response.read())
            for entry in page.get("items", ()):
                yield _describe(f"{bucket}/{entry['name']}", entry)
            token = page.get("nextPageToken")
            if not token:
                return

    async def put(self, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str = "") -> bool:
        from gcsfs import core

        del token
        bucket, _, key = path.partition("/")
        part = max(_STEP, self._tuning.part_bytes // _STEP * _STEP)
        size = len(data) if isinstance(data, bytes) else os.stat(data).st_size
        if size < 2 * part:
            content = data if isinstance(data, bytes) else await asyncio.to_thread(data.read_bytes)
            # Not gcsfs's upload in two MIME parts, whose fixed boundary an object might contain.
            url = f"{self._fs._location}/upload/storage/v1/b/{_quote(bucket)}/o"  # noqa: SLF001 - as above
            condition = {"ifGenerationMatch": "0"} if exclusive else {}
            params: dict[str, Any] = {"uploadType": "media", "name": key, **condition}
            headers = {"Content-Type": _OCTETS}
            async with await self._send("POST", url, headers=headers, data=content, **params) as response:
                return _is_resource(await response.read(), key, size)
        mode = "create" if exclusive else "overwrite"
        location = await core.initiate_upload(self._fs, bucket, key, _OCTETS, mode=mode)
        with io.BytesIO(data) if isinstance(data, bytes) else open(data, "rb") as file:  # noqa: ASYNC230 - local disk, part by part
            for start in range(0, size, part):
                await core.upload_chunk(self._fs, location, file.read(part), start, size, _OCTETS)
        # It keeps the answers to itself.
        return False

    async def delete(self, path: str) -> None:
        async with await self._send("DELETE", self._object(path)):
            pass

    async def zonal(self, path: str) -> bool:
        """Tell whether the bucket is a zonal one; False where one may not ask."""
        bucket = path.partition("/")[0]
        url = f"{self._fs._location}/storage/v1/b/{_quote(bucket)}"  # noqa: SLF001 - as above
        try:
            async with await self._send("GET", url) as response:
                facts = json.loads(await response.read())
        except StatusError:
            return False
        return bool(facts.get("locationType") == "zone" or facts.get("storageClass") == "RAPID")


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _is_resource(body: bytes, key: str, size: int) -> bool:
    """Return whether an answer is the description of an object that was stored, and not some page."""
    try:
        found = json.loads(body)
        return bool(found["name"] == key and int(found["size"]) == size)
    except (ValueError, KeyError, TypeError):
        return False


def _describe(path: str, entry: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(path, int(entry.get("size", 0)), entry.get("generation") or entry.get("etag") or "")
