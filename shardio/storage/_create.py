"""Create a local file whole and only if its name is free: durable, and exactly one of many racers wins.

Bytes go to a temporary beside the target, are flushed to disk, and get their name by `link`, which fails
where the name is taken.  NFS may lose the response of a `link` that took effect; the temporary's link count
tells the truth.  Where links do not exist, `renameat2(RENAME_NOREPLACE)` (Linux) or `rename` (Windows) do.

The folder is opened before anything is written, so one that cannot be flushed refuses while nothing has
happened.  Once the file has its name, a disk that fails to make it permanent is `NotDurableError`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from shardio.errors import StorageError
from shardio.storage._keys import TEMPORARY
from shardio.storage._store import NotDurableError, UnknownOutcomeError

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    from shardio.storage._store import Buffer

__all__ = ["create", "make_folders", "replace"]

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
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


def create(target: str, data: Buffer | pathlib.Path, *, move: bool, single_writer: bool) -> bool:
    """Give `data` the name `target` unless that is taken; its folder must exist.

    Returns:
        True if this call created the file, False if there was one.

    Raises:
        NotDurableError: this call created the file, and the disk failed to make its name permanent.
        UnknownOutcomeError: the filesystem failed so that it cannot be told.
        StorageError: this filesystem cannot create exclusively, and the caller did not vouch for one writer.
        OSError: the disk is full, or the like; nothing is left behind.
    """
    folder = os.path.dirname(target)
    with _opened(folder) as sync:
        created = not os.path.lexists(target) and _given_its_name(
            folder, target, data, move=move, single_writer=single_writer
        )
        try:
            # Also where there was a file: an earlier attempt of the same writer may have made it.
            sync()
        except OSError as error:
            if not created:
                raise
            what = "the file has its name, but the disk failed to make that permanent"
            raise NotDurableError(what, url=target, found=str(error)) from error
    return created


def _given_its_name(
    folder: str, target: str, data: Buffer | pathlib.Path, *, move: bool, single_writer: bool
) -> bool:
    if move and isinstance(data, os.PathLike) and _adopt(folder, data):
        created = _publish(os.fspath(data), target, single_writer=single_writer)
        if created:
            _remove(os.fspath(data))
        return created
    temporary = _written(folder, data)
    try:
        created = _publish(temporary, target, single_writer=single_writer)
        if created and move and isinstance(data, os.PathLike):
            _remove(os.fspath(data))
    finally:
        _remove(temporary)
    return created


def replace(target: str, data: Buffer) -> None:
    """Write `data` under the name `target`, atomically, over whatever has it; its folder must exist."""
    with _opened(os.path.dirname(target)) as sync:
        temporary = _written(os.path.dirname(target), data)
        try:
            os.replace(temporary, target)
        except BaseException:
            _remove(temporary)
            raise
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
    missing = []
    there = folder
    while not os.path.isdir(there):
        missing.append(there)
        if there == os.path.dirname(there):
            break
        there = os.path.dirname(there)
    for name in reversed(missing):
        with _opened(os.path.dirname(name)) as sync:
            try:
                os.mkdir(name)
            except FileExistsError:
                if not os.path.isdir(name):
                    raise
            sync()
    while len(there) >= len(root) and there != os.path.dirname(there):
        there = os.path.dirname(there)
        try:
            with _opened(there) as sync:
                sync()
        except PermissionError:
            # The writer of what is in there could; reading a folder above the data is not ours to ask for.
            continue


def _publish(temporary: str, target: str, *, single_writer: bool) -> bool:
    refused: BaseException | None = None
    for attempt in (_link, _rename_exclusively):
        try:
            return attempt(temporary, target)
        except _UnsupportedHere as error:
            refused = refused or error.__cause__
    if not single_writer:
        what = "this filesystem can neither link nor rename without replacing, so commits cannot be safe"
        advice = "use another filesystem, or single_writer=True if no other process writes here"
        raise StorageError(what, url=target, found=refused, advice=advice) from refused
    if os.path.lexists(target):
        return False
    os.rename(temporary, target)
    return True


class _UnsupportedHere(Exception):  # noqa: N818 - control flow within this file, never seen outside
    pass


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
        if error.errno in _UNSUPPORTED:
            raise _UnsupportedHere from error
        raise
    return True


def _links(temporary: str, target: str, error: OSError) -> int:
    try:
        return os.stat(temporary).st_nlink
    except OSError:
        what = "the filesystem failed while the file was given its name; whether it has it is unknown"
        raise UnknownOutcomeError(what, url=target, found=str(error)) from error


def _rename_exclusively(temporary: str, target: str) -> bool:
    rename = _exclusive_rename()
    if rename is None:
        raise _UnsupportedHere
    try:
        rename(temporary, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise _UnsupportedHere from error
        if not os.path.lexists(temporary):
            what = "the filesystem failed while the file was renamed; whether it has its name is unknown"
            raise UnknownOutcomeError(what, url=target, found=str(error)) from error
        raise
    return True


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


def _written(folder: str, data: Buffer | pathlib.Path) -> str:
    """Write a temporary in `folder` and flush it to disk; remove it if that fails."""
    temporary = os.path.join(folder, TEMPORARY + secrets.token_hex(12))
    number = os.open(temporary, _NEW, 0o666)
    try:
        with open(number, "wb", buffering=0) as file:
            if isinstance(data, os.PathLike):
                with open(data, "rb", buffering=0) as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                view = memoryview(data).cast("B")
                while view:
                    view = view[file.write(view) :]
            os.fsync(number)
    except BaseException:
        _remove(temporary)
        raise
    return temporary


def _adopt(folder: str, spool: os.PathLike[str]) -> bool:
    """Make a spool file ready to be linked into `folder`; False if it is elsewhere and must be copied."""
    if os.stat(spool).st_dev != os.stat(folder).st_dev:
        return False
    if os.name != "nt":
        # A spool of `tempfile` is for its owner alone; a published file has the rights of any new file here.
        os.chmod(spool, _mode_of_new_files(folder))
    _sync_file(spool)
    return True


def _mode_of_new_files(folder: str) -> int:
    """Return the rights of a new file in a folder; to ask for the umask is to change it for a moment."""
    sample = os.path.join(folder, TEMPORARY + secrets.token_hex(12))
    number = os.open(sample, _NEW, 0o666)
    try:
        return os.fstat(number).st_mode & 0o777
    finally:
        _remove(sample)
        os.close(number)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _sync_file(path: os.PathLike[str]) -> None:
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
        # What there was to flush is flushed, or its failure is on its way.
        with contextlib.suppress(OSError):
            os.close(number)
