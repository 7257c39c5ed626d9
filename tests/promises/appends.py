"""Appends that race while replies are lost, and the law of what must be there afterwards."""

from __future__ import annotations

import concurrent.futures
from collections import Counter

import shardio
from shardio.errors import CommitOutcomeUnknownError, StorageError


def append_at_once(url: str, *, rounds: int, writers: int = 8) -> tuple[Counter[bytes], list[bytes]]:
    """Append three records a round from threads; return those acknowledged, and those in doubt."""

    def append(writer: int) -> tuple[list[bytes], list[bytes]]:
        sure, unsure = [], []
        for k in range(rounds):
            batch = [b"%d-%d-%d" % (writer, k, i) for i in range(3)]
            try:
                with shardio.DatasetWriter(url, mode="append", block_bytes=20, shard_bytes=40) as out:
                    for record in batch:
                        out.write(record)
                sure += batch
            except CommitOutcomeUnknownError:
                unsure += batch
            except StorageError:
                pass  # given up before the commit: nothing of it may be there
        return sure, unsure

    known: Counter[bytes] = Counter()
    in_doubt: list[bytes] = []
    with concurrent.futures.ThreadPoolExecutor(writers) as pool:
        for sure, unsure in pool.map(append, range(writers)):
            known.update(sure)
            in_doubt += unsure
    return known, in_doubt


def check_none_lost_or_doubled(url: str, known: Counter[bytes], in_doubt: list[bytes]) -> None:
    """Every acknowledged append is there once; one in doubt is there as a whole or not at all."""
    assert known, "every single append failed"
    found = Counter(shardio.open(url))
    assert max(found.values()) == 1, "something was applied twice"
    assert known - found == Counter(), "something acknowledged was lost"
    assert set(found - known) <= set(in_doubt), "something came from nowhere"
    batches = {record.rpartition(b"-")[0] for record in found}
    assert len(found) == 3 * len(batches)
    assert shardio.open(url).version == len(batches) + 1
