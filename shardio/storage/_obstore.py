"""Read by obstore, where it is installed and understands the options: a tenth of the processor time.

Options that state the endpoint and the credentials configure it directly.  All others are resolved by the
fsspec filesystem, which takes half a second to import and connect: both then see the same profiles, files and
services, and rotating credentials keep rotating.  Listings and writes go through that filesystem.

Threads of obstore do not survive a fork: in the child of a process that has used it a call would hang.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from shardio.storage._errors import BadResponseError
from shardio.storage._store import Reply

if TYPE_CHECKING:
    from shardio.storage._client import Client

# Paths that obstore does not take: with control characters or empty components.
_UNNAMEABLE = re.compile(r"[\x00-\x1f\x7f]|(?<!:)//")
_NETWORK = {
    "timeout": datetime.timedelta(seconds=180),  # of one request with its body, of 8 MiB at most
    "connect_timeout": datetime.timedelta(seconds=3),
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


def open_reader(client: Client, place: str, *, resolve: bool = False) -> ObstoreReader:
    """Return a reader for a bucket or a root's URL, configured like its fsspec filesystem.

    Args:
        client: that has the options and the filesystem.
        place: the bucket, or the URL.
        resolve: let the filesystem resolve the options, even if they seem to state everything.

    Raises:
        UntranslatableError: it cannot be configured so, or this process was forked after obstore was used.
    """
    global _used_by  # noqa: PLW0603 - a fact about the process
    if was_forked():
        raise UntranslatableError(
            "this process was forked after obstore was used; start workers with forkserver or spawn"
        )
    service = client.service
    # The store repeats requests: obstore would try a mistyped endpoint as often as a busy one.
    common = {"retry_config": {"max_retries": 0}, "client_options": dict(_NETWORK)}
    stated = None if resolve or _is_configured() else service.by_options(dict(client.options), place, common)
    store = stated
    if stated is None:
        store = wait_for(service.by_filesystem(client.fs, place, common), client.fs.loop)
    _used_by = os.getpid()
    return ObstoreReader(store, f"{place}/", service.etag_of, resolved=stated is None)


def _is_configured() -> bool:
    """Return whether fsspec may have options from files or variables, or set by the program."""
    folder = os.environ.get("FSSPEC_CONFIG_DIR") or os.path.expanduser("~/.config/fsspec")
    conf = getattr(sys.modules.get("fsspec.config"), "conf", None)
    return bool(conf) or os.path.isdir(folder) or any(name.startswith("FSSPEC_") for name in os.environ)


def refuse_unknown(options: dict[str, Any], known: set[str], where: str) -> None:
    """Raise UntranslatableError for options that are set and not known."""
    unknown = sorted(name for name, value in options.items() if name not in known and value)
    if unknown:
        raise UntranslatableError(f"obstore has no counterpart for {', '.join(unknown)} in {where}")


# obstore calls the providers of credentials in its own threads: plain functions that wait on the loop.


def wait_for(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Return the result of a coroutine that runs on fsspec's loop."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


def soon() -> datetime.datetime:
    """Return when credentials are asked for again whose expiry is not known."""
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=6)
