"""Google Cloud Storage, by the session and the credentials of gcsfs, and its JSON API.

Its own requests hand out no headers and log a traceback for each refusal, so requests are sent here.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import os
import pathlib
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from shardio.storage import _client
from shardio.storage._client import OCTETS, Client, Opened, answered, bytes_of, session_options
from shardio.storage._obstore import UntranslatableError, soon
from shardio.storage._store import ObjectInfo


def filesystem(options: Mapping[str, Any], root: str) -> tuple[Any, str]:
    # The plain class: the one for zonal and hierarchical buckets asks a second service about each bucket.
    from gcsfs.core import GCSFileSystem

    session = session_options(options.get("session_kwargs"))
    return GCSFileSystem(**{**options, "session_kwargs": session, "skip_instance_cache": True}), root


@contextlib.asynccontextmanager
async def _send(
    client: Client,
    method: str,
    url: Any,
    headers: Mapping[str, str] | None = None,
    data: Any = None,
    **params: Any,
) -> AsyncIterator[Any]:
    fs = client.fs
    await fs._set_session()  # noqa: SLF001 - gcsfs has no public face for a response with its headers
    request = fs.session.request(
        method,
        url,
        params=fs._get_params(params),  # noqa: SLF001 - as above
        headers=fs._get_headers(dict(headers or {})),  # noqa: SLF001 - as above
        data=data,
        # Ranges are of the object as it is stored.
        auto_decompress="Range" not in (headers or {}),
    )
    async with answered(request) as response:
        yield response


def _url(client: Client, path: str, *, verb: str = "storage", object_of: bool = True) -> Any:
    import yarl

    bucket, _, key = path.partition("/")
    name = f"/{urllib.parse.quote(key, safe='')}" if object_of else ""
    location = client.fs._location  # noqa: SLF001 - where it keeps its endpoint
    return yarl.URL(f"{location}/{verb}/v1/b/{urllib.parse.quote(bucket, safe='')}/o{name}", encoded=True)


@contextlib.asynccontextmanager
async def open_range(client: Client, path: str, start: int, stop: int) -> AsyncIterator[Opened]:
    url = _url(client, path, verb="download/storage").with_query(alt="media")
    async with _send(client, "GET", url, {"Range": f"bytes={start}-{stop - 1}"}) as response:
        headers = response.headers
        etag = headers.get("x-goog-generation") or headers.get("ETag") or ""
        yield Opened(response.status, headers.get("Content-Range", ""), etag, response.content.read)


async def describe(client: Client, path: str) -> tuple[ObjectInfo, str | None]:
    async with _send(client, "GET", _url(client, path)) as response:
        return _described(path, json.loads(await response.read())), None


async def find(client: Client, prefix: str) -> list[ObjectInfo]:
    bucket, _, start = prefix.partition("/")
    url = _url(client, bucket, object_of=False)
    found: list[ObjectInfo] = []
    token = None
    while True:
        async with _send(client, "GET", url, prefix=start, pageToken=token) as response:
            page = json.loads(await response.read())
        found += [_described(f"{bucket}/{entry['name']}", entry) for entry in page.get("items", ())]
        token = page.get("nextPageToken")
        if not token:
            return found


async def put(client: Client, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str) -> bool:
    from gcsfs import core

    del token  # uploads of this kind take no metadata
    bucket, _, key = path.partition("/")
    size = len(data) if isinstance(data, bytes) else os.stat(data).st_size
    part = _client.PART_BYTES
    if size < 2 * part:
        # Not gcsfs's upload in two MIME parts, whose fixed boundary an object might contain.
        condition = {"ifGenerationMatch": "0"} if exclusive else {}
        params: dict[str, Any] = {"uploadType": "media", "name": key, **condition}
        url = _url(client, bucket, verb="upload/storage", object_of=False)
        content = await bytes_of(data)
        async with _send(client, "POST", url, {"Content-Type": OCTETS}, content, **params) as response:
            return _is_resource(await response.read(), key, size)
    mode = "create" if exclusive else "overwrite"
    location = await core.initiate_upload(client.fs, bucket, key, OCTETS, mode=mode)
    with io.BytesIO(data) if isinstance(data, bytes) else open(data, "rb") as file:  # noqa: ASYNC230 - local disk, part by part
        for start in range(0, size, part):
            await core.upload_chunk(client.fs, location, file.read(part), start, size, OCTETS)
    return False  # it keeps the answers to itself


async def delete(client: Client, path: str) -> None:
    async with _send(client, "DELETE", _url(client, path)):
        pass


def _is_resource(body: bytes, key: str, size: int) -> bool:
    """Return whether an answer is the description of an object that was stored, and not some page."""
    try:
        found = json.loads(body)
        return bool(found["name"] == key and int(found["size"]) == size)
    except (ValueError, KeyError, TypeError):
        return False


def _described(path: str, entry: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(path, int(entry.get("size", 0)), entry.get("generation") or entry.get("etag") or "")


def by_options(options: dict[str, Any], bucket: str, common: dict[str, Any]) -> Any:
    """Return a store if the options state that there are no credentials."""
    from obstore.store import GCSStore

    anonymous = options.pop("token", None) == "anon" and "STORAGE_EMULATOR_HOST" not in os.environ
    return (
        GCSStore(bucket, skip_signature=True, **common) if anonymous and not any(options.values()) else None
    )


async def by_filesystem(fs: Any, bucket: str, common: dict[str, Any]) -> Any:
    from obstore.store import GCSStore

    if "googleapis.com" not in fs._location:  # noqa: SLF001 - where gcsfs keeps its endpoint
        raise UntranslatableError("obstore cannot use another endpoint for GCS")
    if fs.session_kwargs.keys() - {"trust_env"}:
        raise UntranslatableError("obstore has no counterpart for session_kwargs")
    if fs.requester_pays:
        project = fs.requester_pays if isinstance(fs.requester_pays, str) else fs.project
        common["client_options"]["default_headers"] = {"x-goog-user-project": str(project)}
    holder = fs.credentials
    if getattr(holder, "credentials", None) is None:
        return GCSStore(bucket, skip_signature=True, **common)

    def provide() -> dict[str, Any]:
        holder.maybe_refresh()
        expiry = getattr(holder.credentials, "expiry", None)
        moment = soon() if expiry is None else expiry.replace(tzinfo=datetime.UTC)
        return {"token": holder.credentials.token, "expires_at": moment}

    return GCSStore(bucket, credential_provider=cast("Any", provide), **common)


def etag_of(meta: Any) -> str:
    return meta["version"] or meta["e_tag"] or ""
