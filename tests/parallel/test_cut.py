"""Items into tasks: every item once, in order, the same each time."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from shardio.parallel import cut_jobs


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


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 50))
def test_jobs_hold_each_shard_once_and_end_where_they_are_large(sizes, most_bytes) -> None:
    jobs = cut_jobs(sizes, most_bytes=most_bytes)
    assert [number for job in jobs for number in range(*job)] == list(range(len(sizes)))
    for first, stop in jobs:
        assert 1 <= stop - first <= 16
        assert sum(sizes[first : stop - 1]) < most_bytes
        assert stop == len(sizes) or stop - first == 16 or sum(sizes[first:stop]) >= most_bytes
