"""Object stores and web servers: checked reading, and writing that is found out to be safe.

Before the first write a probe finds out whether the store creates an object only if it is absent.
A store that looks first and writes then refuses what exists, and yet two writers at the same moment both win,
and the first loses an acknowledged commit.  Only a race shows that, so the probe runs one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import pathlib
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from shardio.errors import FormatError, NotFoundError, ShardioError, StorageError
from shardio.storage._backends import Backend, fingerprint
from shardio.storage._client import Client
from shardio.storage._errors import (
    ErrorKind,
    PastEndError,
    RetryError,
    UnprovenError,
    missing_bucket,
    raise_storage_error,
    storage_error,
)
from shardio.storage._fetch import ObjectIdentity, RangeReader
from shardio.storage._keys import check_key, is_temporary
from shardio.storage._requests import PerProcess
from shardio.storage._store import (
    Buffer,
    CannotListError,
    DataFile,
    ObjectInfo,
    Offsets,
    Store,
    StoreNetwork,
    UnknownOutcomeError,
    holds,
)
from shardio.storage._tuning import Clock, Tuning

T = TypeVar("T")
R = TypeVar("R")

# A probe whose writer was killed stays here, and is listed among the temporaries.
PROBES = "_shardio/probes/"
RACERS = 8

# How services say that they do not know the condition.
_UNKNOWN_CONDITION = {400, 405, 501}


class Create(Protocol):
    """The creation under test."""

    def __call__(self, key: str, data: bytes, *, exclusive: bool = True) -> bool:
        """Create an object and return whether this call did; without `exclusive`, over what is there."""
        ...


class ProbeCache:
    """The stores that have passed, so that one process asks each of them once, from whatever thread."""

    def __init__(self) -> None:
        # With what the keys were made of, which may be told apart by identity.
        self._passed: dict[Hashable, Any] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._pid = os.getpid()

    def once(self, key: Hashable, keep: object, ask: Callable[[], None]) -> None:
        """Call `ask` unless it has returned before for this key; threads with the same key wait for it."""
        if key in self._passed:
            return
        if self._pid != os.getpid():
            # Threads that do not exist here may hold these; what the parent found out is still true.
            self._locks, self._pid = {}, os.getpid()
        with self._locks.setdefault(key, threading.Lock()):
            if key not in self._passed:
                ask()
                self._passed[key] = keep

    def forget(self) -> None:
        """Ask for all credentials again."""
        self._passed.clear()


def probe(store: Store, create: Create, refusal: Callable[[], str | None]) -> None:
    """Create an object twice, then let several writers race to create another: exactly one may win.

    Args:
        store: where.
        create: the creation under test, which does not limit how many run at once.
        refusal: asks the service for a reason why this bucket cannot do it, if it tells.

    Raises:
        StorageError: several writers would lose each other's commits here.
    """
    reason = refusal()
    if reason is None:
        with _key(store) as key:
            reason = _twice(store, create, key)
    if reason is None:
        with _key(store) as key:
            reason = _race(store, create, key)
    if reason is not None:
        what = f"this store cannot commit safely: {reason}"
        advice = "use another bucket, or single_writer=True if no other process writes here"
        raise StorageError(what, url=store.url, advice=advice)


@contextlib.contextmanager
def _key(store: Store) -> Any:
    key = PROBES + secrets.token_hex(16)
    try:
        yield key
    finally:
        # A writer that may create but not delete leaves an object of a few bytes.
        with contextlib.suppress(ShardioError):
            store.delete(key)


def _twice(store: Store, create: Create, key: str) -> str | None:
    try:
        first = create(key, b"first")
    except StorageError as error:
        cause = error.__cause__
        last = cause.last if isinstance(cause, RetryError) else None
        if last is None or last.status not in _UNKNOWN_CONDITION or not _takes_plain(create, key):
            raise
        return f"it answers {last.text!r} to If-None-Match, the condition that an object is absent"
    if not first:
        return "it reports an object that was never created"
    if create(key, b"second") or not holds(store, key, b"first"):
        return "it replaces objects although it was told to create them only if absent"
    return None


def _takes_plain(create: Create, key: str) -> bool:
    """Tell whether the same write succeeds without the condition: then it was the condition."""
    try:
        return create(key, b"first", exclusive=False)
    except StorageError:
        return False


def _race(store: Store, create: Create, key: str) -> str | None:
    bodies = [b"racer %d" % number for number in range(RACERS)]
    with concurrent.futures.ThreadPoolExecutor(RACERS, "shardio-probe") as pool:
        won = list(pool.map(lambda body: create(key, body), bodies))
    winners = [body for body, created in zip(bodies, won, strict=True) if created]
    if len(winners) != 1:
        told = str(len(winners)) if winners else "none"
        return f"of {RACERS} writers that raced to create one object, {told} were told to have done it"
    if not holds(store, key, winners[0]):
        return f"of {RACERS} writers that raced to create one object, the winner's was replaced"
    return None


_probed = ProbeCache()
_AT_ONCE = 16  # calls of `concurrently`
# Bytes of the first request of `get` where more are allowed than one may have: most metadata is smaller.
_FIRST = 1 << 20
_FALSE_REFUSALS = 3  # times that an object is said to exist which is not there
_LONGEST_WAIT = 2.0  # seconds before an object is read back
_UPLOAD = "upload:"  # how the ETag of an unfinished upload in parts begins

# What interrupted writes leave where no listing tells of it.
_UNLISTED = {
    "gcs": "GCS does not list uploads that were not finished, and removes them after a week",
    "azure": "Azure lists only unfinished uploads of new objects, and removes their blocks after a week",
    "other": "this kind of storage does not tell whether uploads were left unfinished",
}


class Upload(NamedTuple):
    """An upload in parts that was not finished: it is under way, or was broken off.

    Attributes:
        key: of the object that it would have made.
        begun: UTC as ISO 8601, or "" where the service does not tell.
        id: the service's name for it, or "" where it has none.
    """

    key: str
    begun: str
    id: str


def upload_of(temporary: ObjectInfo) -> Upload | None:
    """Return the upload that an entry of `list_temporaries` stands for, or None where it is an object."""
    if not temporary.etag.startswith(_UPLOAD):
        return None
    begun, _, number = temporary.etag.removeprefix(_UPLOAD).partition(" ")
    return Upload(temporary.key, begun, number)


def unlisted(store: Store) -> str | None:
    """Return what `list_temporaries` of a store cannot list, in words, or None where it lists everything."""
    return _UNLISTED.get(store._backend.kind) if isinstance(store, RemoteStore) else None  # noqa: SLF001 - its own


class RemoteFile(DataFile):
    """One object of a remote store; nothing is requested before the first read."""

    def __init__(self, store: RemoteStore, key: str, identity: ObjectIdentity) -> None:
        self.url = store.url_of(key)
        self.store = store
        self.key = key
        self._identity = identity

    def invalidate(self) -> None:
        self._identity = self._identity.afresh()

    @property
    def ends_at(self) -> int | None:
        return self._identity.end

    @property
    def size(self) -> int:
        return self.store.size_of(self.key, self._identity)

    def read(self, start: int, stop: int) -> memoryview:
        return self.read_many([start], [stop])[0]

    def read_many(self, starts: Offsets, stops: Offsets) -> list[memoryview]:
        return self.store.begin_ranges(self.key, self._identity, (starts, stops), engine=True)()

    def begin_read(
        self, starts: Offsets, stops: Offsets, *, checksummed: bool = False, gap: int | None = None
    ) -> Callable[[], list[memoryview]]:
        return self.store.begin_ranges(
            self.key, self._identity, (starts, stops), engine=True, checksummed=checksummed, gap=gap
        )

    def close(self) -> None:
        """Do nothing: connections belong to the store."""


class RemoteStore(Store):
    """Objects under a bucket's prefix, or under the URL of a web server.

    Retries, time limits and concurrency are those of `Tuning`; every response is checked for the range, the
    size and the ETag it claims.  Each process builds its own client at first use.
    """

    def __init__(self, backend: Backend, *, tuning: Tuning | None = None, clock: Clock | None = None) -> None:
        self.url = backend.url
        self._backend = backend
        # A web server is not a storage service: it gets fewer connections unless the caller knows better.
        self._tuning = tuning or Tuning(concurrency=32 if backend.kind == "http" else Tuning.concurrency)
        self.read_only_reason = backend.read_only_reason
        self._sender = PerProcess(backend, self._tuning, clock or Clock())

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(RemoteStore, tuning=self._tuning), (self._backend,)

    @property
    def can_list(self) -> bool:
        return self._backend.can_list

    @property
    def network(self) -> StoreNetwork:
        sender = self._sender.current()
        return StoreNetwork(*sender.sent, sender.hedge.fastest, self._tuning.gap)

    def url_of(self, key: str) -> str:
        return self._backend.url_of(key)

    def open(self, key: str, *, size: int | None = None, stable: bool = False, etag: str = "") -> RemoteFile:
        del stable
        check_key(key)
        return RemoteFile(self, key, ObjectIdentity(size, etag))

    def _ask(self, key: str, request: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Send one small request and return its response.

        Raises:
            ShardioError: it failed for good; see `raise_storage_error`.
        """
        try:
            return self._sender.current().send(request)
        except RetryError as error:
            raise_storage_error(error, self.url_of(key))

    # Reading

    def begin_ranges(
        self,
        key: str,
        identity: ObjectIdentity,
        ranges: tuple[Offsets, Offsets],
        *,
        engine: bool = False,
        checksummed: bool = False,
        gap: int | None = None,
    ) -> Callable[[], list[memoryview]]:
        """Send requests for ranges of one object, and return what waits for the bytes.

        Args:
            key: a checked key.
            identity: what is known of the object; responses are held to it, and it learns from them.
            ranges: columns of starts and stops.
            engine: read with the data engine, where there is one; otherwise with fsspec's client.
            checksummed: the caller has checksums, so several requests may go to the engine in one call, whose
                responses tell nothing but their bytes.
            gap: bytes that may be fetched needlessly to save a request; None for `Tuning.gap`.

        Raises:
            NotFoundError, ShortReadError, StorageError: as `DataFile.read_many`; by what is returned.
        """
        path = self._backend.path_of(key)

        def begin() -> Callable[[], list[memoryview]]:
            sender = self._sender.current()
            reader = RangeReader(sender, path, identity, engine=engine, checksummed=checksummed, gap=gap)
            return reader.begin(*ranges)

        return functools.partial(self._await_ranges, begin(), begin, os.getpid(), key, identity, ranges)

    def _await_ranges(
        self,
        pending: Callable[[], list[memoryview]],
        begin: Callable[[], Callable[[], list[memoryview]]],
        home: int,
        key: str,
        identity: ObjectIdentity,
        ranges: tuple[Offsets, Offsets],
    ) -> list[memoryview]:
        try:
            # In a forked child: the thread that the answer would come from stayed with the parent.
            return pending() if os.getpid() == home else begin()()
        except PastEndError as error:
            raise_storage_error(error, self.url_of(key))
        except RetryError as error:
            size = identity.size
            # A server that says no more than "not satisfiable" leaves the size to be asked for, also where
            # another one was told by who wrote the object.
            refused = error.last.kind is ErrorKind.PAST_END
            if refused or (size is None and error.last.kind is ErrorKind.BAD_RESPONSE):
                with contextlib.suppress(StorageError):
                    info = self.head(key)
                    size = None if info is None else info.size
                    identity.size = size if identity.size is None else identity.size
                    identity.found_size(size)
            raise_storage_error(error, self.url_of(key), size=size, ranges=ranges)

    def concurrently(self, call: Callable[[T], R], items: Sequence[T]) -> Generator[R, None, None]:
        if len(items) < 2:
            yield from map(call, items)
            return
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE, "shardio-requests") as pool:
            # A few at a time, so that little is fetched needlessly where the caller stops.
            for begin in range(0, len(items), 4 * _AT_ONCE):
                yield from pool.map(call, items[begin : begin + 4 * _AT_ONCE])

    def _get(self, key: str, max_bytes: int) -> bytes:
        identity = ObjectIdentity()
        path = self._backend.path_of(key)
        # The response to a range request tells the size of the whole, so nothing larger than allowed is
        # fetched, and a body that was cut short on the way is noticed.
        whole = max_bytes <= self._tuning.max_request_bytes
        stop = max(1, max_bytes if whole else _FIRST)

        async def request(client: Client) -> bytes:
            response = await client.fetch(path, 0, stop)
            total = response.total if response.total is not None else len(response.data)
            return bytes(identity.check(response, 0, min(stop, total)).data)

        try:
            start = self._sender.current().send(request, size=stop)
        except RetryError as error:
            # An empty object has no first byte: services refuse the range, or answer without one.
            if error.last.kind in {ErrorKind.PAST_END, ErrorKind.BAD_RESPONSE} and self._is_empty(key):
                return b""
            raise_storage_error(error, self.url_of(key))
        size = self.size_of(key, identity)
        if size > max_bytes:
            raise self._too_large(key, size, max_bytes)
        if size == len(start):
            return start
        return start + self.begin_ranges(key, identity, ([len(start)], [size]))()[0]

    def size_of(self, key: str, identity: ObjectIdentity) -> int:
        """Return the size of an object, and ask for it where no response has told."""
        if identity.size is None:
            info = self._head(key)
            if info is None:
                raise NotFoundError("there is no such object", url=self.url_of(key))
            identity.size = info.size
            identity.etag = identity.etag or info.etag
        return identity.size

    def _is_empty(self, key: str) -> bool:
        info = self._head(key)
        return info is not None and info.size == 0

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

    # Writing

    def _put_if_absent(self, key: str, data: Buffer | pathlib.Path, *, move: bool) -> bool:
        self.probe()
        if self._unconditional and self._head(key) is not None:
            return False
        created = self._upload(key, data, exclusive=not self._unconditional)
        if created and move and isinstance(data, pathlib.Path):
            data.unlink(missing_ok=True)
        return created

    @property
    def _unconditional(self) -> bool:
        """Whether objects are created without a condition: the caller says that no other writer is at work.

        Filesystems of fsspec have no conditions; their client looks by itself.
        """
        return self._backend.single_writer and self._backend.kind != "other"

    def put_and_confirm(self, key: str, data: Buffer) -> bool:
        check_key(key)
        self.refuse_writing()
        self.probe()
        clock = self._sender.current().clock
        begun = clock.now()
        if not self.put_if_absent(key, data):
            return False
        # A writer that found the name free before our object was there has written its own by the time that a
        # request takes, once more: M. Fischer's argument, told in L. Lamport, "A Fast Mutual Exclusion
        # Algorithm" (1987).
        clock.sleep(min(_LONGEST_WAIT, clock.now() - begun))
        try:
            return self.get(key, max_bytes=len(data)) == bytes(data)
        except FormatError:
            return False  # a larger one, so not ours
        except (NotFoundError, StorageError) as error:
            what = "the object was created and cannot be read back"
            raise UnknownOutcomeError(what, url=self.url_of(key), found=str(error)) from error

    def probe(self) -> None:
        """Make sure, once per process, that this store refuses to replace what exists.

        Raises:
            StorageError: it does replace, or is a zonal bucket.
        """
        backend = self._backend
        if backend.single_writer:
            return

        def ask() -> None:
            create = functools.partial(self._upload, limited=False)
            probe(self, create, lambda: self._ask("", backend.refusal))

        _probed.once((backend.url, fingerprint(backend.options)), backend, ask)

    def _upload(
        self, key: str, data: Buffer | pathlib.Path, *, exclusive: bool = True, limited: bool = True
    ) -> bool:
        path = self._backend.path_of(key)
        content = data if isinstance(data, pathlib.Path) else bytes(data)
        size = os.stat(content).st_size if isinstance(content, pathlib.Path) else len(content)
        token = secrets.token_hex(16)

        async def request(client: Client) -> None:
            if await client.put(path, content, exclusive=exclusive, token=token):
                return
            found = await client.head(path)
            if found is None or found.size != size or not found.etag:
                there = "absent" if found is None else f"{found.size} bytes, ETag {found.etag or 'none'}"
                raise UnprovenError(
                    f"the service confirmed an upload of {size} bytes, but the object is {there}: "
                    "a proxy may answer in its place"
                )

        for _ in range(_FALSE_REFUSALS):
            try:
                self._sender.current().send(request, kind="upload" if limited else "probe", size=size)
            except RetryError as error:
                if error.last.kind is not ErrorKind.EXISTS:
                    if error.applied:
                        what = "no answer came back; whether the object was created is unknown"
                        raise storage_error(error, self.url_of(key), what, UnknownOutcomeError) from error
                    raise_storage_error(error, self.url_of(key))
                ours = self._is_ours(key, content, size, token, applied=error.applied)
                if ours is not None:
                    return ours
                # Refused for an object that is not there: it was removed since, or there was none.
                continue
            return True
        raise StorageError(
            "the service says that the object exists already, but it is not there",
            url=self.url_of(key),
            found=f"{_FALSE_REFUSALS} such answers",
            advice="try again later; a proxy or gateway before the service may answer in its place",
        )

    def _is_ours(
        self, key: str, content: bytes | pathlib.Path, size: int, token: str, *, applied: bool
    ) -> bool | None:
        """Tell whether an object that is said to exist is the one that we sent; None where there is none.

        An earlier attempt of ours may be what exists: a lost response is not a failure.
        """
        try:
            found = self._ask(key, lambda client: client.token(self._backend.path_of(key)))
        except NotFoundError:
            found = None
        if found is not None:
            return found == token
        if applied:
            return self._holds(key, content, size)
        return None if self._head(key) is None else False

    def _holds(self, key: str, content: bytes | pathlib.Path, size: int) -> bool:
        """Tell whether the object is byte for byte what we sent."""
        info = self._head(key)
        if info is None:
            what = "no answer came back, and the object is now absent"
            raise UnknownOutcomeError(what, url=self.url_of(key))
        if info.size != size:
            return False
        if isinstance(content, bytes):
            return self._get(key, size) == content
        step = self._tuning.max_request_bytes
        with content.open("rb") as file:
            return all(
                file.read(min(step, size - start))
                == self.begin_ranges(key, ObjectIdentity(), ([start], [min(start + step, size)]))()[0]
                for start in range(0, size, step)
            )

    def _overwrite(self, key: str, data: Buffer) -> None:
        content = bytes(data)
        self._ask(key, lambda client: client.put(self._backend.path_of(key), content, exclusive=False))

    def _delete(self, key: str) -> bool:
        if self._head(key) is None:
            return False
        try:
            self._ask(key, lambda client: client.delete(self._backend.path_of(key)))
        except NotFoundError:
            # Another writer was faster, or a first attempt of ours had its response lost.
            return False
        return True

    def list_temporaries(self) -> Iterator[ObjectInfo]:
        if self.read_only_reason is not None:
            return
        for info in self._gather("", lambda client, path: client.uploads(path)):
            yield info._replace(etag=_UPLOAD + info.etag)
        yield from self._gather(PROBES, lambda client, path: client.list(path))
        if self._backend.single_writer:
            found = self._gather("", lambda client, path: client.list(path))
            yield from (info for info in found if is_temporary(info.key))

    def delete_temporary(self, temporary: ObjectInfo) -> bool:
        key, etag = temporary.key, temporary.etag
        path = self._backend.path_of(key)
        if etag.startswith(_UPLOAD):
            try:
                self._ask(key, lambda client: client.abort(path, etag.partition(" ")[2]))
            except NotFoundError:
                return False
            return True
        if not (is_temporary(key) or key.startswith(PROBES)):
            raise ValueError(f"{key!r} is not a temporary; delete() removes objects")
        return self._delete(key)
