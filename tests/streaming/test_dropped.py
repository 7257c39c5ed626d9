"""Records that a transform leaves out of their batches: `drop_none=True`."""

from __future__ import annotations

import numpy as np
import pytest

import shardio
from tests.streaming.datasets import flat, plan, write
from tests.suites.errors import refused

pytestmark = pytest.mark.filterwarnings("ignore:some chunks are fetched more than once:UserWarning")
THREADS = pytest.mark.parametrize("threads", [0, 2])


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dropped") / "d", [70, 30])


def thirds(value):
    return None if value["n"] % 3 else {"n": value["n"], "x": np.full(2, value["n"], np.float32)}


def lottery(value, rng):
    return {"n": value["n"]} if rng.random() < 0.4 else None


def make(url, rank=0, world_size=1, **options):
    given = {"global_batch": 6, "plan": plan(), "remainder": "keep", "seed": 4, "positions": True, **options}
    return shardio.stream(shardio.open(url), rank=rank, world_size=world_size, **given)


def keep(value, rng):
    return {"n": value["n"]}


@THREADS
@pytest.mark.parametrize("function", ["transform", "random_transform"])
def test_batches_get_shorter_and_nothing_else_changes(url, threads, function):
    """Steps of all ranks, their records and their order stay; columns beside the records follow."""
    whole = [
        [batch["n"].tolist() for batch in make(url, rank, 3, random_transform=keep)] for rank in range(3)
    ]
    given = {"transform": thirds} if function == "transform" else {"random_transform": lottery}
    alone = {n for batch in make(url, **given, drop_none=True) for n in batch["n"].tolist()}
    assert 0 < len(alone) < 60
    if function == "transform":
        assert alone == set(range(0, 100, 3))
    empty = 0
    for rank in range(3):
        stream = make(url, rank, 3, num_threads=threads, drop_none=True, **given)
        batches = list(stream)
        assert len(batches) == len(stream) == 17
        assert [batch["n"].tolist() for batch in batches] == [
            [n for n in own if n in alone] for own in whole[rank]
        ]
        for batch in batches:
            assert batch["_position"].tolist() == batch["n"].tolist()
            assert {name: column.dtype for name, column in batch.items()} == {
                name: column.dtype for name, column in batches[0].items()
            }
            assert {column.shape[1:] for column in batch.values()} == {
                c.shape[1:] for c in batches[0].values()
            }
            empty += not len(batch["n"])
        figures = stream.stats.epoch
        assert figures.records == sum(map(len, (batch["n"] for batch in batches)))
        assert figures.records_dropped == len(flat(whole[rank])) - figures.records
    assert empty, "some rank had an empty step, which looks like any other"


def test_a_resume_on_other_ranks_drops_the_same(url):
    stream = make(url, random_transform=lottery, drop_none=True)
    expected = [batch["n"].tolist() for batch in stream]
    stream = make(url, random_transform=lottery, drop_none=True)
    batches = iter(stream)
    assert [next(batches)["n"].tolist() for _ in range(5)] == expected[:5]
    shares = []
    for rank in range(2):
        other = make(url, rank, 2, random_transform=lottery, drop_none=True)
        other.load_state_dict(stream.state_dict())
        shares.append([batch["n"].tolist() for batch in other])
    assert [first + second for first, second in zip(*shares, strict=True)] == expected[5:]


def test_padded_rows_are_dropped_like_others(url):
    stream = make(url, transform=thirds, drop_none=True, remainder="pad", valid=True)
    last = list(stream)[-1]
    assert len(last["_valid"]) == len(last["n"]) == len(last["_position"])


def nothing(value):
    return None


def test_an_epoch_of_which_nothing_is_left_says_so(url):
    with pytest.raises(TypeError, match=r"its columns are unknown, .* ds\.filter"):
        list(make(url, transform=nothing, drop_none=True))


def test_it_is_asked_for(url):
    with refused(TypeError, "drop_none="):
        list(make(url, transform=thirds))
    with refused(ValueError, "drop_none="):
        make(url, drop_none=True)
