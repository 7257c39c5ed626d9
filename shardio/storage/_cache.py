"""A cache of verified blocks on local disk, shared by any number of processes, correct without any lock.

It is only a cache: an entry is one file that carries its own name, length and CRC-32C and is checked at every
read, so whatever others do to the folder, a lookup gives the bytes that were stored under that very name, or
nothing.  Entries appear by rename; no process waits for another.  A disk that is full,
read-only or broken means uncached reads and one warning.  Only files that it made are ever removed: those
under its own folder, with its own kind of name, that begin with its magic.

Names must say what the bytes are (shard, block and checksum): an entry is never looked at for freshness.

    "SHRDBLK1" | u32 CRC-32C of all that follows | u32 name length | u64 data length | name | data
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import re
import secrets
import socket
import stat
import struct
from typing import TYPE_CHECKING, NamedTuple

import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BlockCache", "CacheOptions", "CacheUsage"]

_log = logging.getLogger("shardio")
_FOLDER = "shardio-blocks-1"
_ENTRY = re.compile(r"[0-9a-f]{62}\.block")
_HALF = re.compile(r"\.shardio-half-([0-9a-f]{16})-(\d+)-[0-9a-f]{16}")
_MAGIC = b"SHRDBLK1"
_CRC = struct.Struct("<I")
_LENGTHS = struct.Struct("<IQ")
_HEAD = len(_MAGIC) + _CRC.size + _LENGTHS.size
_READ = (
    os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
)
# A process looks at the whole folder again after adding this share of it, and then makes room for eight such
# shares: up to eight writers at once stay within the bound, and each further one may exceed it by one share.
_SHARES = 64
_ROOM = 8
_SKIPPED = 256  # entries not stored after a failed one, before the disk is tried again


@dataclasses.dataclass(frozen=True)
class CacheOptions:
    """Where blocks are cached and how many bytes they may take.

    Attributes:
        dir: a folder that only you can write, on a local disk; the cache makes a subfolder of its own in it.
        max_bytes: bound of all entries together, of all processes.
    """

    dir: str | os.PathLike[str]
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, found {self.max_bytes}")


class CacheUsage(NamedTuple):
    """What lies in a cache: number of entries, their bytes on disk, the folder."""

    entries: int
    num_bytes: int
    folder: str


class _Found(NamedTuple):
    used_ns: int
    size: int
    path: str


class BlockCache:
    """Blocks by name; safe to share among threads and processes, and to use after a fork.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cache = BlockCache(CacheOptions(folder, max_bytes=1 << 20))
        ...     cache.put("shard-0/block-7/crc-89abcdef", b"the block's bytes")
        ...     cache.get("shard-0/block-7/crc-89abcdef"), cache.get("another")
        (b"the block's bytes", None)
    """

    def __init__(self, options: CacheOptions) -> None:
        self.options = options
        self._root = os.path.join(os.path.abspath(os.fspath(options.dir)), _FOLDER)
        self._share = max(1, options.max_bytes // _SHARES)
        # Bytes added since this process last looked at the folder; it has not looked yet.
        self._added = self._share
        self._warned = False
        self._pause = 0

    def __reduce__(self) -> tuple[object, ...]:
        return BlockCache, (self.options,)

    def get(self, name: str) -> bytes | None:
        """Return the bytes stored under `name`, or None if they are not there, damaged, or out of reach."""
        path = self._path(name)
        try:
            number = os.open(path, _READ)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        try:
            content = _content(number)
            data = None if content is None else _unpack(content, name.encode())
            if data is not None:
                with contextlib.suppress(OSError):
                    os.utime(number if os.utime in os.supports_fd else path)
        except OSError as error:
            self._warn(error)
            return None
        finally:
            os.close(number)
        return data

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Store bytes under `name` if the disk allows; never raises for the disk's sake."""
        size = _HEAD + len(name.encode()) + len(data)
        if size > self._share * _ROOM:
            # It would push out a good part of everything else.
            return
        if self._pause > 0:
            self._pause -= 1
            return
        try:
            if self._added + size > self._share:
                self._make_room()
            self._write(self._path(name), _pack(name.encode(), data))
            self._added += size
        except OSError as error:
            self._pause = _SKIPPED
            self._warn(error)

    def usage(self) -> CacheUsage:
        """Count what lies in the cache."""
        found = list(self._entries())
        return CacheUsage(len(found), sum(entry.size for entry in found), self._root)

    def clear(self) -> CacheUsage:
        """Remove all entries, and what killed writers left; return how many entries it removed."""
        removed = [entry.size for entry in self._entries() if _is_ours(entry.path) and _remove(entry.path)]
        self._remove_halves(all_of_them=True)
        for folder in (*self._folders(), self._root):
            # Not empty where other programs keep something in it.
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return CacheUsage(len(removed), sum(removed), self._root)

    def _path(self, name: str) -> str:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return os.path.join(self._root, digest[:2], f"{digest[2:]}.block")

    def _write(self, path: str, content: bytes) -> None:
        folder = os.path.dirname(path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        half = os.path.join(folder, f".shardio-half-{_host()}-{os.getpid()}-{secrets.token_hex(8)}")
        number = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            try:
                view = memoryview(content)
                while view:
                    view = view[os.write(number, view) :]
            finally:
                os.close(number)
            # What stands under our name and is not ours stays; then there is no room for the entry.
            if _is_ours(path) or not os.path.lexists(path):
                os.replace(half, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(half)

    def _make_room(self) -> None:
        """Remove the entries used longest ago until there is room for what comes next."""
        self._remove_halves(all_of_them=False)
        found = sorted(self._entries())
        total = sum(entry.size for entry in found)
        allowed = self.options.max_bytes - self._share * _ROOM
        for entry in found:
            if total <= allowed:
                break
            if _remove(entry.path):
                total -= entry.size
        self._added = 0

    def _folders(self) -> Iterator[str]:
        for number in range(256):
            yield os.path.join(self._root, f"{number:02x}")

    def _files(self) -> Iterator[os.DirEntry[str]]:
        for folder in self._folders():
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                yield from entries

    def _entries(self) -> Iterator[_Found]:
        for entry in self._files():
            if _ENTRY.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(info.st_mode):
                        yield _Found(max(info.st_mtime_ns, info.st_atime_ns), info.st_size, entry.path)

    def _remove_halves(self, *, all_of_them: bool) -> None:
        """Remove half-written files of writers on this machine that are no more."""
        for entry in self._files():
            match = _HALF.fullmatch(entry.name)
            if match and (all_of_them or (match[1] == _host() and not _is_alive(int(match[2])))):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            reason = error.strerror or str(error)
            _log.warning("the block cache in %s is out of order (%s); reading without it", self._root, reason)


def _pack(name: bytes, data: bytes | memoryview) -> bytes:
    body = b"".join((_LENGTHS.pack(len(name), len(data)), name, data))
    return b"".join((_MAGIC, _CRC.pack(crc32c.crc32c(body)), body))


def _unpack(content: bytes, name: bytes) -> bytes | None:
    """Return the data if the entry is whole and bears this name."""
    if len(content) < _HEAD or not content.startswith(_MAGIC):
        return None
    body = memoryview(content)[len(_MAGIC) + _CRC.size :]
    name_bytes, data_bytes = _LENGTHS.unpack_from(body)
    start = _LENGTHS.size + name_bytes
    if len(body) != start + data_bytes or body[_LENGTHS.size : start] != name:
        return None
    if crc32c.crc32c(body) != _CRC.unpack_from(content, len(_MAGIC))[0]:
        return None
    return bytes(body[start:])


def _content(number: int) -> bytes | None:
    info = os.fstat(number)
    if not stat.S_ISREG(info.st_mode):
        return None
    # Read, not mapped: another process may truncate the file, and a mapped one would then kill the process.
    parts = []
    while piece := os.read(number, 1 << 20 if info.st_size > 1 << 20 else info.st_size + 1):
        parts.append(piece)
    return b"".join(parts)


def _is_ours(path: str) -> bool:
    """Tell whether a file that has an entry's name was made by a cache."""
    try:
        number = os.open(path, _READ)
    except OSError:
        return False
    try:
        start = os.read(number, len(_MAGIC))
    except OSError:
        return False
    finally:
        os.close(number)
    # After a power failure a file may be empty, or zeros.
    return start == _MAGIC or not start.strip(b"\0")


def _remove(path: str) -> bool:
    """Remove an entry if it is one; False if it is another program's file."""
    if not _is_ours(path):
        return not os.path.lexists(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return True


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:16]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
