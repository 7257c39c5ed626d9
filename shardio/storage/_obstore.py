"""Read ranges by obstore, where it is installed and understands the options: a tenth of the processor time.

Requests for data go through it; metadata, listings and writes go through the fsspec filesystem, so a parent
that has only opened a dataset may fork.  Credentials come from that filesystem: both see the same profiles,
files and services, and rotating ones keep rotating.  obstore repeats, signs and keeps connections.

Its threads do not survive a fork: in the child of a process that has used it a call would hang.
"""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import os
import re
from collections.abc import Callable, Coroutine
from typing import Any, cast

from shardio.storage._errors import BadResponseError
from shardio.storage._services import GCS, HTTP, S3, Azure, Reply, Service

# Paths that obstore does not take: with control characters or empty components.
_UNNAMEABLE = re.compile(r"[\x00-\x1f\x7f]|(?<!:)//")
_RETRIES = {"max_retries": 0}  # the store repeats
_NETWORK = {
    "timeout": datetime.timedelta(seconds=180),  # of one request with its body, of 8 MiB at most
    "connect_timeout": datetime.timedelta(seconds=20),
}
# The process that has used obstore, if any; its forked children must not.
_used_by: int | None = None
# This process was forked by a pool of ours: its user can do nothing about what that costs.
_meant = False


def fork_is_meant() -> None:
    """Let fsspec read without a line in the log if this process was forked after obstore was used."""
    global _meant  # noqa: PLW0603 - a fact about the process
    _meant = True


def fork_was_meant() -> bool:
    """Return whether `fork_is_meant` was called."""
    return _meant


def was_forked() -> bool:
    """Return whether this process was forked after obstore was used."""
    return _used_by not in {None, os.getpid()}


class UntranslatableError(Exception):
    """obstore cannot be used here; says why."""


class ObstoreReader:
    """Reads ranges of objects of one bucket; thread-safe, and every call blocks.

    Attributes:
        answered: a request has succeeded, so that options and credentials are right.
    """

    def __init__(self, store: Any, prefix: str, etag_of: Callable[[Any], str]) -> None:
        self._store = store
        self._prefix = prefix
        self._etag_of = etag_of
        self.answered = False

    def takes(self, path: str) -> bool:
        """Return whether obstore takes such a name."""
        return not _UNNAMEABLE.search(path)

    def fetch(self, path: str, start: int, stop: int) -> Reply:
        """Return bytes `[start, stop)`, not empty; never more, however much the server sends.

        Raises:
            Exception: what obstore raised, or `BadResponseError`.
        """
        import obstore

        key = path[len(self._prefix) :]
        result = obstore.get(self._store, key, options={"range": (start, stop)})
        total = int(result.meta["size"])
        begin, end = result.range
        if begin != start or end != min(stop, total):
            raise BadResponseError(
                f"the server sent bytes [{begin}, {end}) where [{start}, {stop}) were asked for"
            )
        # One part holds a right body, and of a longer one hardly more than was asked for.
        parts = iter(result.stream(min_chunk_size=end - start + 1))
        try:
            data = memoryview(next(parts, b""))
        except Exception as error:
            raise BadResponseError(f"the response broke off: {error}") from error
        if len(data) != end - start:
            found = f"more than {end - start}" if len(data) > end - start else str(len(data))
            raise BadResponseError(f"the response holds {found} bytes where {end - start} were asked for")
        self.answered = True
        return Reply(data, total, self._etag_of(result.meta))


def open_reader(service: Service, path: str) -> ObstoreReader:
    """Return a reader for a root, configured like its fsspec filesystem.

    Args:
        service: that has the filesystem.
        path: of the root, as the filesystem calls it.

    Raises:
        UntranslatableError: it cannot be configured so, or this process was forked after obstore was used.
    """
    global _used_by  # noqa: PLW0603 - a fact about the process
    if was_forked():
        raise UntranslatableError(
            "this process was forked after obstore was used; start workers with forkserver or spawn"
        )
    from fsspec.asyn import sync

    open_store, etag_of = _CLIENTS[type(service)]
    place = path.partition("/")[0] if service.has_buckets else path
    common = {"retry_config": dict(_RETRIES), "client_options": dict(_NETWORK)}
    store = sync(service.fs.loop, open_store, service.fs, place, common)
    _used_by = os.getpid()
    return ObstoreReader(store, f"{place}/", etag_of)


def _refuse_unknown(options: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(name for name, value in options.items() if name not in known and value)
    if unknown:
        raise UntranslatableError(f"obstore has no counterpart for {', '.join(unknown)} in {where}")


async def _s3(fs: Any, bucket: str, common: dict[str, Any]) -> Any:
    from obstore.store import S3Store

    client_known = {"endpoint_url", "region_name", "verify", "use_ssl"} | {
        f"aws_{name}" for name in ("access_key_id", "secret_access_key", "session_token")
    }
    _refuse_unknown(fs.client_kwargs, client_known, "client_kwargs")
    config_known = {"retries", "max_pool_connections", "s3", "signature_version", "connect_timeout"}
    _refuse_unknown(fs.config_kwargs, config_known | {"read_timeout", "tcp_keepalive"}, "config_kwargs")
    _refuse_unknown(fs.config_kwargs.get("s3") or {}, {"addressing_style"}, "config_kwargs['s3']")
    # Encryption by the service's own keys needs nothing when reading.
    write_only = {
        "ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled", "StorageClass", "ACL", "ContentType",
    }  # fmt: skip
    _refuse_unknown(fs.s3_additional_kwargs, write_only, "s3_additional_kwargs")
    await fs.set_session()
    meta = fs._s3.meta  # noqa: SLF001 - what botocore made of options, environment and profile
    endpoint = str(meta.endpoint_url)
    custom = ".amazonaws.com" not in endpoint
    network = common["client_options"]
    config: dict[str, Any] = {"region": meta.region_name or "us-east-1"}
    if custom:
        config["endpoint"] = endpoint
        network["allow_http"] = endpoint.startswith("http://")
    elif not fs.client_kwargs.get("region_name"):
        config["region"] = await _bucket_region(fs, bucket) or config["region"]
    style = (fs.config_kwargs.get("s3") or {}).get("addressing_style")
    if style in {"virtual", "path"}:
        config["virtual_hosted_style_request"] = style == "virtual"
    elif not custom:
        config["virtual_hosted_style_request"] = "." not in bucket
    verify = fs.client_kwargs.get("verify")
    if verify is None:  # what botocore looks for then
        verify = fs.session.get_config_variable("ca_bundle")
    if verify is False:
        network["allow_invalid_certificates"] = True
    elif isinstance(verify, str):
        with open(verify, "rb") as file:  # noqa: ASYNC230 - a small local file, once
            network["root_certificate"] = file.read()
    if fs.req_kw:
        config["request_payer"] = True
    credentials = getattr(fs._s3._request_signer, "_credentials", None)  # noqa: SLF001 - those given as options
    if credentials is None and not fs.anon:
        # Only now: this asks the metadata service of EC2, for seconds where there is none.
        credentials = await fs.session.get_credentials()
    if fs.anon or credentials is None:
        return S3Store(bucket, skip_signature=True, **config, **common)
    provider = _aws_provider(credentials, fs.loop)
    return S3Store(bucket, credential_provider=provider, **config, **common)


async def _bucket_region(fs: Any, bucket: str) -> str | None:
    try:
        response = await fs._call_s3("head_bucket", Bucket=bucket)  # noqa: SLF001 - `call_s3` is its blocking twin
    except Exception:  # noqa: BLE001 - with permission for objects, but not for the bucket, the default stays
        return None
    region: str | None = response["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
    return region


# Providers are plain functions, which obstore calls in threads of its own: what they wait for is on the loop.


def _aws_provider(credentials: Any, loop: asyncio.AbstractEventLoop) -> Any:
    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        if hasattr(frozen, "__await__"):
            frozen = _wait_for(frozen, loop)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            # Asked again after a while: botocore renews by itself, and does not say when.
            "expires_at": _soon(),
        }

    return provide


def _wait_for(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result()


def _soon() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=6)


async def _gcs(fs: Any, bucket: str, common: dict[str, Any]) -> Any:
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
        moment = _soon() if expiry is None else expiry.replace(tzinfo=datetime.UTC)
        return {"token": holder.credentials.token, "expires_at": moment}

    return GCSStore(bucket, credential_provider=cast("Any", provide), **common)


async def _azure(fs: Any, container: str, common: dict[str, Any]) -> Any:
    from obstore.store import AzureStore

    endpoint = str(fs.service_client.primary_endpoint).partition("?")[0].rstrip("/")
    config: dict[str, Any] = {"account_name": fs.service_client.account_name, "endpoint": endpoint}
    common["client_options"]["allow_http"] = endpoint.startswith("http://")
    key = getattr(fs.service_client.credential, "account_key", None)
    connection = dict(part.split("=", 1) for part in (fs.connection_string or "").split(";") if "=" in part)
    token = fs.sas_token or connection.get("SharedAccessSignature")
    if key is not None:
        config["account_key"] = key
    elif token is not None:
        config["sas_key"] = token.lstrip("?")
    elif fs.credential is not None and hasattr(fs.credential, "get_token"):
        provider = _azure_provider(fs.credential, fs.loop)
        return AzureStore(container, credential_provider=provider, **config, **common)
    elif fs.credential is not None:
        raise UntranslatableError("obstore has no counterpart for this kind of credential")
    else:
        config["skip_signature"] = True
    return AzureStore(container, **config, **common)


def _azure_provider(credential: Any, loop: asyncio.AbstractEventLoop) -> Any:
    def provide() -> dict[str, Any]:
        token = _wait_for(credential.get_token("https://storage.azure.com/.default"), loop)
        moment = datetime.datetime.fromtimestamp(token.expires_on, datetime.UTC)
        return {"token": token.token, "expires_at": moment}

    return provide


async def _http(fs: Any, root: str, common: dict[str, Any]) -> Any:
    from obstore.store import HTTPStore

    if "%" in root or "?" in root or "#" in root:
        raise UntranslatableError("obstore would encode the root's URL once more")
    _refuse_unknown(fs.client_kwargs, {"headers", "trust_env", "timeout"}, "client_kwargs")
    _refuse_unknown(fs.kwargs, {"headers", "allow_redirects"}, "storage_options")
    headers = {**(fs.client_kwargs.get("headers") or {}), **(fs.kwargs.get("headers") or {})}
    network = common["client_options"]
    network["allow_http"] = root.startswith("http://")
    if headers:
        network["default_headers"] = {str(name): str(value) for name, value in headers.items()}
    return HTTPStore(root, **common)


# ETags as the fsspec clients write them, so that either may continue what the other began.


def _etag(meta: Any) -> str:
    return meta["e_tag"] or ""


def _bare_etag(meta: Any) -> str:
    return (meta["e_tag"] or "").strip('"')


def _generation(meta: Any) -> str:
    return meta["version"] or meta["e_tag"] or ""


def _http_etag(meta: Any) -> str:
    etag = meta["e_tag"] or ""
    if etag and not etag.startswith("W/"):
        return str(etag)
    moment = meta["last_modified"]
    return email.utils.format_datetime(moment, usegmt=True) if moment.timestamp() else ""


_CLIENTS: dict[type[Service], tuple[Callable[..., Coroutine[Any, Any, Any]], Callable[[Any], str]]] = {
    S3: (_s3, _etag),
    GCS: (_gcs, _generation),
    Azure: (_azure, _bare_etag),
    HTTP: (_http, _http_etag),
}
