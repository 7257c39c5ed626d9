"""S3 and what speaks its protocol, through s3fs's connection: one request per call, no hidden retries."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC
from typing import Any

from shardio.storage._client import TOKEN, Client, Response, check_content_range, disable_retries
from shardio.storage._errors import ErrorKind, UnprovenError, classify
from shardio.storage._store import ObjectInfo
from shardio.storage._tuning import Tuning


def connect_s3(options: Mapping[str, Any], tuning: Tuning) -> Any:
    """Return an s3fs filesystem of our own, whose retries and those of botocore below it are off."""
    import s3fs

    config = dict(options.get("config_kwargs") or {})
    config["retries"] = {"total_max_attempts": 1, "mode": "standard"}
    config.setdefault("max_pool_connections", tuning.concurrency + tuning.uploads)
    fs = s3fs.S3FileSystem(**{**options, "config_kwargs": config, "skip_instance_cache": True})
    # An attribute of the class, not an option: 1 means one attempt.
    fs.retries = 1
    return fs


class S3Client(Client):
    """Requests on buckets of S3."""

    def __init__(self, fs: Any, tuning: Tuning) -> None:
        self._fs = fs
        self._tuning = tuning

    async def _call(self, method: str, path: str, **arguments: Any) -> Any:
        bucket, _, key = path.partition("/")
        await self._once()
        return await self._fs._call_s3(method, Bucket=bucket, Key=key, **arguments)  # noqa: SLF001 - `call_s3` is its blocking twin

    async def _once(self) -> None:
        """Tell the HTTP sessions that botocore has opened so far not to repeat requests."""
        client = await self._fs.set_session()
        http = getattr(getattr(client, "_endpoint", None), "http_session", None)
        for session in (getattr(http, "_sessions", None) or {}).values():
            disable_retries(session)

    async def fetch(self, path: str, start: int, stop: int) -> Response:
        response = await self._call("get_object", path, Range=f"bytes={start}-{stop - 1}")
        body = response["Body"]
        try:
            headers = {
                "Content-Range": response.get("ContentRange", ""),
                "Content-Length": str(response.get("ContentLength", "")),
            }
            total = check_content_range(response["ResponseMetadata"]["HTTPStatusCode"], headers, start, stop)
            data = await body.read()
        finally:
            body.close()
        return Response(data, total, response.get("ETag", ""))

    async def head(self, path: str) -> ObjectInfo | None:
        try:
            response = await self._call("head_object", path)
        except Exception as error:
            if classify(error).kind is ErrorKind.NOT_FOUND:
                return None
            raise
        return ObjectInfo(path, response["ContentLength"], response.get("ETag", ""))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        bucket, _, start = prefix.partition("/")
        following = {"ContinuationToken": "NextContinuationToken"}
        async for page in self._pages("list_objects_v2", following, Bucket=bucket, Prefix=start):
            for entry in page.get("Contents", ()):
                yield ObjectInfo(f"{bucket}/{entry['Key']}", entry["Size"], entry.get("ETag", ""))

    async def _pages(self, verb: str, following: Mapping[str, str], **arguments: str) -> AsyncIterator[Any]:
        """Yield the pages of a listing; `following` maps arguments to fields of the page before."""
        token: dict[str, str] = {}
        while True:
            page = await self._fs._call_s3(verb, **arguments, **token)  # noqa: SLF001 - as above
            yield page
            if not page.get("IsTruncated"):
                return
            token = {argument: page[field] for argument, field in following.items()}

    async def put(self, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str = "") -> bool:
        mark = {"Metadata": {TOKEN: token}} if token else {}
        mode = "create" if exclusive else "overwrite"
        part = self._tuning.part_bytes
        if isinstance(data, pathlib.Path):
            if os.stat(data).st_size >= 2 * part:
                put = self._fs._put_file  # noqa: SLF001 - `put_file` is its blocking twin
                try:
                    await put(str(data), path, mode=mode, chunksize=part, max_concurrency=2, **mark)
                except FileNotFoundError as error:
                    text = classify(error).text
                    if "NoSuchUpload" not in text:
                        raise
                    # A rule of the bucket or another client has ended it: it begins again.
                    raise UnprovenError(f"the upload in parts was ended: {text}") from error
                # It keeps the answers to itself.
                return False
            data = await asyncio.to_thread(data.read_bytes)
        condition = {"IfNoneMatch": "*"} if exclusive else {}
        response = await self._call("put_object", path, Body=data, **condition, **mark)
        # The answer has an ETag and no body; a page of something in between has a body, and may have an ETag.
        length = response["ResponseMetadata"]["HTTPHeaders"].get("content-length", "0")
        return bool(response.get("ETag")) and length == "0"

    async def token(self, path: str) -> str | None:
        response = await self._call("head_object", path)
        found: str | None = response.get("Metadata", {}).get(TOKEN)
        return found

    async def delete(self, path: str) -> None:
        await self._call("delete_object", path)

    async def uploads(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        bucket, _, start = prefix.partition("/")
        following = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        async for page in self._pages("list_multipart_uploads", following, Bucket=bucket, Prefix=start):
            for entry in page.get("Uploads", ()):
                begun = f"{entry['Initiated'].astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
                yield ObjectInfo(f"{bucket}/{entry['Key']}", 0, f"{begun} {entry['UploadId']}")

    async def abort(self, path: str, upload: str) -> None:
        await self._call("abort_multipart_upload", path, UploadId=upload)
