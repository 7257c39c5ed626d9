"""The protobuf wire format, as far as a message of somebody else's is read without its generated code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_fields"]

_FIXED = {1: 8, 5: 4}


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a message: varints as unsigned integers, everything else as bytes.

    Raises:
        ValueError: the bytes are no message.
    """
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field has the number 0")
        if wire == 0:
            value, place = _varint(data, place)
            yield number, value
            continue
        if wire == 2:
            size, place = _varint(data, place)
        elif wire in _FIXED:
            size = _FIXED[wire]
        else:
            message = f"wire type {wire} does not exist"
            raise ValueError(message)
        if place + size > len(data):
            raise ValueError("a field ends behind the message")
        yield number, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("a number ends behind the message")
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, place
    raise ValueError("a number is longer than 10 bytes")
