"""Values that need no fitting: what most records are made of, straight to how an Example stores it.

`Feature.fit` is the rule of what fits, and says what is wrong; this is the same rule for the plain cases, at
a fifth of the time. What is not plain, or might not fit, is left to it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shardio import kernels
from shardio.metadata import Feature, is_image, shape_fits

Take = Callable[[Any], Any]

# Of a float type: its largest number, and up to where every integer is exact.
_FLOATS = {
    "float16": (65504.0, 1 << 11),
    "float32": (float(np.finfo(np.float32).max), 1 << 24),
    "float64": (math.inf, 1 << 53),
}
_CODES = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip
_NUMPY_INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
_NUMPY_FLOATS = [np.float16, np.float32, np.float64]


def direct(feature: Feature) -> dict[type, Take]:
    """Return by type of value what turns it into what is stored; None of a value is for `Feature.fit`.

    Numbers of another type than int64 and float32 become their bytes, or an array of the feature's dtype.
    """
    if feature.kind == "number":
        return _arrays(feature) if feature.shape else _scalars(feature)
    if feature.kind in ("json", "tensor"):
        return {}
    is_text = feature.kind == "text"
    if feature.shape:
        if feature.kind == "image":
            return {}
        return {list: partial(kernels.pack_list, "text" if is_text else "bytes", feature.shape[0])}
    if is_text:
        return {str: _text}
    if feature.kind == "bytes":
        return {bytes: bytes}
    name = feature.type
    return {bytes: lambda given: given if is_image(given, name) else None}


def _text(given: str) -> bytes | None:
    try:
        return given.encode()
    except UnicodeEncodeError:
        return None


def _scalars(feature: Feature) -> dict[type, Take]:
    name = feature.type
    if name == "bool":
        return {bool: (b"\0", b"\1").__getitem__}
    if name not in _CODES:
        return {}
    # An Example has lists of its own for two of the types.
    own: dict[str, Take] = {"int64": int, "float32": float}
    pack = own.get(name) or struct.Struct("<" + _CODES[name]).pack

    def within(low: float, high: float) -> tuple[Take, Take]:
        # A NaN is within nothing.
        return (
            lambda given: pack(given) if low <= given <= high else None,
            lambda given: pack(number) if low <= (number := given.item()) <= high else None,
        )

    takes: dict[type, Take]
    if name in _FLOATS:
        largest, exact = _FLOATS[name]
        (plain, numpy), (whole, numpy_whole) = within(-largest, largest), within(-exact, exact)
        takes = {float: plain, **dict.fromkeys(_NUMPY_FLOATS, numpy)}
    else:
        classes, bounds = feature.classes, np.iinfo(name)
        low, high = (bounds.min, bounds.max) if classes is None else (0, len(classes) - 1)
        whole, numpy_whole = within(int(low), int(high))
        takes = {str: {label: pack(number) for number, label in enumerate(classes or ())}.get}
    return {**takes, int: whole, **dict.fromkeys(_NUMPY_INTEGERS, numpy_whole)}


def _arrays(feature: Feature) -> dict[type, Take]:
    """Return what takes arrays of the feature's dtype, and lists of plain numbers of one dimension."""
    if feature.classes is not None:
        return {}
    dtype, shape, name = feature.dtype, feature.shape, feature.type
    same = frozenset((dtype,))  # a set, because comparing dtypes costs more than hashing one
    takes: dict[type, Take] = {
        np.ndarray: lambda given: given if given.dtype in same and shape_fits(shape, given.shape) else None
    }
    if len(shape) != 1 or name in ("float16", "float64") or name not in _CODES:
        return takes
    size, code = shape[0], _CODES[name]
    if name in ("float32", "int64"):
        return {**takes, list: partial(kernels.pack_list, "float" if name == "float32" else "int64", size)}

    def pack(given: list[Any]) -> bytes | None:
        try:
            return struct.pack(f"<{len(given)}{code}", *given) if size in (None, len(given)) else None
        except (struct.error, OverflowError):
            return None

    return {**takes, list: pack}
