# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""tf.train.Example and SequenceExample, from the bytes of a batch of records to values in slots.

Protobuf's wire format: varints, tags, sizes, unknown fields, UTF-8; no byte is read at or past `end`. Every
reader takes the place `p` to read at and the place where its message ends, and returns the place after what
it read, or NULL with the reason in `trouble`. Source of the format:
https://protobuf.dev/programming-guides/encoding. What the specification leaves open is done as protobuf's
own C parser (upb) does it: tags and sizes take at most five bytes, the spare bits of a tenth varint byte
are dropped, messages and groups nest at most 100 deep, a field number 0 is refused but inside unknown
groups.

What a repeated field of a message means is protobuf's rule: maps and lists grow, of equal keys the last
entry stands, and a map entry with a field that it does not know is not an entry (upb's rule). The `oneof`
in a Feature keeps the kind that came last. Entries that are not wanted are read as strictly as those that
are.

    Example          1 features: Features
    SequenceExample  1 context: Features, 2 feature_lists: FeatureLists
    Features         1 entries: 1 key, 2 Feature
    FeatureLists     1 entries: 1 key, 2 FeatureList
    FeatureList      1 Feature, repeated
    Feature          one of 1 BytesList, 2 FloatList, 3 Int64List, each with its values as field 1

Values go to the slot of their feature while there is room, and are counted in any case. A row is kept whole
or not at all: the loop over rows stops at the first that is refused, does not fit the description, or does
not fit into the arrays; that last one is read again when they are larger.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.shardio.kernels._compiled._messages import Bytes, RowStatus, Side, Slot, Trouble

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

MAX_TAG = cython.declare(uint64_t, 0xFFFFFFFF)
MAX_SIZE = cython.declare(uint64_t, 0x7FFFFFFF)
HASH_BASIS = cython.declare(uint64_t, 0xCBF29CE484222325)
HASH_PRIME = cython.declare(uint64_t, 0x100000001B3)


def _fail(trouble, reason, place):
    trouble.reason = reason
    trouble.place = place
    return cython.NULL


# One and two bytes are what most fields have.  Each byte is loaded once: a mapped file may change between
# a check and a second look.
@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _read_varint(
    p: Bytes, end: Bytes, value: cython.pointer[uint64_t], trouble: cython.pointer[Trouble]
) -> Bytes:
    byte: uint64_t
    result: uint64_t
    shift: cython.int = 7
    if p >= end:
        return _fail(trouble, CUT, p)
    result = p[0]
    p += 1
    if result > 127:
        result &= 127
        while True:
            if p >= end:
                return _fail(trouble, CUT, p)
            byte = p[0]
            p += 1
            result |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift == 70:
                return _fail(trouble, LONG, p)
    value[0] = result
    return p


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _read_tag(p: Bytes, end: Bytes, tag: cython.pointer[uint32_t], trouble: cython.pointer[Trouble]) -> Bytes:
    byte: uint8_t
    if p < end:
        byte = p[0]
        if byte < 128:
            tag[0] = byte
            return p + 1
    return _long_tag(p, end, tag, trouble)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _read_size(
    p: Bytes, end: Bytes, size: cython.pointer[cython.Py_ssize_t], trouble: cython.pointer[Trouble]
) -> Bytes:
    """Read a size that is known to fit between the returned place and `end`."""
    byte: cython.Py_ssize_t
    more: cython.Py_ssize_t
    if end - p >= 2:
        byte = p[0]
        if byte < 128:
            if byte < end - p:
                size[0] = byte
                return p + 1
        else:
            more = p[1]
            byte = (byte & 127) | more << 7
            if more < 128 and byte <= end - p - 2:
                size[0] = byte
                return p + 2
    return _long_size(p, end, size, trouble)


def _long_tag(p, end, tag, trouble):
    value: uint64_t = 0
    after: Bytes = _read_varint(p, end, cython.address(value), trouble)
    if after == cython.NULL:
        return after
    if after - p > 5 or value > MAX_TAG:
        return _fail(trouble, TAG, p)
    tag[0] = cython.cast(uint32_t, value)
    return after


def _long_size(p, end, size, trouble):
    value: uint64_t = 0
    after: Bytes = _read_varint(p, end, cython.address(value), trouble)
    if after == cython.NULL:
        return after
    if after - p > 5:
        return _fail(trouble, LONG, p)
    if value >= MAX_SIZE or value > cython.cast(uint64_t, end - after):
        return _fail(trouble, CUT, p)
    size[0] = cython.cast(cython.Py_ssize_t, value)
    return after


def _skip_value(p, end, tag, depth, trouble):
    kind: uint32_t = tag & 7
    size: cython.Py_ssize_t = 0
    value: uint64_t = 0
    if kind == 0:
        return _read_varint(p, end, cython.address(value), trouble)
    if kind == 3:
        return _skip_group(p, end, tag, depth - 1, trouble)
    if kind == 1:
        size = 8
    elif kind == 5:
        size = 4
    elif kind == 2:
        p = _long_size(p, end, cython.address(size), trouble)
        if p == cython.NULL:
            return p
    else:
        return _fail(trouble, GROUP if kind == 4 else TYPE, p)
    return p + size if end - p >= size else _fail(trouble, CUT, p)


def _skip_group(p, end, begin, depth, trouble):
    tag: uint32_t = 0
    if depth < 0:
        return _fail(trouble, DEEP, p)
    while p < end:
        p = _long_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL or tag == begin + 1:  # the wire type of an end is that of its begin and one
            return p
        p = _skip_value(p, end, tag, depth, trouble)
        if p == cython.NULL:
            return p
    return _fail(trouble, GROUP, p)


def _skip_unknown(p, end, tag, depth, trouble):
    """Skip the value of a field that the message does not know; `depth` more levels may nest in it."""
    if tag < 8:
        return _fail(trouble, TAG, p)
    return _skip_value(p, end, tag, depth, trouble)


def _is_utf8(p, end):
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


def _read_ints(p, end, slot, depth, trouble):
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    value: uint64_t = 0
    bound: Bytes
    stop: Bytes
    used: cython.Py_ssize_t = slot.used
    limit: cython.Py_ssize_t = slot.limit if slot.kind == 3 else -1
    while p < end:
        p = _read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag == 0x0A:  # packed: as many as there are
            p = _read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return p
            bound = stop = p + size
        elif tag == 0x08:  # one, of one byte or more
            bound, stop = end, p + 1
        else:
            p = _skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
            continue
        while p < stop:
            p = _read_varint(p, bound, cython.address(value), trouble)
            if p == cython.NULL:
                return p
            if used < limit:
                slot.ints[used] = value
            used += 1
    slot.used = used
    return p


def _read_floats(p, end, slot, depth, trouble):
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    limit: cython.Py_ssize_t = slot.limit if slot.kind == 2 else -1
    while p < end:
        p = _read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag == 0x0A:
            p = _read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return p
            if size & 3:
                return _fail(trouble, NOT_FLOATS, p)
        elif tag == 0x0D:
            size = 4
            if end - p < size:
                return _fail(trouble, CUT, p)
        else:
            p = _skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
            continue
        # A list that does not fit whole is a mismatch or is read again with more room.
        if slot.used + (size >> 2) <= limit:
            memcpy(slot.words + slot.used, p, size)
        slot.used += size >> 2
        p += size
    return p


def _read_bytes(p, end, slot, depth, trouble):
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    limit: cython.Py_ssize_t = slot.limit if slot.kind == 1 else -1
    while p < end:
        p = _read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag != 0x0A:
            p = _skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
            continue
        p = _read_size(p, end, cython.address(size), trouble)
        if p == cython.NULL:
            return p
        if slot.used < limit:
            slot.starts[slot.used] = p - slot.origin
            slot.stops[slot.used] = p - slot.origin + size
        slot.used += 1
        p += size
    return p


def _read_feature(p, end, slot, depth, trouble):
    tag: uint32_t = 0
    kind: cython.int
    size: cython.Py_ssize_t = 0
    while p < end:
        p = _read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag != 0x0A and tag != 0x12 and tag != 0x1A:
            p = _skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
            continue
        p = _read_size(p, end, cython.address(size), trouble)
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


def _read_feature_list(p, end, slot, depth, trouble):
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    while p < end:
        p = _read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag != 0x0A:
            p = _skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
            continue
        p = _read_size(p, end, cython.address(size), trouble)
        if p == cython.NULL:
            return p
        slot.base = slot.used
        slot.found = 0
        p = _read_feature(p, p + size, slot, depth - 1, trouble)
        if p == cython.NULL:
            return p
        _end_step(slot)
    return p


def _end_step(slot):
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


def name_hash(p, size):
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


def _find(side, key, size, place):
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


def _read_odd_key(p, end, side, number, depth, trouble):
    """Find the slot of an entry of any form: its last key counts; with an unknown field it has none."""
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    key: Bytes = p
    length: cython.Py_ssize_t = 0
    known: cython.bint = True
    while p < end:
        p = _read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag == 0x0A or tag == 0x12:
            p = _read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return p
            if tag == 0x0A:
                key, length = p, size
                if not _is_utf8(p, p + size):
                    return _fail(trouble, NOT_UTF8, p)
            p += size
        else:
            known = False
            p = _skip_unknown(p, end, tag, depth, trouble)
            if p == cython.NULL:
                return p
    number[0] = _find(side, key, length, 0) if known else -1
    return p


def _read_odd_entry(p, end, side, depth, trouble):
    """Read an entry of any form: fields in any order, missing, repeated or unknown."""
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    number: cython.int = -1
    slot: cython.pointer[Slot]
    if _read_odd_key(p, end, side, cython.address(number), depth, trouble) == cython.NULL:
        return cython.NULL
    slot = _begin(side, number)
    while p < end:  # now it is known where the value goes
        p = _read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag == 0x0A or tag == 0x12:
            p = _read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return p
            if tag == 0x0A:
                p += size
            elif side.lists:
                p = _read_feature_list(p, p + size, slot, depth - 1, trouble)
            else:
                p = _read_feature(p, p + size, slot, depth - 1, trouble)
        else:
            p = _skip_unknown(p, end, tag, depth, trouble)
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
    q = _read_size(q + 1, end, cython.address(size), trouble)
    if q == cython.NULL:
        return q
    if q + size != end:
        return _read_odd_entry(p, end, side, depth, trouble)
    number = _find(side, p + 2, length, place)
    if number < 0 and not _is_utf8(p + 2, p + 2 + length):
        return _fail(trouble, NOT_UTF8, p + 2)
    slot = _begin(side, number)
    if side.lists:
        return _read_feature_list(q, end, slot, depth - 1, trouble)
    return _read_feature(q, end, slot, depth - 1, trouble)


def _read_map(p, end, side, depth, trouble):
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t = 0
    while p < end:
        p = _read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return p
        if tag == 0x0A:
            p = _read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return p
            p = _read_entry(p, p + size, side, place, depth - 1, trouble)
            place += 1
        else:
            p = _skip_unknown(p, end, tag, depth, trouble)
        if p == cython.NULL:
            return p
    return p


def _read_record(p, end, features, lists, trouble):
    """Read one Example, or one SequenceExample where `lists` is not NULL, into the slots."""
    tag: uint32_t = 0
    size: cython.Py_ssize_t = 0
    side: cython.pointer[Side]
    if end - p >= 0x7FFFFFFF:
        _fail(trouble, TOO_LARGE, p)
        return False
    while p < end:
        p = _read_tag(p, end, cython.address(tag), trouble)
        if p == cython.NULL:
            return False
        if tag == 0x0A or (tag == 0x12 and lists != cython.NULL):
            side = features if tag == 0x0A else lists
            p = _read_size(p, end, cython.address(size), trouble)
            if p == cython.NULL:
                return False
            p = _read_map(p, p + size, side, 99, trouble)
        else:
            p = _skip_unknown(p, end, tag, 100, trouble)
        if p == cython.NULL:
            return False
    return True


def _begin_row(side, row):
    number: cython.Py_ssize_t
    slot: cython.pointer[Slot]
    for number in range(side.count):
        slot = side.slots + number
        slot.found = 0
        if slot.count >= 0 and not side.lists:
            slot.total = row * slot.count
            slot.limit = slot.total + slot.count
        slot.base = slot.used = slot.total
        slot.step = slot.step_total
        slot.listed = False
        slot.problem = 0


def _check_row(side, status):
    """Find the first feature that does not fit its description, else one that did not fit into its arrays."""
    number: cython.Py_ssize_t
    slot: cython.pointer[Slot]
    reason: cython.int
    for number in range(side.count):
        slot = side.slots + number
        reason = 0
        if side.lists:
            if not slot.listed:
                reason = MISSING if slot.required else 0
            elif slot.problem:
                reason = slot.problem
                status.found = slot.problem_found
                status.step = slot.problem_step
            elif slot.step >= slot.step_limit or slot.used > slot.limit:
                status.reason = FULL
        elif slot.found == 0:
            reason = MISSING if slot.required else 0
        elif slot.found != slot.kind:
            reason = KIND
            status.found = slot.found
        elif slot.count >= 0:
            if slot.used - slot.base != slot.count:
                reason = LENGTH
                status.found = slot.used - slot.base
        elif slot.used > slot.limit:
            status.reason = FULL
        if reason:
            status.reason = reason
            status.lists = side.lists
            status.number = number
            return


def _end_row(side, row):
    number: cython.Py_ssize_t
    slot: cython.pointer[Slot]
    for number in range(side.count):
        slot = side.slots + number
        if side.lists:
            slot.present[row] = slot.listed
            slot.total = slot.used
            slot.step_total = slot.step
            slot.steps[row + 1] = slot.step
        else:
            slot.present[row] = slot.found != 0
            slot.missing += slot.found == 0
            slot.total = slot.used
            if slot.offsets != cython.NULL:
                slot.offsets[row + 1] = slot.used


def read_rows(data, starts, stops, row, features, lists, status, trouble):
    """Read rows from `row` on; return the row that the status is about, or the number of rows."""
    while row < starts.shape[0]:
        _begin_row(features, row)
        if lists != cython.NULL:
            _begin_row(lists, row)
        if not _read_record(data + starts[row], data + stops[row], features, lists, trouble):
            status.reason = REFUSED
            return row
        _check_row(features, status)
        if lists != cython.NULL and (status.reason == 0 or status.reason == FULL):
            _check_row(lists, status)
        if status.reason:
            return row
        _end_row(features, row)
        if lists != cython.NULL:
            _end_row(lists, row)
        row += 1
    return row
