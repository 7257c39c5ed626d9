"""Azure Blob Storage through adlfs's service client: one request per call, no hidden retries."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shardio.storage._client import TOKEN, Client, Response, check_content_range
from shardio.storage._errors import ErrorKind, StatusError, classify
from shardio.storage._store import ObjectInfo
from shardio.storage._tuning import Tuning

_TOKEN = TOKEN.replace("-", "_")
# Per request, which the retry policy of the SDK obeys.
_ONCE: dict[str, Any] = {"retry_total": 0, "retry_connect": 0, "retry_read": 0, "retry_status": 0}


def connect_azure(options: Mapping[str, Any], tuning: Tuning) -> Any:
    """Return an adlfs filesystem of our own; its retries are turned off per request."""
    import adlfs

    merged = {"max_concurrency": tuning.uploads, **options, "skip_instance_cache": True}
    return adlfs.AzureBlobFileSystem(**merged)


class AzureClient(Client):
    """Requests on containers of Azure Blob Storage."""

    def __init__(self, fs: Any, tuning: Tuning) -> None:
        self._fs = fs
        self._tuning = tuning

    def _blob(self, path: str) -> Any:
        container, _, blob = path.partition("/")
        return self._fs.service_client.get_blob_client(container=container, blob=blob)

    async def fetch(self, path: str, start: int, stop: int) -> Response:
        seen: dict[str, Any] = {}

        def look(response: Any, body: Any, _headers: Any) -> Any:
            seen["status"] = response.http_response.status_code
            seen["headers"] = response.http_response.headers
            return body

        async with self._blob(path) as blob:
            # The generated client below the blob client sends exactly one request for any length, where the
            # downloader above it splits, resumes and repeats.
            stream = await blob._client.blob.download(  # noqa: SLF001 - the public downloader retries by itself
                range=f"bytes={start}-{stop - 1}",
                cls=look,
                **_ONCE,
            )
            total = check_content_range(seen["status"], seen["headers"], start, stop)
            data = b"".join([piece async for piece in stream])
        return Response(data, total, _etag(seen["headers"].get("ETag")))

    async def head(self, path: str) -> ObjectInfo | None:
        try:
            async with self._blob(path) as blob:
                found = await blob.get_blob_properties(**_ONCE)
        except Exception as error:
            if classify(error).kind is ErrorKind.NOT_FOUND:
                return None
            raise
        return ObjectInfo(path, found.size, _etag(found.etag))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        container, _, start = prefix.partition("/")
        async with self._fs.service_client.get_container_client(container) as client:
            async for entry in client.list_blobs(name_starts_with=start, **_ONCE):
                # A hierarchical namespace lists its folders as empty blobs.
                folder = (entry.metadata or {}).get("hdi_isfolder") == "true"
                if not folder and not entry.name.endswith("/"):
                    yield ObjectInfo(f"{container}/{entry.name}", entry.size, _etag(entry.etag))

    async def put(self, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str = "") -> bool:
        # Metadata of Azure has names of identifiers.
        options: dict[str, Any] = {"overwrite": not exclusive, "metadata": {_TOKEN: token}} | _ONCE
        async with self._blob(path) as blob:
            if isinstance(data, pathlib.Path):
                with open(data, "rb") as file:  # noqa: ASYNC230 - local disk, read by the SDK part by part
                    found = await blob.upload_blob(file, max_concurrency=2, **options)
            else:
                found = await blob.upload_blob(data, **options)
        return bool(found.get("etag") and found.get("request_id"))

    async def token(self, path: str) -> str | None:
        async with self._blob(path) as blob:
            found = await blob.get_blob_properties(**_ONCE)
        token: str | None = (found.metadata or {}).get(_TOKEN)
        return token

    async def delete(self, path: str) -> None:
        async with self._blob(path) as blob:
            await blob.delete_blob(**_ONCE)

    async def uploads(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield blobs of which there are blocks and nothing else; Azure removes those after a week."""
        container, _, start = prefix.partition("/")
        whole = {info.key async for info in self.list(prefix)}
        async with self._fs.service_client.get_container_client(container) as client:
            async for entry in client.list_blobs(
                name_starts_with=start, include=["uncommittedblobs"], **_ONCE
            ):
                path = f"{container}/{entry.name}"
                if entry.size == 0 and path not in whole and not entry.name.endswith("/"):
                    moment = entry.last_modified
                    yield ObjectInfo(path, 0, f"{moment:%Y-%m-%dT%H:%M:%SZ} " if moment else " ")

    async def abort(self, path: str, upload: str) -> None:
        """Refuse: only a blob of that name, or a week, removes blocks that were never committed."""
        del upload
        raise StatusError(501, f"Azure removes the blocks of unfinished uploads after a week ({path})")


def _etag(etag: str | None) -> str:
    # The SDK strips the quotes in one place and keeps them in another.
    return (etag or "").strip('"')
