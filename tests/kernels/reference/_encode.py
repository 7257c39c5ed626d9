"""tf.train.Example written without protobuf: what it writes in deterministic mode, byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kernels.reference._shared import MAX_MESSAGE, is_packed, too_large, wrong_name, wrong_value

# Values from these on take one byte more; negative ones, as unsigned numbers, take ten.
_STEPS = np.array([1 << shift for shift in range(7, 64, 7)], np.uint64)
_MASK = (1 << 64) - 1
_FEW = 64
_SHORT = [bytes([size]) for size in range(128)]


def _varint(value: int) -> bytes:
    if value < 128:
        return _SHORT[value]
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _few(values: list[int]) -> bytes:
    """Encode some values one by one, which is faster than NumPy for some dozens."""
    return b"".join([_varint(value & _MASK) for value in values])


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _varints(values: NDArray[np.int64]) -> bytes:
    words = np.ascontiguousarray(values, np.int64).view(np.uint64)
    sizes = np.searchsorted(_STEPS, words, "right") + 1
    widest = int(sizes.max()) if sizes.size else 1
    columns = np.empty((words.size, widest), np.uint8)
    for place in range(widest):
        columns[:, place] = (words >> np.uint64(7 * place)) & np.uint64(127)
    places = np.arange(widest)
    columns[places < (sizes - 1)[:, None]] |= 128
    return columns[places < sizes[:, None]].tobytes()


def pack_list(kind: str, size: int | None, items: list[Any]) -> tuple[int, bytes] | None:
    plain = {"float": float, "int64": int, "bytes": bytes, "text": str}[kind]
    if size not in (None, len(items)):
        return None
    if not all(type(item) is plain or (kind == "bytes" and isinstance(item, bytes)) for item in items):
        return None
    try:
        if kind == "float":
            return 2, struct.pack(f"<{len(items)}f", *items)
        if kind == "int64":
            np.array(items, np.int64)
            return 3, _few(items)
        fields = [_field(b"\x0a", item.encode() if kind == "text" else item) for item in items]
    except (OverflowError, UnicodeEncodeError):
        return None
    return 1, b"".join(fields)


def _feature(value: Any) -> bytes:
    """Encode one Feature."""
    if value is None:
        return b""
    packed = pack_list("bytes", None, value) if isinstance(value, list) else value
    if isinstance(packed, tuple) and is_packed(packed):
        number, body = packed
        return _field(bytes([number << 3 | 2]), _field(b"\x0a", body) if number > 1 and body else body)
    if isinstance(value, bytes):
        return _field(b"\x0a", _field(b"\x0a", value))
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise OverflowError(f"expected an int of 64 bits, found {value}")
        return _field(b"\x1a", _field(b"\x0a", _few([value])))
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            value = np.array([value]).astype(np.float32)
    if isinstance(value, np.ndarray) and value.dtype == np.int64:
        body = _few(value.ravel().tolist()) if value.size <= _FEW else _varints(value.ravel())
        return _field(b"\x1a", _field(b"\x0a", body) if body else b"")
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        body = value.astype("<f4", copy=False).tobytes()
        return _field(b"\x12", _field(b"\x0a", body) if body else b"")
    raise wrong_value(value)


def _name(name: Any) -> bytes:
    if not isinstance(name, str):
        raise wrong_name(name)
    return name.encode()


def _entries(bodies: list[tuple[bytes, bytes]]) -> bytes:
    entries = [
        _field(b"\x0a", _field(b"\x0a", name) + _field(b"\x12", body)) for name, body in sorted(bodies)
    ]
    message = b"".join(entries)
    return _field(b"\x0a", message) if message else b""


def encode_example(values: Mapping[str, Any]) -> bytes:
    return _sized(_entries([(_name(name), _feature(value)) for name, value in values.items()]))


def encode_sequence_example(context: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> bytes:
    """Encode one tf.train.SequenceExample; see `encode_example` for the values and the errors.

    Args:
        context: features of the record.
        lists: by name one value per step.
    """
    head = _entries([(_name(name), _feature(value)) for name, value in context.items()])
    steps = [
        (_name(name), b"".join([_field(b"\x0a", _feature(value)) for value in values]))
        for name, values in lists.items()
    ]
    tail = _entries(steps)
    return _sized(head + (b"\x12" + tail[1:] if tail else b""))


def _sized(message: bytes) -> bytes:
    if len(message) > MAX_MESSAGE:  # found late here, because everything was in memory anyway
        raise too_large(len(message))
    return message
