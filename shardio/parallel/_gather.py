"""Small shards of many tasks become few large ones, before they are committed.

How many bytes a function yields is known when it has run, and tasks are cut before.  So where tasks leave
shards that are much smaller than `shard_bytes`, their records are copied, in the same order, into shards of
that size, by the same workers; only those are committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio.reader import ReadOptions, RecordSequence, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardio.metadata import ShardTable

# Shards of a quarter of what was asked for are left as they are: copying them would cost more than it gains.
_SMALL = 4


def gathered(url: str, table: ShardTable, options: ReadOptions, shard_bytes: int) -> list[Slice] | None:
    """Return the shards that are to become one each, or None where they stay as they are.

    Args:
        url: of the dataset.
        table: of all tasks, in their order.
        options: how they are read.
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
                runs.append(Slice(url, shards.take(np.arange(first, number)), options))
                first, held = number, 0
            held += size
    return runs if len(runs) < len(table) else None


def stored_payloads(part: Slice) -> Iterator[tuple[str, bytes]]:
    """Yield split and payload of each record of shards that are stored and not committed yet."""
    return ((part.entry.split, payload) for payload in RecordSequence(part.open()))
