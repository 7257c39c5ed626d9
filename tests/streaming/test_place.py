"""Where a stream is: epochs, early ends, states, lengths, copies."""

from __future__ import annotations

import json
import pickle
import threading

import pytest

import shardio
from shardio import callers
from shardio.errors import ResumeError
from tests.streaming.datasets import edited, flat, memory_url, numbers, plan, write
from tests.suites.errors import refused


@pytest.fixture(scope="module")
def ds():
    return shardio.open(write(memory_url(), [40, 3, 57]))


def make(ds, **options):
    return shardio.stream(ds, **{"global_batch": 8, "plan": plan(), "remainder": "keep", **options})


def test_epochs_follow_each_other_and_each_is_whole(ds):
    stream = make(ds)
    first, second = numbers(stream), numbers(stream)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(100))
    assert first != second
    assert stream.epoch == 1
    assert second == numbers(make(ds, epoch=1))


def test_an_epoch_that_was_left_early_begins_again(ds):
    stream = make(ds)
    left = iter(stream)
    head = [next(left)["n"].tolist() for _ in range(3)]
    left.close()
    assert stream.epoch == 0
    assert numbers(stream)[:3] == head


def test_set_epoch_goes_to_the_beginning_of_that_epoch(ds):
    stream = make(ds)
    third = numbers(make(ds, epoch=3))
    stream.set_epoch(3)
    assert numbers(stream) == third
    stream.set_epoch(3)
    assert numbers(stream) == third, "the same epoch once more, after it had ended"
    left = iter(stream)
    next(left)
    left.close()
    stream.set_epoch(3)
    assert numbers(stream) == third, "and after it had been left early"


def test_the_usual_loop_with_set_epoch_keeps_a_state_that_was_loaded(ds):
    one = make(ds, epoch=2)
    it = iter(one)
    head = [next(it)["n"].tolist() for _ in range(5)]
    state = one.state_dict()
    other = make(ds)
    other.load_state_dict(state)
    other.set_epoch(other.epoch)
    assert head + numbers(other) == numbers(make(ds, epoch=2))


def test_a_state_counts_what_was_delivered(ds):
    stream = make(ds)
    steps = [stream.state_dict()["step"]]
    steps += [stream.state_dict()["step"] for _ in stream]
    assert steps == list(range(14))
    assert stream.state_dict()["step"] == 13


def test_an_epoch_that_ended_stays_ended(ds):
    stream = make(ds)
    list(stream)
    state = json.loads(json.dumps(stream.state_dict()))
    other = make(ds)
    other.load_state_dict(state)
    assert len(other) == 13
    assert other.remaining == 0
    with pytest.warns(UserWarning, match=r"end of epoch 0: .* no batches, the next one is epoch 1") as caught:
        assert numbers(other) == []
    assert caught[0].filename == numbers.__code__.co_filename
    assert numbers(other) == numbers(make(ds, epoch=1))
    other.load_state_dict(state)
    other.set_epoch(1)
    assert numbers(other) == numbers(make(ds, epoch=1))


def test_a_thread_without_a_line_of_the_callers_names_none(recwarn):
    """Such as one that fetches ahead and finds the disk of its scratch full."""
    thread = threading.Thread(target=callers.warn, args=("the disk is full",))
    thread.start()
    thread.join()
    assert [(each.filename, str(each.message)) for each in recwarn] == [("shardio", "the disk is full")]


def test_len_is_that_of_the_epoch_and_remaining_is_what_is_left(ds):
    stream = make(ds)
    assert len(stream) == 13
    it = iter(stream)
    for _ in range(4):
        next(it)
    assert len(stream) == 13
    other = make(ds)
    other.load_state_dict(stream.state_dict())
    assert stream.remaining == 9
    assert len(other) == 13
    assert other.remaining == 9
    assert len(numbers(other)) == 9
    assert other.remaining == 0
    assert len(other) == len(numbers(other)) == 13


def test_of_two_passes_over_one_stream_the_later_one_counts(ds):
    stream = make(ds)
    old = iter(stream)
    heads = [next(old)["n"].tolist() for _ in range(3)]
    new = iter(stream)
    assert next(new)["n"].tolist() == heads[0]
    assert next(old)["n"].tolist() not in heads
    assert stream.state_dict()["step"] == 1
    list(old)
    assert stream.state_dict()["step"] == 1
    assert stream.epoch == 0
    assert len(list(new)) == 12


def test_loading_a_state_ends_the_count_of_the_pass_under_way(ds):
    stream = make(ds)
    state = stream.state_dict()
    it = iter(stream)
    next(it), next(it)
    stream.load_state_dict(state)
    next(it)
    assert stream.state_dict()["step"] == 0


def test_a_copy_is_an_address_of_constant_size():
    sizes = []
    for shards in ([20, 20], [1] * 60):
        stream = make(shardio.open(write(memory_url(), shards)))
        sizes.append(len(pickle.dumps(stream)))
    assert abs(sizes[0] - sizes[1]) < 16
    assert sizes[0] < 2500


def test_a_copy_stands_where_the_next_pass_would_begin(ds):
    stream = make(ds, epoch=1)
    assert numbers(pickle.loads(pickle.dumps(stream))) == numbers(make(ds, epoch=1))
    it = iter(stream)
    next(it), next(it)
    state = stream.state_dict()
    it.close()
    assert numbers(pickle.loads(pickle.dumps(stream))) == numbers(make(ds, epoch=1))
    stream.load_state_dict(state)
    assert len(numbers(pickle.loads(pickle.dumps(stream)))) == 11
    list(stream)
    assert numbers(pickle.loads(pickle.dumps(stream))) == numbers(make(ds, epoch=2))


def test_a_state_survives_an_append_elsewhere_and_names_a_change_here():
    url = memory_url()
    for mode, split in (("create", "train"), ("append", "eval")):
        with shardio.DatasetWriter(
            url, schema={"n": "int64"} if split == "train" else None, mode=mode
        ) as out:
            for n in range(20):
                out.write({"n": n}, split=split)
    stream = shardio.stream(shardio.open(url, split="train"), global_batch=4)
    state = stream.state_dict()
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write({"n": 1}, split="eval")
    shardio.stream(shardio.open(url, split="train"), global_batch=4).load_state_dict(state)
    with refused(ResumeError, "split"):
        shardio.stream(shardio.open(url, split="eval"), global_batch=4).load_state_dict(state)
    with shardio.DatasetWriter(url, mode="append") as out:
        out.write({"n": 1}, split="train")
    with pytest.raises(ResumeError):
        shardio.stream(shardio.open(url, split="train"), global_batch=4).load_state_dict(state)
    shardio.stream(shardio.open(url, split="train", version=2), global_batch=4).load_state_dict(state)


def test_deletions_and_slices_are_part_of_the_dataset_that_a_state_belongs_to(ds):
    state = make(ds).state_dict()
    for other in (edited(ds, deleted={0: [1]}), edited(ds, deleted={1: [1]}), ds[:99], ds[1:]):
        with refused(ResumeError, "fingerprint"):
            make(other).load_state_dict(state)


def test_a_refused_state_changes_nothing(ds):
    stream = make(ds)
    before = stream.state_dict()
    with pytest.raises(ResumeError):
        stream.load_state_dict({**before, "seed": 3})
    assert stream.state_dict() == before


def test_audit_finds_the_records_of_a_step_through_a_change_of_the_batch(ds):
    stream = make(ds, positions=True)
    it = iter(stream)
    batches = [next(it) for _ in range(4)]
    it.close()
    other = make(ds, global_batch=12, positions=True)
    other.load_state_dict(stream.state_dict())
    batches += list(other)
    state = other.state_dict()
    for step, batch in enumerate(batches):
        found = shardio.audit(ds, state, step)
        assert [record.position for record in found] == batch["_position"].tolist()
        for record in found[:2]:
            place = ds.locate(record.position)
            assert (record.shard, record.row, record.url) == (place.shard, place.row, place.url)
    half = shardio.audit(ds, state, 5, rank=1, world_size=2)
    assert half == shardio.audit(ds, state, 5)[6:]
    with pytest.raises(IndexError):
        shardio.audit(ds, state, len(batches))
