"""WebDataset: tar files whose consecutive members of one key are a sample; `{"__key__", extension: ...}`.

`shardio_indexer.TarFramer` finds the samples, as for adopted tar files: those of the webdataset library.
Members stay bytes unless their extension says more: `cls`,
`id` and `index` integers, `txt` and `json` text and JSON, `npy` an array, images what they are.  Nothing is
unpickled.  A member that does not hold what its extension says is refused, and may be kept as it is with
`schema={"json": "bytes"}`.
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shardio.arguments import accepts
from shardio.errors import BadRecord, SchemaError
from shardio.format import parse_json, parse_npy, read_sample, sample_name
from shardio.formats import (
    IMAGE_TYPES,
    FileSource,
    NumberedFiles,
    Piece,
    Sample,
    Unreadable,
    decoded_pieces,
    exact_integer,
    image_trouble,
    integer_type,
    json_text,
    keep_as,
    label_of,
    misfit,
    names_classes,
)
from shardio.metadata import Feature, Schema, image_type, naming
from shardio.parallel import Note
from shardio_indexer import SalvageOptions, TarFramer, iterate_frames

_MEMBER_ENDINGS = {
    "jpeg": ("jpg", "jpeg"), "png": ("png",), "webp": ("webp",), "tiff": ("tif", "tiff"),
    "image": ("jpg", "jpeg", "png", "webp", "tif", "tiff", "img"),
    "text": ("txt", "text", "transcript", "cls", "id"),
    "json": ("json",), "int64": ("cls", "id", "index", "count", "inx", "cls2"),
}  # fmt: skip
_KEY = "__key__"
INTEGER_ENDINGS = {"cls", "cls2", "id", "index", "count", "inx"}
_TEXTS = {"txt", "text", "transcript"}


class _Member(bytes):
    """The bytes of a member, of which the schema says what they are."""

    __slots__ = ()


@dataclass(frozen=True)
class WebDataset(FileSource):
    """Tar files in the layout of WebDataset."""

    kind: ClassVar[str] = "webdataset"
    known_options: ClassVar[frozenset[str]] = FileSource.known_options | {"classes", "check_images"}

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord | Note]:
        """Yield the samples that adoption finds, one after another, in constant memory but for their keys."""
        if not piece.size:
            yield BadRecord(piece.url, "the tar file is empty")
            return
        framer = TarFramer(salvage=SalvageOptions(enabled=True))
        seen: set[str] = set()
        repeated: list[str] = []
        ended = False
        pieces = decoded_pieces(piece.root, piece.key, self.options.storage_options)
        for frame in iterate_frames(framer, pieces):
            where = f"{piece.url} byte {frame.start}"
            if frame.sample is None:
                reason = frame.reason or ""
                ended = ended or reason == TarFramer.END
                if reason.startswith("damage"):
                    yield BadRecord(where, f"the tar file is damaged: {reason.removeprefix('damage: ')}")
                continue
            if ended:
                yield BadRecord(where, "bytes follow the end of the tar file: a second archive")
                ended = False
            key, members = frame.sample
            where = f"{piece.url} {_shown(key)} byte {frame.start}"
            trouble = _trouble(key, members)
            if trouble is not None:
                yield BadRecord(where, trouble)
                continue
            repeated += [_shown(key)] * (key in seen)
            seen.add(key)
            value = _value(key, members, frame.data, frame.start)
            yield Sample(where, value, f"{piece.url} {_shown(key)}")
        if framer.notes.pop(TarFramer.NO_END, 0):
            yield BadRecord(piece.url, f"the tar file is damaged: {TarFramer.NO_END}; it may have been cut")
        for what, count in framer.notes.items():
            yield Note(piece.url, f"{what}: {count}")
        if repeated:
            what = f"{len(repeated)} samples have the name of an earlier one: {_some(repeated)}"
            yield Note(piece.url, f"{what}; each is a record, as in the webdataset library")

    @staticmethod
    def of_payload(payload: bytes) -> dict[str, Any]:
        """Return the sample that an adopted tar file holds as a payload, as `read` would yield it."""
        return _value(*read_sample(payload), payload)

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the classes of the members `cls`, where the caller names them."""
        return {} if self.options.classes is None else {"cls": label_of(self.options.classes)}

    def infer(self, name: str, values: Sequence[Any]) -> str | Feature | None:
        """Return what a member's extension says, where at least one of the members confirms it.

        Members that do not are reported or left out, one by one: one error page among photographs does not
        turn all of them into bytes.

        Raises:
            SchemaError: arrays of different types.
        """
        members = [value for value in values if isinstance(value, _Member)]
        if not members:
            return None
        ending = name.rpartition(".")[2]
        if ending in INTEGER_ENDINGS and (integers := integer_type(members)) is not None:
            return integers
        if ending in _TEXTS | INTEGER_ENDINGS and any(accepts(bytes.decode, member) for member in members):
            return "text"
        if ending == "json" and any(accepts(parse_json, member) for member in members):
            return "json"
        if ending == "npy":
            return _array_type(name, members)
        types = Counter(_image_type(member) for member in members)
        if not types.keys() - {None} or (None in types and ending not in IMAGE_TYPES):
            return "bytes"
        del types[None]
        return str(next(iter(types))) if len(types) == 1 else "image"

    def schema_notes(self, features: Mapping[str, Feature]) -> list[str]:
        """Return the members that are not what their extensions say."""
        notes = []
        for name, feature in features.items():
            ending = name.rpartition(".")[2]
            what = "an image" if ending in IMAGE_TYPES else "JSON" if ending == "json" else None
            if feature.type == "bytes" and what is not None:
                notes.append(
                    f"none of the members {name!r} that were looked at is {what}: they are kept as bytes, "
                    "unchecked"
                )
            elif feature.type in ("bytes", "text") and ending in INTEGER_ENDINGS:
                notes.append(
                    f"the members {name!r} that were looked at are not all integers of 64 bits, written as "
                    f"Python writes them: they are {feature.type}"
                )
        return notes

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a sample with its members as the schema says."""
        check = self.options.check_images
        return {
            name: _decoded(name, item, schema[name], check=check)
            if isinstance(item, _Member) and name in schema
            else item
            for name, item in value.items()
        }


def _value(key: str, members: Mapping[str, tuple[int, int]], frame: bytes, begin: int = 0) -> dict[str, Any]:
    """Return a sample, whose members the schema makes values of; ranges count from `begin`."""
    found = {name: _Member(frame[start - begin : stop - begin]) for name, (start, stop) in members.items()}
    return {"__key__": key, **found}


def _trouble(key: str, members: Iterable[str]) -> str | None:
    """Return why a sample cannot be a record, or None."""
    for name in members:
        if not name:
            return "a member has no ending to be called by"
        if any("\ud800" <= char <= "\udfff" for char in key + name):
            return f"the name of member {_shown(name)!r} is not UTF-8 text"
    return None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _shown(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _decoded(name: str, member: _Member, feature: Feature, *, check: bool) -> Any:
    """Return a member as a feature's value."""
    try:
        if feature.kind == "image" and check:
            _check_image(member)
        if feature.kind == "text" and not feature.shape:
            return member.decode()
        if feature.kind == "json":
            return parse_json(member)
        if feature.kind == "number" and member.startswith(b"\x93NUMPY"):
            return parse_npy(member)
        if feature.kind != "number" or feature.shape:
            return parse_json(member) if feature.shape else bytes(member)
        text = member.decode()
        if feature.type.startswith("float"):
            return float(text)
        # Programs such as echo end the text by a line feed.
        text = text.strip()
        if feature.classes is not None and names_classes(text, feature.classes):
            return text
        return exact_integer(text)
    except ValueError as error:
        raise misfit("member", name, feature, member, error) from error


def _check_image(member: bytes) -> None:
    trouble = image_trouble(member, check=True)
    if trouble is not None:
        raise ValueError(trouble)


def _image_type(member: bytes) -> str | None:
    return image_type(member[:16]) or ("image" if member[:2] in (b"P5", b"P6") else None)


def _array_type(name: str, members: Sequence[bytes]) -> str | Feature:
    arrays = []
    for member in members:
        try:
            arrays.append(parse_npy(member))
        except ValueError:
            continue
    if not arrays:
        return "bytes"
    kinds = Counter((array.dtype.newbyteorder("<").name, array.ndim) for array in arrays)
    if len(kinds) > 1:
        shown = ", ".join(f"{dtype} of {ndim} dimensions in {n}" for (dtype, ndim), n in kinds.items())
        raise SchemaError(
            f"the values of {name!r} are of different types", found=shown,
            advice=f"keep them as they are with {keep_as(name, 'bytes')}",
        )  # fmt: skip
    sizes = zip(*(array.shape for array in arrays), strict=True)
    shape = [found[0] if len(set(found)) == 1 and found[0] else None for found in sizes]
    try:
        return Feature(arrays[0].dtype.name, shape=shape)
    except ValueError:
        # A type that no feature has, such as records and dates.
        return "bytes"


class _Archive(tarfile.TarFile):
    """A tar file, with the list of its members that `tarfile` keeps and its types do not name."""

    members: list[tarfile.TarInfo]


class WebDatasetWriter(NumberedFiles):
    """Write tar files that webdataset reads: a member a feature, `key.name` or `key.name.ending`.

    The key is the feature `__key__` where there is one, else the record's number.  A feature whose name ends
    as its type asks keeps its name (`jpg`, `seg.png`, `cls`); others get an ending: `label.cls`, `boxes.npy`.
    """

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
