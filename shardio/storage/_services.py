"""fsspec filesystems: any by fsspec's contract, and S3, GCS, Azure and web servers by what they do better.

The filesystem's library signs, renews credentials and keeps connections.  A service adds what no library
gives: a range whose length and claims are checked and that is cut off at the length that was asked for, and a
conditional create whose answer proves that the service itself gave it.  `SERVICES` is the table of protocols;
one without a line there is served by `Service`: read, and written where there is one writer.

Paths are what the filesystem calls an object: bucket and key, or the whole URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pathlib
import random
import re
import secrets
import threading
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.storage._errors import BadResponseError, StatusError, chain
from shardio.storage._keys import TEMPORARY
from shardio.storage._store import Buffer, ObjectInfo

if TYPE_CHECKING:
    from shardio.storage._obstore import ObstoreReader

PART_BYTES = 16 << 20  # files of twice this are uploaded in parts of this size
_PART_ATTEMPTS = 6
_CONNECT_SECONDS, _SILENT_SECONDS = 20, 20
# A body may take this long, and a second for each so many bytes of it.
_BODY_SECONDS, _SLOWEST = 60, 64 << 10
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
# The name of the token among an object's metadata, by which a writer knows its own object.
_TOKEN = "shardio-put"  # noqa: S105 - a name, no secret
_OCTETS = "application/octet-stream"
_jitter = random.SystemRandom()


class Reply(NamedTuple):
    """Bytes of one object, and what the response says about the whole.

    Attributes:
        data: the bytes; fewer than asked for where the object ends before.
        total: size of the whole object, or None where the response does not tell.
        etag: ETag or generation, or "".
    """

    data: Buffer
    total: int | None
    etag: str


class _Opened(NamedTuple):
    """A response whose body was not read yet."""

    status: int
    content_range: str
    etag: str
    read: Callable[[int], Awaitable[bytes]]


class Service:
    """A filesystem of which only fsspec's contract is known; `call` runs a request of it.

    Attributes:
        package, extra: the package that serves its URLs, and what installs that; empty where fsspec says it.
        has_buckets: its URLs begin with a bucket, and one filesystem serves all of them.
        resends: the client may send a PUT again by itself, as aiohttp does on a connection that was closed.
            Then a refusal may be caused by its own first sending.
        can_list: it has listings.
        read_only_reason: why it takes no objects, or None.
        lifecycle: what becomes of unfinished uploads, which are not listed, or None.
        options, root: storage_options and the path of the root.
        fs: the fsspec filesystem, built at its first use; where possible it repeats nothing: the store does.
        readers: what reads data by obstore, by bucket or URL and the engine asked for; None for `fetch`.
        choosing: held while one is built.
    """

    package = extra = ""
    has_buckets = resends = False
    can_list = True
    read_only_reason: str | None = (
        "it is not known whether this kind of storage can create an object only if it is absent"
    )
    lifecycle: str | None = "this kind of storage does not tell whether uploads were left unfinished"

    def __init__(self, options: Mapping[str, Any], root: str) -> None:
        self.options, self.root = options, root
        self.readers: dict[tuple[str, str | None], ObstoreReader | None] = {}
        self.choosing = threading.RLock()
        # To import a cloud's takes half a second, and obstore may not need it.
        self._fs: Any = None if self.package else self._filesystem(options)

    @property
    def fs(self) -> Any:
        with self.choosing:
            if self._fs is None:
                self._fs = self._filesystem(self.options)
            return self._fs

    def _filesystem(self, options: Mapping[str, Any]) -> Any:
        """Return the filesystem."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.cached import CachingFileSystem

        fs, path = url_to_fs(self.root, **options)
        # A cache would look for an object in its folder's listing, which web servers do not have.
        self._described_by = fs
        while isinstance(self._described_by, CachingFileSystem):
            self._described_by = self._described_by.fs
        self._root: str = path.rstrip("/")
        return fs

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Send one request and wait for it.

        Raises:
            Exception: what the library raised, or `BadResponseError`, `StatusError`.
        """
        work = getattr(self, name)(*arguments, **options)
        try:
            # It blocks, so it never waits for a loop.
            work.send(None)
        except StopIteration as done:
            return done.value
        raise RuntimeError(f"{name} of a blocking filesystem waited for an event loop")

    def _path(self, path: str) -> str:
        """Return the filesystem's own name for what the store calls by the root's URL and a key."""
        return self._root + path[len(self.root) :]

    async def fetch(self, path: str, start: int, stop: int) -> Reply:
        """Return bytes `[start, stop)`, not empty; fewer only where the object ends, and never more."""
        # `cat_file` names one file; `cat` would expand patterns.
        data = self.fs.cat_file(self._path(path), start=start, end=stop)
        if len(data) > stop - start:
            raise BadResponseError(
                f"the response holds {len(data)} bytes where {stop - start} were asked for"
            )
        return Reply(data, None, "")

    async def describe(self, path: str) -> tuple[ObjectInfo, str | None]:
        """Return size and ETag of an object, with `path` as the key, and its token, if it has one."""
        info = self._described_by.info(self._path(path))
        if info.get("type") == "directory":
            raise FileNotFoundError(path)
        return _of_info(path, info), None

    async def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the objects under a path prefix, with whole paths as keys, in any order."""
        wanted = self._path(prefix)
        folder = wanted.rpartition("/")[0]
        try:
            found = self.fs.find(folder, detail=True)
        except FileNotFoundError:
            return []
        listed = []
        for name, info in found.items():
            # Some filesystems put a slash before what they list, whether they were asked with one or not.
            path = name if name.startswith(folder) else "/" + name.lstrip("/")
            path = path if folder.startswith("/") else path.lstrip("/")
            if path.startswith(wanted):
                listed.append(_of_info(self.root + path[len(self._root) :], info))
        return listed

    async def put(self, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str) -> bool:
        """Upload an object; `exclusive` makes it fail where one of that name exists.

        Returns:
            Whether the answer has what only the service gives with an object that it stored. Otherwise a
            gateway or a login page may have answered in its place, and the caller has to look at the object.
        """
        target = self._path(path)
        taken = self._described_by.isfile(target)
        if exclusive and taken:
            raise FileExistsError(path)
        folder = target.rpartition("/")[0]
        temporary = f"{folder}/{TEMPORARY}{token or secrets.token_hex(12)}"
        self.fs.makedirs(folder, exist_ok=True)
        try:
            if isinstance(data, pathlib.Path):
                self.fs.put_file(str(data), temporary)
            else:
                self.fs.pipe_file(temporary, data)
            if taken:
                self.fs.rm_file(target)
            self.fs.mv(temporary, target)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to be told
                self.fs.rm_file(temporary)
            raise
        # Filesystems have no answers to be mistaken for theirs.
        return True

    async def delete(self, path: str) -> None:
        """Remove one object."""
        self.fs.rm_file(self._path(path))


def _of_info(path: str, info: Mapping[str, Any]) -> ObjectInfo:
    etag = next(
        (info[name] for name in ("ETag", "etag", "mtime", "modified", "created") if info.get(name)), ""
    )
    return ObjectInfo(path, int(info.get("size") or 0), str(etag))


class _Remote(Service):
    """A service whose requests are coroutines of fsspec's I/O thread, for any other thread to call."""

    has_buckets = resends = True
    read_only_reason: str | None = None
    lifecycle: str | None = None

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if on_io_thread():
            raise RuntimeError("a store was called from fsspec's own I/O thread; call it from another thread")
        future = asyncio.run_coroutine_threadsafe(getattr(self, name)(*arguments, **options), self.fs.loop)
        try:
            return future.result()
        except Exception as error:
            # Frames of the libraries hold the error, which would hold them and all callers in a circle.
            for link in chain(error):
                link.__traceback__ = None
            raise
        finally:
            future.cancel()  # where the wait was interrupted
            del future  # for the same reason

    async def fetch(self, path: str, start: int, stop: int) -> Reply:
        async with self._open(path, start, stop) as opened:
            end, total = _check_range(opened, start, stop)
            data = await _read(opened.read, end - start)
        return Reply(data, total, opened.etag)

    def _open(self, path: str, start: int, stop: int) -> contextlib.AbstractAsyncContextManager[_Opened]:
        raise NotImplementedError


def _check_range(opened: _Opened, start: int, stop: int) -> tuple[int, int | None]:
    """Return where the bytes of a response end and the object's size, as its headers say.

    Raises:
        BadResponseError: the server ignored the range or sent another.
        StatusError: the status is an error.
    """
    if opened.status == 200:
        # Also where the object is no longer than the range: a login page is not, either.
        raise BadResponseError("the server ignores range requests and sends what it calls the whole object")
    if opened.status != 206:
        raise StatusError(opened.status, "unexpected status")
    match = _CONTENT_RANGE.fullmatch(opened.content_range.strip())
    if match is None or match[1] is None:
        raise BadResponseError("the response to a range request does not say which bytes it holds")
    total = None if match[3] == "*" else int(match[3])
    end = stop if total is None else min(stop, total)
    if int(match[1]) != start or int(match[2]) + 1 != end:
        found = f"[{match[1]}, {int(match[2]) + 1})"
        raise BadResponseError(f"the server sent bytes {found} where [{start}, {stop}) were asked for")
    return end, total


async def _read(read: Callable[[int], Awaitable[bytes]], size: int) -> bytes:
    """Return a body of exactly this many bytes; what is longer is cut off and refused."""
    parts = []
    left = size
    try:
        async with asyncio.timeout(_BODY_SECONDS + size / _SLOWEST):
            while part := await read(left + 1):
                left -= len(part)
                if left < 0:
                    break
                parts.append(part)
    except Exception as error:
        # Whatever the library calls it: it cannot repeat what it has handed out in part.
        raise BadResponseError(f"the response broke off: {type(error).__name__}: {error}") from error
    if left:
        found = f"more than {size}" if left < 0 else str(size - left)
        raise BadResponseError(f"the response holds {found} bytes where {size} were asked for")
    return parts[0] if len(parts) == 1 else b"".join(parts)


class S3(_Remote):
    """S3 and S3-compatible stores, by s3fs."""

    package, extra = "s3fs", "shardio[s3]"
    lifecycle = (
        "unfinished uploads in parts are left to the bucket: give it a lifecycle rule that aborts them"
    )

    def _filesystem(self, options: Mapping[str, Any]) -> Any:
        import s3fs

        once = {"mode": "standard", "total_max_attempts": 1}
        config = {"max_pool_connections": 64, "retries": once, **(options.get("config_kwargs") or {})}
        fs = s3fs.S3FileSystem(**{**options, "config_kwargs": config, "skip_instance_cache": True})
        # It would repeat five times what botocore repeats; there is no option for it.
        fs.retries = 1
        return fs

    async def _call(self, method: str, path: str, **arguments: Any) -> Any:
        bucket, _, key = path.partition("/")
        return await self.fs._call_s3(method, Bucket=bucket, Key=key, **arguments)  # noqa: SLF001 - `call_s3` is its blocking twin

    @contextlib.asynccontextmanager
    async def _open(self, path: str, start: int, stop: int) -> AsyncIterator[_Opened]:
        response = await self._call("get_object", path, Range=f"bytes={start}-{stop - 1}")
        with contextlib.closing(response["Body"]) as body:
            status = response["ResponseMetadata"]["HTTPStatusCode"]
            yield _Opened(status, response.get("ContentRange", ""), response.get("ETag", ""), body.read)

    async def describe(self, path: str) -> tuple[ObjectInfo, str | None]:
        response = await self._call("head_object", path)
        info = ObjectInfo(path, response["ContentLength"], response.get("ETag", ""))
        return info, response.get("Metadata", {}).get(_TOKEN)

    async def list(self, prefix: str) -> list[ObjectInfo]:
        bucket, _, start = prefix.partition("/")
        found: list[ObjectInfo] = []
        following: dict[str, str] = {}
        while True:
            page = await self.fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=start, **following)  # noqa: SLF001 - as above
            found += [
                ObjectInfo(f"{bucket}/{entry['Key']}", entry["Size"], entry.get("ETag", ""))
                for entry in page.get("Contents", ())
            ]
            if not page.get("IsTruncated"):
                return found
            following = {"ContinuationToken": page["NextContinuationToken"]}

    async def put(self, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str) -> bool:
        mark = {"Metadata": {_TOKEN: token}}
        if isinstance(data, pathlib.Path) and os.stat(data).st_size >= 2 * PART_BYTES:
            mode = "create" if exclusive else "overwrite"
            client = await self.fs.set_session()
            client.meta.events.register("needs-retry.s3.UploadPart", _send_part_again, unique_id=_TOKEN)
            try:
                await self.fs._put_file(  # noqa: SLF001 - `put_file` is its blocking twin
                    str(data), path, mode=mode, chunksize=PART_BYTES, max_concurrency=2, **mark
                )
            except FileNotFoundError as error:
                if "NoSuchUpload" not in str(error.__cause__):
                    raise
                # A rule of the bucket or another client has ended the upload: it begins again.
                raise BadResponseError(f"the upload in parts was ended: {error}") from error
            return False  # it keeps the answers to itself
        content = await _bytes_of(data)
        condition = {"IfNoneMatch": "*"} if exclusive else {}
        response = await self._call("put_object", path, Body=content, **condition, **mark)
        # The answer has an ETag and no body; a page of something in between has a body, and may have an ETag.
        length = response["ResponseMetadata"]["HTTPHeaders"].get("content-length", "0")
        return bool(response.get("ETag")) and length == "0"

    async def delete(self, path: str) -> None:
        await self._call("delete_object", path)


def _send_part_again(attempts: int, response: Any, **_: Any) -> float | None:
    """Return the seconds until botocore sends a part of an upload again: one must not end them all."""
    status = 503 if response is None else response[0].status_code
    busy = status in {408, 429} or status >= 500
    return _jitter.uniform(0.0, 0.2 * 2.0**attempts) if busy and attempts < _PART_ATTEMPTS else None


class GCS(_Remote):
    """Google Cloud Storage, by the session and the credentials of gcsfs, and its JSON API.

    Its own requests hand out no headers and log a traceback for each refusal, so requests are sent here.
    """

    package, extra = "gcsfs", "shardio[gcs]"
    lifecycle = "GCS removes uploads that were not finished after a week"

    resends = False  # uploads are POST

    def _filesystem(self, options: Mapping[str, Any]) -> Any:
        # The plain class: the one for zonal and hierarchical buckets asks a second service about each bucket.
        from gcsfs.core import GCSFileSystem

        # aiohttp obeys HTTPS_PROXY and NO_PROXY only where it is told to.
        session = {"trust_env": True, "timeout": _network_timeout(), **(options.get("session_kwargs") or {})}
        return GCSFileSystem(**{**options, "session_kwargs": session, "skip_instance_cache": True})

    @contextlib.asynccontextmanager
    async def _send(
        self, method: str, url: Any, headers: Mapping[str, str] | None = None, data: Any = None, **params: Any
    ) -> AsyncIterator[Any]:
        fs = self.fs
        await fs._set_session()  # noqa: SLF001 - gcsfs has no public face for a response with its headers
        # Not decoded: ranges are of the object as it is stored.
        async with fs.session.request(
            method,
            url,
            params=fs._get_params(params),  # noqa: SLF001 - as above
            headers=fs._get_headers(dict(headers or {})),  # noqa: SLF001 - as above
            data=data,
            auto_decompress="Range" not in (headers or {}),
        ) as response:
            await _refuse_status(response)
            yield response

    def _url(self, path: str, *, verb: str = "storage", object_of: bool = True) -> Any:
        import yarl

        bucket, _, key = path.partition("/")
        name = f"/{urllib.parse.quote(key, safe='')}" if object_of else ""
        text = f"{self.fs._location}/{verb}/v1/b/{urllib.parse.quote(bucket, safe='')}/o{name}"  # noqa: SLF001 - where it keeps its endpoint
        return yarl.URL(text, encoded=True)

    @contextlib.asynccontextmanager
    async def _open(self, path: str, start: int, stop: int) -> AsyncIterator[_Opened]:
        url = self._url(path, verb="download/storage").with_query(alt="media")
        async with self._send("GET", url, {"Range": f"bytes={start}-{stop - 1}"}) as response:
            headers = response.headers
            etag = headers.get("x-goog-generation") or headers.get("ETag") or ""
            yield _Opened(response.status, headers.get("Content-Range", ""), etag, response.content.read)

    async def describe(self, path: str) -> tuple[ObjectInfo, str | None]:
        async with self._send("GET", self._url(path)) as response:
            return _described(path, json.loads(await response.read())), None

    async def list(self, prefix: str) -> list[ObjectInfo]:
        bucket, _, start = prefix.partition("/")
        found: list[ObjectInfo] = []
        token = None
        while True:
            url = self._url(bucket, object_of=False)
            async with self._send("GET", url, prefix=start, pageToken=token) as response:
                page = json.loads(await response.read())
            found += [_described(f"{bucket}/{entry['name']}", entry) for entry in page.get("items", ())]
            token = page.get("nextPageToken")
            if not token:
                return found

    async def put(self, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str) -> bool:
        from gcsfs import core

        del token  # uploads of this kind take no metadata
        bucket, _, key = path.partition("/")
        size = len(data) if isinstance(data, bytes) else os.stat(data).st_size
        if size < 2 * PART_BYTES:
            # Not gcsfs's upload in two MIME parts, whose fixed boundary an object might contain.
            condition = {"ifGenerationMatch": "0"} if exclusive else {}
            params: dict[str, Any] = {"uploadType": "media", "name": key, **condition}
            url = self._url(bucket, verb="upload/storage", object_of=False)
            content = await _bytes_of(data)
            async with self._send("POST", url, {"Content-Type": _OCTETS}, content, **params) as response:
                return _is_resource(await response.read(), key, size)
        mode = "create" if exclusive else "overwrite"
        location = await core.initiate_upload(self.fs, bucket, key, _OCTETS, mode=mode)
        with io.BytesIO(data) if isinstance(data, bytes) else open(data, "rb") as file:  # noqa: ASYNC230 - local disk, part by part
            for start in range(0, size, PART_BYTES):
                await core.upload_chunk(self.fs, location, file.read(PART_BYTES), start, size, _OCTETS)
        return False  # it keeps the answers to itself

    async def delete(self, path: str) -> None:
        async with self._send("DELETE", self._url(path)):
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


# Told to each request: the SDK waits 15 seconds and more before it repeats one.
_ONCE: dict[str, Any] = {"retry_total": 0, "retry_connect": 0, "retry_read": 0, "retry_status": 0}


class Azure(_Remote):
    """Azure Blob Storage, by the service client of adlfs."""

    package, extra = "adlfs", "shardio[azure]"
    lifecycle = "Azure removes the blocks of uploads that were not finished after a week"

    def _filesystem(self, options: Mapping[str, Any]) -> Any:
        import adlfs

        return adlfs.AzureBlobFileSystem(**{**options, "skip_instance_cache": True})

    def _blob(self, path: str) -> Any:
        container, _, blob = path.partition("/")
        return self.fs.service_client.get_blob_client(container=container, blob=blob)

    @contextlib.asynccontextmanager
    async def _open(self, path: str, start: int, stop: int) -> AsyncIterator[_Opened]:
        responses: list[Any] = []

        def look(response: Any, body: Any, _headers: Any) -> Any:
            responses.append(response.http_response)
            return body

        async with self._blob(path) as blob:
            # The downloader above it splits ranges and joins what it gets, of whatever length.
            download = blob._client.blob.download  # noqa: SLF001 - as said
            parts = aiter(await download(range=f"bytes={start}-{stop - 1}", cls=look, **_ONCE))
            response = responses[-1]

            async def read(_: int) -> bytes:
                part: bytes = await anext(parts, b"")
                return part

            try:
                headers = response.headers
                etag = _bare(headers.get("ETag"))
                yield _Opened(response.status_code, headers.get("Content-Range", ""), etag, read)
            finally:
                # A body that was not read to its end costs the connection.
                response.internal_response.close()

    async def describe(self, path: str) -> tuple[ObjectInfo, str | None]:
        async with self._blob(path) as blob:
            found = await blob.get_blob_properties(**_ONCE)
        token = (found.metadata or {}).get(_TOKEN.replace("-", "_"))
        return ObjectInfo(path, found.size, _bare(found.etag)), token

    async def list(self, prefix: str) -> list[ObjectInfo]:
        container, _, start = prefix.partition("/")
        async with self.fs.service_client.get_container_client(container) as client:
            # A hierarchical namespace lists its folders as empty blobs.
            return [
                ObjectInfo(f"{container}/{entry.name}", entry.size, _bare(entry.etag))
                async for entry in client.list_blobs(name_starts_with=start, **_ONCE)
                if (entry.metadata or {}).get("hdi_isfolder") != "true"
            ]

    async def put(self, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str) -> bool:
        # Metadata of Azure has names of identifiers.
        options = _ONCE | {"overwrite": not exclusive, "metadata": {_TOKEN.replace("-", "_"): token}}
        async with self._blob(path) as blob:
            with io.BytesIO(data) if isinstance(data, bytes) else open(data, "rb") as file:  # noqa: ASYNC230 - local disk, read by the SDK part by part
                found = await blob.upload_blob(file, max_concurrency=2, **options)
        return bool(found.get("etag") and found.get("request_id"))

    async def delete(self, path: str) -> None:
        async with self._blob(path) as blob:
            await blob.delete_blob(**_ONCE)


def _bare(etag: str | None) -> str:
    # The SDK strips the quotes in one place and keeps them in another.
    return (etag or "").strip('"')


class HTTP(_Remote):
    """Web servers, read-only, by the session of fsspec's HTTP filesystem; paths are whole URLs."""

    package = extra = "aiohttp"
    has_buckets = can_list = False
    read_only_reason = "a web server takes no objects"

    def _filesystem(self, options: Mapping[str, Any]) -> Any:
        from fsspec.implementations.http import HTTPFileSystem

        # aiohttp obeys HTTPS_PROXY and NO_PROXY only where it is told to.
        client = {"trust_env": True, "timeout": _network_timeout(), **(options.get("client_kwargs") or {})}
        return HTTPFileSystem(**{**options, "client_kwargs": client, "skip_instance_cache": True})

    @contextlib.asynccontextmanager
    async def _send(self, method: str, path: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
        import yarl

        # The root is a URL as its owner wrote it; what follows is a key, whose characters mean themselves.
        root, mark, query = self.root.partition("?")
        key = urllib.parse.quote(path[len(self.root) :])
        url = yarl.URL(f"{root}{key}{mark}{query}", encoded=True)
        options = dict(self.fs.kwargs)
        # A compressed response has other lengths than the object.
        options["headers"] = {**(options.get("headers") or {}), "Accept-Encoding": "identity", **headers}
        session = await self.fs.set_session()
        # Some servers say of a file that ends with .gz that it is encoded; ranges are of the file as it lies.
        async with session.request(method, url, **{**options, "auto_decompress": False}) as response:
            await _refuse_status(response)
            yield response

    @contextlib.asynccontextmanager
    async def _open(self, path: str, start: int, stop: int) -> AsyncIterator[_Opened]:
        async with self._send("GET", path, {"Range": f"bytes={start}-{stop - 1}"}) as response:
            headers = response.headers
            claimed = headers.get("Content-Range", "")
            yield _Opened(response.status, claimed, _http_etag(headers), response.content.read)

    async def describe(self, path: str) -> tuple[ObjectInfo, str | None]:
        async with self._send("HEAD", path, {}) as response:
            length = response.headers.get("Content-Length", "")
            if not length.isdigit():
                raise StatusError(501, f"the server does not tell the size of objects ({path})")
            return ObjectInfo(path, int(length), _http_etag(response.headers)), None


def _http_etag(headers: Mapping[str, str]) -> str:
    """Return the strong ETag of a response, or else its time of modification."""
    etag: str = headers.get("ETag", "")
    # A weak ETag may differ among the machines behind one name.
    found: str = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")
    return found


async def _refuse_status(response: Any) -> None:
    """Raise the status of a response of aiohttp where it is an error, with the first words of its body."""
    if response.status >= 300:
        words = (await response.content.read(1000)).decode("utf-8", "replace")
        raise StatusError(response.status, words or response.reason or "")


def on_io_thread() -> bool:
    """Return whether this is fsspec's I/O thread, where no store can be called; a finalizer may run there."""
    from fsspec.asyn import get_loop

    try:
        return asyncio.get_running_loop() is get_loop()
    except RuntimeError:
        return False


def _network_timeout() -> Any:
    from aiohttp import ClientTimeout

    return ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS)


async def _bytes_of(data: bytes | pathlib.Path) -> bytes:
    return data if isinstance(data, bytes) else await asyncio.to_thread(data.read_bytes)


# By protocol; adding a service is a line here, and a class where it can create conditionally.
SERVICES: dict[str, type[Service]] = {
    **dict.fromkeys(("s3", "s3a"), S3),
    **dict.fromkeys(("gs", "gcs"), GCS),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), Azure),
    **dict.fromkeys(("http", "https"), HTTP),
}
