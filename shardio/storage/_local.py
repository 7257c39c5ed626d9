"""Local folders: exclusive durable creation, `pread` for what others may truncate, maps for what we wrote."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from typing import TYPE_CHECKING, NoReturn

from shardio.errors import FormatError, NotFoundError, StorageError
from shardio.ranges import coalesce, scatter
from shardio.storage._create import create, make_folders, replace
from shardio.storage._face import DataFile, ObjectInfo, ShortReadError, Store
from shardio.storage._keys import check_key, is_temporary

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from shardio.storage._face import Buffer, Offsets

__all__ = ["LocalFile", "LocalStore"]

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
            number = os.open(path, _READ)
        except OSError as error:
            _explain(error, path)
        info = os.fstat(number)
        if not stat.S_ISREG(info.st_mode):
            os.close(number)
            what = "this is not a file"
            raise NotFoundError(what, url=path)
        self._number = number
        self._size = info.st_size
        self._view = self._mapped() if stable else None
        if self._view is not None:
            # A mapping has a descriptor of its own; of hundreds of open shards each one counts.  Here and not
            # later: nobody else knows this number yet.
            self._close_number()

    def _mapped(self) -> memoryview | None:
        if self._size == 0:
            return memoryview(b"")
        try:
            return memoryview(mmap.mmap(self._number, self._size, access=mmap.ACCESS_READ))
        except (OSError, ValueError):
            # Out of address space, or a mount that cannot map: reading still works.
            return None

    @property
    def size(self) -> int:
        return self._size

    def read(self, start: int, stop: int) -> memoryview:
        if not 0 <= start <= stop:
            msg = f"a byte range needs 0 <= start <= stop, found [{start}, {stop})"
            raise ValueError(msg)
        # The file may have shrunk since, so no length from outside sizes a buffer before the file is known
        # to be that long.
        if stop > self._size:
            self._refuse(start, stop, max(0, min(self._size, stop) - start))
        data = self._pread(stop - start, start)
        if len(data) != stop - start:
            self._refuse(start, stop, len(data))
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
                msg = f"{self.url} was read after it was closed"
                raise ValueError(msg) from None
            _explain(error, self.url)
        return data

    def _refuse(self, start: int, stop: int, found: int) -> NoReturn:
        what = "the file ends before the bytes asked for"
        raise ShortReadError(what, url=self.url, start=start, stop=stop, expected=stop - start, found=found)

    def read_many(self, starts: Offsets, stops: Offsets) -> list[memoryview]:
        merged = coalesce(starts, stops, gap=_GAP, max_bytes=_LONGEST)
        pairs = zip(merged.starts.tolist(), merged.stops.tolist(), strict=True)
        return scatter([self.read(start, stop) for start, stop in pairs], merged, starts, stops)

    def map(self) -> memoryview | None:
        return self._view

    def close(self) -> None:
        self._view = None
        self._close_number()

    def _close_number(self) -> None:
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


class LocalStore(Store):
    """Files under a local folder."""

    is_local = True

    def __init__(self, path: str, *, single_writer: bool = False) -> None:
        self.url = path
        self._single_writer = single_writer

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.url, self._single_writer)

    def open(self, key: str, *, size: int | None = None, stable: bool = False, stamp: str = "") -> LocalFile:
        del size, stamp
        return LocalFile(self._path(key), stable=stable)

    def _path(self, key: str) -> str:
        check_key(key)
        return os.path.join(self.url, *key.split("/"))

    def _put_new(self, key: str, data: Buffer | pathlib.Path, *, move: bool) -> bool:
        path = self._path(key)
        try:
            make_folders(os.path.dirname(path))
            return create(path, data, move=move, single_writer=self._single_writer)
        except OSError as error:
            _explain(error, path)

    def _put_hint(self, key: str, data: Buffer) -> None:
        path = self._path(key)
        try:
            make_folders(os.path.dirname(path))
            replace(path, data)
        except OSError as error:
            _explain(error, path)

    def _get(self, key: str, max_bytes: int) -> bytes:
        with self.open(key) as file:
            if file.size > max_bytes:
                what = "the object is larger than it may be"
                raise FormatError(
                    what, url=self.url_of(key), expected=f"at most {max_bytes} bytes", found=file.size
                )
            return bytes(file.read(0, file.size))

    def _head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            info = os.stat(path)
        except _ABSENT:
            return None
        except OSError as error:
            _explain(error, path)
        return _describe(key, info) if stat.S_ISREG(info.st_mode) else None

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        return (info for info in self._walk(prefix) if not is_temporary(info.key))

    def list_temporaries(self) -> Iterator[ObjectInfo]:
        return (info for info in self._walk("") if is_temporary(info.key))

    def delete_temporary(self, temporary: ObjectInfo) -> bool:
        if not is_temporary(temporary.key):
            msg = f"{temporary.key!r} is not a temporary; delete() removes objects"
            raise ValueError(msg)
        return _unlink(os.path.join(self.url, *temporary.key.split("/")))

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield files by rising key: a folder sorts as its name with a slash, as keys do."""
        folder, _, _ = prefix.rpartition("/")
        seen: set[tuple[int, int]] = set()
        yield from self._walk_folder(f"{folder}/" if folder else "", prefix, seen)

    def _walk_folder(self, base: str, prefix: str, above: set[tuple[int, int]]) -> Iterator[ObjectInfo]:
        path = os.path.join(self.url, *base.split("/"))
        try:
            here = os.stat(path)
            with os.scandir(path) as entries:
                found = [(base + e.name + ("/" if e.is_dir() else ""), e) for e in entries]
        except _ABSENT:
            return
        except OSError as error:
            _explain(error, path)
        identity = here.st_dev, here.st_ino
        if identity in above:
            # A symbolic link leads back up.
            return
        for name, entry in sorted(found, key=lambda pair: pair[0]):
            if name.endswith("/") and (name.startswith(prefix) or prefix.startswith(name)):
                yield from self._walk_folder(name, prefix, above | {identity})
            elif name.startswith(prefix):
                try:
                    info = entry.stat()
                except _ABSENT:
                    continue
                if stat.S_ISREG(info.st_mode):
                    yield _describe(name, info)

    def _delete(self, key: str) -> bool:
        return _unlink(self._path(key))


def _rebuild(url: str, single_writer: bool) -> LocalStore:  # noqa: FBT001 - pickle passes by position
    return LocalStore(url, single_writer=single_writer)


def _describe(key: str, info: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, info.st_size, str(info.st_mtime_ns))


def _unlink(path: str) -> bool:
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return False
        os.unlink(path)
    except _ABSENT:
        return False
    except OSError as error:
        _explain(error, path)
    return True


def _explain(error: OSError, path: str) -> NoReturn:
    """Raise the error of our tree for what the operating system said."""
    if isinstance(error, StorageError):
        raise error
    if isinstance(error, _ABSENT):
        what = "there is no such file"
        raise NotFoundError(what, url=path) from None
    advice = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some of your quota",
        errno.EROFS: "the disk is mounted read-only",
        errno.EACCES: "check the permissions of the file and of the folders above it",
        errno.EMFILE: "too many files are open in this process",
        errno.ENAMETOOLONG: "shorten the name",
    }.get(error.errno or 0)
    what = f"the filesystem refused: {error.strerror or error}"
    raise StorageError(what, url=path, advice=advice) from error
