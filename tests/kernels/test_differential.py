"""The compiled parser and protobuf's own: the same values or the same refusal, whatever the bytes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from tests.kernels.differential import IMPLEMENTATIONS, draw, outcome


@settings(max_examples=max(40, settings().max_examples // 4))
@given(st.randoms(use_true_random=False))
def test_implementations_agree_on_drawn_messages(random: Random) -> None:
    """Accept every form of fields, repeated keys and unknown fields; refuse what protobuf refuses."""
    records, features, lists = draw(random)
    outcomes = [outcome(module, records, features, lists) for module in IMPLEMENTATIONS]
    assert all(found == outcomes[0] for found in outcomes)


@pytest.mark.slow
def test_implementations_agree_on_a_few_thousand_more() -> None:
    """The same without hypothesis, which draws slowly; the seed is fixed, so that a failure repeats."""
    random = Random(20_240_601)
    kinds = set()
    for _ in range(4000):
        records, features, lists = draw(random)
        outcomes = [outcome(module, records, features, lists) for module in IMPLEMENTATIONS]
        assert all(found == outcomes[0] for found in outcomes), (records, features, lists)
        kinds.add(outcomes[0][0])
    assert kinds == {"values", "mismatch", "refused"}


@settings(max_examples=max(30, settings().max_examples // 5))
@given(st.lists(st.binary(max_size=40), max_size=3))
def test_implementations_agree_on_plain_noise(records: list[bytes]) -> None:
    for lists in (None, []):
        outcomes = [outcome(module, records, [], lists) for module in IMPLEMENTATIONS]
        assert all(found == outcomes[0] for found in outcomes)
