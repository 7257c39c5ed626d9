"""Streams deliver what the specification of the order says, through ranks, workers, threads and kills."""

from __future__ import annotations

import pytest

from tests.streaming.cases import Case, quietly


# Of every second group the first case is slow, too.
@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.slow] if n % 20 == 10 else []) for n in range(200)]
)
def test_batches_are_those_of_the_oracle(number, seeded):
    """Local, memory, S3; compressed, adopted, deleted, filtered, joined, mixed, damaged; see `cases`."""
    quietly(Case(seeded))
