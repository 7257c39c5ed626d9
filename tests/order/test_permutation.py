"""The full shuffle in constant memory: a bijection, and the one that docs/order.md specifies."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio.order import Permutation
from tests.order.reference import permuted, words
from tests.suites.errors import refused

SIZES = [0, 1, 2, 3, 5, 64, 4095, 4096, 4097, 5000, 8192, 8193, 65_536, 65_537, 100_003]


@pytest.mark.parametrize("n", SIZES)
def test_it_is_a_bijection_with_an_inverse(n):
    """`Permutation(n, seed)`: a bijection on [0, n)."""
    p, at = Permutation(n, 11), np.arange(n)
    assert len(p) == n
    np.testing.assert_array_equal(np.sort(p[at]), at)
    np.testing.assert_array_equal(p.inverse(p[at]), at)
    assert p[at].dtype == np.int64
    if n <= 5000:
        assert list(p) == p[at].tolist() == [p[i] for i in range(n)]


@settings(deadline=None)
@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_it_stays_inside_and_comes_back_for_any_size(n, seed, data):
    p = Permutation(n, seed)
    at = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), np.int64)
    assert np.all((p[at] >= 0) & (p[at] < n))
    np.testing.assert_array_equal(p.inverse(p[at]), at)


def test_it_holds_constant_memory():
    """A bijection on [0, n) in O(1) memory."""
    for n in (4096, 10**9, 2**62):
        assert sum(sys.getsizeof(value) for value in vars(Permutation(n, 0)).values()) < 40_000


def test_shapes_order_and_repeats_are_those_of_the_index():
    p = Permutation(10_000, 3)
    grid = np.array([[5, 5], [9999, 0]], np.int32)
    assert p[grid].tolist() == [[p[5], p[5]], [p[9999], p[0]]]
    assert p[-1] == p[9999]
    assert p[[]].tolist() == []
    assert pickle.loads(pickle.dumps(p))[17] == p[17]


def test_seeds_epochs_and_sizes_differ():
    at = np.arange(5000)
    made = [Permutation(5000, 1), Permutation(5000, 2), Permutation(5000, 1, epoch=1), Permutation(5001, 1)]
    first = [p[at].tolist() for p in made]
    assert len({tuple(each) for each in first}) == 4


def test_mistakes_are_named():
    p = Permutation(10, 0)
    for index in (10, -11):
        with pytest.raises(IndexError):
            p[index]
    with refused(IndexError, "numbers"):
        p[[-1, 3]]
    with pytest.raises(TypeError, match="takes integers, found an array of float64"):
        p[[0.5]]
    with refused(ValueError, "n"):
        Permutation(-1)
    with refused(TypeError, "n"):
        Permutation(2.0)
    with refused(ValueError, "seed"):
        Permutation(3, -1)


@pytest.mark.parametrize("n", [4097, 5000, 65_536, 1_281_167, 2**40 + 1, 2**62])
def test_it_is_what_the_page_says(n):
    raw = words("permutation", 9, 2, n).random_raw(8).tolist()
    at = sorted({0, 1, 17, n // 3, n // 2, n - 1})
    assert Permutation(n, 9, epoch=2)[at].tolist() == [permuted(n, x, raw) for x in at]
