"""Streams deliver what the order says: through any ranks, workers, threads, kills and changes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.streaming.cases import Case, quietly


@settings(
    max_examples=max(20, settings().max_examples // 5), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(st.randoms(use_true_random=False))
def test_every_record_once_and_every_batch_as_of_one_process_through_all_kills(rnd):
    """Over shards (empty too), rows, ranks 1-8, workers 0-8, threads, batch, plan, compressions, deletions,
    slices, mixtures and kills with changed ranks, workers and batch: the global batches are those of the
    arithmetic, with the records that lookups give, and their union is the epoch.
    """
    quietly(Case(rnd))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("number", range(80))
def test_cases_of_the_seed(number, seeded):
    quietly(Case(seeded))
