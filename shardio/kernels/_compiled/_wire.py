# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Protobuf's wire format: varints, tags, sizes, unknown fields, UTF-8; no byte is read at or past `end`.

Every reader takes the place `p` to read at and the place where its message ends, and returns the place after
what it read, or NULL with the reason in `trouble`.  Source of the format:
https://protobuf.dev/programming-guides/encoding. What the specification leaves open is done as protobuf's own
C parser (upb) does it: tags and sizes take at most five bytes, the spare bits of a tenth varint byte are
dropped, messages and groups nest at most 100 deep, a field number 0 is refused but inside unknown groups.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.shardio.kernels._compiled._wire import Bytes, Trouble, read_varint

REASONS = (
    "",
    "a field is cut off or longer than the message around it",
    "a varint is longer than it may be",
    "a tag has field number 0 or more than 32 bits",
    "a wire type is not one of protobuf's",
    "a group ends that did not begin, or does not end",
    "it is nested too deeply",
    "a map key is not UTF-8",
    "packed floats are not a multiple of four bytes",
    "it is longer than 2 GiB",
)
CUT = cython.declare(cython.int, 1)
LONG = cython.declare(cython.int, 2)
TAG = cython.declare(cython.int, 3)
TYPE = cython.declare(cython.int, 4)
GROUP = cython.declare(cython.int, 5)
DEEP = cython.declare(cython.int, 6)

MAX_TAG = cython.declare(uint64_t, 0xFFFFFFFF)
MAX_SIZE = cython.declare(uint64_t, 0x7FFFFFFF)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fail(trouble: cython.pointer[Trouble], reason: cython.int, place: Bytes) -> Bytes:
    trouble.reason = reason
    trouble.place = place
    return cython.NULL


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def long_tag(p: Bytes, end: Bytes, tag: cython.pointer[uint32_t], trouble: cython.pointer[Trouble]) -> Bytes:
    value: uint64_t = 0
    after: Bytes = read_varint(p, end, cython.address(value), trouble)
    if after == cython.NULL:
        return after
    if after - p > 5 or value > MAX_TAG:
        return fail(trouble, TAG, p)
    tag[0] = cython.cast(uint32_t, value)
    return after


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def long_size(
    p: Bytes, end: Bytes, size: cython.pointer[cython.Py_ssize_t], trouble: cython.pointer[Trouble]
) -> Bytes:
    value: uint64_t = 0
    after: Bytes = read_varint(p, end, cython.address(value), trouble)
    if after == cython.NULL:
        return after
    if after - p > 5:
        return fail(trouble, LONG, p)
    if value >= MAX_SIZE or value > cython.cast(uint64_t, end - after):
        return fail(trouble, CUT, p)
    size[0] = cython.cast(cython.Py_ssize_t, value)
    return after


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_value(
    p: Bytes, end: Bytes, tag: uint32_t, depth: cython.int, trouble: cython.pointer[Trouble]
) -> Bytes:
    kind: uint32_t = tag & 7
    size: cython.Py_ssize_t = 0
    value: uint64_t = 0
    if kind == 0:
        return read_varint(p, end, cython.address(value), trouble)
    if kind == 3:
        return _skip_group(p, end, tag, depth - 1, trouble)
    if kind == 1:
        size = 8
    elif kind == 5:
        size = 4
    elif kind == 2:
        p = long_size(p, end, cython.address(size), trouble)
        if p == cython.NULL:
            return p
    else:
        return fail(trouble, GROUP if kind == 4 else TYPE, p)
    return p + size if end - p >= size else fail(trouble, CUT, p)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_group(
    p: Bytes, end: Bytes, begin: uint32_t, depth: cython.int, trouble: cython.pointer[Trouble]
) -> Bytes:
    tag: uint32_t = 0
    if depth < 0:
        return fail(trouble, DEEP, p)
    while p < end:
        p = long_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL or tag == begin + 1:  # the wire type of an end is that of its begin and one
            return p
        p = _skip_value(p, end, tag, depth, trouble)
        if p == cython.NULL:
            return p
    return fail(trouble, GROUP, p)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def skip_unknown(
    p: Bytes, end: Bytes, tag: uint32_t, depth: cython.int, trouble: cython.pointer[Trouble]
) -> Bytes:
    """Skip the value of a field that the message does not know; `depth` more levels may nest in it."""
    if tag < 8:
        return fail(trouble, TAG, p)
    return _skip_value(p, end, tag, depth, trouble)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_utf8(p: Bytes, end: Bytes) -> cython.bint:
    """Tell whether bytes are UTF-8 as Unicode defines it: shortest forms, no surrogates, up to U+10FFFF."""
    byte: cython.uchar
    more: cython.Py_ssize_t
    low: cython.uchar
    high: cython.uchar
    while p < end:
        byte = p[0]
        p += 1
        if byte < 0x80:
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        # The second byte has a narrower range after four of the first bytes.
        low = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        high = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if end - p < more or p[0] < low or p[0] > high:
            return False
        if more > 1 and p[1] & 0xC0 != 0x80:
            return False
        if more > 2 and p[2] & 0xC0 != 0x80:
            return False
        p += more
    return True
