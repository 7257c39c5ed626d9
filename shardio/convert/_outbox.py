"""Where exported files go: a folder that appears whole, or objects that are taken back when the export fails.

On local disk the files are made in a folder beside the target, which takes the target's name at the end.
In a bucket every finished file is one upload under a name that was free, and what was uploaded is deleted
if the export fails.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from shardio.errors import CommitConflictError, StorageError, UnsafeNameError
from shardio.metadata import check_foreign_key
from shardio.storage import connect

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Outbox"]


class Outbox:
    """The files of one export; they appear when the block is left normally, or none does.

    Args:
        target: folder or URL; must not exist, or be empty.
        storage_options: as in fsspec.

    Raises:
        CommitConflictError: there is something already.
        StorageError: the place cannot be written.
    """

    def __init__(self, target: str, storage_options: Mapping[str, object] | None = None) -> None:
        self._store = connect(target, storage_options=storage_options)
        self.url = self._store.url
        if self._store.read_only:
            raise StorageError(f"this place cannot be written: {self._store.read_only_reason}", url=self.url)
        if next(iter(self._store.list()), None) is not None:
            advice = "export to a new place"
            raise CommitConflictError("there is something here already", url=self.url, advice=advice)
        self._local = self._store.is_local
        parent = str(Path(self.url).parent) if self._local else None
        if parent is not None:
            Path(parent).mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix=".shardio-tmp-export-", dir=parent))
        self._put: list[str] = []
        self.names: list[str] = []

    def check(self, name: str) -> str:
        """Return the name of a file, or raise UnsafeNameError where it could lead out of the target."""
        try:
            return check_foreign_key(name)
        except UnsafeNameError as error:
            what = "a record names a file that could lead out of the target"
            raise UnsafeNameError(what, url=self.url, found=error.found, expected=error.expected) from error

    def path(self, name: str) -> Path:
        """Return the local path at which a file is to be made; call `finish` with the name when it is.

        Raises:
            UnsafeNameError: the name could lead elsewhere.
            CommitConflictError: there is a file of that name already.
        """
        self.check(name)
        path = self._folder / name
        if path.exists() or name in self._put:
            raise CommitConflictError("two records want the same file name", url=f"{self.url}/{name}")
        if any(folder.is_file() for folder in path.parents):
            raise CommitConflictError("a record wants a file's name for a folder", url=f"{self.url}/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def finish(self, name: str) -> None:
        """Take a file that was made at `path(name)`."""
        self.names.append(name)
        if self._local:
            return
        if not self._store.put_new(name, self._folder / name, move=True):
            raise CommitConflictError("somebody else wrote this file", url=f"{self.url}/{name}")
        self._put.append(name)
        (self._folder / name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                for name in self._put:
                    self._store.delete(name)
            elif self._local:
                self._appear()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _appear(self) -> None:
        self._folder.chmod(0o777 & ~_umask())
        try:
            # An empty folder gives way; anything else that came in the meantime does not.
            self._folder.rename(self.url)
        except OSError as error:
            advice = "export to a new place"
            raise CommitConflictError(
                f"the target could not be made ({error.strerror})", url=self.url, advice=advice
            ) from error


def _umask() -> int:
    """Return the process's mask for new files, which can be read only by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
