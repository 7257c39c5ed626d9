"""Azure Blob Storage, by the service client of adlfs; the SDK repeats refused and lost requests."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import os
import pathlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shardio.storage._client import ATTEMPTS, CONNECT_SECONDS, TOKEN, Client, Opened
from shardio.storage._obstore import UntranslatableError, wait_for
from shardio.storage._store import ObjectInfo

_MARK = TOKEN.replace("-", "_")  # metadata of Azure has names of identifiers


def filesystem(options: Mapping[str, Any], root: str) -> tuple[Any, str]:
    import adlfs

    fs = adlfs.AzureBlobFileSystem(**{**options, "skip_instance_cache": True})
    # adlfs has no options for these. By itself the SDK waits 20 seconds for a connection, and 15 and more to
    # repeat a request.
    connection = fs.service_client._pipeline._transport.connection_config  # noqa: SLF001 - as said
    connection.timeout = options.get("connection_timeout") or CONNECT_SECONDS
    policy = fs.service_client._config.retry_policy  # noqa: SLF001 - as said
    policy.initial_backoff, policy.increment_base, policy.random_jitter_range = 0, 2, 1
    policy.total_retries = policy.connect_retries = policy.read_retries = policy.status_retries = ATTEMPTS - 1
    return fs, root


def _blob(client: Client, path: str) -> Any:
    container, _, blob = path.partition("/")
    return client.fs.service_client.get_blob_client(container=container, blob=blob)


@contextlib.asynccontextmanager
async def open_range(client: Client, path: str, start: int, stop: int) -> AsyncIterator[Opened]:
    responses: list[Any] = []

    def look(response: Any, body: Any, _headers: Any) -> Any:
        responses.append(response.http_response)
        return body

    async with _blob(client, path) as blob:
        # The downloader above it splits ranges and joins what it gets, of whatever length.
        download = blob._client.blob.download  # noqa: SLF001 - as said
        parts = aiter(await download(range=f"bytes={start}-{stop - 1}", cls=look))
        response = responses[-1]

        async def read(_: int) -> bytes:
            part: bytes = await anext(parts, b"")
            return part

        try:
            headers = response.headers
            etag = _bare(headers.get("ETag"))
            yield Opened(response.status_code, headers.get("Content-Range", ""), etag, read)
        finally:
            # A body that was not read to its end costs the connection.
            response.internal_response.close()


async def describe(client: Client, path: str) -> tuple[ObjectInfo, str | None]:
    async with _blob(client, path) as blob:
        found = await blob.get_blob_properties()
    return ObjectInfo(path, found.size, _bare(found.etag)), (found.metadata or {}).get(_MARK)


async def find(client: Client, prefix: str) -> list[ObjectInfo]:
    container, _, start = prefix.partition("/")
    async with client.fs.service_client.get_container_client(container) as listed:
        # A hierarchical namespace lists its folders as empty blobs.
        return [
            ObjectInfo(f"{container}/{entry.name}", entry.size, _bare(entry.etag))
            async for entry in listed.list_blobs(name_starts_with=start)
            if (entry.metadata or {}).get("hdi_isfolder") != "true"
        ]


async def put(client: Client, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str) -> bool:
    options: dict[str, Any] = {"overwrite": not exclusive, "metadata": {_MARK: token}, "max_concurrency": 2}
    async with _blob(client, path) as blob:
        with io.BytesIO(data) if isinstance(data, bytes) else open(data, "rb") as file:  # noqa: ASYNC230 - local disk, read by the SDK part by part
            found = await blob.upload_blob(file, **options)
    return bool(found.get("etag") and found.get("request_id"))


async def delete(client: Client, path: str) -> None:
    async with _blob(client, path) as blob:
        await blob.delete_blob()


def _bare(etag: str | None) -> str:
    # The SDK strips the quotes in one place and keeps them in another.
    return (etag or "").strip('"')


def by_options(options: dict[str, Any], container: str, common: dict[str, Any]) -> Any:
    """Return a store if a connection string or the options state the account and a key."""
    text = options.pop("connection_string", None) or ""
    stated = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    account = options.pop("account_name", None) or stated.get("AccountName")
    key = options.pop("account_key", None) or stated.get("AccountKey")
    environment = any(name.startswith("AZURE_STORAGE_") for name in os.environ)
    if not (account and key) or "SharedAccessSignature" in stated or environment or any(options.values()):
        return None
    endpoint = stated.get("BlobEndpoint")
    if endpoint is None:
        protocol = stated.get("DefaultEndpointsProtocol", "https")
        suffix = stated.get("EndpointSuffix", "core.windows.net")
        endpoint = f"{protocol}://{account}.blob.{suffix}"
    config = {"account_name": account, "account_key": key, "endpoint": endpoint.rstrip("/")}
    return _azure_store(container, config, common)


def _azure_store(container: str, config: dict[str, Any], common: dict[str, Any]) -> Any:
    from obstore.store import AzureStore

    common["client_options"]["allow_http"] = config["endpoint"].startswith("http://")
    return AzureStore(container, **config, **common)


async def by_filesystem(fs: Any, container: str, common: dict[str, Any]) -> Any:
    endpoint = str(fs.service_client.primary_endpoint).partition("?")[0].rstrip("/")
    config: dict[str, Any] = {"account_name": fs.service_client.account_name, "endpoint": endpoint}
    key = getattr(fs.service_client.credential, "account_key", None)
    connection = dict(part.split("=", 1) for part in (fs.connection_string or "").split(";") if "=" in part)
    token = fs.sas_token or connection.get("SharedAccessSignature")
    if key is not None:
        config["account_key"] = key
    elif token is not None:
        config["sas_key"] = token.lstrip("?")
    elif fs.credential is not None and hasattr(fs.credential, "get_token"):
        config["credential_provider"] = _azure_provider(fs.credential, fs.loop)
    elif fs.credential is not None:
        raise UntranslatableError("obstore has no counterpart for this kind of credential")
    else:
        config["skip_signature"] = True
    return _azure_store(container, config, common)


def _azure_provider(credential: Any, loop: asyncio.AbstractEventLoop) -> Any:
    def provide() -> dict[str, Any]:
        token = wait_for(credential.get_token("https://storage.azure.com/.default"), loop)
        moment = datetime.datetime.fromtimestamp(token.expires_on, datetime.UTC)
        return {"token": token.token, "expires_at": moment}

    return provide


def etag_of(meta: Any) -> str:
    return _bare(meta["e_tag"])
