# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Frames that lie in runs of a file, compiled: the same as in `_reference`, which documents it."""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.libc.stdint import int64_t, uint32_t
from cython.cimports.libc.string import memmove
from cython.cimports.shardio.kernels._compiled._columns import (
    Columns,
    IndexColumns,
    block_of,
    frame_fits,
    index_fits,
)
from cython.cimports.shardio.kernels._compiled._crc import shardio_crc_begin

from shardio.kernels._arguments import FoundFrames, as_bytes, as_frame_bounds, as_offsets, as_out

COMPILED = cython.compiled
_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

HEAD = cython.declare(int64_t, 12)
FRAME = cython.declare(int64_t, 16)

Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Table = cython.typedef(cython.pointer(cython.const[Columns]))


@cython.final
@cython.cclass
class FrameRuns:
    _columns: IndexColumns

    def __init__(self, columns, size):
        self._columns = IndexColumns(columns, len(columns.block_stops), size)

    def find(self, rows, near: int64_t):
        wanted: cython.const[int64_t][::1] = as_offsets(rows, "rows")
        count: cython.Py_ssize_t = wanted.shape[0]
        if not count:
            return None
        found = np.empty((2, count), np.int64)
        runs = np.empty((3, count), np.int64)
        places: int64_t[:, ::1] = found
        bounds: int64_t[:, ::1] = runs
        many: cython.Py_ssize_t
        with cython.nogil:
            many = self._find(wanted, near, places, bounds)
        if many < 0:
            return None
        return FoundFrames(found[0], found[1], runs[0, :many], runs[1, :many], runs[2, :many])

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _find(
        self,
        rows: cython.const[int64_t][::1],
        near: int64_t,
        places: int64_t[:, ::1],
        bounds: int64_t[:, ::1],
    ) -> cython.Py_ssize_t:
        """Fill places and lengths, and first row, begin and end of runs; return how many runs, or -1."""
        table: Table = cython.address(self._columns.table)
        count: cython.Py_ssize_t = rows.shape[0]
        k: cython.Py_ssize_t
        runs: cython.Py_ssize_t = 0
        block: cython.Py_ssize_t = -1
        row: int64_t
        first: int64_t = 0
        last: int64_t = -1  # row at which the block ends
        base: int64_t = 0
        start: int64_t
        stop: int64_t
        end: int64_t = 0  # of the frame before
        shift: int64_t = 0  # from a place in the file to one in what is read
        total: int64_t = 0
        before: int64_t = -1
        for k in range(count):
            row = rows[k]
            if row <= before or row >= table.rows:
                return -1
            before = row
            if row >= last:
                block = block_of(table, row, block + 1)
                if block >= table.blocks or not index_fits(table, block):
                    return -1
                base = table.stops[block - 1] if block else 0
                first = table.row_stops[block - 1] if block else 0
                last = table.row_stops[block]
                # A map may change under our feet, and then hold anything.
                if base < 0 or base > table.size or last > table.rows:
                    return -1
            start = base + (cython.cast(int64_t, table.frame_stops[row - 1]) if row > first else 0)
            stop = base + cython.cast(int64_t, table.frame_stops[row])
            if stop - start < FRAME or stop > table.size or start < end:
                return -1
            if not runs or start > end + near:
                if runs:
                    bounds[2, runs - 1] = end
                    total += end - bounds[1, runs - 1]
                bounds[0, runs] = k
                bounds[1, runs] = start
                shift = total - start
                runs += 1
            places[0, k] = start + shift
            places[1, k] = stop - start - FRAME
            end = stop
        bounds[2, runs - 1] = end
        return runs


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _inside(
    starts: cython.const[int64_t][::1], lengths: cython.const[int64_t][::1], size: int64_t
) -> int64_t:
    """Return the bytes of all payloads; -1 where a frame leaves a buffer of `size` bytes."""
    k: cython.Py_ssize_t
    total: int64_t = 0
    for k in range(starts.shape[0]):
        if starts[k] < 0 or lengths[k] < 0 or lengths[k] > size - FRAME:
            return -1
        if starts[k] > size - FRAME - lengths[k]:
            return -1
        total += lengths[k]
    return total


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _take(
    data: Bytes,
    starts: cython.const[int64_t][::1],
    lengths: cython.const[int64_t][::1],
    crcs: cython.pointer[cython.const[uint32_t]],
    to: cython.p_uchar,
) -> cython.bint:
    k: cython.Py_ssize_t
    frame: Bytes
    for k in range(starts.shape[0]):
        frame = data + starts[k]
        if crcs != cython.NULL and not frame_fits(frame, frame + HEAD, lengths[k], crcs[k]):
            return False
        if lengths[k]:
            memmove(to, frame + HEAD, lengths[k])
            to += lengths[k]
    return True


def take_frames(buffer, starts, lengths, crcs, out):
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    first_, sizes_ = as_offsets(starts, "starts"), as_offsets(lengths, "lengths")
    first: cython.const[int64_t][::1] = first_
    sizes: cython.const[int64_t][::1] = sizes_
    total: int64_t = -1
    if first.shape[0] == sizes.shape[0]:
        total = _inside(first, sizes, data.shape[0])
    if total < 0 or (crcs is not None and (crcs.shape != first_.shape or crcs.dtype != np.uint32)):
        as_frame_bounds(first_, sizes_, crcs, data.shape[0])
    filled: cython.uchar[::1] = as_out(out, total)
    if not first.shape[0]:
        return True
    expected: cython.const[uint32_t][::1]
    known: cython.pointer[cython.const[uint32_t]] = cython.NULL
    if crcs is not None:
        expected = np.ascontiguousarray(crcs)
        known = cython.address(expected[0])
    # Payloads may all be empty, and there is no byte of them then.
    to: cython.p_uchar = cython.address(filled[0]) if total else cython.NULL
    source: Bytes = cython.address(data[0])
    right: cython.bint
    with cython.nogil:
        right = _take(source, first, sizes, known, to)
    return right
