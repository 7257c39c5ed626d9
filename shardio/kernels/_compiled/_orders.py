# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Orders of random words, compiled: the same function as in `_reference`, which documents it."""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.libc.stdint import int64_t, uint64_t

from shardio.kernels._reference._orders import argsort_words as argsort_any_words

COMPILED = cython.compiled

# Beyond this many words of one bucket the words are not random, and insertion would be slow.
_MOST_IN_A_BUCKET = 64


def argsort_words(words):
    raw = np.ascontiguousarray(words, np.uint64)
    if raw.ndim != 1 or raw.size < 2:
        return argsort_any_words(raw)
    # About one word a bucket: buckets are the words' top bits, so that sorting them is one scatter, and
    # insertion finishes within each.  The scatter goes through the words in order, which keeps equal ones so.
    data: cython.const[uint64_t][::1] = raw
    count: cython.Py_ssize_t = data.shape[0]
    bits: cython.int = (raw.size - 1).bit_length()
    shift: cython.int = 64 - bits
    edges: int64_t[::1] = np.zeros((1 << bits) + 1, np.int64)
    order = np.empty(count, np.int64)
    found: int64_t[::1] = order
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    bucket: cython.Py_ssize_t
    start: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    most: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    item: int64_t
    with cython.nogil:
        for row in range(count):
            edges[data[row] >> shift] += 1
        for bucket in range(edges.shape[0]):
            size = edges[bucket]
            most = max(most, size)
            edges[bucket] = total
            total += size
    if most > _MOST_IN_A_BUCKET:
        return argsort_any_words(raw)
    with cython.nogil:
        for row in range(count):
            bucket = data[row] >> shift
            found[edges[bucket]] = row
            edges[bucket] += 1
        start = 0
        for bucket in range(edges.shape[0] - 1):
            for row in range(start + 1, edges[bucket]):
                item = found[row]
                at = row
                while at > start and data[found[at - 1]] > data[item]:
                    found[at] = found[at - 1]
                    at -= 1
                found[at] = item
            start = edges[bucket]
    return order
