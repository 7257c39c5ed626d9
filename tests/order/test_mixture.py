"""Mixtures: exact proportions everywhere, three ways to stop, and the same laws as one dataset."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.order import Mixture
from tests.order.reference import mixed_lanes
from tests.order.shapes import mixed_order, sizes_of, small_plan
from tests.suites.errors import refused


def lanes_of(order, global_batch=4, epoch=0):
    lanes = order.lanes(epoch, global_batch)
    for lane, length in enumerate(lanes.lane_lengths.tolist()):
        yield lanes.rows(np.array([[lane, 0, length]]))


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_period_holds_the_exact_proportions(shuffle):
    mixture = Mixture((3, 1, 2))
    order = mixed_order(
        [sizes_of(90), sizes_of(20, 13), sizes_of(50)],
        mixture, global_batch=4, plan=small_plan(), shuffle=shuffle,
    )  # fmt: skip
    orders = set()
    for rows in lanes_of(order):
        for period in rows.sources.reshape(-1, 6):
            assert Counter(period.tolist()) == {0: 3, 1: 1, 2: 2}
            orders.add(tuple(period.tolist()))
    assert len(orders) > 5 if shuffle else orders == {(0, 2, 0, 1, 2, 0)}


def test_stop_all_delivers_every_row_and_begins_again_in_another_order():
    order = mixed_order(
        [sizes_of(12), sizes_of(200)], Mixture((1, 1), "all"), global_batch=4, plan=small_plan()
    )
    seen = Counter()
    for rows in lanes_of(order):
        seen.update(zip(rows.sources.tolist(), rows.positions.tolist(), strict=True))
        assert set(rows.cycles[rows.sources == 1].tolist()) == {0}
        again = rows.positions[rows.sources == 0]
        assert rows.cycles[rows.sources == 0].max() >= 15
        assert len({tuple(again[i : i + 3].tolist()) for i in range(0, 45, 3)}) > 1
    assert {row for row in seen if row[0] == 0} == {(0, i) for i in range(12)}
    assert {row: n for row, n in seen.items() if row[0] == 1} == {(1, i): 1 for i in range(200)}


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), st.integers(1, 2000))
def test_counts_are_those_of_the_largest_remainder(weights, period):
    """Weights become integers over a period by largest remainder."""
    try:
        counts = Mixture.from_weights(weights, period=period).counts
    except ValueError as error:
        assert "gets no place" in str(error)  # noqa: PT017 -- the other outcome is as good
        return
    shares = [Fraction(w) / sum(map(Fraction, weights)) * period for w in weights]
    assert sum(counts) == period
    assert all(abs(count - share) < 1 for count, share in zip(counts, shares, strict=True))
    up = [share % 1 for count, share in zip(counts, shares, strict=True) if count > share]
    down = [share % 1 for count, share in zip(counts, shares, strict=True) if count < share]
    assert not up or not down or min(up) >= max(down)


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([0.7, 0.3], (7, 3)),
        ([1, 1, 1], (1, 1, 1)),
        ([2, 6], (1, 3)),
        ([0.999, 0.001], (999, 1)),
        ([1, 2**0.5], (414, 586)),
        ([1, 1e-4], (10_000, 1)),
        ([5], (1,)),
    ],
)
def test_the_period_is_the_smallest_that_is_exact(weights, counts):
    assert Mixture.from_weights(weights).counts == counts


@pytest.mark.parametrize("weights", [[], [0.0, 1.0], [-1.0], [float("nan")], [float("inf")]])
def test_weights_that_are_none(weights):
    with refused(ValueError, "weights"):
        Mixture.from_weights(weights)


def test_mixtures_that_cannot_be():
    with refused(ValueError, "source 1"):
        Mixture.from_weights([1, 1e-3], period=10)
    for counts in ((), (0, 1)):
        with pytest.raises(ValueError, match="a count of at least 1"):
            Mixture(counts)
    for stop in ("last", 0, True, -1):
        with refused(ValueError, "stop"):
            Mixture((1, 1), stop)
    order = mixed_order(
        [sizes_of(3), sizes_of(30)], Mixture((1, 1), "all"), global_batch=4, plan=small_plan()
    )
    with refused(ValueError, "source 0", "lane 3"):
        order.schedule(0, 4)
    with pytest.raises(ValueError, match="2 sources given for a mixture of 3"):
        mixed_order([sizes_of(3), sizes_of(3)], Mixture((1, 1, 1)), global_batch=4)


def test_long_lanes_go_on_in_the_same_stream_of_words():
    """Period m of a lane takes words [m P, (m + 1) P) of the lane's stream; any place costs the same."""
    sizes, mixture = [sizes_of(4000), sizes_of(1500)], Mixture((5, 2))
    plan = small_plan(1, 2, chunk_rows=200)
    order = mixed_order(sizes, mixture, global_batch=4, plan=plan, seed=4)
    expected = mixed_lanes(sizes, [plan, plan], mixture, seed=4, epoch=1, global_batch=4)
    lanes = order.lanes(1, 4)
    for lane in range(2):
        assert lanes.lane_lengths[lane] == len(expected[lane]) > 2100
        for start, stop in ((0, len(expected[lane])), (2050, 2090), (1000, 1050), (3, 4)):
            rows = lanes.rows(np.array([[lane, start, stop]]))
            made = zip(rows.sources.tolist(), rows.cycles.tolist(), rows.positions.tolist(), strict=True)
            assert list(made) == expected[lane][start:stop]
