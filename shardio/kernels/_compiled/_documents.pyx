# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# JSON documents, a line each.

from libc.stdint cimport int64_t
from shardio.kernels._compiled._json cimport shardio_is_json

from shardio.kernels._arguments import as_bytes


# Return the first line from `first` on that is not clearly one JSON document, or the number of lines.
#
# A line in doubt may be a document all the same; one that is passed is a document.
#
# Args:
#     data: lines in a row, UTF-8.
#     stops: int64, where each line ends in `data`; whitespace at its end is no part of it.
#     first: number of the line to begin with.
#
# Raises:
#     IndexError: a line ends outside of `data`.
def count_documents(data, stops, first=0):
    cdef const unsigned char[::1] text = as_bytes(data)
    cdef const int64_t[::1] ends = stops
    cdef Py_ssize_t count = ends.shape[0]
    cdef Py_ssize_t size = text.shape[0]
    cdef Py_ssize_t line = max(0, first)
    cdef int64_t start = ends[line - 1] if 0 < line <= count else 0
    with nogil:
        while line < count and 0 <= start <= ends[line] <= size:
            if not shardio_is_json(&text[0] + start, ends[line] - start):
                break
            start = ends[line]
            line += 1
    if line < count and not 0 <= start <= ends[line] <= size:
        raise IndexError("a line ends outside of the bytes")
    return line
