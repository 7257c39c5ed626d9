# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Many reads by position in one call, compiled: `_local` has the same in Python, for where nothing was.

Thousands of pieces of local files are read for a batch or a window of small records. Each `os.pread` gives up
the interpreter's lock and asks for it back, for which a thread waits that shares it with others; here it is
given up once for all.

Raises:
    ImportError: this was not compiled here.
"""

from __future__ import annotations

import cython
import numpy as np

if not cython.compiled:
    message = "this was not compiled here"
    raise ImportError(message)

from cython.cimports.libc.errno import EINTR, errno
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t
from cython.cimports.posix.unistd import pread


def read_ranges(numbers, starts, stops, out):
    descriptors: cython.const[int32_t][::1] = np.ascontiguousarray(numbers, np.int32)
    begins: cython.const[int64_t][::1] = np.ascontiguousarray(starts, np.int64)
    ends: cython.const[int64_t][::1] = np.ascontiguousarray(stops, np.int64)
    data: uint8_t[::1] = out
    count: cython.Py_ssize_t = descriptors.shape[0]
    room: cython.Py_ssize_t = data.shape[0]
    at: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t
    found: cython.Py_ssize_t
    k: cython.Py_ssize_t
    code: cython.int = 0
    fits: cython.bint = begins.shape[0] == count and ends.shape[0] == count
    ended: cython.bint = False
    if fits:
        with cython.nogil:
            for k in range(count):
                left = ends[k] - begins[k]
                if begins[k] < 0 or left < 0 or left > room - at:
                    fits = False
                    break
                while left > 0:
                    found = pread(descriptors[k], cython.address(data[at]), left, ends[k] - left)
                    if found > 0:
                        at += found
                        left -= found
                    elif found == 0:
                        ended = True
                        break
                    elif errno != EINTR:
                        code = errno
                        break
                if ended or code:
                    break
    if not fits:
        msg = f"ranges need 0 <= starts <= stops, and {room} bytes must hold them all"
        raise ValueError(msg)
    return at, code


def advise_ranges(numbers, starts, stops):
    descriptors: cython.const[int32_t][::1] = np.ascontiguousarray(numbers, np.int32)
    begins: cython.const[int64_t][::1] = np.ascontiguousarray(starts, np.int64)
    ends: cython.const[int64_t][::1] = np.ascontiguousarray(stops, np.int64)
    k: cython.Py_ssize_t
    with cython.nogil:
        for k in range(min(descriptors.shape[0], begins.shape[0], ends.shape[0])):
            shardio_will_need(descriptors[k], begins[k], ends[k] - begins[k])
