"""What every store promises, whatever is below it: six primitives, exact lengths, exclusive creation.

The laws, run on every backend by `tests/suites/store.py`:

- An object appears whole or not at all, and `put_if_absent` never replaces one.
- A range read returns exactly the bytes asked for, or an error; never fewer, never others.
- Keys are joined to the root as text and name one object each: no globbing, no chaining, no `~`, no `..`.
- A store touches nothing until it is used, may be shared by threads, pickles to its URL and options, and
  works in a forked child.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import pathlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardio.errors import FormatError, NotFoundError, ShardioError, StaleIndexError, StorageError
from shardio.redact import redact
from shardio.storage._keys import check_key, check_prefix

# So many times an object is created whose absence a lost answer, or a false one, leaves to be found out.
_MAX_PUTS = 5
# So many times what does not match its checksum is fetched again: it may have been hurt on its way only.
REFETCHES = 2

Buffer: TypeAlias = "bytes | memoryview"
Offsets: TypeAlias = "Sequence[int] | NDArray[np.int64]"


class CannotListError(StorageError):
    """This kind of place has no listings, as web servers have none."""


class DeniedError(StorageError):
    """The service answered 403: what was asked for is forbidden, or absent where nothing may be listed."""


class MissingBucketError(NotFoundError):
    """There is no such bucket or container."""


class UnknownOutcomeError(StorageError):
    """The request was sent and no answer came back: it may have taken effect, now or later."""


class NotDurableError(UnknownOutcomeError):
    """The object has its name, but the disk failed to make that permanent: a crash may undo it."""


class ShortReadError(StorageError):
    """The object ends before the range asked for; `expected` and `found` are numbers of bytes."""


class ChangedObjectError(StorageError):
    """The object is not the one that was opened: another size or ETag; `expected` and `found` say which."""


class ObjectInfo(NamedTuple):
    """What a store knows about one object without reading it.

    Attributes:
        key: key relative to the store's root.
        size: bytes.
        etag: text that changes when the object does (ETag, generation, mtime in ns); "" where there is none.
    """

    key: str
    size: int
    etag: str


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


T = TypeVar("T")
R = TypeVar("R")


def read_intact(read: Callable[[], T], forget: Callable[[], object] = bool) -> T:
    """Return what `read` fetches and compares with its checksums; a failed checksum is refetched.

    This is the only place that refetches: damage may be a transfer error.

    Args:
        read: is called three times at most.
        forget: drops what the damaged reply left behind before `read` is called again; may raise where
            nothing can be refetched.

    Raises:
        FormatError, StaleIndexError: the last reply was refused, too.
    """
    for _ in range(REFETCHES):
        try:
            return read()
        except (FormatError, StaleIndexError):
            forget()
    return read()


def holds(store: Store, key: str, data: bytes) -> bool:
    """Tell whether an object is byte for byte this one.

    Raises:
        NotFoundError, StorageError: there is none; the environment failed.
    """

    def compare() -> None:
        if store.get(key, max_bytes=len(data)) != data:
            raise FormatError("an object holds other bytes", url=store.url_of(key))

    try:
        read_intact(compare)
    except FormatError:
        return False
    return True


def short_read(url: str, start: int, stop: int, size: int) -> ShortReadError:
    """Return the error for a range of an object that ends before it."""
    what = "the object ends before the bytes asked for"
    found = max(0, min(stop, size) - start)
    return ShortReadError(what, url=url, start=start, stop=stop, expected=stop - start, found=found)


class StoreNetwork(NamedTuple):
    """What a store knows of the network that its objects are behind.

    Attributes:
        sent, again: requests of this process, and those of them that were sent again.
        latency: seconds that the fastest request of late took; infinite before one was answered.
    """

    sent: int = 0
    again: int = 0
    latency: float = 0.0


class DataFile(abc.ABC):
    """Random reads of one data object; safe to share among threads, closed by `close` or `with`."""

    url: str

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Size of the object in bytes."""

    def read(self, start: int, stop: int) -> memoryview:
        """Return exactly the bytes `[start, stop)`.

        Raises:
            ShortReadError: the object ends before `stop`.
            StorageError: the environment failed.
        """
        return self.read_many([start], [stop])[0]

    @abc.abstractmethod
    def read_many(self, starts: Offsets, stops: Offsets) -> list[memoryview]:
        """Return the bytes of many ranges, in the order asked; near ones share a request.

        Raises:
            ShortReadError: the object ends before a range does.
            StorageError: the environment failed.
        """

    def begin_read(
        self, starts: Offsets, stops: Offsets, *, checksummed: bool = False, gap: int | None = None
    ) -> Callable[[], list[memoryview]]:
        """Begin what `read_many` does and return what waits for the bytes.

        What was begun for several files is under way together; on a local disk, reading happens at the end.

        Args:
            starts, stops: of the ranges.
            checksummed: the caller compares the bytes with checksums of its own, so a response need not prove
                of which version of the object it is; lengths are exact all the same.
            gap: bytes that may be fetched needlessly to save a request; None for what suits most.
        """
        del checksummed, gap
        return functools.partial(self.read_many, starts, stops)

    def pieces(self, step: int) -> Iterator[memoryview]:
        """Yield the bytes in pieces of `step`; while one is looked at, the next is on its way.

        Raises:
            StorageError, NotFoundError: the environment failed, or the object is cut meanwhile.
        """
        size = self.size
        begun = (self.begin_read([start], [min(start + step, size)]) for start in range(0, size, step))
        ahead = next(begun, None)
        while ahead is not None:
            here, ahead = ahead, next(begun, None)
            yield here()[0]

    def invalidate(self) -> None:  # noqa: B027 - most have learned nothing
        """Forget what responses have told about the object: one of them was found to be wrong."""

    def map(self) -> memoryview | None:
        """Return the whole object as a read-only map, or None where only `read` is safe or possible."""
        return None

    def drop_pages(self) -> None:  # noqa: B027 - what is not mapped has none
        """Give the pages of the map back to the system; what is looked at again comes from its cache."""

    def close(self) -> None:  # noqa: B027 - most hold none
        """Release the handle; calling it twice is allowed. Maps and views handed out stay valid."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Store(abc.ABC):
    """Objects under one root URL.

    Attributes:
        url: normalised root, without a trailing slash; a plain absolute path for local folders.
        is_local: objects are local files.
        read_only_reason: why writing is refused, as far as is known before the first write; None where not.
    """

    url: str
    is_local: bool = False
    read_only_reason: str | None = None

    @property
    def network(self) -> StoreNetwork:
        """What reading has taken of the network, and what it costs there."""
        return StoreNetwork()

    def refuse_writing(self, advice: str = "write to a local folder or a bucket") -> None:
        """Raise StorageError, with advice, where it is known before the first write that it is refused."""
        if self.read_only_reason is not None:
            what = f"this place cannot be written: {self.read_only_reason}"
            raise StorageError(what, url=self.url, advice=advice)

    @property
    def can_list(self) -> bool:
        """Whether `list` works; web servers cannot."""
        return True

    def url_of(self, key: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.url}/{key}"

    def put_if_absent(self, key: str, data: Buffer | pathlib.Path, *, move: bool = False) -> bool:
        """Create an object whole, unless one of that name exists.

        Args:
            key: its name, relative to the root.
            data: its bytes, or the path of a local file that holds them.
            move: the file is gone afterwards if the object was created; where possible it is not copied.

        Returns:
            True if this call created the object, False if there already was one of that name.

        Raises:
            MissingBucketError: there is no such bucket.
            NotDurableError: this call created it, and the disk failed to make its name permanent.
            UnknownOutcomeError: no answer came back; the object may exist, or appear yet.
            StorageError: it was not created, or the store is read-only.
        """
        check_key(key)
        self.refuse_writing()
        with _explained_if_gone([data]):
            return self._put_if_absent(key, data, move=move)

    def put_idempotent(self, *objects: tuple[str, Buffer | pathlib.Path]) -> bool:
        """Create objects under names that no other content has; where no answer comes back, ask again.

        For names that are random, or follow from the content: what is there is what was to be created,
        by this call or another. On a local disk, flushing several together costs less than one by one.

        Args:
            objects: in order, their names, relative to the root, and their bytes or the paths of local files
                that hold them, which are moved: they are gone afterwards if the object was created.

        Returns:
            True if this call created them all, False if there was one of such a name before.

        Raises:
            NotDurableError: this call created one, and the disk failed to make its name permanent.
            StorageError: not all were created, those behind the one that failed above all; or no answer that
                is true came back.
        """
        for key, _ in objects:
            check_key(key)
            self.refuse_writing()
        with _explained_if_gone([data for _, data in objects]):
            return self._put_idempotent(objects)

    def _put_idempotent(self, objects: Sequence[tuple[str, Buffer | pathlib.Path]]) -> bool:
        return all(self._put_again(key, data) for key, data in objects)

    def _put_again(self, key: str, data: Buffer | pathlib.Path) -> bool:
        unknown: UnknownOutcomeError | None = None
        for _ in range(_MAX_PUTS):
            try:
                if self.put_if_absent(key, data, move=isinstance(data, os.PathLike)):
                    return True
            except NotDurableError:
                raise
            except UnknownOutcomeError as error:
                unknown = error
            # Neither no answer nor a 412, which something in between may give, tells what is there.
            if self.head(key) is not None:
                return unknown is not None
            # The file is gone only where an object was made of it, which may appear yet.
            if isinstance(data, os.PathLike) and not os.path.exists(data):
                break
        what = "an object could not be stored: no answer came back, or it was said to be there and is not"
        raise StorageError(what, url=self.url_of(key)) from unknown

    def put_and_confirm(self, key: str, data: Buffer) -> bool:
        """Create an object as `put_if_absent` does, and make sure that it is this one that is.

        For what must not be lost once it is acknowledged. A store that looks first and writes then may let
        two writers create one object; `put_if_absent` believes what it is told, this call reads it back.

        Args:
            key: its name, relative to the root.
            data: its bytes.

        Returns:
            True if this call created the object, False if another one of that name is there.

        Raises:
            UnknownOutcomeError: no answer came back, or the object could not be read back.
            StorageError: it was not created, or the store is read-only.
        """
        return self.put_if_absent(key, data)

    def overwrite(self, key: str, data: Buffer | pathlib.Path) -> None:
        """Write an object atomically, replacing any that exists.

        For hints, which no reader trusts, and for damaged objects.

        Args:
            key: its name, relative to the root.
            data: its bytes, or the path of a local file that holds them.

        Raises:
            StorageError: it was not written.
        """
        check_key(key)
        self.refuse_writing()
        self._overwrite(key, data)

    def get(self, key: str, *, max_bytes: int) -> bytes:
        """Return a whole object.

        Raises:
            NotFoundError: there is none.
            FormatError: it is larger than `max_bytes`; found out before anything of that size is allocated.
            DeniedError: it may not be read; where the caller may not list either, also of what is absent.
            StorageError: the environment failed.
        """
        check_key(key)
        return self._get(key, max_bytes)

    def concurrently(self, call: Callable[[T], R], items: Sequence[T]) -> Generator[R, None, None]:
        """Yield `call(item)` for each item, in order; calls that wait for remote responses wait side by side.

        Args:
            call: uses this store, and may be called by several threads at once.
            items: are passed to it; a few more of them than the results taken.
        """
        yield from map(call, items)

    def head(self, key: str) -> ObjectInfo | None:
        """Return size and ETag of an object, or None if there is none.

        Raises:
            StorageError: the environment failed.
        """
        check_key(key)
        return self._head(key)

    def list(self, prefix: str = "", *, linked: bool = False) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`, however deep, by rising key.

        A missing folder is an empty one. Temporaries are left out.

        Args:
            prefix: of the keys.
            linked: in local folders, also what is behind links to folders, for callers that only read;
                otherwise such folders are left out, since what is in them is not below the root.

        Raises:
            CannotListError: this kind of place has no listings.
            MissingBucketError: there is no such bucket.
            StorageError: the environment failed.
        """
        check_prefix(prefix)
        return self._list(prefix, linked=linked)

    def delete(self, key: str) -> bool:
        """Remove one object; return False if there was none.

        Raises:
            StorageError: the environment failed.
        """
        check_key(key)
        self.refuse_writing()
        return self._delete(key)

    @abc.abstractmethod
    def open(self, key: str, *, size: int | None = None, stable: bool = False, etag: str = "") -> DataFile:
        """Return a reader of one data object.

        Args:
            key: name of the object, relative to the root.
            size: its size if known, which saves a request; local files are measured all the same.
            stable: shardio wrote it, so it is never truncated and may be mapped.
            etag: its ETag if known; remote responses with another are refused (`ChangedObjectError`), as are
                those with another size than the one given, and those that differ from earlier responses.

        Raises:
            NotFoundError: there is no such object; a remote store may find out at the first read instead.
            StorageError: the environment failed.
        """

    def list_temporaries(self) -> Iterator[ObjectInfo]:
        """Yield what interrupted writes left behind.

        A temporary may belong to a writer that is still at work; whether it does, the caller has to know.

        Raises:
            StorageError: the environment failed.
        """
        return iter(())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redact(self.url)!r})"

    def _too_large(self, key: str, size: int, max_bytes: int) -> FormatError:
        what = "the object is larger than it may be"
        return FormatError(what, url=self.url_of(key), expected=f"at most {max_bytes} bytes", found=size)

    # The primitives of a backend; keys are checked, and writing is allowed, when these are called.

    @abc.abstractmethod
    def _put_if_absent(self, key: str, data: Buffer | pathlib.Path, *, move: bool) -> bool: ...

    @abc.abstractmethod
    def _overwrite(self, key: str, data: Buffer | pathlib.Path) -> None: ...

    @abc.abstractmethod
    def _get(self, key: str, max_bytes: int) -> bytes: ...

    @abc.abstractmethod
    def _head(self, key: str) -> ObjectInfo | None: ...

    @abc.abstractmethod
    def _list(self, prefix: str, *, linked: bool) -> Iterator[ObjectInfo]: ...

    @abc.abstractmethod
    def _delete(self, key: str) -> bool: ...


@contextlib.contextmanager
def _explained_if_gone(contents: Sequence[Buffer | pathlib.Path]) -> Iterator[None]:
    """Say which file is gone that was to be stored."""
    try:
        yield
    except FileNotFoundError as error:
        gone = [os.fspath(each) for each in contents if isinstance(each, os.PathLike)]
        gone = [path for path in gone if not os.path.exists(path)] or gone
        if isinstance(error, ShardioError) or not gone:
            raise
        what = "the file that was to be stored is gone"
        advice = "keep its folder while a write runs, or name another with spool_dir="
        raise StorageError(what, url=gone[0], advice=advice) from error
