"""Files of a source: found by URL, folder, pattern or list, with their splits; read whole or as a stream.

Names that are no text, empty files, and files that are something else are told apart here, and none is
dropped without a word.
"""

from __future__ import annotations

import fnmatch
import io
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from shardio.convert._source import Odd
from shardio.errors import FormatError, NotFoundError, UnsafeNameError
from shardio.format import Compression, decode_stream, sniff_compression
from shardio.storage import connect, url_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardio.storage import DataFile

__all__ = [
    "DecodedFile",
    "File",
    "Found",
    "SeekableFile",
    "find_files",
    "is_clutter",
    "read_whole",
    "split_of",
]

_PIECE = 1 << 20
_MAX_WHOLE = 1 << 30
# What systems and other tools leave beside data.
_CLUTTER = {"Thumbs.db", "desktop.ini", "_SUCCESS", "_metadata", "_common_metadata"}
_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "valid",
    "validation": "validation",
    "dev": "dev",
    "test": "test",
    "testing": "test",
}


class File(NamedTuple):
    """One file: root URL, key below it, stored bytes."""

    root: str
    key: str
    size: int

    @property
    def url(self) -> str:
        """Its URL."""
        return f"{self.root}/{self.key}"


@dataclass
class Found:
    """What lies at a place.

    Attributes:
        files: in the order of their names.
        odd: names that are no text.
        single: the place is one file.
    """

    files: list[File] = field(default_factory=list)
    odd: list[Odd] = field(default_factory=list)
    single: bool = False


def find_files(source: Any, storage_options: Mapping[str, Any] | None = None) -> Found:
    """Return the files of a source.

    Args:
        source: URL of a file or folder, a pattern such as `"shards/*.tar"`, or a list of URLs of files.
        storage_options: as in fsspec.

    Raises:
        NotFoundError: there is nothing.
        StorageError: the environment failed.
    """
    if isinstance(source, list | tuple):
        found = Found()
        for each in source:
            part = find_files(each, storage_options)
            found.files += part.files
            found.odd += part.odd
        return found
    url = url_text(source).rstrip("/") or "/"
    if any(mark in url for mark in "*?["):
        return _matching(url, storage_options)
    single = _one_file(url, storage_options)
    if single is not None:
        return Found([single], single=True)
    found = _below(url, storage_options)
    if not found.files and not found.odd:
        raise NotFoundError("there is nothing to convert here", url=url, advice="check the address")
    return found


def split_of(keys: Sequence[str]) -> Callable[[str], str]:
    """Return the function from key to split.

    The names of folders at the top (`train/`, `val/`, `test/` ...) are splits where all files lie in such
    folders, and
    so are the beginnings of the names (`train-00000-of-00512`) where all begin so; everything else is
    "train".
    """
    if keys and all("/" in key and key.split("/")[0].lower() in _SPLITS for key in keys):
        return _split_by_folder
    if keys and all(_by_name(key) is not None for key in keys):
        return _split_by_name
    return _always_train


def _split_by_folder(key: str) -> str:
    return _SPLITS[key.split("/", maxsplit=1)[0].lower()]


def _split_by_name(key: str) -> str:
    return _by_name(key) or "train"


def _always_train(key: str) -> str:
    del key
    return "train"


def _by_name(key: str) -> str | None:
    name = key.rpartition("/")[2].lower()
    stem = name
    for mark in "-_.0123456789":
        stem = stem.split(mark)[0]
    return _SPLITS.get(stem)


def read_whole(
    root: str, key: str, storage_options: Mapping[str, Any] | None, *, max_bytes: int = _MAX_WHOLE
) -> bytes:
    """Return a whole file, of at most 1 GiB."""
    return connect(root, storage_options=storage_options).get(key, max_bytes=max_bytes)


class SeekableFile(io.RawIOBase):
    """A stored object as a file that libraries read from, at any place."""

    def __init__(self, file: DataFile) -> None:
        super().__init__()
        self._file = file
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._file.size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the file goes."""
        view = memoryview(buffer).cast("B")
        stop = min(self._place + len(view), self._file.size)
        count = max(0, stop - self._place)
        if count:
            view[:count] = self._file.read(self._place, stop)
        self._place += count
        return count

    def size(self) -> int:
        """Return the size in bytes, as pyarrow asks for it."""
        return self._file.size

    def close(self) -> None:
        """Release the object."""
        if not self.closed:
            self._file.close()
        super().close()


class DecodedFile(io.RawIOBase):
    """The decoded bytes of a stored object from its start: plain, gzip or Zstandard, by its first bytes."""

    def __init__(self, file: DataFile, *, compressed: bool) -> None:
        super().__init__()
        self._file = file
        head = bytes(file.read(0, min(12, file.size)))
        compression = sniff_compression(head) if compressed else Compression.NONE
        self._pieces = decode_stream(_pieces(file), compression)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what comes next; 0 at the end."""
        while not len(self._rest):
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """Release the object."""
        if not self.closed:
            self._file.close()
        super().close()


def _pieces(file: DataFile) -> Iterator[bytes]:
    for start in range(0, file.size, _PIECE):
        yield bytes(file.read(start, min(start + _PIECE, file.size)))


def _one_file(url: str, storage_options: Mapping[str, Any] | None) -> File | None:
    folder, slash, name = url.rpartition("/")
    if not name or folder.endswith((":/", "::")):
        return None
    store = connect(folder or slash or ".", storage_options=storage_options)
    try:
        info = store.head(name)
    except UnsafeNameError as error:
        raise FormatError("the name of the file is not text", url=repr(url)) from error
    return None if info is None else File(store.url, name, info.size)


def _below(root: str, storage_options: Mapping[str, Any] | None) -> Found:
    store = connect(root, storage_options=storage_options)
    found = Found()
    for info in store.list(linked=True):
        if is_clutter(info.key):
            continue
        if _is_text(info.key):
            found.files.append(File(store.url, info.key, info.size))
        else:
            shown = f"{store.url}/{info.key}".encode(errors="backslashreplace").decode()
            found.odd.append(Odd(shown, "the name of the file is not UTF-8 text"))
    return found


def _matching(pattern: str, storage_options: Mapping[str, Any] | None) -> Found:
    parts = pattern.split("/")
    first = next(number for number, part in enumerate(parts) if any(mark in part for mark in "*?["))
    wanted = parts[first:]
    found = _below("/".join(parts[:first]) or ("/" if pattern.startswith("/") else "."), storage_options)
    found.files = [file for file in found.files if _matches(file.key.split("/"), wanted)]
    found.odd = []
    if not found.files:
        raise NotFoundError("no file matches the pattern", url=pattern)
    return found


def _matches(parts: list[str], patterns: list[str]) -> bool:
    """Tell whether a key matches, part by part; `**` stands for any number of folders."""
    if not patterns or not parts:
        return not parts and all(pattern == "**" for pattern in patterns)
    if patterns[0] == "**":
        return _matches(parts, patterns[1:]) or _matches(parts[1:], patterns)
    return fnmatch.fnmatchcase(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])


def is_clutter(key: str) -> bool:
    parts = key.split("/")
    return any(part.startswith(".") or part == "__MACOSX" for part in parts) or parts[-1] in _CLUTTER


def _is_text(key: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" or char < " " or char in "\x7f\\" for char in key)
