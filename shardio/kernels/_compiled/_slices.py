# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records out of buffers, as bytes objects or in one array."""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.libc.stdint import int64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.shardio.kernels._compiled._frame import Bytes

from shardio.kernels._arguments import as_bounds, as_bytes, as_pairs, as_rows, as_sources

COMPILED = cython.compiled


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def lie_inside(
    starts: cython.const[int64_t][::1], stops: cython.const[int64_t][::1], size: cython.Py_ssize_t
) -> cython.bint:
    """Tell whether every `[start, stop)` is inside `size` bytes."""
    k: cython.Py_ssize_t
    for k in range(starts.shape[0]):  # noqa: SIM110 (a generator would be a Python object)
        if starts[k] < 0 or starts[k] > stops[k] or stops[k] > size:
            return False
    return True


def checked_bounds(starts, stops, size):
    """Do what `as_bounds` does, and leave it to say what is wrong."""
    first, last = as_pairs(starts, stops)
    if not lie_inside(first, last, size):
        return as_bounds(first, last, size)
    return first, last


def slice_records(buffer, starts, stops):
    """Copy the ranges `[starts[i], stops[i])` of any contiguous buffer out as a list of bytes.

    Ranges may overlap and come in any order.

    Raises:
        IndexError: a range leaves the buffer.
    """
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
    """Copy records of equal length to the rows of `out`, which must not overlap the buffer.

    Args:
        buffer: any contiguous buffer.
        starts: int64[n], where the records begin; in any order, with repeats.
        length: bytes of every record.
        out: writable uint8[n, length] in C order.

    Raises:
        IndexError: a record leaves the buffer.
        ValueError: `out` has another shape or dtype.
    """
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
    """Copy the ranges `[starts[i], stops[i])` one after another.

    Returns:
        values: uint8[total]; record i is `values[offsets[i]:offsets[i + 1]]`.
        offsets: int64[n + 1], the first 0.

    Raises:
        IndexError: a range leaves the buffer.
    """
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
    """Copy ranges of several buffers one after another.

    Range i is `[starts[i], stops[i])` of `buffers[which[i]]`.

    Returns:
        values: uint8[total]; record i is `values[offsets[i]:offsets[i + 1]]`.
        offsets: int64[n + 1], the first 0.

    Raises:
        IndexError: there is no such buffer, or a range leaves it.
    """
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
