"""Shards into slices for workers: each once, in order."""

from __future__ import annotations

from hypothesis import given, strategies as st

from shardio.parallel import cut_jobs


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 50))
def test_jobs_hold_each_shard_once_and_end_where_they_are_large(sizes, most_bytes) -> None:
    jobs = cut_jobs(sizes, most_bytes=most_bytes)
    assert [number for job in jobs for number in range(*job)] == list(range(len(sizes)))
    for first, stop in jobs:
        assert 1 <= stop - first <= 16
        assert sum(sizes[first : stop - 1]) < most_bytes
        assert stop == len(sizes) or stop - first == 16 or sum(sizes[first:stop]) >= most_bytes
