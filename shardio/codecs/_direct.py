"""Values that need no fitting: what most records are made of, straight to how an Example stores it.

`Feature.fit` is the rule of what fits, and says what is wrong; this is the same rule for the plain cases, at
a fifth of the time. What is not plain, or might not fit, is left to it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shardio import kernels
from shardio.metadata import Feature, is_image, shape_fits

Take = Callable[[Any], Any]

_NUMPY_INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
_NUMPY_FLOATS = [np.float16, np.float32, np.float64]


def direct(feature: Feature) -> dict[type, Take]:
    """Return by type of value what turns it into what is stored; None of a value is for `Feature.fit`.

    Numbers of another type than int64 and float32 become their bytes, or an array of the feature's dtype.
    """
    family = feature.kind
    if family == "number":
        return _arrays(feature) if feature.shape else _scalars(feature)
    if family in ("json", "tensor") or (family == "image" and feature.shape):
        return {}
    if feature.shape:
        kind = "text" if family == "text" else "bytes"
        return {list: partial(kernels.pack_list, kind, feature.shape[0])}
    if family == "text":
        return {str: _text}
    if family == "bytes":
        return {bytes: bytes}
    name = feature.type
    return {bytes: lambda given: given if is_image(given, name) else None}


def _text(given: str) -> bytes | None:
    try:
        return given.encode()
    except UnicodeEncodeError:
        return None


def _scalars(feature: Feature) -> dict[type, Take]:
    rules, dtype = feature.rules, feature.dtype
    if dtype is not None and dtype.kind == "b":
        return {bool: (b"\0", b"\1").__getitem__}
    if not rules.code:
        return {}
    # An Example has lists of its own for two of the types.
    own: dict[str, Take] = {"int64": int, "float": float}
    pack = own.get(rules.example) or struct.Struct("<" + rules.code).pack

    def within(low: float, high: float) -> tuple[Take, Take]:
        # A NaN is within nothing.
        return (
            lambda given: pack(given) if low <= given <= high else None,
            lambda given: pack(number) if low <= (number := given.item()) <= high else None,
        )

    takes: dict[type, Take]
    if rules.digits:
        largest, exact = float(np.finfo(dtype).max), 1 << rules.digits
        (plain, numpy), (whole, numpy_whole) = within(-largest, largest), within(-exact, exact)
        takes = {float: plain, **dict.fromkeys(_NUMPY_FLOATS, numpy)}
    else:
        classes, bounds = feature.classes, np.iinfo(dtype)
        low, high = (bounds.min, bounds.max) if classes is None else (0, len(classes) - 1)
        whole, numpy_whole = within(int(low), int(high))
        takes = {str: {label: pack(number) for number, label in enumerate(classes or ())}.get}
    return {**takes, int: whole, **dict.fromkeys(_NUMPY_INTEGERS, numpy_whole)}


def _arrays(feature: Feature) -> dict[type, Take]:
    """Return what takes arrays of the feature's dtype, and lists of plain numbers of one dimension."""
    if feature.classes is not None:
        return {}
    dtype, shape, rules = feature.dtype, feature.shape, feature.rules
    same = frozenset((dtype,))  # a set, because comparing dtypes costs more than hashing one
    takes: dict[type, Take] = {
        np.ndarray: lambda given: given if given.dtype in same and shape_fits(shape, given.shape) else None
    }
    if len(shape) != 1 or not rules.code or (rules.digits and rules.example == "bytes"):
        return takes
    size, code = shape[0], rules.code
    if rules.example != "bytes":
        return {**takes, list: partial(kernels.pack_list, rules.example, size)}

    def pack(given: list[Any]) -> bytes | None:
        try:
            return struct.pack(f"<{len(given)}{code}", *given) if size in (None, len(given)) else None
        except (struct.error, OverflowError):
            return None

    return {**takes, list: pack}
