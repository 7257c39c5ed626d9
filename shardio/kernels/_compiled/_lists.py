# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What stands under one key of an Example: a Feature, or a FeatureList, and the values in it.

Each function reads the fields of one message between `p` and `end`, and returns where it ended, or NULL where
protobuf would refuse.  Values go to the slot of the feature while there is room, and are counted in any case.
A repeated list grows; the `oneof` in a Feature keeps the kind that came last.

    FeatureList      1 Feature, repeated
    Feature          one of 1 BytesList, 2 FloatList, 3 Int64List, each with its values as field 1
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.shardio.kernels._compiled._lists import Slot
from cython.cimports.shardio.kernels._compiled._wire import (
    Bytes,
    Trouble,
    fail,
    read_size,
    read_tag,
    read_varint,
    skip_unknown,
)

CUT = cython.declare(cython.int, 1)
NOT_FLOATS = cython.declare(cython.int, 8)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_ints(
    p: Bytes, end: Bytes, slot: cython.pointer[Slot], depth: cython.int, trouble: cython.pointer[Trouble]
) -> Bytes:
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    value: uint64_t = 0
    bound: Bytes
    stop: Bytes
    used: cython.Py_ssize_t = slot.used
    limit: cython.Py_ssize_t = slot.limit if slot.kind == 3 else -1
    while p < end:
        p = read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag == 0x0A:  # packed: as many as there are
            p = read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return p
            bound = stop = p + size
        elif tag == 0x08:  # one, of one byte or more
            bound, stop = end, p + 1
        else:
            p = skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
            continue
        while p < stop:
            p = read_varint(p, bound, cython.address(value), trouble)
            if p == cython.NULL:
                return p
            if used < limit:
                slot.ints[used] = value
            used += 1
    slot.used = used
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_floats(
    p: Bytes, end: Bytes, slot: cython.pointer[Slot], depth: cython.int, trouble: cython.pointer[Trouble]
) -> Bytes:
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    limit: cython.Py_ssize_t = slot.limit if slot.kind == 2 else -1
    while p < end:
        p = read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag == 0x0A:
            p = read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return p
            if size & 3:
                return fail(trouble, NOT_FLOATS, p)
        elif tag == 0x0D:
            size = 4
            if end - p < size:
                return fail(trouble, CUT, p)
        else:
            p = skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
            continue
        # A list that does not fit whole is a mismatch or is read again with more room.
        if slot.used + (size >> 2) <= limit:
            memcpy(slot.words + slot.used, p, size)
        slot.used += size >> 2
        p += size
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_bytes(
    p: Bytes, end: Bytes, slot: cython.pointer[Slot], depth: cython.int, trouble: cython.pointer[Trouble]
) -> Bytes:
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    limit: cython.Py_ssize_t = slot.limit if slot.kind == 1 else -1
    while p < end:
        p = read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag != 0x0A:
            p = skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
            continue
        p = read_size(p, end, cython.address(size), trouble)
        if p == cython.NULL:
            return p
        if slot.used < limit:
            slot.starts[slot.used] = p - slot.origin
            slot.stops[slot.used] = p - slot.origin + size
        slot.used += 1
        p += size
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_feature(
    p: Bytes, end: Bytes, slot: cython.pointer[Slot], depth: cython.int, trouble: cython.pointer[Trouble]
) -> Bytes:
    tag: uint32_t = 0
    kind: cython.int
    size: cython.Py_ssize_t = 0
    while p < end:
        p = read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag != 0x0A and tag != 0x12 and tag != 0x1A:
            p = skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
            continue
        p = read_size(p, end, cython.address(size), trouble)
        if p == cython.NULL:
            return p
        kind = tag >> 3
        if kind != slot.found:  # the kind that comes last replaces another; the same kind goes on
            slot.found = kind
            slot.used = slot.base
        if kind == 1:
            p = _read_bytes(p, p + size, slot, depth - 1, trouble)
        elif kind == 2:
            p = _read_floats(p, p + size, slot, depth - 1, trouble)
        else:
            p = _read_ints(p, p + size, slot, depth - 1, trouble)
        if p == cython.NULL:
            return p
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_feature_list(
    p: Bytes, end: Bytes, slot: cython.pointer[Slot], depth: cython.int, trouble: cython.pointer[Trouble]
) -> Bytes:
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    while p < end:
        p = read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag != 0x0A:
            p = skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
            continue
        p = read_size(p, end, cython.address(size), trouble)
        if p == cython.NULL:
            return p
        slot.base = slot.used
        slot.found = 0
        p = read_feature(p, p + size, slot, depth - 1, trouble)
        if p == cython.NULL:
            return p
        _end_step(slot)
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _end_step(slot: cython.pointer[Slot]) -> cython.void:
    problem: cython.int = 0
    if slot.found != 0 and slot.found != slot.kind:
        problem = 2
    elif slot.count >= 0 and slot.used - slot.base != slot.count:
        problem = 3
    if problem and slot.problem == 0:
        slot.problem = problem
        slot.problem_step = slot.step - slot.step_total
        slot.problem_found = slot.found if problem == 2 else slot.used - slot.base
    slot.step += 1
    if slot.step < slot.step_limit:
        slot.offsets[slot.step] = slot.used
