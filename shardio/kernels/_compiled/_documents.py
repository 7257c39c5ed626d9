# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""JSON documents, a line each."""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.shardio.kernels._compiled._json import shardio_is_json

from shardio.kernels._arguments import as_bytes

COMPILED = cython.compiled


def count_documents(data, stops, first=0):
    """Return the first line from `first` on that is not clearly one JSON document, or the number of lines.

    A line in doubt may be a document all the same; one that is passed is a document.

    Args:
        data: lines in a row, UTF-8.
        stops: int64, where each line ends in `data`; whitespace at its end is no part of it.
        first: number of the line to begin with.

    Raises:
        IndexError: a line ends outside of `data`.
    """
    text: cython.const[cython.uchar][::1] = as_bytes(data)
    ends: cython.const[int64_t][::1] = stops
    count: cython.Py_ssize_t = ends.shape[0]
    size: cython.Py_ssize_t = text.shape[0]
    line: cython.Py_ssize_t = max(0, first)
    start: int64_t = ends[line - 1] if 0 < line <= count else 0
    with cython.nogil:
        while line < count and 0 <= start <= ends[line] <= size:
            if not shardio_is_json(cython.address(text[0]) + start, ends[line] - start):
                break
            start = ends[line]
            line += 1
    if line < count and not 0 <= start <= ends[line] <= size:
        raise IndexError("a line ends outside of the bytes")
    return line
