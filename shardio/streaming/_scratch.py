"""Whether the open chunks of a stream from a bucket are in memory, or in a scratch file on a local disk.

The file has no name, so nothing is left of it however the process ends. What is written is compared with its
checksum when it is read. A disk that fails or is full costs memory and a warning, and never a record.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from shardio.display import size as shown
from shardio.reader import READS_FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardio.streaming._components import Component
    from shardio.streaming._options import StreamOptions

SCRATCH_BYTES = 4 << 30  # of all ranks together
FREE_TIMES = 4  # free bytes of a disk, as a multiple of what is kept there
_MOUNTS = Path("/proc/self/mountinfo")
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "rootfs", "hugetlbfs"}


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
