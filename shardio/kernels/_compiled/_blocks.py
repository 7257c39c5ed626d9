# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Blocks and records of one shard by its index, compared before they are returned.

A mapped block is compared with its checksum and cut while it is still in the processor's cache. Cutting a
record is work for the processor and not for the memory, so the next block is asked for meanwhile.
"""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.cpython.list import PyList_New, PyList_SET_ITEM
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.shardio.kernels._compiled._columns import (
    Columns,
    block_of,
    frame_fits,
    index_fits,
    part_fits,
)
from cython.cimports.shardio.kernels._compiled._crc import shardio_crc, shardio_crc_begin, shardio_crc_on
from cython.cimports.shardio.kernels._compiled._frame import FRAME, HEAD, Bytes
from cython.cimports.shardio.kernels._compiled._memory import raise_trim_threshold
from cython.cimports.shardio.kernels._compiled._prefetch import SHARDIO_PREFETCH

from shardio.kernels._arguments import (
    as_bytes,
    as_index,
    as_offsets,
    no_block,
    no_row,
)

COMPILED = cython.compiled
_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

STEP = cython.declare(int64_t, 1 << 11)  # bytes that are compared before what they complete is cut
# Bytes of a block, and of a record, that is compared without the interpreter's lock.
LARGE_BLOCK = cython.declare(int64_t, 1 << 17)
LARGE = cython.declare(int64_t, 1 << 16)
# Bytes of records for which malloc is told that as many will be wanted again.
LEAST = cython.declare(int64_t, 1 << 17)
MOST = cython.declare(int64_t, 4 << 20)
AHEAD = cython.declare(cython.Py_ssize_t, 4)  # how many records ahead memory is asked for

Table = cython.typedef(cython.pointer(cython.const[Columns]))
Ends = cython.typedef(cython.pointer(uint32_t))


@cython.final
@cython.cclass
class ShardIndex:
    """The columns of the index of one shard, and what makes its blocks true; safe to share among threads.

    They are not copied, and may be a map of a file: what is used of them is compared before.

    Args:
        block_stops, block_row_stops: uint64[blocks], stored bytes and rows in each block and all before it.
        block_sizes: uint32[blocks], decoded bytes of each block.
        frame_crcs: uint32[blocks], CRC-32C of each block's part of `frame_stops`.
        frame_stops: uint32[rows], end of each frame in its block; None where a block's part comes with it.
        block_crcs: uint32[blocks], CRC-32C of stored bytes; None where these are not compared.
        bounds: bytes of a frame before its payload and behind it (-1 for the end of a line, if it has one),
            and the least of a whole frame.
        decode: from a block's stored bytes and its size to its decoded bytes; None where these are the same.

    Raises:
        ValueError: lengths do not fit each other.
    """

    table: Columns
    _held: object
    _decode: object
    _head: int64_t
    _tail: int64_t

    def __init__(
        self,
        block_stops,
        block_row_stops,
        block_sizes,
        frame_crcs,
        *,
        frame_stops=None,
        block_crcs=None,
        bounds=(12, 4, 16),
        decode=None,
    ):
        blocks: cython.Py_ssize_t = len(block_stops)
        compared = bytearray(blocks)
        by_block = (block_row_stops, block_sizes, frame_crcs, block_crcs)
        self.table.rows = as_index(blocks, by_block, (frame_stops,))
        self.table.blocks = blocks
        self._head, self._tail, self.table.least = bounds
        self._decode = decode
        self._held = (block_stops, by_block, frame_stops, compared)
        # Typed views, so that what is pointed to has the type that the loops expect.
        wide: cython.const[uint64_t][::1] = block_stops
        self.table.stops = cython.address(wide[0])
        wide = block_row_stops
        self.table.row_stops = cython.address(wide[0])
        column: cython.const[uint32_t][::1] = block_sizes
        self.table.sizes = cython.address(column[0])
        column = frame_crcs
        self.table.frame_crcs = cython.address(column[0])
        flags: cython.uchar[::1] = compared
        self.table.compared = cython.address(flags[0])
        if frame_stops is not None:
            column = frame_stops
            self.table.frame_stops = cython.address(column[0])
        if block_crcs is not None:
            column = block_crcs
            self.table.block_crcs = cython.address(column[0])

    def has_right_frames(self):
        """Tell whether the ends of all frames are here, and are those that the head means."""
        table: Table = cython.address(self.table)
        block: cython.Py_ssize_t
        first: int64_t = 0
        right: cython.bint = table.frame_stops != cython.NULL
        for block in range(table.blocks if right else 0):
            rows: int64_t = table.row_stops[block] - first
            if rows < 0 or first > table.rows - rows:
                return False
            right = right and part_fits(table, block, table.frame_stops + first, rows)
            first += rows
        return right

    def open_block(self, number: cython.Py_ssize_t, buffer, start: int64_t = 0, frames=None):
        """Return a block, decoded; None where it, or its part of the index, is not what the head says.

        Args:
            number: of the block.
            buffer: that its stored bytes are in.
            start: where they begin there.
            frames: its part of `frame_stops`; None for that of the index.

        Raises:
            IndexError: there is no such block.
            CorruptBlockError, StorageError: what `decode` raises.
        """
        table: Table = cython.address(self.table)
        if number < 0 or number >= table.blocks:
            raise no_block(number, table.blocks)
        size: int64_t = table.stops[number] - (table.stops[number - 1] if number else 0)
        first: int64_t = table.row_stops[number - 1] if number else 0
        rows: int64_t = table.row_stops[number] - first
        if rows < 0 or first < 0 or first > table.rows - rows:
            return None
        # Copied before they are compared: the index may be mapped, and then change under our feet.
        edges = PyBytes_FromStringAndSize(cython.NULL, 4 * (rows + 1))
        ends: Ends = cython.cast(Ends, PyBytes_AS_STRING(edges))
        ends[0] = 0
        if frames is None:
            if table.frame_stops == cython.NULL:
                return None
            memcpy(ends + 1, table.frame_stops + first, 4 * rows)
        elif not _copy_part(frames, ends + 1, 4 * rows):
            return None
        if not part_fits(table, number, ends + 1, rows):
            return None
        block: OpenBlock = _block(buffer)
        if size < 0 or start < 0 or start > block.size - size:
            return None
        if table.block_crcs != cython.NULL and not _stored_fits(
            block.data + start, size, table.block_crcs[number]
        ):
            return None
        if self._decode is not None:
            # Of a gap nothing is decoded: it may be damage that was left out.
            decoded = self._decode(block.buffer[start : start + size], table.sizes[number]) if rows else b""
            block = _block(decoded)
            start, size = 0, block.size
        if rows and size != table.sizes[number]:
            return None
        block.first_row, block.rows, block.base = first, rows, start
        block.head, block.tail = self._head, self._tail
        block.held, block.ends = edges, ends
        return block


@cython.cfunc
def _copy_part(frames, out: Ends, size: int64_t) -> cython.bint:
    part: OpenBlock = _block(frames)
    if part.size == size:
        memcpy(out, part.data, size)
    return part.size == size


@cython.cfunc
@cython.inline
def _stored_fits(data: Bytes, size: int64_t, expected: uint32_t) -> cython.bint:
    crc: uint32_t
    if size > LARGE_BLOCK:
        with cython.nogil:
            crc = shardio_crc(0, data, size)
    else:
        crc = shardio_crc(0, data, size)
    return crc == expected


@cython.final
@cython.cclass
class OpenBlock:
    """A block that was compared and decoded, of the rows from `first_row` on.

    Attributes:
        buffer: that its decoded bytes are in.
        base: where they begin there.
        first_row: number of its first row in the shard.
        edges: uint32[rows + 1], where each frame begins in the decoded bytes, and where the last one stops.
    """

    buffer = cython.declare(object, visibility="readonly")
    first_row = cython.declare(int64_t, visibility="readonly")
    base = cython.declare(int64_t, visibility="readonly")
    rows: int64_t
    head: int64_t
    tail: int64_t
    data: Bytes
    size: int64_t
    ends: Ends
    held: object

    def __len__(self):
        return self.rows

    @property
    def nbytes(self):
        """Bytes that it takes, with its buffer."""
        return self.size + 4 * (self.rows + 1)

    @property
    def edges(self):
        return np.frombuffer(self.held, np.uint32)

    @cython.cfunc
    @cython.inline
    def _stop(self, k: int64_t) -> int64_t:
        """Return where a payload stops; that of a line does before its ending, if it has one."""
        stop: int64_t = self.base + self.ends[k + 1]
        if self.tail >= 0:
            return stop - self.tail
        size: int64_t = self.ends[k + 1] - self.ends[k]
        if size and self.data[stop - 1] == 10:
            return stop - (2 if size > 1 and self.data[stop - 2] == 13 else 1)
        return stop

    @cython.cfunc
    @cython.inline
    def _payload(self, k: int64_t):
        start: int64_t = self.base + self.ends[k] + self.head
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.data + start), self._stop(k) - start)

    def payload(self, row: int64_t):
        """Return the payload of a row of the shard.

        Raises:
            IndexError: it is not in this block.
        """
        k: int64_t = row - self.first_row
        if k < 0 or k >= self.rows:
            raise no_row(row, self.first_row + self.rows)
        return self._payload(k)

    def payloads(self, first: int64_t, stop: int64_t):
        """Return the payloads of those of the rows `first .. stop - 1` that are in this block."""
        low: int64_t = max(first - self.first_row, 0)
        high: int64_t = min(stop - self.first_row, self.rows)
        found: list = PyList_New(max(high - low, 0))
        k: int64_t
        for k in range(low, high):
            record = self._payload(k)
            # The list takes a reference of its own, and every place of it is filled once.
            Py_INCREF(record)
            PyList_SET_ITEM(found, k - low, record)
        return found

    def take(self, rows):
        """Return the payloads of some rows of the shard, in the order given.

        Raises:
            IndexError: one of them is not in this block.
        """
        wanted: cython.const[int64_t][::1] = as_offsets(rows, "rows")
        found: list = []
        k: cython.Py_ssize_t
        for k in range(wanted.shape[0]):
            if wanted[k] < self.first_row or wanted[k] >= self.first_row + self.rows:
                raise no_row(wanted[k], self.first_row + self.rows)
            found.append(self._payload(wanted[k] - self.first_row))
        return found

    def places(self, first: int64_t, stop: int64_t):
        """Return where the payloads of those of the rows `first .. stop - 1` that are in this block are.

        Returns:
            int64[2, rows], starts and stops in `buffer`.
        """
        low: int64_t = max(first - self.first_row, 0)
        high: int64_t = min(stop - self.first_row, self.rows)
        count: int64_t = max(high - low, 0)
        found = np.empty((2, count), np.int64)
        out: int64_t[:, ::1] = found
        k: int64_t
        for k in range(count):
            out[0, k] = self.base + self.ends[low + k] + self.head
            out[1, k] = self._stop(low + k)
        return found


@cython.cfunc
def _block(buffer):
    """Return a block that holds a buffer, and nothing yet of what is in it."""
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    block: OpenBlock = OpenBlock.__new__(OpenBlock)
    block.buffer = buffer
    block.data = cython.cast(Bytes, view.buf)
    block.size = view.len
    # As NumPy does: a memoryview that is looked into could not go with a circle of references.
    PyBuffer_Release(cython.address(view))
    return block


def cut_frames(frames):
    """Return the payloads of frames, given the bytes of each; None where one does not match its checksums."""
    found: list = []
    k: cython.Py_ssize_t
    for k in range(len(frames)):
        frame: OpenBlock = _block(frames[k])
        length: int64_t = frame.size - FRAME
        if length < 0 or not frame_fits(frame.data, frame.data + HEAD, length):
            return None
        found.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, frame.data + HEAD), length))
    return found


@cython.cfunc
@cython.inline
def _put(records: list, place: cython.Py_ssize_t, frame: Bytes, size: int64_t):
    """Put the payload of a frame of so many bytes into a list that has nothing there yet."""
    record = PyBytes_FromStringAndSize(cython.cast(cython.p_char, frame + HEAD), size - FRAME)
    # The list takes a reference of its own, and every place of it is filled once.
    Py_INCREF(record)
    PyList_SET_ITEM(records, place, record)


@cython.final
@cython.cclass
class MappedRecords:
    """Records of one mapped shard of TFRECORD frames without compression; safe to share among threads.

    A block is compared as a whole, once; or the index's part of it is, once, and each frame whenever it is
    read: its length, both of its checksums, and that its payload's is the one that the index holds, so that a
    frame that was swapped with another is found.

    Args:
        buffer: the shard. It is not copied.
        index: of the shard, with `frame_stops`.
        seen: one byte a block, not 0 once all of it was compared; written here, and others write it, too.
        alone: frames may be compared by the index's checksums of the records.

    Attributes:
        opened: how many blocks were compared here.
    """

    opened = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _data: cython.const[cython.uchar][::1]
    _index: ShardIndex
    _seen: cython.uchar[::1]
    _alone: cython.bint
    _size: int64_t

    def __init__(self, buffer, index: ShardIndex, seen, *, alone):
        data = as_bytes(buffer)
        if len(seen) != index.table.blocks or index.table.frame_stops == cython.NULL:
            raise no_block(len(seen), index.table.blocks)
        self._data = data
        self._index = index
        self._seen = seen
        self._alone = alone
        self._size = data.size
        self.opened = 0

    def take(self, first: cython.Py_ssize_t, stop: cython.Py_ssize_t):
        """Return the payloads of the rows `first .. stop - 1`; None where one of their blocks is not right.

        Blocks that were not compared before are. The caller finds out what is wrong.

        Raises:
            IndexError: one of the rows is not there.
        """
        table: Table = cython.address(self._index.table)
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

    def compare(self, blocks):
        """Compare blocks, where they were not compared before; return the first that is not right, or -1.

        Raises:
            IndexError: one of them is not there.
        """
        table: Table = cython.address(self._index.table)
        wanted: cython.const[int64_t][::1] = as_offsets(blocks, "blocks")
        k: cython.Py_ssize_t
        right: cython.bint
        for k in range(wanted.shape[0]):
            if wanted[k] < 0 or wanted[k] >= table.blocks:
                raise no_block(wanted[k], table.blocks)
            if not self._seen[wanted[k]]:
                with cython.nogil:
                    right = self._compare(table, wanted[k])
                if not right:
                    return wanted[k]
                self._seen[wanted[k]] = 1
                self.opened += 1
        return -1

    def places(self, rows):
        """Return where payloads of rows are, int64[2, rows]; None where a block of them was not compared.

        Raises:
            IndexError: one of the rows is not there.
        """
        table: Table = cython.address(self._index.table)
        wanted: cython.const[int64_t][::1] = as_offsets(rows, "rows")
        found = np.empty((2, wanted.shape[0]), np.int64)
        out: int64_t[:, ::1] = found
        k: cython.Py_ssize_t
        whole: cython.int
        for k in range(wanted.shape[0]):
            if wanted[k] < 0 or wanted[k] >= table.rows:
                raise no_row(wanted[k], table.rows)
            whole = self._find(wanted[k], cython.address(out[0, k]), cython.address(out[1, k]))
            if whole != 1:
                return None
            out[0, k] += HEAD
            out[1, k] += out[0, k]
        return found

    def record(self, row: cython.Py_ssize_t):
        """Return one payload; None where it was not compared and cannot be, or is not right.

        Raises:
            IndexError: there is no such row.
        """
        table: Table = cython.address(self._index.table)
        if row < 0 or row >= table.rows:
            raise no_row(row, table.rows)
        start: int64_t = 0
        length: int64_t = 0
        whole: cython.int = self._find(row, cython.address(start), cython.address(length))
        if whole < 0:
            return None
        right: cython.bint = True
        frame: Bytes = cython.cast(Bytes, cython.address(self._data[0])) + start
        if not whole:
            if length > LARGE:
                with cython.nogil:
                    right = frame_fits(frame, frame + HEAD, length)
            else:
                right = frame_fits(frame, frame + HEAD, length)
        if not right:
            return None
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, frame + HEAD), length)

    def records(self, rows):
        """Return the payloads of some rows, in the order given; None where `record` returns None for any.

        Raises:
            IndexError: one of them is not there.
        """
        wanted: cython.const[int64_t][::1] = as_offsets(rows, "rows")
        count: cython.Py_ssize_t = wanted.shape[0]
        table: Table = cython.address(self._index.table)
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
            total = self._locate(wanted, found)
        if total < 0:
            return None
        if LEAST <= total <= MOST:
            raise_trim_threshold(total)
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
    def _locate(self, rows: cython.const[int64_t][::1], found: int64_t[:, ::1]) -> int64_t:
        """Fill starts of frames, lengths of payloads, whether they were compared; return all bytes, or -1."""
        k: cython.Py_ssize_t
        total: int64_t = 0
        for k in range(rows.shape[0]):
            found[2, k] = self._find(rows[k], cython.address(found[0, k]), cython.address(found[1, k]))
            if found[2, k] < 0:
                return -1
            total += found[1, k]
        return total

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _take_all(self, rows: cython.const[int64_t][::1], found: int64_t[:, ::1]) -> cython.bint:
        """Copy payloads to where they go; what was not compared is compared as it was copied."""
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
            if not found[2, k] and not frame_fits(data + found[0, k], to, found[1, k]):
                return False
        return True

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
        if table.block_crcs == cython.NULL or table.sizes[block] > LARGE_BLOCK:
            with cython.nogil:
                right = self._compare(table, block)
            return right and self._cut(table, block, row, last, before, records)
        if not index_fits(table, block, self._size):
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
        return row == last and crc == table.block_crcs[block]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _compare(self, table: Table, block: cython.Py_ssize_t) -> cython.bint:
        """Tell whether a block and its part of the index are right."""
        base: int64_t = table.stops[block - 1] if block else 0
        return index_fits(table, block, self._size) and (
            table.block_crcs == cython.NULL
            or shardio_crc(0, cython.address(self._data[0]) + base, table.sizes[block])
            == table.block_crcs[block]
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
        if base < 0 or base > self._size:
            return False
        start = base
        if row > (cython.cast(cython.Py_ssize_t, table.row_stops[block - 1]) if block else 0):
            start += table.frame_stops[row - 1]
        while row < last:
            stop = base + table.frame_stops[row]
            if stop - start < FRAME or stop > self._size:
                return False
            _put(records, row - before, data + start, stop - start)
            start = stop
            row += 1
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _find(
        self, row: int64_t, start: cython.pointer[int64_t], length: cython.pointer[int64_t]
    ) -> cython.int:
        """Find the frame of a row and the length of its payload; return 1 where it was compared, 0, or -1."""
        table: Table = cython.address(self._index.table)
        block: cython.Py_ssize_t = block_of(table, row, 0)
        if block >= table.blocks:
            return -1
        base: int64_t = table.stops[block - 1] if block else 0
        first: int64_t = table.row_stops[block - 1] if block else 0
        whole: cython.bint = self._seen[block] != 0
        if not whole and not (self._alone and index_fits(table, block, self._size)):
            return -1
        # A map may change under our feet, and then hold anything.
        if base < 0 or base > self._size:
            return -1
        start[0] = base + (cython.cast(int64_t, table.frame_stops[row - 1]) if row > first else 0)
        stop: int64_t = base + cython.cast(int64_t, table.frame_stops[row])
        length[0] = stop - start[0] - FRAME
        return whole if length[0] >= 0 and stop <= self._size else -1
