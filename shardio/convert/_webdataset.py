"""WebDataset: tar files whose consecutive members of one key are a sample; `{"__key__", ending: ...}`.

Members stay bytes unless their ending says more: `cls`, `id` and `index` integers, `txt` and `json` text
and JSON, `npy` an array, images what they are.  Nothing is unpickled.  An integer or a JSON document that
would not come back byte for byte may be kept as it is with `schema={"json": "bytes"}`.
"""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shardio.convert._files import DecodedFile, File, Found, find_files, split_of
from shardio.convert._guess import image_type
from shardio.convert._source import Odd, Piece, Sample, Source, SourceOptions
from shardio.errors import FormatError, SchemaError, ShardioError
from shardio.format import DEFAULT_LIMITS
from shardio.metadata import Feature
from shardio.storage import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardio.metadata import Schema

__all__ = ["TAR_ENDINGS", "WebDataset"]

TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_INTEGERS = {"cls", "cls2", "id", "index", "count", "inx"}
# tarfile reads 10 KiB at a time, so where it stopped lies within the last two reads.
_REMEMBERED = 1 << 15
_TEXTS = {"txt", "text", "transcript"}


class _Member(bytes):
    """The bytes of a member, of which the schema says what they are."""

    __slots__ = ()


@dataclass(frozen=True)
class WebDataset(Source):
    """Tar files in the layout of WebDataset."""

    kind: ClassVar[str] = "webdataset"
    place: Any
    options: SourceOptions

    @cached_property
    def _found(self) -> Found:
        return find_files(self.place, self.options.storage_options)

    @cached_property
    def _files(self) -> list[File]:
        every = self._found.single
        return [file for file in self._found.files if every or file.key.lower().endswith(TAR_ENDINGS)]

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def pieces(self) -> list[Piece]:
        """Return the tar files."""
        splits = split_of([file.key for file in self._files])
        return [Piece(file.root, file.key, splits(file.key), file.size) for file in self._files]

    def read(self, piece: Piece) -> Iterator[Sample | Odd]:
        """Yield the samples of a tar file, one after another, in constant memory but for the keys seen."""
        if not piece.size:
            yield Odd(piece.url, "the tar file is empty")
            return
        file = connect(piece.root, storage_options=self.options.storage_options).open(piece.key)
        seen: set[str] = set()
        samples = 0
        plain = piece.key.lower().endswith(".tar")
        with io.BufferedReader(DecodedFile(file, compressed=not plain), 1 << 20) as stream:
            try:
                for key, found in _samples(stream, piece.url):
                    samples += 1
                    if isinstance(found, Odd):
                        yield found
                    elif key in seen:
                        yield Odd(
                            f"{piece.url} {key}", "duplicate key: the file has a sample of this name already"
                        )
                    else:
                        yield Sample(f"{piece.url} {key}", {"__key__": key, **found})
                    seen.add(key)
            except (tarfile.TarError, EOFError, OSError) as error:
                if isinstance(error, ShardioError):
                    raise
                what = f"the tar file is damaged ({error}); {samples} samples were read before"
                raise FormatError(what, url=piece.url) from error

    def guess(self, name: str, values: Sequence[Any]) -> str | Feature | None:
        """Return what a member's ending says, if all values agree."""
        members = [value for value in values if isinstance(value, _Member)]
        if not members:
            return None
        ending = name.rpartition(".")[2]
        if ending in _INTEGERS and all(_is_integer(member) for member in members):
            return "int64"
        if ending in _TEXTS | _INTEGERS and all(_is_text(member) for member in members):
            return "text"
        if ending == "json" and all(_is_json(member) for member in members):
            return "json"
        if ending == "npy":
            return _array_type(members)
        types = {image_type(member[:16]) for member in members}
        if None in types:
            return "bytes"
        return str(types.pop()) if len(types) == 1 else "image"

    def fit(self, value: Any, schema: Schema) -> Any:
        """Return a sample with its members as the schema says."""
        return {
            name: _decoded(name, item, schema[name]) if isinstance(item, _Member) and name in schema else item
            for name, item in value.items()
        }

    def odd(self) -> Sequence[Odd]:
        """Return files whose names are no text."""
        return self._found.odd

    def ignored(self) -> Sequence[str]:
        """Return files that are no tar files, by their names."""
        taken = set(self._files)
        return [file.key for file in self._found.files if file not in taken]


class _Watched:
    """A stream that remembers the last bytes read, so that the end of an archive can be looked at."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._recent = b""
        self._total = 0

    def read(self, size: int) -> bytes:
        """Return what comes next."""
        data: bytes = self._stream.read(size)
        self._total += len(data)
        self._recent = (self._recent + data)[-_REMEMBERED:]
        return data

    def ends_in_zeros(self, place: int) -> bool:
        """Tell whether from a place on there are zeros, a block of them or more, and nothing else."""
        tail = self._recent[max(0, place - self._total + len(self._recent)) :]
        if len(tail) < tarfile.BLOCKSIZE or any(tail):
            return False
        while data := self._stream.read(1 << 20):
            if any(data):
                return False
        return True


def _samples(stream: Any, url: str) -> Iterator[tuple[str, dict[str, Any] | Odd]]:
    """Yield (key, members by ending) of consecutive members that share a key."""
    key: str | None = None
    members: dict[str, Any] = {}
    trouble: str | None = None
    watched = _Watched(stream)
    source: Any = watched
    with tarfile.open(fileobj=source, mode="r|") as archive:
        for info in archive:
            archive.members = []  # type: ignore[attr-defined] # or it would remember every member
            if info.isdir():
                continue
            name = info.name.removeprefix("./")
            folder, slash, file_name = name.rpartition("/")
            if file_name.startswith(".") or name.startswith("__"):
                continue
            stem, _, ending = file_name.partition(".")
            this = folder + slash + stem
            if this != key and key is not None:
                yield key, members if trouble is None else Odd(f"{url} {_shown(key)}", trouble)
                members, trouble = {}, None
            key = this
            trouble = trouble or _trouble(info, name, ending, members)
            if trouble is None:
                content = archive.extractfile(info)
                data = content.read() if content is not None else b""
                if len(data) != info.size:
                    raise EOFError("it ends within a member")
                members[ending] = _Member(data)
        # tarfile takes a cut header, or garbage, for the end.
        if not watched.ends_in_zeros(archive.offset):
            raise EOFError("it does not end with an end mark")
    if key is not None:
        yield key, members if trouble is None else Odd(f"{url} {_shown(key)}", trouble)


def _trouble(info: tarfile.TarInfo, name: str, ending: str, members: Mapping[str, Any]) -> str | None:
    if any("\ud800" <= char <= "\udfff" for char in name):
        return f"the name of member {_shown(name)!r} is not UTF-8 text"
    if not info.isreg():
        return f"member {name!r} is no regular file"
    if not ending:
        return f"member {name!r} has no ending to be called by"
    if ending in members:
        return f"duplicate key: member {name!r} comes twice"
    return f"member {name!r} is larger than a record may be" if info.size > DEFAULT_LIMITS.record else None


def _shown(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _decoded(name: str, member: _Member, feature: Feature) -> Any:
    """Return a member as a feature's value."""
    try:
        if feature.kind == "text" and not feature.shape:
            return member.decode()
        if feature.kind == "json":
            return json.loads(member.decode())
        if feature.kind == "number" and member.startswith(b"\x93NUMPY"):
            return np.load(io.BytesIO(member), allow_pickle=False)
        if feature.kind == "number" and not feature.shape:
            text = member.decode()
            if feature.type.startswith("float"):
                return float(text)
            number = int(text)
            if str(number) == text:
                return number
            trouble: Exception = ValueError("it would not come back byte for byte")
        else:
            return bytes(member)
    except (ValueError, RecursionError, EOFError) as error:
        trouble = error
    raise SchemaError(
        f"member {name!r} is no {feature.short} ({trouble})",
        found=repr(bytes(member[:40])),
        advice=f'keep it as it is with schema={{"{name}": "bytes"}}',
    )


def _is_integer(member: bytes) -> bool:
    text = member.decode(errors="replace")
    return text.lstrip("-").isdecimal() and len(text) < 19 and str(int(text)) == text


def _is_text(member: bytes) -> bool:
    try:
        member.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_json(member: bytes) -> bool:
    try:
        json.loads(member)
    except (ValueError, RecursionError):
        return False
    return True


def _array_type(members: Sequence[bytes]) -> str | Feature:
    arrays = []
    for member in members:
        try:
            arrays.append(np.load(io.BytesIO(member), allow_pickle=False))
        except (ValueError, EOFError):
            return "bytes"
    if len({array.dtype for array in arrays}) > 1 or len({array.ndim for array in arrays}) > 1:
        return "bytes"
    sizes = zip(*(array.shape for array in arrays), strict=True)
    shape = [found[0] if len(set(found)) == 1 and found[0] else None for found in sizes]
    try:
        return Feature(arrays[0].dtype.name, shape=shape)
    except ValueError:
        return "bytes"
