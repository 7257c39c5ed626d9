"""S3 and S3-compatible stores, by s3fs; botocore repeats refused and lost requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shardio.storage import _client
from shardio.storage._client import ATTEMPTS, CONNECT_SECONDS, TOKEN, Client, Opened, bytes_of
from shardio.storage._errors import BadResponseError, classify
from shardio.storage._obstore import UntranslatableError, refuse_unknown, soon, wait_for
from shardio.storage._store import ObjectInfo


def filesystem(options: Mapping[str, Any], root: str) -> tuple[Any, str]:
    import s3fs

    # "standard" would send nothing again once a hundred answers were bad.
    retries = {"mode": "legacy", "total_max_attempts": ATTEMPTS}
    given = options.get("config_kwargs") or {}
    config = {"max_pool_connections": 64, "retries": retries, "connect_timeout": CONNECT_SECONDS, **given}
    fs = s3fs.S3FileSystem(**{**options, "config_kwargs": config, "skip_instance_cache": True})
    # It would repeat five times what botocore repeats; there is no option for it.
    fs.retries = 1
    connect, answered = fs.set_session, False

    def end_if_not_sent(caught_exception: Exception | None, **_: Any) -> None:
        """Keep botocore from repeating unsent requests to an endpoint that has never answered."""
        nonlocal answered
        if caught_exception is None:
            answered = True
        elif not answered and classify(caught_exception).not_sent:
            caught_exception.not_repeated = True  # type: ignore[attr-defined] # for `classify`
            raise caught_exception

    async def set_session(**options: Any) -> Any:
        is_new = fs._s3 is None  # noqa: SLF001 - where it keeps botocore's client
        client = await connect(**options)
        if is_new:
            client.meta.events.register("needs-retry.s3", end_if_not_sent, unique_id="shardio")
        return client

    fs.set_session = set_session
    return fs, root


async def _call(client: Client, method: str, path: str, **arguments: Any) -> Any:
    bucket, _, key = path.partition("/")
    return await client.fs._call_s3(method, Bucket=bucket, Key=key, **arguments)  # noqa: SLF001 - `call_s3` is its blocking twin


@contextlib.asynccontextmanager
async def open_range(client: Client, path: str, start: int, stop: int) -> AsyncIterator[Opened]:
    response = await _call(client, "get_object", path, Range=f"bytes={start}-{stop - 1}")
    with contextlib.closing(response["Body"]) as body:
        status = response["ResponseMetadata"]["HTTPStatusCode"]
        yield Opened(status, response.get("ContentRange", ""), response.get("ETag", ""), body.read)


async def describe(client: Client, path: str) -> tuple[ObjectInfo, str | None]:
    response = await _call(client, "head_object", path)
    info = ObjectInfo(path, response["ContentLength"], response.get("ETag", ""))
    return info, response.get("Metadata", {}).get(TOKEN)


async def find(client: Client, prefix: str) -> list[ObjectInfo]:
    bucket, _, start = prefix.partition("/")
    found: list[ObjectInfo] = []
    following: dict[str, str] = {}
    while True:
        page = await client.fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=start, **following)  # noqa: SLF001 - as above
        found += [
            ObjectInfo(f"{bucket}/{entry['Key']}", entry["Size"], entry.get("ETag", ""))
            for entry in page.get("Contents", ())
        ]
        if not page.get("IsTruncated"):
            return found
        following = {"ContinuationToken": page["NextContinuationToken"]}


async def put(client: Client, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str) -> bool:
    mark = {"Metadata": {TOKEN: token}}
    part = _client.PART_BYTES
    if isinstance(data, pathlib.Path) and os.stat(data).st_size >= 2 * part:
        mode = "create" if exclusive else "overwrite"
        try:
            await client.fs._put_file(str(data), path, mode=mode, chunksize=part, max_concurrency=2, **mark)  # noqa: SLF001 - as above
        except FileNotFoundError as error:
            if "NoSuchUpload" not in str(error.__cause__):
                raise
            # A rule of the bucket or another client has ended the upload: it begins again.
            raise BadResponseError(f"the upload in parts was ended: {error}") from error
        return False  # it keeps the answers to itself
    condition = {"IfNoneMatch": "*"} if exclusive else {}
    response = await _call(client, "put_object", path, Body=await bytes_of(data), **condition, **mark)
    # The answer has an ETag and no body; a page of something in between has a body, and may have an ETag.
    length = response["ResponseMetadata"]["HTTPHeaders"].get("content-length", "0")
    return bool(response.get("ETag")) and length == "0"


async def delete(client: Client, path: str) -> None:
    await _call(client, "delete_object", path)


# What botocore reads of the environment if it has keys; of other variables it may take more.
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_AWS_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_AWS_KNOWN = {*_AWS_KEYS, *_AWS_ENDPOINTS, "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"}


def by_options(options: dict[str, Any], bucket: str, common: dict[str, Any]) -> Any:
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
        try:
            common["client_options"]["root_certificate"] = pathlib.Path(verify).read_bytes()
        except OSError as error:
            raise UntranslatableError(f"the certificates cannot be read: {error}") from error


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


async def by_filesystem(fs: Any, bucket: str, common: dict[str, Any]) -> Any:
    client_known = {"endpoint_url", "region_name", "verify", "use_ssl"} | {
        f"aws_{name}" for name in ("access_key_id", "secret_access_key", "session_token")
    }
    refuse_unknown(fs.client_kwargs, client_known, "client_kwargs")
    config_known = {"retries", "max_pool_connections", "s3", "signature_version", "connect_timeout"}
    refuse_unknown(fs.config_kwargs, config_known | {"read_timeout", "tcp_keepalive"}, "config_kwargs")
    refuse_unknown(fs.config_kwargs.get("s3") or {}, {"addressing_style"}, "config_kwargs['s3']")
    # Encryption by the service's own keys needs nothing when reading.
    write_only = {
        "ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled", "StorageClass", "ACL", "ContentType",
    }  # fmt: skip
    refuse_unknown(fs.s3_additional_kwargs, write_only, "s3_additional_kwargs")
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


def _aws_provider(credentials: Any, loop: asyncio.AbstractEventLoop) -> Any:
    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        if hasattr(frozen, "__await__"):
            frozen = wait_for(frozen, loop)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            # Asked again after a while: botocore renews by itself, and does not say when.
            "expires_at": soon(),
        }

    return provide


def etag_of(meta: Any) -> str:
    return meta["e_tag"] or ""
