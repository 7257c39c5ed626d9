"""A cache of verified blocks on local disk, shared by any number of processes, correct without any lock.

It is only a cache: an entry is one file of one block or of some that follow each other, and carries their
names, lengths and CRC-32Cs, which are compared at every read.  So whatever others do to the folder, a lookup
gives the bytes that were stored under that very name, or nothing.  Entries appear by rename; no process waits
for another.  A disk that is full, read-only or broken means uncached reads and one warning.  Only files that
it made are ever removed: those under its own folder, with its own kind of name, that begin with its magic.

Names must say what the bytes are (shard, block and checksum): an entry is never looked at for freshness.

    "SHRDBLK2" | u32 CRC-32C of the head from here on | u32 bytes of the head | u32 blocks
    | of each block: u32 length of its name, u32 CRC-32C, u64 length | names    -- the head ends here
    | data

What is fetched in one request is stored in few files, since a file costs much more than its bytes: a run of
blocks is cut into pieces of 1, 2, 4 ... 64 blocks that begin at a multiple of their size, as buddies of a
memory allocator do, and a piece is found under the name of its first block.  So the piece that holds a block
begins at one of seven places, whichever process stored it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import logging
import os
import re
import secrets
import socket
import stat
import struct
from typing import TYPE_CHECKING, NamedTuple

import crc32c

from shardio.storage._local import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_log = logging.getLogger("shardio")
_FOLDER = "shardio-blocks-2"
_ENTRY = re.compile(r"[0-9a-f]{62}\.block")
_HALF = re.compile(r"\.shardio-half-([0-9a-f]{16})-(\d+)-[0-9a-f]{16}")
_LOCK = re.compile(r"\.shardio-lock-[0-9a-f]{2}")
_PATIENCE = 600.0  # seconds that a process waits for another one that fetches the same
_MAGIC = b"SHRDBLK2"
_FIXED = struct.Struct("<8sIII")  # magic, CRC-32C, bytes of the head, blocks
_BLOCK = struct.Struct("<IIQ")  # length of the name, CRC-32C, length
_CHECKED = 12  # where the checksum of the head begins
_HEAD_AT_ONCE = 4096  # bytes; the heads of nearly all entries are shorter
_PIECE_BLOCKS = 64
_PIECE_BYTES = 4 << 20
_LONGEST_NAME = 1024  # bytes
_LONGEST_HEAD = _FIXED.size + _PIECE_BLOCKS * (_BLOCK.size + _LONGEST_NAME)
_READ = (
    os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_FOLDERS, _SAMPLE = 256, 256  # entries are in so many folders, and so many of them tell what all hold
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
        max_bytes: bound of all entries together, whichever process stores them.
    """

    dir: str | os.PathLike[str]
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, found {self.max_bytes}")


class CacheUsage(NamedTuple):
    """What is in a cache: number of entries, their bytes on disk, the folder."""

    entries: int
    num_bytes: int
    folder: str


class CachedBlocks(NamedTuple):
    """Blocks `[first, stop)` of a file, one after another."""

    first: int
    stop: int
    data: memoryview


class _ReadBlocks(NamedTuple):
    blocks: int
    data: memoryview


class _CacheEntry(NamedTuple):
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
        ...     bytes(cache.get("shard-0/block-7/crc-89abcdef")), cache.get("another")
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

    def get(self, name: str) -> memoryview | None:
        """Return the bytes stored under `name`, or None if they are not there, damaged, or out of reach."""
        found = self._read(lambda _: name, 0, 0, 1)
        return None if found is None else found.data

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Store bytes under `name` if the disk allows; never raises for the disk's sake."""
        self._store([name], [memoryview(data)])

    def discard(self, name: str) -> None:
        """Remove what is stored under `name`: the caller has found that it is not what it should be."""
        with contextlib.suppress(OSError):
            _remove(self._path(name))

    def find(self, name: Callable[[int], str], first: int, stop: int) -> list[CachedBlocks]:
        """Return what is there of blocks `[first, stop)` of a file, in pieces that ascend and do not overlap.

        Args:
            name: of a block, by its number.
            first: number of the first block.
            stop: number of the first block behind them.
        """
        found = []
        absent: set[int] = set()
        block = first
        while block < stop:
            piece = None
            for start in _starts(block):
                if start not in absent:
                    piece = self._read(name, start, block, stop)
                    if piece is not None:
                        break
                    # Nor has it a block after this one: its blocks follow each other.
                    absent.add(start)
            if piece is None:
                block += 1
            else:
                found.append(CachedBlocks(block, block + piece.blocks, *piece[1:]))
                block += piece.blocks
        return found

    def keep(self, name: Callable[[int], str], first: int, blocks: Sequence[memoryview]) -> None:
        """Store blocks of a file, from number `first` on; never raises for the disk's sake."""
        place = 0
        while place < len(blocks):
            count = _piece(first + place, blocks[place:])
            while count > 1 and not self._fits(sum(map(len, blocks[place : place + count]))):
                count //= 2
            names = [name(first + number) for number in range(place, place + count)]
            self._store(names, blocks[place : place + count])
            place += count

    def _read(self, name: Callable[[int], str], start: int, block: int, stop: int) -> _ReadBlocks | None:
        """Return what the entry that begins with block `start` has of blocks `[block, stop)`."""
        path = self._path(name(start))
        try:
            number = os.open(path, _READ)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        try:
            # Nothing longer is stored, so nothing longer is read: a forged head may say anything.
            found = None
            if os.fstat(number).st_size <= _LONGEST_HEAD + self._share * _ROOM:
                found = _unpack(number, name, start, block, stop)
            if found is not None and found.blocks:
                with contextlib.suppress(OSError):
                    os.utime(number if os.utime in os.supports_fd else path)
        except OSError as error:
            self._warn(error)
            return None
        finally:
            os.close(number)
        if found is None:
            # It would keep its place from a good one.
            with contextlib.suppress(OSError):
                _remove(path)
        return found if found is not None and found.blocks else None

    def _fits(self, size: int) -> bool:
        """Tell whether an entry of about this size would not push out a good part of everything else."""
        return size <= self._share * _ROOM

    def _store(self, names: Sequence[str], blocks: Sequence[memoryview]) -> None:
        if max(len(name.encode()) for name in names) > _LONGEST_NAME:
            return
        head = _head(names, blocks)
        size = len(head) + sum(map(len, blocks))
        if not self._fits(size):
            return
        if self._pause > 0:
            self._pause -= 1
            return
        path = self._path(names[0])
        try:
            # Another process may have stored a longer run meanwhile, which begins with the same block.
            if _size(path) >= size:
                return
            if self._added + size > self._share:
                self._make_room()
            self._write(path, [head, *blocks])
            self._added += size
        except OSError as error:
            self._pause = _SKIPPED
            self._warn(error)

    @contextlib.contextmanager
    def alone_with(self, name: str) -> Iterator[None]:
        """Hold off other processes of this machine that want to store the same; ends with this process.

        Lookups wait for nothing. Where the disk has no locks, or the other process hangs for minutes, this
        goes on without one: then some blocks may be fetched twice.
        """
        with contextlib.ExitStack() as held:
            try:
                os.makedirs(self._root, mode=0o700, exist_ok=True)
                digest = hashlib.sha256(name.encode()).hexdigest()[:2]
                path = os.path.join(self._root, f".shardio-lock-{digest}")
                file = held.enter_context(io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+"))
            except OSError as error:
                self._warn(error)
            else:
                held.enter_context(locked(file, _PATIENCE))
            yield

    def usage(self) -> CacheUsage:
        """Count what is in the cache."""
        found = list(self._entries())
        return CacheUsage(len(found), sum(entry.size for entry in found), self._root)

    def room(self) -> int:
        """Return how many bytes it may hold: what it has, about, if there is much, and its disk has free."""
        folder = os.path.dirname(self._root)
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        found = os.statvfs(folder)
        sizes: list[int] = []
        looked_at = 0
        for each in self._folders():
            sizes.extend(entry.size for entry in self._entries([each]))
            looked_at += 1
            # Names are digests, so that any folder has its share.
            if len(sizes) >= _SAMPLE:
                break
        held = sum(sizes) * _FOLDERS // looked_at
        return min(self.options.max_bytes, held + found.f_bavail * found.f_frsize)

    def clear(self) -> CacheUsage:
        """Remove all entries, and what killed writers left; return how many entries it removed."""
        removed = [entry.size for entry in self._entries() if _is_ours(entry.path) and _remove(entry.path)]
        self._remove_halves(all_of_them=True)
        with contextlib.suppress(FileNotFoundError), os.scandir(self._root) as entries:
            for lock in [entry.path for entry in entries if _LOCK.fullmatch(entry.name)]:
                with contextlib.suppress(OSError):
                    os.unlink(lock)
        for folder in (*self._folders(), self._root):
            # Not empty where another program keeps something in it.
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return CacheUsage(len(removed), sum(removed), self._root)

    def _path(self, name: str) -> str:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return os.path.join(self._root, digest[:2], f"{digest[2:]}.block")

    def _write(self, path: str, parts: list[bytes | memoryview]) -> None:
        folder = os.path.dirname(path)
        half = os.path.join(folder, f".shardio-half-{_host()}-{os.getpid()}-{secrets.token_hex(8)}")
        try:
            number = os.open(half, _CREATE, 0o600)
        except FileNotFoundError:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            number = os.open(half, _CREATE, 0o600)
        try:
            try:
                for part in parts:
                    view = memoryview(part)
                    while view:
                        view = view[os.write(number, view) :]
            finally:
                os.close(number)
            # Another thread may have stored a longer run while this was written.  What is under our name and
            # is not ours stays; then there is no room for the entry.
            if _size(path) < os.stat(half).st_size and (_is_ours(path) or not os.path.lexists(path)):
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
        for number in range(_FOLDERS):
            yield os.path.join(self._root, f"{number:02x}")

    def _files(self, folders: Iterable[str] | None = None) -> Iterator[os.DirEntry[str]]:
        for folder in self._folders() if folders is None else folders:
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                yield from entries

    def _entries(self, folders: Iterable[str] | None = None) -> Iterator[_CacheEntry]:
        for entry in self._files(folders):
            if _ENTRY.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(info.st_mode):
                        yield _CacheEntry(max(info.st_mtime_ns, info.st_atime_ns), info.st_size, entry.path)

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


def _starts(block: int) -> Iterator[int]:
    """Yield where a piece that holds a block may begin, the smallest piece first."""
    last, size = -1, 1
    while size <= _PIECE_BLOCKS:
        start = block & -size
        if start != last:
            yield start
        last, size = start, 2 * size


def _piece(first: int, blocks: Sequence[memoryview]) -> int:
    """Return how many blocks from number `first` on make the largest piece."""
    size = 1
    while (
        size < _PIECE_BLOCKS
        and first % (2 * size) == 0
        and 2 * size <= len(blocks)
        and sum(map(len, blocks[: 2 * size])) <= _PIECE_BYTES
    ):
        size *= 2
    return size


def _head(names: Sequence[str], blocks: Sequence[memoryview]) -> bytes:
    encoded = [name.encode() for name in names]
    table = [
        _BLOCK.pack(len(name), crc32c.crc32c(block), len(block))
        for name, block in zip(encoded, blocks, strict=True)
    ]
    size = _FIXED.size + sum(map(len, table)) + sum(map(len, encoded))
    rest = b"".join([struct.pack("<II", size, len(blocks)), *table, *encoded])
    return _MAGIC + struct.pack("<I", crc32c.crc32c(rest)) + rest


def _unpack(number: int, name: Callable[[int], str], first: int, block: int, stop: int) -> _ReadBlocks | None:
    """Find blocks `[block, stop)` of the entry whose first block is `first`; None where it is damaged.

    There may be none of them in it.  Read, not mapped: another process may cut the file, and a mapped one
    would then kill this one.
    """
    info = os.fstat(number)
    if not stat.S_ISREG(info.st_mode) or info.st_size < _FIXED.size:
        return None
    head = os.read(number, _HEAD_AT_ONCE)
    if len(head) < _FIXED.size:
        return None
    magic, crc, size, count = _FIXED.unpack_from(head)
    if magic != _MAGIC or count > _PIECE_BLOCKS or size > min(_LONGEST_HEAD, info.st_size):
        return None
    if size < _FIXED.size + count * _BLOCK.size:
        return None
    if size > len(head):
        head += os.pread(number, size - len(head), len(head))
    head = head[:size]
    if len(head) != size or crc32c.crc32c(head[_CHECKED:]) != crc:
        return None
    table = list(_BLOCK.iter_unpack(head[_FIXED.size : _FIXED.size + count * _BLOCK.size]))
    place, start = _FIXED.size + count * _BLOCK.size, size
    names: list[bytes] = []
    for length, _, _ in table:
        names.append(head[place : place + length])
        place += length
    if place != size or size + sum(each for _, _, each in table) != info.st_size:
        return None
    if not names or names[0] != name(first).encode():
        return None
    skipped, blocks = block - first, 0
    while (
        block + blocks < min(stop, first + count) and names[skipped + blocks] == name(block + blocks).encode()
    ):
        blocks += 1
    start += sum(each for _, _, each in table[:skipped])
    chosen = table[skipped : skipped + blocks]
    data = _pread(number, start, sum(each for _, _, each in chosen))
    view, place = memoryview(data), 0
    for _, checksum, length in chosen:
        if crc32c.crc32c(view[place : place + length]) != checksum or place + length > len(data):
            return None
        place += length
    return _ReadBlocks(blocks, view)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0


def _pread(number: int, start: int, size: int) -> bytes:
    """Read `size` bytes, or fewer where the file was cut meanwhile."""
    parts = []
    while size > 0 and (piece := os.pread(number, size, start)):
        parts.append(piece)
        start, size = start + len(piece), size - len(piece)
    return parts[0] if len(parts) == 1 else b"".join(parts)


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
