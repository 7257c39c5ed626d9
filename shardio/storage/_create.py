"""Create local files whole and only if their names are free: durable, and exactly one of many racers wins.

Bytes go to a temporary beside the target, are flushed to disk, and get their name by `link`, which fails
where the name is taken.  NFS may lose the response of a `link` that took effect; the temporary's link count
tells the truth.  Where links do not exist, `renameat2(RENAME_NOREPLACE)` (Linux) or `rename` (Windows) do.

The folder is opened before anything is written, so one that cannot be flushed refuses while nothing has
happened.  Once the file has its name, a disk that fails to make it permanent is `NotDurableError`.

Files that are created together are all written before the first of them is flushed, and their folder is
flushed once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence

from shardio.errors import StorageError
from shardio.storage._store import Buffer, NotDurableError, UnknownOutcomeError
from shardio.storage._temporaries import new_temporary, remove_temporary

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
# What `fsync` of a folder answers where a filesystem has no such thing.
_NO_FOLDER_SYNC = frozenset(
    getattr(errno, name) for name in ("EINVAL", "ENOSYS", "ENOTSUP", "EOPNOTSUPP") if hasattr(errno, name)
)
# What `link` and `renameat2` answer where a filesystem, a mount or a sandbox does not know them.
_UNSUPPORTED = frozenset(
    getattr(errno, name)
    for name in ("EPERM", "EACCES", "ENOSYS", "ENOTSUP", "EOPNOTSUPP", "EINVAL", "EMLINK", "EXDEV")
    if hasattr(errno, name)
)


def create(
    objects: Sequence[tuple[str, Buffer | pathlib.Path]],
    *,
    move: bool,
    single_writer: bool,
) -> list[bool]:
    """Give each of some files its name, in order, unless that is taken; their folders must exist.

    Args:
        objects: path and content of each; the path of a file that holds it in place of the content.
        move: files that hold a content are gone afterwards where this call created theirs.
        single_writer: the caller vouches for being the only one.

    Returns:
        For each, True if this call created the file, False if there was one.

    Raises:
        NotDurableError: this call created a file, and the disk failed to make its name permanent.
        UnknownOutcomeError: the filesystem failed so that it cannot be told.
        StorageError: this filesystem cannot create exclusively, and the caller did not vouch for one writer.
        OSError: the disk is full, or the like; a file that this call names is left behind only where it is
            one before the file that failed.
    """
    created: list[bool] = []
    with contextlib.ExitStack() as stack:
        folders = dict.fromkeys(os.path.dirname(target) for target, _ in objects)
        syncs = [stack.enter_context(_opened(folder)) for folder in folders]
        on_way = [
            None if os.path.lexists(target) else stack.enter_context(_on_its_way(target, data, move=move))
            for target, data in objects
        ]
        for file in on_way:
            if file is not None:
                _sync_file(file)
        for (target, data), file in zip(objects, on_way, strict=True):
            created.append(file is not None and _publish(file, target, single_writer=single_writer))
            if created[-1] and move and isinstance(data, os.PathLike):
                remove_temporary(os.fspath(data))
        try:
            # Also where there was a file: an earlier attempt of the same writer may have made it.
            for sync in syncs:
                sync()
        except OSError as error:
            if not any(created):
                raise
            what = "the file has its name, but the disk failed to make that permanent"
            target = objects[created.index(True)][0]
            raise NotDurableError(what, url=target, found=str(error)) from error
    return created


@contextlib.contextmanager
def _on_its_way(target: str, data: Buffer | pathlib.Path, *, move: bool) -> Iterator[str]:
    """Yield the path of a file beside the target that holds the bytes, to be flushed and linked."""
    folder = os.path.dirname(target)
    if move and isinstance(data, os.PathLike) and _adopt(folder, data):
        yield os.fspath(data)
        return
    with written(folder, data) as temporary:
        yield temporary


def replace(target: str, data: Buffer | pathlib.Path) -> None:
    """Write `data` under the name `target`, atomically, over whatever has it; its folder must exist."""
    folder = os.path.dirname(target)
    with _opened(folder) as sync:
        with written(folder, data) as temporary:
            _sync_file(temporary)
            os.replace(temporary, target)
        sync()


def make_folders(folder: str, *, root: str) -> None:
    """Create a folder and its parents, and make their names durable.

    Args:
        folder: that is to be there.
        root: of the dataset, the folder itself or above it: its own name and those below are made durable
            also where they are there already, for another process may have made them a moment ago.

    Raises:
        OSError: one cannot be made, or its name not be made permanent.
    """
    names = []
    while folder != os.path.dirname(folder) and (len(folder) >= len(root) or not os.path.isdir(folder)):
        names.append(folder)
        folder = os.path.dirname(folder)
    for name in reversed(names):
        state = _name_state(name) if os.path.isdir(name) else None
        if state is not None and _durable_names.get(name) == state:
            continue
        try:
            with _opened(os.path.dirname(name)) as sync:
                if state is None:
                    try:
                        os.mkdir(name)
                    except FileExistsError:
                        if not os.path.isdir(name):
                            raise
                state = _name_state(name)
                sync()
        except PermissionError:
            # The writer of what is in there could; reading folders above the data is not ours to ask for.
            if state is None:
                raise
            continue
        if len(_durable_names) >= _MOST_NAMES:
            _durable_names.clear()
        _durable_names[name] = state


# Folders whose names this process has made permanent, and how they were found before.
_durable_names: dict[str, tuple[int, ...]] = {}
_MOST_NAMES = 4096


def _name_state(folder: str) -> tuple[int, ...]:
    """Return what differs once a folder is another one, or any name beside it was made or removed since."""
    info, above = os.stat(folder), os.stat(os.path.dirname(folder))
    return info.st_dev, info.st_ino, above.st_dev, above.st_ino, above.st_ctime_ns


def _publish(temporary: str, target: str, *, single_writer: bool) -> bool:
    try:
        return _link(temporary, target)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        refused = error
    rename = _exclusive_rename()
    try:
        if rename is not None:
            rename(temporary, target)
            return True
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED and not os.path.lexists(temporary):
            what = "the filesystem failed while the file was renamed; whether it has its name is unknown"
            raise UnknownOutcomeError(what, url=target, found=str(error)) from error
        if error.errno not in _UNSUPPORTED:
            raise
    if not single_writer:
        what = "this filesystem can neither link nor rename without replacing, so commits cannot be safe"
        advice = "use another filesystem, or single_writer=True if no other process writes here"
        raise StorageError(what, url=target, found=refused, advice=advice) from refused
    if os.path.lexists(target):
        return False
    os.rename(temporary, target)
    return True


def _link(temporary: str, target: str) -> bool:
    before = os.stat(temporary).st_nlink
    try:
        os.link(temporary, target)
    except OSError as error:
        # The count tells whether the link exists, whatever the response said.
        if _links(temporary, target, error) > before:
            return True
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def _links(temporary: str, target: str, error: OSError) -> int:
    try:
        return os.stat(temporary).st_nlink
    except OSError:
        what = "the filesystem failed while the file was given its name; whether it has it is unknown"
        raise UnknownOutcomeError(what, url=target, found=str(error)) from error


@functools.cache
def _exclusive_rename() -> Callable[[str, str], None] | None:
    if os.name == "nt":
        return os.rename
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return None
    renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def rename(source: str, target: str) -> None:
        names = os.fsencode(source), os.fsencode(target)
        if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)

    return rename


@contextlib.contextmanager
def written(folder: str, data: Buffer | pathlib.Path) -> Iterator[str]:
    """Write a temporary in a folder and yield its path; it is gone afterwards."""
    temporary = new_temporary(folder)
    try:
        with open(temporary, "xb", buffering=0) as file:
            if isinstance(data, os.PathLike):
                with open(data, "rb", buffering=0) as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                view = memoryview(data).cast("B")
                while view:
                    view = view[file.write(view) :]
        yield temporary
    finally:
        remove_temporary(temporary)


def _adopt(folder: str, spool: os.PathLike[str]) -> bool:
    """Make a spool file ready to be linked into `folder`; False if it is elsewhere and must be copied."""
    info = os.stat(spool)
    if info.st_dev != os.stat(folder).st_dev:
        return False
    # A spool of `tempfile` is for its owner alone; a published file has the rights of any new file here.
    if os.name != "nt" and (not info.st_mode & 0o077 or os.path.dirname(os.fspath(spool)) != folder):
        os.chmod(spool, _mode_of_new_files(folder))
    return True


def _mode_of_new_files(folder: str) -> int:
    """Return the rights of a new file in a folder; to ask for the umask is to change it for a moment."""
    sample = new_temporary(folder)
    try:
        with open(sample, "xb", buffering=0) as file:
            return os.fstat(file.fileno()).st_mode & 0o777
    finally:
        remove_temporary(sample)


def _sync_file(path: str) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[Callable[[], None]]:
    """Open a folder, and give what makes the names in it durable; where there is no such thing, nothing."""
    if os.name == "nt":
        yield lambda: None
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync() -> None:
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise

    try:
        yield sync
    finally:
        try:  # noqa: SIM105 - at a call of `suppress` an interrupt would come between
            os.close(number)
        except OSError:
            pass  # what there was to flush is flushed, or its failure is on its way
