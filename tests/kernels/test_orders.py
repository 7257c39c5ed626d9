"""Permutations of words: shuffles of ranges of a stream of them, networks, rows of interleaved orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import Philox

from shardio.kernels import Interleaving, InterleavingState, Network
from tests.suites.errors import refused

WORDS = st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 1 << 63, (1 << 64) - 1])


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


def network(n: int, seed: int = 1) -> Network:
    bits = max(1, (n - 1).bit_length() // 2)
    words = np.random.default_rng(seed).integers(0, 1 << 64, 8, np.uint64)
    return Network(n, words, bits, max(1, -(-n >> bits)))


@pytest.mark.parametrize("n", [1, 2, 5, 4097, 65_537])
def test_a_network_permutes_and_is_undone(kernels, n) -> None:
    given_numbers = np.arange(n).reshape(-1, 1)
    found = kernels.permute(given_numbers, network(n))
    assert found.dtype == np.int64
    assert found.shape == (n, 1)
    assert np.array_equal(np.sort(found, axis=None), np.arange(n))
    assert np.array_equal(kernels.permute(found, network(n), forward=False), given_numbers)
    assert given_numbers.ravel().tolist() == list(range(n))


def shape_of(rnd) -> Interleaving:
    m, lanes, strands = rnd.choice([1, 2, 3, 8, 20]), rnd.randint(1, 4), rnd.choice([1, 2, 5, 9])
    window = rnd.randint(1, m)
    n = rnd.choice([0, 1, 7, rnd.randint(1, 400)])
    chunks, q = -(-n // m), n // lanes
    edges = np.cumsum([0, *(q + (k < n % lanes) for k in range(lanes))])
    lengths = np.diff(edges)
    rows = np.concatenate([[own // strands + (j < own % strands) for j in range(strands)] for own in lengths])
    moved = np.array([rnd.randrange(own) if own else 0 for own in rows.tolist()], np.int64)
    gap = chunks * m - n
    table = np.array(rnd.sample(range(chunks), chunks), np.int64)
    short = table.tolist().index(chunks - 1) if gap else -1
    if rnd.random() < 0.3 and not gap:
        table = np.zeros(0, np.int64)
    keys = np.array([rnd.getrandbits(64) for _ in range(4)], np.uint64)
    return Interleaving(
        m, window, strands, chunks, short, gap, edges, np.cumsum(rows) - rows, rows, moved, keys[:2],
        keys[2:], rnd.random() < 0.9 or not table.size, table, network(max(1, chunks), rnd.randint(0, 9)),
    )  # fmt: skip


def parts_of(rnd, shape: Interleaving) -> np.ndarray:
    """Return parts of any lanes, forward mostly; some come again."""
    parts = []
    for _ in range(rnd.randint(0, 6)):
        lane = rnd.randrange(shape.edges.size - 1)
        ends = sorted(rnd.randint(0, int(np.diff(shape.edges)[lane])) for _ in range(2))
        parts.append((lane, *ends))
    return np.array(parts, np.int64).reshape(-1, 3)


@settings(max_examples=max(50, settings().max_examples // 5), deadline=None)
@given(st.randoms(use_true_random=False))
def test_interleaved_rows_whatever_was_asked_before(kernels, rnd) -> None:
    """What is held between two questions changes no answer."""
    shape = shape_of(rnd)
    held = InterleavingState.from_shape(shape)
    for _ in range(4):
        parts = parts_of(rnd, shape)
        found = kernels.interleave(shape, parts, held)
        wanted = kernels.interleave(shape, parts, InterleavingState.from_shape(shape))
        for name, mine, right in zip(found._fields, found, wanted, strict=True):
            assert mine.dtype == np.int64
            assert mine.tolist() == right.tolist(), name


@pytest.mark.parametrize("part", [(2, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 3, 2), (1, 0, 6)])
def test_parts_of_no_lane_are_refused(kernels, part) -> None:
    five, nothing = np.array([0, 5, 10]), np.zeros(2, np.int64)
    key = np.zeros(2, np.uint64)
    edges = {"edges": five, "starts": five[:2], "rows": np.diff(five), "moved": nothing, "table": nothing}
    shape = Interleaving(
        chunk_rows=5, window=5, strands=1, chunks=2, short=-1, gap=0, rounds=key, places=key, shuffled=True,
        network=network(2), **edges,
    )  # fmt: skip
    held = InterleavingState.from_shape(shape)
    assert len(kernels.interleave(shape, [(0, 0, 5), (1, 2, 2)], held).row) == 5
    with pytest.raises(IndexError, match="not of a lane"):
        kernels.interleave(shape, [(0, 0, 1), part], held)
    with refused(ValueError, "shape"):
        kernels.interleave(shape, [1, 2, 3], held)


def test_large_windows_are_kept_too(kernels) -> None:
    """Were the permutation made again for each question, one row would cost as much as its whole window."""
    rows, strands = 1 << 20, 33
    edges, zeros, keys = np.array([0, rows * strands]), np.zeros(strands, np.int64), np.ones(2, np.uint64)
    shape = Interleaving(
        rows, rows, strands, strands, -1, 0, edges, np.arange(strands) * rows, np.full(strands, rows), zeros,
        keys, keys, True, np.arange(strands), network(strands),
    )  # fmt: skip
    held = InterleavingState.from_shape(shape)
    first = kernels.interleave(shape, [(0, 0, 1)], held)
    order = held.orders[first.strand[0]]
    assert np.array_equal(np.sort(order), np.arange(rows))
    order[0] ^= 1  # what is kept gives the answer
    assert kernels.interleave(shape, [(0, 0, 1)], held).row[0] == first.row[0] ^ 1
    # A row of it once more, by the exchanges of the law.
    assert first.row[0] == exchanged([1, 1], int(first.first[0]), rows)[0]
