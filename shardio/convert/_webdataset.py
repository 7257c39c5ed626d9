"""WebDataset: tar files whose consecutive members of one key are a sample; `{"__key__", extension: ...}`.

`shardio_indexer.TarFramer` finds the samples, as for adopted tar files: those of the webdataset library.
Members stay bytes unless their extension says more: `cls`,
`id` and `index` integers, `txt` and `json` text and JSON, `npy` an array, images what they are.  Nothing is
unpickled.  A member that does not hold what its extension says is refused, and may be kept as it is with
`schema={"json": "bytes"}`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from shardio.arguments import accepts
from shardio.convert._fields import label_of, names_classes
from shardio.convert._files import READ_BYTES, DecodedFile, FileSource
from shardio.convert._images import IMAGE_TYPES, image_trouble
from shardio.convert._source import Piece, Sample, Unreadable, exact_integer, integer_type, keep_as, misfit
from shardio.errors import BadRecord, SchemaError
from shardio.format import (
    DEFAULT_LIMITS,
    parse_json,
    parse_npy,
    read_sample,
)
from shardio.metadata import Feature, Schema, image_type
from shardio.parallel import Note
from shardio.sources import format_of_name
from shardio.storage import connect
from shardio_indexer import Framer, SalvageOptions, TarFramer

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
        """Yield the samples that adoption finds, one after another, in constant memory but for their keys."""
        if not piece.size:
            yield BadRecord(piece.url, "the tar file is empty")
            return
        framer = TarFramer(salvage=SalvageOptions(enabled=True))
        seen: set[str] = set()
        repeated: list[str] = []
        ended = False
        for start, frame in frames_of(framer, self._pieces(piece)):
            where = f"{piece.url} byte {start}"
            if isinstance(frame, str):
                ended = ended or frame == TarFramer.END
                if frame.startswith("damage"):
                    yield BadRecord(where, f"the tar file is damaged: {frame.removeprefix('damage: ')}")
                continue
            if ended:
                yield BadRecord(where, "bytes follow the end of the tar file: a second archive")
                ended = False
            key, members = read_sample(frame)
            where = f"{piece.url} {_shown(key)}"
            trouble = _trouble(key, members)
            if trouble is not None:
                yield BadRecord(where, trouble)
                continue
            repeated += [_shown(key)] * (key in seen)
            seen.add(key)
            yield Sample(where, _value(key, members, frame))
        if framer.notes.pop(TarFramer.NO_END, 0):
            yield BadRecord(piece.url, f"the tar file is damaged: {TarFramer.NO_END}; it may have been cut")
        for what, count in framer.notes.items():
            yield Note(piece.url, f"{what}: {count}")
        if repeated:
            what = f"{len(repeated)} samples have the name of an earlier one: {_some(repeated)}"
            yield Note(piece.url, f"{what}; each is a record, as in the webdataset library")

    def _pieces(self, piece: Piece) -> Iterator[bytes]:
        file = connect(piece.root, storage_options=self.options.storage_options).open(piece.key)
        with DecodedFile(file, compressed=not piece.key.lower().endswith(".tar")) as stream:
            yield from iter(partial(stream.read, READ_BYTES), b"")

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

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a sample with its members as the schema says."""
        check = self.options.check_images
        return {
            name: _decoded(name, item, schema[name], check=check)
            if isinstance(item, _Member) and name in schema
            else item
            for name, item in value.items()
        }


def frames_of(framer: Framer, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes | str]]:
    """Yield where each frame begins with its bytes, or why bytes belong to none; a frame is held alone."""
    held: list[bytes | memoryview] = []
    size = start = 0
    for run in itertools.chain(itertools.chain.from_iterable(map(framer.feed, pieces)), framer.end()):
        if run.reason is not None:
            yield start, run.reason
            start, size = start + size + len(run.data), 0
            held.clear()
            continue
        begin = 0
        for stop in () if run.stops is None else run.stops.tolist():
            size += stop - begin
            if size > DEFAULT_LIMITS.record:
                yield start, "damage: a sample is larger than a record may be"
            else:
                yield start, b"".join((*held, run.data[begin:stop]))
            held.clear()
            begin, start, size = stop, start + size, 0
        size += len(run.data) - begin
        if size > DEFAULT_LIMITS.record:
            held.clear()
        else:
            held.append(bytes(run.data[begin:]))


def _value(key: str, members: Mapping[str, tuple[int, int]], frame: bytes) -> dict[str, Any]:
    """Return a sample, whose members the schema makes values of."""
    return {"__key__": key, **{name: _Member(frame[start:stop]) for name, (start, stop) in members.items()}}


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
