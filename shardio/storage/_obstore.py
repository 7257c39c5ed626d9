"""Read by obstore, where it is installed and understands the options: a tenth of the processor time.

Options that state the endpoint and the credentials configure it directly.  All others are resolved by the
fsspec filesystem, which takes half a second to import and connect: both then see the same profiles, files and
services, and rotating credentials keep rotating.  Listings and writes go through that filesystem.

Threads of obstore do not survive a fork: in the child of a process that has used it a call would hang.
"""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import os
import re
import sys
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


def may_fork() -> bool:
    """Return whether this process may start workers by a fork: those could not use obstore after it did."""
    return "multiprocessing" in sys.modules


def was_forked() -> bool:
    """Return whether this process was forked after obstore was used."""
    return _used_by not in {None, os.getpid()}


class UntranslatableError(Exception):
    """obstore cannot be used here; says why."""


class ObstoreReader:
    """Reads ranges of objects of one bucket; thread-safe, and every call blocks.

    Attributes:
        resolved: the filesystem has resolved the options.
        answered: a request has succeeded, so that options and credentials are right.
    """

    def __init__(self, store: Any, prefix: str, etag_of: Callable[[Any], str], *, resolved: bool) -> None:
        self._store = store
        self._prefix = prefix
        self._etag_of = etag_of
        self.resolved = resolved
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


def open_reader(service: Service, path: str, *, resolve: bool = False) -> ObstoreReader:
    """Return a reader for a root, configured like its fsspec filesystem.

    Args:
        service: that has the options and the filesystem.
        path: of the root, as the filesystem calls it.
        resolve: let the filesystem resolve the options, even if they seem to state everything.

    Raises:
        UntranslatableError: it cannot be configured so, or this process was forked after obstore was used.
    """
    global _used_by  # noqa: PLW0603 - a fact about the process
    if was_forked():
        raise UntranslatableError(
            "this process was forked after obstore was used; start workers with forkserver or spawn"
        )
    from_options, from_filesystem, etag_of = _CLIENTS[type(service)]
    place = path.partition("/")[0] if service.has_buckets else path
    common = {"retry_config": dict(_RETRIES), "client_options": dict(_NETWORK)}
    store = None if resolve or _is_configured() else from_options(dict(service.options), place, common)
    resolve = store is None
    if resolve:
        from fsspec.asyn import sync

        store = sync(service.fs.loop, from_filesystem, service.fs, place, common)
    _used_by = os.getpid()
    return ObstoreReader(store, f"{place}/", etag_of, resolved=resolve)


def _is_configured() -> bool:
    """Return whether fsspec may have options from files or variables."""
    folder = os.environ.get("FSSPEC_CONFIG_DIR") or os.path.expanduser("~/.config/fsspec")
    return os.path.isdir(folder) or any(name.startswith("FSSPEC_") for name in os.environ)


def _refuse_unknown(options: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(name for name, value in options.items() if name not in known and value)
    if unknown:
        raise UntranslatableError(f"obstore has no counterpart for {', '.join(unknown)} in {where}")


# What botocore reads of the environment if it has keys; of other variables it may take more.
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_AWS_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_AWS_KNOWN = {*_AWS_KEYS, *_AWS_ENDPOINTS, "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"}


def _s3_from_options(options: dict[str, Any], bucket: str, common: dict[str, Any]) -> Any:
    """Return a store if options and environment state keys or none, and the endpoint or the region."""
    env = {name: value for name, value in os.environ.items() if name.startswith("AWS_") and value}
    folder = os.path.expanduser("~/.aws/")
    if not env.keys() <= _AWS_KNOWN or any(map(os.path.exists, (folder + "config", folder + "credentials"))):
        return None
    client = dict(options.pop("client_kwargs", None) or {})
    region = client.pop("region_name", None) or env.get("AWS_DEFAULT_REGION")
    endpoints = [options.pop("endpoint_url", None), client.pop("endpoint_url", None)]
    endpoint = next(filter(None, endpoints + [env.get(name) for name in _AWS_ENDPOINTS]), None)
    keys = [options.pop(name, None) for name in ("key", "secret", "token")]
    anon, pays = options.pop("anon", False), options.pop("requester_pays", False)
    if not any(keys):
        keys = [env.get(name) for name in _AWS_KEYS]
    is_placed = bool(region) if endpoint is None else ".amazonaws." not in endpoint
    if not is_placed or not (anon or all(keys[:2])) or any([*options.values(), *client.values()]):
        return None

    def provide() -> dict[str, Any]:
        names = ("access_key_id", "secret_access_key", "token")
        return {**dict(zip(names, keys, strict=True)), "expires_at": None}

    config = {"region": region or "us-east-1", "request_payer": bool(pays)}
    _trust(env.get("AWS_CA_BUNDLE"), common)
    return _s3_store(bucket, endpoint, None if anon else provide, config, common)


def _trust(verify: Any, common: dict[str, Any]) -> None:
    if verify is False:
        common["client_options"]["allow_invalid_certificates"] = True
    elif isinstance(verify, str):
        with open(verify, "rb") as file:
            common["client_options"]["root_certificate"] = file.read()


def _s3_store(
    bucket: str,
    endpoint: str | None,
    provider: Any,
    config: dict[str, Any],
    common: dict[str, Any],
    style: str | None = None,
) -> Any:
    from obstore.store import S3Store

    if endpoint is not None:
        config["endpoint"] = endpoint
        common["client_options"]["allow_http"] = endpoint.startswith("http://")
    if style in {"virtual", "path"}:
        config["virtual_hosted_style_request"] = style == "virtual"
    elif endpoint is None:
        config["virtual_hosted_style_request"] = "." not in bucket
    access = {"skip_signature": True} if provider is None else {"credential_provider": provider}
    return S3Store(bucket, **access, **config, **common)


async def _s3(fs: Any, bucket: str, common: dict[str, Any]) -> Any:
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
    region = meta.region_name or "us-east-1"
    if not custom and not fs.client_kwargs.get("region_name"):
        region = await _bucket_region(fs, bucket) or region
    style = (fs.config_kwargs.get("s3") or {}).get("addressing_style")
    verify = fs.client_kwargs.get("verify")
    if verify is None:  # what botocore looks for then
        verify = fs.session.get_config_variable("ca_bundle")
    _trust(verify, common)
    credentials = getattr(fs._s3._request_signer, "_credentials", None)  # noqa: SLF001 - those given as options
    if credentials is None and not fs.anon:
        # Only now: this asks the metadata service of EC2, for seconds where there is none.
        credentials = await fs.session.get_credentials()
    provider = None if fs.anon or credentials is None else _aws_provider(credentials, fs.loop)
    config = {"region": region, "request_payer": bool(fs.req_kw)}
    return _s3_store(bucket, endpoint if custom else None, provider, config, common, style)


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


def _gcs_from_options(options: dict[str, Any], bucket: str, common: dict[str, Any]) -> Any:
    """Return a store if the options state that there are no credentials."""
    from obstore.store import GCSStore

    anonymous = options.pop("token", None) == "anon" and "STORAGE_EMULATOR_HOST" not in os.environ
    return (
        GCSStore(bucket, skip_signature=True, **common) if anonymous and not any(options.values()) else None
    )


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


def _azure_from_options(options: dict[str, Any], container: str, common: dict[str, Any]) -> Any:
    """Return a store if a connection string or the options state the account and a key."""
    text = options.pop("connection_string", None) or ""
    stated = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    account = options.pop("account_name", None) or stated.get("AccountName")
    key = options.pop("account_key", None) or stated.get("AccountKey")
    environment = any(name.startswith("AZURE_STORAGE_") for name in os.environ)
    if not (account and key) or "SharedAccessSignature" in stated or environment or any(options.values()):
        return None
    endpoint = stated.get("BlobEndpoint") or f"https://{account}.blob.core.windows.net"
    config = {"account_name": account, "account_key": key, "endpoint": endpoint.rstrip("/")}
    return _azure_store(container, config, common)


def _azure_store(container: str, config: dict[str, Any], common: dict[str, Any]) -> Any:
    from obstore.store import AzureStore

    common["client_options"]["allow_http"] = config["endpoint"].startswith("http://")
    return AzureStore(container, **config, **common)


async def _azure(fs: Any, container: str, common: dict[str, Any]) -> Any:
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
        token = _wait_for(credential.get_token("https://storage.azure.com/.default"), loop)
        moment = datetime.datetime.fromtimestamp(token.expires_on, datetime.UTC)
        return {"token": token.token, "expires_at": moment}

    return provide


def _http_from_options(options: dict[str, Any], root: str, common: dict[str, Any]) -> Any:
    from obstore.store import HTTPStore

    if "%" in root or "?" in root or "#" in root:
        raise UntranslatableError("obstore would encode the root's URL once more")
    client = options.pop("client_kwargs", None) or {}
    _refuse_unknown(client, {"headers", "trust_env", "timeout"}, "client_kwargs")
    of_filesystem = {
        "simple_links",
        "block_size",
        "same_scheme",
        "size_policy",
        "cache_type",
        "cache_options",
    }
    _refuse_unknown(options, of_filesystem | {"headers", "allow_redirects"}, "storage_options")
    headers = {**(client.get("headers") or {}), **(options.get("headers") or {})}
    network = common["client_options"]
    network["allow_http"] = root.startswith("http://")
    if headers:
        network["default_headers"] = {str(name): str(value) for name, value in headers.items()}
    return HTTPStore(root, **common)


async def _http(fs: Any, root: str, common: dict[str, Any]) -> Any:
    return _http_from_options({**fs.kwargs, "client_kwargs": fs.client_kwargs}, root, common)


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


_Open = Callable[[dict[str, Any], str, dict[str, Any]], Any]
_Resolve = Callable[..., Coroutine[Any, Any, Any]]
_CLIENTS: dict[type[Service], tuple[_Open, _Resolve, Callable[[Any], str]]] = {
    S3: (_s3_from_options, _s3, _etag),
    GCS: (_gcs_from_options, _gcs, _generation),
    Azure: (_azure_from_options, _azure, _bare_etag),
    HTTP: (_http_from_options, _http, _http_etag),
}
