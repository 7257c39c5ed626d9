"""The memory and the scratch file of a stream, cut into slots that are reused; and where that file may be.

The system clears each page before it hands it out, which costs more than copying a record into it. So an
arena belongs to a stream, and its passes touch each page for the first time once.

The file has no name, so nothing is left of it however the process ends. What is written is compared with its
checksum when it is read. A disk that fails or is full costs memory and a warning, and never a record.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import weakref
from bisect import bisect_left, insort
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardio.callers import warn
from shardio.display import size as shown
from shardio.reader import READS_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardio.streaming._components import Component
    from shardio.streaming._options import StreamOptions

SCRATCH_BYTES = 4 << 30  # of all ranks together
FREE_TIMES = 4  # free bytes of a disk, as a multiple of what is kept there
_MOUNTS = Path("/proc/self/mountinfo")
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "rootfs", "hugetlbfs"}
_EXTENT = 64 << 20  # by which an arena grows; less while it is small
_LEAST_EXTENT = 1 << 20
_HUGE_PAGE = 2 << 20
_ALIGNMENT = 64  # of slots in memory: a line of the processor's cache
_PAGE = 4096
# Memory that a fork copies, as any other; what Python maps by default a child would share.
_OWN = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class Slot(NamedTuple):
    """Part of an arena.

    Attributes:
        start: its address, or its place in the scratch file.
        size: bytes.
        in_file: it is in the scratch file.
    """

    start: int
    size: int
    in_file: bool


class _Slots:
    """A best-fit allocator: slots that are free, joined with their neighbours."""

    def __init__(self) -> None:
        # Of free slots: sizes by start, starts by stop, and (size, start) in order.
        self._sizes: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._order: list[tuple[int, int]] = []

    def take(self, size: int, grow: Callable[[int], tuple[int, int]]) -> int:
        """Return where a slot begins; `grow` adds at least so many bytes: where they begin, and how many."""
        at = bisect_left(self._order, (size, 0))
        if at == len(self._order):
            self.give_back(*grow(size))
            at = bisect_left(self._order, (size, 0))
        free, start = self._order[at]
        self._remove(start)
        if free > size:
            self._add(start + size, free - size)
        return start

    def give_back(self, start: int, size: int) -> None:
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


class Arena:
    """Slots in memory, and in a scratch file where there is a folder for one; the threads of passes share it.

    The file has no name and is written and read, never mapped: a disk that fails is an error and no signal.

    Args:
        folder: of the scratch file, on a local disk; None for memory alone.

    Attributes:
        passes: that use it now.
        memory_bytes, scratch_bytes: what it took from the system.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self.passes: set[object] = set()
        self.memory_bytes = self.scratch_bytes = 0
        self._lock = threading.Lock()
        self._memory, self._scratch = _Slots(), _Slots()
        self._extents: list[NDArray[np.uint8]] = []  # hold the maps
        self._file: int | None = None
        self._full = False  # the disk takes no more

    def take(self, size: int) -> Slot:
        """Return a slot in memory."""
        size = max(_ALIGNMENT, -(-size // _ALIGNMENT) * _ALIGNMENT)
        with self._lock:
            return Slot(self._memory.take(size, self._grow_memory), size, in_file=False)

    def write(self, data: NDArray[np.uint8], slot: Slot) -> bool:
        """Write to a slot of the file; False, and once a warning, where the disk does not take it."""
        rest, start = memoryview(data), slot.start
        try:
            while rest:
                done = os.pwrite(self.file_number, rest, start)
                rest, start = rest[done:], start + done
        except OSError as error:
            self._refuse(error)
            return False
        return True

    def take_scratch(self, size: int) -> Slot | None:
        """Return a slot in the scratch file; None where there is none or it cannot grow."""
        if self.folder is None or self._full:
            return None
        size = max(_PAGE, -(-size // _PAGE) * _PAGE)
        try:
            with self._lock:
                return Slot(self._scratch.take(size, self._grow_scratch), size, in_file=True)
        except OSError as error:
            self._refuse(error)
            return None

    @property
    def file_number(self) -> int:
        """The descriptor of the scratch file, which is closed with this."""
        assert self._file is not None  # noqa: S101 - it has a slot
        return self._file

    def give_back(self, slot: Slot) -> None:
        """Make a slot free."""
        with self._lock:
            (self._scratch if slot.in_file else self._memory).give_back(slot.start, slot.size)

    def _refuse(self, error: OSError) -> None:
        with self._lock:
            warned, self._full = self._full, True
        if not warned:
            warn(
                f"the scratch file in {self.folder} cannot be written ({error.strerror or error}): open "
                "chunks are held in memory from now on; make room there, or give scratch= with another folder"
            )

    def _grow_memory(self, size: int) -> tuple[int, int]:
        size = _extent(size, self.memory_bytes, _HUGE_PAGE)
        memory = mmap.mmap(-1, size, **_OWN)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # The first touch of 512 pages costs eight times what that of a huge page does.
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._extents.append(np.frombuffer(memory, np.uint8))
        self.memory_bytes += size
        return self._extents[-1].ctypes.data, size

    def _grow_scratch(self, size: int) -> tuple[int, int]:
        if self._file is None:
            with tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)
        start, size = self.scratch_bytes, _extent(size, self.scratch_bytes, _PAGE)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file, start, size)
        self.scratch_bytes += size
        return start, size


def _extent(size: int, held: int, unit: int) -> int:
    """Return the bytes by which an arena grows: an eighth of what it has, within bounds."""
    wanted = max(size, min(_EXTENT, max(_LEAST_EXTENT, held // 8)))
    return -(-wanted // unit) * unit


def scratch_bytes(options: StreamOptions, components: Sequence[Component]) -> int:
    """Return the scratch that a default plan is made for.

    Ranks must make the same plan without asking each other, so only a process that works alone looks at the
    disks of its machine. By default there is none for records in random order, which need no mixing.
    """
    if options.scratch is False or all(component.source.is_local for component in components):
        return 0
    if options.scratch == "auto":
        if all(component.is_shuffled for component in components):
            return 0
        whole = sum(component.order.sizes.total_decoded_bytes for component in components)
        is_alone = options.rank_and_world_size[1] == launched("WORLD_SIZE") == 1
        if is_alone and find_folder(options, components, min(SCRATCH_BYTES, whole))[0] is None:
            return 0
    return SCRATCH_BYTES


def find_folder(options: StreamOptions, components: Sequence[Component], size: int) -> tuple[str | None, str]:
    """Return a folder that has room for so many bytes of scratch; or None, and why there is none."""
    if options.scratch is False:
        return None, "scratch=False allows no disk"
    folders = [str(Path(options.scratch).absolute())]
    if options.scratch == "auto":
        caches = [component.source.options.cache for component in components]
        folders = [_existing_parent(cache.dir) for cache in caches if cache is not None]
        folders += [tempfile.gettempdir(), "/var/tmp"]  # noqa: S108 - the file has no name
    refusals = []
    for folder in dict.fromkeys(folders):
        refusal = _refusal(folder, size)
        if refusal is None:
            return folder, ""
        refusals.append(refusal)
    return None, "; ".join(refusals)


def launched(name: str) -> int:
    """Return the number of processes that a launcher gives in a variable; 1 where it gives none."""
    value = os.environ.get(name, "")
    return max(1, int(value)) if value.isdecimal() else 1


def _existing_parent(folder: str | os.PathLike[str]) -> str:
    path = Path(folder).absolute()
    while not path.is_dir():
        path = path.parent
    return str(path)


def _refusal(folder: str, size: int) -> str | None:
    """Return why a folder cannot hold so many bytes of scratch; None where it can."""
    if not READS_FILES:
        return "this system has no files without a name"
    try:
        if (kind := _file_system(folder)) in _IN_MEMORY:
            return f"{folder} is in memory ({kind})"
        status = os.statvfs(folder)
        free = status.f_bavail * status.f_frsize
        if free < FREE_TIMES * size:
            needed = shown(FREE_TIMES * size)
            return f"{folder} has {shown(free)} free, and {shown(size)} of scratch need {needed}"
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return None


def _file_system(folder: str) -> str:
    """Return the kind of the file system of a folder; "" where the system does not tell."""
    device = Path(folder).stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # only Linux has it
        return ""
    kinds = (line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == number)
    return next(kinds, "")
