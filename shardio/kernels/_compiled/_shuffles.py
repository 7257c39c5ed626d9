# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Permutations of ranges of places, compiled: the same function as in `_reference`, which documents it."""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.shardio.kernels._compiled._philox import shardio_shuffle

from shardio.kernels._arguments import as_ranges

COMPILED = cython.compiled


def shuffle_ranges(words, starts, counts):
    key, starts, counts = as_ranges(words, starts, counts)
    k0: uint64_t = int(key[0])
    k1: uint64_t = int(key[1])
    first: cython.const[int64_t][::1] = starts
    many: cython.const[int64_t][::1] = counts
    found = np.empty(int(counts.sum()), np.uint32)
    out: uint32_t[::1] = found
    number: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    if out.shape[0]:
        with cython.nogil:
            for number in range(many.shape[0]):
                if many[number]:
                    shardio_shuffle(k0, k1, first[number], many[number], cython.address(out[at]))
                at += many[number]
    return found
