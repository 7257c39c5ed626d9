"""A list of shards: the sealed object that holds a `ShardTable`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from shardio.errors import FormatError, ShardioError
from shardio.format import DEFAULT_LIMITS, Compression, Framing, Limits
from shardio.metadata._names import check_foreign_key, check_key, check_split, table_address_of
from shardio.metadata._sealed import SEAL_BYTES, seal_message, unseal
from shardio.metadata._table import ShardTable
from shardio.metadata._wire import FORMAT_VERSION, MANIFEST_FEATURES, check_version, parse
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
    payload, digest = unseal(data, what=_WHAT, url=url)
    message = parse(ShardList, payload, what=_WHAT, url=url, limits=limits, items=limits.shards)
    try:
        return table_from_message(message, limits=limits), digest
    except ShardioError as error:
        raise error.located(url=url) from error


def table_to_message(table: ShardTable) -> ShardList:
    """Return a table as the message that lists and receipts hold."""
    names = sorted(set(table.split))
    numbers = {name: number for number, name in enumerate(names)}
    message = ShardList(
        format_version=FORMAT_VERSION,
        split_names=names,
        split=[numbers[name] for name in table.split],
        key=table.key,
        shard_uuid=table.uuid.tobytes(),
        index_head_sha256=table.index_head_sha256.tobytes(),
    )
    for name in ("framing", "compression", "stored_bytes", "decoded_bytes", "rows", "blocks", "crc32c"):
        getattr(message, name).extend(getattr(table, name).tolist())
    message.index_head_bytes.extend(table.index_head_bytes.tolist())
    message.schema.extend(table.schema.tolist())
    if table.root.any():
        message.root.extend(table.root.tolist())
    if any(table.index_key):
        message.index_key.extend(table.index_key)
    if any(table.etag):
        message.etag.extend(table.etag)
    if any(table.deletion_key):
        message.live_rows.extend(table.live_rows.tolist())
        message.deletion_key.extend(table.deletion_key)
        message.deletion_bytes.extend(table.deletion_bytes.tolist())
        message.deletion_sha256 = table.deletion_sha256.tobytes()
    if any(table.table_key):
        message.table_key.extend(table.table_key)
        message.table_bytes.extend(table.table_bytes.tolist())
        message.table_sha256 = table.table_sha256.tobytes()
    return message


def table_from_message(message: ShardList, *, limits: Limits = DEFAULT_LIMITS) -> ShardTable:
    """Return the table that a message holds, checked.

    Raises:
        FormatError, UnsupportedVersionError, UnsafeNameError: see `parse_list`.
    """
    check_version(message.format_version, (), MANIFEST_FEATURES, what=_WHAT, url=None)
    count = len(message.key)
    if count > limits.shards:
        raise FormatError(f"a {_WHAT} is over the limit", expected=f"{limits.shards} shards", found=count)
    names = list(message.split_names)
    if len(set(names)) != len(names):
        raise FormatError(f"a {_WHAT} names a split twice", found=names)
    for name in names:
        check_split(name)
    split = _column(message, "split", count)
    if any(number >= len(names) for number in split):
        raise FormatError(
            f"a {_WHAT} points past its split names", expected=f"< {len(names)}", found=max(split)
        )
    rows = _integers(message, "rows", count)
    table = ShardTable(
        split=[names[number] for number in split],
        key=list(message.key),
        index_key=list(_column(message, "index_key", count, absent="")),
        etag=list(_column(message, "etag", count, absent="")),
        deletion_key=list(_column(message, "deletion_key", count, absent="")),
        table_key=list(_column(message, "table_key", count, absent="")),
        root=_integers(message, "root", count, np.uint32, absent=0),
        framing=_integers(message, "framing", count, np.uint8),
        compression=_integers(message, "compression", count, np.uint8),
        stored_bytes=_integers(message, "stored_bytes", count),
        decoded_bytes=_integers(message, "decoded_bytes", count),
        rows=rows,
        live_rows=_integers(message, "live_rows", count) if message.live_rows else rows,
        blocks=_integers(message, "blocks", count),
        crc32c=_integers(message, "crc32c", count, np.uint32),
        index_head_bytes=_integers(message, "index_head_bytes", count),
        schema=_integers(message, "schema", count, np.uint32),
        deletion_bytes=_integers(message, "deletion_bytes", count, absent=0),
        table_bytes=_integers(message, "table_bytes", count, absent=0),
        uuid=_digests(message, "shard_uuid", count, 16),
        index_head_sha256=_digests(message, "index_head_sha256", count, 32),
        deletion_sha256=_digests(message, "deletion_sha256", count, 32, absent=True),
        table_sha256=_digests(message, "table_sha256", count, 32, absent=True),
    )
    check_table(table, limits)
    return table


def _column(message: ShardList, name: str, count: int, absent: Any = None) -> Any:
    values = getattr(message, name)
    if not len(values) and absent is not None:
        return [absent] * count
    if len(values) != count:
        raise FormatError(f"column {name} of a {_WHAT} has another length", expected=count, found=len(values))
    return values


def _integers(
    message: ShardList, name: str, count: int, dtype: Any = np.int64, absent: int | None = None
) -> NDArray[Any]:
    values = np.array(_column(message, name, count, absent), np.uint64)
    if len(values) and int(values.max()) > np.iinfo(dtype).max:
        raise FormatError(
            f"column {name} of a {_WHAT} is out of range", expected=np.dtype(dtype), found=values.max()
        )
    return values.astype(dtype)


def _digests(
    message: ShardList, name: str, count: int, size: int, *, absent: bool = False
) -> NDArray[np.uint8]:
    data = getattr(message, name)
    if absent and not data:
        data = bytes(size * count)
    if len(data) != size * count:
        raise FormatError(
            f"column {name} of a {_WHAT} has another length", expected=size * count, found=len(data)
        )
    return np.frombuffer(data, np.uint8).reshape(count, size)


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
