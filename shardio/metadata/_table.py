"""The shards of a dataset as columns: what a list of shards holds, and what plans and readers use.

One row of a `ShardTable` is a shard; columns are NumPy arrays or lists of strings, so that 10^6 shards cost
some hundred bytes each and no Python object per number.  Deleted rows of a shard are a sidecar of sorted
little-endian u32 without a head of its own: the list of shards, which is sealed, holds its size and SHA-256.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio.errors import FormatError
from shardio.format import Compression, Framing
from shardio.metadata._names import usual_index_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardio.metadata._index import IndexHead


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
        rows: physical rows; `live_rows` are those not deleted.
        blocks: number of blocks; a stream counts as one.
        crc32c: CRC-32C of the whole object.
        index_key: of its index, under root 0; "" where it is the usual one.
        index_head_bytes, index_head_sha256: length and SHA-256 of the head of its index.
        schema: number in the manifest's schemas plus 1; 0 for none.
        etag: ETag, generation or mtime of an adopted shard; "" for shardio's own.
        deletion_key, deletion_bytes, deletion_sha256: the sidecar of its deleted rows; "" for none.
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
    live_rows: int = -1
    deletion_key: str = ""
    deletion_bytes: int = 0
    deletion_sha256: bytes = bytes(32)
    table_key: str = ""
    table_bytes: int = 0
    table_sha256: bytes = bytes(32)

    def __post_init__(self) -> None:
        """Count all rows as live unless told otherwise."""
        if self.live_rows < 0:
            object.__setattr__(self, "live_rows", self.rows)

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
            index_head_bytes=head.head_bytes,
            index_head_sha256=head.head_sha256,
            etag=etag,
        )

    def with_deletions_of(self, other: ShardEntry) -> ShardEntry:
        """Return the entry with the deleted rows of another one."""
        return replace(
            self,
            live_rows=other.live_rows,
            deletion_key=other.deletion_key,
            deletion_bytes=other.deletion_bytes,
            deletion_sha256=other.deletion_sha256,
        )

    @property
    def usual_index_key(self) -> str:
        """Key of the index, spelled out."""
        return self.index_key or usual_index_key(self.key)

    @property
    def adopted(self) -> bool:
        """Whether another program wrote the shard, and may change it."""
        return bool(self.etag) or self.root != 0


class ListColumn(NamedTuple):
    """A column of a table, and how lists of shards hold it.

    Attributes:
        dtype: of integers; None for text and for digests.
        width: bytes of a digest; 0 for all else.
        where: a list holds it where this column has something; "" for always.
        field: its name in a list, where that is another one.
    """

    dtype: Any = None
    width: int = 0
    where: str = ""
    field: str = ""


COLUMNS = {
    "split": ListColumn(),
    "key": ListColumn(),
    "index_key": ListColumn(where="index_key"),
    "etag": ListColumn(where="etag"),
    "deletion_key": ListColumn(where="deletion_key"),
    "table_key": ListColumn(where="table_key"),
    "root": ListColumn(np.uint32, where="root"),
    "framing": ListColumn(np.uint8),
    "compression": ListColumn(np.uint8),
    "stored_bytes": ListColumn(np.int64),
    "decoded_bytes": ListColumn(np.int64),
    "rows": ListColumn(np.int64),
    "live_rows": ListColumn(np.int64, where="deletion_key"),
    "blocks": ListColumn(np.int64),
    "crc32c": ListColumn(np.uint32),
    "index_head_bytes": ListColumn(np.int64),
    "schema": ListColumn(np.uint32),
    "deletion_bytes": ListColumn(np.int64, where="deletion_key"),
    "table_bytes": ListColumn(np.int64, where="table_key"),
    "uuid": ListColumn(width=16, field="shard_uuid"),
    "index_head_sha256": ListColumn(width=32),
    "deletion_sha256": ListColumn(width=32, where="deletion_key"),
    "table_sha256": ListColumn(width=32, where="table_key"),
}


@dataclass(frozen=True, eq=False)
class ShardTable:
    """Shards in order; see `ShardEntry` for the columns.

    Attributes:
        split ... table_key: lists of str, an item a shard.
        root ... table_bytes: integer arrays [shards].
        uuid, index_head_sha256, deletion_sha256, table_sha256: uint8 arrays [shards, 16 or 32].
    """

    split: list[str]
    key: list[str]
    index_key: list[str]
    etag: list[str]
    deletion_key: list[str]
    table_key: list[str]
    root: NDArray[np.uint32]
    framing: NDArray[np.uint8]
    compression: NDArray[np.uint8]
    stored_bytes: NDArray[np.int64]
    decoded_bytes: NDArray[np.int64]
    rows: NDArray[np.int64]
    live_rows: NDArray[np.int64]
    blocks: NDArray[np.int64]
    crc32c: NDArray[np.uint32]
    index_head_bytes: NDArray[np.int64]
    schema: NDArray[np.uint32]
    deletion_bytes: NDArray[np.int64]
    table_bytes: NDArray[np.int64]
    uuid: NDArray[np.uint8]
    index_head_sha256: NDArray[np.uint8]
    deletion_sha256: NDArray[np.uint8]
    table_sha256: NDArray[np.uint8]

    @classmethod
    def from_entries(cls, entries: Iterable[ShardEntry]) -> ShardTable:
        """Return the table of some entries, in their order."""
        rows = list(entries)
        columns: dict[str, Any] = {}
        for name, column in COLUMNS.items():
            values = columns[name] = [getattr(row, name) for row in rows]
            if column.width:
                columns[name] = np.frombuffer(b"".join(values), np.uint8).reshape(len(rows), column.width)
            elif column.dtype is not None:
                columns[name] = np.array([int(value) for value in values], column.dtype)
        return cls(**columns)

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(self.key)

    def __getitem__(self, item: int) -> ShardEntry:
        """Return one shard."""
        values: dict[str, Any] = {}
        for name, column in COLUMNS.items():
            value = getattr(self, name)[item]
            values[name] = value.tobytes() if column.width else value if column.dtype is None else int(value)
        values["framing"] = Framing(values["framing"])
        values["compression"] = Compression(values["compression"])
        return ShardEntry(**values)

    def __iter__(self) -> Iterator[ShardEntry]:
        """Yield the shards in order."""
        return (self[item] for item in range(len(self)))

    def take(self, items: Sequence[int] | NDArray[np.int64]) -> ShardTable:
        """Return the shards with these numbers, in this order."""
        index = np.asarray(items, np.int64)
        columns: dict[str, Any] = {}
        for name in COLUMNS:
            column = getattr(self, name)
            columns[name] = [column[i] for i in index] if isinstance(column, list) else column[index]
        return ShardTable(**columns)

    def of_split(self, split: str) -> ShardTable:
        """Return the shards of one split, in order."""
        if all(name == split for name in self.split):
            return self
        return self.take(np.array([i for i, name in enumerate(self.split) if name == split], np.int64))

    def totals(self) -> dict[str, SplitTotals]:
        """Return the totals of each split that has a shard, by name."""
        names = sorted(set(self.split))
        numbers = {name: number for number, name in enumerate(names)}
        number = np.array([numbers[name] for name in self.split], np.int64)
        shards = np.bincount(number, minlength=len(names))
        columns = [self.live_rows, shards, self.stored_bytes, self.decoded_bytes]
        sums = [each if each is shards else _sums(number, each, len(names)) for each in columns]
        return {name: SplitTotals(name, *(int(each[i]) for each in sums)) for i, name in enumerate(names)}

    def with_schema(self, schema: int) -> ShardTable:
        """Return the same shards under another schema number."""
        return replace(self, schema=np.full(len(self), schema, np.uint32))

    @staticmethod
    def concatenate(tables: Sequence[ShardTable]) -> ShardTable:
        """Return the shards of all tables, one table after another."""
        if len(tables) == 1:
            return tables[0]
        columns: dict[str, Any] = {}
        for name in COLUMNS:
            parts = [getattr(table, name) for table in tables or [_EMPTY]]
            columns[name] = list(chain(*parts)) if isinstance(parts[0], list) else np.concatenate(parts)
        return ShardTable(**columns)


def _sums(number: NDArray[np.int64], column: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    # np.bincount adds weights as float64, which is inexact above 2^53.
    out = np.zeros(groups, np.int64)
    np.add.at(out, number, column)
    return out


_EMPTY = ShardTable.from_entries([])


def check_sidecar(
    data: bytes,
    size: int,
    sha256: bytes,
    *,
    what: str,
    shard: ShardEntry,
    url: str | None = None,
    advice: str | None = None,
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
