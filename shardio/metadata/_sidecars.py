"""Sidecars of values: tables of small features, and indexes of keys; values <-> bytes.

Both are found by what a shard is (the SHA-256 of the head of its index), never by its place in the dataset,
so that they stay true when other shards come and go.  A damaged sidecar is an error, and a hit of a key index
is only a candidate: hashes may collide.  See docs/format.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shardio import kernels
from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Limits
from shardio.metadata._feature import Feature
from shardio.metadata._manifest import KeyIndex, TableColumn
from shardio.metadata._schema import Schema
from shardio.metadata._sealed import reading, seal_message, unseal_message
from shardio.metadata._types import TYPES
from shardio.metadata._wire import FORMAT_VERSION
from shardio.metadata.naming import check_key, key_part_key
from shardio.v1 import manifest_pb2 as pb

_WHAT = "run of a key index"

# One entry of a part: hash of the key, number of the shard in the run, row in the shard.
ENTRY = np.dtype([("hash", "<u8"), ("shard", "<u4"), ("row", "<u4")])
KEY_PAGE = 4096  # entries
MOST_SAME_KEY = 1 << 20  # entries of a run that may have one hash
_MAX_PAGE = 1 << 20
_MAX_PARTS = 1 << 16
_MAGIC = b"SHRDKEY1"
_PART = struct.Struct("<8sIIQ")
_ALIGN = 64
_INTEGERS = tuple(
    name
    for name, rules in TYPES.items()
    if rules.dtype is not None and rules.dtype.kind in "iu" and not rules.digits
)
KEY_TYPES = ("text", "bytes", *_INTEGERS)


def table_column(name: str, feature_name: str, derived: str, feature: Feature) -> TableColumn:
    """Return the description of a column of a table; see `TableColumn`."""
    digest = b""
    if feature.has_default:
        default = feature.stored_default
        if isinstance(default, np.ndarray):
            data = default.tobytes()
        else:
            data = b"".join(struct.pack("<Q", len(item)) + item for item in default or [])
        digest = hashlib.sha256(data).digest()
    return TableColumn(name, feature_name, derived, feature.short, feature.optional, digest)


def table_address(index_head_sha256: bytes, columns: Iterable[TableColumn]) -> str:
    """Return the 32 hexadecimal digits with which the name of a shard's table begins."""
    digest = hashlib.sha256(index_head_sha256)
    for column in columns:
        for text in (column.name, column.feature, column.derived, column.type):
            data = text.encode()
            digest.update(struct.pack("<I", len(data)) + data)
        digest.update(bytes([column.optional]) + (column.default_sha256 or bytes(32)))
    return digest.digest()[:16].hex()


def hash_keys(keys: Any, kind: str) -> NDArray[np.uint64]:
    """Return the hashes of a column of keys, uint64 [n].

    Args:
        keys: a list of str or bytes, or an array of integers.
        kind: type of the feature, one of `KEY_TYPES`.
    """
    blake2b = hashlib.blake2b
    if kind in _INTEGERS:
        wide = np.asarray(keys).astype("<u8" if kind.startswith("u") else "<i8", copy=False).tobytes()
        parts: Iterable[bytes] = (wide[at : at + 8] for at in range(0, len(wide), 8))
    else:
        parts = (key.encode() for key in keys) if kind == "text" else keys
    return np.frombuffer(b"".join([blake2b(part, digest_size=8).digest() for part in parts]), "<u8")


@dataclass(frozen=True)
class KeyPart:
    """A part of a run: key of its object, bytes, entries, length and SHA-256 of its head; key "" for none."""

    key: str
    size: int
    entries: int
    head_bytes: int
    head_sha256: bytes


@dataclass(frozen=True)
class KeyRun:
    """The hashes of the keys of some shards.

    Attributes:
        feature: whose values are the keys.
        type: of the feature.
        shards: uint8 [shards, 32], SHA-256 of the head of each shard's index; entries name shards by number.
        parts: 2^b of them, by the highest b bits of the hash.
    """

    feature: str
    type: str
    shards: NDArray[np.uint8]
    parts: Sequence[KeyPart]

    @property
    def bits(self) -> int:
        """How many of the highest bits of a hash tell its part."""
        return len(self.parts).bit_length() - 1

    def part_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the number of the part of each hash, int64."""
        if not self.bits:
            return np.zeros(len(hashes), np.int64)
        return (hashes >> np.uint64(64 - self.bits)).astype(np.int64)

    def seal(self, *, limits: Limits = DEFAULT_LIMITS) -> tuple[bytes, bytes]:
        """Return its sealed bytes, and their SHA-256 (32 bytes).

        Raises:
            FormatError: over a limit.
        """
        message = pb.KeyRun(
            format_version=FORMAT_VERSION,
            feature=self.feature,
            type=self.type,
            shard_index_head_sha256=self.shards.tobytes(),
            part_key=[part.key for part in self.parts],
            part_bytes=[part.size for part in self.parts],
            part_entries=[part.entries for part in self.parts],
            part_head_bytes=[part.head_bytes for part in self.parts],
            part_head_sha256=b"".join(part.head_sha256 for part in self.parts),
        )
        return seal_message(message, what=_WHAT, limits=limits, advice="write larger shards")

    @classmethod
    def parse(
        cls, data: bytes, *, key: str, url: str | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> tuple[Self, bytes]:
        """Return the run that sealed bytes hold, checked, and its SHA-256.

        Args:
            data: the whole object.
            key: its name; those of its parts follow from it.
            url: where it is, for messages.
            limits: upper bounds.

        Raises:
            FormatError, UnsupportedVersionError, UnsafeNameError: damaged, newer or hostile.
        """
        message, digest = unseal_message(pb.KeyRun, data, what=_WHAT, url=url, limits=limits)
        count = len(message.part_key)
        columns = (message.part_bytes, message.part_entries, message.part_head_bytes)
        heads = message.part_head_sha256
        shards = message.shard_index_head_sha256
        rules = [
            ("its type is one that keys have", message.type in KEY_TYPES, message.type),
            ("there are 2^b parts", 1 <= count <= _MAX_PARTS and not count & (count - 1), count),
            (
                "columns have one item a part",
                all(len(column) == count for column in columns) and len(heads) == 32 * count,
                "others",
            ),
            ("a shard has a SHA-256 of 32 bytes", len(shards) % 32 == 0, len(shards)),
            ("shards are within the limit", len(shards) // 32 <= limits.shards, len(shards) // 32),
        ]
        for rule, holds, found in rules:
            if not holds:
                raise FormatError(f"a {_WHAT} breaks a rule of the format: {rule}", url=url, found=found)
        # Heads are read whole, before their checksums can be compared.
        longest = max(message.part_head_bytes, default=0)
        if longest > limits.manifest:
            what = f"the head of a part of a {_WHAT} is over the limit"
            raise FormatError(what, url=url, expected=f"at most {limits.manifest} bytes", found=longest)
        if sum(message.part_entries) > limits.rows:
            what = f"a {_WHAT} has more entries than a dataset has records"
            raise FormatError(what, url=url, expected=limits.rows, found=sum(message.part_entries))
        with reading(_WHAT, url):
            parts = [
                _part(message, number, key_part_key(key, number), heads[32 * number : 32 * number + 32])
                for number in range(count)
            ]
        array = np.frombuffer(shards, np.uint8).reshape(-1, 32)
        return cls(message.feature, message.type, array, parts), digest


def _part(message: pb.KeyRun, number: int, expected: str, sha256: bytes) -> KeyPart:
    part = KeyPart(
        message.part_key[number],
        message.part_bytes[number],
        message.part_entries[number],
        message.part_head_bytes[number],
        sha256,
    )
    if not part.entries:
        if part.key or part.size:
            raise FormatError(f"a part of a {_WHAT} without entries has an object", found=part.key[:200])
        return part
    if check_key(part.key) != expected:
        raise FormatError(f"a part of a {_WHAT} has another name", expected=expected, found=part.key[:200])
    size = part.head_bytes + ENTRY.itemsize * part.entries
    if part.size != size:
        raise FormatError(f"a part of a {_WHAT} has another size", expected=size, found=part.size)
    return part


@dataclass(frozen=True)
class PartHead:
    """What the head of a part says, checked.

    Attributes:
        page: entries of a page.
        entries: of the part.
        head_bytes: where the entries begin.
        first: uint64 [pages], first hash of each.
        crc32c: uint32 [pages].
    """

    page: int
    entries: int
    head_bytes: int
    first: NDArray[np.uint64]
    crc32c: NDArray[np.uint32]

    def pages_of(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the half-open ranges of pages in which each hash may be, int64."""
        # A hash that begins a page may be at the end of the page before, too.
        start = np.maximum(np.searchsorted(self.first, hashes, side="left") - 1, 0)
        return start.astype(np.int64), np.searchsorted(self.first, hashes, side="right").astype(np.int64)

    def bounds(self, page: int) -> tuple[int, int]:
        """Return the half-open byte range of a page."""
        start = self.head_bytes + ENTRY.itemsize * self.page * page
        return start, min(start + ENTRY.itemsize * self.page, self.head_bytes + ENTRY.itemsize * self.entries)

    @staticmethod
    def size(entries: int, page: int = KEY_PAGE) -> int:
        """Return how many bytes the head of a part has."""
        return -(-(_PART.size + 12 * -(-entries // page)) // _ALIGN) * _ALIGN

    @classmethod
    def pack(
        cls, first: NDArray[np.uint64], crc32c: NDArray[np.uint32], entries: int, page: int = KEY_PAGE
    ) -> bytes:
        """Return the head of a part: first hash and CRC-32C of each page."""
        data = _PART.pack(_MAGIC, len(first), page, entries)
        data += first.astype("<u8").tobytes() + crc32c.astype("<u4").tobytes()
        return data.ljust(cls.size(entries, page), b"\0")

    @classmethod
    def parse(cls, data: bytes, part: KeyPart, *, url: str | None = None) -> Self:
        """Return the head of a part, checked.

        Raises:
            FormatError: it is not the one that the run names, or breaks a rule.
        """
        found = hashlib.sha256(data).digest()
        if len(data) != part.head_bytes or found != part.head_sha256:
            raise FormatError(
                "the head of a part of a key index is not the one that its run names",
                url=url,
                expected=f"{part.head_bytes} bytes, SHA-256 {part.head_sha256.hex()}",
                found=f"{len(data)} bytes, SHA-256 {found.hex()}",
            )
        if len(data) < _PART.size:
            raise FormatError("the head of a part of a key index is too short", url=url, found=len(data))
        magic, pages, page, entries = _PART.unpack_from(data)
        fits = 1 <= page <= _MAX_PAGE and pages == -(-entries // page)
        if magic != _MAGIC or not fits or entries != part.entries or cls.size(entries, page) != len(data):
            raise FormatError("the head of a part of a key index breaks a rule of the format", url=url)
        first = np.frombuffer(data, "<u8", pages, _PART.size)
        crc32c = np.frombuffer(data, "<u4", pages, _PART.size + 8 * pages)
        if (first[1:] < first[:-1]).any():
            raise FormatError("the pages of a part of a key index do not ascend", url=url)
        # A lookup reads every page that may hold its hash.
        same = MOST_SAME_KEY // page + 2
        if (first[same:] == first[:-same]).any():
            raise FormatError(
                "too many entries of a part of a key index have one hash",
                url=url,
                expected=f"at most {MOST_SAME_KEY}",
                found=f"more than {same - 1} pages of {page}",
            )
        return cls(page, entries, part.head_bytes, first, crc32c)

    def parse_page(self, data: Any, page: int, *, url: str | None = None) -> NDArray[Any]:
        """Return the entries of a page, checked; an array of `ENTRY`.

        Raises:
            FormatError: the page is damaged.
        """
        start, stop = self.bounds(page)
        found = kernels.crc32c(data)
        if len(data) != stop - start or found != int(self.crc32c[page]):
            raise FormatError(
                "a page of a key index is damaged",
                url=url,
                start=start,
                stop=stop,
                expected=f"CRC-32C {int(self.crc32c[page]):#010x}",
                found=f"{found:#010x}",
            )
        return np.frombuffer(data, ENTRY)


def usable_keys(
    indexes: Iterable[KeyIndex], old: Sequence[Schema], new: Sequence[Schema]
) -> tuple[KeyIndex, ...]:
    """Return the key indexes that still say which records have a key under the newest schema.

    Records that lack the feature stand in an index by its default, so another default ends its use.

    Args:
        indexes: of the version before.
        old, new: the schemas of that version, and of the one that follows, oldest first.
    """
    if not old or not new:
        return ()

    def default(schema: Schema, stored: str) -> bytes | None:
        for name, feature in schema.items():
            if (feature.stored_name or name) == stored:
                return table_column(name, stored, "", feature).default_sha256
        return None

    return tuple(each for each in indexes if default(old[-1], each.feature) == default(new[-1], each.feature))
