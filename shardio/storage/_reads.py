"""Reading of object stores and web servers: one client per process, one retry layer, checked replies."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from typing import TYPE_CHECKING, TypeVar

from shardio.errors import FormatError, NotFoundError, StorageError
from shardio.storage._engine import read_with
from shardio.storage._explain import explain, missing_bucket
from shardio.storage._face import CannotListError, DataFile, ObjectInfo, ShortReadError, Store
from shardio.storage._fetch import Identity, PastEndError, fetch_many
from shardio.storage._keys import check_key, is_temporary
from shardio.storage._loop import run, submit
from shardio.storage._process import Processes
from shardio.storage._retry import GaveUpError
from shardio.storage._tuning import Clock, Tuning
from shardio.storage._verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from shardio.storage._backends import Backend
    from shardio.storage._client import Client, Reply
    from shardio.storage._face import Offsets

__all__ = ["RemoteFile", "RemoteReads"]

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 16  # calls of `concurrently`
_FIRST = 1 << 20  # bytes of the first request of `get`: most metadata objects are smaller


class RemoteFile(DataFile):
    """One object of a remote store; nothing is requested before the first read."""

    def __init__(self, store: RemoteReads, key: str, identity: Identity) -> None:
        self.url = store.url_of(key)
        self._store = store
        self._key = key
        self._identity = identity
        self._given = identity.size, identity.stamp

    def doubt(self) -> None:
        self._identity = Identity(*self._given)

    @property
    def size(self) -> int:
        return self._store.size_of(self._key, self._identity)

    def read(self, start: int, stop: int) -> memoryview:
        return self.read_many([start], [stop])[0]

    def read_many(self, starts: Offsets, stops: Offsets) -> list[memoryview]:
        return self._store.read_ranges(self._key, self._identity, (starts, stops), engine=True)

    def begin_read(
        self, starts: Offsets, stops: Offsets, *, checksummed: bool = False
    ) -> Callable[[], list[memoryview]]:
        ranges = starts, stops
        return self._store.begin_ranges(
            self._key, self._identity, ranges, engine=True, checksummed=checksummed
        )

    def close(self) -> None:
        """Do nothing: connections belong to the store."""


class RemoteReads(Store):
    """The reading half of a remote store."""

    def __init__(self, backend: Backend, *, tuning: Tuning | None = None, clock: Clock | None = None) -> None:
        self.url = backend.url
        self._backend = backend
        # A web server is not a storage service: it gets fewer connections unless the caller knows better.
        self._tuning = tuning or Tuning(concurrency=32 if backend.kind == "http" else Tuning.concurrency)
        self._processes = Processes(self._connect, self._tuning, clock or Clock())

    def _connect(self, instead_of: Client | None = None) -> Client:
        return self._backend.connect(self._tuning, instead_of)

    @property
    def read_only_reason(self) -> str | None:
        return self._backend.read_only_reason

    @property
    def can_list(self) -> bool:
        return self._backend.can_list

    def url_of(self, key: str) -> str:
        return self._backend.url_of(key)

    def open(self, key: str, *, size: int | None = None, stable: bool = False, stamp: str = "") -> RemoteFile:
        del stable
        check_key(key)
        return RemoteFile(self, key, Identity(size, stamp))

    # Reading

    def read_ranges(
        self, key: str, identity: Identity, ranges: tuple[Offsets, Offsets], *, engine: bool
    ) -> list[memoryview]:
        """Return the bytes of ranges of one object, held to what is known of it.

        Args:
            key: a checked key.
            identity: size and stamp as far as known; learns from the replies.
            ranges: columns of starts and stops.
            engine: read with the data engine, where there is one; otherwise with fsspec's client.

        Raises:
            NotFoundError, ShortReadError, StorageError: as `Store.get_ranges`.
        """
        return self.begin_ranges(key, identity, ranges, engine=engine)()

    def begin_ranges(
        self,
        key: str,
        identity: Identity,
        ranges: tuple[Offsets, Offsets],
        *,
        engine: bool,
        checksummed: bool = False,
    ) -> Callable[[], list[memoryview]]:
        """Send the requests of `read_ranges` and return what waits for their replies.

        Where the caller has checksums, several requests may go to the engine in one call, whose replies tell
        nothing but their bytes.
        """
        path = self._backend.path_of(key)

        async def work() -> list[memoryview]:
            state = self._processes.here()

            async def fetch(start: int, stop: int) -> Reply:
                if engine:
                    return await read_with(self._backend, state, self._tuning, path, (start, stop))
                return await (await state.client()).fetch(path, start, stop)

            reader = state.engine.reader_of(path) if engine and checksummed else None
            batch = None
            if reader is not None and reader.fetch_many is not None:
                batch = functools.partial(reader.fetch_many, path)
            return await fetch_many(fetch, identity, state, self._tuning, ranges, batch=batch)

        pending = submit(work())

        def wait() -> list[memoryview]:
            try:
                return pending()
            except PastEndError as error:
                explain(error, self.url_of(key))
            except GaveUpError as error:
                # A server that says no more than "not satisfiable" leaves the size to be asked for.
                unsure = error.last.verdict in {Verdict.PAST_END, Verdict.BAD_REPLY}
                if unsure and identity.size is None:
                    with contextlib.suppress(StorageError):
                        info = self.head(key)
                        identity.size = None if info is None else info.size
                explain(error, self.url_of(key), identity=identity, ranges=ranges)

        return wait

    def get_ranges(self, key: str, starts: Offsets, stops: Offsets) -> list[memoryview]:
        check_key(key)
        # With fsspec's client, so that a process that has read nothing but metadata may still be forked.
        return self.read_ranges(key, Identity(), (starts, stops), engine=False)

    def get_sized(self, wanted: Sequence[tuple[str, int]]) -> list[bytes]:
        begun = []
        for key, size in wanted:
            check_key(key)
            # The object's own size is learned from the reply.
            identity = Identity()
            begun.append((identity, self.begin_ranges(key, identity, ([0], [size]), engine=False)))
        found = []
        for (key, size), (identity, wait) in zip(wanted, begun, strict=True):
            try:
                data = bytes(wait()[0])
            except ShortReadError:
                data = self._get(key, size)
            # One that is larger than it should be is refused in its own words.
            found.append(data if identity.size in {None, len(data)} else self._get(key, size))
        return found

    def concurrently(self, call: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        if len(items) < 2:
            yield from map(call, items)
            return
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE, "shardio-requests") as pool:
            # A few at a time, so that little is fetched in vain where the caller stops.
            for begin in range(0, len(items), 4 * _AT_ONCE):
                yield from pool.map(call, items[begin : begin + 4 * _AT_ONCE])

    def _get(self, key: str, max_bytes: int) -> bytes:
        identity = Identity()
        path = self._backend.path_of(key)
        # The reply to a range request tells the size of the whole, so nothing larger than allowed is fetched,
        # and a body that was cut short on the way is noticed.
        stop = max(1, min(max_bytes, _FIRST))

        async def work() -> bytes:
            state = self._processes.here()

            async def request() -> Reply:
                reply = await (await state.client()).fetch(path, 0, stop)
                total = reply.total if reply.total is not None else len(reply.data)
                return identity.check(reply, 0, min(stop, total))

            async with state.requests:
                reply = await state.retrier.run(request, size=stop, renew=state.renew)
            return bytes(reply.data)

        try:
            head = run(work())
        except GaveUpError as error:
            # An empty object has no first byte: services refuse the range, or answer without one.
            if error.last.verdict in {Verdict.PAST_END, Verdict.BAD_REPLY} and self._is_empty(key):
                return b""
            explain(error, self.url_of(key))
        size = self.size_of(key, identity)
        if size > max_bytes:
            what = "the object is larger than it may be"
            url = self.url_of(key)
            raise FormatError(what, url=url, expected=f"at most {max_bytes} bytes", found=size)
        if size == len(head):
            return head
        ranges = [len(head)], [size]
        return head + self.read_ranges(key, identity, ranges, engine=False)[0]

    def size_of(self, key: str, identity: Identity) -> int:
        """Return the size of an object, and ask for it where no reply has told."""
        if identity.size is None:
            info = self._head(key)
            if info is None:
                what = "there is no such object"
                raise NotFoundError(what, url=self.url_of(key))
            identity.size = info.size
            identity.stamp = identity.stamp or info.stamp
        return identity.size

    def _is_empty(self, key: str) -> bool:
        info = self._head(key)
        return info is not None and info.size == 0

    def _ask(self, key: str, request: Callable[[Client], Awaitable[T]]) -> T:
        """Send one small request with retries."""

        async def work() -> T:
            state = self._processes.here()

            async def once() -> T:
                return await request(await state.client())

            async with state.requests:
                return await state.retrier.run(once, renew=state.renew)

        try:
            return run(work())
        except GaveUpError as error:
            explain(error, self.url_of(key))

    def _head(self, key: str) -> ObjectInfo | None:
        found = self._ask(key, lambda client: client.head(self._backend.path_of(key)))
        return None if found is None else found._replace(key=key)

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        if not self.can_list:
            what = "this server cannot list its objects"
            raise CannotListError(what, url=self.url, advice="name the version to open")
        try:
            found = self._gather(prefix, lambda client, path: client.list(path))
        except NotFoundError as error:
            # Of a listing nothing can be absent but the bucket, whatever words the service has for it.
            raise missing_bucket(self.url) from error
        return iter([info for info in found if not is_temporary(info.key)])

    def _gather(
        self, prefix: str, request: Callable[[Client, str], AsyncIterator[ObjectInfo]]
    ) -> list[ObjectInfo]:
        base = self._backend.path_of("")

        async def collect(client: Client) -> list[ObjectInfo]:
            found = [info async for info in request(client, base + prefix)]
            return sorted(info._replace(key=info.key[len(base) :]) for info in found)

        return [info for info in self._ask(prefix, collect) if not info.key.endswith("/") and info.key]
