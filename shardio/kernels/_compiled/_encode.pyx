# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# Encode tf.train.Example and SequenceExample: what protobuf writes in deterministic mode, byte for byte.
#
# A record is measured and then written, from the first byte to the last. A length stands before what it
# measures, so every part is measured twice: once for the size of the whole, which keeps what is dear to
# measure again, and once when its own length is written.

import numpy as np
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact
from libc.math cimport isinf
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from shardio.kernels._compiled._encode cimport Place, Source
from shardio.kernels._compiled._memory cimport address_of

from shardio.kernels._values import MAX_MESSAGE, is_packed, too_large, wrong_name, wrong_value


cdef inline Py_ssize_t _varint_size(uint64_t value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


cdef inline Place _put_varint(Place out, uint64_t value) noexcept nogil:
    while value > 127:
        out[0] = (value & 127) | 128
        value >>= 7
        out += 1
    out[0] = <unsigned char> value
    return out + 1


cdef inline Place _put_head(Place out, unsigned char tag, Py_ssize_t size) noexcept nogil:
    out[0] = tag
    return _put_varint(out + 1, size)


# Return what a length-delimited field with a one-byte tag takes.
cdef Py_ssize_t field_size(Py_ssize_t size) noexcept nogil:
    return 1 + _varint_size(size) + size


# Measure the values of a feature: of numbers the packed bytes, of bytes the fields.
cdef Py_ssize_t _values_size(Source* source) noexcept nogil:
    cdef Py_ssize_t k, size = 0
    if source.packed:
        return source.count
    if source.kind == 1:
        return field_size(source.count)
    if source.kind == 2:
        return 4 * source.count
    for k in range(source.count):
        size += _varint_size(source.ints[k])
    return size


# Return what a list takes whose values take `size` bytes: packed ones have one field around them.
cdef inline Py_ssize_t _list_size(int kind, Py_ssize_t size) noexcept nogil:
    return size if kind == 1 or size == 0 else field_size(size)


cdef inline Py_ssize_t _entry_size(Source* source, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t feature = field_size(_list_size(source.kind, size)) if source.kind else 0
    return field_size(source.name_size) + field_size(feature)


cdef Place _put_values(Place out, Source* source) noexcept nogil:
    cdef Py_ssize_t k
    if source.kind == 3 and not source.packed:
        for k in range(source.count):
            out = _put_varint(out, source.ints[k])
        return out
    if source.kind == 1 and not source.packed:
        out = _put_head(out, 0x0A, source.count)
        memcpy(out, source.data, source.count)
        return out + source.count
    memcpy(out, source.data, source.size)
    return out + source.size


cdef Place _put_entry(Place out, Source* source) noexcept nogil:
    cdef Py_ssize_t listed = _list_size(source.kind, source.size)
    out = _put_head(out, 0x0A, _entry_size(source, source.size))
    out = _put_head(out, 0x0A, source.name_size)
    memcpy(out, source.name, source.name_size)
    out += source.name_size
    if source.kind == 0:
        return _put_head(out, 0x12, 0)
    return _put_feature(_put_head(out, 0x12, field_size(listed)), source)


cdef Place _put_feature(Place out, Source* source) noexcept nogil:
    out = _put_head(out, source.kind << 3 | 2, _list_size(source.kind, source.size))
    if source.kind != 1 and source.size:
        out = _put_head(out, 0x0A, source.size)
    return _put_values(out, source)


# Aim a source at a value, which `kept` keeps alive.
cdef _take(Source* source, value, list kept):
    kept.append(value)
    source.count = 1
    if value is None:
        source.kind = source.count = 0
    elif isinstance(value, bytes):
        source.kind = 1
        source.data = PyBytes_AS_STRING(value)
        source.count = len(value)
    elif isinstance(value, int):
        source.kind = 3
        source.value = value
        source.ints = &source.value
    elif isinstance(value, float):
        source.kind = 2
        source.single = <float> (<double> value)
        source.data = <char*> &source.single
    elif isinstance(value, np.ndarray) and (value.dtype == np.int64 or value.dtype == np.float32):
        source.kind = 3 if value.dtype == np.int64 else 2
        array = np.ascontiguousarray(value)
        kept.append(array)
        source.data = <char*> address_of(array)
        source.ints = <int64_t*> source.data
        source.count = array.size
    elif isinstance(value, list | tuple):
        packed = pack_list("bytes", None, value) if isinstance(value, list) else value
        if packed is None or not is_packed(packed):
            raise wrong_value(value)
        source.kind, data = packed
        kept.append(data)
        source.packed = True
        source.data = PyBytes_AS_STRING(data)
        source.count = len(data)
    else:
        raise wrong_value(value)


# Return the bytes of each item, None where one is not what it should be.
cdef list _as_bytes(list items, bint text):
    cdef list found = []
    for item in items:
        if not (PyUnicode_CheckExact(item) if text else isinstance(item, bytes)):
            return None
        try:
            found.append((<str> item).encode() if text else item)
        except UnicodeEncodeError:
            return None
    return found


# Return a list of plain values in the form that `encode_example` takes at once.
#
# Args:
#     kind: "float", "int64", "bytes", or "text", which becomes bytes.
#     size: how many items there must be; None for any number.
#     items: the values.
#
# Returns:
#     An opaque tuple; None where a value is of another type than float, int, bytes or str exactly, does not
#     fit into 32 bits of a float or 64 of an int, or has no UTF-8, and where there are more items or fewer.
#     Of bytes subclasses are taken, too.
def pack_list(str kind, size, list items):
    cdef bytes data
    cdef Place out
    cdef Py_ssize_t number
    cdef Py_ssize_t count = len(items)
    cdef Py_ssize_t length = 0
    cdef int overflow = 0
    cdef float single
    if size is not None and size != count:
        return None
    if kind == "float":
        data = PyBytes_FromStringAndSize(NULL, 4 * count)
        out = <Place> PyBytes_AS_STRING(data)
        for number in range(count):
            item = items[number]
            if not PyFloat_CheckExact(item):
                return None
            single = <float> PyFloat_AS_DOUBLE(item)
            if isinf(single) and not isinf(PyFloat_AS_DOUBLE(item)):
                return None
            memcpy(out + 4 * number, &single, 4)
        return 2, data
    if kind == "int64":
        for number in range(count):
            item = items[number]
            if not PyLong_CheckExact(item):
                return None
            length += _varint_size(PyLong_AsLongLongAndOverflow(item, &overflow))
            if overflow:
                return None
        data = PyBytes_FromStringAndSize(NULL, length)
        out = <Place> PyBytes_AS_STRING(data)
        for number in range(count):
            out = _put_varint(out, PyLong_AsLongLongAndOverflow(items[number], &overflow))
        return 3, data
    items = _as_bytes(items, kind == "text")
    if items is None:
        return None
    for item in items:
        length += field_size(len(<bytes> item))
    data = PyBytes_FromStringAndSize(NULL, length)
    out = <Place> PyBytes_AS_STRING(data)
    for item in items:
        length = len(<bytes> item)
        out = _put_head(out, 0x0A, length)
        memcpy(out, PyBytes_AS_STRING(item), length)
        out += length
    return 1, data


# Encode one tf.train.Example, features in the order of their names.
#
# Args:
#     values: by feature name an int, float or bytes; a list of bytes; an int64 or float32 array, all
#         of whose values are taken in C order; what `pack_list` returns; or None for a feature of no kind.
#
# Raises:
#     TypeError: a value of another type.
#     OverflowError: an int does not fit into 64 bits.
def encode_example(values):
    cdef bytes record, encoded
    cdef Source* source
    cdef Place out
    cdef list names = sorted(values)
    cdef Py_ssize_t count = len(names)
    cdef list kept = []
    cdef Py_ssize_t number, body = 0
    cdef Source* sources = <Source*> (calloc(count + 1, sizeof(Source)))
    if sources == NULL:
        raise MemoryError
    try:
        for number in range(count):
            name = names[number]
            if not isinstance(name, str):
                raise wrong_name(name)
            encoded = name.encode()
            kept.append(encoded)
            source = &sources[number]
            source.name = PyBytes_AS_STRING(encoded)
            source.name_size = len(encoded)
            _take(source, values[name], kept)
            source.size = _values_size(source)
            body += field_size(_entry_size(source, source.size))
        if body > MAX_MESSAGE - 6:
            raise too_large(body + 6)
        record = PyBytes_FromStringAndSize(NULL, field_size(body) if body else 0)
        if body:
            out = _put_head(<Place> PyBytes_AS_STRING(record), 0x0A, body)
            for number in range(count):
                out = _put_entry(out, &sources[number])
    finally:
        free(sources)
    return record


# Return a length-delimited field.
cdef bytes _field(unsigned char tag, bytes body):
    cdef Py_ssize_t size = len(body)
    cdef bytes field = PyBytes_FromStringAndSize(NULL, field_size(size))
    cdef Place out = _put_head(<Place> PyBytes_AS_STRING(field), tag, size)
    memcpy(out, PyBytes_AS_STRING(body), size)
    return field


# Encode one Feature.
cdef bytes _feature(value):
    cdef Source source
    memset(&source, 0, sizeof(Source))
    cdef list kept = []
    _take(&source, value, kept)
    if source.kind == 0:
        return b""
    source.size = _values_size(&source)
    cdef Py_ssize_t size = field_size(_list_size(source.kind, source.size))
    cdef bytes feature = PyBytes_FromStringAndSize(NULL, size)
    _put_feature(<Place> PyBytes_AS_STRING(feature), &source)
    return feature


# Encode one tf.train.SequenceExample; see `encode_example` for the values and the errors.
#
# Args:
#     context: features of the record.
#     lists: by name one value per step.
def encode_sequence_example(context, lists):
    cdef list entries = []
    for name in sorted(lists):
        if not isinstance(name, str):
            raise wrong_name(name)
        steps = b"".join([_field(0x0A, _feature(value)) for value in lists[name]])
        entries.append(_field(0x0A, _field(0x0A, name.encode()) + _field(0x12, steps)))
    # The context is field 1 of the message, as the features of an Example are.
    message = encode_example(context)
    if entries:
        message += _field(0x12, b"".join(entries))
    if len(message) > MAX_MESSAGE:
        raise too_large(len(message))
    return message
