"""MDS, the shards of MosaicML's streaming library: `index.json` and its shards, plain or compressed.

A shard is `u32 samples | u32 offsets[samples + 1] | JSON | samples`, a sample the u32 sizes of its columns
of varying size and then the columns.  Sizes and those hashes that Python knows are compared; nothing is
unpickled.  Source of the format: streaming/base/format/mds of mosaicml/streaming.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from shardio.arguments import need
from shardio.convert._files import READ_ONCE, File, FileSource, read_whole
from shardio.convert._source import Piece, Sample, Unreadable
from shardio.errors import BadRecord, FormatError, ShardioError
from shardio.format import Compression, decode_stream, parse_json
from shardio.metadata import Feature, naming

_NUMBERS = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_SIZES = ("<u1", "<u2", "<u4", "<u8")


@dataclass(frozen=True)
class _MdsColumn:
    """A column: name, size in bytes (None where it varies), type where the encoding says it, decoder."""

    name: str
    size: int | None
    feature: Feature | Unreadable | None
    decode: Callable[[bytes], Any]


def column_of(name: str, encoding: str, size_given: int | None = None) -> _MdsColumn:
    """Return the column of an encoding; one that is unknown, or would run code, gives bytes.

    Args:
        name, encoding: of the column.
        size_given: in bytes, as the index says for encodings that are not known here.

    Raises:
        FormatError: an encoding that makes no sense.
    """
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray":
        return _array_column(name, rest)
    if kind in _NUMBERS.values():
        dtype = np.dtype(kind).newbyteorder("<")
        return _MdsColumn(name, dtype.itemsize, Feature(kind), lambda data: np.frombuffer(data, dtype)[0])
    known: dict[str, tuple[int | None, str | None, Callable[[bytes], Any]]] = {
        "bytes": (None, None, bytes),
        "str": (None, "text", bytes.decode),
        "int": (8, "int64", lambda data: np.frombuffer(data, "<i8")[0]),
        "jpeg": (None, "jpeg", bytes),
        "png": (None, "png", bytes),
        "json": (None, "json", parse_json),
        "str_int": (None, None, lambda data: int(data.decode())),
        "str_float": (None, "float64", lambda data: float(data.decode())),
        "str_decimal": (None, "text", bytes.decode),
        "pil": (None, None, _raw_image),
        "list[jpeg]": (None, "jpeg[?]", _list_items),
        "list[png]": (None, "png[?]", _list_items),
        "list[pil]": (None, "png[?]", lambda data: [_png(item) for item in _list_items(data)]),
        "jpeg_array": (None, "jpeg[?]", _items),
        "jpegarray": (None, "jpeg[?]", _items),
    }
    if kind not in known:
        runs_code = "reading it would run code from the data" if kind == "pkl" else "it is not known"
        unreadable = Unreadable(f"column {name!r} has encoding {encoding!r}: {runs_code}", keep="bytes")
        return _MdsColumn(name, size_given, unreadable, bytes)
    size, feature, decode = known[kind]
    return _MdsColumn(name, size, None if feature is None else Feature(feature), decode)


def _array_column(name: str, rest: str) -> _MdsColumn:
    dtype_name, _, shape_text = rest.partition(":")
    try:
        shape = tuple(map(int, shape_text.split(","))) if shape_text else None
        dtype = np.dtype(dtype_name).newbyteorder("<") if dtype_name else None
    except (TypeError, ValueError):
        raise FormatError(
            f"column {name!r} has encoding {'ndarray:' + rest!r}, which makes no sense"
        ) from None
    fixed = dtype is not None and shape is not None
    size = dtype.itemsize * math.prod(shape) if dtype is not None and shape is not None else None
    feature = Feature(dtype_name, shape=shape) if fixed else None

    def decode(data: bytes) -> Any:
        place, kind, sizes = 0, dtype, shape
        if kind is None:
            kind, place = np.dtype(_NUMBERS[data[0]]).newbyteorder("<"), 1
        if sizes is None:
            # Six bits say how many sizes, two how wide each is.
            count, width = data[place] >> 2, data[place] & 3
            found = np.frombuffer(data, _SIZES[width], count, place + 1)
            sizes, place = tuple(map(int, found)), place + 1 + found.nbytes
        return np.frombuffer(data, kind, offset=place).reshape(sizes)

    return _MdsColumn(name, size, feature, decode)


def _raw_image(data: bytes) -> Any:
    """Return the pixels of a raw PIL image, uint8 [height, width, channels]."""
    width, height, mode_size = (int(number) for number in np.frombuffer(data, "<u4", 3))
    mode = data[12 : 12 + mode_size].decode()
    channels = {"L": 1, "RGB": 3, "RGBA": 4}.get(mode)
    if channels is None:
        raise ValueError(f"raw images of mode {mode!r} have no shape in uint8")
    return np.frombuffer(data, np.uint8, offset=12 + mode_size).reshape(height, width, channels)


def _items(data: bytes) -> list[bytes]:
    """Return the items of `u32 count | u32 sizes[count] | items`."""
    count = int(np.frombuffer(data, "<u4", 1)[0])
    sizes = np.frombuffer(data, "<u4", count, 4).astype(np.int64)
    stops = 4 + 4 * count + np.cumsum(sizes)
    end = int(stops[-1]) if count else 4
    if end != len(data):
        raise ValueError(f"a list of {count} items has {len(data)} bytes, not {end}")
    return [data[stop - size : stop] for stop, size in zip(stops.tolist(), sizes.tolist(), strict=True)]


def _list_items(data: bytes) -> list[bytes]:
    """Return the items of a `list[...]`, which begins with a word that has no meaning yet."""
    return _items(data[4:])


def _png(data: bytes) -> bytes:
    """Return a raw PIL image as a PNG file: images of one list may differ in size, and PNG loses nothing."""
    from PIL import Image

    pixels = _raw_image(data)
    out = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(out, "PNG")
    return out.getvalue()


# Offsets in a shard have 32 bits.
_LARGEST = 1 << 32
_COMPRESSIONS = {"zstd": Compression.ZSTD, "gz": Compression.GZIP}


def _is_mds_index(data: bytes) -> bool:
    """Tell whether an `index.json` is one of MDS."""
    try:
        index = parse_json(data)
        return all(shard["format"] == "mds" for shard in index["shards"])
    except (ValueError, KeyError, TypeError):
        return False


@dataclass(frozen=True)
class MdsFolder(FileSource):
    """A folder with an `index.json`, or several such folders, one a split."""

    kind: ClassVar[str] = "mds"

    @classmethod
    def recognises(cls, urls: Sequence[str], read: Callable[[str], bytes]) -> bool:
        """Tell whether there is an index of MDS."""
        return any(_is_mds_index(read(url)) for url in urls if url.endswith("/index.json"))

    @classmethod
    def fits(cls, key: str) -> bool:
        """Take all files: the index names those that are shards."""
        return bool(key)

    def ignored(self) -> Sequence[str]:
        """Return files that are neither index nor shard."""
        used = {(piece.root, piece.key) for piece in self.pieces()}
        others = [file for file in self.files if file.key.rpartition("/")[2] != "index.json"]
        return [*super().ignored(), *(file.name for file in others if (file.root, file.key) not in used)]

    @property
    def heads(self) -> list[File]:
        """The indexes whose shards count."""
        return [file for file, _ in self._indexes]

    @cached_property
    def _indexes(self) -> list[tuple[File, dict[str, Any]]]:
        """The indexes with their contents, without a merged one: each shard is named once.

        Parallel writers leave an index in each folder, and `merge_index` makes one of all above them.
        """
        found: dict[str, tuple[File, dict[str, Any]]] = {}
        for file in self.files:
            if file.key.rpartition("/")[2] == "index.json":
                data = read_whole(file.root, file.key, self.options.storage_options, max_bytes=64 << 20)
                if not _is_mds_index(data):
                    raise FormatError("this index.json is not one of MDS", url=file.url)
                found[file.url] = file, parse_json(data)
        if not found:
            raise FormatError("there is no index.json here", url=str(self.place))
        names = {url: _shard_urls(url, index) for url, (_, index) in found.items()}
        for url in sorted(found, key=len):
            folder = url.removesuffix("index.json")
            below = {other: names[other] for other in found if other != url and other.startswith(folder)}
            inner: set[str] = set().union(*below.values())
            if not names[url] & inner:
                continue
            if unnamed := sorted(inner - names[url]):
                raise FormatError(
                    "a merged index.json does not name shards that indexes below it name",
                    url=url,
                    found=unnamed[0],
                    advice="merge the indexes again, or convert the folders one by one",
                )
            if names[url] <= inner:
                del found[url]
            else:
                for other in below:
                    found.pop(other, None)
        return list(found.values())

    def bad_records(self) -> Sequence[BadRecord]:
        """Return names that are not text, and shards that are not there, as in a cache."""
        there = {(file.root, file.key) for file in self.files}
        advice = "convert the folder that the cache was filled from"
        return [
            *super().bad_records(),
            *(
                BadRecord(piece.url, "index.json names this shard, and it is not there", advice)
                for piece in self._named
                if self._lists_all and (piece.root, piece.key) not in there
            ),
        ]

    def pieces(self) -> list[Piece]:
        """Return the shards that are there."""
        there = {(file.root, file.key) for file in self.files}
        return [piece for piece in self._named if not self._lists_all or (piece.root, piece.key) in there]

    @property
    def _lists_all(self) -> bool:
        """Whether files that were found are all that there are: an index may have been named alone."""
        return all(listing.kind == "folder" for listing in self._listings)

    @cached_property
    def _named(self) -> list[Piece]:
        """The shards that the indexes name."""
        splits = {(file.root, file.key): split for file, split in self.split_files()}
        found = []
        there = {(file.root, file.key): file.size for file in self.files}
        for head, index in self._indexes:
            root, index_key = head.root, head.key
            if (root, index_key) not in splits:
                continue
            folder = index_key.rpartition("/")[0]
            for shard in index["shards"]:
                try:
                    stored = shard["zip_data"] if shard.get("compression") else shard["raw_data"]
                    name = folder + "/" * bool(folder) + stored["basename"]
                    size = int(stored["bytes"])
                    _columns(shard)
                    _check_packages(shard)
                    numbers = (shard["samples"], shard["raw_data"]["bytes"])
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    if isinstance(error, ShardioError):
                        raise
                    what = f"index.json does not describe a shard ({error!r})"
                    raise FormatError(what, url=f"{root}/{index_key}") from None
                if not all(isinstance(each, int) and 0 <= each < _LARGEST for each in (size, *numbers)):
                    raise FormatError(
                        "index.json has a number that makes no sense",
                        url=f"{root}/{index_key}",
                        found=numbers,
                    )
                naming.check_foreign_key(name, what="the name of an MDS shard")
                form = shard
                if (root, name) not in there and shard.get("compression"):
                    # The library's cache keeps shards decompressed.
                    raw = folder + "/" * bool(folder) + shard["raw_data"]["basename"]
                    if (root, raw) in there:
                        naming.check_foreign_key(raw, what="the name of an MDS shard")
                        name, size, form = raw, there[root, raw], {**shard, "compression": None}
                found.append(Piece(root, name, splits[root, index_key], size, extra=form))
        return found

    def known(self) -> Mapping[str, Feature | str | Unreadable]:
        """Return the types of columns that the index declares, and what is wrong with the others."""
        declared: dict[str, Feature | str | Unreadable] = {}
        encodings: dict[str, str] = {}
        names: set[str] | None = None
        for piece in self.pieces():
            shard = piece.extra
            for column, encoding in zip(_columns(shard), shard["column_encodings"], strict=True):
                first = encodings.setdefault(column.name, encoding)
                if first != encoding:
                    known = column.feature, declared.get(column.name)
                    why = next((one.reason for one in known if isinstance(one, Unreadable)), None)
                    reason = f"column {column.name!r} is not the same in all shards: {first}, {encoding}"
                    declared[column.name] = Unreadable(why or reason)
                elif column.feature is not None:
                    declared.setdefault(column.name, column.feature)
            names = names if names is not None else set(shard["column_names"])
            for name in names ^ set(shard["column_names"]):
                declared[name] = Unreadable(f"column {name!r} is not in all shards")
        return declared

    def read(self, piece: Piece) -> Iterator[Sample | BadRecord]:
        """Yield the samples of a shard."""
        shard = piece.extra
        stored = read_whole(piece.root, piece.key, self.options.storage_options, max_bytes=4 << 30)
        described = shard["zip_data"] if shard.get("compression") else shard["raw_data"]
        _check(stored, described, piece.url)
        data = _decompressed(stored, shard, piece.url)
        if data is not stored:
            _check(data, shard["raw_data"], piece.url)
        columns = _columns(shard)
        offsets = _offsets(data, shard["samples"], piece.url)
        for number in range(len(offsets) - 1):
            where = f"{piece.url} sample {number}"
            try:
                yield Sample(where, _sample(data[offsets[number] : offsets[number + 1]], columns))
            except (ValueError, IndexError, KeyError, RecursionError) as error:
                yield BadRecord(where, f"the sample is damaged: {error}")


def _shard_urls(url: str, index: Mapping[str, Any]) -> set[str]:
    """Return the URLs of the shards that an index names, as they are before compression."""
    folder = url.removesuffix("index.json")
    try:
        return {folder + shard["raw_data"]["basename"] for shard in index["shards"]}
    except (KeyError, TypeError) as error:
        raise FormatError(f"index.json does not describe a shard ({error!r})", url=url) from None


def _columns(shard: Mapping[str, Any]) -> list[_MdsColumn]:
    names, encodings = shard["column_names"], shard["column_encodings"]
    sizes = shard.get("column_sizes") or [None] * len(names)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FormatError(f"two columns of a shard are called {twice!r}")
    return [column_of(*column) for column in zip(names, encodings, sizes, strict=True)]


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


def _check_packages(shard: Mapping[str, Any]) -> None:
    """Refuse what is read with packages that are not installed, before anything is read."""
    if _algorithm(shard) in ("br", "snappy"):
        need(f"reading MDS shards compressed with {_algorithm(shard)}", "shardio[convert]", "pyarrow")
    if "list[pil]" in shard["column_encodings"]:
        need("reading MDS columns of list[pil]", "shardio[image]", "Pillow")


def _algorithm(shard: Mapping[str, Any]) -> str | None:
    name = shard.get("compression")
    return None if name is None else str(name).split(":")[0]


def _decompressed(stored: bytes, shard: Mapping[str, Any], url: str) -> bytes:
    name = _algorithm(shard)
    if name is None:
        return stored
    # One byte more than there should be: what is too large is found out by `_check`; going on would be a
    # bomb's wish.
    limit = int(shard["raw_data"]["bytes"]) + 1
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


def _sample(data: bytes, columns: Sequence[_MdsColumn]) -> dict[str, Any]:
    varying = sum(column.size is None for column in columns)
    sizes = iter(np.frombuffer(data, "<u4", varying).tolist())
    place = 4 * varying
    value = {}
    for column in columns:
        size = next(sizes) if column.size is None else column.size
        if place + size > len(data):
            raise ValueError(f"column {column.name!r} ends behind the sample")
        value[column.name] = column.decode(data[place : place + size])
        place += size
    if place != len(data):
        raise ValueError(f"{len(data) - place} bytes are left over")
    return value
