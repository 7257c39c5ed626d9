# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Frames that lie in runs of a file, compiled: the same as in `_reference`, which documents it."""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy, memmove
from cython.cimports.shardio.kernels._compiled._crc import shardio_crc, shardio_crc_begin, shardio_mask

from shardio.kernels._arguments import FoundFrames, as_bytes, as_frame_bounds, as_lookup, as_offsets, as_out

COMPILED = cython.compiled
_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

HEAD = cython.declare(int64_t, 12)
FRAME = cython.declare(int64_t, 16)

Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))


@cython.final
@cython.cclass
class FrameRuns:
    _frames: cython.const[uint32_t][::1]
    _stops: cython.const[uint64_t][::1]
    _row_stops: cython.const[uint64_t][::1]
    _sizes: cython.const[uint32_t][::1]
    _frame_crcs: cython.const[uint32_t][::1]
    _checked: cython.bint
    _crcs: cython.const[uint32_t][::1]
    _block_crcs: cython.const[uint32_t][::1]
    _compared: cython.uchar[::1]
    _rows: cython.Py_ssize_t
    _blocks: cython.Py_ssize_t
    _size: int64_t

    def __init__(self, columns, size):
        compared = bytearray(len(columns.block_stops))
        columns = as_lookup(columns, compared)
        self._frames = columns.frame_stops
        self._stops = columns.block_stops
        self._row_stops = columns.block_row_stops
        self._sizes = columns.block_sizes
        self._frame_crcs = columns.frame_crcs
        self._checked = columns.records is not None
        self._crcs = columns.frame_stops if columns.records is None else columns.records.checksums
        self._block_crcs = columns.frame_crcs if columns.records is None else columns.records.block_crcs
        self._compared = compared
        self._rows = self._frames.shape[0]
        self._blocks = self._stops.shape[0]
        self._size = size

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
            if row <= before or row >= self._rows:
                return -1
            before = row
            if row >= last:
                block = self._block_of(row, block + 1)
                if block >= self._blocks:
                    return -1
                base = self._stops[block - 1] if block else 0
                first = self._row_stops[block - 1] if block else 0
                last = self._row_stops[block]
                if not self._compared[block]:
                    if not self._index_fits(block, base, first, last):
                        return -1
                    self._compared[block] = 1
                # A map may change under our feet, and then hold anything.
                if base < 0 or base > self._size or last > self._rows:
                    return -1
            start = base + (cython.cast(int64_t, self._frames[row - 1]) if row > first else 0)
            stop = base + cython.cast(int64_t, self._frames[row])
            if stop - start < FRAME or stop > self._size or start < end:
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
    def _block_of(self, row: int64_t, low: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the block that a row is in, not before `low`."""
        high: cython.Py_ssize_t = self._blocks
        middle: cython.Py_ssize_t
        if low < high and self._row_stops[low] > cython.cast(uint64_t, row):
            return low
        while low < high:
            middle = (low + high) // 2
            if self._row_stops[middle] > cython.cast(uint64_t, row):
                high = middle
            else:
                low = middle + 1
        return low

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _index_fits(
        self, block: cython.Py_ssize_t, base: int64_t, first: int64_t, last: int64_t
    ) -> cython.bint:
        size: int64_t = self._sizes[block]
        row: int64_t
        before: int64_t = 0
        if first < 0 or last <= first or last > self._rows or base < 0 or base > self._size - size:
            return False
        if (
            shardio_crc(0, cython.cast(Bytes, cython.address(self._frames[first])), 4 * (last - first))
            != self._frame_crcs[block]
        ):
            return False
        if self._checked and (
            shardio_crc(0, cython.cast(Bytes, cython.address(self._crcs[first])), 4 * (last - first))
            != self._block_crcs[block]
        ):
            return False
        for row in range(first, last):
            if self._frames[row] < before + FRAME:
                return False
            before = self._frames[row]
        return before == size


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
    length: uint64_t = 0
    length_crc: uint32_t = 0
    tail: uint32_t = 0
    for k in range(starts.shape[0]):
        frame = data + starts[k]
        if crcs != cython.NULL:
            memcpy(cython.address(length), frame, 8)
            memcpy(cython.address(length_crc), frame + 8, 4)
            memcpy(cython.address(tail), frame + HEAD + lengths[k], 4)
            if (
                length != cython.cast(uint64_t, lengths[k])
                or tail != crcs[k]
                or shardio_mask(shardio_crc(0, frame, 8)) != length_crc
                or shardio_mask(shardio_crc(0, frame + HEAD, lengths[k])) != crcs[k]
            ):
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
