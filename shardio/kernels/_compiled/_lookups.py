# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records of one mapped shard at random, compiled: the same class as in `_reference`, which documents it."""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.cpython.list import PyList_New, PyList_SET_ITEM
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.libc.stdint import int64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.shardio.kernels._compiled._columns import (
    Columns,
    IndexColumns,
    block_of,
    frame_fits,
    index_fits,
)
from cython.cimports.shardio.kernels._compiled._crc import shardio_crc_begin
from cython.cimports.shardio.kernels._compiled._memory import keep_at_hand
from cython.cimports.shardio.kernels._compiled._prefetch import SHARDIO_PREFETCH

from shardio.kernels._arguments import as_bytes, as_offsets, no_row

COMPILED = cython.compiled
_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

HEAD = cython.declare(int64_t, 12)
FRAME = cython.declare(int64_t, 16)
LARGE = cython.declare(int64_t, 1 << 16)  # bytes from which the interpreter's lock is released
# Bytes of records for which malloc is told that as many will be wanted again.
LEAST = cython.declare(int64_t, 1 << 17)
MOST = cython.declare(int64_t, 4 << 20)
AHEAD = cython.declare(cython.Py_ssize_t, 4)  # how many records ahead memory is asked for

Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Table = cython.typedef(cython.pointer(cython.const[Columns]))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find(
    table: Table,
    seen: cython.pointer[cython.const[cython.uchar]],
    row: int64_t,
    start: cython.pointer[int64_t],
    length: cython.pointer[int64_t],
) -> cython.int:
    """Find the frame of a row and the length of its payload; return 1 where it was compared, 0, or -1."""
    block: cython.Py_ssize_t = block_of(table, row, 0)
    if block >= table.blocks:
        return -1
    base: int64_t = table.stops[block - 1] if block else 0
    first: int64_t = table.row_stops[block - 1] if block else 0
    whole: cython.bint = seen[block] != 0
    if not whole and (table.crcs == cython.NULL or not index_fits(table, block)):
        return -1
    # A map may change under our feet, and then hold anything.
    if base < 0 or base > table.size:
        return -1
    start[0] = base + (cython.cast(int64_t, table.frame_stops[row - 1]) if row > first else 0)
    stop: int64_t = base + cython.cast(int64_t, table.frame_stops[row])
    length[0] = stop - start[0] - FRAME
    return whole if length[0] >= 0 and stop <= table.size else -1


@cython.final
@cython.cclass
class RecordLookup:
    _data: cython.const[cython.uchar][::1]
    _columns: IndexColumns
    _seen: cython.uchar[::1]

    def __init__(self, buffer, columns, seen):
        data = as_bytes(buffer)
        self._data = data
        self._columns = IndexColumns(columns, len(seen), data.size)
        self._seen = seen

    def record(self, row: cython.Py_ssize_t):
        table: Table = cython.address(self._columns.table)
        if row < 0 or row >= table.rows:
            raise no_row(row, table.rows)
        start: int64_t = 0
        length: int64_t = 0
        whole: cython.int = _find(
            table, cython.address(self._seen[0]), row, cython.address(start), cython.address(length)
        )
        if whole < 0:
            return None
        right: cython.bint = True
        frame: Bytes = cython.cast(Bytes, cython.address(self._data[0])) + start
        if not whole:
            if length > LARGE:
                with cython.nogil:
                    right = frame_fits(frame, frame + HEAD, length, table.crcs[row])
            else:
                right = frame_fits(frame, frame + HEAD, length, table.crcs[row])
        if not right:
            return None
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, frame + HEAD), length)

    def records(self, rows):
        wanted: cython.const[int64_t][::1] = as_offsets(rows, "rows")
        count: cython.Py_ssize_t = wanted.shape[0]
        table: Table = cython.address(self._columns.table)
        k: cython.Py_ssize_t
        for k in range(count):
            if wanted[k] < 0 or wanted[k] >= table.rows:
                raise no_row(wanted[k], table.rows)
        if not count:
            return []
        places = np.empty((4, count), np.int64)
        found: int64_t[:, ::1] = places
        total: int64_t
        with cython.nogil:
            total = self._find_all(wanted, found)
        if total < 0:
            return None
        if LEAST <= total <= MOST:
            keep_at_hand(total)
        records: list = PyList_New(count)
        for k in range(count):
            record = PyBytes_FromStringAndSize(cython.NULL, found[1, k])
            found[3, k] = cython.cast(int64_t, PyBytes_AS_STRING(record))
            # The list takes a reference of its own, and every place of it is filled once.
            Py_INCREF(record)
            PyList_SET_ITEM(records, k, record)
        right: cython.bint
        # Nothing else knows the new objects yet, so they are filled without the interpreter's lock.
        with cython.nogil:
            right = self._take_all(wanted, found)
        return records if right else None

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _find_all(self, rows: cython.const[int64_t][::1], found: int64_t[:, ::1]) -> int64_t:
        """Fill starts of frames, lengths of payloads, whether they were compared; return all bytes, or -1."""
        table: Table = cython.address(self._columns.table)
        k: cython.Py_ssize_t
        total: int64_t = 0
        for k in range(rows.shape[0]):
            found[2, k] = _find(
                table,
                cython.address(self._seen[0]),
                rows[k],
                cython.address(found[0, k]),
                cython.address(found[1, k]),
            )
            if found[2, k] < 0:
                return -1
            total += found[1, k]
        return total

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _take_all(self, rows: cython.const[int64_t][::1], found: int64_t[:, ::1]) -> cython.bint:
        """Copy payloads to where they go; what was not compared is compared as it was copied."""
        table: Table = cython.address(self._columns.table)
        data: Bytes = cython.cast(Bytes, cython.address(self._data[0]))
        count: cython.Py_ssize_t = rows.shape[0]
        k: cython.Py_ssize_t
        to: cython.p_uchar
        for k in range(count):
            if k + AHEAD < count:
                SHARDIO_PREFETCH(data + found[0, k + AHEAD])
                SHARDIO_PREFETCH(data + found[0, k + AHEAD] + 64)
            to = cython.cast(cython.p_uchar, found[3, k])
            memcpy(to, data + found[0, k] + HEAD, found[1, k])
            if not found[2, k] and not frame_fits(data + found[0, k], to, found[1, k], table.crcs[rows[k]]):
                return False
        return True
