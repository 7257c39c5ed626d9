"""The laws of merging byte ranges, as properties and as cases that once went wrong elsewhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardio.ranges import coalesce, distinct, scatter

SIZE = 300

items = st.lists(
    st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(sorted), max_size=40
)  # any order, repeats and empty ranges


def columns(pairs: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(items, st.integers(0, 20), st.none() | st.integers(1, 120))
def test_every_item_lies_inside_its_owner(pairs: list[list[int]], gap: int, max_bytes: int | None) -> None:
    starts, stops = columns(pairs)
    merged = coalesce(starts, stops, gap=gap, max_bytes=max_bytes)
    for start, stop, (owner, begin, end) in zip(starts, stops, merged.places, strict=True):
        assert end - begin == stop - start
        if start == stop:
            assert owner == -1
        else:
            assert merged.ranges[owner][0] + begin == start < stop <= merged.ranges[owner][1]


@given(items, st.integers(0, 20), st.integers(1, 120))
def test_merged_ranges_are_no_longer_than_asked_unless_one_item_is(
    pairs: list[list[int]], gap: int, max_bytes: int
) -> None:
    starts, stops = columns(pairs)
    merged = coalesce(starts, stops, gap=gap, max_bytes=max_bytes)
    for number, (start, stop) in enumerate(merged.ranges):
        longest = max(end - begin for owner, begin, end in merged.places if owner == number)
        assert 0 < stop - start <= max(max_bytes, longest)


@given(items, st.integers(0, 20))
def test_without_a_bound_merged_ranges_lie_further_apart_than_the_gap(
    pairs: list[list[int]], gap: int
) -> None:
    merged = coalesce(*columns(pairs), gap=gap)
    assert all(after[0] - before[1] > gap for before, after in itertools.pairwise(merged.ranges))


@given(items, st.integers(0, 20), st.none() | st.integers(1, 120))
def test_no_byte_is_fetched_without_cause(pairs: list[list[int]], gap: int, max_bytes: int | None) -> None:
    """A run of unneeded bytes inside a merged range is never longer than the gap."""
    starts, stops = columns(pairs)
    merged = coalesce(starts, stops, gap=gap, max_bytes=max_bytes)
    needed = np.zeros(SIZE, np.bool_)
    for start, stop in pairs:
        needed[start:stop] = True
    for start, stop in merged.ranges:
        vain = "".join("x" if hit else "." for hit in needed[start:stop]).split("x")
        assert max(map(len, vain)) <= gap


@given(items, st.integers(0, 20), st.none() | st.integers(1, 120), st.randoms(use_true_random=False))
def test_the_order_of_the_items_does_not_matter(pairs, gap, max_bytes, random) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)
    first = coalesce(*columns(pairs), gap=gap, max_bytes=max_bytes)
    second = coalesce(*columns(shuffled), gap=gap, max_bytes=max_bytes)
    assert first.ranges == second.ranges


@given(items, st.integers(0, 20), st.none() | st.integers(1, 120))
def test_scatter_hands_back_exactly_what_was_asked(
    pairs: list[list[int]], gap: int, max_bytes: int | None
) -> None:
    content = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()
    starts, stops = columns(pairs)
    merged = coalesce(starts, stops, gap=gap, max_bytes=max_bytes)
    got = scatter([content[a:b] for a, b in merged.ranges], merged)
    assert [bytes(view) for view in got] == [content[a:b] for a, b in pairs]


def test_identical_ranges_are_all_answered() -> None:
    merged = coalesce([5, 5, 5], [9, 9, 9])
    assert merged == ([(5, 9)], [(0, 0, 4)] * 3)


def test_items_within_a_long_one_share_its_range() -> None:
    merged = coalesce([0, 10, 990, 1500], [1000, 20, 1000, 1510], gap=1000, max_bytes=16)
    assert [owner for owner, _, _ in merged.places] == [0, 0, 0, 1]


def test_offsets_near_the_end_of_int64_do_not_overflow() -> None:
    top = 2**63 - 1
    merged = coalesce([0, top - 5], [1, top], gap=top, max_bytes=10)
    assert [stop for _, stop in merged.ranges] == [1, top]


@pytest.mark.parametrize(
    ("starts", "stops", "options"),
    [
        ([-1], [3], {}),
        ([4], [3], {}),
        ([1, 2], [3], {}),
        ([[1]], [[3]], {}),
        ([1], [3], {"gap": -1}),
        ([1], [3], {"max_bytes": 0}),
        (np.array([2**63], np.uint64), np.array([2**63 + 1], np.uint64), {}),
    ],
)
def test_senseless_ranges_are_refused(starts, stops, options) -> None:
    with pytest.raises(ValueError, match=r"range|starts and stops|gap"):
        coalesce(starts, stops, **options)


def test_scatter_refuses_answers_of_the_wrong_length() -> None:
    merged = coalesce([0, 10], [5, 15])
    with pytest.raises(ValueError, match="right length"):
        scatter([b"12345", b"1234"], merged)


def test_distinct_numbers_are_those_of_numpy():
    for count in (0, 1, 2, 100):
        numbers = np.random.default_rng(count).integers(-9, 9, count)
        assert distinct(numbers).tolist() == np.unique(numbers).tolist()
