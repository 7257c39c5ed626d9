"""The laws that hold in any bucket: of a store, of commits, of streams. `python -m tests.cloud` runs them.

They know the place by SHARDIO_CLOUD_URL, and the credentials as any user of shardio gives them.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from pathlib import Path

import pytest

import shardio
from shardio.order import Plan
from shardio.storage import Store, connect
from tests.promises.appends import append_at_once, check_none_lost_or_doubled
from tests.promises.racing import check_overwriters, check_processes, check_racers
from tests.promises.stores import Dropping, faulty
from tests.streaming.datasets import flat, write
from tests.suites.store import StoreLaws


def fresh() -> str:
    return f"{os.environ['SHARDIO_CLOUD_URL']}/{uuid.uuid4().hex}"


class TestStoreWithFsspec(StoreLaws):
    processes = 2
    engine = "fsspec"

    @pytest.fixture
    def store(self) -> Store:
        return connect(fresh(), engine=self.engine)


class TestStoreWithObstore(TestStoreWithFsspec):
    engine = "obstore"
    start_method = None  # told once is enough
    fork_error = "forked after obstore was used"


def test_of_16_racers_for_one_version_one_wins() -> None:
    check_racers(fresh())


def test_of_overwriters_one_wins() -> None:
    check_overwriters(fresh())


@pytest.mark.parametrize("kills", [0, 2])
def test_appends_of_racing_and_killed_processes_are_whole(kills: int) -> None:
    check_processes(fresh(), kills, "spawn")


def test_no_commit_is_lost_or_doubled_when_replies_are() -> None:
    """Of ten creations three are lost on their way, or their replies: by this client, not by a proxy."""
    url = fresh()
    shardio.DatasetWriter(url).close()
    with faulty(Dropping(1)):
        known, in_doubt = append_at_once(url, rounds=2)
    check_none_lost_or_doubled(url, known, in_doubt)


def test_a_stream_that_ends_goes_on_in_another_shape(tmp_path: Path) -> None:
    url = write(fresh(), [60, 25, 40], compression="zstd")
    options = {"global_batch": 6, "plan": Plan(ranks=6, workers=1), "remainder": "keep", "seed": 3}
    seen: Counter[int] = Counter()
    state = None
    for world, steps in ((3, 5), (2, 7), (1, None)):
        streams = []
        for rank in range(world):
            cache = shardio.CacheOptions(tmp_path / f"{world}-{rank}", max_bytes=1 << 20)
            ds = shardio.open(url, cache=cache)
            stream = shardio.stream(ds, rank=rank, world_size=world, **options)
            if state is not None:
                stream.load_state_dict(state)
            batches = iter(stream)
            left = range(steps) if steps is not None else range(len(stream))
            taken = [batch["n"].tolist() for _, batch in zip(left, batches, strict=False)]
            seen.update(flat(taken))
            streams.append(stream)
        state = streams[0].state_dict()
    assert seen == Counter(range(125))


def test_what_was_deleted_and_collected_is_gone() -> None:
    url = write(fresh(), [30, 10])
    shardio.delete(url, positions=[1, 2, 35], split="train")
    shardio.compact(url, workers=1)
    shardio.gc(url, keep=1, dry_run=False)
    assert sorted(int(value["n"]) for value in shardio.open(url)) == sorted({*range(40)} - {1, 2, 35})
    assert shardio.verify(url).ok
