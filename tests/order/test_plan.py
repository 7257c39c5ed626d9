"""Sizes, chunks, default plans, and what a plan will cost."""

from __future__ import annotations

import random
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio.errors import ResumeError
from shardio.order import (
    Budget,
    Mixture,
    Plan,
    ShardSizes,
    Source,
    advice,
    check_memory,
    decoded_memory,
    make_order,
    mixing_warning,
    report,
)
from shardio.order._plan import default_plans, windowed_plans
from shardio.order._sizes import MAX_CHUNKS, chunk_counts, chunk_edges
from tests.order.reference import default_shape
from tests.order.shapes import IDENTITY, mixed_order, order_of, sizes_of, small_plan
from tests.suites.errors import refused


def images(rows=1_281_167, per_shard=2000, record=110_000):
    counts = np.full(-(-rows // per_shard), per_shard)
    counts[-1] -= counts.sum() - rows
    return ShardSizes(counts, counts * record, counts * record, counts)


def default_plan(sizes, *, given=None, **options):
    """Return the plan of one dataset."""
    return default_plans([sizes], given=None if given is None else [given], **options)[0]


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 50), st.integers(1, 99)), max_size=12),
    st.integers(1, 500),
)
def test_chunks_cut_every_shard_into_runs_of_rows(shards, chunk_bytes):
    """A shard of n rows, b bytes and k blocks gives min(n, k, max(1, ceil(b / chunk_bytes))) chunks."""
    rows = [n for n, _, _ in shards]
    sizes = ShardSizes(rows, [n * b for n, b, _ in shards], rows, [k for _, _, k in shards])
    counts = chunk_counts(sizes, chunk_bytes)
    edges = chunk_edges(sizes, counts).tolist()
    expected, position = [], 0
    for (n, b, k), c in zip(shards, counts.tolist(), strict=True):
        assert c == min(n, k, max(1, -(-n * b // chunk_bytes)))
        expected.extend(position + i * n // c for i in range(c))
        position += n
    assert edges == [*expected, position]
    assert np.all(np.diff(edges) > 0)


def test_chunk_bytes_is_doubled_until_the_chunks_fit():
    """Above 2^21 chunks `chunk_bytes` is doubled until they fit."""
    sizes = ShardSizes([10**6] * 40, [10**9] * 40, [10**9] * 40, [10**6] * 40)
    counts = chunk_counts(sizes, 1000)
    assert counts.tolist() == [-(-(10**9) // 32_000)] * 40
    assert counts.sum() <= MAX_CHUNKS < 2 * counts.sum()
    many = np.ones(MAX_CHUNKS + 1, np.int64)
    with pytest.raises(ValueError, match="shards with rows, at most 2097152"):
        chunk_counts(ShardSizes(many, many, many, many), 1)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="blocks has 1 entries, but rows has 2"):
        ShardSizes([1, 2], [1, 2], [1, 2], [1])
    with pytest.raises(ValueError, match="must not be negative, found -1 at shard 1"):
        ShardSizes([1, 2], [1, -1], [1, 2], [1, 1])
    with pytest.raises(ValueError, match="shard 1 has 2 rows in no block"):
        ShardSizes([1, 2], [1, 2], [1, 2], [1, 0])
    with pytest.raises(ValueError, match="must be a list of integers"):
        ShardSizes([1.5], [1], [1], [1])
    with pytest.raises(ValueError, match=r"at most 2\*\*40 rows"):
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
    ("sizes", "batch", "expected"),
    [
        (images(), 256, Plan(ranks=128, workers=4, chunk_bytes=1 << 20, window=19)),
        (images(), 32, Plan(ranks=32, workers=4, chunk_bytes=1 << 20, window=76)),
        (images(), 1000, Plan(ranks=200, workers=2, chunk_bytes=1 << 20, window=24)),
        (images(20_000), 256, Plan(ranks=128, workers=2, chunk_bytes=1 << 20, window=38)),
        (images(2000), 256, Plan(ranks=16, workers=1, chunk_bytes=1 << 20, window=610)),
        (images(500), 256, Plan(ranks=4, workers=1, chunk_bytes=1 << 20, window=2440)),
        (sizes_of(1000), 32, Plan(ranks=1, workers=1, chunk_bytes=1 << 20, window=1 << 23)),
        (ShardSizes([], [], [], []), 8, Plan(ranks=1, workers=1, chunk_bytes=1 << 20, window=1 << 23)),
    ],
)
def test_windowed_plans_stay_as_they_are(sizes, batch, expected):
    """They were the default ones of order 1, and are those of small datasets, and of a given window."""
    assert windowed_plans([sizes], global_batch=batch) == [expected]
    if sizes.total_decoded_bytes <= 64 << 20:
        assert default_plan(sizes, global_batch=batch) == expected


def texts(rows, record, per_shard=100_000):
    counts = np.full(rows // per_shard, per_shard)
    return ShardSizes(counts, counts * record, counts * record, -(-counts * record // (64 << 10)))


def packed(rows, record, blocks):
    """Return shards of records that compress to five eighths."""
    counts = np.full(100, rows // 100)
    return ShardSizes(counts, counts * record * 5 // 8, counts * record, np.full(100, blocks // 100))


TOKENS = packed(7 * 10**6, 8208, 10**6)


@pytest.mark.parametrize(
    ("sizes", "batch", "budget", "expected"),
    [
        (images(), 256, Budget(), (128, 1, 2, 13)),
        (TOKENS, 64, Budget(), (32, 1, 256, 5)),
        (TOKENS, 64, Budget(decoded=True, memory_bytes=128 << 20), (32, 1, 56, 6)),
        (TOKENS, 64, Budget(decoded=True, memory_bytes=128 << 20, mixing="best"), (32, 1, 14, 25)),
        (TOKENS, 64, Budget(decoded=True, memory_bytes=128 << 20, mixing="cheap"), (32, 1, 178, 2)),
        (packed(7 * 10**6, 8208, 7 * 10**6), 64, Budget(decoded=True), (32, 1, 8, 178)),
        (packed(10**6, 100_000, 10**6), 256, Budget(decoded=True), (128, 1, 4, 7)),
        (packed(10**6, 100_000, 10**6), 256, Budget(), (128, 1, 4, 7)),
        (images(), 256, Budget(local=True), (128, 1, 1, 1)),
        (images(), 1000, Budget(), (200, 1, 2, 8)),
        (images(20_000), 256, Budget(), (128, 1, 2, 13)),
        (images(record=1_000_000), 256, Budget(), (128, 1, 1, 1)),
        (texts(10**8, 100), 256, Budget(), (128, 1, 13_107, 2)),
        (texts(10**8, 100), 256, Budget(local=True), (128, 1, 328, 82)),
        (texts(10**8, 100), 256, Budget(local=True, mixing="best"), (128, 1, 82, 331)),
        (texts(10**8, 100), 256, Budget(local=True, mixing="cheap"), (128, 1, 1311, 20)),
        (texts(10**8, 100), 256, Budget(mixing="best"), (128, 1, 2621, 10)),
        (texts(10**8, 100), 256, Budget(memory_bytes=64 << 20), (128, 1, 3276, 1)),
        (texts(2 * 10**5, 1000), 256, Budget(), (128, 1, 1311, 4)),
        (texts(2 * 10**5, 1000), 256, Budget(mixing="cheap"), (128, 1, 2097, 1)),
        (texts(10**8, 100), 257, Budget(local=True), (1, 1, 328, 10_608)),
        (texts(10**8, 1000), 4096, Budget(local=True), (256, 1, 33, 44)),
    ],
)
def test_interleaved_plans_of_a_budget(sizes, batch, budget, expected):
    """A run that has begun keeps its plan; this test says when the rules change."""
    plan = default_plan(sizes, global_batch=batch, budget=budget)
    assert (plan.ranks, plan.workers, plan.chunk_rows, plan.interleave) == expected
    assert plan.window == plan.chunk_rows


@given(
    st.integers(50, 2_000_000), st.integers(1, 10**10), st.integers(1, 5000),
    st.sampled_from([{}, {"local": True}, {"decoded": True}]),
    st.sampled_from(["cheap", "default", "best"]), st.integers(1, 1 << 40),
)  # fmt: skip
@settings(deadline=None)
def test_any_budget_has_a_plan_that_keeps_it(record, rows, batch, kind, mixing, memory):
    """Windows stay within `memory_bytes`, as long as it holds one record, and the lanes within the batch."""
    shards = min(rows, 100)
    counts = np.full(shards, rows // shards)
    sizes = ShardSizes(counts, counts * record, counts * record, counts)
    budget = Budget(memory_bytes=memory, mixing=mixing, **kind)
    plan = default_plan(sizes, global_batch=batch, budget=budget)
    assert batch % plan.ranks == 0
    if plan.interleaved and memory > 2 * (record + 8):
        strand = -(-sizes.total_rows // (plan.lanes * plan.interleave))
        assert plan.lanes * plan.interleave * min(plan.window, strand) * record <= memory
        assert plan.lanes * plan.interleave <= sizes.total_rows


@pytest.mark.parametrize("batch", [64, 256])
@pytest.mark.parametrize(
    ("sizes", "mebibytes"),
    [
        (TOKENS, 128),
        (packed(10**8, 300, 460_000), 128),
        (packed(2 * 10**6, 32_000, 10**6), 190),
        (packed(10**6, 100_000, 10**6), 512),
    ],
)
def test_less_memory_holds_as_many_chunks_of_compressed_local_files(sizes, mebibytes, batch):
    """Their chunks are smaller, so that the default holds less, and mixes as from a bucket or better."""
    memory = decoded_memory([sizes])
    assert memory >> 20 == mebibytes
    assert decoded_memory([sizes, TOKENS]) == memory
    plan = default_plan(sizes, global_batch=batch, budget=Budget(decoded=True, memory_bytes=memory))
    usual = default_plan(sizes, global_batch=batch, budget=Budget())
    assert plan.lanes * plan.interleave >= 0.9 * usual.lanes * usual.interleave
    assert plan.chunk_rows <= usual.chunk_rows


SHAPE = ("ranks", "workers", "chunk_bytes", "window")


@given(st.sampled_from([0, 1, 3, 500, 20_000, 1_281_167]), st.sampled_from([1, 32, 96, 256, 1000]), st.data())
def test_what_a_plan_leaves_out_is_filled_in(rows, batch, data):
    """Any part of the default plan gives the default plan; any other part stays."""
    sizes = images(rows) if rows else ShardSizes([], [], [], [])
    [default] = windowed_plans([sizes], global_batch=batch)
    names = data.draw(st.sets(st.sampled_from(SHAPE)))
    part = Plan(**{name: default.to_dict()[name] for name in names})
    if part.windowed or rows <= 500:
        assert default_plan(sizes, global_batch=batch, given=part) == default
    default = default_plan(sizes, global_batch=batch)
    if default.interleaved:
        own = data.draw(st.sets(st.sampled_from([*default.to_dict()]))) - {"window"}
        part = Plan(**{name: default.to_dict()[name] for name in own})
        assert default_plan(sizes, global_batch=batch, given=part) == default
    draws = {
        "ranks": st.sampled_from([c for c in range(1, batch + 1) if batch % c == 0]),
        "workers": st.integers(1, 60),
        "chunk_bytes": st.integers(1, 1 << 30),
        "window": st.integers(1, 1 << 25),
    }
    chosen = {name: data.draw(draws[name]) for name in names}
    plan = default_plan(sizes, global_batch=batch, given=Plan(**chosen))
    assert {name: plan.to_dict()[name] for name in names} == chosen
    assert batch % plan.ranks == 0
    if plan.windowed and "window" not in names:
        assert plan.lanes * plan.window <= max(1 << 23, plan.lanes)
        assert plan.window == 1 or plan.lanes * plan.window * 110_000 <= 1 << 30 or not rows


def test_what_a_plan_leaves_out_by_example():
    filled = default_plan(images(), global_batch=256, given=Plan(ranks=4, workers=2, chunk_bytes=1 << 20))
    assert filled == Plan(ranks=4, workers=2, chunk_bytes=1 << 20, window=1220)
    filled = default_plan(images(), global_batch=256, given=Plan(window=100_000))
    assert filled == Plan(ranks=128, workers=4, chunk_bytes=1 << 20, window=100_000)
    filled = default_plan(images(), global_batch=256, given=Plan(ranks=4, workers=2))
    assert filled == Plan(ranks=4, workers=2, chunk_rows=2, interleave=213, window=2)
    assert Plan(ranks=4) != Plan(ranks=4, workers=1)
    two = default_plans(
        [images(), images(100_000, 1000, 8000)],
        global_batch=256,
        shares=(3, 1),
        given=[Plan(ranks=8), Plan(window=7)],
    )
    assert [plan.ranks for plan in two] == [8, 8]
    assert two[1].window == 7


def test_parts_of_plans_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="multiple of the plan's ranks, 3: found 8; use 6 or 9"):
        order_of(sizes_of(100), global_batch=8, plan=Plan(ranks=3))
    with refused(TypeError, "'ranks'"):
        order_of(sizes_of(100), global_batch=8, plan={"ranks": 2})
    mixture = Mixture((1, 1))
    with refused(ValueError, "workers="):
        mixed_order(
            [sizes_of(100)] * 2, mixture, global_batch=8, plan=[Plan(ranks=2, workers=2), Plan(workers=3)]
        )
    with pytest.raises(ValueError, match="must be of one kind"):
        mixed_order([sizes_of(100)] * 2, mixture, global_batch=8, plan=[Plan(window=2), Plan(interleave=3)])
    with pytest.raises(ValueError, match="2 plans are needed, one for each source, found 1"):
        mixed_order([sizes_of(100)] * 2, mixture, global_batch=8, plan=[Plan(ranks=2)])


def test_part_of_a_plan_is_held_against_a_state():
    """What was left open follows the state; what was given must be the state's."""
    sizes = images(20_000)
    order = order_of(sizes, global_batch=256, plan=Plan(window=50))
    state = order.state(order.schedule(0, 256), 0, 3)
    resumed, schedule, _ = order_of(sizes, global_batch=96, plan=Plan(window=50)).resume(state)
    assert resumed.plans == order.plans
    assert schedule.step == 3
    with pytest.raises(ResumeError):
        order_of(sizes, global_batch=256, plan=Plan(window=51)).resume(state)


def test_without_shuffle_the_order_is_that_of_storage():
    """`shuffle=False` is the same plan with identity permutations and C = T = 1: storage order."""
    order = order_of(sizes_of(30, 0, 41), global_batch=8, shuffle=False, remainder="keep")
    schedule = order.schedule(3, 8)
    rows = np.concatenate([schedule.batch(step).positions for step in range(len(schedule))])
    assert rows.tolist() == list(range(71))


def test_without_shuffle_little_is_read_before_the_first_batch():
    """Windows mix nothing then, and all of one is there before its first row is delivered."""
    sources = [images(1_000_000, 1000, 100_000), images(5_000_000, 1000, 300)]
    plans = default_plans(sources, global_batch=256, shares=(3, 1), shuffle=False)
    for plan, sizes, share in zip(plans, sources, (3, 1), strict=True):
        assert plan.lanes == 1
        window = plan.window * sizes.total_decoded_bytes / sizes.total_rows
        assert share / 4 * 15e6 < window <= share / 4 * (16 << 20)
    (large,) = default_plans([images(3, 1, 1 << 30)], global_batch=1, shuffle=False)
    assert large.window == 1


def test_plans_that_cannot_be_are_refused():
    for field, value in (
        ("ranks", 0),
        ("workers", -1),
        ("chunk_bytes", 0),
        ("window", 0),
        ("ranks", 1 << 17),
    ):
        with pytest.raises(ValueError, match=rf"Plan\.{field} must be in"):
            Plan(**{"ranks": 1, "window": 1, field: value})
    with pytest.raises(TypeError, match=r"Plan\.window must be an integer"):
        Plan(ranks=1, window=2.0)
    with pytest.raises(ValueError, match="lanes, at most"):
        Plan(ranks=1024, workers=1024, window=1)
    with pytest.raises(ValueError, match="1048576 chunks can be read side by side"):
        Plan(ranks=1024, interleave=1 << 16)
    with pytest.raises(ValueError, match="give the size of a chunk once"):
        Plan(chunk_bytes=100, chunk_rows=3)
    with refused(ValueError, "window=", "chunk_rows="):
        Plan(window=4, chunk_rows=3)
    with refused(ValueError, "'cheap'", "'default'", "'best'", "'good'", "mixing"):
        Budget(mixing="good")
    with pytest.raises(ValueError, match="multiple of the plan's ranks, 2: found 9; use 8 or 10"):
        order_of(sizes_of(100), global_batch=9, plan=small_plan())
    with pytest.raises(ValueError, match="global_batch 200 is larger than the 100 rows"):
        order_of(sizes_of(100), global_batch=200).schedule(0, 200)
    with refused(ValueError, "remainder"):
        order_of(sizes_of(100), global_batch=2, remainder="no")


def test_mixtures_share_lanes_and_the_shuffle_memory():
    sources = [images(), images(100_000, 1000, 8000)]
    plans = default_plans(sources, global_batch=256, shares=(3, 1))
    assert {(p.ranks, p.workers) for p in plans} == {(plans[0].ranks, plans[0].workers)}
    used = sum(p.lanes * p.window * size for p, size in zip(plans, (110_000, 8000), strict=True))
    assert used <= 1 << 30


def test_a_report_estimates_an_epoch():
    """Steps and records exactly, requests within a fifth, memory and shuffle radius for ranks and workers."""
    sizes = sizes_of(400, 300, 68)
    order = order_of(sizes, global_batch=8, plan=small_plan(4, 4, chunk_bytes=200, window=8))
    one, many = report(order, global_batch=8), report(order, global_batch=8, world_size=4, workers=4)
    assert (one.records, one.steps, one.chunks) == (768, 96, 20 + 15 + 4)
    assert (one.open_windows, many.open_windows) == (16, 1)
    assert (one.memory_bytes, many.memory_bytes) == (16 * 160 + 6 * 160, 160 + 6 * 160)
    assert (one.copies, many.copies) == (1, 1)
    assert one.epoch_bytes == 7680
    lanes = order.source_epoch(0, 0, 0)
    windows = [(lane, w) for lane in range(16) for w in range(lanes.window_number(lane, 47) + 1)]
    pieces = [lanes.lane_pieces(lane, *lanes.window_range(lane, w)) for lane, w in windows]
    assert one.requests == many.requests == pytest.approx(sum(each.starts.size for each in pieces), rel=0.2)
    # Blocks have two rows of ten bytes.
    blocks = sum(int(((each.stops - 1) // 2 - each.starts // 2 + 1).sum()) for each in pieces)
    assert one.fetched_bytes == many.fetched_bytes == pytest.approx(20 * blocks, rel=0.1)
    apart = report(order, global_batch=8, world_size=3, workers=3)
    assert apart.copies == pytest.approx(5 / 4 * 3)
    assert apart.fetched_bytes > 3 * one.fetched_bytes
    assert report(order, global_batch=8, local=True).fetched_bytes == one.epoch_bytes


@pytest.mark.parametrize("window", [1, 4, 10])
@pytest.mark.parametrize("interleave", [1, 7])
@pytest.mark.parametrize("shards", [[1000], [70, 0, 5, 125] * 5])
def test_requests_of_interleaved_plans_are_estimated_within_a_fifth(shards, interleave, window):
    shape = Plan(ranks=2, workers=1, chunk_rows=10, interleave=interleave, window=window)
    order = order_of(sizes_of(*shards), global_batch=2, plan=shape)
    lanes = order.source_epoch(0, 0, 0)
    parts = np.array([(n, 0, length) for n, length in enumerate(lanes.lane_lengths.tolist())])
    pieces, counts = lanes.many_pieces(lanes.locate(parts).windows)
    assert counts.sum() == sum(shards)
    found = report(order, global_batch=2, local=True)
    assert found.requests == pytest.approx(len(pieces.shards), rel=0.2)
    assert 0 < found.mixing.distinct <= 1.5


def test_mixing_is_measured_against_chance():
    """A full shuffle is 1; one lane of whole chunks is one label after another."""
    sizes = texts(1_000_000, 100)
    shuffled = report(order_of(sizes, global_batch=64, plan=Plan(chunk_rows=1)), global_batch=64).mixing
    assert shuffled.distinct == pytest.approx(1, abs=0.02)
    assert shuffled.recurrence == pytest.approx(1, abs=0.05)
    assert shuffled.lags == 64
    poor = Plan(ranks=1, workers=1, chunk_rows=1000, interleave=1, window=1000)
    order = order_of(sizes, global_batch=64, plan=poor)
    found = report(order, global_batch=64).mixing
    assert found.distinct < 0.05
    assert found.recurrence > 50
    assert advice(order, global_batch=64) == []
    assert advice(order, global_batch=64, shuffled=[True]) == []
    (line,) = advice(order, global_batch=64, shuffled=[False])
    assert line.startswith("if the records of the dataset are sorted")
    enough = default_plan(sizes, global_batch=64, budget=Budget(local=True))
    assert advice(order_of(sizes, global_batch=64, plan=enough), global_batch=64, shuffled=[False]) == []


def test_a_plan_over_memory_bytes_names_both_numbers():
    """A plan that needs more than `memory_bytes` in one process is a `ValueError` that gives both numbers."""
    order = order_of(images(), global_batch=256, plan=Plan(window=19))
    needed = report(order, global_batch=256).memory_bytes
    check_memory(order, global_batch=256)
    check_memory(order, global_batch=256, memory_bytes=needed)
    with pytest.raises(ValueError, match=rf"needs {needed} bytes .* memory_bytes=1000000"):
        check_memory(order, global_batch=256, memory_bytes=1_000_000)


def test_little_data_that_is_fetched_twice_gives_no_warning():
    order = order_of(images(500), global_batch=256)
    assert advice(order, global_batch=256, world_size=16) == []


def test_advice_names_what_would_divide():
    """One line names the equal batch sizes nearby and the loss weight, one the ranks and workers."""
    order = order_of(images(), global_batch=256, plan=Plan(workers=4))
    assert advice(order, global_batch=256, world_size=8, workers=4) == []
    slices, fetch = advice(order, global_batch=256, world_size=6, workers=3)
    assert "6 ranks slices of 42 and 43 rows" in slices
    assert "rows * 6 / 256" in slices
    assert "a batch of 384" in slices
    assert "4 or 8 ranks instead of 6" in fetch
    assert "2 or 4 workers instead of 3" in fetch


@pytest.mark.parametrize("record", [100, 8192, 100_000])
def test_the_memory_that_a_warning_names_mixes_as_random_order_does(record):
    """Each way out, followed to the letter: labels come again at most a tenth too often within 64 batches."""
    rows, batch, labels = (64 << 30) // record, 256, 1000
    sizes = texts(rows, record, (16 << 20) // record)

    def recurrence(budget):
        order = make_order([Source(sizes, IDENTITY)], global_batch=batch, budget=budget)
        schedule, seen = order.schedule(0, batch), np.zeros((164, labels))
        for step in range(164):
            of = schedule.batch(schedule.stop // 2 + step).positions * labels // sizes.total_rows
            seen[step] = np.bincount(of, minlength=labels)
        pairs = [(seen[lag:] * seen[:-lag]).sum() / (164 - lag) for lag in range(1, 65)]
        return np.mean(pairs) / (batch * batch / labels), order

    often, order = recurrence(Budget())
    lines = advice(order, global_batch=batch, budget=Budget(), shuffled=[False])
    if often <= 1.1:
        return
    (line,) = lines
    assert "scratch= with a folder on a local disk mixes nearly as well as random order" in line
    named = mixing_warning(order, ["s3://bucket/birds"], shuffled=[False], budget=Budget())
    assert "s3://bucket/birds are sorted" in named
    assert "scratch= with a folder on a local disk mixes nearly as well as random order" in named
    # Where a disk is used already, and is too small to help.
    small = Budget(scratch_bytes=1)
    named = mixing_warning(order, ["s3://bucket/birds"], shuffled=[False], budget=small)
    assert 'mixing="best" mixes more, for more requests' in named
    best = Budget(mixing="best", scratch_bytes=1)
    order = make_order([Source(sizes, IDENTITY)], global_batch=batch, budget=best)
    named = mixing_warning(order, ["s3://bucket/birds"], shuffled=[False], budget=best)
    if named is not None:
        memory = int(re.search(r"memory_bytes=(\d+) mixes as well as random order", named)[1])
        assert recurrence(Budget(memory_bytes=memory, mixing="best"))[0] <= 1.1


def test_a_report_of_a_mixture_adds_its_sources():
    order = mixed_order(
        [sizes_of(100), sizes_of(40)], Mixture((1, 1), "all"), global_batch=4, plan=small_plan()
    )
    figures = report(order, global_batch=4, world_size=2)
    assert figures.epoch_bytes == 2000
    assert figures.open_windows == 2 * 1 * 2


def drawn_sizes(rnd):
    """Return shards of between 64 MB and some terabytes."""
    record = 2 ** rnd.uniform(6, 22)
    rows = [
        int(rnd.choice([1, 1, 3]) * 2 ** rnd.uniform(26, 38) / record) + 1 for _ in range(rnd.randint(1, 4))
    ]
    stored = [int(n * record * rnd.choice([1, 1, 0.4])) + 1 for n in rows]
    blocks = [
        min(n, -(-b // rnd.choice([1 << 12, 1 << 16, 1 << 20]))) for n, b in zip(rows, stored, strict=True)
    ]
    return ShardSizes(rows, stored, [int(n * record) + n for n in rows], blocks)


@pytest.mark.slow
def test_default_plans_are_those_of_the_specification(long):
    """A second derivation, from docs/order.md, agrees on hundreds of datasets, batches and budgets."""
    rnd = random.Random(14)
    for _ in range(500 if long else 150):
        sizes, batch = drawn_sizes(rnd), rnd.choice([1, 2, 7, 60, 64, 256, 1000, 2048, 4096])
        kind = rnd.choice(["local", "local", "decoded", "bucket"])
        mixing = rnd.choice(["cheap", "default", "default", "best"])
        memory = int(2 ** rnd.uniform(20, 34))
        kinds = {"local": kind == "local", "decoded": kind == "decoded"}
        plan = default_plan(
            sizes, global_batch=batch, budget=Budget(memory_bytes=memory, mixing=mixing, **kinds)
        )
        if not plan.interleaved:
            continue
        shape = default_shape(sizes, batch, memory=memory, mixing=mixing, kind=kind)
        assert (plan.ranks, plan.chunk_rows, plan.interleave) == shape
        assert (plan.window, plan.workers) == (plan.chunk_rows, 1)


def test_memory_for_less_than_a_record_is_a_warning():
    """There is no smaller plan; the memory that is named needs no warning, and chunks as well."""
    sizes = texts(100_000, 1000, 1000)
    for local in (True, False):
        budget = Budget(local=local, memory_bytes=1)
        order = make_order([Source(sizes, IDENTITY)], global_batch=64, budget=budget)
        check_memory(order, global_batch=64, memory_bytes=1)
        (line,) = advice(order, global_batch=64, budget=budget)
        assert "one record takes" in line
        more = replace(budget, memory_bytes=int(line.split("memory_bytes=")[2].split()[0]))
        order = make_order([Source(sizes, IDENTITY)], global_batch=64, budget=more)
        check_memory(order, global_batch=64, memory_bytes=more.memory_bytes)
        lines = advice(order, global_batch=64, budget=more)
        assert len(lines) == (not local)
        if lines:
            enough = replace(more, memory_bytes=int(lines[0].split("memory_bytes=")[2].split()[0]))
            order = make_order([Source(sizes, IDENTITY)], global_batch=64, budget=enough)
            assert not any("with its block" in line for line in advice(order, global_batch=64, budget=enough))


@pytest.mark.parametrize("rows", [1, 50, 69])
def test_a_dataset_that_fits_is_not_too_large_with_what_is_ahead(rows):
    sizes = texts(rows, 1000, 1)
    budget = Budget(memory_bytes=100_000)
    order = make_order([Source(sizes, IDENTITY)], global_batch=256, remainder="keep", budget=budget)
    check_memory(order, global_batch=256, memory_bytes=100_000)
