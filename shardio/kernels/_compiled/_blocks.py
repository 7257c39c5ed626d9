# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Payloads of whole blocks of frames, compiled: the same functions as in `_reference`, which documents them.

A block is compared with its checksum and cut while it is still in the processor's cache: that is why both are
one function.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.cpython.list import PyList_New, PyList_SET_ITEM
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.libc.stdint import int64_t, uint32_t
from cython.cimports.shardio.kernels._compiled._crc import shardio_crc, shardio_crc_begin

from shardio.kernels._arguments import MOST_BASE, as_bytes, as_checks, as_frames, check_rows, frame_outside

COMPILED = cython.compiled
_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

HEAD = cython.declare(cython.Py_ssize_t, 12)
FRAME = cython.declare(cython.Py_ssize_t, 16)
MOST = cython.declare(int64_t, MOST_BASE)

Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))


@cython.cfunc
def _cut(
    data: Bytes,
    size: int64_t,
    base: int64_t,
    stops: cython.const[uint32_t][::1],
    row: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    records: list,
):
    """Put the payloads of the frames `row .. last - 1` into the list; the first begins at `base`."""
    start: int64_t = base
    stop: int64_t
    while row < last:
        stop = base + stops[row]
        if start < 0 or stop - start < FRAME or stop > size:
            raise frame_outside(row, start, stop, size)
        record = PyBytes_FromStringAndSize(
            cython.cast(cython.p_char, data + start + HEAD), stop - start - FRAME
        )
        # The list takes a reference of its own, and every place of it is filled once.
        Py_INCREF(record)
        PyList_SET_ITEM(records, row, record)
        start = stop
        row += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _right(
    size: int64_t,
    base: int64_t,
    length: int64_t,
    stops: cython.pointer[cython.const[uint32_t]],
    count: int64_t,
) -> cython.bint:
    """Tell whether frames fill a block that is in the buffer."""
    row: int64_t
    before: int64_t = 0
    if base < 0 or length < 0 or length > size or base > size - length:
        return False
    for row in range(count):
        if stops[row] < before + FRAME:
            return False
        before = stops[row]
    return count == 0 or before == length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_up(
    bases: cython.const[int64_t][::1], counts: cython.const[int64_t][::1], total: int64_t
) -> cython.bint:
    """Do what `check_rows` does, in a tenth of the time, and leave it to say what is wrong."""
    block: cython.Py_ssize_t
    for block in range(counts.shape[0]):
        if counts[block] < 0 or counts[block] > total or bases[block] > MOST:
            return False
        total -= counts[block]
    return total == 0


def slice_frames(buffer, bases, rows, frame_stops):
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    firsts: cython.const[int64_t][::1]
    counts: cython.const[int64_t][::1]
    stops: cython.const[uint32_t][::1]
    first_, counts_, stops_ = as_frames(bases, rows, frame_stops)
    firsts, counts, stops = first_, counts_, stops_
    if not _add_up(firsts, counts, stops.shape[0]):
        check_rows(first_, counts_, stops_)
    first: Bytes = cython.address(data[0]) if data.shape[0] else cython.NULL
    block: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    records: list = PyList_New(stops.shape[0])
    for block in range(firsts.shape[0]):
        _cut(first, data.shape[0], firsts[block], stops, row, row + counts[block], records)
        row += counts[block]
    return records


def slice_blocks(buffer, bases, rows, frame_stops, checks):
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    firsts: cython.const[int64_t][::1]
    counts: cython.const[int64_t][::1]
    stops: cython.const[uint32_t][::1]
    first_, counts_, stops_ = as_frames(bases, rows, frame_stops)
    firsts, counts, stops = first_, counts_, stops_
    if not _add_up(firsts, counts, stops.shape[0]):
        check_rows(first_, counts_, stops_)
    lengths: cython.const[int64_t][::1]
    frame_crcs: cython.const[uint32_t][::1]
    crcs: cython.const[uint32_t][::1]
    lengths, frame_crcs, crcs = as_checks(checks, firsts.shape[0])
    verify: cython.bint = crcs.shape[0] == firsts.shape[0]
    size: int64_t = data.shape[0]
    first: Bytes = cython.address(data[0]) if size else cython.NULL
    ends: cython.pointer[cython.const[uint32_t]] = cython.address(stops[0]) if stops.shape[0] else cython.NULL
    block: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    right: cython.bint
    records: list = PyList_New(stops.shape[0])
    for block in range(firsts.shape[0]):
        with cython.nogil:
            right = (
                shardio_crc(0, cython.cast(Bytes, ends + row), 4 * counts[block]) == frame_crcs[block]
                and _right(size, firsts[block], lengths[block], ends + row, counts[block])
                and (not verify or shardio_crc(0, first + firsts[block], lengths[block]) == crcs[block])
            )
        if not right:
            return None
        _cut(first, size, firsts[block], stops, row, row + counts[block], records)
        row += counts[block]
    return records
