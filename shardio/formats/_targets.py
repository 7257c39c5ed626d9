"""What an export writes, and where: files of one kind, in a folder that appears whole.

Each kind is a class in the file of its format, beside what reads it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Self

import numpy as np

from shardio.catalog import check_place
from shardio.errors import CommitConflictError, SchemaError, StorageError, UnsafeNameError
from shardio.metadata import Feature, Schema, naming
from shardio.reader import DatasetReader
from shardio.storage import Store, connect, holds
from shardio.writer import AtomicWriter, catalog_to_write


def empty_target(target: str, storage_options: Mapping[str, object] | None = None) -> Store:
    """Return the place of an export, where nothing may be.

    Raises:
        CommitConflictError: there is something already, or the place is within a dataset.
        StorageError: the place cannot be written.
        ValueError: the place is in the metadata of a dataset.
    """
    store = catalog_to_write(target, storage_options, single_writer=False).store
    # Whatever looks after the files of the dataset would meet the others.
    check_place(store.url, storage_options)
    if next(iter(store.list()), None) is not None:
        advice = "export to a new place"
        raise CommitConflictError("there is something here already", url=store.url, advice=advice)
    return store


@dataclass(frozen=True)
class Staging:
    """Where the files of an export are gathered; travels to the jobs that make them.

    Attributes:
        url: of the target.
        storage_options: as in fsspec.
        folder: on a local disk, beside the target: whole files are in `files`, a folder of each job besides;
            None for a bucket, into which each file is uploaded.
    """

    url: str
    storage_options: Mapping[str, object] | None
    folder: Path | None


class AtomicOutput:
    """The files of one export; they appear when the block is left normally, or none does.

    On local disk the files are gathered in a folder beside the target, which takes the target's name at the
    end. In a bucket every finished file is one upload under a name that was free, and what was uploaded is
    deleted if the export fails.

    Args:
        target: folder or URL; must not exist, or be empty.
        storage_options: as in fsspec.

    Raises:
        CommitConflictError: there is something already.
        StorageError: the place cannot be written.
    """

    def __init__(self, target: str, storage_options: Mapping[str, object] | None = None) -> None:
        self._store = empty_target(target, storage_options)
        url = self._store.url
        self._held: tempfile.TemporaryDirectory[str] | None = None
        if self._store.is_local:
            parent = Path(url).parent
            with _no_folder(parent):
                parent.mkdir(parents=True, exist_ok=True)
                # It goes also where an interrupt comes before the block is entered.
                self._held = tempfile.TemporaryDirectory(
                    prefix=".shardio-tmp-export-", dir=parent, ignore_cleanup_errors=True
                )
                Path(self._held.name, "files").mkdir()
        folder = None if self._held is None else Path(self._held.name)
        self.staging = Staging(url, storage_options, folder)
        self.names: dict[str, None] = {}

    def take(self, names: Sequence[str]) -> None:
        """Take files that a job has handed over.

        Raises:
            CommitConflictError: another job has made one of the same name.
        """
        for name in names:
            if name in self.names:
                raise CommitConflictError(
                    "two files of the export want the same name",
                    url=f"{self.staging.url}/{name}",
                    advice="without executor= one process names all files",
                )
            self.names[name] = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._held is None:
            if kind is not None:
                for name in self.names:
                    self._store.delete(name)
            return
        try:
            if kind is None:
                self._appear(Path(self._held.name, "files"))
        finally:
            self._held.cleanup()

    def _appear(self, folder: Path) -> None:
        url = self.staging.url
        try:
            # An empty folder gives way; anything else that came in the meantime does not.
            folder.rename(url)
        except OSError as error:
            advice = "export to a new place"
            raise CommitConflictError(
                f"the target could not be made ({error.strerror})", url=url, advice=advice
            ) from error


class JobFiles:
    """The files that one job of an export makes; each is handed over when it is whole.

    A job that is run again makes the same ones again. What it uploaded is deleted if it fails.

    Args:
        staging: where they go.

    Attributes:
        url: of the target.
        folder: on a local disk, in which files are made; when the block is left it goes.
        names: of the files that were handed over, in their order.
    """

    def __init__(self, staging: Staging) -> None:
        self.url = staging.url
        self._gathered = None if staging.folder is None else staging.folder / "files"
        self._store = connect(staging.url, storage_options=staging.storage_options)
        with _no_folder(staging.folder or tempfile.gettempdir()):
            self._held = tempfile.TemporaryDirectory(
                prefix="shardio-export-", dir=staging.folder, ignore_cleanup_errors=True
            )
        self.folder = Path(self._held.name)
        self.names: dict[str, None] = {}
        self._folders: set[str] = set()

    def check(self, name: str) -> str:
        """Return the name of a file, or raise UnsafeNameError where it could lead out of the target."""
        try:
            return naming.check_foreign_key(name)
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
        path = self.folder / name
        if name in self.names or name in self._folders:
            raise CommitConflictError("two records want the same file name", url=f"{self.url}/{name}")
        folders = [str(folder) for folder in PurePosixPath(name).parents][:-1]
        if not self.names.keys().isdisjoint(folders):
            raise CommitConflictError("a record wants a file's name for a folder", url=f"{self.url}/{name}")
        self._folders.update(folders)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def finish(self, name: str) -> None:
        """Take a file that was made at `path(name)`."""
        path = self.folder / name
        self.names[name] = None
        if self._gathered is not None:
            whole = self._gathered / name
            whole.parent.mkdir(parents=True, exist_ok=True)
            path.replace(whole)
            return
        # It is there where this job has uploaded it before, and its worker was lost.
        created = self._store.put_if_absent(name, path, move=True)
        if not created and not holds(self._store, name, path.read_bytes()):
            del self.names[name]
            raise CommitConflictError("another writer wrote this file", url=f"{self.url}/{name}")
        path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for name in self.names if kind is not None and self._gathered is None else ():
                self._store.delete(name)
        finally:
            self._held.cleanup()


@contextlib.contextmanager
def _no_folder(place: str | Path) -> Iterator[None]:
    """Say where no folder can be made."""
    try:
        yield
    except OSError as error:
        what = "no folder can be made for the files"
        raise StorageError(what, url=str(place), found=error.strerror) from error


@dataclass(eq=False, repr=False)
class TargetWriter(AtomicWriter):
    """Write the records of one split, or of a part of it; files are complete when the block is left.

    Args:
        output: takes the files.
        split: its name.
        schema: says what the values are; None where they are bytes.
        compression: of the files, or None.
        shard_bytes: bytes after which a new file is begun.
        splits: how many splits are exported.
        first: where others write the rest of the split, how many records come before; names of files and keys
            continue from it. None for all of the split.

    Attributes:
        decode: whether values are wanted, or payloads.
        holds_classes: whether the names of classes go with their numbers.
        compressions: that it knows.
        names: pattern of the names of the files of a split.
        file_is_record: each file is a record, as for sources.
        records: how many were added.
    """

    decode: ClassVar[bool] = True
    holds_classes: ClassVar[bool] = False
    compressions: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[str] = "{split}-[0-9]*"
    file_is_record: ClassVar[bool] = False
    records = 0
    _file: Any = field(default=None, init=False)

    output: JobFiles
    split: str
    schema: Schema | None
    _: KW_ONLY
    compression: str | None
    shard_bytes: int
    splits: int
    first: int | None = None

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse what this kind cannot hold, before anything is made.

        Raises:
            ValueError: says which feature, or that the compression is unknown.
        """
        del schema
        if compression not in (None, *cls.compressions):
            known = "".join(f" or {name!r}" for name in cls.compressions)
            raise ValueError(f"compression={compression!r} must be None{known}")

    @classmethod
    def notes(cls, schema: Schema | None, older: Sequence[Schema]) -> list[str]:
        """Return what the files do not hold of records with this schema, and older ones of the dataset."""
        del older
        names = [] if schema is None or cls.holds_classes else list(schema)
        named = [name for name in names if schema is not None and schema[name].classes is not None]
        return [f"of {', '.join(named)} the files hold numbers, not the names of classes"] if named else []

    @abstractmethod
    def add(self, value: Any) -> None:
        """Write one record, or nothing of it.

        Raises:
            SchemaError: the kind cannot hold this value; names the feature.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish the last file."""

    def abort(self) -> None:
        """Close the file that is open; the output removes it."""
        if self._file is not None:
            self._file.close()

    @property
    def number(self) -> int:
        """The number of the next record among those of its split."""
        return (self.first or 0) + self.records

    @property
    def made(self) -> Any:
        """What `conclude` is to know of the files of this writer; asked when it has ended."""
        return None

    @classmethod
    def conclude(cls, output: JobFiles, split: str, made: Sequence[Any]) -> None:
        """Make what there is once of a split, such as an index of its files; `made` is in their order."""


def json_text(value: Any) -> str:
    """Return a JSON document; what has no UTF-8 is escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if any("\ud800" <= char <= "\udfff" for char in text):
        return json.dumps(value, allow_nan=False)
    return text


def as_lists(value: Any, name: str, feature: Feature) -> Any:
    """Return an array as nested lists, or a number; bfloat16 as the float that it is.

    Raises:
        SchemaError: an array without elements whose sizes nested lists cannot tell.
    """
    array = np.asarray(value)
    if feature.type == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    lists = array.tolist()
    if array.size == 0 and array.ndim > 1:
        try:
            kept = np.shape(feature.fit(lists, name)) == array.shape
        except SchemaError:
            kept = False
        if not kept:
            what = f"feature {name!r} has no elements, and nested lists cannot tell its sizes"
            raise SchemaError(what, found=f"shape {list(array.shape)}")
    return lists


class NumberedFiles(TargetWriter):
    """Write one split into files that follow each other; one is open at a time.

    Attributes:
        pattern: of their names, with `{split}` and `{number}`.
        digits: of the numbers; those of a part of a split have ten.
    """

    pattern: ClassVar[str]
    digits: ClassVar[int] = 5
    _name = ""
    _number = 0
    _file_bytes = 0

    def next_path(self, ending: str = "") -> Path:
        """Return where the next file is to be written; its name ends with `ending`."""
        # A file holds a record at least, so no part's numbers reach those of the next.
        digits = self.digits if self.first is None else 10
        number = f"{(self.first or 0) + self._number:0{digits}d}"
        self._name = self.pattern.format(split=self.split, number=number) + ending
        self._number += 1
        return self.output.path(self._name)

    def grow(self, size: int) -> None:
        """Count bytes written to the open file, and finish it once it is large enough."""
        self._file_bytes += size
        if self._file_bytes >= self.shard_bytes:
            self.finish()
            self._file_bytes = 0

    def finish(self) -> None:
        """Close the file that is open, if there is one, and hand it over."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self.output.finish(self._name)

    def close(self) -> None:
        """Finish the last file; a split without records has none."""
        self.finish()


class GroupedFiles(NumberedFiles):
    """Write records in groups of `group` records or `group_bytes` bytes, whichever comes first."""

    group: ClassVar[int]
    group_bytes: ClassVar[int]

    def hold(self, item: Any, size: int) -> None:
        """Let a record of so many bytes wait until there are enough."""
        if not self.records:
            self._waiting: list[Any] = []
            self._waiting_bytes = 0
        self.records += 1
        self._waiting.append(item)
        self._waiting_bytes += size
        if len(self._waiting) >= self.group or self._waiting_bytes >= min(self.group_bytes, self.shard_bytes):
            self._flush()

    @abstractmethod
    def write(self, items: list[Any], size: int) -> int:
        """Write records of so many bytes to the open file; return by how much it grows."""

    def _flush(self) -> None:
        items, size = self._waiting, self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0
        self.grow(self.write(items, size))

    def close(self) -> None:
        """Write the records that wait; a split without records has no file."""
        if self.records and self._waiting:
            self._flush()
        self.finish()


def create_file(path: Path, compression: str | None) -> Any:
    """Return a new file that takes bytes: plain, gzip, or one ZLIB stream."""
    if compression == "zlib":
        return _ZlibFile(path)
    # mtime=0: the same records give the same bytes.
    return gzip.GzipFile(path, "wb", 6, mtime=0) if compression else path.open("wb")


class _ZlibFile:
    """A file that is one ZLIB stream: TensorFlow reads the first of several and drops the rest."""

    def __init__(self, path: Path) -> None:
        self._stream = zlib.compressobj()
        self._file = path.open("wb")

    def write(self, data: memoryview) -> None:
        self._file.write(self._stream.compress(data))

    def close(self) -> None:
        with self._file:
            self._file.write(self._stream.flush())


def schema_of(reader: DatasetReader) -> Schema | None:
    """Return the schema of the values that a reader gives: without features that it leaves out."""
    schema, chosen = reader.schema, reader.source.options.features
    if schema is None:
        return None
    return schema.with_fields(
        {
            (group, name): feature.replace(stored_name=None)
            for (group, name), feature in schema.fields.items()
            if chosen is None or name in chosen
        }
    )
