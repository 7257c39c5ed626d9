"""Sizes, plans and default plans: the shape of an order."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio.errors import ResumeError
from shardio.order import Budget, Mixture, Plan, ShardSizes, Source, make_order, measured_mixing
from tests.order.shapes import IDENTITY, mixed_order, order_of, sizes_of, small_plan
from tests.suites.errors import refused


def images(rows=1_281_167, per_shard=2000, record=110_000):
    counts = np.full(-(-rows // per_shard), per_shard)
    counts[-1] -= counts.sum() - rows
    return ShardSizes(counts, counts * record, counts * record, counts)


def default_plans(sources, *, plan=None, shares=None, **options):
    """Return the plans that an order of some datasets has."""
    mixture = None if len(sources) == 1 else Mixture(tuple(shares))
    sources = [Source(sizes, IDENTITY) for sizes in sources]
    return make_order(sources, plan=plan, mixture=mixture, **options).plans


def default_plan(sizes, *, budget=None, **options):
    return default_plans([sizes], budgets=None if budget is None else [budget], **options)[0]


def test_sizes_that_cannot_be_are_refused():
    with refused(ValueError, "2**40"):
        ShardSizes([2**40, 1], [1, 1], [1, 1], [1, 1])


def test_ten_to_the_ninth_records_take_little_memory():
    """O(shards + chunks) memory: 10^9 records stay under 64 MB."""
    sizes = ShardSizes([10**5] * 10**4, [4 * 10**7] * 10**4, [10**8] * 10**4, [1500] * 10**4)
    tracemalloc.start()
    schedule = order_of(sizes, global_batch=256).schedule(0, 256)
    for step in (*range(8), schedule.stop // 2, schedule.stop - 1):
        schedule.batch(step)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64e6


@given(st.integers(1, 5000))
@settings(deadline=None)
def test_default_ranks_divide_the_batch(global_batch):
    plan = default_plan(images(), global_batch=global_batch)
    assert global_batch % plan.ranks == 0
    assert plan.workers == 1
    assert plan == default_plan(images(), global_batch=global_batch)


@pytest.mark.parametrize(
    ("sizes", "batch", "ranks"),
    [
        (images(500), 256, 24),
        (images(500), 32, 16),
        (sizes_of(1000), 32, 1),
        (sizes_of(3), 8, 1),
        (ShardSizes([], [], [], []), 8, 1),
    ],
)
def test_a_small_dataset_is_one_chunk_that_its_lanes_share(sizes, batch, ranks):
    """Each lane is one window of 2 MiB or more, so that it is shuffled as a whole, by few requests."""
    ranks = max(c for c in range(1, ranks + 1) if batch % c == 0)
    rows = max(1, sizes.total_rows)
    plan = default_plan(sizes, global_batch=batch, remainder="keep")
    assert plan == Plan(ranks=ranks, workers=1, chunk_rows=rows, interleave=1, window=rows)
    if rows < 500:
        return
    order = order_of(sizes, global_batch=batch)
    schedule = order.schedule(0, batch)
    lanes = schedule.lanes
    parts = np.array([[n, 0, length] for n, length in enumerate(lanes.lane_lengths)])
    assert len(lanes.locate(parts).windows) == ranks


def texts(rows, record, per_shard=100_000):
    counts = np.full(rows // per_shard, per_shard)
    return ShardSizes(counts, counts * record, counts * record, -(-counts * record // (64 << 10)))


@given(
    st.integers(50, 2_000_000),
    st.integers(1, 10**10),
    st.integers(1, 5000),
    st.sampled_from([0, 2 << 20]),
    st.integers(1 << 15, 5 << 20),
    st.integers(1, 1 << 40),
)
@settings(deadline=None)
def test_any_budget_has_a_plan_that_keeps_it(record, rows, batch, run, chunk, memory):
    """Windows stay within the budget, as long as it holds one record, and the lanes within the batch."""
    shards = min(rows, 100)
    counts = np.full(shards, rows // shards)
    sizes = ShardSizes(counts, counts * record, counts * record, counts)
    budget = Budget(open_bytes=memory, chunk_bytes=chunk, run_bytes=run)
    order = order_of(sizes, global_batch=batch, budgets=[budget])
    [plan] = order.plans
    assert batch % plan.ranks == 0
    if memory > 2 * (record + 8):
        [open_] = order.open_windows(batch)
        assert open_.number * open_.rows * record <= memory
        assert plan.open_windows <= sizes.total_rows


@given(st.sampled_from([0, 1, 3, 500, 20_000, 1_281_167]), st.sampled_from([1, 32, 96, 256, 1000]), st.data())
def test_what_a_plan_leaves_out_is_filled_in(rows, batch, data):
    """Any part of the default plan gives the default plan; any other part stays."""
    sizes = images(rows) if rows else ShardSizes([], [], [], [])
    options = {"global_batch": batch, "remainder": "keep"}
    default = default_plan(sizes, **options)
    names = data.draw(st.sets(st.sampled_from([*default.to_dict()])))
    if rows > 500 or not names & {"chunk_rows", "interleave", "window"}:
        own = names - {"window"}
        part = Plan(**{name: default.to_dict()[name] for name in own})
        assert default_plan(sizes, **options, plan=part) == default
    draws = {
        "ranks": st.sampled_from([c for c in range(1, batch + 1) if batch % c == 0]),
        "workers": st.integers(1, 60),
        "chunk_rows": st.integers(1, 1 << 20),
        "interleave": st.integers(1, 16),
        "window": st.just(1),
    }
    chosen = {name: data.draw(draws[name]) for name in names}
    plan = default_plan(sizes, **options, plan=Plan(**chosen))
    assert {name: plan.to_dict()[name] for name in names} == chosen
    assert batch % plan.ranks == 0


def test_what_a_plan_leaves_out_by_example():
    filled = default_plan(images(), global_batch=256, plan=Plan(ranks=4, workers=2))
    assert filled == Plan(ranks=4, workers=2, chunk_rows=12, interleave=35, window=12)
    assert Plan(ranks=4) != Plan(ranks=4, workers=1)
    two = default_plans(
        [images(), images(100_000, 1000, 8000)],
        global_batch=256,
        shares=(3, 1),
        plan=[Plan(ranks=8), Plan(window=7)],
    )
    assert [plan.ranks for plan in two] == [8, 8]
    assert two[1].window == 7


def test_parts_of_plans_that_contradict_each_other_are_refused():
    with refused(TypeError, "'ranks'"):
        order_of(sizes_of(100), global_batch=8, plan={"ranks": 2})
    mixture = Mixture((1, 1))
    with refused(ValueError, "workers="):
        mixed_order(
            [sizes_of(100)] * 2, mixture, global_batch=8, plan=[Plan(ranks=2, workers=2), Plan(workers=3)]
        )
    with pytest.raises(ValueError, match="2 plans are needed, one for each source, found 1"):
        mixed_order([sizes_of(100)] * 2, mixture, global_batch=8, plan=[Plan(ranks=2)])


def test_part_of_a_plan_is_held_against_a_state():
    """What was left open follows the state; what was given must be the state's."""
    sizes = images(20_000)
    order = order_of(sizes, global_batch=256, plan=Plan(chunk_rows=50))
    state = order.state(order.schedule(0, 256), 0, 3)
    resumed, schedule, _ = order_of(sizes, global_batch=96, plan=Plan(chunk_rows=50)).resume(state)
    assert resumed.plans == order.plans
    assert schedule.step == 3
    with pytest.raises(ResumeError):
        order_of(sizes, global_batch=256, plan=Plan(chunk_rows=51)).resume(state)


@pytest.mark.parametrize("sizes", [sizes_of(30, 0, 41), sizes_of(1)])
@pytest.mark.parametrize("chunk_bytes", [1, 200, 1 << 20])
def test_without_shuffle_the_order_is_that_of_storage(sizes, chunk_bytes):
    """One lane of one strand; a chunk at a time is open, whatever the memory."""
    budgets = [Budget(chunk_bytes=chunk_bytes)]
    order = order_of(sizes, global_batch=8, shuffle=False, remainder="keep", budgets=budgets)
    schedule = order.schedule(3, 8)
    rows = np.concatenate([schedule.batch(step).positions for step in range(len(schedule))])
    assert rows.tolist() == list(range(sizes.total_rows))
    assert order.open_windows(8)[0].number == 1


def test_plans_that_cannot_be_are_refused():
    for field, value in (
        ("ranks", 0),
        ("workers", -1),
        ("chunk_rows", 0),
        ("window", 0),
        ("ranks", 1 << 17),
    ):
        with pytest.raises(ValueError, match=rf"Plan\.{field} must be in"):
            Plan(**{"ranks": 1, "window": 1, field: value})
    with refused(TypeError, "Plan.window"):
        Plan(ranks=1, window=2.0)
    with pytest.raises(ValueError, match="lanes, at most"):
        Plan(ranks=1024, workers=1024, window=1)
    with pytest.raises(ValueError, match="1048576 chunks can be read concurrently"):
        Plan(ranks=1024, interleave=1 << 16)
    with refused(ValueError, "window=", "chunk_rows="):
        Plan(window=4, chunk_rows=3)
    with pytest.raises(ValueError, match="multiple of the plan's ranks, 2: found 9; use 8 or 10"):
        order_of(sizes_of(100), global_batch=9, plan=small_plan())
    with refused(ValueError, "global_batch 200"):
        order_of(sizes_of(100), global_batch=200).schedule(0, 200)
    with refused(ValueError, "remainder"):
        order_of(sizes_of(100), global_batch=2, remainder="no")


def test_mixtures_share_lanes_and_the_memory():
    sources = [images(), images(100_000, 1000, 8000)]
    plans = default_plans(sources, global_batch=256, shares=(3, 1))
    assert {(p.ranks, p.workers) for p in plans} == {(plans[0].ranks, plans[0].workers)}
    used = [p.open_windows * p.window * size for p, size in zip(plans, (110_000, 8000), strict=True)]
    assert sum(used) <= Budget().open_bytes
    assert used[1] <= Budget().open_bytes / 4


def test_open_windows_of_the_fullest_process():
    """Of ranks and workers that divide the plan's each has its part, others more."""
    order = order_of(sizes_of(400, 300, 68), global_batch=8, plan=small_plan(4, 4, chunk_rows=8))
    places = {(1, 0): (16, 1), (4, 4): (1, 1), (3, 3): (8, 5 / 4 * 3), (2, 1): (8, 1)}
    for (ranks, workers), (number, readers) in places.items():
        assert order.open_windows(8, ranks, workers)[0].number == number
        assert order.open_windows(8, ranks, workers)[0].rows == 8
        assert order.readers_per_window(8, ranks, workers) == pytest.approx(readers)


def test_mixing_is_measured_against_chance():
    """A full shuffle is 1; one lane of whole chunks is one label after another."""
    sizes = texts(1_000_000, 100)

    def mixing(plan):
        order = order_of(sizes, global_batch=64, plan=plan)
        return measured_mixing(order, order.schedule(0, 64), 1)[0]

    shuffled = mixing(Plan(chunk_rows=1))
    assert shuffled.distinct == pytest.approx(1, abs=0.02)
    assert shuffled.recurrence == pytest.approx(1, abs=0.05)
    assert shuffled.lags == 64
    poor = mixing(Plan(ranks=1, workers=1, chunk_rows=1000, interleave=1, window=1000))
    assert poor.distinct < 0.05
    assert poor.recurrence > 50
