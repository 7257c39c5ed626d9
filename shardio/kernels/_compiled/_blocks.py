# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records of one shard by its index, in order, at random and in runs of a file: see `_reference`.

A block is compared with its checksum and cut while it is still in the processor's cache: that is why both are
one class. Cutting a record is work for the processor and not for the memory, so the next block is asked for
meanwhile.
"""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.cpython.list import PyList_New, PyList_SET_ITEM
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy, memmove
from cython.cimports.shardio.kernels._compiled._columns import (
    Bytes,
    Columns,
    block_of,
    frame_fits,
    index_fits,
)
from cython.cimports.shardio.kernels._compiled._crc import shardio_crc, shardio_crc_begin, shardio_crc_on
from cython.cimports.shardio.kernels._compiled._memory import keep_at_hand
from cython.cimports.shardio.kernels._compiled._prefetch import SHARDIO_PREFETCH

from shardio.kernels._arguments import (
    FoundFrames,
    as_block_crcs,
    as_bytes,
    as_frame_bounds,
    as_lookup,
    as_offsets,
    as_out,
    no_row,
)

COMPILED = cython.compiled
_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

HEAD = cython.declare(int64_t, 12)
FRAME = cython.declare(int64_t, 16)
STEP = cython.declare(int64_t, 1 << 11)  # bytes that are compared before what they complete is cut
# Bytes of a block, and of a record, that is compared without the interpreter's lock.
LARGE_BLOCK = cython.declare(int64_t, 1 << 17)
LARGE = cython.declare(int64_t, 1 << 16)
# Bytes of records for which malloc is told that as many will be wanted again.
LEAST = cython.declare(int64_t, 1 << 17)
MOST = cython.declare(int64_t, 4 << 20)
AHEAD = cython.declare(cython.Py_ssize_t, 4)  # how many records ahead memory is asked for

Table = cython.typedef(cython.pointer(cython.const[Columns]))


@cython.final
@cython.cclass
class IndexColumns:
    """Pointers to the columns of an index; keeps alive what they point to.

    Args:
        columns: of the index of a shard without compression. They are not copied.
        blocks: how many it has.
        size: bytes of the shard.

    Raises:
        ValueError: the columns have other types, or lengths that do not fit each other.
    """

    table: Columns
    _held: object

    def __init__(self, columns, blocks, size):
        compared = bytearray(blocks)
        columns = as_lookup(columns, compared)
        # Typed views, so that what is pointed to has the type that the loops expect.
        frames: cython.const[uint32_t][::1] = columns.frame_stops
        stops: cython.const[uint64_t][::1] = columns.block_stops
        row_stops: cython.const[uint64_t][::1] = columns.block_row_stops
        sizes: cython.const[uint32_t][::1] = columns.block_sizes
        frame_crcs: cython.const[uint32_t][::1] = columns.frame_crcs
        crcs: cython.const[uint32_t][::1]
        block_crcs: cython.const[uint32_t][::1]
        flags: cython.uchar[::1] = compared
        self._held = (columns, compared)
        self.table.rows = frames.shape[0]
        self.table.blocks = stops.shape[0]
        self.table.size = size
        self.table.frame_stops = cython.address(frames[0])
        self.table.stops = cython.address(stops[0])
        self.table.row_stops = cython.address(row_stops[0])
        self.table.sizes = cython.address(sizes[0])
        self.table.frame_crcs = cython.address(frame_crcs[0])
        self.table.compared = cython.address(flags[0])
        if columns.records is not None:
            crcs = columns.records.checksums
            block_crcs = columns.records.block_crcs
            self.table.crcs = cython.address(crcs[0])
            self.table.block_crcs = cython.address(block_crcs[0])


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
        if not self._verify or table.sizes[block] > LARGE_BLOCK:
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
