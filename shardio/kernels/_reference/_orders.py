"""Orders of random words: what permutations are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardio.kernels._arguments import as_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray


def argsort_words(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the order of words along the last axis, equal words in the order they came.

    Args:
        words: uint64 of any shape; one row of random ones is what this is made to be fast for.

    Returns:
        int64 of the same shape.
    """
    return np.argsort(words, axis=-1, kind="stable").astype(np.int64, copy=False)


def shuffle_ranges(
    words: NDArray[np.uint64], starts: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Return a permutation for each range of places of a stream, one after another.

    Every place of the stream has a word of its own, the word of that number of Philox-4x64-10 under the key.
    The permutation of n places that begin at place s is made by Fisher and Yates' exchanges: for i = n - 1
    down to 1 entry i changes places with entry `word(s + i) * (i + 1) >> 64`.

    Args:
        words: the key, uint64[2].
        starts: int64[n], first place of each range, at least 0.
        counts: int64[n], places of each range, 0 to 2**32 - 1.

    Returns:
        uint32[sum of counts]: each range's permutation of 0 .. count - 1.
    """
    key, starts, counts = as_ranges(words, starts, counts)
    found = np.empty(int(counts.sum()), np.uint32)
    at = 0
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        order = list(range(count))
        if count > 1:
            blocks = [
                _philox(int(key[0]), int(key[1]), number)
                for number in range(start // 4, (start + count + 3) // 4)
            ]
            raw = [word for block in blocks for word in block]
            for i in range(count - 1, 0, -1):
                other = raw[start % 4 + i] * (i + 1) >> 64
                order[i], order[other] = order[other], order[i]
        found[at : at + count] = order
        at += count
    return found


def _philox(k0: int, k1: int, number: int) -> tuple[int, int, int, int]:
    """Return a block of four words of Philox-4x64-10."""
    full = (1 << 64) - 1
    c0, c1, c2, c3 = number + 1, 0, 0, 0
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = right >> 64 ^ c1 ^ k0, right & full, left >> 64 ^ c3 ^ k1, left & full
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & full, (k1 + 0xBB67AE8584CAA73B) & full
    return c0, c1, c2, c3
