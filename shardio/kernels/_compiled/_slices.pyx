# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# Records out of buffers, as bytes objects or in one array.

import numpy as np
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.string cimport memcpy
from shardio.kernels._compiled._frame cimport Bytes

from shardio.kernels._arguments import as_bytes, as_pairs, as_rows, as_sources


# Check that every `[start, stop)` is inside a buffer of `size` bytes; return both as int64.
#
# Raises:
#     ValueError: there are not as many starts as stops.
#     IndexError: a range is turned round or leaves the buffer; names the first one.
def checked_bounds(starts, stops, Py_ssize_t size):
    pair = as_pairs(starts, stops)
    cdef const int64_t[::1] first = pair[0]
    cdef const int64_t[::1] last = pair[1]
    cdef Py_ssize_t k
    for k in range(first.shape[0]):
        if first[k] < 0 or first[k] > last[k] or last[k] > size:
            raise IndexError(f"range {k} is [{first[k]}, {last[k]}), which is not in a buffer of {size} bytes")
    return pair


# Copy the ranges `[starts[i], stops[i])` of any contiguous buffer out as a list of bytes.
#
# Ranges may overlap and come in any order.
#
# Raises:
#     IndexError: a range leaves the buffer.
def slice_records(buffer, starts, stops):
    cdef const unsigned char[::1] data = as_bytes(buffer)
    cdef const int64_t[::1] first
    cdef const int64_t[::1] last
    first, last = checked_bounds(starts, stops, data.shape[0])
    cdef Py_ssize_t count = first.shape[0]
    cdef Py_ssize_t row
    cdef list records = [None] * count
    cdef char* source = <char*> &data[0]  # only read where a range is
    for row in range(count):
        records[row] = PyBytes_FromStringAndSize(source + first[row], last[row] - first[row])
    return records


# Copy records of equal length to the rows of `out`, which must not overlap the buffer.
#
# Args:
#     buffer: any contiguous buffer.
#     starts: int64[n], where the records begin; in any order, with repeats.
#     length: bytes of every record.
#     out: writable uint8[n, length] in C order.
#
# Raises:
#     IndexError: a record leaves the buffer.
#     ValueError: `out` has another shape or dtype.
def gather_fixed(buffer, starts, length, out):
    cdef const unsigned char[::1] data = as_bytes(buffer)
    cdef const int64_t[::1] first = as_rows(starts, length, out, data.shape[0])
    cdef Py_ssize_t size = length, row
    if not out.size:
        return
    cdef unsigned char[:, ::1] rows = out
    with nogil:
        for row in range(first.shape[0]):
            memcpy(&rows[row, 0], &data[0] + first[row], size)


# Copy ranges, each of the buffer that its source says, or all of the first one.
cdef _join(Bytes* buffers, const int64_t[::1] sources, const int64_t[::1] first, const int64_t[::1] last):
    cdef Py_ssize_t row
    cdef Bytes data = buffers[0]
    offsets = np.empty(first.shape[0] + 1, np.int64)
    cdef int64_t[::1] ends = offsets
    ends[0] = 0
    for row in range(first.shape[0]):
        ends[row + 1] = ends[row] + last[row] - first[row]
    values = np.empty(ends[first.shape[0]], np.uint8)
    cdef unsigned char[::1] out = values
    if values.size:
        with nogil:
            for row in range(first.shape[0]):
                if sources is not None:
                    data = buffers[sources[row]]
                memcpy(&out[0] + ends[row], data + first[row], last[row] - first[row])
    return values, offsets


# Copy the ranges `[starts[i], stops[i])` one after another.
#
# Returns:
#     values: uint8[total]; record i is `values[offsets[i]:offsets[i + 1]]`.
#     offsets: int64[n + 1], the first 0.
#
# Raises:
#     IndexError: a range leaves the buffer.
def gather(buffer, starts, stops):
    cdef const unsigned char[::1] data = as_bytes(buffer)
    cdef Bytes place = &data[0] if data.shape[0] else NULL
    first, last = checked_bounds(starts, stops, data.shape[0])
    return _join(&place, None, first, last)


# Copy ranges of several buffers one after another: range i is `[starts[i], stops[i])` of `buffers[which[i]]`.
#
# Returns:
#     As `gather`.
#
# Raises:
#     IndexError: there is no such buffer, or a range leaves it.
def gather_from(buffers, which, starts, stops):
    # The views keep the memory behind the addresses alive until the end of the call.
    views, number, first, last = as_sources(buffers, which, starts, stops)
    cdef const int64_t[::1] addresses = np.array([0, *(view.ctypes.data for view in views)], np.int64)
    return _join(<Bytes*> &addresses[1 if views else 0], number, first, last)
