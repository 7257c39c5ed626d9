"""Samples of MDS, the shards of MosaicML's streaming library: columns of a sample <-> values.

A sample is the u32 sizes of its columns of varying size and then the columns, in the order of the layout.
Nothing is unpickled.  Source of the format: streaming/base/format/mds of mosaicml/streaming.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardio.errors import FormatError
from shardio.format import parse_json
from shardio.metadata import Feature

_NUMBERS = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_SIZES = ("<u1", "<u2", "<u4", "<u8")
# What MDS does not have, and what it becomes.
_NEAREST = {"bool": "uint8", "bfloat16": "float32"}
# What damaged bytes of a column make of the code that reads them.
MDS_DAMAGE = (ValueError, IndexError, KeyError, RecursionError)


@dataclass(frozen=True)
class MdsColumn:
    """A column of MDS.

    Attributes:
        name, encoding: as the index of a shard says.
        size: in bytes; None where it varies.
        feature: its type; None where the values tell it.
        decode: makes a value of the bytes; raises one of `MDS_DAMAGE`.
        encode: makes bytes of a value; of JSON and text that is their UTF-8.
        trouble: why the values can only be bytes, or None.
    """

    name: str
    encoding: str
    size: int | None
    feature: Feature | None
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes] = bytes
    trouble: str | None = None

    @property
    def is_stored(self) -> bool:
        """Whether a value is the stored bytes, as those of files and text are."""
        return self.encoding in ("bytes", "str", "str_decimal", "jpeg", "png") or self.trouble is not None


def mds_column(name: str, encoding: str, size_given: int | None = None) -> MdsColumn:
    """Return the column of an encoding; one that is unknown, or would run code, gives bytes.

    Args:
        name, encoding: of the column.
        size_given: in bytes, as the index says for encodings that are not known here.

    Raises:
        FormatError: an encoding that makes no sense.
    """
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray":
        return _array_column(name, encoding, rest)
    number = "int64" if kind == "int" else kind
    if number in _NUMBERS.values():
        dtype = np.dtype(number).newbyteorder("<")
        return MdsColumn(
            name, encoding, dtype.itemsize, Feature(number),
            lambda data: np.frombuffer(data, dtype)[0], lambda value: np.asarray(value, dtype).tobytes(),
        )  # fmt: skip
    if kind not in _ENCODINGS:
        runs_code = "reading it would run code from the data" if kind == "pkl" else "it is not known"
        trouble = f"column {name!r} has encoding {encoding!r}: {runs_code}"
        return MdsColumn(name, encoding, size_given, None, bytes, trouble=trouble)
    feature, decode, encode = _ENCODINGS[kind]
    return MdsColumn(name, encoding, None, None if feature is None else Feature(feature), decode, encode)


def mds_encoding_of(name: str, feature: Feature) -> tuple[str, str | None]:
    """Return the encoding that a feature is written with, and what it becomes if MDS lacks its type.

    Raises:
        ValueError: MDS has nothing that holds it.
    """
    kind, shape = _NEAREST.get(feature.type, feature.type), feature.shape
    if feature.kind == "number":
        if kind.startswith("complex"):
            raise ValueError(f"feature {name!r} is {feature.short}: MDS has no complex numbers")
        if 0 in shape:
            message = f"feature {name!r} is {feature.short}: no column of MDS holds arrays without elements"
            raise ValueError(message)
        encoding = "int" if kind == "int64" else kind
        if shape:
            known = "" if feature.unknown_dimensions else ":" + ",".join(map(str, shape))
            encoding = f"ndarray:{kind}{known}"
        return encoding, None if kind == feature.type else kind
    if shape and feature.type == "text":
        return "json", "JSON"
    if shape and feature.type not in ("jpeg", "png"):
        raise ValueError(f"feature {name!r} is a list of {feature.type}, which no column of MDS can hold")
    if shape:
        return f"list[{feature.type}]", None
    encoding = {"text": "str", "json": "json", "jpeg": "jpeg", "png": "png"}.get(kind, "bytes")
    return encoding, "bytes" if feature.kind == "image" and encoding == "bytes" else None


def mds_columns(names: Sequence[str], encodings: Sequence[str], sizes: Iterable[Any]) -> list[MdsColumn]:
    """Return the columns of a shard.

    Raises:
        FormatError: an encoding makes no sense, or two columns have one name.
    """
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FormatError(f"two columns of a shard are called {twice!r}")
    return [mds_column(*column) for column in zip(names, encodings, sizes, strict=True)]


def split_mds_sample(data: bytes, columns: Sequence[MdsColumn]) -> list[bytes]:
    """Return the bytes of each column of a sample.

    Raises:
        ValueError: the sample has another size than its columns.
    """
    varying = sum(column.size is None for column in columns)
    sizes = iter(np.frombuffer(data, "<u4", varying).tolist())
    place = 4 * varying
    parts = []
    for column in columns:
        size = next(sizes) if column.size is None else column.size
        if place + size > len(data):
            raise ValueError(f"column {column.name!r} ends behind the sample")
        parts.append(data[place : place + size])
        place += size
    if place != len(data):
        raise ValueError(f"{len(data) - place} bytes are left over")
    return parts


def decode_mds_sample(data: bytes, columns: Sequence[MdsColumn]) -> dict[str, Any]:
    """Return the values of a sample by the names of its columns; raises one of `MDS_DAMAGE`."""
    parts = split_mds_sample(data, columns)
    return {column.name: column.decode(part) for column, part in zip(columns, parts, strict=True)}


def _array_column(name: str, encoding: str, rest: str) -> MdsColumn:
    dtype_name, _, shape_text = rest.partition(":")
    try:
        shape = tuple(map(int, shape_text.split(","))) if shape_text else None
        dtype = np.dtype(dtype_name).newbyteorder("<") if dtype_name else None
    except (TypeError, ValueError):
        raise FormatError(f"column {name!r} has encoding {encoding!r}, which makes no sense") from None
    size = feature = None
    if dtype is not None and shape is not None:
        size, feature = dtype.itemsize * math.prod(shape), Feature(dtype_name, shape=shape)

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

    def encode(value: Any) -> bytes:
        array = np.asarray(value, dtype)
        if shape is not None:
            return array.tobytes()
        width = next(width for width in range(4) if max(array.shape) < 1 << (8 << width))
        sizes = np.asarray(array.shape, _SIZES[width]).tobytes()
        return bytes([array.ndim << 2 | width]) + sizes + array.tobytes()

    return MdsColumn(name, encoding, size, feature, decode, encode)


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


def _list_bytes(value: Sequence[bytes]) -> bytes:
    """Return a list: a word without meaning yet, the number of its items, their sizes, the items."""
    return b"".join([np.array([0, len(value), *map(len, value)], "<u4").tobytes(), *value])


def _png(data: bytes) -> bytes:
    """Return a raw PIL image as a PNG file: images of one list may differ in size, and PNG loses nothing."""
    from PIL import Image

    pixels = _raw_image(data)
    out = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(out, "PNG")
    return out.getvalue()


# Encodings besides numbers and arrays: the feature, bytes -> value, and value -> bytes.
_ENCODINGS: dict[str, tuple[str | None, Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "bytes": (None, bytes, bytes),
    "str": ("text", bytes.decode, str.encode),
    "jpeg": ("jpeg", bytes, bytes),
    "png": ("png", bytes, bytes),
    "json": ("json", parse_json, str.encode),
    "list[jpeg]": ("jpeg[?]", _list_items, _list_bytes),
    "list[png]": ("png[?]", _list_items, _list_bytes),
    # What is only read.
    "str_int": (None, lambda data: int(data.decode()), bytes),
    "str_float": ("float64", lambda data: float(data.decode()), bytes),
    "str_decimal": ("text", bytes.decode, bytes),
    "pil": (None, _raw_image, bytes),
    "list[pil]": ("png[?]", lambda data: [_png(item) for item in _list_items(data)], bytes),
    "jpeg_array": ("jpeg[?]", _items, bytes),
    "jpegarray": ("jpeg[?]", _items, bytes),
}
