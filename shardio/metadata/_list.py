"""A list of shards: the file of columns that holds a `ShardTable`; its SHA-256 is what a manifest names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Limits
from shardio.metadata._container import ColumnReader, Texts, pack, zeros
from shardio.metadata._index import ENUMS
from shardio.metadata._sealed import COPY_ADVICE, reading
from shardio.metadata._table import COLUMNS, HELD, LIST, ShardTable, cut_key
from shardio.metadata.naming import (
    check_foreign_key,
    check_key,
    check_split,
    is_key,
    is_plain_rest,
    table_address_of,
)

_WHAT = LIST.what


def pack_list(table: ShardTable, *, limits: Limits = DEFAULT_LIMITS) -> tuple[bytes, bytes]:
    """Return the bytes of a list of shards, and their SHA-256 (32 bytes).

    Raises:
        FormatError, UnsafeNameError: `parse_list` would refuse it.
    """
    check_table(table, limits)
    data = pack_table(table)
    if len(data) > limits.manifest:
        raise FormatError(
            f"a {_WHAT} would be larger than a reader takes",
            expected=f"at most {limits.manifest} bytes",
            found=f"{len(data)} bytes",
            advice="store several lists",
        )
    return data, hashlib.sha256(data).digest()


def pack_lists(
    table: ShardTable, *, most_shards: int, most_bytes: int, limits: Limits = DEFAULT_LIMITS
) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the bytes, SHA-256 and number of shards of the lists that hold a table, in order.

    Args:
        table: the shards.
        most_shards, most_bytes: of one list; one that holds a single shard may have more bytes.
        limits: that each list keeps.

    Raises:
        FormatError, UnsafeNameError: `parse_list` would refuse it.
    """
    for first in range(0, len(table), most_shards):
        rows = range(first, min(first + most_shards, len(table)))
        part = table if len(rows) == len(table) else table.take(rows)
        data, sha256 = pack_list(part, limits=limits)
        if len(part) > 1 and len(data) > most_bytes:
            # Long names.
            half = (len(part) + 1) // 2
            yield from pack_lists(part, most_shards=half, most_bytes=most_bytes, limits=limits)
        else:
            yield data, sha256, len(part)


def pack_table(table: ShardTable) -> bytes:
    """Return a table as the columns that lists and receipts hold."""
    (names, split), (prefixes, prefix), key = table.split.numbered(), table.key.numbered(), table.key
    values = {name: getattr(table, name) for name in COLUMNS if name in HELD and name != "split"}
    rest = Texts([""], zeros(len(key)), key.offsets, key.data)
    own = {"split_name": names, "split": split, "key_prefix": prefixes, "prefix": prefix, "key_rest": rest}
    return pack(LIST, values | own)


def parse_list(
    data: bytes, *, url: str | None = None, limits: Limits = DEFAULT_LIMITS
) -> tuple[ShardTable, bytes]:
    """Return the shards of a list, checked, and the list's SHA-256.

    Raises:
        FormatError, UnsupportedVersionError, UnsafeNameError: the list is damaged, newer or hostile.
    """
    return parse_table(data, url=url, limits=limits), hashlib.sha256(data).digest()


def parse_table(data: bytes, *, url: str | None = None, limits: Limits = DEFAULT_LIMITS) -> ShardTable:
    """Return the table that columns hold, checked.

    Raises:
        FormatError, UnsupportedVersionError, UnsafeNameError: see `parse_list`.
    """
    reader = ColumnReader(data, LIST, url, COPY_ADVICE, limits)
    columns, _ = reader.read()
    reader.check_end()
    with reading(_WHAT, url):
        table = ShardTable([_part(columns)])
        check_table(table, limits)
    return table


def _part(columns: dict[str, Any]) -> dict[str, Any]:
    """Return columns of a list as those of a table, checked."""
    names, prefixes = list(columns.pop("split_name")), list(columns.pop("key_prefix")) or [""]
    if len(set(names)) != len(names):
        raise FormatError(f"a {_WHAT} names a split twice", found=names)
    for name in names:
        check_split(name)
    split, prefix, rest = columns["split"], columns.pop("prefix"), columns.pop("key_rest")
    for name, numbers, count in (("split", split, len(names)), ("prefix", prefix, len(prefixes))):
        if len(numbers) and int(numbers.max()) >= count:
            raise FormatError(
                f"column {name} of a {_WHAT} points past its names",
                expected=f"< {count}",
                found=numbers.max(),
            )
    odd = [each for each in prefixes if cut_key(each) != len(each)]
    if odd or any(character in bytes(rest.data) for character in (b"-", b"/")):
        raise FormatError(
            f"a {_WHAT} cuts a key elsewhere than behind its last hyphen or slash", found=odd[:1] or None
        )
    key = Texts(prefixes, prefix, rest.offsets, rest.data)
    return {**columns, "split": Texts(names, split), "key": key}


def check_table(table: ShardTable, limits: Limits) -> None:
    """Check what holds within a list; what spans lists is the manifest's."""
    most = min(limits.shards, limits.items)  # more than that would be many lists
    if len(table) > most:
        raise FormatError(
            f"a {_WHAT} holds more than it may",
            expected=f"at most {most} shards",
            found=len(table),
            advice="store several lists, or raise `shards` or `items` of the limits if you trust it",
        )
    _check_keys(table)
    _check_sidecar_names(table)
    for rule, expected, found in _violations(table, limits):
        raise FormatError(f"a {_WHAT} breaks a rule of the format: {rule}", expected=expected, found=found)


def _violations(table: ShardTable, limits: Limits) -> Iterator[tuple[str, object, object]]:
    """Yield (rule, expected, found) for what is wrong, the cheapest first."""
    for name in ENUMS.keys() & COLUMNS.keys():
        unknown = {*np.flatnonzero(np.bincount(getattr(table, name))).tolist()} - {*ENUMS[name]}
        if unknown:
            yield f"its {name} is a known one", list(ENUMS[name]), sorted(unknown)
    if table.has_doubles():
        yield "a shard is there once", f"{len(table)} shards", "fewer"
    for rule, most, found in (
        ("rows of a shard are fewer than 2^32", (1 << 32) - 1, table.max("rows")),
        ("rows are within the limit", limits.rows, table.sum("rows")),
        ("the head of an index is within the limit", limits.index, table.max("index_head_bytes")),
    ):
        if found > most:
            yield rule, most, found
    if table.holds("deletion_key") or table.max("deleted_rows"):
        if (table.deleted_rows > table.rows).any():
            yield "deleted rows are rows", "at most the rows", "more"
        named = np.array([bool(key) for key in table.deletion_key], bool)
        if ((table.deleted_rows > 0) != named).any():
            yield "deleted rows are exactly where a sidecar is", "both", "one alone"


def _check_keys(table: ShardTable) -> None:
    if all(_are_plain(part["key"]) for part in table.parts):
        return
    for key, is_own, etag in zip(table.key, table.root == 0, table.etag, strict=True):
        # Shards that were adopted in place are under root 0 and keep the names that others gave them.
        check_key(key) if is_own and not etag else check_foreign_key(key)


def _are_plain(keys: Texts) -> bool:
    """Tell whether all keys are surely such as shardio gives, and anything may have."""
    sizes = np.diff(keys.starts)
    if not len(sizes):
        return True
    data = bytes(keys.data)
    first = np.frombuffer(data + b".", np.uint8)[keys.starts[:-1]]
    # What follows a prefix has no slash and no hyphen: it belongs to the last component.
    if not is_plain_rest(data) or not sizes.min() or ((first == ord(".")) | (first == ord("="))).any():
        return False
    longest = "x" * int(sizes.max())
    return all(is_key(name + longest) for name in keys.names)


def _check_sidecar_names(table: ShardTable) -> None:
    checks = {"index_key": check_foreign_key, "deletion_key": check_key, "table_key": _check_table_key}
    for name, check in checks.items():
        for key in filter(None, getattr(table, name) if table.holds(name) else ()):
            check(key)


def _check_table_key(key: str) -> str:
    if table_address_of(key) is None:
        raise FormatError(f"a {_WHAT} names a table by no name of a table", found=key[:200])
    return key
