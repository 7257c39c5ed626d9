"""Orders of random words: what permutations are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Philox

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
            bits = Philox(key=key)
            bits.advance(start // 4)
            raw = bits.random_raw(start % 4 + count)[start % 4 :].tolist()
            for i in range(count - 1, 0, -1):
                other = raw[i] * (i + 1) >> 64
                order[i], order[other] = order[other], order[i]
        found[at : at + count] = order
        at += count
    return found
