"""Where the open chunks of a stream from a bucket are: in memory, or in a scratch file on a local disk.

The file has no name, so nothing is left of it however the process ends. What is written is compared with its
checksum when it is read. A disk that fails or is full costs memory and a warning, and never a record.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardio.display import size as shown
from shardio.order import SCRATCH_BYTES, Budget, Order, SourceReading, process_memory
from shardio.reader import READS_FILES
from shardio.streaming._arena import check_scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardio.streaming._components import Component
    from shardio.streaming._options import StreamOptions

_FREE = 4  # free bytes of a disk, as a multiple of what is kept there
_MOUNTS = "/proc/self/mountinfo"
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "rootfs", "hugetlbfs"}


class ScratchChoice(NamedTuple):
    """What a stream may keep on a disk.

    Attributes:
        bytes: of all ranks together; a new plan is made for it.
        folders: where, the first one that will do.
    """

    bytes: int
    folders: tuple[str, ...]


def scratch_choice(options: StreamOptions, components: Sequence[Component]) -> ScratchChoice:
    """Return what a stream may keep on a disk.

    Ranks must make the same plan without asking each other, so that only what works alone makes it by the
    disks of its machine.
    """
    given = options.scratch
    sources = [component.source for component in components]
    if given is False or all(source.is_local for source in sources):
        return ScratchChoice(0, ())
    if given == "auto" or isinstance(given, int):
        caches = [_there(source.options.cache.dir) for source in sources if source.options.cache is not None]
        folders = tuple(dict.fromkeys([*caches, tempfile.gettempdir(), "/var/tmp"]))  # noqa: S108 - made safely
    else:
        folders = (str(Path(given).absolute()),)
    if isinstance(given, int):
        return ScratchChoice(given, folders)
    if given == "auto":
        # Records in random order need no mixing.
        if all(component.is_shuffled for component in components):
            return ScratchChoice(0, folders)
        whole = sum(component.order.sizes.total_decoded_bytes for component in components)
        is_alone = options.rank_and_world_size[1] == _told("WORLD_SIZE") == 1
        if is_alone and all(_refusal(folder, min(SCRATCH_BYTES, whole)) for folder in folders):
            return ScratchChoice(0, folders)
    return ScratchChoice(SCRATCH_BYTES, folders)


def scratch_place(
    order: Order,
    options: StreamOptions,
    components: Sequence[Component],
    unread: Sequence[bool],
    budget: Budget,
    *,
    global_batch: int,
) -> str | None:
    """Return the folder of scratch for the open chunks of a plan; None where they are held in memory.

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
        SourceReading(component.order.sizes, unread=stays)
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
    for folder in choice.folders:
        reason = _refusal(folder, here)
        if reason is None:
            return folder
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


def _refusal(folder: str, size: int) -> str | None:
    """Return why a folder cannot hold so many bytes of scratch; None where it can."""
    if not READS_FILES:
        return "this system has no files without a name"
    try:
        kind = _file_system(folder)
        if kind in _IN_MEMORY:
            return f"{folder} is in memory ({kind})"
        found = os.statvfs(folder)
        free = found.f_bavail * found.f_frsize
        if free < _FREE * size:
            return f"{folder} has {shown(free)} free, and {shown(size)} of scratch need {shown(_FREE * size)}"
        check_scratch_folder(folder)
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
