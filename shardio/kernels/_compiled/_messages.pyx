# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# tf.train.Example and SequenceExample, from the bytes of a batch of records to values in slots.
#
# Protobuf's wire format: varints, tags, sizes, unknown fields, UTF-8; no byte is read at or past `end`. Every
# reader takes the place `p` to read at and the place where its message ends, and returns the place after what
# it read, or NULL with the reason in `trouble`. Source of the format:
# https://protobuf.dev/programming-guides/encoding. What the specification leaves open is done as protobuf's
# own C parser (upb) does it: tags and sizes take at most five bytes, the spare bits of a tenth varint byte
# are dropped, messages and groups nest at most 100 deep, a field number 0 is refused but inside unknown
# groups.
#
# What a repeated field of a message means is protobuf's rule: maps and lists grow, of equal keys the last
# entry stands, and a map entry with a field that it does not know is not an entry (upb's rule). The `oneof`
# in a Feature keeps the kind that came last. Entries that are not wanted are read as strictly as those that
# are.
#
#     Example          1 features: Features
#     SequenceExample  1 context: Features, 2 feature_lists: FeatureLists
#     Features         1 entries: 1 key, 2 Feature
#     FeatureLists     1 entries: 1 key, 2 FeatureList
#     FeatureList      1 Feature, repeated
#     Feature          one of 1 BytesList, 2 FloatList, 3 Int64List, each with its values as field 1
#
# Values go to the slot of their feature while there is room, and are counted in any case. A row is kept whole
# or not at all: the loop over rows stops at the first that is refused, does not fit the description, or does
# not fit into the arrays; that last one is read again when they are larger.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from shardio.kernels._compiled._messages cimport Bytes, RowStatus, Side, Slot, Trouble

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

cdef uint64_t MAX_TAG = 4294967295
cdef uint64_t MAX_SIZE = 2147483647
cdef uint64_t HASH_BASIS = 14695981039346656037
cdef uint64_t HASH_PRIME = 1099511628211


cdef Bytes _fail(Trouble* trouble, int reason, Bytes place) noexcept nogil:
    trouble.reason = reason
    trouble.place = place
    return NULL


# One and two bytes are what most fields have.  Each byte is loaded once: a mapped file may change between
# a check and a second look.
cdef inline Bytes _read_varint(Bytes p, Bytes end, uint64_t* value, Trouble* trouble) noexcept nogil:
    cdef uint64_t byte, result
    cdef int shift = 7
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


cdef inline Bytes _read_tag(Bytes p, Bytes end, uint32_t* tag, Trouble* trouble) noexcept nogil:
    cdef uint8_t byte
    if p < end:
        byte = p[0]
        if byte < 128:
            tag[0] = byte
            return p + 1
    return _long_tag(p, end, tag, trouble)


# Read a size that is known to fit between the returned place and `end`.
cdef inline Bytes _read_size(Bytes p, Bytes end, Py_ssize_t* size, Trouble* trouble) noexcept nogil:
    cdef Py_ssize_t byte, more
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


cdef Bytes _long_tag(Bytes p, Bytes end, uint32_t* tag, Trouble* trouble) noexcept nogil:
    cdef uint64_t value = 0
    cdef Bytes after = _read_varint(p, end, &value, trouble)
    if after == NULL:
        return after
    if after - p > 5 or value > MAX_TAG:
        return _fail(trouble, TAG, p)
    tag[0] = <uint32_t> value
    return after


cdef Bytes _long_size(Bytes p, Bytes end, Py_ssize_t* size, Trouble* trouble) noexcept nogil:
    cdef uint64_t value = 0
    cdef Bytes after = _read_varint(p, end, &value, trouble)
    if after == NULL:
        return after
    if after - p > 5:
        return _fail(trouble, LONG, p)
    if value >= MAX_SIZE or value > <uint64_t> (end - after):
        return _fail(trouble, CUT, p)
    size[0] = <Py_ssize_t> value
    return after


cdef Bytes _skip_value(Bytes p, Bytes end, uint32_t tag, int depth, Trouble* trouble) noexcept nogil:
    cdef uint32_t kind = tag & 7
    cdef Py_ssize_t size = 0
    cdef uint64_t value = 0
    if kind == 0:
        return _read_varint(p, end, &value, trouble)
    if kind == 3:
        return _skip_group(p, end, tag, depth - 1, trouble)
    if kind == 1:
        size = 8
    elif kind == 5:
        size = 4
    elif kind == 2:
        p = _long_size(p, end, &size, trouble)
        if p == NULL:
            return p
    else:
        return _fail(trouble, GROUP if kind == 4 else TYPE, p)
    return p + size if end - p >= size else _fail(trouble, CUT, p)


cdef Bytes _skip_group(Bytes p, Bytes end, uint32_t begin, int depth, Trouble* trouble) noexcept nogil:
    cdef uint32_t tag = 0
    if depth < 0:
        return _fail(trouble, DEEP, p)
    while p < end:
        p = _long_tag(p, end, &tag, trouble)
        if p == NULL or tag == begin + 1:  # the wire type of an end is that of its begin and one
            return p
        p = _skip_value(p, end, tag, depth, trouble)
        if p == NULL:
            return p
    return _fail(trouble, GROUP, p)


# Skip the value of a field that the message does not know; `depth` more levels may nest in it.
cdef Bytes _skip_unknown(Bytes p, Bytes end, uint32_t tag, int depth, Trouble* trouble) noexcept nogil:
    if tag < 8:
        return _fail(trouble, TAG, p)
    return _skip_value(p, end, tag, depth, trouble)


# Tell whether bytes are UTF-8 as Unicode defines it: shortest forms, no surrogates, up to U+10FFFF.
cdef bint _is_utf8(Bytes p, Bytes end) noexcept nogil:
    cdef unsigned char byte
    cdef Py_ssize_t more
    cdef unsigned char low
    cdef unsigned char high
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


# Tags of fields, as bits: of a list of values (packed or bytes), of one number, of entries and of kinds of lists.
cdef enum:
    FIRST = 1 << 0x0A
    FIRST_OR_INT = FIRST | 1 << 0x08
    FIRST_OR_FLOAT = FIRST | 1 << 0x0D
    FIRST_TWO = FIRST | 1 << 0x12
    FIRST_THREE = FIRST_TWO | 1 << 0x1A


# Go to the value of the next field that is wanted, and read its size where it has one; skip unknown fields. At the end of
# the message return False; in trouble too, and leave NULL for the place. Of NULL nothing is read.
cdef inline bint _next_field(
    Bytes* place, Bytes end, uint32_t wanted, uint32_t* tag, Py_ssize_t* size, int depth, Trouble* trouble
) noexcept nogil:
    cdef Bytes p = place[0]
    while p != NULL and p < end:
        p = _read_tag(p, end, tag, trouble)
        if p == NULL:
            break
        if tag[0] < 32 and wanted >> tag[0] & 1:
            if tag[0] & 7 == 2:
                p = _read_size(p, end, size, trouble)
            place[0] = p
            return p != NULL
        p = _skip_unknown(p, end, tag[0], depth, trouble)
    place[0] = p
    return False


cdef Bytes _read_ints(Bytes p, Bytes end, Slot* slot, int depth, Trouble* trouble) noexcept nogil:
    cdef uint32_t tag = 0
    cdef uint64_t value = 0
    cdef Bytes bound, stop
    cdef Py_ssize_t size = 0, used = slot.used, limit = slot.limit if slot.kind == 3 else -1
    while _next_field(&p, end, FIRST_OR_INT, &tag, &size, depth, trouble):
        bound, stop = end, p + 1  # one, of one byte or more
        if tag == 0x0A:  # packed: as many as there are
            bound = stop = p + size
        while p < stop:
            p = _read_varint(p, bound, &value, trouble)
            if p == NULL:
                return p
            if used < limit:
                slot.ints[used] = value
            used += 1
    slot.used = used
    return p


cdef Bytes _read_floats(Bytes p, Bytes end, Slot* slot, int depth, Trouble* trouble) noexcept nogil:
    cdef uint32_t tag = 0
    cdef Py_ssize_t size = 0, limit = slot.limit if slot.kind == 2 else -1
    while _next_field(&p, end, FIRST_OR_FLOAT, &tag, &size, depth, trouble):
        if tag == 0x0D:
            size = 4
            if end - p < size:
                return _fail(trouble, CUT, p)
        if size & 3:
            return _fail(trouble, NOT_FLOATS, p)
        # A list that does not fit whole is a mismatch or is read again with more room.
        if slot.used + (size >> 2) <= limit:
            memcpy(slot.words + slot.used, p, size)
        slot.used += size >> 2
        p += size
    return p


cdef Bytes _read_bytes(Bytes p, Bytes end, Slot* slot, int depth, Trouble* trouble) noexcept nogil:
    cdef uint32_t tag = 0
    cdef Py_ssize_t size = 0, limit = slot.limit if slot.kind == 1 else -1
    while _next_field(&p, end, FIRST, &tag, &size, depth, trouble):
        if slot.used < limit:
            slot.starts[slot.used] = p - slot.origin
            slot.stops[slot.used] = p - slot.origin + size
        slot.used += 1
        p += size
    return p


cdef Bytes _read_feature(Bytes p, Bytes end, Slot* slot, int depth, Trouble* trouble) noexcept nogil:
    cdef uint32_t tag = 0
    cdef int kind
    cdef Py_ssize_t size = 0
    while _next_field(&p, end, FIRST_THREE, &tag, &size, depth, trouble):
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
    return p


cdef Bytes _read_feature_list(Bytes p, Bytes end, Slot* slot, int depth, Trouble* trouble) noexcept nogil:
    cdef uint32_t tag = 0
    cdef Py_ssize_t size = 0
    while _next_field(&p, end, FIRST, &tag, &size, depth, trouble):
        slot.base = slot.used
        slot.found = 0
        p = _read_feature(p, p + size, slot, depth - 1, trouble)
        if p != NULL:
            _end_step(slot)
    return p


cdef void _end_step(Slot* slot) noexcept nogil:
    cdef int problem = 0
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


# Hash a name: FNV-1a, for a table in memory only.
cdef uint64_t name_hash(Bytes p, Py_ssize_t size) noexcept nogil:
    cdef uint64_t result = HASH_BASIS
    cdef Py_ssize_t k
    for k in range(size):
        result = (result ^ p[k]) * HASH_PRIME
    return result ^ (result >> 32)


cdef inline bint _is_named(Side* side, int number, Bytes key, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t start = side.cuts[number]
    return side.cuts[number + 1] - start == size and memcmp(side.names + start, key, size) == 0


# Return the number of the slot that has this name, or -1.
#
# Most writers keep one order of features, so the name at this place of the row before is tried first.
cdef int _find(Side* side, Bytes key, Py_ssize_t size, Py_ssize_t place) noexcept nogil:
    cdef int number = side.guesses[place & 63]
    cdef uint64_t bucket
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


# Make a slot ready for an entry of the map, which replaces an earlier one of the same name.
cdef inline Slot* _begin(Side* side, int number) noexcept nogil:
    cdef Slot* slot = side.nowhere if number < 0 else side.slots + number
    slot.found = 0
    if side.lists:
        slot.listed = True
        slot.base = slot.total
        slot.step = slot.step_total
        slot.problem = 0
    slot.used = slot.base
    return slot


# Read an entry of any form: fields in any order, missing, repeated or unknown. The last key counts, and an entry with an
# unknown field has none; then it is known where the values go.
cdef Bytes _read_odd_entry(Bytes p, Bytes end, Side* side, int depth, Trouble* trouble) noexcept nogil:
    cdef uint32_t tag = 0
    cdef Py_ssize_t size = 0, length = 0
    cdef Bytes key = p, q = p
    cdef bint known = True
    while q != NULL and q < end:
        q = _read_tag(q, end, &tag, trouble)
        if q != NULL and (tag == 0x0A or tag == 0x12):
            q = _read_size(q, end, &size, trouble)
            if q != NULL and tag == 0x0A:
                key, length = q, size
                if not _is_utf8(q, q + size):
                    return _fail(trouble, NOT_UTF8, q)
            if q != NULL:
                q += size
        elif q != NULL:
            known = False
            q = _skip_unknown(q, end, tag, depth, trouble)
    if q == NULL:
        return q
    cdef Slot* slot = _begin(side, _find(side, key, length, 0) if known else -1)
    while _next_field(&p, end, FIRST_TWO, &tag, &size, depth, trouble):
        if tag == 0x0A:
            p += size
        else:
            p = _read_value(p, p + size, side, slot, depth, trouble)
    return p


cdef Bytes _read_value(Bytes p, Bytes end, Side* side, Slot* slot, int depth, Trouble* trouble) noexcept nogil:
    if side.lists:
        return _read_feature_list(p, end, slot, depth - 1, trouble)
    return _read_feature(p, end, slot, depth - 1, trouble)


# Read a key and then a value, as every writer writes them, and leave other entries to the above.
cdef inline Bytes _read_entry(
    Bytes p, Bytes end, Side* side, Py_ssize_t place, int depth, Trouble* trouble
) noexcept nogil:
    cdef Py_ssize_t size = 0, length = p[1] if end - p >= 2 and p[0] == 0x0A else 128
    cdef int number
    if length > 127 or end - p - 2 <= length or p[2 + length] != 0x12:
        return _read_odd_entry(p, end, side, depth, trouble)
    cdef Bytes q = p + 2 + length
    q = _read_size(q + 1, end, &size, trouble)
    if q == NULL:
        return q
    if q + size != end:
        return _read_odd_entry(p, end, side, depth, trouble)
    number = _find(side, p + 2, length, place)
    if number < 0 and not _is_utf8(p + 2, p + 2 + length):
        return _fail(trouble, NOT_UTF8, p + 2)
    return _read_value(q, end, side, _begin(side, number), depth, trouble)


cdef Bytes _read_map(Bytes p, Bytes end, Side* side, int depth, Trouble* trouble) noexcept nogil:
    cdef uint32_t tag = 0
    cdef Py_ssize_t size = 0, place = 0
    while _next_field(&p, end, FIRST, &tag, &size, depth, trouble):
        p = _read_entry(p, p + size, side, place, depth - 1, trouble)
        place += 1
    return p


# Read one Example, or one SequenceExample where `lists` is not NULL, into the slots.
cdef bint _read_record(Bytes p, Bytes end, Side* features, Side* lists, Trouble* trouble) noexcept nogil:
    cdef uint32_t tag = 0, wanted = FIRST if lists == NULL else FIRST_TWO
    cdef Py_ssize_t size = 0
    if end - p >= 0x7FFFFFFF:
        _fail(trouble, TOO_LARGE, p)
        return False
    while _next_field(&p, end, wanted, &tag, &size, 100, trouble):
        p = _read_map(p, p + size, features if tag == 0x0A else lists, 99, trouble)
    return trouble.reason == 0


cdef void _begin_row(Side* side, Py_ssize_t row) noexcept nogil:
    cdef Py_ssize_t number
    cdef Slot* slot
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


# Find the first feature that does not fit its description, else one that did not fit into its arrays.
cdef void _check_row(Side* side, RowStatus* status) noexcept nogil:
    cdef Py_ssize_t number
    cdef Slot* slot
    cdef int reason
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


cdef void _end_row(Side* side, Py_ssize_t row) noexcept nogil:
    cdef Py_ssize_t number
    cdef Slot* slot
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
            if slot.offsets != NULL:
                slot.offsets[row + 1] = slot.used


# Read rows from `row` on; return the row that the status is about, or the number of rows.
cdef Py_ssize_t read_rows(
    Bytes data, const int64_t[::1] starts, const int64_t[::1] stops, Py_ssize_t row, Side* features, Side* lists,
    RowStatus* status, Trouble* trouble
) noexcept nogil:
    while row < starts.shape[0]:
        _begin_row(features, row)
        if lists != NULL:
            _begin_row(lists, row)
        if not _read_record(data + starts[row], data + stops[row], features, lists, trouble):
            status.reason = REFUSED
            return row
        _check_row(features, status)
        if lists != NULL and (status.reason == 0 or status.reason == FULL):
            _check_row(lists, status)
        if status.reason:
            return row
        _end_row(features, row)
        if lists != NULL:
            _end_row(lists, row)
        row += 1
    return row
