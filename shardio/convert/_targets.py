"""What an export writes, and where: files of one kind, in a folder that appears whole.

Plain TFRecord files, `<split>-00000.tfrecord`, payload for payload; compressed as by TensorFlow.

WebDataset tar files, `<split>-000000.tar`: a member a feature, `key.name` or `key.name.ending`.

The key is the feature `__key__` where there is one, else the record's number.  A feature whose name ends as
its type asks keeps its name (`jpg`, `seg.png`, `cls`); others get an ending: `label.cls`, `boxes.npy`.

JSON lines, `<split>.jsonl`: an object a record, arrays as lists, bytes as `{"$base64": ...}`.

Each line is a document that `shardio.format.parse_json` reads, and so does every strict reader.  Missing
values are left out.  Floating-point numbers are written so that they come back exactly; NaN, infinities and
complex numbers, for which JSON has no word, as `{"$float": "NaN"}` and `{"$complex": [real, imaginary]}`.

Parquet files, `<split>-00000.parquet`: a column a feature, row groups of at most 16 MiB or 10,000 rows.

The metadata of a field keep the feature's type as `shardio.type`, so that images and JSON, which Arrow does
not have, come back as what they were; bfloat16 comes back as float32.

Image folders: `[split/]class/name.jpg`, the files' bytes as they were stored.

The name is the feature "path" where there is one, else the class and the record's number; a class is called
as the feature "label" says, by its number where that names no classes.  A folder holds images and classes and
nothing else: the report says which features stayed behind, and a path that says another class than the
label, or a file that no reader of image folders would take for an image, is refused.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import math
import tarfile
import tempfile
import zlib
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar, Self

import numpy as np

from shardio import kernels
from shardio.catalog import check_place
from shardio.codecs import arrow_array
from shardio.convert._images import IMAGE_ENDINGS
from shardio.errors import CommitConflictError, SchemaError, StorageError, UnsafeNameError
from shardio.format import MAX_JSON_DEPTH, sample_name
from shardio.metadata import Feature, Schema, image_type, naming
from shardio.reader import DatasetReader
from shardio.sources import is_data
from shardio.storage import Store, connect, holds
from shardio.writer import AtomicWriter, catalog_to_write

_MEMBER_ENDINGS = {
    "jpeg": ("jpg", "jpeg"), "png": ("png",), "webp": ("webp",), "tiff": ("tif", "tiff"),
    "image": ("jpg", "jpeg", "png", "webp", "tif", "tiff", "img"),
    "text": ("txt", "text", "transcript", "cls", "id"),
    "json": ("json",), "int64": ("cls", "id", "index", "count", "inx", "cls2"),
}  # fmt: skip
_KEY = "__key__"
# Objects of one of these names alone stand for what JSON has no word for.
_SIGNS = ("$base64", "$float", "$complex")
_IMAGE_FILE_ENDINGS = {"jpeg": ".jpg", "png": ".png", "webp": ".webp", "tiff": ".tif"}
_STARTS = {b"GI": ".gif", b"BM": ".bmp", b"P5": ".pgm", b"P6": ".ppm"}
_HELD = ("path", "label")


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

    @property
    def place(self) -> str:
        """Where jobs write: the folder in which files are gathered, or the URL of the target."""
        return self.staging.url if self.staging.folder is None else str(self.staging.folder)

    def discard(self, names: Iterable[str]) -> None:
        """Remove what was uploaded for an export that failed."""
        if self._held is None:
            for name in names:
                self._store.delete(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._held is None:
            if kind is not None:
                self.discard(self.names)
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


class TfRecordWriter(GroupedFiles):
    """Write TFRecord files without index or manifest."""

    decode: ClassVar[bool] = False
    group: ClassVar[int] = 256
    group_bytes: ClassVar[int] = 8 << 20
    compressions: ClassVar[tuple[str, ...]] = ("gzip", "zlib")
    pattern: ClassVar[str] = "{split}-{number}.tfrecord"

    @classmethod
    def notes(cls, schema: Schema | None, older: Sequence[Schema]) -> list[str]:
        """Return also where a record's own names are not those that readers of the dataset see."""
        notes = super().notes(schema, older)
        if schema is None:
            return notes
        copied = "records are copied as they are: "
        for group in schema.groups:
            notes += [
                f"{copied}they hold the feature {name!r} as {feature.stored_name!r}"
                for name, feature in group.items()
                if feature.stored_name is not None
            ]
        hidden = {name for each in older for name in each.names_in_records} - schema.names_in_records
        names = ", ".join(map(repr, sorted(hidden)))
        return (
            [*notes, f"{copied}they still hold {names}, which no reader of the dataset sees"]
            if hidden
            else notes
        )

    def add(self, value: Any) -> None:
        """Take a payload."""
        self.hold(value, len(value))

    def write(self, items: list[Any], size: int) -> int:
        """Write frames."""
        del size
        frames, *_ = kernels.encode_frames(items)
        if self._file is None:
            path = self.next_path({None: "", "gzip": ".gz", "zlib": ".zz"}[self.compression])
            self._file = _created(path, self.compression)
        self._file.write(memoryview(frames))
        return len(frames)


def _created(path: Path, compression: str | None) -> Any:
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


class _Archive(tarfile.TarFile):
    """A tar file, with the list of its members that `tarfile` keeps and its types do not name."""

    members: list[tarfile.TarInfo]


class WebDatasetWriter(NumberedFiles):
    """Write tar files that webdataset reads."""

    pattern: ClassVar[str] = "{split}-{number}.tar"
    digits: ClassVar[int] = 6

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse records without features, and features that cannot be members or want the same one."""
        super().check(schema, compression)
        if schema is None or schema.sequence_features or not schema.keys() - {_KEY}:
            raise ValueError("WebDataset needs members: a schema with features, and no feature lists")
        taken: dict[str, str] = {}
        for name, feature in schema.items():
            if name == _KEY:
                continue
            if feature.shape and feature.kind in ("bytes", "image"):
                raise ValueError(f"feature {name!r} is a list of {feature.type}, which no member can hold")
            ending = _ending_of(name, feature)
            if sample_name(f"0.{ending}") != ("0", ending.lower()):
                raise ValueError(f"feature {name!r} cannot be the ending of a file name")
            # Readers compare endings in lower case.
            other = taken.setdefault(ending.lower(), name)
            if other != name:
                raise ValueError(f"features {other!r} and {name!r} would both be the member {ending!r}")

    def add(self, value: Any) -> None:
        """Write the members of a sample, one after another."""
        assert self.schema is not None  # noqa: S101 - as `check` found
        archive = self._opened()
        key = sample_key(value, self.number, self._keys)
        for info, data in tar_members(value, self.schema, key):
            archive.addfile(info, io.BytesIO(data))
        self._keys.add(key)
        self.records += 1
        if archive.offset >= self.shard_bytes:
            self.finish()

    def _opened(self) -> tarfile.TarFile:
        if self._file is None:
            self._file = _Archive.open(self.next_path(), "w", format=tarfile.PAX_FORMAT)
            self._keys: set[str] = set()
        archive: _Archive = self._file
        archive.members = []  # or it would remember every member
        return archive

    def abort(self) -> None:
        """Close the file that is open, without the blocks that end an archive."""
        if self._file is not None:
            self._file.fileobj.close()


def schema_of(reader: DatasetReader) -> Schema | None:
    """Return the schema of the values that a reader gives: without features that it leaves out."""
    schema, chosen = reader.schema, reader.source.options.features
    if schema is None:
        return None
    return schema.with_groups(
        {
            name: feature.replace(stored_name=None)
            for name, feature in group.items()
            if chosen is None or name in chosen
        }
        for group in schema.groups
    )


def sample_key(value: Mapping[str, Any], number: int, taken: Collection[str]) -> str:
    """Return the key of a record in tar files: its feature `__key__`, or else its number.

    Raises:
        SchemaError: the key was taken before; readers would take both for one sample.
        UnsafeNameError: the key names a file outside of the archive.
    """
    given = value.get(_KEY)
    key = f"{number:09d}" if given is None else str(given)
    naming.check_foreign_key(key.removeprefix("./"), what=f"the feature {_KEY!r}")
    if key in taken:
        raise SchemaError(
            f"feature {_KEY!r} holds a key for the second time: readers would take both for one sample",
            found=repr(key),
            advice=f"write another {_KEY!r}, or leave it out, and records are numbered",
        )
    return key


def tar_members(value: Mapping[str, Any], schema: Schema, key: str) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return the members of a record's sample, in the order of the schema, with what they hold.

    Raises:
        SchemaError: a member's name would be read as another one, or the record has no member.
    """
    members = []
    for name, feature in schema.items():
        item = value.get(name)
        # The null of a required document is a value of its own.
        if name == _KEY or (item is None and feature.optional):
            continue
        ending = _ending_of(name, feature)
        if sample_name(f"{key}.{ending}") != (key, ending.lower()):
            advice = "write keys without dots in their last part, and no names like __x__"
            what = f"readers would cut or pass over the member {ending!r} of {_KEY!r} {key!r}"
            raise SchemaError(what, advice=advice)
        data = _contents(item, name, feature)
        info = tarfile.TarInfo(f"{key}.{ending}")
        info.size, info.mode, info.mtime = len(data), 0o444, 0
        members.append((info, data))
    if not members:
        names = ", ".join(repr(name) for name in schema if name != _KEY)
        raise SchemaError(f"a record without any member cannot be a sample: it has none of {names}")
    return members


def _ending_of(name: str, feature: Feature) -> str:
    """Return the ending of a feature's members."""
    if feature.kind == "number":
        return _ending(name, _MEMBER_ENDINGS["int64"] if _is_integer(feature) else ("npy",))
    if feature.shape:
        return _ending(name, ("json",))
    if feature.type == "bytes" or feature.kind == "tensor":
        return name if "." in name or len(name) <= 5 else f"{name}.bin"
    return _ending(name, _MEMBER_ENDINGS[feature.type])


def _is_integer(feature: Feature) -> bool:
    return feature.type == "int64" and not feature.shape


def _contents(value: Any, name: str, feature: Feature) -> bytes:
    """Return the bytes of a member."""
    if feature.kind == "number":
        if _is_integer(feature):
            return str(int(value)).encode()
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value), allow_pickle=False)
        return buffer.getvalue()
    if feature.shape or feature.kind == "json":
        return json_text(value).encode()
    return b"".join(feature.fit(value, name))


def _ending(name: str, endings: tuple[str, ...]) -> str:
    return name if name.rpartition(".")[2] in endings else f"{name}.{endings[0]}"


class JsonLinesWriter(TargetWriter):
    """Write JSON lines."""

    names: ClassVar[str] = "{split}[-.]*"
    compressions: ClassVar[tuple[str, ...]] = ("gzip",)

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse names that mean something else in a line."""
        super().check(schema, compression)
        if schema is None:
            return
        for name in (*schema, *schema.sequence_features):
            if name in _SIGNS:
                raise ValueError(f"feature {name!r}: in JSON lines this name stands for bytes and numbers")

    @property
    def _name(self) -> str:
        part = "" if self.first is None else f"-{self.first:010d}"
        return f"{self.split}{part}.jsonl" + ".gz" * (self.compression == "gzip")

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = _created(self.output.path(self._name), self.compression)
        opened: IO[bytes] = self._file
        return opened

    def add(self, value: Any) -> None:
        """Write a line."""
        self._opened().write(json_line(value, self.schema))
        self.records += 1

    def close(self) -> None:
        """Close the file; a split without records is an empty one."""
        self._opened().close()
        self.output.finish(self._name)


def json_line(value: Any, schema: Schema | None) -> bytes:
    """Return a record as a line of JSON lines, its newline included.

    Raises:
        SchemaError: JSON cannot hold the value; names the feature.
    """
    if schema is None:
        plain = _plain(value, "the record")
    elif schema.sequence_features:
        plain = _sequence(value, schema)
    else:
        plain = _features(value, schema)
    return json_text(plain).encode() + b"\n"


def _features(value: Any, features: Mapping[str, Feature]) -> Any:
    # What is missing is left out; a null that a required document is, or has within, is its own.
    return {
        name: _feature(item, name, features[name]) if name in features else _plain(item, name)
        for name, item in value.items()
        if item is not None or (name in features and not features[name].optional)
    }


def _sequence(value: Any, schema: Schema) -> Any:
    lists = {
        name: [_feature(item, name, schema.sequence_features[name]) for item in items]
        if name in schema.sequence_features and isinstance(items, list)
        else _plain(items, name)
        for name, items in value["feature_lists"].items()
        if items is not None
    }
    return {"context": _features(value["context"], schema), "feature_lists": lists}


def _feature(item: Any, name: str, feature: Feature) -> Any:
    if feature.kind == "number":
        return _plain(as_lists(item, name, feature), name)
    if feature.kind == "json":
        _check_document(item, name)
    return _plain(feature.fit(item, name)[0] if feature.kind == "tensor" else item, name)


def _check_document(value: Any, name: str) -> None:
    stack = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth >= MAX_JSON_DEPTH:
            # The line is one level deeper than its features.
            raise SchemaError(f"feature {name!r} is nested too deep for a line", expected=MAX_JSON_DEPTH - 1)
        if isinstance(item, dict):
            if len(item) == 1 and next(iter(item)) in _SIGNS:
                sign = next(iter(item))
                what = f"feature {name!r} holds an object of {sign!r} alone, which stands for something else"
                raise SchemaError(what)
            stack += [(part, depth + 1) for part in item.values()]
        elif isinstance(item, list):
            stack += [(part, depth + 1) for part in item]


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item, name) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist(), name)
    if isinstance(value, complex):
        return {"$complex": [_plain(value.real, name), _plain(value.imag, name)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value


class ParquetWriter(GroupedFiles):
    """Write Parquet with pyarrow."""

    group: ClassVar[int] = 10_000
    group_bytes: ClassVar[int] = 16 << 20
    compressions: ClassVar[tuple[str, ...]] = ("zstd", "gzip", "snappy")
    holds_classes: ClassVar[bool] = True
    pattern: ClassVar[str] = "{split}-{number}.parquet"

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse records without columns, and types that Arrow does not have."""
        super().check(schema, compression)
        if not schema or schema.sequence_features:
            raise ValueError("Parquet needs columns: a schema with features, and no feature lists")
        from shardio.convert._columns import arrow_schema

        arrow_schema(schema)

    def add(self, value: Any) -> None:
        """Take a row."""
        assert self.schema is not None  # noqa: S101 - as `check` found
        row = {name: _cell(value.get(name), name, feature) for name, feature in self.schema.items()}
        self.hold(row, sum(map(_size, value.values())))

    def write(self, items: list[Any], size: int) -> int:
        """Write a row group."""
        import pyarrow as pa
        import pyarrow.parquet

        from shardio.convert._columns import arrow_schema

        assert self.schema is not None  # noqa: S101 - as `check` found
        schema = arrow_schema(self.schema)
        if self._file is None:
            self._file = pyarrow.parquet.ParquetWriter(
                self.next_path(), schema, compression=self.compression or "snappy"
            )
        columns = []
        for column, feature in zip(schema, self.schema.values(), strict=True):
            values = [row[column.name] for row in items]
            number = feature.kind == "number"
            columns.append(arrow_array(values, feature) if number else pa.array(values, column.type))
        self._file.write_table(pa.Table.from_arrays(columns, schema=schema))
        return size


def _cell(value: Any, name: str, feature: Feature) -> Any:
    if value is None and (feature.optional or feature.kind != "json"):
        return None
    if feature.kind == "json":
        # A list of documents stays one document, as it is one value; so does the null of a required one.
        return json_text(value)
    if feature.kind == "number" and np.size(value) == 0:
        as_lists(value, name, feature)  # refuses sizes that lists cannot tell
    return feature.fit(value, name)[0] if feature.kind == "tensor" else value


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    return len(value) if isinstance(value, bytes | str | list) else 8


class ImageFolderWriter(TargetWriter):
    """Write one file a record."""

    holds_classes: ClassVar[bool] = True
    names: ClassVar[str] = "{split}/*"
    file_is_record: ClassVar[bool] = True

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse records without exactly one image."""
        super().check(schema, compression)
        found = _image_features(schema)
        if len(found) != 1:
            message = f"an image folder needs records with one image; found {', '.join(found) or 'none'}"
            raise ValueError(message)

    @classmethod
    def notes(cls, schema: Schema | None, older: Sequence[Schema]) -> list[str]:
        """Return the features that a folder of images does not hold."""
        del older
        others = [name for name in schema or () if name not in (*_image_features(schema), *_HELD)]
        return [f"an image folder does not hold the features {', '.join(others)}"] if others else []

    def add(self, value: Any) -> None:
        """Write a file."""
        (name,) = _image_features(self.schema)
        data = value[name]
        if data is None:
            raise SchemaError(f"feature {name!r} is missing: there is no image to write")
        folder = self._class_of(value)
        path = value.get("path") if self.schema is not None and "path" in self.schema else None
        if path is None:
            ending = _IMAGE_FILE_ENDINGS.get(image_type(data[:16]) or "") or _STARTS.get(bytes(data[:2]))
            if ending is None:
                raise SchemaError(f"feature {name!r} is not an image of known format", found=repr(data[:16]))
            path = f"{folder}/" * (folder is not None) + f"{self.number:09d}{ending}"
        path = self.output.check(str(path))
        if not path.lower().endswith(IMAGE_ENDINGS) or not is_data(path):
            what = "feature 'path' names a file that readers of image folders pass over"
            raise SchemaError(what, expected=" ".join(IMAGE_ENDINGS), found=path)
        parts = path.split("/")[:-1]
        in_split = bool(parts) and parts[0] == self.split
        if folder is not None and folder not in (parts[:1] + parts[1:2] * in_split):
            what = "feature 'path' is in the folder of another class than 'label' says"
            raise SchemaError(what, expected=f"{folder}/...", found=path)
        if self.splits > 1 and not in_split:
            path = f"{self.split}/{path}"
        self.output.path(path).write_bytes(data)
        self.output.finish(path)
        self.records += 1

    def close(self) -> None:
        """Every file is finished already."""

    def _class_of(self, value: Any) -> str | None:
        label = value.get("label")
        if label is None:
            return None
        assert self.schema is not None  # noqa: S101 - as `check` found
        classes = self.schema["label"].classes
        if classes is None:
            return str(label)
        if not 0 <= int(label) < len(classes):
            what = "feature 'label' is the number of no class: there is no folder for the image"
            raise SchemaError(what, expected=f"0 to {len(classes) - 1}", found=int(label))
        name = classes[int(label)]
        if "/" in name or name.startswith("."):
            what = f"feature 'label': the class {name!r} cannot be the name of a folder"
            raise SchemaError(what, expected="a name without '/', which does not begin with a dot")
        return name


def _image_features(schema: Schema | None) -> list[str]:
    features = () if schema is None else schema.items()
    return [name for name, feature in features if feature.kind == "image" and not feature.shape]
