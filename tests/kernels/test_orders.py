"""Orders of words: the stable argsort, of random words and of words that are anything but random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.differential import IMPLEMENTATIONS

WORDS = st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 1 << 63, (1 << 64) - 1])


def expected(words: np.ndarray) -> list[int]:
    return sorted(range(words.size), key=lambda at: int(words[at]))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 4097])
def test_random_words(kernels, count) -> None:
    words = np.random.default_rng(count).integers(0, 1 << 64, count, np.uint64)
    order = kernels.argsort_words(words)
    assert order.dtype == np.int64
    assert order.tolist() == expected(words)


@pytest.mark.parametrize("shift", [0, 32, 60])
@pytest.mark.parametrize("values", [1, 2, 16])
def test_equal_words_stay_in_order(kernels, values, shift) -> None:
    words = np.random.default_rng(7).integers(0, values, 3000, np.uint64) << np.uint64(shift)
    assert kernels.argsort_words(words).tolist() == expected(words)


@pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=lambda module: module.__name__)
@given(
    st.lists(st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 1 << 63, (1 << 64) - 1]), max_size=200)
)
def test_any_words(kernels, words) -> None:
    given_words = np.array(words, np.uint64)
    before = given_words.copy()
    assert kernels.argsort_words(given_words).tolist() == expected(given_words)
    assert given_words.tobytes() == before.tobytes()


def test_rows_and_strided_words(kernels) -> None:
    words = np.random.default_rng(3).integers(0, 1 << 64, (4, 9), np.uint64)
    assert kernels.argsort_words(words).tolist() == [expected(row) for row in words]
    assert kernels.argsort_words(words[:, 2]).tolist() == expected(words[:, 2])
