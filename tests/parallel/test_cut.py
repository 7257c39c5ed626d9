"""Items into tasks: every item once, in order, the same each time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from shardio.parallel import cut_jobs
from shardio.parallel._driver import cut_items


def check(cut, items) -> None:
    parts = list(cut.parts)
    assert [part.task for part in parts] == list(range(len(parts)))
    assert len(parts) >= 1
    assert [item for part in parts for item in part.items] == list(items)
    firsts = itertools.accumulate((len(part.items) for part in parts), initial=0)
    assert [part.first for part in parts] == list(firsts)[:-1]
    if cut.tasks:
        assert len(parts) == cut.tasks
        sizes = [len(part.items) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 5000), st.none() | st.integers(1, 300))
def test_a_sequence_is_cut_evenly(total, tasks) -> None:
    check(cut_items(range(total), tasks), range(total))


@given(st.integers(0, 900))
def test_an_iterator_is_taken_by_256(total) -> None:
    cut = cut_items(iter(range(total)), None)
    assert cut.tasks == 0
    check(cut, range(total))


def test_what_has_a_length_and_no_order_of_its_own_is_gone_through_once() -> None:
    items = dict.fromkeys(f"item {k}" for k in range(100))
    check(cut_items(items, 7), items)


@pytest.mark.parametrize(
    ("total", "tasks"),
    [(0, 1), (5, 5), (32, 32), (1000, 32), (131_072, 32), (1 << 20, 256), (10_000_000, 512)],
)
def test_the_usual_number_of_tasks_hangs_on_the_number_of_items_alone(total, tasks) -> None:
    assert cut_items(range(total), None).tasks == tasks


def test_tasks_need_a_known_number_of_items() -> None:
    with pytest.raises(ValueError, match="whose number is known"):
        cut_items(iter([1]), 3)


def test_a_stream_is_not_read_ahead() -> None:
    taken = 0

    def stream():
        nonlocal taken
        for k in range(10_000):
            taken = k
            yield k

    parts = cut_items(stream(), None).parts
    next(parts)
    assert taken <= 256


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 50))
def test_jobs_hold_each_shard_once_and_end_where_they_are_large(sizes, most_bytes) -> None:
    jobs = cut_jobs(sizes, most_bytes=most_bytes)
    assert [number for job in jobs for number in range(*job)] == list(range(len(sizes)))
    for first, stop in jobs:
        assert 1 <= stop - first <= 16
        assert sum(sizes[first : stop - 1]) < most_bytes
        assert stop == len(sizes) or stop - first == 16 or sum(sizes[first:stop]) >= most_bytes
