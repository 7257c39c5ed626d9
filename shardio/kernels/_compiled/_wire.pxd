# What _wire.py offers to the other compiled modules.  The three readers below are defined here, not there, so
# that their one-byte case is compiled into the loops that call them.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

ctypedef const unsigned char* Bytes

ctypedef struct Trouble:
    int reason   # 0 none, else index into REASONS of _wire.py
    Bytes place  # where it was noticed

cdef Bytes fail(Trouble* trouble, int reason, Bytes place) noexcept nogil
cdef Bytes long_tag(Bytes p, Bytes end, uint32_t* tag, Trouble* trouble) noexcept nogil
cdef Bytes long_size(Bytes p, Bytes end, Py_ssize_t* size, Trouble* trouble) noexcept nogil
cdef Bytes skip_unknown(Bytes p, Bytes end, uint32_t tag, int depth, Trouble* trouble) noexcept nogil
cdef bint is_utf8(Bytes p, Bytes end) noexcept nogil

# One and two bytes are what most fields have.  Each byte is loaded once: a mapped file may change between a check and
# a second look.
cdef inline Bytes read_varint(Bytes p, Bytes end, uint64_t* value, Trouble* trouble) noexcept nogil:
    cdef uint64_t byte, result
    cdef int shift = 7
    if p >= end:
        return fail(trouble, 1, p)
    result = p[0]
    p += 1
    if result > 127:
        result &= 127
        while True:
            if p >= end:
                return fail(trouble, 1, p)
            byte = p[0]
            p += 1
            result |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift == 70:
                return fail(trouble, 2, p)
    value[0] = result
    return p

cdef inline Bytes read_tag(Bytes p, Bytes end, uint32_t* tag, Trouble* trouble) noexcept nogil:
    cdef uint8_t byte
    if p < end:
        byte = p[0]
        if byte < 128:
            tag[0] = byte
            return p + 1
    return long_tag(p, end, tag, trouble)

# The size is known to fit between the returned place and `end`.
cdef inline Bytes read_size(Bytes p, Bytes end, Py_ssize_t* size, Trouble* trouble) noexcept nogil:
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
    return long_size(p, end, size, trouble)
