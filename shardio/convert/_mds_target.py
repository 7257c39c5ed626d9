"""MDS as a target: `<split>/index.json` and `<split>/shard.00000.mds`, as MosaicML's streaming reads them.

The bytes of a shard are as in `_mds`; between its offsets and its samples stands the JSON of its index, for
people who find it alone.  Columns have the order of their names, as `MDSWriter` gives them.  Where MDS has no
encoding for a type it gets the nearest that loses nothing, and the report says so; what has none is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, ClassVar, cast

import numpy as np

from shardio.convert._files import READ_BYTES
from shardio.convert._targets import JobFiles, NumberedFiles, json_text
from shardio.errors import SchemaError
from shardio.metadata import Feature, Schema

_LARGEST = (1 << 32) - 1  # offsets in a shard have 32 bits
_HASH = "sha1"
# What MDS does not have, and what it becomes.
_NEAREST = {"bool": "uint8", "bfloat16": "float32"}


@dataclass(frozen=True)
class _MdsTarget:
    """A column: its encoding, its size in bytes where that is always the same, and what makes its bytes.

    `instead` says what it is where MDS does not have the feature's type.
    """

    encoding: str
    size: int | None
    encode: Callable[[Any], bytes]
    instead: str | None = None


def _column_of(name: str, feature: Feature) -> _MdsTarget:
    """Return what a feature becomes.

    Raises:
        ValueError: MDS has nothing that holds it.
    """
    if feature.kind == "number":
        return _numbers(name, feature)
    if feature.shape:
        if feature.type == "text":
            return _MdsTarget("json", None, lambda value: json_text(value).encode(), "JSON")
        if feature.type in ("jpeg", "png"):
            return _MdsTarget(f"list[{feature.type}]", None, _list_bytes)
        raise ValueError(f"feature {name!r} is a list of {feature.type}, which no column of MDS can hold")
    if feature.kind == "json":
        return _MdsTarget("json", None, lambda value: json_text(value).encode())
    if feature.kind == "text":
        return _MdsTarget("str", None, str.encode)
    if feature.type in ("bytes", "jpeg", "png"):
        return _MdsTarget(feature.type, None, bytes)
    if feature.kind == "tensor":
        return _MdsTarget("bytes", None, lambda value: b"".join(feature.fit(value, name)))
    return _MdsTarget("bytes", None, bytes, "bytes")


def _numbers(name: str, feature: Feature) -> _MdsTarget:
    kind = _NEAREST.get(feature.type, feature.type)
    dtype = np.dtype(kind).newbyteorder("<")
    if dtype.kind == "c":
        raise ValueError(f"feature {name!r} is {feature.short}: MDS has no complex numbers")
    note = kind if kind != feature.type else None

    def array_of(value: Any) -> Any:
        if feature.type == "bfloat16":
            return (np.asarray(value).astype("<u4") << 16).view(dtype)
        return np.asarray(value, dtype)

    def plain(value: Any) -> bytes:
        data: bytes = array_of(value).tobytes()
        return data

    def with_sizes(value: Any) -> bytes:
        array = array_of(value)
        # Six bits say how many sizes, two how wide each is.
        width = next(width for width in range(4) if max(array.shape) < 1 << (8 << width))
        sizes = np.asarray(array.shape, f"<u{1 << width}").tobytes()
        return bytes([array.ndim << 2 | width]) + sizes + bytes(array.tobytes())

    if not feature.shape:
        return _MdsTarget("int" if kind == "int64" else kind, dtype.itemsize, plain, note)
    if feature.unknown_dimensions:
        return _MdsTarget(f"ndarray:{kind}", None, with_sizes, note)
    sizes = [size or 0 for size in feature.shape]
    if 0 in sizes:
        message = f"feature {name!r} is {feature.short}: no column of MDS holds arrays without elements"
        raise ValueError(message)
    size = dtype.itemsize * math.prod(sizes)
    return _MdsTarget(f"ndarray:{kind}:{','.join(map(str, sizes))}", size, plain, note)


def _list_bytes(value: Sequence[bytes]) -> bytes:
    """Return a list: a word without meaning yet, the number of its items, their sizes, the items."""
    head = np.array([0, len(value), *map(len, value)], "<u4").tobytes()
    return b"".join([head, *value])


class MdsWriter(NumberedFiles):
    """Write the shards of a split, and their index."""

    compressions: ClassVar[tuple[str, ...]] = ("zstd",)
    names: ClassVar[str] = "{split}/*"
    pattern: ClassVar[str] = "{split}/shard.{number}.mds"
    _samples: IO[bytes] | None = None
    _size = 0

    @classmethod
    def check(cls, schema: Schema | None, compression: str | None) -> None:
        """Refuse records without columns, and types that no column holds."""
        super().check(schema, compression)
        if not schema or schema.sequence_features:
            raise ValueError("MDS needs columns: a schema with features, and no feature lists")
        for name, feature in schema.items():
            _column_of(name, feature)

    @classmethod
    def notes(cls, schema: Schema | None, older: Sequence[Schema]) -> list[str]:
        """Return also what the types became that MDS does not have."""
        notes = super().notes(schema, older)
        features = schema.items() if schema is not None else ()
        others = [
            f"{name} ({feature.short}) as {instead}"
            for name, feature in features
            if (instead := _column_of(name, feature).instead) is not None
        ]
        return [*notes, f"MDS has no such types, and holds {', '.join(others)}"] if others else notes

    @cached_property
    def _columns(self) -> dict[str, _MdsTarget]:
        assert self.schema is not None  # noqa: S101 - as `check` found
        return {name: _column_of(name, feature) for name, feature in sorted(self.schema.items())}

    @cached_property
    def _config(self) -> dict[str, Any]:
        """What shard and index say of all shards."""
        return {
            "column_encodings": [column.encoding for column in self._columns.values()],
            "column_names": list(self._columns),
            "column_sizes": [column.size for column in self._columns.values()],
            "compression": self.compression,
            "format": "mds",
            "hashes": [_HASH],
            "size_limit": min(self.shard_bytes, _LARGEST),
            "version": 2,
        }

    @cached_property
    def _head(self) -> bytes:
        return json.dumps(self._config, sort_keys=True).encode()

    @cached_property
    def _shards(self) -> list[dict[str, Any]]:
        return []

    def add(self, value: Any) -> None:
        """Write a sample."""
        sample = self._encoded(value)
        # A shard that would grow over the limit is finished before, as `MDSWriter` does.
        limit = min(self.shard_bytes, _LARGEST)
        alone = 8 + 4 + len(self._head) + len(sample)
        if alone > _LARGEST:
            raise SchemaError("a record is larger than a shard of MDS can be", expected=_LARGEST, found=alone)
        if self._samples is not None and self._size + 4 + len(sample) > limit:
            self.finish()
        if self._samples is None:
            self._samples = tempfile.TemporaryFile(dir=self.output.folder)  # noqa: SIM115 - `finish` closes it
            self._sizes: list[int] = []
            self._size = 8 + len(self._head)
        self._samples.write(sample)
        self._sizes.append(len(sample))
        self._size += 4 + len(sample)
        self.records += 1

    def _encoded(self, value: Any) -> bytes:
        sizes, parts = [], []
        for name, column in self._columns.items():
            item = value.get(name)
            if item is None and column.encoding != "json":
                raise SchemaError(
                    f"feature {name!r} is missing, and MDS has no missing values",
                    advice="give it a default with shardio.set_schema, or name the others with features=",
                )
            data = column.encode(item)
            if len(data) > _LARGEST:
                what = f"feature {name!r} is larger than a shard of MDS can be"
                raise SchemaError(what, expected=_LARGEST, found=len(data))
            if column.size is None:
                sizes.append(len(data))
            parts.append(data)
        return b"".join([np.array(sizes, "<u4").tobytes(), *parts])

    def finish(self) -> None:
        """Make a shard of the samples that are waiting, if there are any."""
        if self._samples is None:
            return
        with self._samples as samples:
            self._samples = None
            samples.seek(0)
            offsets = np.cumsum([8 + 4 * len(self._sizes) + len(self._head), *self._sizes]).astype("<u4")
            count = np.array([len(self._sizes)], "<u4")
            ending = "" if self.compression is None else f".{self.compression}"
            path = self.next_path(ending)
            with path.open("wb") as file, _compressed(file, self._size, self.compression) as (raw, stored):
                raw.write(count.tobytes() + offsets.tobytes() + self._head)
                shutil.copyfileobj(samples, raw, READ_BYTES)
        basename = path.name.removesuffix(ending)
        self._shards.append(
            {
                **self._config,
                "raw_data": raw.described(basename),
                "samples": len(self._sizes),
                "zip_data": None if stored is raw else stored.described(path.name),
            }
        )
        self.output.finish(self._name)

    @property
    def made(self) -> list[dict[str, Any]]:
        """What the index of the split says of the shards."""
        return self._shards

    @classmethod
    def conclude(cls, output: JobFiles, split: str, made: Sequence[list[dict[str, Any]]]) -> None:
        """Write the index; that of a split without records names no shard."""
        name = f"{split}/index.json"
        index = json.dumps({"shards": list(itertools.chain(*made)), "version": 2}, sort_keys=True)
        output.path(name).write_text(index, encoding="utf-8")
        output.finish(name)

    def abort(self) -> None:
        """Let go of the samples that are waiting."""
        if self._samples is not None:
            self._samples.close()


class _Hashed:
    """Count and hash what is written to a file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._bytes = 0
        self._hash = hashlib.new(_HASH, usedforsecurity=False)

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._hash.update(data)
        self._bytes += len(data)
        return len(data)

    def described(self, basename: str) -> dict[str, Any]:
        """Return what the index says of the file."""
        return {"basename": basename, "bytes": self._bytes, "hashes": {_HASH: self._hash.hexdigest()}}


@contextlib.contextmanager
def _compressed(file: IO[bytes], size: int, compression: str | None) -> Iterator[tuple[_Hashed, _Hashed]]:
    """Give what takes the bytes of a shard, and what becomes of them in its file: the same, or compressed."""
    stored = _Hashed(file)
    if compression is None:
        yield stored, stored
        return
    import zstandard

    # The frame says the size: readers that decompress at once allocate by it.
    with zstandard.ZstdCompressor().stream_writer(
        cast("IO[bytes]", stored), size=size, closefd=False
    ) as stream:
        yield _Hashed(stream), stored
