# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records of one mapped shard in order, compiled: the same class as in `_reference`, which documents it.

A block is compared with its checksum and cut while it is still in the processor's cache: that is why both are
one class. Cutting a record is work for the processor and not for the memory, so the next block is asked for
meanwhile.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
from cython.cimports.cpython.list import PyList_New, PyList_SET_ITEM
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.libc.stdint import int64_t, uint32_t
from cython.cimports.shardio.kernels._compiled._columns import Columns, IndexColumns, block_of, index_fits
from cython.cimports.shardio.kernels._compiled._crc import shardio_crc, shardio_crc_begin, shardio_crc_on

from shardio.kernels._arguments import as_block_crcs, as_bytes, as_offsets, no_row

COMPILED = cython.compiled
_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

HEAD = cython.declare(int64_t, 12)
FRAME = cython.declare(int64_t, 16)
STEP = cython.declare(int64_t, 1 << 11)  # bytes that are compared before what they complete is cut
LARGE = cython.declare(int64_t, 1 << 17)  # bytes of a block that is compared without the interpreter's lock

Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))
Table = cython.typedef(cython.pointer(cython.const[Columns]))


@cython.cfunc
@cython.inline
def _put(records: list, place: cython.Py_ssize_t, frame: Bytes, size: int64_t):
    """Put the payload of a frame of so many bytes into a list that has nothing there yet."""
    record = PyBytes_FromStringAndSize(cython.cast(cython.p_char, frame + HEAD), size - FRAME)
    # The list takes a reference of its own, and every place of it is filled once.
    Py_INCREF(record)
    PyList_SET_ITEM(records, place, record)


def slice_frames(buffer, stops, begin: int64_t = 0):
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    ends: cython.const[int64_t][::1] = as_offsets(stops, "stops")
    size: int64_t = data.shape[0]
    count: cython.Py_ssize_t = ends.shape[0]
    start: int64_t = begin
    stop: int64_t
    row: cython.Py_ssize_t
    records: list = PyList_New(count)
    for row in range(count):
        stop = ends[row]
        if start < 0 or stop > size or stop < FRAME or start > stop - FRAME:
            return None
        _put(records, row, cython.address(data[0]) + start, stop - start)
        start = stop
    return records


@cython.final
@cython.cclass
class RecordLists:
    opened = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _data: cython.const[cython.uchar][::1]
    _columns: IndexColumns
    _crcs: cython.const[uint32_t][::1]
    _verify: cython.bint
    _seen: cython.uchar[::1]

    def __init__(self, buffer, columns, crcs, seen):
        data = as_bytes(buffer)
        self._data = data
        self._columns = IndexColumns(columns, len(seen), data.size)
        self._verify = crcs is not None
        self._crcs = as_block_crcs(crcs, len(seen))
        self._seen = seen
        self.opened = 0

    def take(self, first: cython.Py_ssize_t, stop: cython.Py_ssize_t):
        table: Table = cython.address(self._columns.table)
        if first < 0 or stop > table.rows:
            raise no_row(first if first < 0 else stop - 1, table.rows)
        if stop <= first:
            return []
        block: cython.Py_ssize_t = block_of(table, first, 0)
        row: cython.Py_ssize_t = first
        last: cython.Py_ssize_t
        right: cython.bint
        records: list = PyList_New(stop - first)
        while row < stop:
            while block < table.blocks and table.row_stops[block] <= row:
                block += 1
            if block >= table.blocks:
                return None
            last = min(stop, cython.cast(cython.Py_ssize_t, table.row_stops[block]))
            if self._seen[block]:
                right = self._cut(table, block, row, last, first, records)
            else:
                right = self._open(table, block, row, last, first, records)
                if right:
                    self._seen[block] = 1
                    self.opened += 1
            if not right:
                return None
            row = last
        return records

    @cython.cfunc
    def _open(
        self,
        table: Table,
        block: cython.Py_ssize_t,
        row: cython.Py_ssize_t,
        last: cython.Py_ssize_t,
        before: cython.Py_ssize_t,
        records: list,
    ) -> cython.bint:
        """Compare a block while it is cut as `_cut` does; the list of one that is not right is dropped."""
        right: cython.bint
        if not self._verify or table.sizes[block] > LARGE:
            with cython.nogil:
                right = self._compare(table, block)
            return right and self._cut(table, block, row, last, before, records)
        if not index_fits(table, block):
            return False
        base: int64_t = table.stops[block - 1] if block else 0
        at: int64_t = base
        end: int64_t = base + table.sizes[block]
        size: int64_t
        crc: uint32_t = 0
        start: int64_t = base
        stop: int64_t
        data: Bytes = cython.address(self._data[0])
        if row > (cython.cast(cython.Py_ssize_t, table.row_stops[block - 1]) if block else 0):
            start += table.frame_stops[row - 1]
        while at < end:
            size = min(STEP, end - at)
            crc = shardio_crc_on(0, crc, data + at, size)
            at += size
            while row < last:
                stop = base + table.frame_stops[row]
                if stop > at:
                    break
                if stop - start < FRAME:
                    return False
                _put(records, row - before, data + start, stop - start)
                start = stop
                row += 1
        return row == last and crc == self._crcs[block]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _compare(self, table: Table, block: cython.Py_ssize_t) -> cython.bint:
        """Tell whether a block and its part of the index are right."""
        base: int64_t = table.stops[block - 1] if block else 0
        return index_fits(table, block) and (
            not self._verify
            or shardio_crc(0, cython.address(self._data[0]) + base, table.sizes[block]) == self._crcs[block]
        )

    @cython.cfunc
    def _cut(
        self,
        table: Table,
        block: cython.Py_ssize_t,
        row: cython.Py_ssize_t,
        last: cython.Py_ssize_t,
        before: cython.Py_ssize_t,
        records: list,
    ) -> cython.bint:
        """Put payloads of the rows `row .. last - 1` into the list; the place of `before` is its first."""
        base: int64_t = table.stops[block - 1] if block else 0
        start: int64_t
        stop: int64_t
        data: Bytes = cython.address(self._data[0])
        # A map may change under our feet, and then hold anything.
        if base < 0 or base > table.size:
            return False
        start = base
        if row > (cython.cast(cython.Py_ssize_t, table.row_stops[block - 1]) if block else 0):
            start += table.frame_stops[row - 1]
        while row < last:
            stop = base + table.frame_stops[row]
            if stop - start < FRAME or stop > table.size:
                return False
            _put(records, row - before, data + start, stop - start)
            start = stop
            row += 1
        return True
