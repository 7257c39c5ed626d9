# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Frames of one block as payloads come, compiled: the same as in `_reference`, which documents it."""

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
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.shardio.kernels._compiled._crc import (
    shardio_crc,
    shardio_crc_begin,
    shardio_crc_on,
    shardio_join,
    shardio_mask,
    shardio_payload_on,
)

from shardio.kernels._arguments import MAX_BLOCK, Frames, as_bytes, one_thread, too_long

COMPILED = cython.compiled
_INSTRUCTION = bool(shardio_crc_begin())  # fills the tables of this module

HEAD = cython.declare(cython.Py_ssize_t, 12)
FRAME = cython.declare(cython.Py_ssize_t, 16)
LARGE = cython.declare(cython.Py_ssize_t, 1 << 16)  # bytes from which the interpreter's lock is released
FIRST = cython.declare(cython.Py_ssize_t, 1 << 20)  # most bytes that a block begins with
MOST = cython.declare(cython.Py_ssize_t, MAX_BLOCK)

Bytes = cython.typedef(cython.pointer(cython.const[cython.uchar]))


def crc32c_joined(first, second, size):
    return shardio_join(first, second, size)


@cython.final
@cython.cclass
class FrameBuffer:
    _block: bytes  # as long as its room; handed over where it is full, else a part of it is copied
    _out: cython.p_uchar
    _room: cython.Py_ssize_t
    _target: cython.Py_ssize_t
    _stops: cython.pointer[uint32_t]
    _crcs: cython.pointer[uint32_t]
    _places: cython.Py_ssize_t  # rows that `_stops` and `_crcs` have room for
    _crc: uint32_t
    _busy: cython.bint
    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    size = cython.declare(cython.Py_ssize_t, visibility="readonly")

    def __cinit__(self):
        self._stops = cython.NULL
        self._crcs = cython.NULL

    def __init__(self, block_bytes):
        self._target = block_bytes

    def __dealloc__(self):
        PyMem_Free(self._stops)
        PyMem_Free(self._crcs)

    def add(self, payload):
        if not PyBytes_CheckExact(payload):
            payload = as_bytes(payload).tobytes()
        size: cython.Py_ssize_t = PyBytes_GET_SIZE(payload)
        if self.size + size + FRAME > self._target:
            return False
        self._append(payload, size)
        return True

    def add_many(self, payloads: list, start: cython.Py_ssize_t):
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
        if not PyBytes_CheckExact(payload):
            payload = as_bytes(payload).tobytes()
        self._append(payload, PyBytes_GET_SIZE(payload))

    def take(self):
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
        crcs = np.empty(self.rows, np.uint32)
        first: uint32_t[::1] = stops
        second: uint32_t[::1] = crcs
        if self.rows:
            memcpy(cython.address(first[0]), self._stops, 4 * self.rows)
            memcpy(cython.address(second[0]), self._crcs, 4 * self.rows)
        done = Frames(frames, stops, crcs, self._crc)
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
        self._crcs[self.rows] = crc

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
        crcs: cython.p_void = PyMem_Realloc(self._crcs, 4 * places)
        if not crcs:
            raise MemoryError
        self._crcs = cython.cast(cython.pointer[uint32_t], crcs)
        self._places = places
