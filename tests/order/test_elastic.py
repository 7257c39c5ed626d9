"""P12: resume is exact and elastic, for datasets and mixtures."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.order.cases import random_case, run_case


@settings(
    max_examples=max(50, settings().max_examples // 5), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(st.randoms(use_true_random=False))
def test_every_row_once_and_every_batch_as_of_one_process_through_all_kills(rnd):
    """The global batch of step s holds the same records in the same order, whatever the ranks and workers.

    Ranks, workers and the global batch may all change at a resume, of mixtures too.
    """
    run_case(random_case(rnd))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(150))
def test_fixed_cases(number):
    run_case(random_case(random.Random(10_000_000 + number)))
