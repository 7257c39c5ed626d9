"""Values that need no fitting: what most records are made of, straight to how an Example stores it.

`Feature.fit` is the rule of what fits, and says what is wrong; this is the same rule for the plain cases, at
the cost of a look-up and a call.  What is not plain, or might not fit, is left to it.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shardio import kernels
from shardio.metadata import Feature, is_image

Take = Callable[[Any], Any]

_LARGEST = {"float16": 65504.0, "float32": float(np.finfo(np.float32).max), "float64": math.inf}
# Integers up to here are exact in a float.
_EXACT = {"float16": 1 << 11, "float32": 1 << 24, "float64": 1 << 53}
_CODES = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip
_NATIVE = sys.byteorder == "little"
_INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
_FLOATS = [np.float16, np.float32, np.float64]


def direct(feature: Feature) -> dict[type, Take]:
    """Return by type of value what turns it into what is stored; None of a value is for `Feature.fit`.

    Numbers of another type than int64 and float32 become their bytes, or an array of the feature's dtype.
    """
    if feature.kind == "number":
        numbers = _lists(feature) if feature.shape else _scalars(feature)
        arrays = feature.shape and feature.classes is None
        return {**numbers, np.ndarray: _arrays(feature)} if arrays else numbers
    take = (
        _text
        if feature.kind == "text"
        else partial(_image, feature.type)
        if feature.kind == "image"
        else _same
    )
    if feature.kind in ("json", "tensor"):
        return {}
    if not feature.shape:
        return {str if feature.kind == "text" else bytes: take}
    pack = partial(kernels.pack_list, "text" if feature.kind == "text" else "bytes", feature.shape[0])
    if feature.kind != "image":
        return {list: pack}
    name = feature.type
    return {list: lambda given: pack(given) if all(_is_file(item, name) for item in given) else None}


def _same(given: bytes) -> bytes:
    return given


def _text(given: str) -> bytes | None:
    try:
        return given.encode()
    except UnicodeEncodeError:
        return None


def _image(name: str, given: bytes) -> bytes | None:
    return given if is_image(given, name) else None


def _is_file(given: object, name: str) -> bool:
    return type(given) is bytes and is_image(given, name)


def _scalars(feature: Feature) -> dict[type, Take]:
    name, dtype = feature.type, feature.dtype
    if name == "bool":
        stored = (b"\0", b"\1")
        return {bool: stored.__getitem__, np.bool_: lambda given: stored[bool(given)]}
    if name not in _CODES or dtype is None:
        return {}
    own = name in ("int64", "float32")
    pack = (lambda number: number) if own else struct.Struct("<" + _CODES[name]).pack
    if dtype.kind == "f":
        takes = _floats(name, pack)
    elif feature.classes is None:
        bounds = np.iinfo(dtype)
        takes = _integers(int(bounds.min), int(bounds.max), pack)
    else:
        takes = _integers(0, len(feature.classes) - 1, pack)
        numbers = {label: pack(number) for number, label in enumerate(feature.classes)}
        takes[str] = numbers.get
    if not own and _NATIVE and feature.classes is None:
        # Every bit, also of a NaN.
        takes[dtype.type] = dtype.type.tobytes
    return takes


def _integers(least: int, most: int, pack: Take) -> dict[type, Take]:
    def plain(given: int) -> Any:
        return pack(given) if least <= given <= most else None

    def of_numpy(given: Any) -> Any:
        number = given.item()
        return pack(number) if least <= number <= most else None

    return {int: plain, **dict.fromkeys(_INTEGERS, of_numpy)}


def _floats(name: str, pack: Take) -> dict[type, Take]:
    largest, exact = _LARGEST[name], _EXACT[name]

    def plain(given: float) -> Any:
        return pack(given) if -largest <= given <= largest else None

    def of_numpy(given: Any) -> Any:
        number = given.item()
        return pack(number) if -largest <= number <= largest else None

    def integer(given: int) -> Any:
        return pack(float(given)) if -exact <= given <= exact else None

    def of_numpy_integer(given: Any) -> Any:
        return integer(given.item())

    return {
        float: plain, int: integer,
        **dict.fromkeys(_FLOATS, of_numpy), **dict.fromkeys(_INTEGERS, of_numpy_integer),
    }  # fmt: skip


def _lists(feature: Feature) -> dict[type, Take]:
    """Return what takes lists of plain numbers of one dimension."""
    if feature.type not in _CODES or len(feature.shape) != 1 or feature.classes is not None:
        return {}
    size, code = feature.shape[0], _CODES[feature.type]
    if feature.type in ("float32", "int64"):
        return {list: partial(kernels.pack_list, "float" if feature.type == "float32" else "int64", size)}
    plain = {float if code in "ed" else int}

    def take(given: list[Any]) -> bytes | None:
        count = len(given)
        if (size is not None and count != size) or not plain.issuperset(map(type, given)):
            return None
        try:
            return struct.pack(f"<{count}{code}", *given)
        except (OverflowError, struct.error):
            return None

    return {list: take}


def _arrays(feature: Feature) -> Take:
    """Return what takes arrays of the feature's dtype, and others that it holds whatever their values."""
    dtype, sizes = feature.dtype, feature.shape
    assert dtype is not None  # noqa: S101 - only asked of numbers
    varies = None in sizes
    count = len(sizes)
    same = frozenset((dtype,))
    wider = frozenset(_narrower(feature.type))
    rounded = frozenset((np.dtype("<f8"),) if feature.type == "float32" else ())
    limit = _LARGEST["float32"] ** 2

    def take(given: Any) -> Any:
        shape = given.shape
        if shape != sizes and not (
            varies
            and len(shape) == count
            and all(want is None or want == have for want, have in zip(sizes, shape, strict=True))
        ):
            return None
        # In sets, because comparing dtypes costs more than hashing one.
        held = given.dtype
        if held in same:
            return given
        if held in wider:
            return given.astype(dtype, "C")
        # Their squares tell at once whether one would overflow, or is a NaN.
        if held in rounded and np.vdot(given, given) <= limit:
            return given.astype(dtype, "C")
        return None

    return take


def _narrower(name: str) -> list[np.dtype[Any]]:
    """Return the dtypes all of whose values, NaNs with their bits aside, a type of number holds."""
    if name not in _CODES:
        return []
    target = np.dtype("<" + _CODES[name])
    found: list[np.dtype[Any]] = []
    for each in _INTEGERS:
        given: np.dtype[Any] = np.dtype(each)
        bounds = np.iinfo(given)
        if target.kind == "f":
            fits = bounds.max <= _EXACT[name]
        else:
            holds = np.iinfo(target)
            fits = holds.min <= bounds.min and bounds.max <= holds.max
        if fits and given != target:
            found.append(given)
    return found
