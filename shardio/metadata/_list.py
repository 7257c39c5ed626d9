"""A list of shards: the sealed object that holds a `ShardTable`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Compression, Framing, Limits
from shardio.metadata._names import check_foreign_key, check_key, check_split, table_address_of
from shardio.metadata._sealed import SEAL_BYTES, check_features, reading, seal_message, unseal_message
from shardio.metadata._table import COLUMNS, ListColumn, ShardTable
from shardio.metadata._wire import FORMAT_VERSION
from shardio.v1.manifest_pb2 import ShardList

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_WHAT = "list of shards"


def seal_list(table: ShardTable, *, limits: Limits = DEFAULT_LIMITS) -> tuple[bytes, bytes]:
    """Return the sealed bytes of a list of shards, and their SHA-256 (32 bytes).

    Raises:
        FormatError, UnsafeNameError: `parse_list` would refuse it.
    """
    check_table(table, limits)
    return _seal(table_to_message(table), limits)


def seal_lists(
    table: ShardTable, *, most_shards: int, most_bytes: int, limits: Limits = DEFAULT_LIMITS
) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the sealed bytes, SHA-256 and number of shards of the lists that hold a table, in order.

    Args:
        table: the shards.
        most_shards, most_bytes: of one list; one that holds a single shard may have more bytes.
        limits: that each list keeps.

    Raises:
        FormatError, UnsafeNameError: `parse_list` would refuse it.
    """
    for first in range(0, len(table), most_shards):
        part = table.take(range(first, min(first + most_shards, len(table))))
        message = table_to_message(part)
        half = (len(part) + 1) // 2
        if len(part) > 1 and message.ByteSize() + SEAL_BYTES > most_bytes:
            # Long names.
            yield from seal_lists(part, most_shards=half, most_bytes=most_bytes, limits=limits)
        else:
            check_table(part, limits)
            yield (*_seal(message, limits), len(part))


def _seal(message: ShardList, limits: Limits) -> tuple[bytes, bytes]:
    return seal_message(message, what=_WHAT, limits=limits, items=limits.shards, advice="store several lists")


def parse_list(
    data: bytes, *, url: str | None = None, limits: Limits = DEFAULT_LIMITS
) -> tuple[ShardTable, bytes]:
    """Return the shards of a sealed list, checked, and the list's SHA-256.

    Raises:
        FormatError, UnsupportedVersionError, UnsafeNameError: the list is damaged, newer or hostile.
    """
    message, digest = unseal_message(ShardList, data, what=_WHAT, url=url, limits=limits, items=limits.shards)
    with reading(_WHAT, url):
        return table_from_message(message, limits=limits), digest


def table_to_message(table: ShardTable) -> ShardList:
    """Return a table as the message that lists and receipts hold."""
    names = sorted(set(table.split))
    numbers = {name: number for number, name in enumerate(names)}
    stored: dict[str, Any] = {"split": [numbers[name] for name in table.split]}
    for name, column in COLUMNS.items():
        values = getattr(table, name)
        if name != "split" and (not column.where or _holds_any(getattr(table, column.where))):
            stored[column.field or name] = (
                values.tobytes() if column.width else values if column.dtype is None else values.tolist()
            )
    return ShardList(format_version=FORMAT_VERSION, split_names=names, **stored)


def _holds_any(values: list[str] | NDArray[Any]) -> bool:
    return bool(values.any()) if isinstance(values, np.ndarray) else any(values)


def table_from_message(message: ShardList, *, limits: Limits = DEFAULT_LIMITS) -> ShardTable:
    """Return the table that a message holds, checked.

    Raises:
        FormatError, UnsupportedVersionError, UnsafeNameError: see `parse_list`.
    """
    check_features(message, _WHAT, None)  # a receipt's has a version of its own
    count = len(message.key)
    if count > limits.shards:
        raise FormatError(f"a {_WHAT} is over the limit", expected=f"{limits.shards} shards", found=count)
    names = list(message.split_names)
    if len(set(names)) != len(names):
        raise FormatError(f"a {_WHAT} names a split twice", found=names)
    for name in names:
        check_split(name)
    columns = {
        name: _column(message, name, column, count) for name, column in COLUMNS.items() if name != "split"
    }
    split = _items(message, "split", count)
    if any(number >= len(names) for number in split):
        raise FormatError(
            f"a {_WHAT} points past its split names", expected=f"< {len(names)}", found=max(split)
        )
    if not message.live_rows:
        columns["live_rows"] = columns["rows"]
    table = ShardTable(split=[names[number] for number in split], **columns)
    check_table(table, limits)
    return table


def _column(message: ShardList, name: str, column: ListColumn, count: int) -> Any:
    """Return a column of a list, checked; zeros or empty texts where the list does not hold it."""
    field = column.field or name
    if column.where and not getattr(message, field):
        shape = (count, column.width) if column.width else count
        is_text = column.dtype is None and not column.width
        return [""] * count if is_text else np.zeros(shape, column.dtype or np.uint8)
    if column.width:
        data = _items(message, field, count * column.width)
        return np.frombuffer(data, np.uint8).reshape(count, column.width)
    if column.dtype is None:
        return list(_items(message, field, count))
    values = np.array(_items(message, field, count), np.uint64)
    if len(values) and int(values.max()) > np.iinfo(column.dtype).max:
        raise FormatError(
            f"column {field} of a {_WHAT} is out of range",
            expected=np.dtype(column.dtype),
            found=values.max(),
        )
    return values.astype(column.dtype)


def _items(message: ShardList, field: str, count: int) -> Any:
    """Return what a field holds: an item a shard, or the bytes of all digests."""
    values = getattr(message, field)
    if len(values) != count:
        raise FormatError(
            f"column {field} of a {_WHAT} has another length", expected=count, found=len(values)
        )
    return values


def check_table(table: ShardTable, limits: Limits) -> None:
    """Check what holds within a list; what spans lists is the manifest's."""
    own = table.root == 0
    for key, is_own, etag in zip(table.key, own, table.etag, strict=True):
        # Shards that were adopted in place are under root 0 and keep the names that others gave them.
        check_key(key) if is_own and not etag else check_foreign_key(key)
    _check_sidecar_names(table)
    for name, kind in (("framing", Framing), ("compression", Compression)):
        unknown = set(getattr(table, name).tolist()) - {int(member) for member in kind}
        if unknown:
            raise FormatError(f"a {_WHAT} names no known {name}", expected=list(kind), found=sorted(unknown))
    places = set(zip(table.root.tolist(), table.key, strict=True))
    if len(places) != len(table):
        raise FormatError(f"a {_WHAT} names a shard twice", expected=len(table), found=len(places))
    if len(table) and int(table.rows.max()) >= 1 << 32:
        raise FormatError(
            "a shard has too many rows", expected="fewer than 2^32", found=int(table.rows.max())
        )
    if int(table.rows.sum()) > limits.rows:
        raise FormatError(
            f"a {_WHAT} is over the limit", expected=f"{limits.rows} rows", found=int(table.rows.sum())
        )
    if (table.live_rows > table.rows).any():
        raise FormatError(f"a {_WHAT} counts more live rows than rows")
    if len(table) and int(table.index_head_bytes.max()) > limits.index:
        raise FormatError(
            f"a {_WHAT} names an index over the limit",
            expected=f"{limits.index} bytes",
            found=int(table.index_head_bytes.max()),
        )
    deleted = table.rows - table.live_rows
    named = np.array([bool(key) for key in table.deletion_key], bool)
    if ((deleted > 0) != named).any() or (table.deletion_bytes != 4 * deleted).any():
        raise FormatError(f"a {_WHAT} counts other deleted rows than its deletion sidecars hold")
    _check_all_deleted(table, limits)


def _check_sidecar_names(table: ShardTable) -> None:
    for index_key in filter(None, table.index_key):
        check_foreign_key(index_key)
    for deletion_key in filter(None, table.deletion_key):
        check_key(deletion_key)
    for table_key in filter(None, table.table_key):
        if table_address_of(table_key) is None:
            raise FormatError(f"a {_WHAT} names a table by no name of a table", found=table_key[:200])


def _check_all_deleted(table: ShardTable, limits: Limits) -> None:
    """Check the digests of sidecars that delete every row: there is one such content; it is never read."""
    digests: dict[int, bytes] = {}
    hashed = 0
    for shard in np.flatnonzero((table.live_rows == 0) & (table.rows > 0)).tolist():
        rows = int(table.rows[shard])
        if rows not in digests:
            hashed += 4 * rows
            if hashed > limits.manifest:
                return  # so many rows are not worth the time: `shardio verify` reads the sidecars
            digests[rows] = hashlib.sha256(np.arange(rows, dtype="<u4")).digest()
        if table.deletion_sha256[shard].tobytes() != digests[rows]:
            raise FormatError(
                "a deletion sidecar that should delete all rows of its shard holds others",
                shard=table.key[shard],
                expected=f"rows 0 to {rows - 1}, SHA-256 {digests[rows].hex()}",
                found=f"SHA-256 {table.deletion_sha256[shard].tobytes().hex()}",
            )
