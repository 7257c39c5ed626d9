"""Small shards of many tasks become few large ones, before they are committed.

How many bytes a function yields is known when it has run, and tasks are cut before.  So where tasks leave
shards that are much smaller than `shard_bytes`, their records are copied, in the same order, into shards of
that size, by the same workers; only those are committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardio.reader import ReadOptions, RecordSequence, ShardSource
from shardio.storage import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardio.metadata import ShardTable

# Shards of a quarter of what was asked for are left as they are: copying them would cost more than it gains.
_SMALL = 4


class ShardRun(NamedTuple):
    """Shards of one split that become one: of a split, in their order."""

    split: str
    shards: ShardTable


def gathered(table: ShardTable, shard_bytes: int) -> list[ShardRun] | None:
    """Return the runs of shards that are to become one each, or None where they stay as they are.

    Args:
        table: of all tasks, in their order.
        shard_bytes: of a shard that is large enough.
    """
    if len(table) < 2 or int(table.stored_bytes.sum()) * _SMALL >= shard_bytes * len(table):
        return None
    runs = []
    for split in sorted(table.totals()):
        shards = table.of_split(split)
        sizes = shards.stored_bytes.tolist()
        first = held = 0
        for number, size in enumerate([*sizes, shard_bytes]):
            if held and held + size > shard_bytes:
                runs.append(ShardRun(split, shards.take(np.arange(first, number))))
                first, held = number, 0
            held += size
    return runs if len(runs) < len(table) else None


class StoredPayloads:
    """Yields the payloads of shards that are stored and not committed yet."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self._url = url
        self._storage_options = storage_options

    def __call__(self, run: ShardRun) -> Iterator[tuple[str, bytes]]:
        options = ReadOptions(storage_options=self._storage_options, decode=False)
        store = connect(self._url, storage_options=self._storage_options)
        source = ShardSource(self._url, run.shards, {0: store}, options, None)
        return ((run.split, payload) for payload in RecordSequence(source))
