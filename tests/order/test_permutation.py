"""The full shuffle in constant memory: a bijection, and a random one."""

from __future__ import annotations

import math
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from shardio.order import Permutation
from tests.order.reference import words
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


@pytest.mark.parametrize("n", [160, 5008])
def test_places_and_numbers_are_independent(n):
    table = np.zeros((16, 16))
    for seed in range(60):
        np.add.at(table, (np.arange(n) * 16 // n, Permutation(n, seed)[np.arange(n)] * 16 // n), 1)
    expected = table.sum() / 256
    assert 0.6 < ((table - expected) ** 2).sum() / expected / 225 < 1.5


def test_all_permutations_of_four_come_equally_often():
    seen = {}
    for seed in range(4800):
        each = tuple(Permutation(4, seed)[np.arange(4)].tolist())
        seen[each] = seen.get(each, 0) + 1
    assert len(seen) == 24
    assert sum((count - 200) ** 2 for count in seen.values()) / 200 < 60


def test_neighbours_and_fixed_points_are_those_of_chance():
    n, at = 20_000, np.arange(20_000)
    serial, fixed = [], 0
    for seed in range(40):
        p = Permutation(n, seed)[at]
        serial.append(np.corrcoef(p[:-1], p[1:])[0, 1] * math.sqrt(n))
        fixed += int((p == at).sum())
    assert abs(np.mean(serial)) < 0.6
    assert 0.6 < np.std(serial) < 1.5
    assert 15 < fixed < 70


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


def by_the_page(n, x, raw):
    """Compute one number as docs/order.md says it, with Python's own integers."""
    low_bits = max(1, (n - 1).bit_length() // 2)
    b = -(-n // 2**low_bits)

    def mix(h, w):
        y = (h + w) * 0x9E3779B97F4A7C15 % 2**64
        return (y ^ y >> 32) * 0x9E3779B97F4A7C15 % 2**64

    while True:
        low, high = x % 2**low_bits, x // 2**low_bits
        for i in range(8):
            if i % 2 == 0:
                low ^= mix(high, raw[i]) >> (64 - low_bits)
            else:
                high = (high + ((mix(low, raw[i]) >> 32) * b >> 32)) % b
        x = high * 2**low_bits + low
        if x < n:
            return x


@pytest.mark.parametrize("n", [4097, 5000, 65_536, 1_281_167, 2**40 + 1, 2**62])
def test_it_is_what_the_page_says(n):
    raw = words("permutation", 9, 2, n).random_raw(8).tolist()
    at = sorted({0, 1, 17, n // 3, n // 2, n - 1})
    assert Permutation(n, 9, epoch=2)[at].tolist() == [by_the_page(n, x, raw) for x in at]
