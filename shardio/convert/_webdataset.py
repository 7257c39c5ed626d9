"""WebDataset: tar files whose consecutive members of one key are a sample; `{"__key__", extension: ...}`.

What is a sample, its key and its extensions is decided by `shardio.format.sample_name`, as for adopted tar
files, which does as the webdataset library does.  Members stay bytes unless their extension says more: `cls`,
`id` and `index` integers, `txt` and `json` text and JSON, `npy` an array, images what they are.  Nothing is
unpickled.  A member that does not hold what its extension says is refused, and may be kept as it is with
`schema={"json": "bytes"}`.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardio.arguments import accepts
from shardio.convert._fields import label_of, names_classes
from shardio.convert._files import READ_BYTES, DecodedFile, FileSource
from shardio.convert._images import IMAGE_TYPES, image_trouble
from shardio.convert._source import Piece, Sample, Unreadable, exact_integer, integer_type, keep_as, misfit
from shardio.errors import BadRecord, FormatError, SchemaError
from shardio.format import (
    DEFAULT_LIMITS,
    SAMPLE_NAMES,
    TAR_BLOCK,
    TAR_END,
    TarMember,
    parse_json,
    parse_npy,
    read_member,
    read_sample,
    sample_name,
)
from shardio.metadata import Feature, Schema, image_type
from shardio.parallel import Note
from shardio.sources import format_of_name
from shardio.storage import connect

INTEGER_ENDINGS = {"cls", "cls2", "id", "index", "count", "inx"}
_TEXTS = {"txt", "text", "transcript"}


class _Member(bytes):
    """The bytes of a member, of which the schema says what they are."""

    __slots__ = ()


@dataclass(frozen=True)
class WebDataset(FileSource):
    """Tar files in the layout of WebDataset."""

    kind: ClassVar[str] = "webdataset"

    @classmethod
    def fits(cls, key: str) -> bool:
        """Tell whether a name is that of a tar file."""
        return format_of_name(key) == "tar"

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord | Note]:
        """Yield the samples of a tar file, one after another, in constant memory but for the keys seen."""
        if not piece.size:
            yield BadRecord(piece.url, "the tar file is empty")
            return
        file = connect(piece.root, storage_options=self.options.storage_options).open(piece.key)
        plain = piece.key.lower().endswith(".tar")
        with io.BufferedReader(DecodedFile(file, compressed=not plain), READ_BYTES) as stream:
            reading = _Samples(stream, piece.url)
            try:
                yield from reading
            except FormatError as error:
                what = f"the tar file is damaged ({error.what}); {reading.count} samples were read before"
                raise FormatError(
                    what, url=piece.url, start=error.start, expected=error.expected, found=error.found
                ) from error

    @staticmethod
    def of_payload(payload: bytes) -> dict[str, Any]:
        """Return the sample that an adopted tar file holds as a payload, as `read` would yield it."""
        key, members = read_sample(payload)
        return {
            "__key__": key,
            **{name: _Member(payload[start:stop]) for name, (start, stop) in members.items()},
        }

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

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a sample with its members as the schema says."""
        check = self.options.check_images
        return {
            name: _decoded(name, item, schema[name], check=check)
            if isinstance(item, _Member) and name in schema
            else item
            for name, item in value.items()
        }


class _Samples:
    """Yield the samples of one archive, and what is odd in it.

    Attributes:
        count: samples so far.
    """

    def __init__(self, stream: Any, url: str) -> None:
        self._stream = stream
        self._url = url
        self._held = b""
        self._place = 0  # of the first byte held, in the archive
        self._seen: set[str] = set()
        self._key: str | None = None
        self._members: dict[str, Any] = {}
        self._trouble: str | None = None
        self._outside: dict[str, list[str]] = {}
        self._again: list[str] = []
        self.count = 0

    def __iter__(self) -> Iterator[Sample | BadRecord | Note]:
        while (member := self._header()) is not TAR_END:
            size = member.stop - member.start
            parts = sample_name(member.name) if member.regular else None
            if parts is not None:
                key, extension = parts
                if key != self._key:
                    yield from self._finish()
                    self._key = key
                self._trouble = self._trouble or _trouble(member, extension, self._members)
                if self._trouble is not None:
                    # What is left out is not held.
                    self._members.clear()
                else:
                    self._members[extension] = _Member(self._take(size))
                    size = 0
            elif not member.folder:
                self._belongs_to_none(member)
            self._skip(size + member.next - member.stop)
        yield from self._finish()
        while data := self._read(READ_BYTES):
            if data != bytes(len(data)):
                raise FormatError("bytes follow its end mark", start=self._place)
        for what, names in self._outside.items():
            yield Note(self._url, f"{len(names)} {what} belong to no sample: {_some(names)}")
        if self._again:
            what = f"{len(self._again)} samples have the name of an earlier one: {_some(self._again)}"
            yield Note(self._url, f"{what}; each is a record, as in the webdataset library")

    def _belongs_to_none(self, member: TarMember) -> None:
        """Note a member that the webdataset library passes over, too."""
        hidden = member.name.rpartition("/")[2].startswith(".") or member.name.startswith("__")
        what = "hidden or `__x__` members" if hidden else "members without an ending"
        what = what if member.regular else "links and devices"
        self._outside.setdefault(what, []).append(_shown(member.name))

    def _finish(self) -> Iterator[Sample | BadRecord | Note]:
        key, members, trouble = self._key, self._members, self._trouble
        self._key, self._members, self._trouble = None, {}, None
        if key is None:
            return
        self.count += 1
        where = f"{self._url} {_shown(key)}"
        if trouble is not None:
            yield BadRecord(where, trouble)
        else:
            if key in self._seen:
                self._again.append(_shown(key))
            yield Sample(where, {"__key__": key, **members})
        self._seen.add(key)

    def _header(self) -> TarMember:
        """Return the next member, or `TAR_END`; what is read next is what follows its headers."""
        data = self._read(TAR_BLOCK)
        while True:
            try:
                member = read_member(data, 0)
            except FormatError as error:
                raise error.located(start=self._place - len(data)) from error
            if member is not None:
                used = TAR_BLOCK if member is TAR_END else member.start
                self._held = data[used:] + self._held
                self._place -= len(data) - used
                return member
            # Names that are too long for a header are before it; twice as much is read each time.
            more = self._read(max(TAR_BLOCK, len(data)))
            if not more:
                what = "it ends within a header" if data else "it does not end with an end mark"
                raise FormatError(what, start=self._place)
            data += more

    def _read(self, size: int) -> bytes:
        """Return up to so many of the next bytes; none at the end."""
        data = self._held[:size] if self._held else self._stream.read(size)
        self._held = self._held[size:]
        self._place += len(data)
        return bytes(data)

    def _take(self, size: int) -> bytes:
        """Return contents; memory grows with what is there, not with what a header claims."""
        parts = []
        while size:
            data = self._read(min(size, READ_BYTES))
            if not data:
                raise FormatError("it ends within a member", start=self._place)
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def _skip(self, size: int) -> None:
        while size:
            data = self._read(min(size, READ_BYTES))
            if not data:
                raise FormatError("it ends within a member", start=self._place)
            size -= len(data)


def _trouble(member: TarMember, extension: str, members: Mapping[str, Any]) -> str | None:
    name = _shown(member.name)
    if any("\ud800" <= char <= "\udfff" for char in member.name):
        return f"the name of member {name!r} is not UTF-8 text"
    if not extension:
        return f"member {name!r} has no ending to be called by"
    if extension in SAMPLE_NAMES:
        return f"duplicate key: member {name!r} is called as what every sample has"
    if extension in members:
        return f"duplicate key: member {name!r} comes twice"
    size = member.stop - member.start
    if size > DEFAULT_LIMITS.record:
        return f"member {name!r} is larger than a record may be"
    if size + sum(map(len, members.values())) > DEFAULT_LIMITS.record:
        return f"its members up to {name!r} are together larger than a record may be"
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
            return _array(member)
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


def _array(member: bytes) -> Any:
    """Return the array of a `.npy` file; ValueError where it is none, or more than one."""
    return parse_npy(member)


def _array_type(name: str, members: Sequence[bytes]) -> str | Feature:
    arrays = []
    for member in members:
        try:
            arrays.append(_array(member))
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
