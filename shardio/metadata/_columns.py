"""Columns of a message read from its bytes, without the message: numbers as arrays, texts joined by NULs.

Protobuf lets a field lie in pieces, packed or not, in any order; so does this, and what it makes is at most
eight times as large as the bytes.
https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import collections
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from numpy.typing import NDArray

# Kinds of fields, by the lowest bits of their tags; and the bytes of those of a fixed size.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}

_TEXT, _BLOB = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES
_FIXED = {FieldDescriptor.TYPE_FIXED32: "<u4", FieldDescriptor.TYPE_FIXED64: "<u8"}
_MANY = 64  # texts of one size in a row that are cut by one step


class BrokenMessageError(Exception):
    """The bytes are not a protobuf message; says what is wrong."""


def read_varint(data: bytes, place: int, stop: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where it ends.

    Raises:
        BrokenMessageError: it has no end before `stop`, or within 10 bytes.
    """
    value = shift = 0
    while place < stop and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise BrokenMessageError(f"a number has no end at byte {place}")


class TooManyItemsError(Exception):
    """Full name of the field that holds too many texts, or pieces."""


class MessageColumns:
    """The fields of a message of numbers, texts and bytes; others are left out.

    Args:
        kind: of the message.
        data: its bytes.
        most: texts of one field, and pieces of one of numbers.

    Raises:
        BrokenMessageError: they are not such a message.
        TooManyItemsError: there are more.
    """

    def __init__(self, kind: type[Message], data: bytes, most: int) -> None:
        self._data = data
        self._most = most
        self._counts: dict[str, int] = collections.Counter()
        self._fields: dict[str, Any] = {field.name: field for field in kind.DESCRIPTOR.fields}
        self._pieces: dict[str, list[bytes]] = {name: [] for name in self._fields}
        # Of each run: where its first text begins, size of a text, bytes from one to the next, how many.
        self._runs: dict[str, array[int]] = {name: array("q") for name in self._fields}
        self._walk({field.number: field for field in self._fields.values()})

    def _walk(self, fields: dict[int, Any]) -> None:
        data, place, stop = self._data, 0, len(self._data)
        while place < stop:
            begin = place
            tag, place = read_varint(data, place, stop) if data[place] > 127 else (data[place], place + 1)
            field, wire = fields.get(tag >> 3), tag & 7
            if wire == VARINT:
                start = place
                _, place = read_varint(data, place, stop)
            elif wire == BYTES:
                short = data[place : place + 1] < b"\x80" and place < stop
                size, start = (data[place], place + 1) if short else read_varint(data, place, stop)
                place = start + size
            elif wire in FIXED_SIZES:
                start, place = place, place + FIXED_SIZES[wire]
            else:
                raise BrokenMessageError(f"wire type {wire} at byte {begin}")
            if place > stop or tag < 8:
                raise BrokenMessageError(f"the field at byte {begin} ends after the message")
            if field is None:
                continue
            if field.type == _TEXT and wire == BYTES:
                step = place - begin
                many = 1 + self._repeats(data[begin:start], place, step)
                place = begin + many * step
                self._runs[field.name].extend((start, begin + step - start, step, many))
                self._counts[field.name] += many
                if self._counts[field.name] > self._most:
                    raise TooManyItemsError(field.full_name)
            elif field.type == _BLOB and wire == BYTES:
                self._pieces[field.name] = [data[start:place]]
            elif wire in (BYTES, FIXED32 if field.type in _FIXED else VARINT):
                self._pieces[field.name].append(data[start:place])
                if len(self._pieces[field.name]) > self._most:
                    raise TooManyItemsError(field.full_name)

    def _repeats(self, head: bytes, place: int, step: int) -> int:
        """Return how many texts with the same head, of so many bytes each, begin at a place."""
        many, look = 0, 1
        while self._data.startswith(head, place + many * step):
            here = place + many * step
            few = min(look, (len(self._data) - here) // step)
            texts = np.frombuffer(self._data, np.uint8, few * step, here).reshape(few, step)
            same = (texts[:, : len(head)] == np.frombuffer(head, np.uint8)).all(axis=1)
            many += few if same.all() else int(same.argmin())
            if few < look or not same.all():
                break
            look *= 8
        return many

    def blob(self, name: str) -> bytes:
        """Return the last value of a field of bytes."""
        return b"".join(self._pieces[name])

    def numbers(self, name: str) -> NDArray[Any]:
        """Return the numbers of a field: uint8 where all are below 128, else uint64; uint32 of fixed32."""
        pieces = self._pieces[name]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        fixed = _FIXED.get(self._fields[name].type)
        if fixed is not None:
            if len(data) % np.dtype(fixed).itemsize:
                raise BrokenMessageError(f"{name} ends within a number")
            return np.frombuffer(data, fixed)
        raw = np.frombuffer(data, np.uint8)
        return raw if data.isascii() else _varints(raw, name)

    def count(self, name: str) -> int:
        """Return how many texts a field holds."""
        return self._counts[name]

    def _runs_of(self, name: str) -> Iterator[tuple[int, ...]]:
        runs = iter(self._runs[name])
        return zip(runs, runs, runs, runs, strict=True)

    def texts(self, name: str) -> bytes | list[str]:
        """Return the texts of a field with a NUL between them; a list where one of them holds a NUL.

        Raises:
            BrokenMessageError: a text is not UTF-8.
        """
        parts = []
        for start, size, step, many in self._runs_of(name):
            if many < _MANY:
                stop = start + step * many
                parts += [self._data[at : at + size] for at in range(start, stop, step)]
                continue
            # The byte before a text is the last of its size; there, the NUL goes.
            raw = np.frombuffer(self._data, np.uint8, many * step, start - (step - size))
            rows = raw.reshape(many, step)[:, step - size - 1 :].copy()
            rows[:, 0] = 0
            parts.append(rows.reshape(-1)[1:].tobytes())
        joined = b"\0".join(parts)
        try:
            if joined.count(0) == max(self.count(name) - 1, 0):
                joined.isascii() or joined.decode()
                return joined
            return [
                self._data[at : at + size].decode()
                for start, size, step, many in self._runs_of(name)
                for at in range(start, start + step * many, step)
            ]
        except UnicodeDecodeError as error:
            raise BrokenMessageError(f"{name} is not UTF-8: {error}") from error


def _varints(raw: NDArray[np.uint8], name: str) -> NDArray[Any]:
    small = raw < 128
    stops = np.flatnonzero(small) + 1
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1]])
    sizes = stops - starts
    if not small[-1] or int(sizes.max()) > 10:
        raise BrokenMessageError(f"a number of {name} has no end")
    values: NDArray[Any] = (raw[starts] & 127).astype(np.uint64)
    for byte in range(1, int(sizes.max())):
        longer = np.flatnonzero(sizes > byte)
        values[longer] |= (raw[starts[longer] + byte] & 127).astype(np.uint64) << np.uint64(7 * byte)
    return values
