"""MDS, the shards of MosaicML's streaming library: `index.json` and its shards, plain or compressed.

A shard is `u32 samples | u32 offsets[samples + 1] | JSON | samples`; `codecs` decodes samples.  Sizes and
those hashes that Python knows are compared.  Source of the format: streaming/base/format/mds of
mosaicml/streaming.
"""

from __future__ import annotations

import bz2
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from shardio.arguments import need
from shardio.codecs import MDS_DAMAGE, MdsColumn, decode_mds_sample, mds_columns
from shardio.convert._files import READ_ONCE, File, FileSource, read_whole
from shardio.convert._source import Piece, Sample, Unreadable
from shardio.errors import BadRecord, FormatError
from shardio.format import Compression, decode_stream
from shardio.metadata import Feature
from shardio.sources import (
    MDS_INDEX,
    FoundFile,
    MdsShard,
    is_mds_index,
    is_mds_name,
    mds_shards,
    read_mds_indexes,
)

_COMPRESSIONS = {"zstd": Compression.ZSTD, "gz": Compression.GZIP}


@dataclass(frozen=True)
class MdsFolder(FileSource):
    """A folder with an `index.json`, or several such folders, one a split."""

    kind: ClassVar[str] = "mds"

    @classmethod
    def recognises(cls, urls: Sequence[str], read: Callable[[str], bytes]) -> bool:
        """Tell whether there is an index of MDS."""
        return any(is_mds_index(read(url)) for url in urls if url.endswith(f"/{MDS_INDEX}"))

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
        options = self.options.storage_options
        found = read_mds_indexes(
            heads, lambda file: read_whole(file.root, file.key, options, max_bytes=64 << 20)
        )
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
        declared: dict[str, Feature | str | Unreadable] = {}
        encodings: dict[str, str] = {}
        names: set[str] | None = None
        for piece in self.pieces():
            columns = _columns(piece.extra)
            for column in columns:
                first = encodings.setdefault(column.name, column.encoding)
                if first != column.encoding:
                    known = declared.get(column.name)
                    why = column.trouble or (known.reason if isinstance(known, Unreadable) else None)
                    reason = (
                        f"column {column.name!r} is not the same in all shards: {first}, {column.encoding}"
                    )
                    declared[column.name] = Unreadable(why or reason)
                elif column.trouble is not None:
                    declared.setdefault(column.name, Unreadable(column.trouble, keep="bytes"))
                elif column.feature is not None:
                    declared.setdefault(column.name, column.feature)
            found = {column.name for column in columns}
            names = found if names is None else names
            for name in names ^ found:
                declared[name] = Unreadable(f"column {name!r} is not in all shards")
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
    return mds_columns(*map(list, zip(*shard.columns, strict=True))) if shard.columns else []


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
    if shard.compression in ("br", "snappy"):
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
    try:
        if name == "bz2":
            return bz2.BZ2Decompressor().decompress(stored, limit)
        if name == "br":
            import pyarrow as pa

            with pa.CompressedInputStream(pa.BufferReader(stored), "brotli") as stream:
                data: bytes = stream.read(limit)
            return data
        if name == "snappy":
            return _from_snappy(stored, limit)
        if name in _COMPRESSIONS:
            found = bytearray()
            for part in decode_stream([stored], _COMPRESSIONS[name], limits=READ_ONCE):
                found += part
                if len(found) >= limit:
                    break
            return bytes(found)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        if isinstance(error, FormatError):
            raise error.located(url=url) from error
        raise FormatError(f"the shard does not decode ({error})", url=url) from None
    advice = "write the shards with zstd, gz, bz2, br, snappy or no compression"
    raise FormatError(f"shards compressed with {name} cannot be read", url=url, advice=advice)


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
