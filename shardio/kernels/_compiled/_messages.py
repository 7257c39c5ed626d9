# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""tf.train.Example and SequenceExample down to one entry of a map; `_lists` reads what the entry holds.

What a repeated field of a message means is protobuf's rule: maps and lists grow, of equal keys the last entry
stands, and a map entry with a field that it does not know is not an entry (upb's rule).  Entries that are
not wanted are read as strictly as those that are.

    Example          1 features: Features
    SequenceExample  1 context: Features, 2 feature_lists: FeatureLists
    Features         1 entries: 1 key, 2 Feature
    FeatureLists     1 entries: 1 key, 2 FeatureList
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memcmp
from cython.cimports.shardio.kernels._compiled._lists import Slot, read_feature, read_feature_list
from cython.cimports.shardio.kernels._compiled._messages import Side
from cython.cimports.shardio.kernels._compiled._wire import (
    Bytes,
    Trouble,
    fail,
    is_utf8,
    read_size,
    read_tag,
    skip_unknown,
)

NOT_UTF8 = cython.declare(cython.int, 7)
TOO_LARGE = cython.declare(cython.int, 9)
HASH_BASIS = cython.declare(uint64_t, 0xCBF29CE484222325)
HASH_PRIME = cython.declare(uint64_t, 0x100000001B3)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def name_hash(p: Bytes, size: cython.Py_ssize_t) -> uint64_t:
    """Hash a name: FNV-1a, for a table in memory only."""
    result: uint64_t = HASH_BASIS
    k: cython.Py_ssize_t
    for k in range(size):
        result = (result ^ p[k]) * HASH_PRIME
    return result ^ (result >> 32)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_named(
    side: cython.pointer[Side], number: cython.int, key: Bytes, size: cython.Py_ssize_t
) -> cython.bint:
    start: cython.Py_ssize_t = side.cuts[number]
    return side.cuts[number + 1] - start == size and memcmp(side.names + start, key, size) == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find(
    side: cython.pointer[Side], key: Bytes, size: cython.Py_ssize_t, place: cython.Py_ssize_t
) -> cython.int:
    """Return the number of the slot that has this name, or -1.

    Most writers keep one order of features, so the name at this place of the row before is tried first.
    """
    number: cython.int = side.guesses[place & 63]
    bucket: uint64_t
    if number >= 0 and _is_named(side, number, key, size):
        return number
    bucket = name_hash(key, size) & side.mask
    while True:
        number = side.table[bucket]
        if number < 0 or _is_named(side, number, key, size):
            break
        bucket = (bucket + 1) & side.mask
    side.guesses[place & 63] = number
    return number


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _begin(side: cython.pointer[Side], number: cython.int) -> cython.pointer[Slot]:
    """Make a slot ready for an entry of the map, which replaces an earlier one of the same name."""
    slot: cython.pointer[Slot] = side.nowhere if number < 0 else side.slots + number
    slot.found = 0
    if side.lists:
        slot.listed = True
        slot.base = slot.total
        slot.step = slot.step_total
        slot.problem = 0
    slot.used = slot.base
    return slot


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_odd_key(
    p: Bytes,
    end: Bytes,
    side: cython.pointer[Side],
    number: cython.p_int,
    depth: cython.int,
    trouble: cython.pointer[Trouble],
) -> Bytes:
    """Find the slot of an entry of any form: its last key counts; with an unknown field it has none."""
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    key: Bytes = p
    length: cython.Py_ssize_t = 0
    known: cython.bint = True
    while p < end:
        p = read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag == 0x0A or tag == 0x12:
            p = read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return p
            if tag == 0x0A:
                key, length = p, size
                if not is_utf8(p, p + size):
                    return fail(trouble, NOT_UTF8, p)
            p += size
        else:
            known = False
            p = skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
    number[0] = _find(side, key, length, 0) if known else -1
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_odd_entry(
    p: Bytes, end: Bytes, side: cython.pointer[Side], depth: cython.int, trouble: cython.pointer[Trouble]
) -> Bytes:
    """Read an entry of any form: fields in any order, missing, repeated or unknown."""
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    number: cython.int = -1
    slot: cython.pointer[Slot]
    if _read_odd_key(p, end, side, cython.address(number), depth, trouble) == cython.NULL:
        return cython.NULL
    slot = _begin(side, number)
    while p < end:  # now it is known where the value goes
        p = read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag == 0x0A or tag == 0x12:
            p = read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return p
            if tag == 0x0A:
                p += size
            elif side.lists:
                p = read_feature_list(p, p + size, slot, depth - 1, trouble)
            else:
                p = read_feature(p, p + size, slot, depth - 1, trouble)
        else:
            p = skip_unknown(p, end, tag, depth, trouble)
        if p == cython.NULL:
            return p
    return p


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _read_entry(
    p: Bytes,
    end: Bytes,
    side: cython.pointer[Side],
    place: cython.Py_ssize_t,
    depth: cython.int,
    trouble: cython.pointer[Trouble],
) -> Bytes:
    """Read a key and then a value, as every writer writes them, and leave other entries to the above."""
    size: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t
    number: cython.int
    slot: cython.pointer[Slot]
    q: Bytes
    if end - p < 2 or p[0] != 0x0A:
        return _read_odd_entry(p, end, side, depth, trouble)
    length = p[1]
    if length > 127 or end - p - 2 <= length:
        return _read_odd_entry(p, end, side, depth, trouble)
    q = p + 2 + length
    if q[0] != 0x12:
        return _read_odd_entry(p, end, side, depth, trouble)
    q = read_size(q + 1, end, cython.address(size), trouble)
    if q == cython.NULL:
        return q
    if q + size != end:
        return _read_odd_entry(p, end, side, depth, trouble)
    number = _find(side, p + 2, length, place)
    if number < 0 and not is_utf8(p + 2, p + 2 + length):
        return fail(trouble, NOT_UTF8, p + 2)
    slot = _begin(side, number)
    if side.lists:
        return read_feature_list(q, end, slot, depth - 1, trouble)
    return read_feature(q, end, slot, depth - 1, trouble)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_map(
    p: Bytes, end: Bytes, side: cython.pointer[Side], depth: cython.int, trouble: cython.pointer[Trouble]
) -> Bytes:
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t = 0
    while p < end:
        p = read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag == 0x0A:
            p = read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return p
            p = _read_entry(p, p + size, side, place, depth - 1, trouble)
            place += 1
        else:
            p = skip_unknown(p, end, tag, depth, trouble)
        if p == cython.NULL:
            return p
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_record(
    p: Bytes,
    end: Bytes,
    features: cython.pointer[Side],
    lists: cython.pointer[Side],
    trouble: cython.pointer[Trouble],
) -> cython.bint:
    """Read one Example, or one SequenceExample where `lists` is not NULL, into the slots."""
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    side: cython.pointer[Side]
    if end - p >= 0x7FFFFFFF:
        fail(trouble, TOO_LARGE, p)
        return False
    while p < end:
        p = read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return False
        if tag == 0x0A or (tag == 0x12 and lists != cython.NULL):
            side = features if tag == 0x0A else lists
            p = read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return False
            p = _read_map(p, p + size, side, 99, trouble)
        else:
            p = skip_unknown(p, end, tag, 100, trouble)
        if p == cython.NULL:
            return False
    return True
