"""Orders of words: the stable argsort, of any words, and the shuffles of ranges of a stream of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Philox

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


def exchanged(key: list[int], start: int, count: int) -> list[int]:
    """Fisher and Yates' exchanges with the words that NumPy's Philox gives."""
    bits = Philox(key=np.array(key, np.uint64))
    bits.advance(start // 4)
    raw = [int(word) for word in bits.random_raw(start % 4 + count)][start % 4 :]
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = raw[i] * (i + 1) // 2**64
        order[i], order[j] = order[j], order[i]
    return order


@pytest.mark.parametrize("kernels", IMPLEMENTATIONS, ids=lambda module: module.__name__)
@given(
    st.tuples(WORDS, WORDS),
    st.lists(st.tuples(st.integers(0, 1 << 45), st.integers(0, 40)), max_size=8),
)
def test_shuffles_of_any_ranges(kernels, key, ranges) -> None:
    starts, counts = np.array(ranges, np.int64).reshape(-1, 2).T
    found = kernels.shuffle_ranges(np.array(key, np.uint64), starts, counts)
    assert found.dtype == np.uint32
    assert found.tolist() == [at for start, count in ranges for at in exchanged(list(key), start, count)]


def test_ranges_that_cannot_be_are_refused(kernels) -> None:
    key = np.zeros(2, np.uint64)
    with pytest.raises(ValueError, match="a key has two words"):
        kernels.shuffle_ranges(key[:1], [0], [1])
    with pytest.raises(ValueError, match="as many starts as stops"):
        kernels.shuffle_ranges(key, [0], [1, 2])
    for start, count in ((-1, 1), (0, -1), (0, 1 << 32)):
        with pytest.raises(IndexError, match=f"range 0 has {count} places from {start} on"):
            kernels.shuffle_ranges(key, [start], [count])
