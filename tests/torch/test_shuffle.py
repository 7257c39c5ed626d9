"""The full shuffle: every position once, in O(1) memory, with a state that other ranks can take."""

from __future__ import annotations

import json

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import shardio
from shardio.errors import ResumeError
from shardio.order import Permutation
from shardio.torch import FullShuffle, MapDataset
from tests.streaming.datasets import memory_url, write
from tests.suites.errors import refused


@pytest.mark.parametrize("rows", [0, 1, 7, 5000, 10_000])
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_every_position_once(rows, world_size):
    for drop_last in (True, False):
        samplers = [
            FullShuffle(rows, seed=2, rank=rank, world_size=world_size, drop_last=drop_last)
            for rank in range(world_size)
        ]
        shares = [list(sampler) for sampler in samplers]
        assert [len(share) for share in shares] == [len(sampler) for sampler in samplers]
        assert len({len(share) for share in shares}) == 1
        positions = [position for share in shares for position in share]
        if drop_last:
            assert len(positions) == rows // world_size * world_size
            assert len(set(positions)) == len(positions)
        else:
            assert set(positions) == set(range(rows))
            assert len(positions) - rows < world_size


def test_it_is_the_permutation_and_depends_on_seed_and_epoch():
    sampler = FullShuffle(9000, seed=3, epoch=1)
    first = list(sampler)
    assert first == Permutation(9000, 3, epoch=1)[range(9000)].tolist()
    assert list(sampler) == first
    sampler.set_epoch(2)
    assert list(sampler) != first
    assert list(FullShuffle(9000, seed=4, epoch=1)) != first


@pytest.mark.parametrize("taken", [0, 1, 4095, 4096, 5000])
@pytest.mark.parametrize("others", [1, 2, 3])
def test_resume_on_another_number_of_ranks(taken, others):
    samplers = [FullShuffle(12_000, seed=1, rank=rank, world_size=2) for rank in range(2)]
    seen = []
    for sampler in samplers:
        it = iter(sampler)
        seen += [next(it) for _ in range(taken)]
    state = json.loads(json.dumps(samplers[1].state_dict()))
    for rank in range(others):
        sampler = FullShuffle(12_000, seed=1, rank=rank, world_size=others)
        sampler.load_state_dict(state)
        sampler.set_epoch(0)
        left = (12_000 - 2 * taken) // others
        assert len(sampler) == 12_000 // others, "trainers count the steps of a whole epoch"
        assert sampler.remaining == left
        rest = list(sampler)
        assert len(rest) == left
        seen += rest
        assert len(list(sampler)) == 12_000 // others, "the next pass is whole"
    assert len(set(seen)) == len(seen) > 12_000 - others


def test_states_that_do_not_belong():
    sampler = FullShuffle(100, seed=1)
    state = sampler.state_dict()
    for name, wrong in (("rows", 99), ("seed", 2), ("full_shuffle", 2)):
        with pytest.raises(ResumeError, match=name):
            sampler.load_state_dict({**state, name: wrong})
    for name, damage in (("taken", 101), ("taken", "x"), ("taken", True), ("epoch", -1)):
        with pytest.raises(ResumeError):
            sampler.load_state_dict({**state, name: damage})
    for damaged in (None, [], {}):
        with pytest.raises(ResumeError):
            sampler.load_state_dict(damaged)
    with refused(ValueError, "rank="):
        FullShuffle(100, rank=3, world_size=3)
    with refused(ValueError, "seed"):
        FullShuffle(100, seed=-1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [1, 4])
def test_in_torchs_loader_and_resumed_in_torchdatas(workers, batches, tmp_path):
    data = MapDataset(shardio.open(write(tmp_path / "d", [90, 30])), transform=int_of)

    def loader(kind):
        return kind(data, sampler=FullShuffle(data, seed=5), batch_size=10, num_workers=workers)

    whole = [batch.tolist() for batch in loader(DataLoader)]
    assert sorted(n for batch in whole for n in batch) == list(range(120))
    one = loader(StatefulDataLoader)
    it = iter(one)
    head = [next(it).tolist() for _ in range(batches)]
    state = one.state_dict()
    del it
    two = loader(StatefulDataLoader)
    two.load_state_dict(state)
    assert head + [batch.tolist() for batch in two] == whole


def int_of(value):
    return int(value["n"])


def test_a_dataset_stands_for_its_length():
    ds = shardio.open(write(memory_url(), [13]))
    assert sorted(FullShuffle(ds)) == list(range(13))
