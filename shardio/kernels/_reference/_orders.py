"""Orders of random words: what permutations are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
