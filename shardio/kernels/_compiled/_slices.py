# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records out of one buffer, compiled: the same functions as in `_reference`, which documents them."""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.libc.stdint import int64_t
from cython.cimports.libc.string import memcpy

from shardio.kernels._arguments import as_bytes, as_rows, as_sources
from shardio.kernels._compiled._memory import checked_bounds

COMPILED = cython.compiled

Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))


def slice_records(buffer, starts, stops):
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    first: cython.const[int64_t][::1]
    last: cython.const[int64_t][::1]
    first, last = checked_bounds(starts, stops, data.shape[0])
    count: cython.Py_ssize_t = first.shape[0]
    row: cython.Py_ssize_t
    records: list = [None] * count
    source: cython.p_char = cython.cast(cython.p_char, cython.address(data[0]))  # only read where a range is
    for row in range(count):
        records[row] = PyBytes_FromStringAndSize(source + first[row], last[row] - first[row])
    return records


def gather_fixed(buffer, starts, length, out):
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    first: cython.const[int64_t][::1] = as_rows(starts, length, out, data.shape[0])
    size: cython.Py_ssize_t = length
    row: cython.Py_ssize_t
    if not out.size:
        return
    rows: cython.uchar[:, ::1] = out
    with cython.nogil:
        for row in range(first.shape[0]):
            memcpy(cython.address(rows[row, 0]), cython.address(data[0]) + first[row], size)


def gather(buffer, starts, stops):
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    first: cython.const[int64_t][::1]
    last: cython.const[int64_t][::1]
    first, last = checked_bounds(starts, stops, data.shape[0])
    row: cython.Py_ssize_t
    offsets = np.empty(first.shape[0] + 1, np.int64)
    ends: int64_t[::1] = offsets
    ends[0] = 0
    with cython.nogil:
        for row in range(first.shape[0]):
            ends[row + 1] = ends[row] + last[row] - first[row]
    values = np.empty(ends[first.shape[0]], np.uint8)
    out: cython.uchar[::1] = values
    if values.size:
        with cython.nogil:
            for row in range(first.shape[0]):
                memcpy(
                    cython.address(out[0]) + ends[row],
                    cython.address(data[0]) + first[row],
                    last[row] - first[row],
                )
    return values, offsets


def gather_from(buffers, which, starts, stops):
    # The views keep the memory behind the addresses alive until the end of the call.
    views, number, begins, ends_ = as_sources(buffers, which, starts, stops)
    addresses: cython.const[int64_t][::1] = np.array(
        [view.__array_interface__["data"][0] for view in views], np.int64
    )
    sources: cython.const[int64_t][::1] = number
    first: cython.const[int64_t][::1] = begins
    last: cython.const[int64_t][::1] = ends_
    row: cython.Py_ssize_t
    offsets = np.empty(first.shape[0] + 1, np.int64)
    ends: int64_t[::1] = offsets
    ends[0] = 0
    with cython.nogil:
        for row in range(first.shape[0]):
            ends[row + 1] = ends[row] + last[row] - first[row]
    values = np.empty(ends[first.shape[0]], np.uint8)
    out: cython.uchar[::1] = values
    if values.size:
        with cython.nogil:
            for row in range(first.shape[0]):
                memcpy(
                    cython.address(out[0]) + ends[row],
                    cython.cast(Bytes, addresses[sources[row]]) + first[row],
                    last[row] - first[row],
                )
    return values, offsets
