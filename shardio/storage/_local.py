"""Local folders: `pread` for what others may truncate, maps for what we wrote; creation is in `_create`.

Maps of whole files keep no descriptor: Python's own `mmap` keeps a copy of it for as long as the map lives
(until 3.13, `trackfd=False`), and a reader of a few hundred shards would use up the 1,024 that a process
usually has.  Descriptors that can be given back are, when they run out.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import pathlib
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import Any, NoReturn, Protocol

import numpy as np

from shardio.errors import NotFoundError, ShardioError, StorageError
from shardio.ranges import coalesce, scatter
from shardio.storage._create import create, make_folders, replace
from shardio.storage._keys import check_key, is_temporary
from shardio.storage._store import (
    Buffer,
    DataFile,
    NotDurableError,
    ObjectInfo,
    Offsets,
    Store,
    UnknownOutcomeError,
    short_read,
)

_DONT_NEED = 4  # MADV_DONTNEED
_FAILED = ctypes.c_void_p(-1).value
_NONE_LEFT = {errno.EMFILE, errno.ENFILE}


class DescriptorUser(Protocol):
    """Something that holds descriptors which it can open again."""

    def release_descriptors(self) -> bool:
        """Close some; False where there are none to close."""


# Asked when the process, or the machine, has no descriptor left.
descriptor_users: weakref.WeakSet[DescriptorUser] = weakref.WeakSet()


def open_file(path: str, flags: int) -> int:
    """Open a file; where descriptors have run out, those that can be given back are, and it is tried again.

    Raises:
        OSError: what the operating system said.
    """
    while True:
        try:
            return os.open(path, flags)
        except OSError as error:
            if error.errno not in _NONE_LEFT:
                raise
            if not any([user.release_descriptors() for user in list(descriptor_users)]):  # noqa: C419 - all of them
                raise


def descriptor_limit() -> int:
    """Return how many descriptors this process may have."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return sys.maxsize
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def map_file(number: int, size: int) -> memoryview:
    """Return a whole file, of at least one byte, as a read-only view; `number` may be closed afterwards.

    Raises:
        OSError, ValueError: it cannot be mapped.
    """
    calls = _system_calls()
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(number, size, access=mmap.ACCESS_READ, trackfd=False))
    if calls is None:
        return memoryview(mmap.mmap(number, size, access=mmap.ACCESS_READ))
    # The view holds the array, the array the map: the last reference to go unmaps.
    return memoryview(np.asarray(_Map(calls, number, size)))


class _Map:
    """Memory that NumPy looks into; unmapped with its last reference."""

    def __init__(self, calls: Any, number: int, size: int) -> None:
        self._address = None
        address = calls.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, number, 0)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._address = address
        self._size = size
        self._unmap = calls.munmap
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, True),  # read-only
        }

    def __del__(self) -> None:
        if self._address is not None:
            self._unmap(self._address, self._size)


@functools.cache
def _system_calls() -> Any:
    """Return the C library, or None where it has no such calls."""
    if sys.platform == "win32":
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
        )  # fmt: skip
        library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    except (OSError, AttributeError):
        return None
    return library


# A system call costs what copying some 16 KiB does; longer merged reads than 8 MiB save nothing.
_GAP = 16 << 10
_LONGEST = 8 << 20
_ABSENT = (FileNotFoundError, NotADirectoryError)
# Without O_NONBLOCK, opening a named pipe would wait for its writer.
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class LocalFile(DataFile):
    """One local file, read by position, so threads and forked children may share it."""

    def __init__(self, path: str, *, stable: bool = False) -> None:
        self.url = path
        self._number = -1
        try:
            number = open_file(path, _READ)
        except OSError as error:
            _explain(error, path)
        self._number = number
        try:
            info = os.fstat(number)
        except OSError as error:
            self._close_number()
            _explain(error, path)
        if not stat.S_ISREG(info.st_mode):
            self._close_number()
            raise NotFoundError("this is not a file", url=path)
        self._size = info.st_size
        self._view = self._mapped() if stable else None
        if self._view is not None:
            # A map needs no descriptor.  Here and not later: no other thread knows this number yet.
            self._close_number()

    def _mapped(self) -> memoryview | None:
        if self._size == 0:
            return memoryview(b"")
        try:
            return map_file(self._number, self._size)
        except (OSError, ValueError):
            # Out of address space, or a mount that cannot map: reading still works.
            return None

    @property
    def size(self) -> int:
        return self._size

    def read(self, start: int, stop: int) -> memoryview:
        if not 0 <= start <= stop:
            raise ValueError(f"a byte range needs 0 <= start <= stop, found [{start}, {stop})")
        # The file may have shrunk since, so no length from outside sizes a buffer before the file is known
        # to be that long.
        if stop > self._size:
            raise short_read(self.url, start, stop, self._size)
        data = self._pread(stop - start, start)
        if len(data) != stop - start:
            raise short_read(self.url, start, stop, start + len(data))
        return memoryview(data)

    def _pread(self, length: int, start: int) -> bytes:
        view = self._view
        if view is not None:
            return bytes(view[start : start + length])
        try:
            data = os.pread(self._number, length, start)
            while len(data) < length:
                # One call returns at most 2 GiB, and less where a signal came in between.
                more = os.pread(self._number, length - len(data), start + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            if self._number < 0:
                raise ValueError(f"{self.url} was read after it was closed") from None
            _explain(error, self.url)
        return data

    def read_many(self, starts: Offsets, stops: Offsets) -> list[memoryview]:
        if len(starts) == 1 == len(stops):
            return [self.read(int(starts[0]), int(stops[0]))]
        merged = coalesce(starts, stops, gap=_GAP, max_bytes=_LONGEST)
        return scatter([self.read(start, stop) for start, stop in merged.ranges], merged)

    def map(self) -> memoryview | None:
        return self._view

    def drop_pages(self) -> None:
        calls = _system_calls()
        if self._view and calls is not None and sys.platform.startswith("linux"):
            address = np.frombuffer(self._view, np.uint8).ctypes.data
            calls.madvise(address, len(self._view), _DONT_NEED)

    def close(self) -> None:
        self._view = None
        self._close_number()

    def _close_number(self) -> None:
        number, self._number = self._number, -1
        if number >= 0:
            # Says nothing, as the system has nothing to say of what was only read; and Ctrl-C cannot come
            # between these lines, which it could where a function of ours was called.
            os.closerange(number, number + 1)

    def __del__(self) -> None:
        try:
            if self._number >= 0:
                self.close()
        except BaseException:
            # Ctrl-C came before the descriptor was given back, and this is not called again.
            self._close_number()
            raise


class LocalStore(Store):
    """Files under a local folder."""

    is_local = True

    def __init__(self, path: str, *, single_writer: bool = False) -> None:
        self.url = path
        self._base = path if path.endswith(os.sep) else path + os.sep
        self._single_writer = single_writer

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(LocalStore, single_writer=self._single_writer), (self.url,)

    def open(self, key: str, *, size: int | None = None, stable: bool = False, etag: str = "") -> LocalFile:
        del size, etag
        check_key(key)
        return LocalFile(self._path(key), stable=stable)

    def _path(self, key: str) -> str:
        # As text: where drives have letters, `os.path.join` would leave the root for some keys.
        return self._base + (key if os.sep == "/" else key.replace("/", os.sep))

    def _put_if_absent(self, key: str, data: Buffer | pathlib.Path, *, move: bool) -> bool:
        return self._create([(key, data)], move=move)[0]

    def _put_idempotent(self, objects: Sequence[tuple[str, Buffer | pathlib.Path]]) -> bool:
        try:
            return all(self._create(objects, move=True))
        except NotDurableError:
            raise
        except UnknownOutcomeError:
            # Those that are there were created by this call, or are the same.
            for key, data in objects:
                self._put_again(key, data)
            return True

    def _create(self, objects: Sequence[tuple[str, Buffer | pathlib.Path]], *, move: bool) -> list[bool]:
        named = [(self._path(key), data) for key, data in objects]
        try:
            for folder in {os.path.dirname(path) for path, _ in named}:
                make_folders(folder, root=self.url)
            return create(named, move=move, single_writer=self._single_writer)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and any(
                isinstance(data, os.PathLike) and not os.path.exists(data) for _, data in objects
            ):
                raise  # it is not the way to the object that is absent: `put_if_absent` says so
            _explain_write(error, named[0][0])

    def _overwrite(self, key: str, data: Buffer | pathlib.Path) -> None:
        path = self._path(key)
        try:
            make_folders(os.path.dirname(path), root=self.url)
            replace(path, data)
        except OSError as error:
            _explain_write(error, path)

    def _get(self, key: str, max_bytes: int) -> bytes:
        file = LocalFile(self._path(key))
        try:
            size = file.size
            if size > max_bytes:
                raise self._too_large(key, size, max_bytes)
            return bytes(file.read(0, size))
        finally:
            file.close()

    def _head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            info = os.stat(path)
        except _ABSENT:
            return None
        except OSError as error:
            _explain(error, path)
        return _describe(key, info) if stat.S_ISREG(info.st_mode) else None

    def _list(self, prefix: str, *, linked: bool) -> Iterator[ObjectInfo]:
        return (info for info in self._walk(prefix, linked=linked) if not is_temporary(info.key))

    def list_temporaries(self) -> Iterator[ObjectInfo]:
        return (info for info in self._walk("", linked=False) if is_temporary(info.key))

    def _walk(self, prefix: str, *, linked: bool) -> Iterator[ObjectInfo]:
        """Yield files by rising key: a folder sorts as its name with a slash, as keys do."""
        folder, _, _ = prefix.rpartition("/")
        if folder and not linked:
            parts = folder.split("/")
            above = (os.path.join(self.url, *parts[: depth + 1]) for depth in range(len(parts)))
            if any(os.path.islink(path) for path in above):
                return
        seen: frozenset[tuple[int, int]] | None = frozenset() if linked else None
        yield from self._walk_folder(f"{folder}/" if folder else "", prefix, seen)

    def _walk_folder(
        self, base: str, prefix: str, above: frozenset[tuple[int, int]] | None
    ) -> Iterator[ObjectInfo]:
        """Walk a folder; `above` are those above it, where links to folders are followed, else None."""
        path = os.path.join(self.url, *base.split("/"))
        follow = above is not None
        try:
            here = os.stat(path)
            with os.scandir(path) as entries:
                found = [
                    (base + e.name + ("/" if e.is_dir(follow_symlinks=follow) else ""), e) for e in entries
                ]
        except _ABSENT:
            return
        except OSError as error:
            _explain(error, path)
        identity = here.st_dev, here.st_ino
        if above is not None:
            if identity in above:
                # A symbolic link leads back up.
                return
            above |= {identity}
        for name, entry in sorted(found, key=lambda pair: pair[0]):
            if name.endswith("/") and (name.startswith(prefix) or prefix.startswith(name)):
                yield from self._walk_folder(name, prefix, above)
            elif name.startswith(prefix):
                try:
                    info = entry.stat()
                except _ABSENT:
                    continue
                except OSError as error:
                    _explain(error, os.path.join(path, entry.name))
                if stat.S_ISREG(info.st_mode):
                    yield _describe(name, info)

    def _delete(self, key: str) -> bool:
        """Remove a file below the root; links on the way are not followed, so nothing outside is removed."""
        path = above = self._path(key)
        try:
            while len(above := os.path.dirname(above)) > len(self.url):
                if os.path.islink(above):
                    what = "a file to remove is behind a link, and nothing outside of the dataset is removed"
                    advice = "remove the link, or what it leads to, by hand"
                    raise StorageError(what, url=path, advice=advice)
            if stat.S_ISDIR(os.lstat(path).st_mode):
                return False
            os.unlink(path)
        except _ABSENT:
            return False
        except OSError as error:
            _explain(error, path)
        return True


def linked_folders(store: Store, prefix: str) -> tuple[str, ...]:
    """Return the folders on the way to a prefix, or right below it, that `Store.list` leaves out: links.

    Args:
        store: only of local folders there are such.
        prefix: of the keys; ends with a slash.

    Raises:
        StorageError: the environment failed.
    """
    if not isinstance(store, LocalStore):
        return ()
    folder = store.url
    parts = prefix.rstrip("/").split("/")
    for depth, part in enumerate(parts):
        folder = os.path.join(folder, part)
        if os.path.islink(folder):
            return ("/".join(parts[: depth + 1]),)
    try:
        with os.scandir(folder) as entries:
            names = sorted(e.name for e in entries if e.is_symlink() and e.is_dir())
    except _ABSENT:
        return ()
    except OSError as error:
        _explain(error, folder)
    return tuple(prefix + name for name in names)


def _describe(key: str, info: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, info.st_size, str(info.st_mtime_ns))


@contextlib.contextmanager
def files_of_callers(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say what is wrong where a file that a caller named beside a dataset cannot be read or written.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read or written.
    """
    try:
        yield
    except ShardioError:
        raise
    except OSError as error:
        _explain(error, os.path.abspath(path))


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """Say what is wrong where temporary files cannot be written or read; also decorates functions.

    Raises:
        StorageError: instead of every OSError but those that are errors of shardio.
    """
    try:
        yield
    except ShardioError:
        raise
    except OSError as error:
        raise StorageError(
            "a temporary file cannot be written or read",
            url=tempfile.gettempdir(),
            found=error.strerror or str(error),
            advice="nothing was published; make room there, or name another folder with TMPDIR",
        ) from error


def _explain_write(error: OSError, path: str) -> NoReturn:
    """Raise the error of our tree for a write that failed: what is absent on its way is the disk's doing."""
    if isinstance(error, _ABSENT) and not isinstance(error, NotFoundError):
        what = f"the filesystem refused: {error.strerror or error}"
        advice = "a folder on the way is a file, or was removed meanwhile"
        raise StorageError(what, url=path, advice=advice) from error
    _explain(error, path)


def _explain(error: OSError, path: str) -> NoReturn:
    """Raise the error of our tree for what the operating system said."""
    if isinstance(error, StorageError):
        raise error
    if isinstance(error, _ABSENT):
        raise NotFoundError("there is no such file", url=path) from None
    advice = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some of your quota",
        errno.EROFS: "the disk is mounted read-only",
        errno.EACCES: "check the permissions of the file and of the folders above it",
        errno.EMFILE: "too many files are open in this process",
        errno.EISDIR: "it is a folder; name a file",
        errno.ENAMETOOLONG: "shorten the name",
    }.get(error.errno or 0)
    what = f"the filesystem refused: {error.strerror or error}"
    raise StorageError(what, url=path, advice=advice) from error


@contextlib.contextmanager
def locked(file: FileIO | int, patience: float) -> Iterator[bool]:
    """Hold a lock on an open local file against other processes and threads; yield whether it is held.

    A process that was stopped with the lock would stop all others, and not all filesystems have locks. So
    this waits for `patience` seconds only, and goes on without.
    """
    held = False
    if sys.platform != "win32":
        import fcntl

        end = time.monotonic() + patience
        # Other errors than this one: the filesystem has no locks.
        with contextlib.suppress(OSError):
            while not held:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    held = True
                except BlockingIOError:
                    if time.monotonic() >= end:
                        break
                    time.sleep(0.002)
    try:
        yield held
    finally:
        if held:
            # Closing would not do where a process was forked meanwhile, which has the same open file.
            fcntl.flock(file, fcntl.LOCK_UN)
