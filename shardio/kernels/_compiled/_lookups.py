# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records of one mapped shard at random, compiled: the same class as in `_reference`, which documents it."""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.shardio.kernels._compiled._crc import shardio_crc, shardio_crc_begin, shardio_mask

from shardio.kernels._arguments import as_bytes, as_lookup, as_offsets, no_row

COMPILED = cython.compiled
_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

FRAME = cython.declare(int64_t, 16)
LARGE = cython.declare(int64_t, 1 << 16)  # bytes from which the interpreter's lock is released

Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))


@cython.final
@cython.cclass
class RecordLookup:
    _data: cython.const[cython.uchar][::1]
    _frames: cython.const[uint32_t][::1]
    _stops: cython.const[uint64_t][::1]
    _row_stops: cython.const[uint64_t][::1]
    _sizes: cython.const[uint32_t][::1]
    _frame_crcs: cython.const[uint32_t][::1]
    _crcs: cython.const[uint32_t][::1]
    _block_crcs: cython.const[uint32_t][::1]
    _checked: cython.bint
    _seen: cython.uchar[::1]
    _compared: cython.uchar[::1]
    _rows: cython.Py_ssize_t
    _blocks: cython.Py_ssize_t
    _size: int64_t

    def __init__(self, buffer, columns, seen):
        data = as_bytes(buffer)
        columns = as_lookup(columns, seen)
        self._data = data
        self._frames = columns.frame_stops
        self._stops = columns.block_stops
        self._row_stops = columns.block_row_stops
        self._sizes = columns.block_sizes
        self._frame_crcs = columns.frame_crcs
        self._checked = columns.records is not None
        self._crcs = columns.frame_stops if columns.records is None else columns.records.checksums
        self._block_crcs = columns.frame_crcs if columns.records is None else columns.records.block_crcs
        self._seen = seen
        self._compared = bytearray(len(seen))
        self._rows = self._frames.shape[0]
        self._blocks = self._stops.shape[0]
        self._size = data.size

    def record(self, row: cython.Py_ssize_t):
        if row < 0 or row >= self._rows:
            raise no_row(row, self._rows)
        return self._record(row)

    def records(self, rows):
        wanted: cython.const[int64_t][::1] = as_offsets(rows, "rows")
        found: list = []
        k: cython.Py_ssize_t
        for k in range(wanted.shape[0]):
            if wanted[k] < 0 or wanted[k] >= self._rows:
                raise no_row(wanted[k], self._rows)
            payload = self._record(wanted[k])
            if payload is None:
                return None
            found.append(payload)
        return found

    @cython.cfunc
    def _record(self, row: cython.Py_ssize_t):
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = self._blocks
        block: cython.Py_ssize_t
        while low < high:
            block = (low + high) // 2
            if self._row_stops[block] > cython.cast(uint64_t, row):
                high = block
            else:
                low = block + 1
        block = low
        if block >= self._blocks:
            return None
        base: int64_t = self._stops[block - 1] if block else 0
        first: int64_t = self._row_stops[block - 1] if block else 0
        whole: cython.bint = self._seen[block] != 0
        if not whole and not self._compared[block]:
            if not self._checked or not self._index_fits(block, base, first):
                return None
            self._compared[block] = 1
        start: int64_t = base + (self._frames[row - 1] if row > first else 0)
        stop: int64_t = base + self._frames[row]
        # A map may change under our feet, and then hold anything.
        if base < 0 or base > self._size or stop - start < FRAME or stop > self._size:
            return None
        right: cython.bint = True
        data: Bytes = cython.address(self._data[0])
        if not whole:
            if stop - start > LARGE:
                with cython.nogil:
                    right = _fits(data, start, stop, self._crcs[row])
            else:
                right = _fits(data, start, stop, self._crcs[row])
        if not right:
            return None
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, data + start + 12), stop - start - FRAME)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _index_fits(self, block: cython.Py_ssize_t, base: int64_t, first: int64_t) -> cython.bint:
        last: int64_t = self._row_stops[block]
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
        if (
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
def _fits(data: Bytes, start: int64_t, stop: int64_t, crc: uint32_t) -> cython.bint:
    """Tell whether a frame is right, and its payload the one that the index means."""
    length: uint64_t
    length_crc: uint32_t
    tail: uint32_t
    memcpy(cython.address(length), data + start, 8)
    memcpy(cython.address(length_crc), data + start + 8, 4)
    memcpy(cython.address(tail), data + stop - 4, 4)
    return (
        length == cython.cast(uint64_t, stop - start - FRAME)
        and tail == crc
        and shardio_mask(shardio_crc(0, data + start, 8)) == length_crc
        and shardio_mask(shardio_crc(0, data + start + 12, stop - start - FRAME)) == crc
    )
