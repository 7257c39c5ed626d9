"""MDS, the shards of MosaicML's streaming library: `index.json` and its shards, plain or compressed.

A shard is `u32 samples | u32 offsets[samples + 1] | JSON | samples`; `codecs` decodes samples.  Sizes and
those hashes that Python knows are compared.  Source of the format: streaming/base/format/mds of
mosaicml/streaming.

Written shards are `<split>/shard.00000.mds` beside `<split>/index.json`; between offsets and samples stands
the JSON of the index, for people who find a shard alone.  Columns have the order of their names, as
`MDSWriter` gives them.  Where MDS has no encoding for a type it gets the nearest that loses nothing, and the
report says so; what has none is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, ClassVar

import numpy as np

from shardio.arguments import need
from shardio.codecs import (
    MDS_DAMAGE,
    MdsColumn,
    decode_mds_sample,
    mds_column,
    mds_columns,
    mds_encoding_of,
)
from shardio.errors import BadRecord, FormatError, SchemaError
from shardio.formats import (
    READ_BYTES,
    File,
    FileSource,
    JobFiles,
    NumberedFiles,
    Piece,
    Sample,
    Unreadable,
    json_text,
    read_whole,
)
from shardio.metadata import Feature, Schema
from shardio.sources import (
    FoundFile,
    MdsShard,
    is_mds_name,
    mds_shards,
    read_mds_indexes,
)

_CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli", "snappy": "snappy"}


@dataclass(frozen=True)
class MdsFolder(FileSource):
    """A folder with an `index.json`, or several such folders, one a split."""

    kind: ClassVar[str] = "mds"

    @classmethod
    def fits(cls, key: str) -> bool:
        """Take all files: the index names those that are shards."""
        return bool(key)

    def ignored(self) -> Sequence[str]:
        """Return files that are neither index nor shard."""
        used = {(piece.root, piece.key) for piece in self.pieces()}
        others = [file for file in self.files if not is_mds_name(file.key)]
        return [*super().ignored(), *(file.name for file in others if (file.root, file.key) not in used)]

    @property
    def heads(self) -> list[File]:
        """The indexes whose shards count."""
        urls = {head.url for head, _ in self._indexes}
        return [file for file in self.files if file.url in urls]

    @cached_property
    def _indexes(self) -> list[tuple[FoundFile, Mapping[str, Any]]]:
        heads = [FoundFile(*file[:3], "") for file in self.files if is_mds_name(file.key)]
        found = read_mds_indexes(heads, self.options.peek.whole)
        if not found:
            raise FormatError("there is no index.json here", url=str(self.place))
        return found

    def bad_records(self) -> Sequence[BadRecord]:
        """Return names that are not text, and shards that are not there, as in a cache."""
        advice = "convert the folder that the cache was filled from"
        return [
            *super().bad_records(),
            *(
                BadRecord(shard.url, "index.json names this shard, and it is not there", advice)
                for shard, _ in self._named
                if not shard.is_there
            ),
        ]

    def pieces(self) -> list[Piece]:
        """Return the shards that are there."""
        return [
            Piece(shard.root, shard.key, split, shard.size, extra=shard)
            for shard, split in self._named
            if shard.is_there
        ]

    @cached_property
    def _named(self) -> list[tuple[MdsShard, str]]:
        """The shards that the indexes name, with their splits."""
        splits = {(file.root, file.key): split for file, split in self.split_files()}
        there: dict[str, dict[str, int]] = {}
        for file in self.files:
            there.setdefault(file.root, {})[file.key] = file.size
        # An index may have been named alone.
        lists_all = all(listing.kind == "folder" for listing in self._listings)
        found = []
        for head, index in self._indexes:
            split = splits.get((head.root, head.key))
            if split is not None:
                for shard in mds_shards(head, index, there[head.root] if lists_all else None):
                    _columns(shard)  # which refuses those that make no sense
                    _check_packages(shard)
                    found.append((shard, split))
        return found

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types of columns that the index declares, and what is wrong with the others."""
        shards = [{each.name: each for each in _columns(piece.extra)} for piece in self.pieces()]
        declared: dict[str, Feature | str | Unreadable] = {}
        for name in dict.fromkeys(itertools.chain(*shards)):
            columns = [shard[name] for shard in shards if name in shard]
            trouble = next((each.trouble for each in columns if each.trouble is not None), None)
            encodings = list(dict.fromkeys(each.encoding for each in columns))
            if len(columns) < len(shards):
                declared[name] = Unreadable(f"column {name!r} is not in all shards")
            elif len(encodings) > 1:
                reason = f"column {name!r} is not the same in all shards: {', '.join(encodings)}"
                declared[name] = Unreadable(trouble or reason)
            elif trouble is not None:
                declared[name] = Unreadable(trouble, keep="bytes")
            elif columns[0].feature is not None:
                declared[name] = columns[0].feature
        return declared

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the samples of a shard."""
        shard: MdsShard = piece.extra
        stored = read_whole(piece.root, piece.key, self.options.storage_options, max_bytes=4 << 30)
        _check(stored, shard.stored, piece.url)
        data = _decompressed(stored, shard, piece.url)
        if data is not stored:
            _check(data, shard.facts["raw_data"], piece.url)
        columns = _columns(shard)
        offsets = _offsets(data, shard.facts["samples"], piece.url)
        for number in range(len(offsets) - 1):
            where = f"{piece.url} sample {number}"
            try:
                yield Sample(where, decode_mds_sample(data[offsets[number] : offsets[number + 1]], columns))
            except MDS_DAMAGE as error:
                yield BadRecord(where, f"the sample is damaged: {error}")


def _columns(shard: MdsShard) -> list[MdsColumn]:
    try:
        return mds_columns(*map(list, zip(*shard.columns, strict=True))) if shard.columns else []
    except FormatError as error:
        raise error.located(url=shard.url) from None


def _check(data: bytes, described: Mapping[str, Any], url: str) -> None:
    """Compare size and hashes."""
    if len(data) != described["bytes"]:
        raise FormatError(
            "the shard has another size than its index says",
            url=url,
            expected=described["bytes"],
            found=len(data),
        )
    for name, expected in (described.get("hashes") or {}).items():
        if name in hashlib.algorithms_guaranteed:
            found = hashlib.new(name, data, usedforsecurity=False).hexdigest()
            if found != expected:
                raise FormatError(
                    f"the shard does not match its {name}", url=url, expected=expected, found=found
                )


def _check_packages(shard: MdsShard) -> None:
    """Refuse what is read with packages that are not installed, before anything is read."""
    if shard.compression is not None:
        need(f"reading MDS shards compressed with {shard.compression}", "shardio[convert]", "pyarrow")
    if any(kind == "list[pil]" for _, kind, _ in shard.columns):
        need("reading MDS columns of list[pil]", "shardio[image]", "Pillow")


def _decompressed(stored: bytes, shard: MdsShard, url: str) -> bytes:
    name = shard.compression
    if name is None:
        return stored
    # One byte more than there should be: what is too large is found out by `_check`; going on would be a
    # bomb's wish.
    limit = int(shard.facts["raw_data"]["bytes"]) + 1
    if name not in _CODECS:
        advice = "write the shards with zstd, gz, bz2, br, snappy or no compression"
        raise FormatError(f"shards compressed with {name} cannot be read", url=url, advice=advice)
    import pyarrow as pa

    try:
        if name == "snappy":
            return _from_snappy(stored, limit)
        with pa.CompressedInputStream(pa.BufferReader(stored), _CODECS[name]) as stream:
            found = bytearray()  # in pieces: the index may claim any size
            while part := stream.read(min(READ_BYTES, limit - len(found))):
                found += part
            return bytes(found)
    except (OSError, ValueError) as error:
        raise FormatError(f"the shard does not decode ({error})", url=url) from None


def _from_snappy(stored: bytes, limit: int) -> bytes:
    """Return the data of one raw block of Snappy, whose head says how many bytes it gives.

    Source of the format: format_description.txt of google/snappy.
    """
    import pyarrow as pa

    size = 0
    for place, byte in enumerate(stored[:5]):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            break
    if size >= limit:
        raise ValueError(f"it says that it gives {size} bytes, and its index says {limit - 1}")
    # pyarrow takes a block that gives less than it is asked for, and leaves the rest as it was.
    data: bytes = pa.decompress(stored, size, codec="snappy", asbytes=True)
    return data


def _offsets(data: bytes, samples: int, url: str) -> list[int]:
    head = 4 * (samples + 2)
    if len(data) < head or int.from_bytes(data[:4], "little") != samples:
        raise FormatError(
            "the shard does not hold the samples that its index says", url=url, expected=samples
        )
    offsets = np.frombuffer(data, "<u4", samples + 1, 4).astype(np.int64)
    if offsets[0] < head or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
        raise FormatError("the shard's table of offsets is damaged", url=url)
    return [int(offset) for offset in offsets]


_LARGEST = (1 << 32) - 1  # offsets in a shard have 32 bits
_HASH = "sha1"


def _plain(value: Any, feature: Feature, column: MdsColumn) -> Any:
    """Return a value as the encoding of its column takes it."""
    if column.encoding == "json":
        return json_text(value)
    if feature.type == "bfloat16":
        return (np.asarray(value).astype("<u4") << 16).view("<f4")
    return b"".join(feature.fit(value, column.name)) if feature.kind == "tensor" else value


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
            mds_encoding_of(name, feature)

    @classmethod
    def notes(cls, schema: Schema | None, older: Sequence[Schema]) -> list[str]:
        """Return also what the types became that MDS does not have."""
        notes = super().notes(schema, older)
        features = schema.items() if schema is not None else ()
        others = [
            f"{name} ({feature.short}) as {instead}"
            for name, feature in features
            if (instead := mds_encoding_of(name, feature)[1]) is not None
        ]
        return [*notes, f"MDS has no such types, and holds {', '.join(others)}"] if others else notes

    @cached_property
    def _columns(self) -> list[tuple[Feature, MdsColumn]]:
        assert self.schema is not None  # noqa: S101 - as `check` found
        return [
            (feature, mds_column(name, mds_encoding_of(name, feature)[0]))
            for name, feature in sorted(self.schema.items())
        ]

    @cached_property
    def _config(self) -> dict[str, Any]:
        """What shard and index say of all shards."""
        return {
            "column_encodings": [column.encoding for _, column in self._columns],
            "column_names": [column.name for _, column in self._columns],
            "column_sizes": [column.size for _, column in self._columns],
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
        for feature, column in self._columns:
            item = value.get(column.name)
            if item is None and column.encoding != "json":
                raise SchemaError(
                    f"feature {column.name!r} is missing, and MDS has no missing values",
                    advice="give it a default with shardio.set_schema, or name the others with features=",
                )
            data = column.encode(_plain(item, feature, column))
            if column.size is None:
                sizes.append(len(data))
            parts.append(data)
        alone = 12 + len(self._head) + 4 * len(sizes) + sum(map(len, parts))
        if alone > _LARGEST:
            raise SchemaError("a record is larger than a shard of MDS can be", expected=_LARGEST, found=alone)
        return b"".join([np.array(sizes, "<u4").tobytes(), *parts])

    def finish(self) -> None:
        """Make a shard of the samples that are waiting, if there are any."""
        if self._samples is None:
            return
        offsets = np.cumsum([8 + 4 * len(self._sizes) + len(self._head), *self._sizes]).astype("<u4")
        ending = "" if self.compression is None else f".{self.compression}"
        path = self.next_path(ending)
        with contextlib.ExitStack() as files:
            samples, self._samples = files.enter_context(self._samples), None
            file = files.enter_context(path.open("w+b"))
            raw = files.enter_context(tempfile.TemporaryFile(dir=self.output.folder)) if ending else file
            raw.write(np.array([len(self._sizes)], "<u4").tobytes() + offsets.tobytes() + self._head)
            samples.seek(0)
            shutil.copyfileobj(samples, raw, READ_BYTES)
            facts = {"raw_data": _described(raw, path.name.removesuffix(ending)), "zip_data": None}
            if raw is not file:
                import zstandard

                # The frame says the size: readers that decompress at once allocate by it.
                size = raw.tell()
                raw.seek(0)
                zstandard.ZstdCompressor().copy_stream(raw, file, size=size)
                facts["zip_data"] = _described(file, path.name)
        self._shards.append({**self._config, **facts, "samples": len(self._sizes)})
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


def _described(file: IO[bytes], basename: str) -> dict[str, Any]:
    """Return what the index says of a file."""
    digest = hashlib.new(_HASH, usedforsecurity=False)
    file.seek(0)
    while data := file.read(READ_BYTES):
        digest.update(data)
    return {"basename": basename, "bytes": file.tell(), "hashes": {_HASH: digest.hexdigest()}}
