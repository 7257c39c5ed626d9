"""A list of shards: the sealed object that holds a `ShardTable`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Compression, Framing, Limits
from shardio.metadata._columns import BrokenMessageError, MessageColumns, TooManyItemsError
from shardio.metadata._sealed import SEAL_BYTES, reading, seal_within, unseal
from shardio.metadata._table import COLUMNS, ListColumn, ShardTable, constant, part_of
from shardio.metadata._texts import NumberedTexts, PackedTexts
from shardio.metadata._wire import FORMAT_VERSION, check_version
from shardio.metadata.naming import (
    check_foreign_key,
    check_key,
    check_split,
    table_address_of,
)
from shardio.v1.manifest_pb2 import ShardList

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
    payload = message.SerializeToString(deterministic=True)
    return seal_within(payload, what=_WHAT, limits=limits, advice="store several lists")


def _most_texts(limits: Limits) -> int:
    # More than that would be many lists.
    return min(limits.shards, limits.items)


def _too_many(what: str, limits: Limits) -> FormatError:
    return FormatError(
        f"a {_WHAT} holds more than it may",
        expected=f"at most {_most_texts(limits)} {what}",
        found="more",
        advice="store several lists, or raise `shards` or `items` of the limits if you trust it",
    )


def parse_list(
    data: bytes, *, url: str | None = None, limits: Limits = DEFAULT_LIMITS
) -> tuple[ShardTable, bytes]:
    """Return the shards of a sealed list, checked, and the list's SHA-256.

    Raises:
        FormatError, UnsupportedVersionError, UnsafeNameError: the list is damaged, newer or hostile.
    """
    payload, digest = unseal(data, what=_WHAT, url=url)
    with reading(_WHAT, url):
        return parse_columns(payload, limits=limits), digest


def table_to_message(table: ShardTable) -> ShardList:
    """Return a table as the message that lists and receipts hold."""
    names = sorted(set(table.split))
    numbers = {name: number for number, name in enumerate(names)}
    stored: dict[str, Any] = {"split": [numbers[name] for name in table.split]}
    for name, column in COLUMNS.items():
        values = getattr(table, name)
        if name != "split" and (not column.where or _is_held(table, column.where)):
            stored[column.field or name] = (
                values.tobytes() if column.width else values if column.dtype is None else values.tolist()
            )
    return ShardList(format_version=FORMAT_VERSION, split_names=names, **stored)


def _is_held(table: ShardTable, name: str) -> bool:
    return bool(table.root.any()) if name == "root" else table.holds(name)


def parse_columns(payload: bytes, *, limits: Limits = DEFAULT_LIMITS) -> ShardTable:
    """Return the table that the bytes of a message hold, checked.

    Raises:
        FormatError, UnsupportedVersionError, UnsafeNameError: see `parse_list`.
    """
    try:
        message = MessageColumns(ShardList, payload, _most_texts(limits))
        version = message.numbers("format_version")
        check_version(int(version[-1]) if len(version) else 0, (), frozenset(), what=_WHAT, url=None)
        table = ShardTable([_part(message)])
    except BrokenMessageError as error:
        raise FormatError(f"a {_WHAT} does not parse", found=str(error)) from error
    except TooManyItemsError as error:
        raise _too_many(f"items of {error}", limits) from None
    check_table(table, limits)
    return table


def _part(message: MessageColumns) -> Mapping[str, Any]:
    count = message.count("key")
    joined = message.texts("split_names")
    names = joined.decode().split("\0") if isinstance(joined, bytes) else joined
    names = names[: message.count("split_names")]
    if len(set(names)) != len(names):
        raise FormatError(f"a {_WHAT} names a split twice", found=names)
    for name in names:
        check_split(name)
    empty = NumberedTexts.alike("", count)
    columns = {
        name: _column(message, name, column, empty) for name, column in COLUMNS.items() if name != "split"
    }
    split = message.numbers("split")
    if len(split) != count:
        raise _miscounted("split", count, len(split))
    if len(split) and int(split.max()) >= len(names):
        raise FormatError(
            f"a {_WHAT} points past its split names", expected=f"< {len(names)}", found=split.max()
        )
    if not len(message.numbers("live_rows")):
        columns["live_rows"] = columns["rows"]
    return part_of(columns | {"split": NumberedTexts(names, split)})


def _column(message: MessageColumns, name: str, column: ListColumn, empty: NumberedTexts) -> Any:
    """Return a column of a list, checked; zeros or empty texts where the list does not hold it."""
    field, count = column.field or name, len(empty.numbers)
    if column.width:
        data = message.blob(field)
        if column.where and not data:
            return constant(0, np.uint8, (count, column.width))
        if len(data) != count * column.width:
            raise _miscounted(field, count * column.width, len(data))
        # A copy where it is part of the bytes of the whole list, which would stay.
        return np.frombuffer(data, np.uint8).reshape(count, column.width)
    if column.dtype is None:
        found = message.count(field)
        if not found and (column.where or not count):
            return empty
        if found != count:
            raise _miscounted(field, count, found)
        joined = message.texts(field)
        return PackedTexts.from_joined(joined, count) if isinstance(joined, bytes) else joined
    values = message.numbers(field)
    if column.where and not len(values):
        return constant(0, np.uint8, (count,))
    if len(values) != count:
        raise _miscounted(field, count, len(values))
    # What fits in a byte fits in every column.
    if values.itemsize > 1 and len(values) and int(values.max()) > np.iinfo(column.dtype).max:
        raise FormatError(
            f"column {field} of a {_WHAT} is out of range",
            expected=np.dtype(column.dtype),
            found=values.max(),
        )
    return values


def _miscounted(field: str, count: int, found: int) -> FormatError:
    return FormatError(f"column {field} of a {_WHAT} has another length", expected=count, found=found)


def check_table(table: ShardTable, limits: Limits) -> None:
    """Check what holds within a list; what spans lists is the manifest's."""
    if len(table) > _most_texts(limits):
        raise _too_many("shards", limits)
    _check_keys(table)
    _check_sidecar_names(table)
    for name, kind in (("framing", Framing), ("compression", Compression)):
        unknown = set(np.unique(getattr(table, name)).tolist()) - {int(member) for member in kind}
        if unknown:
            raise FormatError(f"a {_WHAT} names no known {name}", expected=list(kind), found=sorted(unknown))
    if table.has_doubles():
        raise FormatError(f"a {_WHAT} names a shard twice", expected=f"{len(table)} shards", found="fewer")
    if table.max("rows") >= 1 << 32:
        raise FormatError("a shard has too many rows", expected="fewer than 2^32", found=table.max("rows"))
    if table.sum("rows") > limits.rows:
        raise FormatError(
            f"a {_WHAT} is over the limit", expected=f"{limits.rows} rows", found=table.sum("rows")
        )
    if (table.live_rows > table.rows).any():
        raise FormatError(f"a {_WHAT} counts more live rows than rows")
    if table.max("index_head_bytes") > limits.index:
        raise FormatError(
            f"a {_WHAT} names an index over the limit",
            expected=f"{limits.index} bytes",
            found=table.max("index_head_bytes"),
        )
    deleted = table.rows - table.live_rows
    named: Any = (
        np.array([bool(key) for key in table.deletion_key], bool) if table.holds("deletion_key") else False
    )
    if ((deleted > 0) != named).any() or (table.deletion_bytes != 4 * deleted).any():
        raise FormatError(f"a {_WHAT} counts other deleted rows than its deletion sidecars hold")
    _check_all_deleted(table, limits)


def _check_keys(table: ShardTable) -> None:
    keys = table.key
    if isinstance(keys, PackedTexts) and keys.are_keys:
        return
    for key, is_own, etag in zip(keys, table.root == 0, table.etag, strict=True):
        # Shards that were adopted in place are under root 0 and keep the names that others gave them.
        check_key(key) if is_own and not etag else check_foreign_key(key)


def _check_sidecar_names(table: ShardTable) -> None:
    said = {
        name: getattr(table, name) if table.holds(name) else ()
        for name in ("index_key", "deletion_key", "table_key")
    }
    for index_key in filter(None, said["index_key"]):
        check_foreign_key(index_key)
    for deletion_key in filter(None, said["deletion_key"]):
        check_key(deletion_key)
    for table_key in filter(None, said["table_key"]):
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
