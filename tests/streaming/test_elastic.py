"""Streams deliver what the specification of the order says, through ranks, workers, threads and kills."""

from __future__ import annotations

import pytest

from tests.streaming.cases import Case, quietly


@pytest.mark.sampled(10)
@pytest.mark.parametrize("number", range(200))
def test_batches_are_those_of_the_oracle(number, seeded):
    """Local, memory, S3; compressed, adopted, deleted, filtered, joined, mixed, damaged; see `cases`."""
    quietly(Case(seeded))
