"""A cache of verified blocks on local disk, shared by any number of processes.

A file holds blocks of one group (32 consecutive blocks of a shard) and is named by the digest of the group's
first block. Runs of blocks are appended to it, each with one system call:

    "SHRDBLK3" | u32 CRC-32C of the head from here on | u32 blocks
    | of each block: 16 bytes digest of its name, u32 CRC-32C, u32 length    -- the head ends here
    | data

Digest and checksum are compared at every read, so whatever happens to the folder, a lookup returns the bytes
that were stored under that very name, or nothing. A process that is killed leaves at most a run that is cut
short; the next writer removes it. Locks only save work. Nothing about the disk ever fails a read.

Names must determine the content (shard, block and checksum): an entry's age is never considered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import logging
import os
import re
import stat
import struct
from typing import TYPE_CHECKING, NamedTuple

import crc32c

from shardio.storage._local import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_log = logging.getLogger("shardio")
_FOLDER = "shardio-blocks-3"
_ENTRY = re.compile(r"[0-9a-f]{64}\.block|[0-9a-f]{2}\.lock")
# How long another process is waited for that appends to the same file, or fetches the same blocks.
_APPEND_SECONDS, _FETCH_SECONDS = 1.0, 600.0
_MAGIC = b"SHRDBLK3"
_HEAD = struct.Struct("<8sII")  # magic, CRC-32C, blocks
_CHECKED = 12  # where the checksummed part of the head begins
_BLOCK = struct.Struct("<16sII")  # digest of the name, CRC-32C, length
_GROUP = 32  # blocks
_LONGEST_HEAD = _HEAD.size + _GROUP * _BLOCK.size
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
# A process lists the folder again after adding this share of the bound, and then makes room for eight such
# shares: the bound holds for up to eight concurrent writers, and each further one may exceed it by one share.
_SHARES, _ROOM = 64, 8


@dataclasses.dataclass(frozen=True)
class CacheOptions:
    """Where blocks are cached and how many bytes they may take.

    Attributes:
        dir: a folder on a local disk that only you can write; the cache creates a subfolder in it.
        max_bytes: bound of all entries together, whichever process stores them.
    """

    dir: str | os.PathLike[str]
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, found {self.max_bytes}")


class CacheUsage(NamedTuple):
    """What is in a cache: number of files, their bytes on disk, the folder."""

    entries: int
    num_bytes: int
    folder: str


class CachedBlocks(NamedTuple):
    """Blocks `[first, stop)` of a file, one after another."""

    first: int
    stop: int
    data: memoryview


class BlockCache:
    """Blocks by name; thread-safe, shared by processes, and usable after a fork.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cache = BlockCache(CacheOptions(folder, max_bytes=1 << 20))
        ...     cache.put("shard-0/block-7/crc-89abcdef", b"the block's bytes")
        ...     bytes(cache.get("shard-0/block-7/crc-89abcdef")), cache.get("another")
        (b"the block's bytes", None)
    """

    def __init__(self, options: CacheOptions) -> None:
        self.options = options
        self._root = os.path.join(os.path.abspath(os.fspath(options.dir)), _FOLDER)
        self._share = max(1, options.max_bytes // _SHARES)
        # Bytes added since this process last listed the folder, which it has not done yet.
        self._added = self._share
        self._warned = False

    def __reduce__(self) -> tuple[object, ...]:
        return BlockCache, (self.options,)

    def get(self, name: str) -> memoryview | None:
        """Return the bytes stored under `name`, or None if they are absent, damaged, or unreadable."""
        found = self.find(lambda _: name, 0, 1)
        return found[0].data if found else None

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Store bytes under `name` if the disk allows; a failing disk raises nothing."""
        self.keep(lambda _: name, 0, [memoryview(data)])

    def discard(self, name: str) -> None:
        """Remove what is stored under `name`, because the caller found it to be wrong."""
        _remove(self._path(name))

    def find(self, name: Callable[[int], str], first: int, stop: int) -> list[CachedBlocks]:
        """Return what is cached of blocks `[first, stop)` of a file, in ascending, disjoint runs.

        Args:
            name: returns the name of a block, given its number.
            first: number of the first block.
            stop: number after the last block.
        """
        found = []
        for group in range(first - first % _GROUP, stop, _GROUP):
            path = self._path(name(group))
            with (
                self._warning(),
                contextlib.suppress(FileNotFoundError),
                _opened(path, os.O_RDONLY) as number,
            ):
                try:
                    stored, _ = _scan(number, self._share * _ROOM)
                    found += _read(number, stored, name, (max(first, group), min(stop, group + _GROUP)))
                except ValueError:
                    _remove(path)
        return found

    def keep(self, name: Callable[[int], str], first: int, blocks: Sequence[memoryview]) -> None:
        """Store blocks of a file, from number `first` on; a failing disk raises nothing."""
        while blocks:
            count = _GROUP - first % _GROUP
            with self._warning():
                names = [name(first + number) for number in range(min(count, len(blocks)))]
                self._append(self._path(name(first - first % _GROUP)), names, blocks[:count])
            first, blocks = first + count, blocks[count:]

    def _append(self, path: str, names: Sequence[str], blocks: Sequence[memoryview]) -> None:
        table = [
            _BLOCK.pack(_digest(name), crc32c.crc32c(block), len(block))
            for name, block in zip(names, blocks, strict=True)
        ]
        checked = b"".join([struct.pack("<I", len(blocks)), *table])
        parts: list[bytes | memoryview] = [
            _MAGIC,
            struct.pack("<I", crc32c.crc32c(checked)),
            checked,
            *blocks,
        ]
        size = sum(map(len, parts))
        if size > self._share * _ROOM:
            # It would push out a good part of everything else.
            if len(blocks) > 1:
                self._append(path, names[: len(names) // 2], blocks[: len(names) // 2])
            return
        if self._added + size > self._share:
            self._make_room()
        self._added += size
        os.makedirs(self._root, mode=0o700, exist_ok=True)
        with _opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as number:
            with locked(number, _APPEND_SECONDS):
                if not _is_ours(number):
                    return
                # What follows the last complete run was cut short or damaged.
                os.ftruncate(number, _scan(number, self._share * _ROOM)[1])
                written = 0
                try:
                    written = os.writev(number, parts)
                finally:
                    if written < size:
                        os.unlink(path)
            if written < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextlib.contextmanager
    def alone_with(self, name: str) -> Iterator[None]:
        """Hold off other processes of this machine that want to store the same; lookups never wait.

        Where the disk has no locks, or the other process hangs for minutes, this continues without one: then
        some blocks may be fetched twice.
        """
        with contextlib.ExitStack() as stack:
            with self._warning():
                os.makedirs(self._root, mode=0o700, exist_ok=True)
                path = os.path.join(self._root, f"{_digest(name).hex()[:2]}.lock")
                file = stack.enter_context(open(path, "wb", buffering=0))
                stack.enter_context(locked(file, _FETCH_SECONDS))
            yield

    def usage(self) -> CacheUsage:
        """Count what is in the cache."""
        sizes = [size for _, size, _ in self._entries() if size]
        return CacheUsage(len(sizes), sum(sizes), self._root)

    def clear(self) -> CacheUsage:
        """Remove all entries; return how many were removed."""
        removed = [size for _, size, path in self._entries() if _remove(path) and size]
        with contextlib.suppress(OSError):  # another program keeps something in it
            os.rmdir(self._root)
        return CacheUsage(len(removed), sum(removed), self._root)

    def _entries(self) -> list[tuple[int, int, str]]:
        """Return time of last use, size and path of each file."""
        entries = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._root) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    if _ENTRY.fullmatch(entry.name) and stat.S_ISREG(info.st_mode):
                        entries.append((info.st_mtime_ns, info.st_size, entry.path))
        return entries

    def _make_room(self) -> None:
        """Remove the least recently used files until there is room for what comes next."""
        entries = sorted(self._entries())
        excess = sum(size for _, size, _ in entries) - self.options.max_bytes + self._share * _ROOM
        for _, size, path in entries:
            if excess <= 0:
                break
            if _remove(path):
                excess -= size
        self._added = 0

    def _path(self, name: str) -> str:
        return os.path.join(self._root, f"{hashlib.sha256(name.encode()).hexdigest()}.block")

    @contextlib.contextmanager
    def _warning(self) -> Iterator[None]:
        """Say, once, what is wrong with the disk."""
        try:
            yield
        except OSError as error:
            if not self._warned:
                self._warned = True
                reason = error.strerror or str(error)
                _log.warning(
                    "the block cache in %s is out of order (%s); reading without it", self._root, reason
                )


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def _scan(number: int, most: int) -> tuple[dict[bytes, tuple[int, int, int]], int]:
    """Return start, stop and checksum of each block of an open file, by the digest of its name.

    Also return where the last complete run ends; another process may be appending behind it. No run is longer
    than `most` bytes.
    """
    stored: dict[bytes, tuple[int, int, int]] = {}
    size, end = os.fstat(number).st_size, 0
    while len(head := os.pread(number, _LONGEST_HEAD, end)) > _HEAD.size:
        magic, checksum, count = _HEAD.unpack_from(head)
        start = end + _HEAD.size + count * _BLOCK.size
        checked = head[_CHECKED : start - end]
        if magic != _MAGIC or not 0 < count <= _GROUP or crc32c.crc32c(checked) != checksum:
            break
        run = {}
        for digest, block_checksum, length in _BLOCK.iter_unpack(checked[4:]):
            run[digest] = start, start + length, block_checksum
            start += length
        if start > size or start - end > most:
            break
        stored.update(run)
        end = start
    return stored, end


def _read(
    number: int, stored: dict[bytes, tuple[int, int, int]], name: Callable[[int], str], run: tuple[int, int]
) -> list[CachedBlocks]:
    """Return what an open file has of a run of blocks.

    The file is read, not mapped: another process may truncate it, and a map would then kill this one.

    Raises:
        ValueError: the bytes of a block are not those that were stored.
    """
    found = []
    first, stop = run
    while first < stop:
        places: list[tuple[int, int, int]] = []
        while first + len(places) < stop and (place := stored.get(_digest(name(first + len(places))))):
            if places and places[-1][1] != place[0]:
                break
            places.append(place)
        if places:
            base, end = places[0][0], places[-1][1]
            data = memoryview(os.pread(number, end - base, base))
            for start, behind, checksum in places:
                part = data[start - base : behind - base]
                if len(part) != behind - start or crc32c.crc32c(part) != checksum:
                    raise ValueError(f"not the bytes of block {first} and those after it")
            found.append(CachedBlocks(first, first + len(places), data))
        first += len(places) or 1
    if found:
        os.utime(number)
    return found


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    number = os.open(path, flags | _FLAGS, 0o600)
    try:
        yield number
    finally:
        os.close(number)


def _is_ours(number: int) -> bool:
    """Return whether a cache wrote this file; after a power failure it may be empty, or begin with zeros."""
    start = os.pread(number, len(_MAGIC), 0)
    return start == _MAGIC or not start.strip(b"\0")


def _remove(path: str) -> bool:
    """Remove a file if a cache wrote it; return whether it did."""
    with contextlib.suppress(OSError), _opened(path, os.O_RDONLY) as number:
        if _is_ours(number):
            os.unlink(path)
            return True
    return False
