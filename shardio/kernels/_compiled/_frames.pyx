# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# Check TFRecord frames, and encode them as payloads come.
#
# The public functions check their arguments in Python, then hand flat buffers and bounds that are known to be right to
# loops that touch no Python object and hold no interpreter lock.

cimport cython
import numpy as np
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
from shardio.kernels._compiled._crc cimport (
    shardio_crc, shardio_crc_begin, shardio_crc_on, shardio_crc_use, shardio_join, shardio_mask, shardio_payload_on
)
from shardio.kernels._compiled._frame cimport FRAME, HEAD, TAIL, Bytes

from shardio.kernels._arguments import (
    MAX_BLOCK,
    MAX_RECORD,
    Frames,
    Scan,
    as_bytes,
    as_pairs,
)
from shardio.kernels._compiled._slices import checked_bounds

INSTRUCTION = bool(shardio_crc_begin())  # whether the processor computes CRC-32C itself

cdef Py_ssize_t LARGE = 1 << 16  # bytes from which the interpreter's lock is released
cdef Py_ssize_t FIRST = 1 << 20  # most bytes that a block begins with
cdef Py_ssize_t MOST = MAX_BLOCK

_KINDS = {"crc32c": 0, "crc32": 1, "none": -1}
_PROBLEMS = (None, "length crc", "length over limit", "payload crc")

cdef struct State:
    Py_ssize_t place  # where the next frame begins
    Py_ssize_t count  # frames found
    int problem  # index into _PROBLEMS
    bint more  # the loop stopped because the array of stops is full
    uint64_t expected
    uint64_t found
    uint32_t crc  # of all frames so far


cdef int _kind(check) except? -2:
    if check not in _KINDS:
        raise ValueError(f"check: expected one of {', '.join(_KINDS)}, found {check!r}")
    return _KINDS[check]


# Compute CRC-32C by less than the processor could: for tests and measurements.
#
# Args:
#     use: its instruction, not tables.
#     wide: wide products of polynomials, too, where it has them.
def use_instruction(bool use, bool wide):
    shardio_crc_use(use and INSTRUCTION, use and wide)


# Compare the masked CRC of `size` bytes with the four at `stored`; note both where they differ.
cdef inline bint _crc_agrees(Bytes data, Py_ssize_t size, Bytes stored, int kind, State* state) noexcept nogil:
    cdef uint32_t expected = 0
    memcpy(&expected, stored, 4)
    cdef uint32_t found = shardio_mask(shardio_crc(kind, data, size))
    if found == expected:
        return True
    state.expected = expected
    state.found = found
    return False


cdef void _scan(
        Bytes data, Py_ssize_t size, int kind, uint64_t limit, int64_t[::1] stops, uint32_t[::1] crcs,
        State* state) noexcept nogil:
    cdef uint64_t length = 0
    cdef uint32_t plain = 0, stored = 0
    cdef Py_ssize_t place = state.place
    while size - place >= HEAD and state.problem == 0:
        if state.count == stops.shape[0]:
            state.more = True
            break
        memcpy(&length, data + place, 8)
        if kind >= 0 and not _crc_agrees(data + place, 8, data + place + 8, kind, state):
            state.problem = 1
        elif length > limit:
            state.problem = 2
            state.expected = limit
            state.found = length
        elif size - place < FRAME or length > <uint64_t> (size - place - FRAME):
            break
        else:
            if kind >= 0:
                plain = shardio_crc(kind, data + place + HEAD, length)
                memcpy(&stored, data + place + HEAD + length, 4)
                if shardio_mask(plain) != stored:
                    state.problem, state.expected, state.found = 3, stored, shardio_mask(plain)
                    break
            if kind == 0:
                # The checksum of everything so far comes out of those of the payloads, which are walked once.
                state.crc = shardio_crc_on(0, state.crc, data + place, HEAD)
                state.crc = shardio_payload_on(state.crc, data + place + HEAD, length, plain)
                state.crc = shardio_crc_on(0, state.crc, data + place + HEAD + length, 4)
                crcs[state.count] = state.crc
            place += FRAME + <Py_ssize_t> length
            stops[state.count] = place
            state.count += 1
    state.place = place


# Find the whole frames from byte 0 on; stop at the first that is incomplete or wrong.
#
# A frame's head is judged before its length is believed, and its length before its payload is looked for:
# first the CRC of the length, then the limit, then whether the frame is whole, last the CRC of the payload.
#
# Args:
#     buffer: any contiguous buffer.
#     check: how CRCs are computed; `"none"` believes lengths that keep to the limit and the buffer.
#     max_record: longest payload in bytes.
def scan_frames(buffer, *, check='crc32c', max_record=MAX_RECORD):
    cdef int kind = _kind(check)
    cdef const unsigned char[::1] data = as_bytes(buffer)
    cdef Py_ssize_t size = data.shape[0]
    cdef Bytes first = &data[0] if size else NULL
    cdef uint64_t limit = max_record
    cdef State state = State(0, 0, 0, False, 0, 0, 0)
    found = np.empty(min(1024, size // 16 + 1), np.int64)
    cdef int64_t[::1] stops = found
    sums = np.empty(found.size if kind == 0 else 0, np.uint32)
    cdef uint32_t[::1] crcs = sums
    while True:
        state.more = False
        with nogil:
            _scan(first, size, kind, limit, stops, crcs, &state)
        if not state.more:
            break
        found = np.concatenate([found, np.empty_like(found)])
        stops = found
        if kind == 0:
            sums = np.concatenate([sums, np.empty_like(sums)])
            crcs = sums
    # Copies, so that a short answer does not keep a long array alive.
    found = found[: state.count].copy()
    sums = sums[: state.count].copy() if kind == 0 else None
    if state.problem:
        return Scan(found, state.place, _PROBLEMS[state.problem], state.expected, state.found, sums)
    return Scan(found, state.place, crcs=sums)


cdef Py_ssize_t _check(
        Bytes data, int64_t size, const int64_t[::1] starts, const int64_t[::1] stops, int kind) noexcept nogil:
    cdef Py_ssize_t row
    cdef uint64_t length = 0
    cdef int64_t start, stop
    cdef State state
    for row in range(starts.shape[0]):
        start = starts[row]
        stop = stops[row]
        if start < 0 or stop > size or stop < FRAME or start > stop - FRAME:
            return row
        memcpy(&length, data + start, 8)
        if length != <uint64_t> (stop - start - FRAME):
            return row
        if kind < 0:
            continue
        if not _crc_agrees(data + start, 8, data + start + 8, kind, &state):
            return row
        if not _crc_agrees(data + start + HEAD, length, data + stop - TAIL, kind, &state):
            return row
    return -1


# Check frames whose bounds are already known, in any order.
#
# Returns:
#     The first row whose `[start, stop)` is not one whole frame within the buffer -- its length disagrees
#     with the bounds, or one of its CRCs with its bytes -- or -1 where all are right.
#
# Raises:
#     ValueError: there are not as many starts as stops.
def check_frames(buffer, frame_starts, frame_stops, *, check='crc32c'):
    cdef int kind = _kind(check)
    cdef const unsigned char[::1] data = as_bytes(buffer)
    cdef const int64_t[::1] starts
    cdef const int64_t[::1] stops
    starts, stops = as_pairs(frame_starts, frame_stops)
    cdef Py_ssize_t bad
    cdef Py_ssize_t size = data.shape[0]
    cdef Bytes first = &data[0] if size else NULL
    with nogil:
        bad = _check(first, size, starts, stops, kind)
    return bad


# Encode payloads as TFRecord frames, one after another.
#
# Args:
#     payloads: bytes or other contiguous buffers.
#
# Returns:
#     frames: all frames, the contents of one block.
#     frame_stops: uint32[n], end of each frame in it; each starts where the one before stopped.
#
# Raises:
#     ValueError: together they are longer than a u32 can say.
def encode_frames(payloads):
    cdef FrameBuffer buffer = FrameBuffer(MAX_BLOCK)
    for payload in payloads:
        if not buffer.add(payload):
            raise ValueError(f"these frames take more than {MAX_BLOCK} bytes, the most that a block holds")
    return buffer.take()[:2]


# Compute the CRC-32C of each range `[starts[i], stops[i])`, as uint32[n], unmasked.
#
# Raises:
#     IndexError: a range leaves the buffer.
def crc32c_many(buffer, starts, stops):
    cdef const unsigned char[::1] data = as_bytes(buffer)
    cdef const int64_t[::1] first
    cdef const int64_t[::1] last
    first, last = checked_bounds(starts, stops, data.shape[0])
    cdef Py_ssize_t row
    crcs = np.empty(first.shape[0], np.uint32)
    cdef uint32_t[::1] out = crcs
    with nogil:
        for row in range(first.shape[0]):
            out[row] = shardio_crc(0, &data[0] + first[row], last[row] - first[row])
    return crcs


# Compute the CRC-32C of two runs of bytes, one behind the other, from those of both.
#
# Given that of the first and of the two together, it computes that of the second: it is its own inverse.
#
# Args:
#     first, second: CRC-32C of each.
#     size: bytes of the second.
def crc32c_joined(first, second, size):
    return shardio_join(first, second, size)


# Frames of a block, encoded as payloads come; for one thread.
#
# Args:
#     block_bytes: bytes of frames that `add` takes.
#
# Attributes:
#     rows: payloads so far.
#     size: bytes of their frames.
@cython.final
cdef class FrameBuffer:
    cdef bytes _block  # as long as its room; handed over where it is full, else a part of it is copied
    cdef unsigned char* _out
    cdef Py_ssize_t _room, _target
    cdef uint32_t* _stops
    cdef Py_ssize_t _places  # rows that `_stops` has room for
    cdef uint32_t _crc
    cdef bint _busy
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t size

    def __cinit__(self):
        self._stops = NULL

    def __init__(self, block_bytes):
        self._target = block_bytes

    def __dealloc__(self):
        PyMem_Free(self._stops)

    # Append a payload, if its frame fits; else nothing is taken.
    #
    # Raises:
    #     TypeError: it is neither bytes nor another contiguous buffer.
    def add(self, payload):
        if not PyBytes_CheckExact(payload):
            payload = as_bytes(payload).tobytes()
        cdef Py_ssize_t size = PyBytes_GET_SIZE(payload)
        if self.size + size + FRAME > self._target:
            return False
        self._append(payload, size)
        return True

    # Append payloads from number `start` on, up to the first that is not bytes or does not fit.
    #
    # Returns:
    #     The number of that one, or that of all.
    def add_many(self, list payloads, Py_ssize_t start):
        cdef object payload
        cdef Py_ssize_t number = start, size
        # Asked each time: where the lock is released for a long payload, the list may change.
        while number < len(payloads):
            payload = payloads[number]
            if not PyBytes_CheckExact(payload):
                break
            size = PyBytes_GET_SIZE(payload)
            if self.size + size + FRAME > self._target:
                break
            self._append(payload, size)
            number += 1
        return number

    # Append a payload of any size.
    #
    # Raises:
    #     TypeError: it is neither bytes nor another contiguous buffer.
    #     ValueError: the frames would be longer than a u32 can say.
    def force(self, payload):
        if not PyBytes_CheckExact(payload):
            payload = as_bytes(payload).tobytes()
        self._append(payload, PyBytes_GET_SIZE(payload))

    # Return the frames, and begin again with none.
    def take(self):
        if self._busy:
            raise RuntimeError("two threads add records to one writer: give each a writer of its own")
        cdef bytes frames
        if self.size == self._room and self._block is not None:
            frames = self._block
            self._block = None
            self._room = 0
        else:
            frames = PyBytes_FromStringAndSize(<char*> self._out, self.size)
            if self._room > FIRST:
                # One long record shall not hold its memory for ever.
                self._block = None
                self._room = 0
        stops = np.empty(self.rows, np.uint32)
        cdef uint32_t[::1] first = stops
        if self.rows:
            memcpy(&first[0], self._stops, 4 * self.rows)
        done = Frames(frames, stops, self._crc)
        self.rows = self.size = 0
        self._crc = 0
        return done

    cdef _append(self, bytes payload, Py_ssize_t size):
        cdef Py_ssize_t stop = self.size + size + FRAME
        if self._busy:
            raise RuntimeError("two threads add records to one writer: give each a writer of its own")
        if stop > MOST:
            limit = f"a block holds at most {MAX_BLOCK}; encode fewer records at a time"
            raise ValueError(f"these frames take {stop} bytes and {limit}")
        if stop > self._room:
            self._make_room(stop)
        if self.rows == self._places:
            self._make_places()
        cdef Bytes start = <Bytes> PyBytes_AS_STRING(payload)
        if size >= LARGE:
            # The caller holds the payload, and no other thread gets at the buffer meanwhile.
            self._busy = True
            with nogil:
                self._write(start, size)
            self._busy = False
        else:
            self._write(start, size)
        self.size = stop
        self._stops[self.rows] = <uint32_t> stop
        self.rows += 1

    cdef void _write(self, Bytes payload, Py_ssize_t size) noexcept nogil:
        cdef unsigned char* out = self._out + self.size
        cdef uint64_t length = size
        memcpy(out, &length, 8)
        cdef uint32_t crc = shardio_mask(shardio_crc(0, out, 8))
        memcpy(out + 8, &crc, 4)
        cdef uint32_t whole = shardio_crc_on(0, self._crc, out, HEAD)
        memcpy(out + HEAD, payload, size)
        cdef uint32_t plain = shardio_crc(0, out + HEAD, size)
        whole = shardio_payload_on(whole, out + HEAD, size, plain)
        crc = shardio_mask(plain)
        memcpy(out + HEAD + size, &crc, 4)
        self._crc = shardio_crc_on(0, whole, out + HEAD + size, 4)

    cdef _make_room(self, Py_ssize_t wanted):
        cdef Py_ssize_t room = max(wanted, min(self._target, max(2 * self._room, FIRST)))
        cdef bytes block = PyBytes_FromStringAndSize(NULL, room)
        cdef unsigned char* out = <unsigned char*> PyBytes_AS_STRING(block)
        if self.size:
            memcpy(out, self._out, self.size)
        self._block = block
        self._out = out
        self._room = room

    cdef _make_places(self):
        cdef Py_ssize_t places = max(16, 2 * self._places)
        cdef void* stops = PyMem_Realloc(self._stops, 4 * places)
        if not stops:
            raise MemoryError
        self._stops = <uint32_t*> stops
        self._places = places
