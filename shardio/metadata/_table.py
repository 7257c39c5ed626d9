"""The shards of a dataset as columns: what a list of shards holds, and what plans and readers use.

One row of a `ShardTable` is a shard; columns are those of the lists that were read, as narrow as their
numbers, so that each of 10^6 shards costs some 90 bytes and no Python object.  Deleted rows of a shard are a
sidecar of sorted little-endian u32 without a head of its own: the list of shards holds its size and SHA-256.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardio.errors import FormatError
from shardio.format import Compression, Framing
from shardio.metadata._container import STORED, ContainerKind, Texts, mixed, zeros
from shardio.metadata._index import IndexHead
from shardio.metadata._sealed import COPY_ADVICE
from shardio.metadata.naming import usual_index_key

# Columns of a list of shards: dtype, and of what there is an item each. A shard's split is a number in
# `split_name`; its key is the text with the number `prefix` in `key_prefix` and `key_rest` behind it.
COLUMNS = {
    "split_name": ("text", "split"),
    "key_prefix": ("text", "prefix"),
    "split": ("n32", "shard"),
    "prefix": ("n32", "shard"),
    "key_rest": ("text", "shard"),
    "root": ("n32", "shard"),
    "uuid": ("b16", "shard"),
    "framing": ("n8", "shard"),
    "compression": ("n8", "shard"),
    "stored_bytes": ("n63", "shard"),
    "decoded_bytes": ("n63", "shard"),
    "rows": ("n32", "shard"),
    "blocks": ("n63", "shard"),
    "crc32c": ("n32", "shard"),
    "index_key": ("text", "shard"),
    "index_head_bytes": ("n63", "shard"),
    "index_head_sha256": ("b32", "shard"),
    "schema": ("n32", "shard"),
    "etag": ("text", "shard"),
    "deleted_rows": ("n32", "shard"),
    "deletion_key": ("text", "shard"),
    "deletion_sha256": ("b32", "shard"),
    "table_key": ("text", "shard"),
    "table_bytes": ("n63", "shard"),
    "table_sha256": ("b32", "shard"),
}
LIST = ContainerKind(2, "list of shards", COLUMNS)
# Of a table: numbers as wide as callers calculate with them; texts; and digests.
_WIDE = {"n8": np.uint8, "n32": np.uint32, "n63": np.int64}
_NUMBERS: dict[str, Any] = {
    name: _WIDE[dtype]
    for name, (dtype, per) in COLUMNS.items()
    if per == "shard" and dtype in _WIDE and name not in ("split", "prefix")
} | {"rows": np.int64, "deleted_rows": np.int64}
_TEXTS = (
    "split",
    "key",
    *(name for name, column in COLUMNS.items() if column == ("text", "shard") and name != "key_rest"),
)
_DIGESTS = {name: STORED[dtype][1] for name, (dtype, _) in COLUMNS.items() if dtype in ("b16", "b32")}
HELD = (*_TEXTS, *_NUMBERS, *_DIGESTS)
_DELETIONS = ("deleted_rows", "deletion_key", "deletion_sha256")


def cut_key(key: str) -> int:
    """Return how many characters of a key are its prefix: all up to the last hyphen or slash."""
    return max(key.rfind("-"), key.rfind("/")) + 1


# How much of a text several shards may share: of the name of a split all.
_CUTS: dict[str, Callable[[str], int]] = {"key": cut_key, "split": len}


@dataclass(frozen=True)
class SplitTotals:
    """What one split holds: live rows, shards, and bytes before and after decoding."""

    name: str
    rows: int
    shards: int
    stored_bytes: int
    decoded_bytes: int

    def __add__(self, other: SplitTotals) -> SplitTotals:
        """Return the totals of both."""
        sums = (one + two for one, two in zip(astuple(self)[1:], astuple(other)[1:], strict=True))
        return SplitTotals(self.name, *sums)


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """One shard, as the list of shards describes it.

    Attributes:
        split: name of its split.
        key: its object, under data root number `root` (0: the dataset's own).
        uuid: 16 bytes.
        framing, compression: of its bytes.
        stored_bytes: size of the object.
        decoded_bytes: what its blocks decode to.
        rows: physical rows, the deleted ones among them.
        blocks: number of blocks; a stream counts as one.
        crc32c: CRC-32C of the whole object.
        index_key: of its index, under root 0; "" where it is the usual one.
        index_head_bytes, index_head_sha256: length and SHA-256 of the head of its index.
        schema: number in the manifest's schemas plus 1; 0 for none.
        etag: ETag, generation or mtime of an adopted shard; "" for shardio's own.
        deleted_rows: how many of the rows are deleted.
        deletion_key, deletion_sha256: the sidecar that names them; "" for none.
        table_key, table_bytes, table_sha256: its part of the table of small features; "" for none.
    """

    split: str
    key: str
    uuid: bytes
    stored_bytes: int
    decoded_bytes: int
    rows: int
    blocks: int
    crc32c: int
    index_head_bytes: int
    index_head_sha256: bytes
    framing: Framing = Framing.TFRECORD
    compression: Compression = Compression.NONE
    root: int = 0
    index_key: str = ""
    schema: int = 0
    etag: str = ""
    deleted_rows: int = 0
    deletion_key: str = ""
    deletion_sha256: bytes = bytes(32)
    table_key: str = ""
    table_bytes: int = 0
    table_sha256: bytes = bytes(32)

    @classmethod
    def of_index(
        cls, head: IndexHead, *, split: str, key: str, index_key: str = "", etag: str = ""
    ) -> ShardEntry:
        """Return the entry of a shard from the head of its index; the other arguments are columns of it."""
        return cls(
            split=split,
            key=key,
            uuid=head.uuid,
            framing=head.framing,
            compression=head.compression,
            stored_bytes=head.stored_bytes,
            decoded_bytes=head.decoded_bytes,
            rows=head.rows,
            blocks=head.listed_blocks,
            crc32c=head.crc32c,
            index_key=index_key,
            index_head_bytes=head.frame_stop_offset,
            index_head_sha256=head.head_sha256,
            etag=etag,
        )

    def with_deletions_of(self, other: ShardEntry) -> ShardEntry:
        """Return the entry with the deleted rows of another one."""
        return replace(self, **{name: getattr(other, name) for name in _DELETIONS})

    def without_deletions(self) -> ShardEntry:
        """Return the entry with all rows live."""
        return replace(self, deleted_rows=0, deletion_key="", deletion_sha256=bytes(32))

    def without_table(self) -> ShardEntry:
        """Return the entry without a part of the table of small features."""
        return replace(self, table_key="", table_bytes=0, table_sha256=bytes(32))

    @property
    def live_rows(self) -> int:
        """Rows that are not deleted."""
        return self.rows - self.deleted_rows

    @property
    def deletion_bytes(self) -> int:
        """Size of the sidecar of deleted rows."""
        return 4 * self.deleted_rows

    @property
    def usual_index_key(self) -> str:
        """Key of the index, spelled out."""
        return self.index_key or usual_index_key(self.key)

    @property
    def adopted(self) -> bool:
        """Whether another program wrote the shard, and may change it."""
        return bool(self.etag) or self.root != 0


class ShardTable:
    """Shards in order; see `ShardEntry` for the columns.

    A table has a part for each list that was read; the columns of the whole are made when they are asked for.

    Args:
        parts: of each, columns by name: `Texts`, unsigned numbers of any width, digests.

    Attributes:
        split, key and other texts: sequences of str, an item a shard.
        rows and other numbers: integer arrays [shards].
        uuid and other digests: uint8 arrays [shards, 16 or 32].
    """

    def __init__(self, parts: Iterable[Mapping[str, Any]]) -> None:
        self.parts = tuple(parts)
        self._stops = np.cumsum([len(part["key"]) for part in self.parts], dtype=np.int64)
        self._count = int(self._stops[-1]) if self.parts else 0

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> ShardTable:
        """Return the table of some columns, an item a shard: texts, numbers, digests; others are empty."""
        part, count = dict[str, Any](), len(columns["key"])
        for name in HELD:
            values = columns.get(name)
            if values is None:
                part[name] = (
                    Texts([""], zeros(count)) if name in _TEXTS else zeros(count, _DIGESTS.get(name, 0))
                )
            elif name in _TEXTS and not isinstance(values, Texts):
                part[name] = Texts.from_texts(values, cut=_CUTS.get(name))
            else:
                part[name] = np.asarray(values).astype(np.uint64) if name in _NUMBERS else values
        return cls([part])

    @classmethod
    def from_entries(cls, entries: Iterable[ShardEntry]) -> ShardTable:
        """Return the table of some entries, in their order."""
        rows = list(entries)
        columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in HELD}
        for name, width in _DIGESTS.items():
            columns[name] = np.frombuffer(b"".join(columns[name]), np.uint8).reshape(len(rows), width)
        return cls.from_columns(columns)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts, without the columns that were made of them."""
        return ShardTable, (self.parts,)

    def __getattr__(self, name: str) -> Any:
        """Return a column of the whole, which is made once."""
        if name not in HELD:
            raise AttributeError(f"a table of shards has no attribute {name!r}")
        whole = _joined(name, [part[name] for part in self.parts])
        self.__dict__[name] = whole = whole.astype(_NUMBERS[name]) if name in _NUMBERS else whole
        return whole

    def _columns(self) -> dict[str, Any]:
        """Return the columns of the whole."""
        return dict(self.parts[0]) if len(self.parts) == 1 else {name: getattr(self, name) for name in HELD}

    @property
    def live_rows(self) -> NDArray[np.int64]:
        """Rows that are not deleted, int64 [shards]."""
        live: NDArray[np.int64] = self.rows - self.deleted_rows
        return live

    def __len__(self) -> int:
        """Return the number of shards."""
        return self._count

    def __getitem__(self, item: int) -> ShardEntry:
        """Return one shard."""
        at = range(len(self))[item]
        number = int(np.searchsorted(self._stops, at, side="right"))
        part = self.parts[number]
        at -= int(self._stops[number - 1]) if number else 0
        values: dict[str, Any] = {name: part[name][at] for name in _TEXTS}
        values |= {name: int(part[name][at]) for name in _NUMBERS}
        values |= {name: part[name][at].tobytes() for name in _DIGESTS}
        values |= {"framing": Framing(values["framing"]), "compression": Compression(values["compression"])}
        return ShardEntry(**values)

    def __iter__(self) -> Iterator[ShardEntry]:
        """Yield the shards in order."""
        return (self[item] for item in range(len(self)))

    def sum(self, name: str) -> int:
        """Return the sum of a column of numbers."""
        return sum([int(part[name].sum(dtype=np.int64)) for part in self.parts])

    def row_stops(self) -> NDArray[np.int64]:
        """Return how many live rows this and all shards before have, int64[shards]."""
        stops = np.empty(len(self), np.int64)
        for part, stop in zip(self.parts, self._stops.tolist(), strict=True):
            own = stops[stop - len(part["key"]) : stop]
            np.subtract(part["rows"], part["deleted_rows"], out=own, casting="unsafe", dtype=np.int64)
        return np.cumsum(stops, out=stops)

    def max(self, name: str) -> int:
        """Return the largest of a column of numbers; 0 without shards."""
        return max([int(part[name].max()) for part in self.parts if len(part[name])], default=0)

    def holds(self, name: str) -> bool:
        """Tell whether a column of text, such as "etag", says something of any shard."""
        return any(part[name].any() for part in self.parts)

    def take(self, items: Sequence[int] | NDArray[np.int64]) -> ShardTable:
        """Return the shards with these numbers, in this order."""
        return ShardTable([_taken(self._columns(), np.asarray(items, np.int64))])

    def of_split(self, split: str) -> ShardTable:
        """Return the shards of one split, in order."""
        parts = []
        for part in self.parts:
            mask = part["split"].used().get(split)
            if mask is None:
                continue
            parts.append(part if mask.all() else _taken(part, np.flatnonzero(mask)))
        whole = len(parts) == len(self.parts) and all(map(operator.is_, parts, self.parts))
        return self if whole else ShardTable(parts)

    def totals(self) -> dict[str, SplitTotals]:
        """Return the totals of each split that has a shard, by name."""
        found: dict[str, SplitTotals] = {}
        for part in self.parts:
            for name, mask in part["split"].used().items():
                columns = (part["rows"], part["deleted_rows"], part["stored_bytes"], part["decoded_bytes"])
                rows, deleted, stored, decoded = (int(each[mask].sum(dtype=np.int64)) for each in columns)
                total = SplitTotals(name, rows - deleted, int(np.count_nonzero(mask)), stored, decoded)
                found[name] = found[name] + total if name in found else total
        return dict(sorted(found.items()))

    def has_doubles(self) -> bool:
        """Tell whether a shard stands twice: the same key under the same root."""
        if len(self) < 2:
            return False
        parts = [mixed(part["key"].hashes(), part["root"]) for part in self.parts]
        hashes = np.concatenate([np.zeros(0, np.int64), *parts])
        ordered = np.sort(hashes)
        alike = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(alike):
            return False
        # Hashes may be alike by chance, or by the will of whoever made the list.
        candidates, keys = np.flatnonzero(np.isin(hashes, alike)), self.key
        found = {(int(self.root[number]), keys[number]) for number in candidates.tolist()}
        return len(found) != len(candidates)

    def with_columns(self, **columns: Any) -> ShardTable:
        """Return the same shards with other columns: arrays or sequences, an item a shard."""
        return ShardTable.from_columns(self._columns() | columns)

    def with_schema(self, schema: int) -> ShardTable:
        """Return the same shards under another schema number."""
        return self.with_columns(schema=np.full(len(self), schema, np.uint32))

    @staticmethod
    def concatenate(tables: Sequence[ShardTable]) -> ShardTable:
        """Return the shards of all tables, one table after another."""
        if len(tables) == 1:
            return tables[0]
        parts = [part for table in tables for part in table.parts]
        if len(parts) > 1 and sum(map(len, tables)) <= _MANY:
            parts = [{name: _joined(name, [part[name] for part in parts]) for name in HELD}]
        return ShardTable(parts)


_MANY = 1 << 17  # shards: the columns of more are not copied into one, which would take their memory twice


def _taken(part: Mapping[str, Any], index: NDArray[np.int64]) -> dict[str, Any]:
    return {
        name: column.take(index) if isinstance(column, Texts) else column[index]
        for name, column in part.items()
    }


def _joined(name: str, columns: Sequence[Any]) -> Any:
    """Return a column of several parts."""
    if len(columns) == 1:
        return columns[0]
    if name in _TEXTS:
        return Texts.concatenate(columns)
    return np.concatenate([zeros(0, _DIGESTS.get(name, 0)), *columns])


def check_sidecar(
    data: bytes,
    size: int,
    sha256: bytes,
    *,
    what: str,
    shard: ShardEntry,
    url: str | None = None,
    advice: str = COPY_ADVICE,
) -> None:
    """Compare the bytes of a shard's sidecar with what the list of shards says of it.

    Raises:
        FormatError: they are not those that it names.
    """
    found = hashlib.sha256(data).digest()
    if len(data) != size or found != sha256:
        raise FormatError(
            f"{what} is not the one that the list of shards names",
            url=url,
            shard=shard.key,
            expected=f"{size} bytes, SHA-256 {sha256.hex()}",
            found=f"{len(data)} bytes, SHA-256 {found.hex()}",
            advice=advice,
        )


def parse_deletions(data: bytes, shard: ShardEntry, *, url: str | None = None) -> NDArray[np.int64]:
    """Return the deleted rows of a shard, int64, ascending.

    Raises:
        FormatError: the bytes are not those that the list of shards names, or no ascending rows of the shard.
    """
    check_sidecar(
        data, shard.deletion_bytes, shard.deletion_sha256, what="a deletion sidecar", shard=shard, url=url
    )
    rows = np.frombuffer(data, "<u4").astype(np.int64)
    if len(rows) and ((np.diff(rows) <= 0).any() or int(rows[-1]) >= shard.rows):
        raise FormatError("a deletion sidecar holds no ascending rows of its shard", url=url, shard=shard.key)
    return rows


def live_to_physical(live: NDArray[np.int64], deleted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the physical rows of live rows: the i-th row that is not deleted, for each i (int64 arrays)."""
    # deleted[k] - k live rows precede the k-th deleted row.
    return live + np.searchsorted(deleted - np.arange(len(deleted)), live, side="right")


def physical_to_live(rows: NDArray[np.int64], deleted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the live rows of physical rows, -1 for those that are deleted (int64 arrays)."""
    before = np.searchsorted(deleted, rows)
    gone = np.zeros(len(rows), bool)
    inside = before < len(deleted)
    gone[inside] = deleted[before[inside]] == rows[inside]
    return np.where(gone, -1, rows - before)
