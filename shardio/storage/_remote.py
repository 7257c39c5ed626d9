"""Object stores, web servers and other filesystems: checked reads, and creates with a known outcome.

The client libraries sign, renew credentials and keep connections.  What is left for this file: a bound on
what is in flight; a range read returns exactly the bytes asked for, or an error; a request that failed is
repeated in one place, whatever the library; and a create whose answer is lost, or is not the service's own,
is settled by looking at the store.

Nothing is requested before the first use, and nothing survives a fork: a child builds its own filesystem.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import importlib.util
import io
import itertools
import logging
import os
import pathlib
import random
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from operator import itemgetter
from typing import Any, TypeVar

from shardio.errors import NotFoundError, ShardioError, StorageError
from shardio.ranges import coalesce, scatter
from shardio.storage._client import Client, Service
from shardio.storage._errors import (
    BadResponseError,
    ChangedError,
    ErrorKind,
    classify,
    explain,
    failed,
    missing_bucket,
)
from shardio.storage._keys import check_key, is_temporary
from shardio.storage._obstore import (
    ObstoreReader,
    UntranslatableError,
    fork_was_meant,
    may_fork,
    open_reader,
    was_forked,
)
from shardio.storage._services import GENERIC, SERVICES
from shardio.storage._store import (
    Buffer,
    CannotListError,
    DataFile,
    MissingBucketError,
    ObjectInfo,
    Offsets,
    Reply,
    ShortReadError,
    Store,
    StoreNetwork,
    UnknownOutcomeError,
    holds,
    short_read,
)

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger("shardio")
GAP = 128 << 10  # bytes fetched needlessly to save a request; what a connection moves in a millisecond or two
LONGEST = 8 << 20  # bytes of one request; longer ranges are cut and fetched concurrently
_FIRST = 1 << 20  # bytes of the first request of `get`; most metadata is smaller
_THREADS = 64  # requests for data in flight in this process
_THREAD_NAME = "shardio-io"
_IN_FLIGHT = 128 << 20  # bytes of all of them
_AT_ONCE = 16  # calls of `concurrently`
_BACKOFF = 0.5  # seconds: the n-th wait is random, up to 0.5 * 2**n
_PUTS = 4  # how often a create is sent whose outcome is not known
_RENEWAL = 60.0  # seconds between two rebuilds of a filesystem whose credentials have expired
_LONGEST_CONFIRMATION = 2.0  # seconds before an object is read back
# A probe whose writer was killed stays here, and is listed among the temporaries.
PROBES = "_shardio/probes/"
# How services say that they do not know the condition.
_UNKNOWN_CONDITION = {400, 405, 501}
# What may be obstore's fault rather than the object's: then the fsspec filesystem is asked.
_MAYBE_TRANSLATION = frozenset({ErrorKind.NOT_FOUND, ErrorKind.DENIED, ErrorKind.REFUSED, ErrorKind.TLS})
# The interpreter ends: threads of ours begin nothing and send nothing again.
_ending = threading.Event()
# Not the global generator: a program that seeded that one must draw the same numbers whatever a network does.
_jitter = random.SystemRandom()


@dataclasses.dataclass(frozen=True)
class Backend:
    """A remote root, and how to reach it; a value that pickles.

    Attributes:
        protocol: of its service; empty for a chain of filesystems.
        url: the normalised root.
        path: what its filesystem calls the root: bucket and prefix, or the URL itself.
        options: storage_options in fsspec's terms.
        engine: None, "fsspec" or "obstore".
        single_writer: the caller states that it is the only writer.
    """

    protocol: str
    url: str
    path: str
    options: Mapping[str, Any]
    engine: str | None
    single_writer: bool

    @property
    def service(self) -> Service:
        """The row of its service."""
        return SERVICES.get(self.protocol, GENERIC)


class _Process:
    """What one process requests with: threads, and filesystems by what they were built from.

    To build a filesystem takes a tenth of a second. Those of a parent process stay as they are: closing them
    would use its connections.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, _THREAD_NAME)
        self._free_bytes = _IN_FLIGHT
        self._freed = threading.Condition()
        self._built: dict[Any, tuple[Client, object]] = {}
        self._lock = threading.Lock()
        # By itself the interpreter would wait until all that is queued was fetched.
        threading._register_atexit(self._end, os.getpid())  # type: ignore[attr-defined] # noqa: SLF001 - there is no public way

    def _end(self, process: int) -> None:
        """Drop queued requests as this process ends; the interpreter waits for those that were sent."""
        if process == os.getpid():  # a forked child may have locks that are held
            _ending.set()
            self._threads.shutdown(wait=False, cancel_futures=True)
            with self._freed:
                self._freed.notify_all()

    def submit(self, call: Callable[[], T], size: int) -> Future[T]:
        """Run a call that holds so many bytes once a thread and room are free."""

        def run() -> T:
            with self._freed:
                self._freed.wait_for(lambda: self._free_bytes >= size or _ending.is_set())
                if _ending.is_set():
                    raise CancelledError
                self._free_bytes -= size
            try:
                return call()
            finally:
                with self._freed:
                    self._free_bytes += size
                    self._freed.notify_all()

        return self._threads.submit(run)

    def client(self, backend: Backend, instead_of: Client | None = None) -> Client:
        """Return the client of a root; build one if there is none, or only `instead_of`."""
        # Buckets of one service share a filesystem.
        place = "" if backend.service.has_buckets else backend.path
        key = backend.service.filesystem, place, _identity(backend.options), _environment()
        with self._lock:
            client = self._built.get(key, (None, None))[0]
            if client is None or client is instead_of:
                client = Client(backend.service, backend.options, backend.path)
                # With the options: some are told apart by their identity, which must not be reused.
                self._built[key] = client, backend.options
                while len(self._built) > 8:
                    del self._built[next(iter(self._built))]
            return client


@functools.cache
def _process(_number: int) -> _Process:
    return _Process()


class _Wait:
    """Waits for requests, once; dropped before that, it cancels those that were not sent yet."""

    def __init__(self, futures: Iterable[Future[Buffer]]) -> None:
        self._futures = collections.deque[Future[Buffer]]()
        self._futures.extend(futures)

    def __call__(self) -> list[Buffer]:
        found = []
        try:
            while self._futures:
                # In no variable: a future holds its error, and the error this frame.
                found.append(self._futures.popleft().result())
        finally:
            self._cancel()
        return found

    def _cancel(self) -> None:
        while self._futures:
            self._futures.popleft().cancel()

    __del__ = _cancel


def _environment() -> tuple[tuple[str, str], ...]:
    """Return what the libraries look for; changed variables mean another filesystem."""
    names = ("AWS_", "BOTO", "AZURE_", "GOOGLE_", "GCLOUD", "GCSFS_", "CLOUDSDK_", "STORAGE_", "FSSPEC_")
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith(names)))


def _identity(value: Any) -> Any:
    """Return what tells one value from another: its content where it is plain, else which object it is."""
    if isinstance(value, dict):
        return tuple(sorted((str(name), _identity(inner)) for name, inner in value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(_identity, value))
    if value is None or isinstance(value, str | int | float | bool):
        return type(value).__name__, value
    return "object", id(value)


# Stores that were found to refuse what exists, by root and options.
_proved: set[Any] = set()


@dataclasses.dataclass
class ObjectIdentity:
    """What is known of an object: its size and ETag, given when it was opened or learned from replies.

    Attributes:
        key, url: its names.
        size, etag: those of the object that was opened.
    """

    key: str
    url: str
    size: int | None = None
    etag: str = ""

    def check(
        self, reply: Reply, start: int, stop: int, *, compared: bool = False, open_ended: bool = False
    ) -> None:
        """Refuse a reply to a request for `[start, stop)` that is of another object, or not all of it.

        Args:
            reply: to check.
            start, stop: of the range.
            compared: the caller has checksums, so what is there of another version may be taken.
            open_ended: the object may end before `stop`.

        Raises:
            ChangedError, BadResponseError: as said.
            ShortReadError: the object ends before `stop`.
        """
        changed = self._changed(reply)
        if changed is not None and not compared:
            raise changed
        if len(reply.data) != stop - start and not open_ended:
            if reply.total is not None:
                raise short_read(self.url, start, stop, reply.total)
            found = f"{len(reply.data)} bytes where {stop - start} were asked for"
            raise BadResponseError(f"the response holds {found}")
        if changed is None:
            # Only a reply that counts may teach us.
            self.size = self.size if reply.total is None else reply.total
            self.etag = self.etag or reply.etag

    def _changed(self, reply: Reply) -> ChangedError | None:
        if reply.total is not None and self.size is not None and reply.total != self.size:
            return ChangedError(f"{self.size} bytes", f"{reply.total} bytes")
        if reply.etag and self.etag and reply.etag != self.etag:
            return ChangedError(f"ETag {self.etag}", f"ETag {reply.etag}")
        return None


class RemoteFile(DataFile):
    """One object of a remote store; nothing is requested before the first read."""

    def __init__(self, store: RemoteStore, identity: ObjectIdentity) -> None:
        self.url = identity.url
        self._store = store
        self._given = identity
        self.invalidate()

    def invalidate(self) -> None:
        self._identity = dataclasses.replace(self._given)

    @property
    def size(self) -> int:
        return self._store.size_of(self._identity)

    def read_many(self, starts: Offsets, stops: Offsets) -> list[memoryview]:
        return self.begin_read(starts, stops)()

    def begin_read(
        self, starts: Offsets, stops: Offsets, *, checksummed: bool = False, gap: int | None = None
    ) -> Callable[[], list[memoryview]]:
        fetch = functools.partial(self._store.fetch, self._identity, compared=checksummed)
        return self._store.begin_ranges(self._identity, (starts, stops), fetch, gap=gap)


class RemoteStore(Store):
    """Objects under a bucket's prefix, the URL of a web server, or the root of another filesystem."""

    def __init__(self, backend: Backend) -> None:
        self.url = backend.url
        self._backend = backend
        if backend.service is not GENERIC or not backend.single_writer:
            self.read_only_reason = backend.service.read_only_reason
        self._client: tuple[Client | None, int] = None, 0
        self._renewed = float("-inf")
        self._sent = self._again = 0
        self._fastest = float("inf")
        # Filesystems on top of others, as caches and archives are, are not thread-safe.
        self._in_turn = threading.Lock() if "::" in backend.url and backend.service is GENERIC else None

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteStore, (self._backend,)

    @property
    def can_list(self) -> bool:
        return self._backend.service.can_list

    @property
    def network(self) -> StoreNetwork:
        return StoreNetwork(self._sent, self._again, self._fastest)

    def url_of(self, key: str) -> str:
        if self._backend.service is GENERIC and "::" in self.url:
            # Caches have names only: the key belongs to the first link that has an address.
            links = self.url.split("::")
            number = next((number for number, link in enumerate(links) if "/" in link), -1)
            links[number] = f"{links[number].removesuffix('/')}/{key}"
            return "::".join(links)
        return f"{self.url}/{key}"

    def open(self, key: str, *, size: int | None = None, stable: bool = False, etag: str = "") -> RemoteFile:
        del stable
        check_key(key)
        return RemoteFile(self, ObjectIdentity(key, self.url_of(key), size, etag))

    def _path(self, client: Client, key: str) -> str:
        # A client of buckets has many roots.
        return f"{self._backend.path if client.service.has_buckets else client.root}/{key}"

    # Requests

    def _request(
        self,
        key: str,
        send: Callable[[Client, str], T],
        explained: Callable[[Exception, str], ShardioError] = explain,
    ) -> T:
        """Send a request until it succeeds or cannot.

        Args:
            key: of the object that it is about.
            send: sends it once, given the client and the object's path there.
            explained: makes the error of what the last attempt raised, and the URL.

        Raises:
            ShardioError: it failed for good.
        """
        for number in itertools.count(1):
            client: Client | None = None
            try:
                # To build a filesystem may fail like a request: it reads files, and asks for credentials.
                client = self._connected()
                sent = time.monotonic()
                self._sent += 1
                with self._in_turn or contextlib.nullcontext():
                    found = send(client, self._path(client, key))
                client.answered = True
                self._fastest = min(self._fastest, time.monotonic() - sent)
            except ShardioError:
                raise
            except Exception as error:
                failure = classify(error)
                if client is not None and failure.kind is ErrorKind.EXPIRED and self._renew(client):
                    continue
                if client is None or number >= client.attempts(failure) or _is_ending():
                    raise explained(error, self.url_of(key)) from error
                self._again += 1
                _pause(number if client.answered else 1)
            else:
                return found
        raise AssertionError  # for the type checker

    def _connected(self) -> Client:
        """Return the client, built by this process."""
        # Looked up once: to compare options and environment costs more than all else of a request here.
        client, process = self._client
        if client is None or process != os.getpid():
            client = _process(os.getpid()).client(self._backend)
            self._client = client, os.getpid()
        return client

    def _renew(self, client: Client) -> bool:
        """Build the filesystem again as its credentials have expired; once a minute at most."""
        if time.monotonic() - self._renewed < _RENEWAL:
            return False
        self._renewed = time.monotonic()
        self._client = _process(os.getpid()).client(self._backend, instead_of=client), os.getpid()
        return True

    def _ask(self, key: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Send one small request about an object.

        Raises:
            ShardioError: it failed for good.
        """
        return self._request(key, lambda client, path: client.call(function, path, *arguments, **options))

    # Reading

    def begin_ranges(
        self,
        identity: ObjectIdentity,
        ranges: tuple[Offsets, Offsets],
        fetch: Callable[[int, int], Buffer],
        *,
        gap: int | None = None,
    ) -> Callable[[], list[memoryview]]:
        """Send requests for ranges of one object, and return what waits for the bytes.

        Args:
            identity: what is known of it.
            ranges: columns of starts and stops.
            fetch: returns the bytes of one request.
            gap: bytes that may be fetched needlessly to save a request; None for `GAP`.

        Raises:
            NotFoundError, ShortReadError, StorageError: by what is returned.
        """
        merged = coalesce(*ranges, gap=GAP if gap is None else gap, max_bytes=LONGEST)
        last = max(merged.ranges, key=itemgetter(1), default=(0, 0))
        if identity.size is not None and last[1] > identity.size:
            return functools.partial(_fail, short_read(identity.url, *last, identity.size))
        pieces = [_cut(*each) for each in merged.ranges]

        def begin() -> _Wait:
            submit = _process(os.getpid()).submit
            cuts = itertools.chain.from_iterable(pieces)
            return _Wait(submit(functools.partial(fetch, *cut), cut[1] - cut[0]) for cut in cuts)

        wait, process = begin(), os.getpid()

        def finish() -> list[memoryview]:
            # In a forked child: the threads that fetch stayed with the parent.
            parts = iter((wait if process == os.getpid() else begin())())
            whole = (list(itertools.islice(parts, len(each))) for each in pieces)
            return scatter([each[0] if len(each) == 1 else b"".join(each) for each in whole], merged)

        return finish

    def fetch(
        self,
        identity: ObjectIdentity,
        start: int,
        stop: int,
        *,
        compared: bool = False,
        open_ended: bool = False,
        plain: bool = False,
    ) -> Buffer:
        """Return bytes `[start, stop)` of an object, read by obstore where that can be.

        Args:
            identity: what is known of it.
            start, stop: of the range.
            compared, open_ended: as in `ObjectIdentity.check`.
            plain: the filesystem reads, so that a process that has read only metadata may fork.

        Raises:
            NotFoundError, ShortReadError, ChangedObjectError, StorageError: as `DataFile.read`.
        """

        def send(client: Client, path: str) -> Reply:
            fetch = client.service.fetch
            reply: Reply = (
                client.call(fetch, path, start, stop) if plain else self._read(client, path, start, stop)
            )
            identity.check(reply, start, stop, compared=compared, open_ended=open_ended)
            return reply

        def explained(error: Exception, _url: str) -> ShardioError:
            return self._explain_range(error, identity, start, start + 1 if open_ended else stop)

        return self._request(identity.key, send, explained).data

    def _read(self, client: Client, path: str, start: int, stop: int) -> Reply:
        """Read by obstore, unless it turns out that its options were translated wrongly."""
        backend = self._backend
        place = path.partition("/")[0] if backend.service.has_buckets else backend.path
        known = place, backend.engine
        with client.choosing:
            if known not in client.readers:
                client.readers[known] = self._open_obstore(client, place)
        reader, fetch = client.readers[known], client.service.fetch
        if reader is None or not reader.takes(path):
            reply: Reply = client.call(fetch, path, start, stop)
            return reply
        try:
            return reader.fetch(path, start, stop)
        except Exception as error:
            failure = classify(error)
            insists = backend.engine == "obstore" and reader.resolved
            unreachable = failure.kind is ErrorKind.CONNECTION and not failure.timed_out
            if reader.answered or not (unreachable or (failure.kind in _MAYBE_TRANSLATION and not insists)):
                raise
        # Not in the handler, where what fsspec raises would lose its own causes.
        if not unreachable and not reader.resolved:
            client.readers[known] = self._open_obstore(client, place, resolve=True)
            return self._read(client, path, start, stop)
        # Of a connection that failed at once, obstore doesn't say why.
        reply = client.call(fetch, path, start, stop)
        if not unreachable:
            client.readers[known] = None
            self._warn(failure.text)
        return reply

    def _open_obstore(self, client: Client, place: str, *, resolve: bool = False) -> ObstoreReader | None:
        """Return obstore's reader, or None where the filesystem reads; warn where that is not expected."""
        engine = self._backend.engine
        if engine == "fsspec" or not client.service.package or importlib.util.find_spec("obstore") is None:
            return None
        try:
            return open_reader(client, place, resolve=resolve)
        except UntranslatableError as error:
            if engine == "obstore":
                raise StorageError(
                    str(error), url=self.url, advice="or leave the engine to shardio"
                ) from error
            if not (was_forked() and fork_was_meant()):
                self._warn(str(error))
            return None

    def _warn(self, reason: str) -> None:
        _log.warning("%s is read with fsspec instead of obstore: %s", self.url, reason)

    def _explain_range(
        self, error: Exception, identity: ObjectIdentity, start: int, stop: int
    ) -> ShardioError:
        """Return the error for a range; the size of the object may have to be asked for."""
        failure = classify(error)
        if failure.kind in {ErrorKind.PAST_END, ErrorKind.BAD_RESPONSE} and type(error) is not ChangedError:
            info = None
            with contextlib.suppress(ShardioError):
                info = self._head(identity.key)
            if info is not None and info.size < stop:
                return short_read(identity.url, start, stop, info.size)
            if failure.kind is ErrorKind.PAST_END and info is not None:
                # Not damage: the object is as long as it should be, and its server contradicts itself.
                what = "the server says that the object ends before bytes that it has"
                wrong = failed(failure, identity.url, what)
                wrong.start, wrong.stop = start, stop
                wrong.expected = f"bytes of an object of {info.size} bytes, as the server itself says"
                return wrong
        return explain(error, identity.url)

    def concurrently(self, call: Callable[[T], R], items: Sequence[T]) -> Generator[R, None, None]:
        if len(items) < 2:
            yield from map(call, items)
            return
        with ThreadPoolExecutor(_AT_ONCE, "shardio-requests") as pool:
            # A few at a time, so that little is fetched needlessly where the caller stops.
            for begin in range(0, len(items), 4 * _AT_ONCE):
                yield from pool.map(call, items[begin : begin + 4 * _AT_ONCE])

    def _get(self, key: str, max_bytes: int) -> bytes:
        # The reply to a range request tells the size of the whole, so nothing larger than allowed is fetched,
        # and a body that was cut short on the way is noticed.
        identity = ObjectIdentity(key, self.url_of(key))
        most = max(1, max_bytes if max_bytes <= LONGEST else _FIRST)
        plain = may_fork()
        try:
            start = self.fetch(identity, 0, most, open_ended=True, plain=plain)
        except ShortReadError:
            # An empty object has no first byte: services refuse the range, or answer without one.
            return b""
        size = self.size_of(identity)
        if size > max_bytes:
            raise self._too_large(key, size, max_bytes)
        if size == len(start):
            return bytes(start)
        fetch = functools.partial(self.fetch, identity, plain=plain)
        return bytes(start) + self.begin_ranges(identity, ([len(start)], [size]), fetch)()[0]

    def size_of(self, identity: ObjectIdentity) -> int:
        """Return the size of an object, and ask for it where no reply has told."""
        if identity.size is None:
            info = self._head(identity.key)
            if info is None:
                raise NotFoundError("there is no such object", url=identity.url)
            identity.size = info.size
            identity.etag = identity.etag or info.etag
        return identity.size

    def _head(self, key: str) -> ObjectInfo | None:
        return self._describe(key)[0]

    def _describe(self, key: str) -> tuple[ObjectInfo | None, str | None]:
        """Return what is known of an object, if there is one, and its token, if it has one."""
        try:
            info, token = self._ask(key, self._backend.service.describe)
        except MissingBucketError:
            raise
        except NotFoundError:
            return None, None
        return info._replace(key=key), token

    def _list(self, prefix: str, *, linked: bool) -> Iterator[ObjectInfo]:
        del linked
        if not self.can_list:
            what = "this server cannot list its objects"
            raise CannotListError(what, url=self.url, advice="name the version to open")
        try:
            found = self._gather(prefix)
        except NotFoundError as error:
            # Of a listing nothing can be absent but the bucket, whatever words the service has for it.
            raise missing_bucket(self.url) from error
        return iter([info for info in found if not is_temporary(info.key)])

    def _gather(self, prefix: str) -> list[ObjectInfo]:
        def send(client: Client, path: str) -> list[ObjectInfo]:
            found: list[ObjectInfo] = client.call(client.service.list, path)
            return [info._replace(key=info.key[len(self._path(client, "")) :]) for info in found]

        named = self._request(prefix, send)
        return sorted(info for info in named if info.key and not info.key.endswith("/"))

    # Writing

    def _put_if_absent(self, key: str, data: Buffer | pathlib.Path, *, move: bool) -> bool:
        self.probe()
        # Filesystems of fsspec have no conditions; there the service looks by itself.
        unconditional = self._backend.single_writer and self._backend.service is not GENERIC
        if unconditional and self._head(key) is not None:
            return False
        created = self._create(key, data, exclusive=not unconditional)
        if created and move and isinstance(data, pathlib.Path):
            data.unlink(missing_ok=True)
        return created

    def _create(self, key: str, data: Buffer | pathlib.Path, *, exclusive: bool = True) -> bool:
        """Create an object and return whether this call did; what was not answered for certain is looked at.

        Raises:
            UnknownOutcomeError: some attempt may have taken effect, or may yet.
            StorageError: it was not created.
        """
        content = data if isinstance(data, pathlib.Path) else bytes(data)
        token = secrets.token_hex(16)
        in_doubt = False
        last: Exception | None = None
        for number in range(_PUTS):
            if number:
                _pause(number)
            try:
                client = self._connected()
            except Exception as error:
                raise explain(error, self.url_of(key)) from error
            self._sent += 1
            again = True
            try:
                put, path = client.service.put, self._path(client, key)
                if client.call(put, path, content, exclusive=exclusive, token=token):
                    return True
                # No answer of the service itself: a proxy may have answered in its place.
                last, in_doubt = BadResponseError("something else confirmed the upload"), True
            except Exception as error:  # noqa: BLE001 - raised in the end, unless the object is there
                failure = classify(error)
                # Without its frames, of which this is one.
                last, in_doubt = error.with_traceback(None), in_doubt or failure.applied
                if failure.kind is ErrorKind.EXPIRED and self._renew(client):
                    continue
                attempts = _PUTS if failure.kind is ErrorKind.EXISTS else client.attempts(failure)
                if attempts == 1 and failure.again:
                    break
                again = number + 1 < attempts
            created = self._is_ours(key, content, token, in_doubt=in_doubt or client.service.resends)
            if created is not None:
                return created
            if not again:
                break
        assert last is not None  # noqa: S101 - for the type checker
        raise self._not_created(key, last, in_doubt=in_doubt) from last

    def _not_created(self, key: str, last: Exception, *, in_doubt: bool) -> ShardioError:
        """Return the error for a create that failed for good."""
        failure, url = classify(last), self.url_of(key)
        if in_doubt and failure.kind is not ErrorKind.LOCAL:
            what = "no answer came back; whether the object was created is unknown"
            return failed(failure, url, what, UnknownOutcomeError)
        if failure.kind is ErrorKind.EXISTS:
            what = "the service says that the object exists already, but it is not there"
            advice = "try again later; a proxy or gateway before the service may answer in its place"
            return StorageError(what, url=url, found=f"{_PUTS} such answers", advice=advice)
        return explain(last, url)

    def _is_ours(self, key: str, content: bytes | pathlib.Path, token: str, *, in_doubt: bool) -> bool | None:
        """Tell whether an object is the one that this call sent; None where there is none.

        Args:
            key: of the object.
            content, token: that were sent.
            in_doubt: an earlier sending may be what exists. Else what has no token is another writer's.

        Raises:
            UnknownOutcomeError: it could not be looked at.
        """
        size = os.stat(content).st_size if isinstance(content, pathlib.Path) else len(content)
        try:
            info, found = self._describe(key)
            if info is None or info.size != size or found is not None or not in_doubt:
                return None if info is None else found == token and info.size == size
            return self._holds(key, content, size)
        except NotFoundError:
            return None
        except StorageError as error:
            what = "no answer came back; whether the object was created is unknown"
            raise UnknownOutcomeError(what, url=self.url_of(key), found=str(error)) from error

    def _holds(self, key: str, content: bytes | pathlib.Path, size: int) -> bool:
        """Tell whether the object is byte for byte what was sent."""
        identity = ObjectIdentity(key, self.url_of(key))
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
            return all(
                file.read(min(LONGEST, size - start))
                == self.fetch(identity, start, min(start + LONGEST, size), plain=True)
                for start in range(0, size, LONGEST)
            )

    def put_and_confirm(self, key: str, data: Buffer) -> bool:
        check_key(key)
        self.refuse_writing()
        self.probe()
        begun = time.monotonic()
        if not self.put_if_absent(key, data):
            return False
        # A writer that found the name free before our object was there has written its own by the time that a
        # request takes, once more: M. Fischer's argument, told in L. Lamport, "A Fast Mutual Exclusion
        # Algorithm" (1987).
        time.sleep(min(_LONGEST_CONFIRMATION, time.monotonic() - begun))
        try:
            return holds(self, key, bytes(data))
        except (NotFoundError, StorageError) as error:
            what = "the object was created and cannot be read back"
            raise UnknownOutcomeError(what, url=self.url_of(key), found=str(error)) from error

    def probe(self) -> None:
        """Make sure, once per process, that this store refuses to replace what exists.

        Raises:
            StorageError: it does replace.
        """
        backend = self._backend
        known = backend.url, _identity(backend.options), _environment()
        if backend.single_writer or known in _proved:
            return
        key = PROBES + secrets.token_hex(16)
        try:
            reason = self._create_twice(key)
        finally:
            # A writer that may create but not delete leaves an object of a few bytes.
            with contextlib.suppress(ShardioError):
                self._delete(key)
        if reason is not None:
            what = f"this store cannot commit safely: {reason}"
            advice = "use another bucket, or single_writer=True if no other process writes here"
            raise StorageError(what, url=self.url, advice=advice)
        _proved.add(known)

    def _create_twice(self, key: str) -> str | None:
        """Return what is wrong with two creates of one object, of which the second has to be refused."""
        try:
            first = self._create(key, b"first")
        except (StorageError, NotFoundError) as error:
            failure = classify(error.__cause__ or error)
            if failure.status not in _UNKNOWN_CONDITION or not self._takes_plain(key):
                raise
            return f"it answers {failure.text!r} to If-None-Match, the condition that an object is absent"
        if not first:
            return "it reports an object that was never created"
        if self._create(key, b"second") or not holds(self, key, b"first"):
            return "it replaces objects although it was told to create them only if absent"
        return None

    def _takes_plain(self, key: str) -> bool:
        """Tell whether the same write succeeds without the condition: then it was the condition."""
        try:
            return self._create(key, b"first", exclusive=False)
        except StorageError:
            return False

    def _overwrite(self, key: str, data: Buffer | pathlib.Path) -> None:
        content = data if isinstance(data, pathlib.Path) else bytes(data)
        self._ask(key, self._backend.service.put, content, exclusive=False, token=secrets.token_hex(16))

    def _delete(self, key: str) -> bool:
        if self._head(key) is None:
            return False
        try:
            self._ask(key, self._backend.service.delete)
        except NotFoundError:
            # Another writer was faster, or a first attempt of ours had its reply lost.
            return False
        return True

    def list_temporaries(self) -> Iterator[ObjectInfo]:
        if self.read_only_reason is not None:
            return
        yield from self._gather(PROBES)
        if self._backend.single_writer:
            yield from (info for info in self._gather("") if is_temporary(info.key))


def _pause(number: int) -> None:
    """Wait before the request that follows the n-th."""
    wait = _ending.wait if _is_own_thread() else time.sleep
    wait(_jitter.uniform(0.0, _BACKOFF * 2.0**number))


def _is_own_thread() -> bool:
    return threading.current_thread().name.startswith(_THREAD_NAME)


def _is_ending() -> bool:
    """Tell whether the interpreter ends and waits for this thread of ours."""
    return _ending.is_set() and _is_own_thread()


def unlisted(store: Store) -> str | None:
    """Return what becomes of unfinished uploads, which `list_temporaries` does not list, or None."""
    return store._backend.service.lifecycle if isinstance(store, RemoteStore) else None  # noqa: SLF001 - its own


def _fail(error: ShardioError) -> list[memoryview]:
    raise error


def _cut(start: int, stop: int) -> list[tuple[int, int]]:
    """Cut what is longer than one request into equal parts."""
    count = -(-(stop - start) // LONGEST)
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    return list(itertools.pairwise(edges))
