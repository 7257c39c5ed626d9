"""Step groups: several steps are the same steps as one by one, and locations point at the same records."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from shardio.order import Mixture, Plan
from tests.order.shapes import mixed_order, names_of, order_of, positions_in, random_plan, random_sizes


def orders(rnd):
    C, T = rnd.choice([1, 2, 4]), rnd.choice([1, 2, 3])
    G = C * rnd.choice([1, 2, 3])
    mixed = rnd.random() < 0.4
    counts = tuple(rnd.randint(1, 3) for _ in range(2 if mixed else 1))
    sizes = [random_sizes(rnd, rnd.randint(1, 9), 40) for _ in counts]
    plans = [random_plan(rnd, C, T) for _ in counts]
    options = {
        "global_batch": G,
        "remainder": rnd.choice(["keep", "pad"]),
        "shuffle": rnd.random() < 0.7,
        "seed": rnd.randint(0, 99),
    }
    if not mixed:
        return sizes, order_of(sizes[0], plan=plans[0], **options)
    enough = all(size.total_rows >= C * T for size in sizes)
    stop = rnd.choice(["first", "all", 9] if enough else ["first"])
    return sizes, mixed_order(sizes, Mixture(counts, stop), plan=plans, **options)


@settings(
    max_examples=max(30, settings().max_examples // 5), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(st.randoms(use_true_random=False))
def test_groups_and_locations_agree_with_batches(rnd):
    _, order = orders(rnd)
    schedule = order.schedule(rnd.randint(0, 2), order.ranks * rnd.choice([1, 2, 3]))
    R = rnd.randint(1, schedule.global_batch)
    rank, size = rnd.randrange(R), rnd.randint(1, 6)
    for first in range(0, schedule.stop, size):
        steps = range(first, min(schedule.stop, first + size))
        group = schedule.group(steps, rank=rank, world_size=R)
        rows = schedule.lanes.rows(group.parts)
        found = schedule.lanes.locate(group.parts)
        rows_in = list(zip(found.window[group.order].tolist(), found.row[group.order].tolist(), strict=True))
        for k, step in enumerate(steps):
            batch = schedule.batch(step, rank=rank, world_size=R)
            low, high = group.edges[k], group.edges[k + 1]
            assert rows.positions[group.order][low:high].tolist() == batch.positions.tolist()
            assert rows.sources[group.order][low:high].tolist() == batch.sources.tolist()
            assert rows.cycles[group.order][low:high].tolist() == batch.cycles.tolist()
            assert group.valid[k] == int(batch.valid.sum())
            drawn = [
                (int(found.windows.source[w]), positions_in(found.windows, w)[i])
                for w, i in rows_in[low:high]
            ]
            assert drawn == list(zip(batch.sources.tolist(), batch.positions.tolist(), strict=True))


@settings(
    max_examples=max(30, settings().max_examples // 5), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(st.randoms(use_true_random=False))
def test_a_group_names_each_window_once(rnd):
    """Also one of every other step, as of one loader worker of two: each window named is opened."""
    _, order = orders(rnd)
    schedule = order.schedule(0, order.ranks)
    stride = rnd.randint(1, 3)
    group = schedule.group(range(rnd.randrange(stride), schedule.stop, stride))
    windows = names_of(schedule.lanes.locate(group.parts).windows)
    assert len(set(windows)) == len(windows)


def test_a_group_of_no_steps_is_empty():
    _, order = orders(random.Random(1))
    schedule = order.schedule(0, order.ranks)
    group = schedule.group([])
    assert group.edges.tolist() == [0]
    found = schedule.lanes.locate(group.parts)
    assert len(found.windows) == 0
    assert found.window.size == found.row.size == 0


def test_steps_of_the_tail_are_found_though_the_batch_changes_in_it():
    """Not all steps before the last change are turns of classes."""
    sizes = random_sizes(random.Random(1), 9, 400)
    plan = Plan(ranks=4, workers=8, chunk_rows=16, interleave=1, window=16)
    order = order_of(sizes, plan=plan, global_batch=16, seed=1, remainder="keep")
    schedule = order.schedule(0, 16)
    first = schedule.tail_start
    assert schedule.stop > first + 3
    changed = schedule.changed(first + 3, 8)
    for steps in (range(first - 2, first + 2), range(first, first + 3), range(first + 1, first + 4)):
        wanted = [changed.batch(step).positions for step in steps]
        group = changed.group(steps)
        found = changed.lanes.rows(group.parts).positions[group.order]
        assert found.tolist() == np.concatenate(wanted).tolist()


@settings(
    max_examples=max(30, settings().max_examples // 5), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(st.randoms(use_true_random=False))
def test_the_window_at_a_position_is_the_one_that_holds_it(rnd):
    """Every window of all lanes, found by its rows; and it begins in the round of its first row."""
    sizes = random_sizes(rnd, rnd.randint(1, 5), 300)
    if not sizes.total_rows:
        return
    m = rnd.randint(1, 50)
    plan = Plan(
        ranks=rnd.randint(1, 3), workers=rnd.randint(1, 2), chunk_rows=m, interleave=rnd.randint(1, 9),
        window=rnd.randint(1, m),
    )  # fmt: skip
    order = order_of(sizes, global_batch=plan.ranks, plan=plan, seed=1, shuffle=rnd.random() < 0.8)
    cycle = rnd.randint(0, 1)
    epoch = order.source_epoch(0, 0, cycle)
    lanes = np.arange(plan.lanes)
    windows = epoch.locate(np.stack([lanes, np.zeros_like(lanes), epoch.lane_lengths], axis=1)).windows
    place = np.repeat(np.arange(len(windows)), windows.rows)
    positions = np.concatenate(
        [np.arange(p, p + n) for p, n in zip(windows.position, windows.rows, strict=True)]
    )
    assert sorted(positions.tolist()) == list(range(sizes.total_rows))
    found, wanted = epoch.windows_at(0, cycle, positions), windows.take(place)
    for name in ("lane", "number", "reader", "rows", "position", "begin"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()
    # Each reader comes to its windows one after another, the first one in its first round.
    order = np.lexsort((windows.begin, windows.reader))
    ends = (windows.begin + windows.rows)[order]
    new = np.append(True, np.diff(windows.reader[order]) != 0)
    first = windows.begin[order][new]
    assert (first == first[0]).all()
    assert (windows.begin[order][1:][~new[1:]] == ends[:-1][~new[1:]]).all()
