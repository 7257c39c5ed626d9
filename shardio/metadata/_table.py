"""The shards of a dataset as columns: what a list of shards holds, and what plans and readers use.

One row of a `ShardTable` is a shard; columns are arrays as narrow as their numbers and packed texts, so that
each of 10^6 shards costs some 70 bytes, most of them digests, and no Python object.  Deleted rows of a shard
are a sidecar of sorted little-endian u32 without a head of its own: the list of shards, which is sealed,
holds its size and SHA-256.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardio.errors import FormatError
from shardio.format import Compression, Framing
from shardio.metadata._index import IndexHead
from shardio.metadata._sealed import COPY_ADVICE
from shardio.metadata._texts import JoinedTexts, NumberedTexts, PackedTexts
from shardio.metadata.naming import usual_index_key


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

    def without_deletions(self) -> ShardEntry:
        """Return the entry with all rows live."""
        return replace(
            self, live_rows=self.rows, deletion_key="", deletion_bytes=0, deletion_sha256=bytes(32)
        )

    def without_table(self) -> ShardEntry:
        """Return the entry without a part of the table of small features."""
        return replace(self, table_key="", table_bytes=0, table_sha256=bytes(32))

    @property
    def usual_index_key(self) -> str:
        """Key of the index, spelled out."""
        return self.index_key or usual_index_key(self.key)

    @property
    def adopted(self) -> bool:
        """Whether another program wrote the shard, and may change it."""
        return bool(self.etag) or self.root != 0


FEW_SHARDS = 64


def constant(value: int, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a read-only array of one number, in the memory of one; as `numpy.broadcast_to`, and cheaper."""
    if not value and shape[0] <= FEW_SHARDS:
        return np.zeros(shape, dtype)
    one = np.array(value, dtype)
    return np.ndarray(shape, one.dtype, one.tobytes(), strides=(0,) * len(shape))


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


class ShardTable:
    """Shards in order; see `ShardEntry` for the columns.

    A table is made of parts, one a list that was read. Numbers of a part are as narrow as they may be; the
    columns of the whole are made when they are asked for, as wide as is said here.

    Attributes:
        split ... table_key: sequences of str, an item a shard.
        root ... table_bytes: integer arrays [shards].
        uuid, index_head_sha256, deletion_sha256, table_sha256: uint8 arrays [shards, 16 or 32].
    """

    split: Sequence[str]
    key: Sequence[str]
    index_key: Sequence[str]
    etag: Sequence[str]
    deletion_key: Sequence[str]
    table_key: Sequence[str]
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

    def __init__(self, parts: Iterable[Mapping[str, Any]]) -> None:
        """Take columns by name for each part, all of one length; see `part_of`."""
        self.parts = tuple(parts)
        self._stops = np.cumsum([len(part["key"]) for part in self.parts], dtype=np.int64)
        self._count = int(self._stops[-1]) if self.parts else 0
        self.hashes: NDArray[np.int64] | None = None

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
        return cls([part_of(columns)])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts, without the columns that were made of them."""
        return ShardTable, (self.parts,)

    def __getattr__(self, name: str) -> Any:
        """Return a column of the whole, which is made once."""
        column = COLUMNS.get(name)
        if column is None:
            raise AttributeError(f"a table of shards has no attribute {name!r}")
        values = [part[name] for part in self.parts]
        if column.dtype is None and not column.width:
            whole: Any = values[0] if len(values) == 1 else JoinedTexts(values)
        else:
            dtype, count = column.dtype or np.uint8, self._count
            shape = (count, column.width) if column.width else (count,)
            # Each part may say one number of all its shards.
            ones = {None if each.strides[0] else int(each.flat[0]) if len(each) else 0 for each in values}
            one = ones.pop() if len(ones) == 1 else None if ones else 0
            if one is not None:
                whole = constant(one, dtype, shape)
            elif len(values) == 1:
                whole = values[0].astype(dtype, copy=False)
            else:
                whole = np.empty(shape, dtype)
                np.concatenate(values, out=whole, casting="same_kind")
        self.__dict__[name] = whole
        return whole

    def __len__(self) -> int:
        """Return the number of shards."""
        return self._count

    def __getitem__(self, item: int) -> ShardEntry:
        """Return one shard."""
        count = len(self)
        at = int(item) + count if item < 0 else int(item)
        if not 0 <= at < count:
            raise IndexError(f"shard {item} of {count}")
        number = int(np.searchsorted(self._stops, at, side="right"))
        part = self.parts[number]
        at -= int(self._stops[number - 1]) if number else 0
        values: dict[str, Any] = {}
        for name, column in COLUMNS.items():
            value = part[name][at]
            values[name] = value.tobytes() if column.width else value if column.dtype is None else int(value)
        values["framing"] = Framing(values["framing"])
        values["compression"] = Compression(values["compression"])
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
            stops[stop - len(part["key"]) : stop] = part["live_rows"]
        return np.cumsum(stops, out=stops)

    def max(self, name: str) -> int:
        """Return the largest of a column of numbers; 0 without shards."""
        return max([int(part[name].max()) for part in self.parts if len(part[name])], default=0)

    def holds(self, name: str) -> bool:
        """Tell whether a column of text, such as "etag", says something of any shard."""
        for part in self.parts:
            texts = part[name]
            # Of numbered ones the names are few.
            some = not isinstance(texts, NumberedTexts) or any(texts.names)
            if some and any(texts):
                return True
        return False

    def take(self, items: Sequence[int] | NDArray[np.int64]) -> ShardTable:
        """Return the shards with these numbers, in this order."""
        index = np.asarray(items, np.int64)
        return ShardTable([part_of({name: _taken(getattr(self, name), index) for name in COLUMNS})])

    def of_split(self, split: str) -> ShardTable:
        """Return the shards of one split, in order."""
        parts = []
        for part in self.parts:
            mask = part["split"].used().get(split)
            if mask is None:
                continue
            index = np.flatnonzero(mask)
            all_of_it = len(index) == len(mask)
            parts.append(
                part if all_of_it else part_of({name: _taken(part[name], index) for name in COLUMNS})
            )
        whole = len(parts) == len(self.parts) and all(map(operator.is_, parts, self.parts))
        return self if whole else ShardTable(parts)

    def totals(self) -> dict[str, SplitTotals]:
        """Return the totals of each split that has a shard, by name."""
        found: dict[str, SplitTotals] = {}
        for part in self.parts:
            for name, mask in part["split"].used().items():
                columns = (part["live_rows"], mask, part["stored_bytes"], part["decoded_bytes"])
                sums = [int(each[mask].sum(dtype=np.int64)) for each in columns]
                total = SplitTotals(name, *sums)
                found[name] = found[name] + total if name in found else total
        return dict(sorted(found.items()))

    def has_doubles(self) -> bool:
        """Tell whether a shard stands twice: the same key under the same root."""
        if self.hashes is None:
            # Hashes of Python have a secret key: no file can make keys collide.
            self.hashes = np.fromiter(map(hash, self.key), np.int64, len(self))
            if self.root.any():
                self.hashes ^= self.root.astype(np.int64) * _ODD
        hashes = self.hashes
        if len(self.parts) != 1:  # a part is asked again as part of the whole
            self.hashes = None
        hashes.sort()
        if (hashes[1:] != hashes[:-1]).all():
            return False
        return len(set(zip(self.root.tolist(), self.key, strict=True))) != len(self)

    def with_columns(self, **columns: Any) -> ShardTable:
        """Return the same shards with other columns: arrays or sequences, an item a shard."""
        return ShardTable([part_of({name: getattr(self, name) for name in COLUMNS} | columns)])

    def with_schema(self, schema: int) -> ShardTable:
        """Return the same shards under another schema number."""
        return self.with_columns(schema=np.full(len(self), schema, np.uint32))

    @staticmethod
    def concatenate(tables: Sequence[ShardTable]) -> ShardTable:
        """Return the shards of all tables, one table after another."""
        if len(tables) == 1:
            return tables[0]
        parts: list[Mapping[str, Any]] = []
        small: list[Mapping[str, Any]] = []
        for part in chain.from_iterable(table.parts for table in tables):
            if len(part["key"]) >= _SMALL and small:
                parts.append(_merged(small))
                small = []
            (parts if len(part["key"]) >= _SMALL else small).append(part)
        if small:
            parts.append(_merged(small))
        whole = ShardTable(parts)
        hashes = [table.hashes for table in tables if table.hashes is not None]
        if len(hashes) == len(tables) > 0:
            whole.hashes = np.concatenate(hashes)
        return whole


_SMALL = 8192  # parts of fewer shards are merged: each of them has a few kilobytes of its own
_ODD = np.int64(0x1E3779B97F4A7C15)


def part_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a part of a table, each as small as it may be.

    Args:
        columns: by name, integers of any width.
    """
    part: dict[str, Any] = {}
    many = len(columns["key"]) > FEW_SHARDS
    for name, column in COLUMNS.items():
        values = columns[name]
        if name == "split":
            part[name] = values if isinstance(values, NumberedTexts) else NumberedTexts.from_texts(values)
        elif column.width:
            part[name] = values
        elif column.dtype is not None:
            # Of few shards what it would save is not worth the calls.
            part[name] = _narrow(values) if many or values.dtype.kind != "u" else values
        elif isinstance(values, NumberedTexts | PackedTexts):
            part[name] = values
        else:
            part[name] = (
                PackedTexts.from_texts(values) if any(values) else NumberedTexts.alike("", len(values))
            )
    return part


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    if len(values) <= FEW_SHARDS:
        return values.astype(np.uint64)
    if (values == values[0]).all():
        return constant(values[0], np.min_scalar_type(values[0]), values.shape)
    return values.astype(np.min_scalar_type(values.max()))


def _taken(column: Any, index: NDArray[np.int64]) -> Any:
    if isinstance(column, np.ndarray):
        return column[index]
    return column.take(index) if isinstance(column, NumberedTexts) else [column[i] for i in index.tolist()]


def _merged(parts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        values = [part[name] for part in parts]
        columns[name] = np.concatenate(values) if isinstance(values[0], np.ndarray) else list(chain(*values))
    return part_of(columns)


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
