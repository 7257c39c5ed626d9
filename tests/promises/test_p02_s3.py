"""P2 on S3: an acknowledged commit is never lost and never applied twice."""

from __future__ import annotations

import concurrent.futures
import random
from collections import Counter

import pytest

import shardio
from shardio.errors import CommitOutcomeUnknownError
from tests.promises.places import fresh
from tests.servers.proxy import Exchange, proxy


class Losing:
    """Loses a share of the replies: none of it comes through, or some bytes; or the request is lost."""

    def __init__(self, seed: int, share: float = 0.3) -> None:
        self._random = random.Random(seed)
        self._share = share

    def __call__(self, exchange: Exchange, answered: bool) -> int | None:
        if not answered:
            return -1 if self._random.random() < self._share / 3 else None
        return self._random.choice([0, 1, 20, 150]) if self._random.random() < self._share else None


def test_no_commit_is_lost_or_doubled_when_replies_are(s3, tmp_path, monkeypatch, long):
    """P2: a proxy that drops 30 % of the replies; 8 writers x many appends; exact multiset of records."""
    url = fresh("s3", tmp_path)
    shardio.DatasetWriter(url).close()
    rounds = 20 if long else 2

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
        return sure, unsure

    known: Counter[bytes] = Counter()
    open_questions: list[bytes] = []
    with proxy(s3) as relay, concurrent.futures.ThreadPoolExecutor(8) as pool:
        relay.plan = Losing(seed=7)
        with monkeypatch.context() as through:
            through.setenv("AWS_ENDPOINT_URL", relay.url)
            for sure, unsure in pool.map(append, range(8)):
                known.update(sure)
                open_questions += unsure
        assert relay.lost > 50
    found = Counter(shardio.open(url))
    assert max(found.values()) == 1, "something was applied twice"
    assert known - found == Counter(), "something acknowledged was lost"
    assert set(found - known) <= set(open_questions), "something came from nowhere"
    batches = {record.rpartition(b"-")[0] for record in found}
    assert len(found) == 3 * len(batches)
    assert shardio.open(url).version == len(batches) + 1


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_reads_through_a_proxy_that_cuts_are_the_truth(s3, tmp_path, monkeypatch, engine):
    """P9: replies cut after any number of bytes are asked for again, never returned."""
    url = fresh("s3", tmp_path)
    records = [b"record %d " % k * 40 for k in range(300)]
    with shardio.DatasetWriter(url, shard_bytes=20_000, block_bytes=2_000) as out:
        for record in records:
            out.write(record)
    with proxy(s3) as relay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", relay.url)
        dice = random.Random(3)
        relay.plan = lambda _, answered: dice.randrange(3000) if answered and dice.random() < 0.2 else None
        ds = shardio.open(url, engine=engine)
        assert list(ds) == records
        for seed in range(3):
            wanted = random.Random(seed).choices(range(300), k=60)
            assert ds.read(wanted) == [records[k] for k in wanted]
        assert relay.lost > 5
