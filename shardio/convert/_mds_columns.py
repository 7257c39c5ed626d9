"""The columns of MDS: what an encoding's name says of sizes, types and bytes.

Source of the format: streaming/base/format/mds/encodings.py of mosaicml/streaming.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.convert._source import Unreadable
from shardio.errors import FormatError
from shardio.format import parse_json
from shardio.metadata import Feature

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Column", "column_of"]

_NUMBERS = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_SIZES = ("<u1", "<u2", "<u4", "<u8")


@dataclass(frozen=True)
class Column:
    """A column: name, size in bytes (None where it varies), type where the encoding says it, decoder."""

    name: str
    size: int | None
    feature: Feature | Unreadable | None
    decode: Callable[[bytes], Any]


def column_of(name: str, encoding: str, size_given: int | None = None) -> Column:
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
        return Column(name, dtype.itemsize, Feature(kind), lambda data: np.frombuffer(data, dtype)[0])
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
    }
    if kind not in known:
        runs_code = "reading it would run code from the data" if kind == "pkl" else "it is not known"
        unreadable = Unreadable(f"column {name!r} has encoding {encoding!r}: {runs_code}", keep="bytes")
        return Column(name, size_given, unreadable, bytes)
    size, feature, decode = known[kind]
    return Column(name, size, None if feature is None else Feature(feature), decode)


def _array_column(name: str, rest: str) -> Column:
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

    return Column(name, size, feature, decode)


def _raw_image(data: bytes) -> Any:
    """Return the pixels of a raw PIL image, uint8 [height, width, channels]."""
    width, height, mode_size = (int(number) for number in np.frombuffer(data, "<u4", 3))
    mode = data[12 : 12 + mode_size].decode()
    channels = {"L": 1, "RGB": 3, "RGBA": 4}.get(mode)
    if channels is None:
        message = f"raw images of mode {mode!r} have no shape in uint8"
        raise ValueError(message)
    return np.frombuffer(data, np.uint8, offset=12 + mode_size).reshape(height, width, channels)
