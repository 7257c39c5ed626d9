# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Blocks of one shard by its index, compared before anything of them is returned."""

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
    part_fits,
)
from cython.cimports.shardio.kernels._compiled._crc import shardio_crc, shardio_crc_begin, shardio_crc_on
from cython.cimports.shardio.kernels._compiled._frame import Bytes

from shardio.kernels._arguments import as_index, no_block, no_row

COMPILED = cython.compiled
_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

STEP = cython.declare(int64_t, 1 << 11)  # bytes that are compared before what they complete is cut
LARGE_BLOCK = cython.declare(int64_t, 1 << 17)  # bytes of a block that is compared without the GIL

Table = cython.typedef(cython.pointer(cython.const[Columns]))
Ends = cython.typedef(cython.pointer(uint32_t))
Part = cython.typedef(cython.pointer(cython.const[uint32_t]))


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

    def read_rows(
        self,
        first: int64_t,
        stop: int64_t,
        buffer,
        start: int64_t,
        frames=None,
        *,
        checked=None,
        as_bytes: cython.bint,
    ):
        """Compare blocks as they are stored, and return consecutive rows of them.

        Args:
            first, stop: the rows `first .. stop - 1`, at least one.
            buffer: that the stored bytes of their blocks are in, one after another.
            start: where the first of these blocks begins there.
            frames: the part of `frame_stops` from the first row of that block on; None for that of the index.
            checked: writable uint8[blocks], not 0 for blocks that were compared before; None compares all.
            as_bytes: return the payloads.

        Returns:
            A list of bytes, or int64[2, rows], starts and stops in the buffer; None where a block or its part
            of the index is not right, or blocks must be opened one by one.
        """
        table: Table = cython.address(self.table)
        if first < 0 or stop <= first or stop > table.rows or self._decode is not None or self._tail < 0:
            return None
        stored: OpenBlock = _block(buffer)
        block: cython.Py_ssize_t = block_of(table, first, 0)
        row: int64_t = table.row_stops[block - 1] if block else 0
        part: OpenBlock = None if frames is None else _block(frames)
        # `ends[row - low]` is the end of a row's frame in its block.
        low: int64_t = 0 if part is None else row
        count: int64_t = table.rows if part is None else part.size // 4
        ends: Part = table.frame_stops if part is None else cython.cast(Part, part.data)
        flags: cython.uchar[::1] = checked
        places = None if as_bytes else np.empty((2, stop - first), np.int64)
        out: int64_t[:, ::1] = places
        payloads: list = PyList_New(stop - first if as_bytes else 0)
        base: int64_t = start
        around: int64_t = self._head + self._tail
        while row < stop and ends != cython.NULL and block < table.blocks:
            last: int64_t = table.row_stops[block]
            if last < row or last - low > count or base < 0 or base > stored.size:
                break
            before: cython.bint = flags is not None and flags[block] != 0
            whole: cython.bint = before or table.block_crcs == cython.NULL
            # A small block is compared while it is cut, step by step: it is still in the fastest cache then.
            steps: cython.bint = as_bytes and not whole and table.sizes[block] <= LARGE_BLOCK
            room: int64_t = stored.size - base
            part_ends: Part = cython.NULL if before and part is None else ends + (row - low)
            size: int64_t = _stored_size(table, block, stored.data + base, room, part_ends, whole or steps)
            if size < 0:
                break
            begin: int64_t = base
            at: int64_t = base
            crc: uint32_t = 0
            while row < last and row < stop:
                end: int64_t = base + ends[row - low]
                # A mapped index may change under our feet, and then hold anything.
                if end - begin < around or end > base + size:
                    return None
                while steps and at < end:
                    crc = shardio_crc_on(0, crc, stored.data + at, min(STEP, base + size - at))
                    at += STEP
                if row >= first and as_bytes:
                    payload = PyBytes_FromStringAndSize(
                        cython.cast(cython.p_char, stored.data + begin + self._head),
                        end - begin - around,
                    )
                    # The list takes a reference of its own, and every place of it is filled once.
                    Py_INCREF(payload)
                    PyList_SET_ITEM(payloads, row - first, payload)
                elif row >= first:
                    out[0, row - first] = begin + self._head
                    out[1, row - first] = end - self._tail
                begin = end
                row += 1
            if steps and at < base + size:
                crc = shardio_crc_on(0, crc, stored.data + at, base + size - at)
            if steps and crc != table.block_crcs[block]:
                return None
            if flags is not None:
                flags[block] = 1
            row = last
            base += size
            block += 1
        if row < stop:
            return None
        return payloads if as_bytes else places


@cython.cfunc
@cython.exceptval(check=False)
def _stored_size(
    table: Table, block: cython.Py_ssize_t, data: Bytes, most: int64_t, ends: Part, whole: cython.bint
) -> int64_t:
    """Return the bytes of a block that is stored as it is; -1 where it or its part of the index is not right.

    Args:
        table: the columns of the index.
        block: its number.
        data, most: its stored bytes, and how many are here.
        ends: its part of `frame_stops`; NULL where that was compared before.
        whole: its bytes were compared before.
    """
    size: int64_t = table.stops[block] - (table.stops[block - 1] if block else 0)
    rows: int64_t = table.row_stops[block] - (table.row_stops[block - 1] if block else 0)
    if size < 0 or size > most or (rows and size != table.sizes[block]):
        return -1
    if ends != cython.NULL and not part_fits(table, block, ends, rows):
        return -1
    if whole or table.block_crcs == cython.NULL or _stored_fits(data, size, table.block_crcs[block]):
        return size
    return -1


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

    def payloads(self, rows):
        """Return the payloads of some rows of the shard, a range or int64[n].

        Raises:
            IndexError: one of them is not in this block.
        """
        count: cython.Py_ssize_t = len(rows)
        first: int64_t = rows[0] if count else 0
        wanted: cython.const[int64_t][::1] = None if isinstance(rows, range) else rows
        found: list = PyList_New(count)
        k: cython.Py_ssize_t
        for k in range(count):
            row: int64_t = (first + k if wanted is None else wanted[k]) - self.first_row
            if row < 0 or row >= self.rows:
                raise no_row(row + self.first_row, self.first_row + self.rows)
            record = self._payload(row)
            # The list takes a reference of its own, and every place of it is filled once.
            Py_INCREF(record)
            PyList_SET_ITEM(found, k, record)
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
