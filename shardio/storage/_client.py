"""What the store asks of a backend's client: one request each, no retries, and the response with its claims.

A client raises whatever its library raises; `_errors` classifies it.  It must not cache, expand globs, follow
listings or split requests behind our back, because the layers above count on one call being one request.
"""

from __future__ import annotations

import abc
import pathlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from shardio.storage._errors import BadResponseError, StatusError
from shardio.storage._store import Buffer, ObjectInfo

FetchMany = Callable[[str, list[int], list[int]], Awaitable[Sequence[Any]]]

# The name of the token among an object's metadata.
TOKEN = "shardio-put"  # noqa: S105 - a name, no secret

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class Response(NamedTuple):
    """Bytes of one object, and what the response says about the whole.

    Attributes:
        data: the bytes; fewer than asked for where the object ends before.
        total: size of the whole object, or None where the response does not tell.
        etag: ETag or generation, or "".
    """

    data: Buffer
    total: int | None
    etag: str


class Reader(Protocol):
    """The part of a client that reads data; paths are bucket and key, joined by a slash."""

    async def fetch(self, path: str, start: int, stop: int) -> Response:
        """Request `[start, stop)`, not empty; the response starts at `start` for certain."""
        ...

    def fetch_many(self, path: str, starts: list[int], stops: list[int]) -> Awaitable[Sequence[Any]]:
        """Send several range requests for one object at the price of one; called where a loop runs.

        Ranges that touch may become one request.

        Returns:
            What gives their bytes as buffers, whose lengths the caller checks.
        """
        ...


class Client(abc.ABC):
    """The requests of one backend; what is not abstract is what a backend does that has no such thing."""

    @abc.abstractmethod
    async def fetch(self, path: str, start: int, stop: int) -> Response:
        """Send the request that `Reader.fetch` describes."""

    @abc.abstractmethod
    async def head(self, path: str) -> ObjectInfo | None:
        """Return size and ETag, with `path` as the key; None where there is no such object."""

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the objects under a path prefix, with whole paths as keys, in any order."""
        raise StatusError(501, f"this backend cannot be listed ({prefix})")
        yield  # an asynchronous generator all the same

    async def put(self, path: str, data: bytes | pathlib.Path, *, exclusive: bool, token: str = "") -> bool:
        """Upload in one go; `exclusive` makes it fail where an object exists.

        Returns:
            True where the answer has what the service itself gives with every object that it stores, so that
            no gateway or login page answered in its place; else the caller has to look at the object.

        The token is kept with the object where the service can: the HTTP library below may repeat a request
        whose connection broke, without telling, so a refusal may be caused by our own first sending.
        """
        del data, exclusive, token
        raise StatusError(501, f"this backend takes no objects ({path})")

    async def token(self, path: str) -> str | None:
        """Return the token an object was put with, or None where none was kept."""
        del path
        return None

    async def delete(self, path: str) -> None:
        """Remove one object."""
        raise StatusError(501, f"this backend takes no objects ({path})")

    async def uploads(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield unfinished uploads in parts under a path prefix.

        The ETag is the time at which it began, as ISO 8601 (empty if unknown), a space, its id.
        """
        del prefix
        nothing: list[ObjectInfo] = []
        for info in nothing:
            yield info

    async def abort(self, path: str, upload: str) -> None:
        """Remove one unfinished upload in parts, by its id."""
        raise StatusError(501, f"this backend lists no unfinished uploads ({path}, {upload})")


def disable_retries(session: Any) -> Any:
    """Make an aiohttp session not repeat requests whose connection broke; it has no option for that."""
    if getattr(session, "_retry_connection", False):
        session._retry_connection = False  # noqa: SLF001 - where it is missing, nothing is lost but a request
    return session


def check_content_range(status: int, headers: Mapping[str, str], start: int, stop: int) -> int | None:
    """Check what a response to a range request claims, before its body is read; return the object's size.

    Raises:
        StatusError: the status is an error.
        BadResponseError: the server ignored the range or sent another.
    """
    if status == 206:
        match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
        if match is None or match[1] is None:
            raise BadResponseError("the response to a range request does not say which bytes it holds")
        total = None if match[3] == "*" else int(match[3])
        if int(match[1]) != start or int(match[2]) + 1 != min(stop, total if total is not None else stop):
            found = f"[{match[1]}, {int(match[2]) + 1})"
            raise BadResponseError(f"the server sent bytes {found} where [{start}, {stop}) were asked for")
        return total
    if status == 200:
        # Also where the object is no longer than the range: a login page is not, either.
        raise BadResponseError("the server ignores range requests and sends what it calls the whole object")
    raise StatusError(status, "unexpected status", headers)
