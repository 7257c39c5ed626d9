"""States: small, readable, checked; and audits from them."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings, strategies as st

from shardio.errors import ResumeError
from shardio.order import Mixture, Order, Source, audit
from tests.order.shapes import IDENTITY, mixed_order, order_of, sizes_of, small_plan
from tests.suites.errors import refused

SIZES = sizes_of(50, 0, 31, 44)


def run_of(**options):
    return order_of(SIZES, global_batch=8, plan=small_plan(), **{"seed": 5, **options})


def changed_twice(order):
    schedule = order.schedule(2, 8)
    order, schedule, _ = order.resume(order.state(schedule, 2, 5), global_batch=4)
    order, schedule, _ = order.resume(order.state(schedule, 2, 9), global_batch=12)
    return order, schedule, order.state(schedule, 2, 10)


def test_a_state_is_small_plain_json():
    """State, in clear and JSON."""
    _, _, state = changed_twice(run_of())
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 1200
    assert [entry["step"] for entry in state["batches"]] == [0, 5, 9]
    assert state["datasets"] == [{"uuid": "uuid-1", "version": 3, "fingerprint": "print-1", "split": "train"}]


def test_audit_needs_nothing_but_the_state_and_the_dataset():
    """`audit` needs nothing but the state and the dataset."""
    order, schedule, state = changed_twice(run_of(remainder="keep"))
    for step in range(schedule.stop):
        for rank in range(2):
            found = audit(json.loads(json.dumps(state)), order.sources, step, rank=rank, world_size=2)
            assert (
                found.positions.tolist() == schedule.batch(step, rank=rank, world_size=2).positions.tolist()
            )
    with pytest.raises(IndexError):
        audit(state, order.sources, schedule.stop)


def test_a_resume_uses_the_plan_of_the_state_never_defaults():
    """A resume uses the state's plan, never defaults."""
    order = run_of()
    state = order.state(order.schedule(0, 8), 0, 3)
    fresh = order_of(SIZES, global_batch=6, seed=5)
    resumed, schedule, epoch = fresh.resume(state)
    assert (resumed.plans, schedule.global_batch, schedule.step, epoch) == (order.plans, 8, 3, 0)


def test_len_is_what_remains():
    """After `load_state_dict`, `len` is the steps that remain."""
    order = run_of()
    schedule = order.schedule(0, 8)
    assert len(order.resume(order.state(schedule, 0, 6))[1]) == len(schedule) - 6


def test_an_epoch_that_ended_stays_ended():
    order = run_of()
    schedule = order.schedule(0, 8)
    _, ended, _ = order.resume(order.state(schedule, 0, schedule.stop), global_batch=2)
    assert len(ended) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"uuid": "other", "url": "s3://b/y"},
            (
                r"the dataset is not that of the state: expected version 3 of s3://b/x, split 'train', found "
                "version 3 of s3://b/y, split 'train'; open version 3 of s3://b/x, split 'train'$"
            ),
        ),
        (
            {"uuid": "other"},
            (
                "the dataset is not that of the state: expected version 3 of s3://b/x, split 'train' "
                r"\(uuid uuid-1\), found version 3 of s3://b/x, split 'train' \(uuid other\); open version 3"
            ),
        ),
        (
            {"fingerprint": "other", "version": 4},
            (
                "the shards of the dataset are not those of the state: expected version 3 of s3://b/x, split "
                "'train', found version 4 of s3://b/x, split 'train'; open version 3 of s3://b/x"
            ),
        ),
        (
            {"fingerprint": "other"},
            r"expected version 3 of s3://b/x, split 'train' \(fingerprint print-1\), found .*other\)",
        ),
        (
            {"split": "test"},
            "the split of the dataset is not that of the state: expected .*'train', found .*'test'; open",
        ),
        (
            {"selection": "ab"},
            r"another selection .*\(selection none\), found .*\(selection ab\); give the same filter",
        ),
    ],
)
def test_what_differs_is_named_with_the_version_to_open(change, message):
    """What differs is named in `ResumeError`, with the version to open."""
    order = run_of()
    known = replace(IDENTITY, url="s3://b/x")
    order = replace(order, sources=(Source(SIZES, known),))
    state = order.state(order.schedule(0, 8), 0, 3)
    other = replace(order, sources=(Source(SIZES, replace(known, **change)),))
    with pytest.raises(ResumeError, match=message):
        other.resume(state)
    with pytest.raises(ResumeError, match=message):
        audit(state, other.sources, 0)


def test_a_copy_elsewhere_is_the_same_dataset():
    """The URL in a state is for messages; states of before it was there, and of other places, are read."""
    order = run_of()
    state = order.state(order.schedule(0, 8), 0, 3)
    assert "url" not in state["datasets"][0]
    for url in ("s3://b/x", "/copy/birds"):
        other = replace(order, sources=(Source(SIZES, replace(IDENTITY, url=url)),))
        assert other.resume(state)[1].step == 3
        state = other.state(other.schedule(0, 8), 0, 3)
        assert state["datasets"][0]["url"] == url
    assert order.resume(state)[1].step == 3
    with refused(ResumeError, "'url'"):
        order.resume({**state, "datasets": [{**state["datasets"][0], "url": 3}]})


def test_another_version_with_the_same_shards_will_do():
    order = run_of()
    state = order.state(order.schedule(0, 8), 0, 3)
    other = replace(order, sources=(Source(SIZES, replace(IDENTITY, version=9)),))
    assert other.resume(state)[1].step == 3


@pytest.mark.parametrize(
    "options",
    [{"seed": 6}, {"shuffle": False}, {"remainder": "pad"}],
)
def test_another_seed_shuffle_or_remainder_is_refused(options):
    order = run_of()
    state = order.state(order.schedule(0, 8), 0, 3)
    (name,) = options
    with pytest.raises(ResumeError, match=f"{name} differs from the state's: expected"):
        run_of(**options).resume(state)


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


@pytest.mark.parametrize(("batch", "near"), [(5, "use 4 or 6"), (1, "use 2"), (0, "use 2")])
def test_a_batch_that_does_not_fit_names_the_nearest(batch, near):
    """G must be a multiple of C; any other is a `ValueError` (or `ResumeError`) that names the nearest."""
    order = run_of()
    with pytest.raises(ResumeError, match=near):
        order.resume(order.state(order.schedule(0, 8), 0, 3), global_batch=batch)
    if batch:
        with pytest.raises(ValueError, match=near):
            order.schedule(0, batch)


def paths(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from paths(inner, (*at, name))


def edited(state, path, edit):
    made = copy.deepcopy(state)
    inner = made
    for name in path[:-1]:
        inner = inner[name]
    edit(inner, path[-1])
    return made


def test_a_cut_state_is_refused_with_the_name_of_what_is_missing():
    _, _, state = changed_twice(run_of())
    for path in list(paths(state))[1:]:
        if isinstance(path[-1], str):
            with pytest.raises(ResumeError, match=f"no field '{path[-1]}'"):
                run_of().resume(edited(state, path, lambda inner, name: inner.pop(name)))
    for wrong in (None, [], "x", 7, {}):
        with pytest.raises(ResumeError):
            run_of().resume(wrong)


def test_a_state_of_wrong_types_is_refused():
    _, _, state = changed_twice(run_of())
    for path in list(paths(state))[1:]:
        if path == ("mixture",) or path[-1] == "tail":
            continue
        for wrong in (None, 1.5, b"x", object()):
            with pytest.raises(ResumeError):
                run_of().resume(edited(state, path, lambda inner, name, w=wrong: inner.__setitem__(name, w)))


@settings(max_examples=max(50, settings().max_examples // 5), deadline=None)
@given(st.data())
def test_an_edited_number_is_noticed_or_harmless(data):
    """Any change of a number of the entries is refused; places follow from steps and batches.

    But for the last batch: with another one the state is that of another run, and as good as any.
    """
    order, schedule, state = changed_twice(run_of())
    numbers = [p for p in paths(state) if p and p[0] == "batches" and len(p) > 2 and p[-1] != "places"]
    numbers.remove(("batches", 2, "global_batch"))
    path = data.draw(st.sampled_from(numbers))
    value = data.draw(st.one_of(st.integers(-3, 200), st.sampled_from([2**63, 2**64, -(2**70)])))
    made = edited(state, path, lambda inner, name: inner.__setitem__(name, value))
    if made == state:
        return
    try:
        _, other, _ = run_of().resume(made)
    except ResumeError:
        return
    raise AssertionError((path, value, other.changes, schedule.changes, order))


def test_a_step_outside_its_epoch_and_a_newer_format_are_refused():
    order = run_of()
    state = order.state(order.schedule(0, 8), 0, 3)
    with pytest.raises(ResumeError):
        order.resume({**state, "step": 16})
    with pytest.raises(ResumeError):
        order.resume({**state, "order": 3})
    with pytest.raises(ResumeError):
        order.resume({**state, "batches": []})


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
