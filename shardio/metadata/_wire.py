"""Protobuf messages: counted before they are parsed, refused when a newer format wrote them, and as values.

A parser makes an object of some dozens of bytes of what takes two in a file, so an object of 60 MB can cost
gigabytes.  `parse` walks the wire format once, builds nothing, and refuses what holds more fields than a file
of shardio's may; only then the message is parsed.  A message too small to hold more is not walked.
https://protobuf.dev/programming-guides/encoding/

A `MessageLayout` is the one table by which a value becomes a message and a message a value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from shardio.errors import FormatError, UnsupportedVersionError
from shardio.format import DEFAULT_LIMITS, Limits

M = TypeVar("M", bound=Message)
T = TypeVar("T")

# As what a nested message counts: a parser takes some dozens of bytes for each.
_OF_MESSAGE = 8

# Kinds of fields, by the lowest bits of their tags; and the bytes of those of a fixed size.
_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}

FORMAT_VERSION = 1


def parse(
    kind: type[M],
    data: bytes,
    *,
    what: str,
    url: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> M:
    """Return the message that some bytes hold, after `check_counts`.

    Raises:
        FormatError: they hold too much, or no such message.
    """
    try:
        check_counts(kind, data, what=what, url=url, limits=limits)
        return kind.FromString(data)
    except DecodeError as error:
        raise FormatError(f"a {what} does not parse", url=url, found=str(error)) from error


def check_counts(
    kind: type[Message],
    data: bytes,
    *,
    what: str,
    url: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    advice: str = "if you trust it, raise `items` of the limits",
) -> None:
    """Count the fields in the bytes of a message.

    Args:
        kind: of the message.
        data: its bytes.
        what: what it is, for messages.
        url: where it is, for messages.
        limits: `items` in all, at any depth: a field is one, a message `_OF_MESSAGE`, and packed numbers are
            as many as their bytes.
        advice: what to do about one that holds more.

    Raises:
        FormatError: there are more.
        DecodeError: the bytes are walked and are not a message.
    """
    # A nested message takes two bytes at least, its tag and its size.
    if len(data) * _OF_MESSAGE <= 2 * limits.items:
        return
    left = limits.items

    def walk(place: int, stop: int, message: Descriptor) -> None:
        # Messages of shardio are nested a few deep, and by no recursion.
        nonlocal left
        known = message.fields_by_number
        for number, wire, start, end in _fields(data, place, stop):
            field = known.get(number) if wire == _BYTES else None
            nested = None if field is None else field.message_type
            packed = field is not None and field.type not in _NOT_PACKED
            left -= _OF_MESSAGE if nested is not None else end - start if packed else 1
            if left < 0:
                expected = f"at most {limits.items} fields, a message counted as {_OF_MESSAGE}"
                problem = f"a {what} holds more than it may"
                raise FormatError(problem, url=url, expected=expected, found="more", advice=advice)
            if nested is not None:
                walk(start, end, nested)

    walk(0, len(data), cast("Descriptor", kind.DESCRIPTOR))


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of any message: varints as unsigned integers, all else as bytes.

    Raises:
        ValueError: the bytes are not a message.
    """
    try:
        for number, wire, start, stop in _fields(data, 0, len(data)):
            varint = wire == _VARINT
            yield number, _read_varint(data, start, stop)[0] % (1 << 64) if varint else data[start:stop]
    except DecodeError as error:
        raise ValueError(str(error)) from None


def _fields(data: bytes, place: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number and kind of each field of a message, and the half-open range of its content.

    Raises:
        DecodeError: the bytes are not a message.
    """
    while place < stop:
        tag, start = _read_varint(data, place, stop)
        wire = tag & 7
        if wire == _BYTES:
            size, start = _read_varint(data, start, stop)
            place = start + size
        elif wire == _VARINT:
            _, place = _read_varint(data, start, stop)
        elif wire in _FIXED_SIZES:
            place = start + _FIXED_SIZES[wire]
        else:
            raise DecodeError(f"wire type {wire} before byte {start}")
        if place > stop:
            raise DecodeError(f"a field ends after byte {stop}")
        yield tag >> 3, wire, start, place


def _read_varint(data: bytes, place: int, stop: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where it ends: before `stop`, and within 10 bytes."""
    value = shift = 0
    while place < stop and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise DecodeError(f"a number has no end at byte {place}")


_NOT_PACKED = {FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}


def check_version(version: int, unknown: Collection[str], *, what: str, url: str | None) -> None:
    """Raise where a file is newer than this program: by its version, or by parts that it must know.

    Raises:
        FormatError: it names no version, which is 0.
        UnsupportedVersionError: it is newer.
    """
    if version == 0:
        raise FormatError(f"a {what} names no format version", url=url, expected=FORMAT_VERSION)
    if version != FORMAT_VERSION or unknown:
        raise UnsupportedVersionError(
            f"a {what} was written by a newer shardio",
            url=url,
            expected=f"version {FORMAT_VERSION}",
            found=f"version {version}" + "".join(f", {name!r}" for name in [*unknown][:20]),
            advice="upgrade shardio to read it",
        )


class StoredField(NamedTuple):
    """How an attribute is stored: the name of its field, and what makes one of the other; else a copy."""

    field: str = ""
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None


_AS_IT_IS = StoredField()


class MessageLayout(Generic[T]):
    """How values of a dataclass are stored as a message: a row for each attribute, read and written by it.

    An attribute without a row is stored as it is in the field of its name.

    Args:
        value: the dataclass.
        message: the message.
        apart: attributes without a field; `read` is given them.
        rows: of the attributes that are not stored as they are.
    """

    def __init__(
        self,
        value: type[T],
        message: Callable[..., Message],
        apart: Collection[str] = (),
        **rows: StoredField,
    ) -> None:
        self._value = value
        self._message = message
        self._names = [each.name for each in fields(cast("Any", value)) if each.name not in apart]
        stored = [rows.get(name, _AS_IT_IS) for name in self._names]
        self._fields = [row.field or name for name, row in zip(self._names, stored, strict=True)]
        self._fetch = attrgetter(*self._fields)
        self._give = attrgetter(*self._names)
        self._reads = [(at, row.read) for at, row in enumerate(stored) if row.read is not None]
        self._writes = [(at, row.write) for at, row in enumerate(stored) if row.write is not None]

    def read(self, message: Message, **apart: Any) -> T:
        """Return the value that a message holds, with attributes that the caller has read already.

        Raises what the checks of its rows do.
        """
        values = list(self._fetch(message))
        for at, read in self._reads:
            values[at] = read(values[at])
        if not apart:
            return self._value(*values)
        return self._value(**{**dict(zip(self._names, values, strict=True)), **apart})

    def write(self, value: T, **others: Any) -> Any:
        """Return the message of a value, with fields that it has not."""
        values = list(self._give(value))
        for at, write in self._writes:
            values[at] = write(values[at])
        return self._message(**dict(zip(self._fields, values, strict=True)), **others)

    def many(self, field: str = "") -> StoredField:
        """Return the row of an attribute that is a tuple of such values."""
        return StoredField(
            field, lambda stored: tuple(map(self.read, stored)), lambda given: map(self.write, given)
        )
