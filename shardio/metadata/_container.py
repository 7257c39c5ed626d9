"""Named, checked columns in one file: shard indexes and lists of shards; see docs/format.md.

    "SHRDCOL1" | u32 kind | u32 format version | u32 columns | u32 CRC-32C of prefix and directory
    directory: 56 bytes a column: name (32), dtype (4), u32 CRC-32C, u64 items, u64 bytes
    column | zeros to a multiple of 8 | column | ... | "SHRDEND1"

Columns follow one another, so no offset can be wrong.  All that the directory claims is compared with the
limits and with the bytes there are before anything is made of it; columns are views of these bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Buffer, Limits
from shardio.metadata._wire import FORMAT_VERSION, check_version

MAGIC = b"SHRDCOL1"
END = b"SHRDEND1"
ALIGN = 8
PREFIX = struct.Struct("<8sIIII")
_CRC = struct.Struct("<I")
_ENTRY = struct.Struct("<32s4sIQQ")
DIRECTORY_BYTES = _ENTRY.size  # of a column
_MOST_COLUMNS = 256
_OPTIONAL = "x_"  # how names begin of columns that a reader need not know

# Of each dtype the NumPy one, and the width of an item; "text" has offsets before its bytes.
STORED: dict[str, tuple[Any, int]] = {
    "u8": ("u1", 1),
    "u16": ("<u2", 2),
    "u32": ("<u4", 4),
    "u64": ("<u8", 8),
    "b16": ("u1", 16),
    "b32": ("u1", 32),
}
# Numbers that are stored as narrow as they fit, and how many bits they may have.
_NUMBERS = {"n8": 8, "n32": 32, "n63": 63}

# By name: dtype, and of what there is an item each.
Columns: TypeAlias = Mapping[str, tuple[str, str]]


class ContainerKind(NamedTuple):
    """What a file of columns holds.

    Attributes:
        number: in its prefix.
        what: for messages.
        columns: those that it may have, in this order.
        single: of what there is one.
        tail: the last column, if it is read in parts; all before it is the *head* of the file.
        limit: of `Limits`, that a file with a tail keeps.
    """

    number: int
    what: str
    columns: Columns
    single: str = ""
    tail: str = ""
    limit: str = ""


class ColumnEntry(NamedTuple):
    """A column as the directory has it, and where its bytes are in the file."""

    name: str
    dtype: str
    crc32c: int
    items: int
    start: int
    stop: int


class Texts(Sequence[str]):
    """Texts in UTF-8, each a name that several may share and what follows it.

    Args:
        names: what texts begin with.
        numbers: unsigned [n], of the name of each.
        offsets: unsigned [n + 1], of what follows it; None where nothing does.
        data: that they are in.
    """

    def __init__(
        self,
        names: Sequence[str],
        numbers: NDArray[Any],
        offsets: NDArray[Any] | None = None,
        data: Buffer = b"",
    ) -> None:
        self.names, self.numbers = tuple(names), numbers
        self.offsets = zeros(len(numbers) + 1) if offsets is None else offsets
        self.data = memoryview(data)

    @classmethod
    def from_texts(cls, texts: Sequence[str], *, cut: Callable[[str], int] | None = None) -> Texts:
        """Return texts.

        Args:
            texts: to be held.
            cut: returns how many characters of a text are a name; None for no names.
        """
        if cut is None and not any(texts):
            return cls([""], zeros(len(texts)))
        cuts = [0] * len(texts) if cut is None else list(map(cut, texts))
        names: dict[str, int] = {}
        numbers = [names.setdefault(text[:at], len(names)) for text, at in zip(texts, cuts, strict=True)]
        rest = [text[at:].encode() for text, at in zip(texts, cuts, strict=True)]
        offsets = np.cumsum([0, *map(len, rest)], dtype=np.uint64)
        return cls([*names] or [""], np.array(numbers, np.uint32), offsets, b"".join(rest))

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where what follows each name begins in `data`, and where the last one stops; int64 [n + 1]."""
        return self.offsets.astype(np.int64)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.numbers)

    @overload
    def __getitem__(self, item: int) -> str: ...
    @overload
    def __getitem__(self, item: slice) -> list[str]: ...
    def __getitem__(self, item: int | slice) -> str | list[str]:
        """Return one text, or some in a list."""
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        at = range(len(self))[item]
        rest = self.data[int(self.offsets[at]) : int(self.offsets[at + 1])]
        return self.names[int(self.numbers[at])] + str(rest, "utf-8")

    def __iter__(self) -> Iterator[str]:
        """Yield the texts in order."""
        names = map(self.names.__getitem__, self.numbers.tolist())
        data, stops = bytes(self.data), self.offsets.tolist()
        if data.isascii():
            text = data.decode()
            return (name + text[a:b] for name, a, b in zip(names, stops, stops[1:], strict=False))
        return (name + data[a:b].decode() for name, a, b in zip(names, stops, stops[1:], strict=False))

    def take(self, items: NDArray[Any]) -> Texts:
        """Return the texts with these numbers, or where a mask is true."""
        numbers, starts = self.numbers[items], self.starts
        if not len(self.data):
            return Texts(self.names, numbers)
        data, offsets = kernels.gather(self.data, starts[:-1][items], starts[1:][items])
        return Texts(self.names, numbers, offsets, data.data)

    @classmethod
    def concatenate(cls, parts: Sequence[Texts]) -> Texts:
        """Return the texts of all parts, one after another."""
        names: dict[str, int] = {}
        numbers, offsets, size = [zeros(0)], [np.zeros(1, np.uint64)], 0
        for part in parts:
            new = np.array([names.setdefault(name, len(names)) for name in part.names], np.uint32)
            numbers.append(new[part.numbers])
            offsets.append((part.starts[1:] + size).astype(np.uint64))
            size += len(part.data)
        data = b"".join(part.data for part in parts)
        whole = np.concatenate(offsets) if size else None
        return cls([*names] or [""], np.concatenate(numbers), whole, data)

    def any(self) -> bool:
        """Tell whether a text is not empty."""
        return bool(len(self.data)) or (any(self.names) and any(self.used()))

    def numbered(self) -> tuple[list[str], NDArray[np.uint32]]:
        """Return the names that texts have, sorted, each once; and the number of that of each."""
        names = sorted({self.names[number] for number in np.flatnonzero(np.bincount(self.numbers)).tolist()})
        places = {name: place for place, name in enumerate(names)}
        new = np.array([places.get(name, 0) for name in self.names], np.uint32)
        return names, new[self.numbers]

    def used(self) -> dict[str, NDArray[np.bool_]]:
        """Return the names that texts have, each with the mask of those."""
        names, numbers = self.numbered()
        return {name: numbers == number for number, name in enumerate(names)}

    def hashes(self) -> NDArray[np.int64]:
        """Return an int64 of each text, the same for texts that are alike and have the same name."""
        # Hashes of Python have a secret key: no file can make names collide.
        hashes, starts = np.array([hash(name) for name in self.names], np.int64), self.starts
        crcs = kernels.crc32c_many(self.data, starts[:-1], starts[1:])
        return mixed(hashes[self.numbers], crcs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the texts with memory of their own."""
        return Texts, (self.names, self.numbers.copy(), self.offsets.copy(), bytes(self.data))


def mixed(hashes: NDArray[np.int64], more: NDArray[Any]) -> NDArray[np.int64]:
    """Return hashes that depend on more numbers, too; int64 [n]."""
    return hashes + more.astype(np.int64) * _ODD


_ODD = np.int64(0x1E3779B97F4A7C15)


def zeros(items: int, width: int = 0) -> NDArray[np.uint8]:
    """Return uint8 zeros [items], or [items, width], that cannot be written to and take no memory."""
    shape = (items, width) if width else (items,)
    return np.ndarray(shape, np.uint8, b"\0", strides=(0,) * len(shape))


def aligned(place: int) -> int:
    """Return the multiple of `ALIGN` at or after a place."""
    return -(-place // ALIGN) * ALIGN


@dataclass
class ColumnReader:
    """Reads the columns of one file.

    Args:
        data: the file, from its first byte on; what is read of it.
        kind: of the file.
        url: where it is, for messages.
        advice: what to do about one that is damaged.
        limits: `items` of one column of text.

    Attributes:
        stop: where the last column stops, padded; known from `directory` on.
    """

    data: Buffer
    kind: ContainerKind
    url: str | None = None
    advice: str = ""
    limits: Limits = DEFAULT_LIMITS
    stop: int = 0

    def broken(self, what: str, expected: object, found: object, *, column: str = "") -> FormatError:
        """Return the error of a file, or of a column, that is not as it was written."""
        place = f"column {column} of a {self.kind.what}" if column else f"a {self.kind.what}"
        return FormatError(
            f"{place} {what}", url=self.url, expected=expected, found=found, advice=self.advice
        )

    def head_bytes(self) -> int:
        """Return how many bytes prefix and directory have, from the first `PREFIX.size` bytes of the file.

        Raises:
            FormatError: it is no such file.
        """
        if len(self.data) < PREFIX.size:
            raise self.broken("is cut short", f"at least {PREFIX.size} bytes", f"{len(self.data)} bytes")
        magic, number, _, columns, _ = PREFIX.unpack_from(self.data)
        if (magic, number) != (MAGIC, self.kind.number):
            raise self.broken("has wrong first bytes", (MAGIC, self.kind.number), (magic, number))
        if columns > _MOST_COLUMNS:
            raise self.broken("holds more than it may", f"at most {_MOST_COLUMNS} columns", columns)
        return PREFIX.size + int(columns) * _ENTRY.size

    def directory(self) -> dict[str, ColumnEntry]:
        """Return the columns by name, in the order of the file; compared with the CRC and with each other.

        Raises:
            FormatError, UnsupportedVersionError: they break a rule, or a newer shardio wrote them.
        """
        stop = self.head_bytes()
        if stop > len(self.data):
            raise self.broken("is cut short in its directory", f"{stop} bytes", f"{len(self.data)} bytes")
        head = bytes(memoryview(self.data)[:stop])
        _, _, version, _, expected = PREFIX.unpack_from(head)
        crc = kernels.crc32c(head[PREFIX.size :], kernels.crc32c(head[: PREFIX.size - _CRC.size]))
        if crc != expected:
            raise self.broken("has a directory with another checksum", f"{expected:#010x}", f"{crc:#010x}")
        columns, found, place = self.kind.columns, dict[str, ColumnEntry](), stop
        listed = [
            (_ascii(raw), _ascii(code), *rest) for raw, code, *rest in _ENTRY.iter_unpack(head[PREFIX.size :])
        ]
        unknown = [name for name, *_ in listed if name not in columns and not name.startswith(_OPTIONAL)]
        check_version(version, unknown, what=self.kind.what, url=self.url)
        for name, dtype, crc, items, size in listed:
            entry = ColumnEntry(name, dtype, crc, items, aligned(place), aligned(place) + size)
            place = entry.stop
            if name in found:
                raise self.broken("is there twice", "once", "twice", column=name)
            if name in columns:
                self._check_entry(entry, size)
                found[name] = entry
        self.stop = aligned(place)
        known = [name for name in columns if name in found]
        if known != [*found]:
            raise self.broken("has its columns in another order", known, [*found])
        counts = {self.kind.single: 1} if self.kind.single else {}
        for name, entry in found.items():
            count = counts.setdefault(columns[name][1], entry.items)
            if count != entry.items:
                raise self.broken("has another length", f"{count} items", entry.items, column=name)
        return found

    def _check_entry(self, entry: ColumnEntry, size: int) -> None:
        name, items, most = entry.name, entry.items, self.limits.items
        wanted, _ = self.kind.columns[name]
        if not fits(wanted, entry.dtype):
            raise self.broken("has another dtype", wanted, entry.dtype, column=name)
        if entry.dtype == "text" and items > most:
            raise self.broken("holds more than it may", f"at most {most} items", items, column=name)
        if entry.dtype == "text":
            right, expected = size >= 4 * (items + 1), f"{4 * items + 4} or more"
        else:
            width = STORED[entry.dtype][1]
            right, expected = size == items * width, f"{items} items of {width} bytes"
        if not right:
            raise self.broken("has another size", expected, f"{size} bytes", column=name)

    def column(self, entry: ColumnEntry) -> Any:
        """Return a column, compared with its CRC: an array, of digests [items, width]; or `Texts`.

        Raises:
            FormatError: it is damaged or breaks a rule.
        """
        name, view = entry.name, memoryview(self.data)[entry.start : entry.stop]
        crc = kernels.crc32c(view)
        if crc != entry.crc32c:
            expected, found = f"{entry.crc32c:#010x}", f"{crc:#010x}"
            raise self.broken("does not match its checksum", expected, found, column=name)
        padding = bytes(memoryview(self.data)[entry.stop : aligned(entry.stop)])
        if any(padding):
            raise self.broken("is followed by bytes that are not zero", "zeros", padding, column=name)
        if entry.dtype == "text":
            return self._texts(entry, view)
        dtype, width = STORED[entry.dtype]
        values = np.frombuffer(view, dtype)
        if dtype == "u1" and width > 1:
            return values.reshape(entry.items, width)
        bits = _NUMBERS.get(self.kind.columns[name][0])
        if bits is not None and 8 * width > bits and len(values) and int(values.max()) >> bits:
            raise self.broken("is out of range", f"below 2^{bits}", int(values.max()), column=name)
        # What was read, not mapped, may be at an odd address, and a memoryview of that would be refused.
        return values if values.flags.aligned else values.copy()

    def _texts(self, entry: ColumnEntry, view: memoryview) -> Texts:
        edge = 4 * (entry.items + 1)
        offsets, data = np.require(np.frombuffer(view[:edge], "<u4"), requirements="A"), view[edge:]
        if offsets[0] or int(offsets[-1]) != len(data) or (offsets[1:] < offsets[:-1]).any():
            expected, found = f"ascending from 0 to {len(data)}", offsets[:8].tolist()
            raise self.broken("has offsets that do not ascend", expected, found, column=entry.name)
        raw = bytes(data)
        if not raw.isascii():
            edges = np.frombuffer(raw + b"\0", np.uint8)[offsets]
            try:
                raw.decode()
                whole = not ((edges & 0xC0) == 0x80).any()  # no text begins within a character
            except UnicodeDecodeError:
                whole = False
            if not whole:
                raise self.broken("is not UTF-8", "UTF-8", raw[:32], column=entry.name)
        return Texts([""], zeros(entry.items), offsets, data)

    def read(self) -> tuple[dict[str, Any], dict[str, ColumnEntry]]:
        """Return all columns but the tail by name, and the directory; zeros and empty texts of absent ones.

        Raises:
            FormatError, UnsupportedVersionError: see `directory`, `tail` and `column`.
        """
        entries, tail = self.directory(), self.kind.tail
        if tail:
            self.tail(entries)
        for name, entry in entries.items():
            # Before a count that is claimed here makes zeros of a column that is not there.
            if name != tail and entry.stop > len(self.data):
                expected, size = f"{entry.stop} bytes", f"{len(self.data)} bytes"
                raise self.broken("is cut short", expected, size, column=name)
        counts = {self.kind.columns[name][1]: entry.items for name, entry in entries.items()}
        counts |= {self.kind.single: 1} if self.kind.single else {}
        found: dict[str, Any] = {}
        absent: dict[int, Texts] = {}
        for name, (dtype, per) in self.kind.columns.items():
            count = counts.get(per, 0)
            if name in entries:
                found |= {} if name == tail else {name: self.column(entries[name])}
            elif dtype == "text":
                found[name] = absent[count] = absent.get(count) or Texts([""], zeros(count))
            else:
                code, width = STORED.get(dtype, ("u1", 0))
                found[name] = np.zeros(count, code) if 0 < width < 16 else zeros(count, width)
        return found, entries

    def tail(self, entries: Mapping[str, ColumnEntry]) -> ColumnEntry:
        """Return the entry of the column that is read in parts.

        Raises:
            FormatError: it is not there or not the last one, or the file is over its limit.
        """
        entry = entries.get(self.kind.tail)
        if entry is None or aligned(entry.stop) != self.stop:
            raise self.broken(f"does not end with column {self.kind.tail}", self.kind.tail, [*entries])
        size, most = self.stop + len(END), getattr(self.limits, self.kind.limit, math.inf)
        if size > most:
            raise self.broken("is over the limit", f"a file of {most} bytes", size, column=entry.name)
        return entry

    def check_end(self) -> None:
        """Check that the file ends where its directory says, and as it must.

        Raises:
            FormatError: it does not.
        """
        found = bytes(memoryview(self.data)[self.stop : self.stop + 64])
        if found != END:
            raise self.broken("does not end as the format says", END, found)


def _ascii(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode("ascii", "replace")


def ending(size: int) -> bytes:
    """Return what follows the last column, of so many bytes, in a file."""
    return bytes(-size % ALIGN) + END


def fits(wanted: str, dtype: str) -> bool:
    """Tell whether a column may be stored with a dtype."""
    if wanted in _NUMBERS:
        return dtype in ("u8", "u16", "u32", "u64")
    return wanted == dtype


class PackedColumn(NamedTuple):
    """A column as it is stored: what the directory says of it, and its bytes."""

    name: str
    dtype: str
    crc32c: int
    items: int
    size: int
    data: Buffer


def pack_column(name: str, dtype: str, values: Any, *, dense: bool = False) -> PackedColumn | None:
    """Return a column as it is stored; None where all of it is zeros or empty texts, unless it is `dense`."""
    if dtype == "text":
        texts = values if isinstance(values, Texts) else Texts.from_texts(values)
        if not len(texts.data):
            return None
        data: Buffer = texts.starts.astype("<u4").tobytes() + bytes(texts.data)
        return PackedColumn(name, dtype, kernels.crc32c(data), len(texts), len(data), data)
    array = np.asarray(values)
    if not (dense or array.any()):
        return None
    if dtype in _NUMBERS:
        # As narrow as its largest number.
        largest = int(array.max())
        dtype = next(code for code in ("u8", "u16", "u32", "u64") if largest >> 8 * STORED[code][1] == 0)
    array = np.ascontiguousarray(array, STORED[dtype][0])
    return PackedColumn(name, dtype, kernels.crc32c(array), len(array), array.nbytes, array.data)


def pack_head(kind: ContainerKind, values: Mapping[str, Any], tail: PackedColumn | None = None) -> bytes:
    """Return prefix, directory and columns of a file; what follows are the bytes of its tail, and `ending`.

    Args:
        kind: of the file.
        values: by name, arrays or texts; what is left out, zeros and empty texts are not stored, except in a
            file of a kind without single things, whose head is then as long as its numbers say.
        tail: the column that is read in parts, without its bytes.
    """
    dense = bool(kind.tail) and not kind.single
    columns = [
        column
        for name, (dtype, _) in kind.columns.items()
        if name in values and (column := pack_column(name, dtype, values[name], dense=dense)) is not None
    ]
    listed = [*columns, *([] if tail is None else [tail])]
    directory = b"".join(
        _ENTRY.pack(each.name.encode(), each.dtype.encode(), each.crc32c, each.items, each.size)
        for each in listed
    )
    prefix = PREFIX.pack(MAGIC, kind.number, FORMAT_VERSION, len(listed), 0)[: -_CRC.size]
    crc = _CRC.pack(kernels.crc32c(directory, kernels.crc32c(prefix)))
    padded = chain.from_iterable((column.data, bytes(-column.size % ALIGN)) for column in columns)
    return b"".join([prefix, crc, directory, *padded])


def pack(kind: ContainerKind, values: Mapping[str, Any]) -> bytes:
    """Return a whole file; see `pack_head`."""
    return pack_head(kind, values) + END
