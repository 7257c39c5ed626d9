"""Scratch: open chunks of a stream from a bucket, kept in a file on a local disk until they are delivered.

The file has no name, so nothing is left of it however the process ends, and each pass has one of its own.
What is written is remembered with its checksum and compared when it is read.  What was delivered is written
over: the file takes about as much room as what is open.  A disk that fails or is full costs memory and a
warning, and never a record.  What a cache of blocks keeps anyway is read from there, if it has room for all
that is open.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from bisect import bisect_left, insort
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardio.callers import warn
from shardio.display import size as shown
from shardio.order import SCRATCH_BYTES, Budget, Order, SourceReading, process_memory
from shardio.storage import BlockCache, CacheOptions, NamedFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardio.streaming._components import Component
    from shardio.streaming._options import StreamOptions

# Free bytes of a disk, and those of a cache, as multiples of what is kept there: a cache gives up what was
# used longest ago, an eighth of it at once, and what comes early or for others is in it, too.
_FREE, _CACHED = 4, 2
_MOST_CACHED = 16 << 30  # from here on more of it open mixes no better
_MOUNTS = "/proc/self/mountinfo"
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "rootfs", "hugetlbfs"}
_PAGE = 4096
_MOST_PARTS = 512  # that one call writes; systems allow 1024
_DESCRIPTORS = "/dev/fd"


class _NamelessFile:
    """One file without a name; it is gone with the last reference to this.

    Raises:
        OSError: it cannot be made there.
    """

    def __init__(self, folder: str) -> None:
        self._number = _open(folder)
        self._close = os.close
        info = os.fstat(self._number)
        self.named = NamedFile(f"{_DESCRIPTORS}/{self._number}", info.st_dev, info.st_ino)
        Path(self.named.url).stat()  # it is read by that name

    def write(self, parts: Sequence[memoryview], start: int) -> None:
        """Write parts one after another.

        Raises:
            OSError: the disk is full or failed.
        """
        left = [part for part in parts if len(part)]
        while left:
            done = os.pwritev(self._number, left[:_MOST_PARTS], start)
            start += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if done:
                left[0] = left[0][done:]

    def __del__(self) -> None:
        if hasattr(self, "_close"):  # else it could not be opened
            self._close(self._number)


def _open(folder: str) -> int:
    if hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):  # not every file system can
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    number, path = tempfile.mkstemp(prefix="shardio-scratch-", dir=folder)
    Path(path).unlink()
    return number


class _Room:
    """Which parts of a file are in use: what is given back is used again, and joined with its neighbours."""

    def __init__(self) -> None:
        self.stop = 0
        # Of parts that are free, sizes by their starts, starts by their stops, and (size, start) in order.
        self._sizes: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._order: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        """Return where a part of so many bytes begins: the smallest that fits, else the end of the file."""
        at = bisect_left(self._order, (size, 0))
        if at == len(self._order):
            # What is free at the end grows.
            start = self._starts.get(self.stop, self.stop)
            if start < self.stop:
                self._remove(start)
            self.stop = start + size
            return start
        found, start = self._order[at]
        self._remove(start)
        if found > size:
            self._add(start + size, found - size)
        return start

    def give_back(self, start: int, size: int) -> None:
        """Make a part free."""
        if start + size in self._sizes:
            size += self._remove(start + size)
        if start in self._starts:
            start, size = self._starts[start], size + self._sizes[self._starts[start]]
            self._remove(start)
        self._add(start, size)

    def _add(self, start: int, size: int) -> None:
        self._sizes[start] = size
        self._starts[start + size] = start
        insort(self._order, (size, start))

    def _remove(self, start: int) -> int:
        size = self._sizes.pop(start)
        del self._starts[start + size]
        del self._order[bisect_left(self._order, (size, start))]
        return size


class ScratchPart:
    """A part of the file that is used again when nothing refers to this any more.

    Attributes:
        file: what it is in.
        start: where it begins.
    """

    def __init__(self, file: _NamelessFile, start: int, size: int, back: deque[tuple[int, int]]) -> None:
        self.file, self.start = file.named, start
        self._file, self._size, self._back = file, size, back

    def __del__(self) -> None:
        # The collector may do this in the middle of anything, and so without a lock.
        self._back.append((self.start, self._size))


class ScratchSpace:
    """The file of one pass, made when something is written; its threads share it.

    Args:
        folder: on a local disk.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._file: _NamelessFile | None = None
        self._room = _Room()
        self._back: deque[tuple[int, int]] = deque()
        self._warned = False

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._room.stop

    def write(self, parts: Sequence[memoryview]) -> ScratchPart | None:
        """Write parts one after another; None, and once a warning, where the disk does not take them."""
        size = -(-sum(map(len, parts)) // _PAGE) * _PAGE
        try:
            with self._lock:
                if self._file is None:
                    self._file = _NamelessFile(self._folder)
                while self._back:
                    self._room.give_back(*self._back.popleft())
                part = ScratchPart(self._file, self._room.take(size), size, self._back)
                file = self._file
            file.write(parts, part.start)
        except OSError as error:
            self._warn(error)
            return None
        return part

    def _warn(self, error: OSError) -> None:
        with self._lock:
            warned, self._warned = self._warned, True
        if not warned:
            warn(
                f"the scratch file in {self._folder} cannot be written ({error.strerror or error}): open "
                "chunks are held in memory where it fails; make room there, or give scratch= with another "
                "folder"
            )


class ScratchChoice(NamedTuple):
    """What a stream may keep on a disk.

    Attributes:
        bytes: of all ranks together; a new plan is made for it.
        folders: where, the first one that will do.
        caches: which have all that is read, if there are any.
    """

    bytes: int
    folders: tuple[str, ...]
    caches: tuple[CacheOptions, ...] = ()

    def caches_for(self, size: int) -> tuple[CacheOptions, ...]:
        """Return the caches, if so many bytes stay in each as long as they are open."""
        fits = all(_CACHED * size <= cache.max_bytes for cache in self.caches)
        return self.caches if fits else ()


class ScratchPlace(NamedTuple):
    """Where a stream keeps open chunks.

    Attributes:
        folder: of scratch files.
        in_cache: the cache has them.
    """

    folder: str
    in_cache: bool


def scratch_choice(options: StreamOptions, components: Sequence[Component]) -> ScratchChoice:
    """Return what a stream may keep on a disk.

    Ranks must make the same plan without asking each other, so that only what works alone makes it by the
    disks of its machine.
    """
    given = options.scratch
    sources = [component.source for component in components]
    if given is False or all(source.is_local for source in sources):
        return ScratchChoice(0, ())
    caches = tuple(source.options.cache for source in sources if source.options.cache is not None)
    folders: tuple[str, ...]
    if isinstance(given, int) or given == "auto":
        there = [_there(cache.dir) for cache in caches]
        folders = tuple(dict.fromkeys([*there, tempfile.gettempdir(), "/var/tmp"]))  # noqa: S108 - made safely
    else:
        folders = (str(Path(given).absolute()),)
    if not all(source.caches_records for source in sources):
        caches = ()
    if isinstance(given, int):
        return ScratchChoice(given, folders, caches)
    choice = ScratchChoice(SCRATCH_BYTES, folders, caches)
    if given == "auto":
        # Records in random order need no mixing.
        if all(component.is_shuffled for component in components):
            return ScratchChoice(0, folders, caches)
        # What is cached anyway takes no more room if more of it is open.
        most = min((cache.max_bytes // _CACHED for cache in caches), default=0)
        choice = choice._replace(bytes=max(SCRATCH_BYTES, min(most, _MOST_CACHED)))
        whole = sum(component.order.sizes.total_decoded_bytes for component in components)
        kept = min(choice.bytes, whole)
        if options.rank_and_world_size[1] == _told("WORLD_SIZE") == 1 and all(
            _refusal(folder, kept, choice.caches_for(kept)) for folder in folders
        ):
            return ScratchChoice(0, folders, caches)
    return choice


def scratch_place(
    order: Order,
    options: StreamOptions,
    components: Sequence[Component],
    unread: Sequence[bool],
    budget: Budget,
    *,
    global_batch: int,
) -> ScratchPlace | None:
    """Return where the open chunks of a plan are kept; None where they are held in memory.

    Args:
        order, options, components, global_batch: of the stream.
        unread: of each dataset, whether its records stay in their own files.
        budget: of the stream.

    Raises:
        ValueError: neither memory nor a disk has room for them; says what has.
    """
    if all(component.source.is_local for component in components):
        return None
    if not all(plan.interleaved for plan in order.plans):
        return None
    read = [
        SourceReading(component.order.sizes, exact=False, unread=stays)
        for component, stays in zip(components, unread, strict=True)
    ]
    world_size = options.rank_and_world_size[1]
    whole = process_memory(order, global_batch=global_batch, read=read).held_bytes
    if whole <= budget.memory_bytes:
        return None
    own = process_memory(order, global_batch=global_batch, world_size=world_size, read=read).held_bytes
    # Ranks of one machine share its disk.
    here = own * _told("LOCAL_WORLD_SIZE")
    reasons = []
    choice = scratch_choice(options, components)
    caches = choice.caches_for(whole)
    for folder in choice.folders:
        reason = _refusal(folder, here, caches)
        if reason is None:
            return ScratchPlace(folder, bool(caches))
        reasons.append(reason)
    # A plan of the caller's may take what it takes, where nothing bounds it.
    if own <= budget.memory_bytes or (order.asked and options.memory_bytes is None):
        return None
    why = "; ".join(reasons) or "scratch=False allows no disk"
    message = (
        f"the plan keeps {own} bytes of open chunks in this process, more than memory_bytes="
        f"{budget.memory_bytes}, and there is no scratch for them: {why}. Give scratch= with a folder on a "
        f"local disk that has {_FREE * here} bytes free, or memory_bytes={own}; a new run "
        "may give scratch=False, in all its ranks"
    )
    raise ValueError(message)


def _told(name: str) -> int:
    """Return the number of processes that a launcher says in a variable; 1 where it says none."""
    told = os.environ.get(name, "")
    return max(1, int(told)) if told.isdecimal() else 1


def _there(folder: str | os.PathLike[str]) -> str:
    """Return a folder, or the one that it will be in."""
    path = Path(folder).absolute()
    while not path.is_dir():
        path = path.parent
    return str(path)


def _refusal(folder: str, size: int, caches: Sequence[CacheOptions] = ()) -> str | None:
    """Return why a folder cannot hold so many bytes of scratch; None where it can, or a cache in it does."""
    if not (hasattr(os, "pwritev") and Path(_DESCRIPTORS).is_dir()):
        return "this system cannot read a file that has no name"
    try:
        if caches and all(BlockCache(cache).room() >= _CACHED * size for cache in caches):
            _NamelessFile(folder)  # for what the cache does not take
            return None
        kind = _file_system(folder)
        if kind in _IN_MEMORY:
            return f"{folder} is in memory ({kind})"
        found = os.statvfs(folder)
        free = found.f_bavail * found.f_frsize
        if free < _FREE * size:
            return f"{folder} has {shown(free)} free, and {shown(size)} of scratch need {shown(_FREE * size)}"
        _NamelessFile(folder)
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return None


def _file_system(folder: str) -> str:
    """Return the kind of the file system of a folder; "" where this is not told."""
    device = Path(folder).stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next((kind for number, kind in _mounts() if number == wanted), "")


def _mounts() -> Iterator[tuple[str, str]]:
    """Yield device and kind of what is mounted."""
    try:
        with Path(_MOUNTS).open(encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                fields, _, kind = line.partition(" - ")
                yield fields.split()[2], kind.split()[0]
    except OSError:  # only Linux has it
        return
