# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encode tf.train.Example and SequenceExample: what protobuf writes in deterministic mode, byte for byte.

A record is measured and then written, from the first byte to the last. A length stands before what it
measures, so every part is measured twice: once for the size of the whole, which keeps what is dear to
measure again, and once when its own length is written.
"""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.cpython.float import PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cython.cimports.cpython.long import PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cython.cimports.cpython.unicode import PyUnicode_CheckExact
from cython.cimports.libc.math import isinf
from cython.cimports.libc.stdint import int64_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.shardio.kernels._compiled._encode import Place, Source
from cython.cimports.shardio.kernels._compiled._memory import address_of

from shardio.kernels._values import MAX_MESSAGE, is_packed, too_large, wrong_name, wrong_value

COMPILED = cython.compiled


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint_size(value: uint64_t) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_varint(out: Place, value: uint64_t) -> Place:
    while value > 127:
        out[0] = (value & 127) | 128
        value >>= 7
        out += 1
    out[0] = cython.cast(cython.uchar, value)
    return out + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_head(out: Place, tag: cython.uchar, size: cython.Py_ssize_t) -> Place:
    out[0] = tag
    return _put_varint(out + 1, size)


def field_size(size):
    """Return what a length-delimited field with a one-byte tag takes."""
    return 1 + _varint_size(size) + size


def _values_size(source):
    """Measure the values of a feature: of numbers the packed bytes, of bytes the fields."""
    k: cython.Py_ssize_t
    size: cython.Py_ssize_t = 0
    if source.packed:
        return source.count
    if source.kind == 1:
        return field_size(source.count)
    if source.kind == 2:
        return 4 * source.count
    for k in range(source.count):
        size += _varint_size(source.ints[k])
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _list_size(kind: cython.int, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return what a list takes whose values take `size` bytes: packed ones have one field around them."""
    return size if kind == 1 or size == 0 else field_size(size)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _entry_size(source: cython.pointer[Source], size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    feature: cython.Py_ssize_t = field_size(_list_size(source.kind, size)) if source.kind else 0
    return field_size(source.name_size) + field_size(feature)


def _put_values(out, source):
    k: cython.Py_ssize_t
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


def _put_entry(out, source):
    listed: cython.Py_ssize_t = _list_size(source.kind, source.size)
    out = _put_head(out, 0x0A, _entry_size(source, source.size))
    out = _put_head(out, 0x0A, source.name_size)
    memcpy(out, source.name, source.name_size)
    out += source.name_size
    if source.kind == 0:
        return _put_head(out, 0x12, 0)
    return _put_feature(_put_head(out, 0x12, field_size(listed)), source)


def _put_feature(out, source):
    out = _put_head(out, source.kind << 3 | 2, _list_size(source.kind, source.size))
    if source.kind != 1 and source.size:
        out = _put_head(out, 0x0A, source.size)
    return _put_values(out, source)


@cython.cfunc
def _take(source: cython.pointer[Source], value, kept: list) -> object:
    """Aim a source at a value, which `kept` keeps alive."""
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
        source.ints = cython.address(source.value)
    elif isinstance(value, float):
        source.kind = 2
        source.single = cython.cast(cython.float, cython.cast(cython.double, value))
        source.data = cython.cast(cython.p_char, cython.address(source.single))
    elif isinstance(value, np.ndarray) and (value.dtype == np.int64 or value.dtype == np.float32):
        source.kind = 3 if value.dtype == np.int64 else 2
        array = np.ascontiguousarray(value)
        kept.append(array)
        source.data = cython.cast(cython.p_char, address_of(array))
        source.ints = cython.cast(cython.pointer[int64_t], source.data)
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


@cython.cfunc
def _as_bytes(items: list, text: cython.bint) -> list:
    """Return the bytes of each item, None where one is not what it should be."""
    found: list = []
    for item in items:
        if not (PyUnicode_CheckExact(item) if text else isinstance(item, bytes)):
            return None
        try:
            found.append(cython.cast(str, item).encode() if text else item)
        except UnicodeEncodeError:
            return None
    return found


def pack_list(kind: str, size, items: list):
    """Return a list of plain values in the form that `encode_example` takes at once.

    Args:
        kind: "float", "int64", "bytes", or "text", which becomes bytes.
        size: how many items there must be; None for any number.
        items: the values.

    Returns:
        An opaque tuple; None where a value is of another type than float, int, bytes or str exactly, does not
        fit into 32 bits of a float or 64 of an int, or has no UTF-8, and where there are more items or fewer.
        Of bytes subclasses are taken, too.
    """
    number: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(items)
    length: cython.Py_ssize_t = 0
    overflow: cython.int = 0
    single: cython.float
    if size is not None and size != count:
        return None
    if kind == "float":
        data: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * count)
        out: Place = cython.cast(Place, PyBytes_AS_STRING(data))
        for number in range(count):
            item = items[number]
            if not PyFloat_CheckExact(item):
                return None
            single = cython.cast(cython.float, PyFloat_AS_DOUBLE(item))
            if isinf(single) and not isinf(PyFloat_AS_DOUBLE(item)):
                return None
            memcpy(out + 4 * number, cython.address(single), 4)
        return 2, data
    if kind == "int64":
        for number in range(count):
            item = items[number]
            if not PyLong_CheckExact(item):
                return None
            length += _varint_size(PyLong_AsLongLongAndOverflow(item, cython.address(overflow)))
            if overflow:
                return None
        data = PyBytes_FromStringAndSize(cython.NULL, length)
        out = cython.cast(Place, PyBytes_AS_STRING(data))
        for number in range(count):
            out = _put_varint(out, PyLong_AsLongLongAndOverflow(items[number], cython.address(overflow)))
        return 3, data
    items = _as_bytes(items, kind == "text")
    if items is None:
        return None
    for item in items:
        length += field_size(len(cython.cast(bytes, item)))
    data = PyBytes_FromStringAndSize(cython.NULL, length)
    out = cython.cast(Place, PyBytes_AS_STRING(data))
    for item in items:
        length = len(cython.cast(bytes, item))
        out = _put_head(out, 0x0A, length)
        memcpy(out, PyBytes_AS_STRING(item), length)
        out += length
    return 1, data


def encode_example(values):
    """Encode one tf.train.Example, features in the order of their names.

    Args:
        values: by feature name an int, float or bytes; a list of bytes; an int64 or float32 array, all
            of whose values are taken in C order; what `pack_list` returns; or None for a feature of no kind.

    Raises:
        TypeError: a value of another type.
        OverflowError: an int does not fit into 64 bits.
    """
    names: list = sorted(values)
    count: cython.Py_ssize_t = len(names)
    kept: list = []
    number: cython.Py_ssize_t
    body: cython.Py_ssize_t = 0
    sources: cython.pointer[Source] = cython.cast(
        cython.pointer[Source], calloc(count + 1, cython.sizeof(Source))
    )
    if sources == cython.NULL:
        raise MemoryError
    try:
        for number in range(count):
            name = names[number]
            if not isinstance(name, str):
                raise wrong_name(name)
            encoded: bytes = name.encode()
            kept.append(encoded)
            source: cython.pointer[Source] = cython.address(sources[number])
            source.name = PyBytes_AS_STRING(encoded)
            source.name_size = len(encoded)
            _take(source, values[name], kept)
            source.size = _values_size(source)
            body += field_size(_entry_size(source, source.size))
        if body > MAX_MESSAGE - 6:
            raise too_large(body + 6)
        record: bytes = PyBytes_FromStringAndSize(cython.NULL, field_size(body) if body else 0)
        if body:
            out: Place = _put_head(cython.cast(Place, PyBytes_AS_STRING(record)), 0x0A, body)
            for number in range(count):
                out = _put_entry(out, cython.address(sources[number]))
    finally:
        free(sources)
    return record


@cython.cfunc
def _field(tag: cython.uchar, body: bytes) -> bytes:
    """Return a length-delimited field."""
    size: cython.Py_ssize_t = len(body)
    field: bytes = PyBytes_FromStringAndSize(cython.NULL, field_size(size))
    out: Place = _put_head(cython.cast(Place, PyBytes_AS_STRING(field)), tag, size)
    memcpy(out, PyBytes_AS_STRING(body), size)
    return field


@cython.cfunc
def _feature(value) -> bytes:
    """Encode one Feature."""
    source: Source
    memset(cython.address(source), 0, cython.sizeof(Source))
    kept: list = []
    _take(cython.address(source), value, kept)
    if source.kind == 0:
        return b""
    source.size = _values_size(cython.address(source))
    size: cython.Py_ssize_t = field_size(_list_size(source.kind, source.size))
    feature: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
    _put_feature(cython.cast(Place, PyBytes_AS_STRING(feature)), cython.address(source))
    return feature


def encode_sequence_example(context, lists):
    """Encode one tf.train.SequenceExample; see `encode_example` for the values and the errors.

    Args:
        context: features of the record.
        lists: by name one value per step.
    """
    entries: list = []
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
