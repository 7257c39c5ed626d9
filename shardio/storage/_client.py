"""A kind of storage as a row of values and small functions, and what every row needs.

The filesystem's library signs, renews credentials and keeps connections; botocore and the Azure SDK also send
again what an overloaded service refused.  A row adds what no library gives: a range whose length and claims
are checked and that is cut off at the length that was asked for, and a conditional create whose answer proves
that the service itself gave it.

Paths are what the filesystem calls an object: bucket and key, or the whole URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pathlib
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from shardio.storage._errors import BadResponseError, ErrorKind, RequestFailure, StatusError, chain
from shardio.storage._store import REFETCHES, Reply

if TYPE_CHECKING:
    from shardio.storage._obstore import ObstoreReader

ATTEMPTS = 6  # how often a request is sent in all, by a library or by the store
# How often the store sends what no library repeats: aiohttp (of GCS and web servers) and obstore send nothing
# again, and no library does so for a reply that it has begun to hand out.
_ATTEMPTS = {
    ErrorKind.UNAVAILABLE: ATTEMPTS,
    ErrorKind.CONNECTION: ATTEMPTS,
    ErrorKind.BAD_RESPONSE: 2 + REFETCHES,
}
# An endpoint that never answered may be mistyped: how often it is asked, and if connecting takes too long.
_FIRST_ATTEMPTS, _FIRST_TIMEOUTS = 4, 2
PART_BYTES = 16 << 20  # files of twice this are uploaded in parts of this size
OCTETS = "application/octet-stream"
# The name of the token among an object's metadata, by which a writer knows its own object.
TOKEN = "shardio-put"  # noqa: S105 - a name, no secret
CONNECT_SECONDS, _SILENT_SECONDS = 3, 20
# A body may take this long, and a second for each so many bytes of it.
_BODY_SECONDS, _SLOWEST = 60, 64 << 10
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


def undefined(*_: object, **__: object) -> Any:
    """Refuse to be called: the service has no such function."""
    raise NotImplementedError


class Service(NamedTuple):
    """A kind of storage.  Functions take the client first; coroutines run in fsspec's I/O thread.

    Attributes:
        filesystem: (options, root) returns the fsspec filesystem, and its own name for the root.
        fetch: (path, start, stop) returns a `Reply` of those bytes; fewer only where the object ends.
        describe: (path) returns `ObjectInfo` with the path as key, and the object's token, if it has one.
        list: (prefix) returns the objects under a path prefix, in any order.
        put: (path, data, exclusive=, token=) uploads; `exclusive` makes it fail where the name is taken.
            Returns whether the answer has what only the service gives with an object that it stored;
            otherwise a gateway or a login page may have answered, and the caller has to look.
        delete: (path) removes an object.
        package, extra: the package that serves its URLs, and what installs that; empty where fsspec says it.
        has_buckets: its URLs begin with a bucket, and one filesystem serves all of them.
        resends: a client may send a PUT again by itself. Then a refusal may be caused by its first sending.
        can_list: it has listings.
        read_only_reason: why it takes no objects, or None.
        lifecycle: what becomes of unfinished uploads, which are not listed, or None.
        by_options: (storage_options, place, options) returns obstore's store; None if something is left open.
        by_filesystem: (filesystem, place, options) returns the store that reads as the filesystem does.
        etag_of: returns the ETag that `fetch` gives, of obstore's description.
    """

    filesystem: Callable[[Mapping[str, Any], str], tuple[Any, str]]
    fetch: Callable[..., Any]
    describe: Callable[..., Any]
    list: Callable[..., Any]
    put: Callable[..., Any]
    delete: Callable[..., Any]
    package: str = ""
    extra: str = ""
    has_buckets: bool = True
    resends: bool = True
    can_list: bool = True
    read_only_reason: str | None = None
    lifecycle: str | None = None
    by_options: Callable[[dict[str, Any], str, dict[str, Any]], Any] = undefined
    by_filesystem: Callable[[Any, str, dict[str, Any]], Coroutine[Any, Any, Any]] = undefined
    etag_of: Callable[[Any], str] = str


class Client:
    """A service as this process reaches it.

    Attributes:
        service: its row.
        options, root: storage_options, and what the filesystem calls the root.
        fs: the fsspec filesystem, built at its first use.
        readers: what reads data by obstore, by bucket or URL and the engine asked for; None for `fetch`.
        choosing: held while one is built.
        answered: a server has answered, so the endpoint is right.
    """

    answered = False

    def __init__(self, service: Service, options: Mapping[str, Any], root: str) -> None:
        self.service, self.options, self.root = service, options, root
        self.readers: dict[tuple[str, str | None], ObstoreReader | None] = {}
        self.choosing, self._building = threading.Lock(), threading.Lock()
        self._fs: Any = None
        if not service.package:  # to import a cloud's takes half a second, and obstore may not need it
            self._fs, self.root = service.filesystem(options, root)

    @property
    def fs(self) -> Any:
        # No lock once it is there: the I/O thread asks for it while a thread that builds a reader waits for
        # the I/O thread.
        if self._fs is None:
            with self._building:
                if self._fs is None:
                    self._fs, _ = self.service.filesystem(self.options, self.root)
        return self._fs

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Send one request and wait for it.

        Raises:
            Exception: what the library raised, or `BadResponseError`, `StatusError`.
        """
        if on_io_thread():
            raise RuntimeError("a store was called from fsspec's own I/O thread; call it from another thread")
        work = function(self, *arguments, **options)
        if not inspect.iscoroutine(work):
            return work
        future = asyncio.run_coroutine_threadsafe(work, self.fs.loop)
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

    def attempts(self, failure: RequestFailure) -> int:
        """Return how often the store sends a request that failed like this."""
        self.answered |= failure.status is not None
        if not failure.again:
            return 1
        if failure.not_sent and not self.answered:
            return _FIRST_TIMEOUTS if failure.timed_out else _FIRST_ATTEMPTS
        return _ATTEMPTS.get(failure.kind, 1)


class Opened(NamedTuple):
    """A response whose body was not read yet."""

    status: int
    content_range: str
    etag: str
    read: Callable[[int], Awaitable[bytes]]


Open: TypeAlias = Callable[[Client, str, int, int], contextlib.AbstractAsyncContextManager[Opened]]


def fetch_by(open_range: Open) -> Callable[[Client, str, int, int], Awaitable[Reply]]:
    """Return a `fetch` that checks a response whose body is not read yet, and reads no more than it may."""

    async def fetch(client: Client, path: str, start: int, stop: int) -> Reply:
        async with open_range(client, path, start, stop) as opened:
            end, total = _check_range(opened, start, stop)
            data = await _read(opened.read, end - start)
        return Reply(data, total, opened.etag)

    return fetch


def _check_range(opened: Opened, start: int, stop: int) -> tuple[int, int | None]:
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
    """Return a body of exactly this many bytes; a longer one is cut off and refused."""
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


# What the sessions of aiohttp share, which gcsfs and fsspec's filesystem of web servers use.


def session_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return options of a session: timeouts, and the proxies of the environment, which aiohttp ignores."""
    from aiohttp import ClientTimeout

    timeout = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=_SILENT_SECONDS)
    return {"trust_env": True, "timeout": timeout, **(given or {})}


@contextlib.asynccontextmanager
async def answered(request: contextlib.AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """Yield a response of aiohttp; raise its status where that is an error, with the first of its words."""
    async with request as response:
        if response.status >= 300:
            words = (await response.content.read(1000)).decode("utf-8", "replace")
            raise StatusError(response.status, words or response.reason or "")
        yield response


async def bytes_of(data: bytes | pathlib.Path) -> bytes:
    """Return the bytes of an object, read from its file if it has one."""
    return data if isinstance(data, bytes) else await asyncio.to_thread(data.read_bytes)


def on_io_thread() -> bool:
    """Return whether this is fsspec's I/O thread, where no store can be called; a finalizer may run there."""
    from fsspec.asyn import get_loop

    try:
        return asyncio.get_running_loop() is get_loop()
    except RuntimeError:
        return False
