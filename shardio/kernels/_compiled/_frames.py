# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Check TFRecord frames, and encode them as payloads come.

Cython's pure-Python mode: C types are written as annotations, the statements are Python's.  The public
functions check their arguments in Python, then hand flat buffers and bounds that are known to be right to
loops that touch no Python object and hold no interpreter lock.
"""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.cpython.bytes import (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cython.cimports.cpython.mem import PyMem_Free, PyMem_Realloc
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.shardio.kernels._compiled._crc import (
    shardio_crc,
    shardio_crc_begin,
    shardio_crc_on,
    shardio_crc_use,
    shardio_join,
    shardio_mask,
    shardio_payload_on,
)
from cython.cimports.shardio.kernels._compiled._frame import FRAME, HEAD, TAIL, Bytes

from shardio.kernels._arguments import (
    MAX_BLOCK,
    MAX_RECORD,
    Frames,
    Scan,
    as_bytes,
    as_pairs,
    check_kind,
    one_thread,
    too_long,
)
from shardio.kernels._compiled._slices import checked_bounds

COMPILED = cython.compiled
INSTRUCTION = bool(shardio_crc_begin())  # whether the processor computes CRC-32C itself

LARGE = cython.declare(cython.Py_ssize_t, 1 << 16)  # bytes from which the interpreter's lock is released
FIRST = cython.declare(cython.Py_ssize_t, 1 << 20)  # most bytes that a block begins with
MOST = cython.declare(cython.Py_ssize_t, MAX_BLOCK)

_KINDS = {"crc32c": 0, "crc32": 1, "none": -1}
_PROBLEMS = (None, "length crc", "length over limit", "payload crc")

State = cython.struct(
    place=cython.Py_ssize_t,  # where the next frame begins
    count=cython.Py_ssize_t,  # frames found
    problem=cython.int,  # index into _PROBLEMS
    more=cython.bint,  # the loop stopped because the array of stops is full
    expected=uint64_t,
    found=uint64_t,
    crc=uint32_t,  # of all frames so far
)


def use_instruction(use: bool, wide: bool) -> None:
    """Compute CRC-32C by less than the processor could: for tests and measurements.

    Args:
        use: its instruction, not tables.
        wide: wide products of polynomials, too, where it has them.
    """
    shardio_crc_use(use and INSTRUCTION, use and wide)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _crc_agrees(
    data: Bytes, size: cython.Py_ssize_t, stored: Bytes, kind: cython.int, state: cython.pointer[State]
) -> cython.bint:
    """Compare the masked CRC of `size` bytes with the four at `stored`; note both where they differ."""
    expected: uint32_t = 0
    memcpy(cython.address(expected), stored, 4)
    found: uint32_t = shardio_mask(shardio_crc(kind, data, size))
    if found == expected:
        return True
    state.expected = expected
    state.found = found
    return False


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan(
    data: Bytes,
    size: cython.Py_ssize_t,
    kind: cython.int,
    limit: uint64_t,
    stops: int64_t[::1],
    crcs: uint32_t[::1],
    state: cython.pointer[State],
) -> cython.void:
    length: uint64_t = 0
    plain: uint32_t
    stored: uint32_t = 0
    place: cython.Py_ssize_t = state.place
    while size - place >= HEAD and state.problem == 0:
        if state.count == stops.shape[0]:
            state.more = True
            break
        memcpy(cython.address(length), data + place, 8)
        if kind >= 0 and not _crc_agrees(data + place, 8, data + place + 8, kind, state):
            state.problem = 1
        elif length > limit:
            state.problem = 2
            state.expected = limit
            state.found = length
        elif size - place < FRAME or length > cython.cast(uint64_t, size - place - FRAME):
            break
        elif kind == 0:
            # The checksum of everything so far comes out of those of the payloads, which are walked once.
            plain = shardio_crc(0, data + place + HEAD, length)
            memcpy(cython.address(stored), data + place + HEAD + length, 4)
            if shardio_mask(plain) != stored:
                state.problem = 3
                state.expected = stored
                state.found = shardio_mask(plain)
                break
            state.crc = shardio_crc_on(0, state.crc, data + place, HEAD)
            state.crc = shardio_payload_on(state.crc, data + place + HEAD, length, plain)
            state.crc = shardio_crc_on(0, state.crc, data + place + HEAD + length, 4)
            crcs[state.count] = state.crc
            place += FRAME + cython.cast(cython.Py_ssize_t, length)
            stops[state.count] = place
            state.count += 1
        elif kind > 0 and not _crc_agrees(
            data + place + HEAD, length, data + place + HEAD + length, kind, state
        ):
            state.problem = 3
        else:
            place += FRAME + cython.cast(cython.Py_ssize_t, length)
            stops[state.count] = place
            state.count += 1
    state.place = place


def scan_frames(buffer, *, check="crc32c", max_record=MAX_RECORD):
    """Find the whole frames from byte 0 on; stop at the first that is incomplete or wrong.

    A frame's head is judged before its length is believed, and its length before its payload is looked for:
    first the CRC of the length, then the limit, then whether the frame is whole, last the CRC of the payload.

    Args:
        buffer: any contiguous buffer.
        check: how CRCs are computed; `"none"` believes lengths that keep to the limit and the buffer.
        max_record: longest payload in bytes.
    """
    kind: cython.int = _KINDS[check_kind(check)]
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    size: cython.Py_ssize_t = data.shape[0]
    first: Bytes = cython.address(data[0]) if size else cython.NULL
    limit: uint64_t = max_record
    state: State = State(0, 0, 0, False, 0, 0, 0)
    found = np.empty(min(1024, size // 16 + 1), np.int64)
    stops: int64_t[::1] = found
    sums = np.empty(found.size if kind == 0 else 0, np.uint32)
    crcs: uint32_t[::1] = sums
    while True:
        state.more = False
        with cython.nogil:
            _scan(first, size, kind, limit, stops, crcs, cython.address(state))
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _check(
    data: Bytes,
    size: int64_t,
    starts: cython.const[int64_t][::1],
    stops: cython.const[int64_t][::1],
    kind: cython.int,
) -> cython.Py_ssize_t:
    row: cython.Py_ssize_t
    length: uint64_t = 0
    start: int64_t
    stop: int64_t
    state: State
    for row in range(starts.shape[0]):
        start = starts[row]
        stop = stops[row]
        if start < 0 or stop > size or stop < FRAME or start > stop - FRAME:
            return row
        memcpy(cython.address(length), data + start, 8)
        if length != cython.cast(uint64_t, stop - start - FRAME):
            return row
        if kind < 0:
            continue
        if not _crc_agrees(data + start, 8, data + start + 8, kind, cython.address(state)):
            return row
        if not _crc_agrees(data + start + HEAD, length, data + stop - TAIL, kind, cython.address(state)):
            return row
    return -1


def check_frames(buffer, frame_starts, frame_stops, *, check="crc32c"):
    """Check frames whose bounds are already known, in any order.

    Returns:
        The first row whose `[start, stop)` is not one whole frame within the buffer -- its length disagrees
        with the bounds, or one of its CRCs with its bytes -- or -1 where all are right.

    Raises:
        ValueError: there are not as many starts as stops.
    """
    kind: cython.int = _KINDS[check_kind(check)]
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    starts: cython.const[int64_t][::1]
    stops: cython.const[int64_t][::1]
    starts, stops = as_pairs(frame_starts, frame_stops)
    bad: cython.Py_ssize_t
    size: cython.Py_ssize_t = data.shape[0]
    first: Bytes = cython.address(data[0]) if size else cython.NULL
    with cython.nogil:
        bad = _check(first, size, starts, stops, kind)
    return bad


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _encode(
    parts: cython.pointer[Bytes], lengths: uint64_t[::1], stops: uint32_t[::1], out: cython.p_uchar
) -> cython.void:
    row: cython.Py_ssize_t
    crc: uint32_t
    place: cython.Py_ssize_t = 0
    for row in range(lengths.shape[0]):
        memcpy(out + place, cython.address(lengths[row]), 8)
        crc = shardio_mask(shardio_crc(0, out + place, 8))
        memcpy(out + place + 8, cython.address(crc), 4)
        place += HEAD
        memcpy(out + place, parts[row], lengths[row])
        crc = shardio_mask(shardio_crc(0, parts[row], lengths[row]))
        place += lengths[row]
        memcpy(out + place, cython.address(crc), 4)
        place += TAIL
        stops[row] = place


def encode_frames(payloads):
    """Encode payloads as TFRecord frames, one after another.

    Args:
        payloads: bytes or other contiguous buffers.

    Returns:
        frames: all frames, the contents of one block.
        frame_stops: uint32[n], end of each frame in it; each starts where the one before stopped.

    Raises:
        ValueError: together they are longer than a u32 can say.
    """
    # The tuple keeps what the pointers point to alive while the lock is not held.
    items: tuple = tuple([part if isinstance(part, bytes) else as_bytes(part) for part in payloads])
    count: cython.Py_ssize_t = len(items)
    places = np.empty(count, np.uintp)
    sizes = np.empty(count, np.uint64)
    frame_stops = np.empty(count, np.uint32)
    parts: cython.size_t[::1] = places
    lengths: uint64_t[::1] = sizes
    stops: uint32_t[::1] = frame_stops
    row: cython.Py_ssize_t
    total: cython.Py_ssize_t = count * FRAME
    view: cython.const[cython.uchar][::1]
    for row in range(count):
        item = items[row]
        lengths[row] = len(item)
        if isinstance(item, bytes):
            parts[row] = cython.cast(cython.size_t, PyBytes_AS_STRING(item))
        else:
            view = item
            parts[row] = cython.cast(cython.size_t, cython.address(view[0])) if view.shape[0] else 0
        total += lengths[row]
    if total > MAX_BLOCK:
        raise too_long(total)
    frames: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
    out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(frames))
    if count:
        with cython.nogil:
            _encode(cython.cast(cython.pointer[Bytes], cython.address(parts[0])), lengths, stops, out)
    return frames, frame_stops


def crc32c_many(buffer, starts, stops):
    """Compute the CRC-32C of each range `[starts[i], stops[i])`, as uint32[n], unmasked.

    Raises:
        IndexError: a range leaves the buffer.
    """
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    first: cython.const[int64_t][::1]
    last: cython.const[int64_t][::1]
    first, last = checked_bounds(starts, stops, data.shape[0])
    row: cython.Py_ssize_t
    crcs = np.empty(first.shape[0], np.uint32)
    out: uint32_t[::1] = crcs
    with cython.nogil:
        for row in range(first.shape[0]):
            out[row] = shardio_crc(0, cython.address(data[0]) + first[row], last[row] - first[row])
    return crcs


def crc32c_joined(first, second, size):
    """Compute the CRC-32C of two runs of bytes, one behind the other, from those of both.

    Given that of the first and of the two together, it computes that of the second: it is its own inverse.

    Args:
        first, second: CRC-32C of each.
        size: bytes of the second.
    """
    return shardio_join(first, second, size)


@cython.final
@cython.cclass
class FrameBuffer:
    """Frames of a block, encoded as payloads come; for one thread.

    Args:
        block_bytes: bytes of frames that `add` takes.

    Attributes:
        rows: payloads so far.
        size: bytes of their frames.
    """

    _block: bytes  # as long as its room; handed over where it is full, else a part of it is copied
    _out: cython.p_uchar
    _room: cython.Py_ssize_t
    _target: cython.Py_ssize_t
    _stops: cython.pointer[uint32_t]
    _places: cython.Py_ssize_t  # rows that `_stops` has room for
    _crc: uint32_t
    _busy: cython.bint
    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    size = cython.declare(cython.Py_ssize_t, visibility="readonly")

    def __cinit__(self):
        self._stops = cython.NULL

    def __init__(self, block_bytes):
        self._target = block_bytes

    def __dealloc__(self):
        PyMem_Free(self._stops)

    def add(self, payload):
        """Append a payload, if its frame fits; else nothing is taken.

        Raises:
            TypeError: it is neither bytes nor another contiguous buffer.
        """
        if not PyBytes_CheckExact(payload):
            payload = as_bytes(payload).tobytes()
        size: cython.Py_ssize_t = PyBytes_GET_SIZE(payload)
        if self.size + size + FRAME > self._target:
            return False
        self._append(payload, size)
        return True

    def add_many(self, payloads: list, start: cython.Py_ssize_t):
        """Append payloads from number `start` on, up to the first that is not bytes or does not fit.

        Returns:
            The number of that one, or that of all.
        """
        number: cython.Py_ssize_t = start
        size: cython.Py_ssize_t
        # Asked each time: where the lock is released for a long payload, the list may change.
        while number < len(payloads):
            payload: object = payloads[number]
            if not PyBytes_CheckExact(payload):
                break
            size = PyBytes_GET_SIZE(payload)
            if self.size + size + FRAME > self._target:
                break
            self._append(payload, size)
            number += 1
        return number

    def force(self, payload):
        """Append a payload of any size.

        Raises:
            TypeError: it is neither bytes nor another contiguous buffer.
            ValueError: the frames would be longer than a u32 can say.
        """
        if not PyBytes_CheckExact(payload):
            payload = as_bytes(payload).tobytes()
        self._append(payload, PyBytes_GET_SIZE(payload))

    def take(self):
        """Return the frames, and begin again with none."""
        if self._busy:
            raise one_thread()
        frames: bytes
        if self.size == self._room and self._block is not None:
            frames = self._block
            self._block = None
            self._room = 0
        else:
            frames = PyBytes_FromStringAndSize(cython.cast(cython.p_char, self._out), self.size)
            if self._room > FIRST:
                # One long record shall not hold its memory for ever.
                self._block = None
                self._room = 0
        stops = np.empty(self.rows, np.uint32)
        first: uint32_t[::1] = stops
        if self.rows:
            memcpy(cython.address(first[0]), self._stops, 4 * self.rows)
        done = Frames(frames, stops, self._crc)
        self.rows = self.size = 0
        self._crc = 0
        return done

    @cython.cfunc
    def _append(self, payload: bytes, size: cython.Py_ssize_t) -> object:
        stop: cython.Py_ssize_t = self.size + size + FRAME
        if self._busy:
            raise one_thread()
        if stop > MOST:
            raise too_long(stop)
        if stop > self._room:
            self._make_room(stop)
        if self.rows == self._places:
            self._make_places()
        start: Bytes = cython.cast(Bytes, PyBytes_AS_STRING(payload))
        if size >= LARGE:
            # The caller holds the payload, and no other thread gets at the buffer meanwhile.
            self._busy = True
            with cython.nogil:
                self._write(start, size)
            self._busy = False
        else:
            self._write(start, size)
        self.size = stop
        self._stops[self.rows] = cython.cast(uint32_t, stop)
        self.rows += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _write(self, payload: Bytes, size: cython.Py_ssize_t) -> cython.void:
        out: cython.p_uchar = self._out + self.size
        length: uint64_t = size
        memcpy(out, cython.address(length), 8)
        crc: uint32_t = shardio_mask(shardio_crc(0, out, 8))
        memcpy(out + 8, cython.address(crc), 4)
        whole: uint32_t = shardio_crc_on(0, self._crc, out, HEAD)
        memcpy(out + HEAD, payload, size)
        plain: uint32_t = shardio_crc(0, out + HEAD, size)
        whole = shardio_payload_on(whole, out + HEAD, size, plain)
        crc = shardio_mask(plain)
        memcpy(out + HEAD + size, cython.address(crc), 4)
        self._crc = shardio_crc_on(0, whole, out + HEAD + size, 4)

    @cython.cfunc
    def _make_room(self, wanted: cython.Py_ssize_t) -> object:
        room: cython.Py_ssize_t = max(wanted, min(self._target, max(2 * self._room, FIRST)))
        block: bytes = PyBytes_FromStringAndSize(cython.NULL, room)
        out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(block))
        if self.size:
            memcpy(out, self._out, self.size)
        self._block = block
        self._out = out
        self._room = room

    @cython.cfunc
    def _make_places(self) -> object:
        places: cython.Py_ssize_t = max(16, 2 * self._places)
        stops: cython.p_void = PyMem_Realloc(self._stops, 4 * places)
        if not stops:
            raise MemoryError
        self._stops = cython.cast(cython.pointer[uint32_t], stops)
        self._places = places
