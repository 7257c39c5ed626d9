"""States: small, readable, sealed; and audits from them."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, replace

import pytest

from shardio.errors import ResumeError
from shardio.order import Mixture, Order, Source, audit
from tests.order.shapes import IDENTITY, mixed_order, order_of, sizes_of, small_plan

SIZES = sizes_of(50, 0, 31, 44)


def run_of(**options):
    return order_of(SIZES, global_batch=8, plan=small_plan(), **{"seed": 5, **options})


def changed_twice(order):
    schedule = order.schedule(2, 8)
    order, schedule, _ = order.resume(order.state(schedule, 2, 5), global_batch=4)
    order, schedule, _ = order.resume(order.state(schedule, 2, 9), global_batch=12)
    return order, schedule, order.state(schedule, 2, 10)


def test_a_state_is_small_plain_json():
    _, _, state = changed_twice(run_of())
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 800
    assert [entry["step"] for entry in state["batches"]] == [0, 5, 9]
    assert state["datasets"] == [{"uuid": "uuid-1", "version": 3, "fingerprint": "print-1", "split": "train"}]


def test_audit_needs_nothing_but_the_state_and_the_dataset():
    order, schedule, state = changed_twice(run_of(remainder="keep"))
    for step in range(schedule.stop):
        for rank in range(2):
            found = audit(json.loads(json.dumps(state)), order.sources, step, rank=rank, world_size=2)
            wanted = schedule.batch(step, rank=rank, world_size=2)
            assert found.positions.tolist() == wanted.positions.tolist()
    with pytest.raises(IndexError):
        audit(state, order.sources, schedule.stop)


def test_a_resume_uses_the_plan_of_the_state_never_defaults():
    order = run_of()
    state = order.state(order.schedule(0, 8), 0, 3)
    fresh = order_of(SIZES, global_batch=6, seed=5)
    resumed, schedule, epoch = fresh.resume(state)
    assert (resumed.plans, schedule.global_batch, schedule.step, epoch) == (order.plans, 8, 3, 0)
    assert len(schedule) == len(order.schedule(0, 8)) - 3


def test_an_epoch_that_ended_stays_ended():
    order = run_of()
    schedule = order.schedule(0, 8)
    _, ended, _ = order.resume(order.state(schedule, 0, schedule.stop), global_batch=2)
    assert len(ended) == 0


@pytest.mark.parametrize("change", ["uuid", "fingerprint", "split", "selection"])
@pytest.mark.parametrize("joined", [False, True])
def test_another_dataset_is_refused_and_named(change, joined):
    """The message has what differs of both, and the version to open."""
    known = replace(IDENTITY, url="s3://b/x")
    other = replace(known, **{change: "another"})
    if joined:
        known, other = replace(known, joined=(known,)), replace(known, joined=(other,))
    order = replace(run_of(), sources=(Source(SIZES, known),))
    state = order.state(order.schedule(0, 8), 0, 3)
    other = replace(order, sources=(Source(SIZES, other),))
    for refusing in (other.resume, lambda state: audit(state, other.sources, 0)):
        with pytest.raises(ResumeError) as caught:
            refusing(state)
        assert "s3://b/x" in caught.value.expected
        assert "another" not in caught.value.expected
        assert f"({change} another)" in caught.value.found


@pytest.mark.parametrize("change", [{"version": 9}, {"url": "s3://b/x"}, {"url": "/copy/birds"}])
def test_a_copy_or_a_version_of_the_same_shards_will_do(change):
    order = run_of()
    other = replace(order, sources=(Source(SIZES, replace(IDENTITY, **change)),))
    for writing, reading in ((order, other), (other, order)):
        assert reading.resume(writing.state(writing.schedule(0, 8), 0, 3))[1].step == 3


@pytest.mark.parametrize("options", [{"seed": 6}, {"shuffle": False}, {"remainder": "pad"}])
def test_another_seed_shuffle_or_remainder_is_refused(options):
    order = run_of()
    (name,) = options
    with pytest.raises(ResumeError) as caught:
        run_of(**options).resume(order.state(order.schedule(0, 8), 0, 3))
    assert (caught.value.expected, caught.value.found) == (getattr(order, name), options[name])


def test_another_plan_or_mixture_is_refused():
    order = run_of()
    state = order.state(order.schedule(0, 8), 0, 3)
    with pytest.raises(ResumeError):
        order_of(SIZES, global_batch=8, plan=small_plan(chunk_rows=5), seed=5).resume(state)
    mixed = mixed_order([SIZES, SIZES], Mixture((1, 2)), global_batch=8, plan=small_plan())
    with pytest.raises(ResumeError):
        mixed.resume(state)
    state = mixed.state(mixed.schedule(0, 8), 0, 2)
    with pytest.raises(ResumeError):
        replace(mixed, mixture=Mixture((2, 1))).resume(state)


@pytest.mark.parametrize(("batch", "near"), [(5, "use 4 or 6"), (1, "use 2"), (0, "at least 1")])
def test_a_batch_that_does_not_fit_names_the_nearest(batch, near):
    """G must be a multiple of C; any other is a `ValueError` (or `ResumeError`) that names the nearest."""
    order = run_of()
    with pytest.raises(ResumeError, match=near):
        order.resume(order.state(order.schedule(0, 8), 0, 3), global_batch=batch)
    with pytest.raises(ValueError, match=near):
        order.schedule(0, batch)


def paths(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from paths(inner, (*at, name))


def test_a_state_that_was_edited_or_cut_is_refused():
    order, _, state = changed_twice(run_of())
    for path in list(paths(state))[1:]:
        for wrong in (None, 1.5, 7, -1, 2**70, "x", b"x", [], {}, object(), KeyError):
            made = copy.deepcopy(state)
            inner = made
            for name in path[:-1]:
                inner = inner[name]
            if wrong is KeyError:
                del inner[path[-1]]
            elif inner[path[-1]] == wrong:
                continue
            else:
                inner[path[-1]] = wrong
            with pytest.raises(ResumeError):
                run_of().resume(made)
    for wrong in (None, [], "x", 7, {}, {**state, "more": 1}):
        with pytest.raises(ResumeError):
            run_of().resume(wrong)
    assert run_of().resume(state)[1].changes == order.resume(state)[1].changes


def test_a_step_outside_its_epoch_is_refused():
    order = run_of()
    schedule = order.schedule(0, 8)
    with pytest.raises(ResumeError):
        order.resume(order.state(schedule, 0, schedule.stop + 1))


class Backwards(Order):
    """An order of somebody else's: the lanes of an epoch are those of another one."""

    def lanes(self, epoch, global_batch):
        return super().lanes(1000 - epoch, global_batch)


def test_an_order_of_another_class_stays_one_through_a_resume():
    plain = order_of(sizes_of(40, 30), global_batch=8, plan=small_plan())
    order = Backwards(*(getattr(plain, field.name) for field in fields(Order)))
    schedule = order.schedule(3, 8)
    resumed, later, epoch = order.resume(order.state(schedule, 3, 5))
    assert (type(resumed), epoch) == (Backwards, 3)
    assert later.batch(5).positions.tolist() == order.schedule(3, 8).batch(5).positions.tolist()
    assert later.batch(5).positions.tolist() == plain.schedule(997, 8).batch(5).positions.tolist()
