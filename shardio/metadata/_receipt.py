"""Receipts of tasks, and the digest by which a merged session is recognised.

A receipt says that the shards of one attempt of one task are safely stored.  Attempts never share a name, so
a rerun replaces nothing; a commit takes one complete attempt of every task.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardio.errors import FormatError
from shardio.format import DEFAULT_LIMITS, Limits
from shardio.metadata._list import check_table, pack_table, parse_table
from shardio.metadata._manifest import METADATA, decode_metadata
from shardio.metadata._schema import Schema
from shardio.metadata._sealed import reading, seal_message, unseal_message
from shardio.metadata._table import ShardTable
from shardio.metadata._wire import FORMAT_VERSION, MessageLayout, StoredField
from shardio.metadata.naming import check_session, check_split
from shardio.v1 import manifest_pb2 as pb

_WHAT = "receipt"


@dataclass(frozen=True)
class SplitReceipt:
    """Rows of one split, and the CRC-32C over the decoded bytes of its shards one after another."""

    rows: int
    frames_crc32c: int


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one attempt of one task has stored.

    Attributes:
        session, task, attempt: whose receipt it is.
        complete: whether the task ended; False for receipts left shard by shard.
        table: its shards, in order.
        splits: by name; a split without rows is absent.
        schema, metadata: what the writer was given.
        mode: "create", "append" or "overwrite".
        base_version, base_sha256: the latest version when the task began, and the SHA-256 of its manifest (32
            bytes, or empty where it is not known); 0 for no dataset.
        sequence, previous: of an incomplete receipt, the number of its one shard and the attempt that stored
            the shard before; its `splits` count all shards up to this one.
        items_sha256: what tells the items of this task from others, 32 bytes; empty where it is not said.
    """

    session: str
    task: int
    attempt: str
    complete: bool
    table: ShardTable
    splits: Mapping[str, SplitReceipt]
    schema: Schema | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "create"
    base_version: int = 0
    sequence: int = 0
    previous: str = ""
    items_sha256: bytes = b""
    base_sha256: bytes = b""

    def seal(self, *, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """Return its sealed bytes.

        Raises:
            FormatError, UnsafeNameError: over a limit, or holds what no commit would take.
        """
        message = _RECEIPT.write(self, format_version=FORMAT_VERSION)
        check_table(self.table, limits)
        advice = "write larger shards (shard_bytes=), or give the records to more tasks"
        return seal_message(message, what=_WHAT, limits=limits, advice=advice)[0]

    @classmethod
    def parse(cls, data: bytes, *, url: str | None = None, limits: Limits = DEFAULT_LIMITS) -> Receipt:
        """Return the receipt that sealed bytes hold, checked.

        Raises:
            FormatError, UnsupportedVersionError, UnsafeNameError: damaged, newer or hostile.
        """
        message, _ = unseal_message(pb.Receipt, data, what=_WHAT, url=url, limits=limits)
        with reading(_WHAT, url):
            table = parse_table(message.shards, limits=limits)
            schema = Schema.from_message(message.schema) if message.HasField("schema") else None
            metadata = decode_metadata(message.metadata_json, limits=limits)
            receipt = _RECEIPT.read(message, table=table, schema=schema, metadata=metadata)
        rows: dict[str, int] = {}
        for split, count in zip(table.split, table.rows.tolist(), strict=True):
            rows[split] = rows.get(split, 0) + count
        counted = {name: part.rows for name, part in receipt.splits.items()}
        if (rows != counted) if receipt.complete else not rows.keys() <= counted.keys():
            raise FormatError("a receipt counts other rows than its shards hold", url=url, expected=rows)
        return receipt


_RECEIPT = MessageLayout(
    Receipt,
    pb.Receipt,
    session=StoredField("", check_session),
    table=StoredField("shards", None, pack_table),
    splits=StoredField(
        "",
        lambda given: {check_split(i.name): SplitReceipt(i.rows, i.frames_crc32c) for i in given},
        lambda given: [pb.SplitReceipt(name=name, **vars(part)) for name, part in sorted(given.items())],
    ),
    schema=StoredField("", None, lambda given: given.to_message() if given is not None else None),
    metadata=METADATA,
)


def session_digest(tasks: Iterable[tuple[int, Mapping[str, SplitReceipt]]]) -> bytes:
    """Return the SHA-256 (32 bytes) over the content of a session, whatever its shards are called.

    Of each task in ascending order, of each split with rows by name: u64 task, u16 length of the name, the
    name, u64 rows, u32 CRC-32C over the decoded bytes.
    """
    digest = hashlib.sha256()
    for task, splits in sorted(tasks, key=lambda item: item[0]):
        for name, part in sorted(splits.items()):
            encoded = name.encode()
            digest.update(struct.pack("<QH", task, len(encoded)) + encoded)
            digest.update(struct.pack("<QI", part.rows, part.frames_crc32c))
    return digest.digest()
