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
from shardio.format import Limits
from shardio.metadata._container import (
    DIRECTORY_BYTES,
    END,
    PREFIX,
    ColumnReader,
    ContainerKind,
    PackedColumn,
    aligned,
    pack_head,
)
from shardio.metadata._feature import Feature
from shardio.metadata._kinds import KINDS
from shardio.metadata._manifest import KeyIndex, KeyRunRef, TableColumn
from shardio.metadata._schema import GROUPS, Schema

# One entry of a run: hash of the key, number of the shard in the run, row in the shard.
ENTRY = np.dtype([("hash", "<u8"), ("shard", "<u4"), ("row", "<u4")])
KEY_PAGE = 4096  # entries
MOST_SAME_KEY = 1 << 20  # entries of a run that may have one hash
KEY_RUN = ContainerKind(
    3,
    "run of a key index",
    {
        "shard": ("b32", "shard"),
        "page_hash": ("u64", "page"),
        "page_crc32c": ("u32", "page"),
        "entry": ("b16", "entry"),
    },
    tail="entry",
)
_INTEGERS = tuple(name for name in KINDS if name.startswith(("int", "uint")))
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
class KeyRun:
    """The sorted hashes of the keys of some shards: the head of a run, by which its pages are found.

    Attributes:
        shards: uint8 [shards, 32], SHA-256 of the head of each shard's index; entries name shards by number.
        first: uint64 [pages], first hash of each page.
        crc32c: uint32 [pages], of the entries of each page.
        entries: how many there are; every page but the last has `KEY_PAGE`.
    """

    shards: NDArray[np.uint8]
    first: NDArray[np.uint64]
    crc32c: NDArray[np.uint32]
    entries: int

    @staticmethod
    def head_bytes(shards: int, entries: int) -> int:
        """Return the length of a head: where the entries begin."""
        pages = -(-entries // KEY_PAGE)
        return PREFIX.size + len(KEY_RUN.columns) * DIRECTORY_BYTES + aligned(32 * shards + 12 * pages)

    @classmethod
    def checked_head_bytes(cls, ref: KeyRunRef, limits: Limits, *, url: str, advice: str) -> int:
        """Return the length of the head of a run, once what the manifest claims of it agrees.

        Raises:
            FormatError: it does not, or is over a limit.
        """
        head = cls.head_bytes(ref.shards, ref.entries)
        size = head + ENTRY.itemsize * ref.entries + len(END)
        if ref.size != size or head > limits.manifest or ref.entries > limits.rows:
            raise FormatError(
                f"the manifest names a {KEY_RUN.what} of an impossible size or over a limit",
                url=url,
                expected=f"{size} bytes, a head of at most {limits.manifest}",
                found=f"{ref.size} bytes, a head of {head} for {ref.shards} shards, {ref.entries} entries",
                advice=advice,
            )
        return head

    def pack_head(self, entries_crc32c: int) -> bytes:
        """Return the head, which the entries and `END` follow."""
        values = {"shard": self.shards, "page_hash": self.first, "page_crc32c": self.crc32c}
        size = self.entries * ENTRY.itemsize
        return pack_head(
            KEY_RUN, values, PackedColumn("entry", "b16", entries_crc32c, self.entries, size, b"")
        )

    @classmethod
    def parse(cls, head: bytes, ref: KeyRunRef, *, url: str | None = None, advice: str = "") -> Self:
        """Return what the head of a run holds, checked.

        Args:
            head: the first `head_bytes` of the object, by the numbers of its reference.
            ref: the run as the manifest names it.
            url: where it is, for messages.
            advice: what to do about damage.

        Raises:
            FormatError, UnsupportedVersionError: damaged, newer, hostile, or not the one that is named.
        """
        found = hashlib.sha256(head).digest()
        reader = ColumnReader(head, KEY_RUN, url, advice)
        if found != ref.sha256:
            raise reader.broken("is not the one that the manifest names", ref.sha256.hex(), found.hex())
        columns, directory = reader.read()
        first, entry = columns["page_hash"], directory["entry"]
        counts = len(columns["shard"]), len(first), entry.items, entry.start
        named = ref.shards, -(-ref.entries // KEY_PAGE), ref.entries, len(head)
        if counts != named:
            raise reader.broken("has other numbers of shards, pages and entries", named, counts)
        if (first[1:] < first[:-1]).any():
            raise reader.broken("has pages that do not ascend", "ascending hashes", "others")
        # A lookup reads every page that may hold its hash.
        same = MOST_SAME_KEY // KEY_PAGE + 2
        if (first[same:] == first[:-same]).any():
            raise reader.broken("has too many entries of one hash", f"at most {MOST_SAME_KEY}", "more")
        return cls(columns["shard"], first, columns["page_crc32c"], ref.entries)

    def pages_of(self, hashes: NDArray[np.uint64]) -> list[int]:
        """Return the pages in which entries with some hashes may be, ascending."""
        # A hash that begins a page may be at the end of the page before, too.
        starts = np.maximum(np.searchsorted(self.first, hashes, side="left") - 1, 0).tolist()
        stops = np.searchsorted(self.first, hashes, side="right").tolist()
        return sorted({page for pair in zip(starts, stops, strict=True) for page in range(*pair)})

    def bounds(self, page: int) -> tuple[int, int]:
        """Return the half-open byte range of a page."""
        begin = self.head_bytes(len(self.shards), self.entries)
        first, stop = KEY_PAGE * page, min(KEY_PAGE * (page + 1), self.entries)
        return begin + ENTRY.itemsize * first, begin + ENTRY.itemsize * stop

    def parse_page(self, data: Any, page: int, *, url: str | None = None) -> NDArray[Any]:
        """Return the entries of a page, checked; an array of `ENTRY`.

        Raises:
            FormatError: the page is damaged, or its entries do not ascend.
        """
        (start, stop), crc = self.bounds(page), kernels.crc32c(data)
        expected = int(self.crc32c[page])
        if len(data) == stop - start and crc == expected:
            entries = np.frombuffer(data, ENTRY)
            hashes = entries["hash"]
            if hashes[0] == self.first[page] and not (hashes[1:] < hashes[:-1]).any():
                return entries
        what = "a page of a run of a key index is damaged"
        place: dict[str, Any] = {"url": url, "start": start, "stop": stop}
        raise FormatError(what, expected=f"CRC-32C {expected:#010x}", found=f"{crc:#010x}", **place)


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

    was, now = (
        {
            stored: feature.default_items
            for (group, stored), (_, feature) in schemas[-1].stored.items()
            if group == GROUPS[0]
        }
        for schemas in (old, new)
    )
    return tuple(each for each in indexes if was.get(each.feature, "") == now.get(each.feature, ""))
