"""P13 and the fetching side: steps that are equal for all, windows that are fetched by one."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shardio.order import Plan, ShardSizes, rank_slice
from tests.order.reference import Replay, lanes_of
from tests.order.shapes import (
    needs,
    order_of,
    random_plan,
    random_sizes,
    sizes_of,
    small_plan,
)
from tests.suites.errors import refused


@pytest.mark.parametrize("remainder", ["drop", "pad", "keep"])
@pytest.mark.parametrize("rows", [(0,), (1,), (7,), (0, 3, 0), (1, 0, 4, 2, 9), (1,) * 12])
def test_every_rank_gets_the_same_number_of_steps(rows, remainder):
    """Every rank gets the same number of steps: empty shards, one shard, more workers than shards."""
    for (C, T), share, R in itertools.product([(1, 1), (2, 1), (2, 3), (4, 2)], (1, 3), range(1, 9)):
        G = C * share
        if G < R or (remainder == "drop" and sum(rows) < G):
            continue
        schedule = order_of(
            sizes_of(*rows), global_batch=G, plan=small_plan(C, T), remainder=remainder
        ).schedule(0, G)  # fmt: skip
        assert len(schedule) == (sum(rows) // G if remainder == "drop" else -(-sum(rows) // G))
        for W in range(9):
            made = [schedule.steps(worker=w, workers=W) for w in range(max(1, W))]
            assert sorted(s for steps in made for s in steps) == list(range(len(schedule)))
        for step in range(len(schedule)):
            counts = [schedule.batch(step, rank=r, world_size=R).positions.size for r in range(R)]
            assert max(counts) - min(counts) <= 1
            if remainder != "keep":
                assert sum(counts) == G


def test_slices_are_those_of_the_contract():
    for n, R in itertools.product(range(20), range(1, 9)):
        slices = [rank_slice(n, r, R) for r in range(R)]
        assert slices == [(r * n // R, (r + 1) * n // R) for r in range(R)]


def test_a_step_far_away_is_found_without_the_steps_before():
    sizes = ShardSizes([10**8] * 10, [10**11] * 10, [10**11] * 10, [10**6] * 10)
    schedule = order_of(sizes, global_batch=256, remainder="keep").schedule(5, 256)
    assert schedule.stop == -(-(10**9) // 256)
    last = schedule.batch(schedule.stop - 1)
    assert last.positions.size == 10**9 - 256 * (schedule.stop - 1)
    middle = schedule.batch(schedule.stop // 2, rank=3, world_size=8).positions
    np.testing.assert_array_equal(middle, schedule.batch(schedule.stop // 2).positions[96:128])


@pytest.mark.parametrize(("R", "W"), [(1, 1), (2, 2), (4, 2), (1, 4), (4, 4)])
def test_each_window_belongs_to_one_process_where_ranks_and_workers_divide(R, W):
    """When ranks divide the plan's ranks and workers its workers, every chunk is fetched by one process.

    Apart, that is, from one block at each lane seam and the tail of the epoch.
    """
    order = order_of(sizes_of(300, 200, 7), global_batch=8, plan=small_plan(4, 4, chunk_rows=5))
    schedule = order.schedule(2, 8)
    schedule.step = 5
    owners = {}
    for rank, worker in itertools.product(range(R), range(W)):
        for step, window, _ in needs(schedule, rank=rank, world_size=R, worker=worker, workers=W):
            if step < schedule.tail_start:
                owners.setdefault(window, []).append((rank, worker))
    assert owners
    assert all(len(owner) == 1 for owner in owners.values())


@pytest.mark.parametrize("seed", range(12))
def test_the_batch_may_change_before_any_step(seed):
    """What follows is what the specification replays, at the seam of turns and tail too."""
    rnd = random.Random(seed)
    sizes, plan = random_sizes(rnd, 5, 40), random_plan(rnd, 2, 2)
    order = order_of(sizes, plan=plan, global_batch=8, remainder="keep", seed=seed)
    lanes = lanes_of(sizes, plan, seed=seed, epoch=0, shuffle=True)
    whole = order.schedule(0, 8)
    for change in range(1, whole.stop):
        replay = Replay(lanes, 2)
        schedule = whole.changed(change, 4)
        for step in range(schedule.stop):
            assert schedule.batch(step).positions.tolist() == replay.step(8 if step < change else 4)


def test_asking_for_what_is_not_there():
    schedule = order_of(sizes_of(20), global_batch=4, plan=small_plan()).schedule(0, 4)
    with refused(IndexError, "step"):
        schedule.batch(5)
    with refused(ValueError, "rank"):
        schedule.batch(0, rank=2, world_size=2)
    with refused(ValueError, "world_size 5", "global_batch 4"):
        schedule.batch(0, rank=0, world_size=5)
    with refused(ValueError, "worker"):
        schedule.steps(worker=2, workers=2)
    with pytest.raises(IndexError):
        schedule.changed(0, 8)


@pytest.mark.parametrize(
    "shape", [Plan(ranks=2, workers=1, chunk_rows=4096, interleave=16), small_plan(2, 1, chunk_rows=4096)]
)
def test_threads_may_share_an_epoch(shape):
    """Several threads that iterate over one epoch get what one alone gets."""
    # Windows so large that threads meet inside the kernel, which makes them without the interpreter's lock.
    sizes = sizes_of(*[1 << 17] * 2)

    def lanes():
        return order_of(sizes, global_batch=1 << 14, plan=shape, seed=3).schedule(0, 1 << 14)

    alone, shared = lanes(), lanes()
    wanted = [alone.batch(step).positions for step in range(alone.stop)]
    together = threading.Barrier(4)
    begin = sys.getswitchinterval()

    def iterate(number):
        together.wait()
        # Not in step: each comes to windows that another one has just left.
        steps = [(step + 5 * number) % shared.stop for step in range(shared.stop)]
        return {step: shared.batch(step).positions for step in steps}

    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(iterate, range(4)))
    finally:
        sys.setswitchinterval(begin)
    for each in found:
        assert all(np.array_equal(each[step], wanted[step]) for step in range(shared.stop))


@pytest.mark.slow
def test_windows_too_large_for_the_memory_are_refused_by_name():
    """A state may ask for any plan: what holds its windows is named, not an allocation of NumPy's."""
    program = """
import resource
from shardio.order import Plan
from tests.order.shapes import order_of, sizes_of
plan = Plan(ranks=1, workers=1, chunk_rows=1 << 24, interleave=1 << 16, window=1 << 24)
order = order_of(sizes_of(1 << 40), global_batch=8, plan=plan)
resource.setrlimit(resource.RLIMIT_AS, (1 << 35, 1 << 35))
try:
    order.schedule(0, 8)
except ValueError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("the plan has 65536 windows of up to 16777216 rows open")
