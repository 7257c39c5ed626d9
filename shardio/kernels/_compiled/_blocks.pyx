# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# Blocks of one shard by its index, compared before anything of them is returned.

cimport cython
import numpy as np
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
from shardio.kernels._compiled._columns cimport Columns, block_of, part_fits
from shardio.kernels._compiled._crc cimport shardio_crc, shardio_crc_begin, shardio_crc_on
from shardio.kernels._compiled._frame cimport Bytes

from shardio.kernels._arguments import as_index

_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

cdef int64_t STEP = 1 << 11  # bytes that are compared before what they complete is cut
cdef int64_t LARGE_BLOCK = 1 << 17  # bytes of a block that is compared without the GIL

ctypedef const Columns* Table
ctypedef uint32_t* Ends
ctypedef const uint32_t* Part


# The columns of the index of one shard, and what makes its blocks true; safe to share among threads.
#
# They are not copied, and may be a map of a file: what is used of them is compared before.
#
# Args:
#     block_stops, block_row_stops: uint64[blocks], stored bytes and rows in each block and all before it.
#     block_sizes: uint32[blocks], decoded bytes of each block.
#     frame_crcs: uint32[blocks], CRC-32C of each block's part of `frame_stops`.
#     frame_stops: uint32[rows], end of each frame in its block; None where a block's part comes with it.
#     block_crcs: uint32[blocks], CRC-32C of stored bytes; None where these are not compared.
#     bounds: bytes of a frame before its payload and behind it (-1 for the end of a line, if it has one),
#         and the least of a whole frame.
#     decode: from a block's stored bytes and its size to its decoded bytes; None where these are the same.
#
# Raises:
#     ValueError: lengths do not fit each other.
@cython.final
cdef class ShardIndex:
    cdef Columns table
    cdef object _held, _decode
    cdef int64_t _head, _tail

    def __init__(
            self, block_stops, block_row_stops, block_sizes, frame_crcs, *, frame_stops=None, block_crcs=None,
            bounds=(12, 4, 16), decode=None):
        cdef Py_ssize_t blocks = len(block_stops)
        compared = bytearray(blocks)
        by_block = (block_row_stops, block_sizes, frame_crcs, block_crcs)
        self.table.rows = as_index(blocks, by_block, (frame_stops,))
        self.table.blocks = blocks
        self._head, self._tail, self.table.least = bounds
        self._decode = decode
        self._held = (block_stops, by_block, frame_stops, compared)
        # Typed views, so that what is pointed to has the type that the loops expect.
        cdef const uint64_t[::1] wide = block_stops
        self.table.stops = &wide[0]
        wide = block_row_stops
        self.table.row_stops = &wide[0]
        cdef const uint32_t[::1] column = block_sizes
        self.table.sizes = &column[0]
        column = frame_crcs
        self.table.frame_crcs = &column[0]
        cdef unsigned char[::1] flags = compared
        self.table.compared = &flags[0]
        if frame_stops is not None:
            column = frame_stops
            self.table.frame_stops = &column[0]
        if block_crcs is not None:
            column = block_crcs
            self.table.block_crcs = &column[0]

    # Return a block, decoded; None where it, or its part of the index, is not what the head says.
    #
    # Args:
    #     number: of the block.
    #     buffer: that its stored bytes are in.
    #     start: where they begin there.
    #     frames: its part of `frame_stops`; None for that of the index.
    #
    # Raises:
    #     IndexError: there is no such block.
    #     CorruptBlockError, StorageError: what `decode` raises.
    def open_block(self, Py_ssize_t number, buffer, int64_t start=0, frames=None):
        cdef Table table = &self.table
        if number < 0 or number >= table.blocks:
            raise IndexError(f"block {number} is out of range: there are {table.blocks}")
        cdef int64_t size = table.stops[number] - (table.stops[number - 1] if number else 0)
        cdef int64_t first = table.row_stops[number - 1] if number else 0
        cdef int64_t rows = table.row_stops[number] - first
        if rows < 0 or first < 0 or first > table.rows - rows:
            return None
        # Copied before they are compared: the index may be mapped, and then change under our feet.
        edges = PyBytes_FromStringAndSize(NULL, 4 * (rows + 1))
        cdef Ends ends = <Ends> PyBytes_AS_STRING(edges)
        ends[0] = 0
        if frames is None:
            if table.frame_stops == NULL:
                return None
            memcpy(ends + 1, table.frame_stops + first, 4 * rows)
        elif not _copy_part(frames, ends + 1, 4 * rows):
            return None
        if not part_fits(table, number, ends + 1, rows):
            return None
        cdef OpenBlock block = _block(buffer)
        if size < 0 or start < 0 or start > block.size - size:
            return None
        if table.block_crcs != NULL and not _stored_fits(
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

    # Compare blocks as they are stored, and return consecutive rows of them.
    #
    # Args:
    #     first, stop: the rows `first .. stop - 1`, at least one.
    #     buffer: that the stored bytes of their blocks are in, one after another.
    #     start: where the first of these blocks begins there.
    #     frames: the part of `frame_stops` from the first row of that block on; None for that of the index.
    #     checked: writable uint8[blocks], not 0 for blocks that were compared before; None compares all.
    #     as_bytes: return the payloads.
    #
    # Returns:
    #     A list of bytes, or int64[2, rows], starts and stops in the buffer; None where a block or its part
    #     of the index is not right, or blocks must be opened one by one.
    def read_rows(
            self, int64_t first, int64_t stop, buffer, int64_t start, frames=None, *, checked=None, bint as_bytes):
        cdef int64_t last
        cdef bint before, whole, steps
        cdef int64_t room
        cdef Part part_ends
        cdef int64_t size, begin, at
        cdef uint32_t crc
        cdef int64_t end
        cdef Table table = &self.table
        if first < 0 or stop <= first or stop > table.rows or self._decode is not None or self._tail < 0:
            return None
        cdef OpenBlock stored = _block(buffer)
        cdef Py_ssize_t block = block_of(table, first, 0)
        cdef int64_t row = table.row_stops[block - 1] if block else 0
        cdef OpenBlock part = None if frames is None else _block(frames)
        # `ends[row - low]` is the end of a row's frame in its block.
        cdef int64_t low = 0 if part is None else row
        cdef int64_t count = table.rows if part is None else part.size // 4
        cdef Part ends = table.frame_stops if part is None else <Part> part.data
        cdef unsigned char[::1] flags = checked
        places = None if as_bytes else np.empty((2, stop - first), np.int64)
        cdef int64_t[:, ::1] out = places
        cdef list payloads = PyList_New(stop - first if as_bytes else 0)
        cdef int64_t base = start
        cdef int64_t around = self._head + self._tail
        while row < stop and ends != NULL and block < table.blocks:
            last = table.row_stops[block]
            if last < row or last - low > count or base < 0 or base > stored.size:
                break
            before = flags is not None and flags[block] != 0
            whole = before or table.block_crcs == NULL
            # A small block is compared while it is cut, step by step: it is still in the fastest cache then.
            steps = as_bytes and not whole and table.sizes[block] <= LARGE_BLOCK
            room = stored.size - base
            part_ends = NULL if before and part is None else ends + (row - low)
            size = _stored_size(table, block, stored.data + base, room, part_ends, whole or steps)
            if size < 0:
                break
            begin = base
            at = base
            crc = 0
            while row < last and row < stop:
                end = base + ends[row - low]
                # A mapped index may change under our feet, and then hold anything.
                if end - begin < around or end > base + size:
                    return None
                while steps and at < end:
                    crc = shardio_crc_on(0, crc, stored.data + at, min(STEP, base + size - at))
                    at += STEP
                if row >= first and as_bytes:
                    payload = PyBytes_FromStringAndSize(
                        <char*> (stored.data + begin + self._head),
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


# Return the bytes of a block that is stored as it is; -1 where it or its part of the index is not right.
#
# Args:
#     table: the columns of the index.
#     block: its number.
#     data, most: its stored bytes, and how many are here.
#     ends: its part of `frame_stops`; NULL where that was compared before.
#     whole: its bytes were compared before.
cdef int64_t _stored_size(Table table, Py_ssize_t block, Bytes data, int64_t most, Part ends, bint whole) noexcept:
    cdef int64_t size = table.stops[block] - (table.stops[block - 1] if block else 0)
    cdef int64_t rows = table.row_stops[block] - (table.row_stops[block - 1] if block else 0)
    if size < 0 or size > most or (rows and size != table.sizes[block]):
        return -1
    if ends != NULL and not part_fits(table, block, ends, rows):
        return -1
    if whole or table.block_crcs == NULL or _stored_fits(data, size, table.block_crcs[block]):
        return size
    return -1


cdef bint _copy_part(frames, Ends out, int64_t size):
    cdef OpenBlock part = _block(frames)
    if part.size == size:
        memcpy(out, part.data, size)
    return part.size == size


cdef inline bint _stored_fits(Bytes data, int64_t size, uint32_t expected):
    cdef uint32_t crc
    if size > LARGE_BLOCK:
        with nogil:
            crc = shardio_crc(0, data, size)
    else:
        crc = shardio_crc(0, data, size)
    return crc == expected


# A block that was compared and decoded, of the rows from `first_row` on.
#
# Attributes:
#     buffer: that its decoded bytes are in.
#     base: where they begin there.
#     first_row: number of its first row in the shard.
#     edges: uint32[rows + 1], where each frame begins in the decoded bytes, and where the last one stops.
@cython.final
cdef class OpenBlock:
    cdef readonly object buffer
    cdef readonly int64_t first_row
    cdef readonly int64_t base
    cdef int64_t rows, head, tail
    cdef Bytes data
    cdef int64_t size
    cdef Ends ends
    cdef object held

    def __len__(self):
        return self.rows

    # Bytes that it takes, with its buffer.
    @property
    def nbytes(self):
        return self.size + 4 * (self.rows + 1)

    @property
    def edges(self):
        return np.frombuffer(self.held, np.uint32)

    # Return where a payload stops; that of a line does before its ending, if it has one.
    cdef inline int64_t _stop(self, int64_t k):
        cdef int64_t stop = self.base + self.ends[k + 1]
        if self.tail >= 0:
            return stop - self.tail
        cdef int64_t size = self.ends[k + 1] - self.ends[k]
        if size and self.data[stop - 1] == 10:
            return stop - (2 if size > 1 and self.data[stop - 2] == 13 else 1)
        return stop

    cdef inline _payload(self, int64_t k):
        cdef int64_t start = self.base + self.ends[k] + self.head
        return PyBytes_FromStringAndSize(<char*> (self.data + start), self._stop(k) - start)

    # Return the payload of a row of the shard.
    #
    # Raises:
    #     IndexError: it is not in this block.
    def payload(self, int64_t row):
        cdef int64_t k = row - self.first_row
        if k < 0 or k >= self.rows:
            raise IndexError(f"row {row} is out of range: there are {self.first_row + self.rows}")
        return self._payload(k)

    # Return the payloads of some rows of the shard, a range or int64[n].
    #
    # Raises:
    #     IndexError: one of them is not in this block.
    def payloads(self, rows):
        cdef int64_t row
        cdef Py_ssize_t count = len(rows)
        cdef int64_t first = rows[0] if count else 0
        cdef const int64_t[::1] wanted = None if isinstance(rows, range) else rows
        cdef list found = PyList_New(count)
        cdef Py_ssize_t k
        for k in range(count):
            row = (first + k if wanted is None else wanted[k]) - self.first_row
            if row < 0 or row >= self.rows:
                raise IndexError(f"row {row + self.first_row} is not in this block")
            record = self._payload(row)
            # The list takes a reference of its own, and every place of it is filled once.
            Py_INCREF(record)
            PyList_SET_ITEM(found, k, record)
        return found

    # Return where the payloads of those of the rows `first .. stop - 1` that are in this block are.
    #
    # Returns:
    #     int64[2, rows], starts and stops in `buffer`.
    def places(self, int64_t first, int64_t stop):
        cdef int64_t low = max(first - self.first_row, 0)
        cdef int64_t high = min(stop - self.first_row, self.rows)
        cdef int64_t count = max(high - low, 0)
        found = np.empty((2, count), np.int64)
        cdef int64_t[:, ::1] out = found
        cdef int64_t k
        for k in range(count):
            out[0, k] = self.base + self.ends[low + k] + self.head
            out[1, k] = self._stop(low + k)
        return found


# Return a block that holds a buffer, and nothing yet of what is in it.
cdef _block(buffer):
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    cdef OpenBlock block = OpenBlock.__new__(OpenBlock)
    block.buffer = buffer
    block.data = <Bytes> view.buf
    block.size = view.len
    # As NumPy does: a memoryview that is looked into could not go with a circle of references.
    PyBuffer_Release(&view)
    return block
