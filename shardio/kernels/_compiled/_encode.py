# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""tf.train.Example written by the batch or one by one, compiled: the same functions as in `_reference`.

A row is measured and then written, from the first byte to the last. A length stands before what it
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
from cython.cimports.libc.stdint import int64_t, uint8_t, uint64_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy
from cython.cimports.shardio.kernels._compiled._encode import Place, Single, Source
from cython.cimports.shardio.kernels._compiled._memory import address_of

from shardio.kernels._arguments import as_bytes
from shardio.kernels._features import KINDS, Records
from shardio.kernels._values import (
    MAX_MESSAGE,
    check_columns,
    is_packed,
    row_bounds,
    too_large,
    wrong_name,
    wrong_value,
)

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


def _values_size(source, row):
    """Measure the values of one row: of numbers the packed bytes, of bytes the fields."""
    k: cython.Py_ssize_t
    size: cython.Py_ssize_t = 0
    if source.packed:
        return source.last[row] - source.first[row]
    if source.kind == 2:
        return 4 * (source.last[row] - source.first[row])
    if source.kind == 3:
        for k in range(source.first[row], source.last[row]):
            size += _varint_size(source.ints[k])
        return size
    for k in range(source.first[row], source.last[row]):
        size += field_size(source.stops[k] - source.starts[k])
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


def _put_values(out, source, row):
    k: cython.Py_ssize_t
    size: cython.Py_ssize_t
    first: cython.Py_ssize_t = source.first[row]
    if source.packed or source.kind == 2:
        first *= 1 if source.packed else 4
        size = _values_size(source, row)
        memcpy(out, source.floats + first, size)
        return out + size
    if source.kind == 3:
        for k in range(first, source.last[row]):
            out = _put_varint(out, source.ints[k])
        return out
    for k in range(first, source.last[row]):
        size = source.stops[k] - source.starts[k]
        out = _put_head(out, 0x0A, size)
        memcpy(out, source.data + source.starts[k], size)
        out += size
    return out


def _put_entry(out, source, row, size):
    listed: cython.Py_ssize_t = _list_size(source.kind, size)
    out = _put_head(out, 0x0A, _entry_size(source, size))
    out = _put_head(out, 0x0A, source.name_size)
    memcpy(out, source.name, source.name_size)
    out += source.name_size
    if source.kind == 0:
        return _put_head(out, 0x12, 0)
    out = _put_head(out, 0x12, field_size(listed))
    out = _put_head(out, source.kind << 3 | 2, listed)
    if source.kind != 1 and size:
        out = _put_head(out, 0x0A, size)
    return _put_values(out, source, row)


def measure_row(sources, count, row):
    """Measure the entries of one row, and keep the size of each one's values."""
    number: cython.Py_ssize_t
    size: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    for number in range(count):
        if not sources[number].present[row]:
            sources[number].sizes[row] = -1
            continue
        size = _values_size(cython.address(sources[number]), row)
        sources[number].sizes[row] = size
        total += field_size(_entry_size(cython.address(sources[number]), size))
    return total


def put_row(out, sources, count, row, body):
    """Write one record; `body` is what its entries take, and without entries there is nothing to write."""
    number: cython.Py_ssize_t
    if body == 0:
        return out
    out = _put_head(out, 0x0A, body)
    for number in range(count):
        if sources[number].sizes[row] >= 0:
            out = _put_entry(out, cython.address(sources[number]), row, sources[number].sizes[row])
    return out


def _measure(sources, count, offsets, bodies):
    row: cython.Py_ssize_t
    for row in range(bodies.shape[0]):
        bodies[row] = measure_row(sources, count, row)
        offsets[row + 1] = offsets[row] + (field_size(bodies[row]) if bodies[row] else 0)


def _write(sources, count, bodies, out):
    row: cython.Py_ssize_t
    for row in range(bodies.shape[0]):
        out = put_row(out, sources, count, row, bodies[row])


@cython.cfunc
def _fill(source: cython.pointer[Source], name: bytes, column, kept: list) -> object:
    """Aim one source at its column's arrays, which `kept` keeps alive."""
    source.kind = 1 + KINDS.index(column.kind)
    source.name = PyBytes_AS_STRING(name)
    source.name_size = len(name)
    first, last = row_bounds(column)
    present = np.ascontiguousarray(column.present, np.bool_)
    sizes = np.empty(len(first), np.int64)
    kept.extend((name, first, last, present, sizes))
    source.first = cython.cast(cython.pointer[int64_t], address_of(first))
    source.last = cython.cast(cython.pointer[int64_t], address_of(last))
    source.present = cython.cast(cython.pointer[uint8_t], address_of(present))
    source.sizes = cython.cast(cython.pointer[int64_t], address_of(sizes))
    if source.kind == 1:
        data = as_bytes(column.source)
        starts = np.ascontiguousarray(column.starts, np.int64)
        stops = np.ascontiguousarray(column.stops, np.int64)
        kept.extend((data, starts, stops))
        source.data = cython.cast(cython.p_char, address_of(data))
        source.starts = cython.cast(cython.pointer[int64_t], address_of(starts))
        source.stops = cython.cast(cython.pointer[int64_t], address_of(stops))
        return None
    values = np.ascontiguousarray(column.values)
    kept.append(values)
    source.ints = cython.cast(cython.pointer[int64_t], address_of(values))
    source.floats = cython.cast(cython.p_char, address_of(values))


def encode_examples(columns, *, rows=None):
    count, names = check_columns(columns, rows)
    number: cython.Py_ssize_t
    kept: list = []
    ends = np.zeros(count + 1, np.int64)
    offsets: int64_t[::1] = ends
    bodies: int64_t[::1] = np.zeros(count, np.int64)
    many: cython.Py_ssize_t = len(names)
    sources: cython.pointer[Source] = cython.cast(
        cython.pointer[Source], calloc(many + 1, cython.sizeof(Source))
    )
    if sources == cython.NULL:
        raise MemoryError
    try:
        for number in range(many):
            _fill(cython.address(sources[number]), names[number], columns[names[number]], kept)
        with cython.nogil:
            _measure(sources, many, offsets, bodies)
        widths = np.diff(ends)
        if widths.size and widths.max() > MAX_MESSAGE:
            row = int(widths.argmax())
            raise too_large(row, int(widths[row]))
        records: bytes = PyBytes_FromStringAndSize(cython.NULL, ends[count])
        out: Place = cython.cast(Place, PyBytes_AS_STRING(records))
        with cython.nogil:
            _write(sources, many, bodies, out)
    finally:
        free(sources)
    return Records(records, ends[:count], ends[1:])


@cython.cfunc
def _take(source: cython.pointer[Source], single: cython.pointer[Single], value, kept: list) -> object:
    """Aim one source at one value.  Spans of bytes objects count from address 0."""
    count: cython.Py_ssize_t = 1
    single.present = True
    source.first = cython.address(single.first)
    source.last = cython.address(single.last)
    source.present = cython.address(single.present)
    source.sizes = cython.address(single.size)
    source.starts = cython.address(single.start)
    source.stops = cython.address(single.stop)
    if value is None:
        source.kind = 0
        count = 0
    elif isinstance(value, bytes):
        source.kind = 1
        single.start = cython.cast(int64_t, cython.cast(cython.size_t, PyBytes_AS_STRING(value)))
        single.stop = single.start + len(value)
    elif isinstance(value, int):
        source.kind = 3
        single.value = value
        source.ints = cython.address(single.value)
    elif isinstance(value, float):
        source.kind = 2
        single.single = cython.cast(cython.float, cython.cast(cython.double, value))
        source.floats = cython.cast(cython.p_char, cython.address(single.single))
    elif isinstance(value, np.ndarray) and (value.dtype == np.int64 or value.dtype == np.float32):
        source.kind = 3 if value.dtype == np.int64 else 2
        array = np.ascontiguousarray(value)
        kept.append(array)
        source.floats = cython.cast(cython.p_char, address_of(array))
        source.ints = cython.cast(cython.pointer[int64_t], source.floats)
        count = array.size
    elif isinstance(value, list | tuple):
        packed = pack_list("bytes", None, value) if isinstance(value, list) else value
        if packed is None or not is_packed(packed):
            raise wrong_value(value)
        source.kind, data = packed
        kept.append(data)
        source.packed = True
        source.floats = PyBytes_AS_STRING(data)
        count = len(data)
    else:
        raise wrong_value(value)
    single.last = count


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
    names: list = sorted(values)
    count: cython.Py_ssize_t = len(names)
    kept: list = []
    number: cython.Py_ssize_t
    body: cython.Py_ssize_t
    sources: cython.pointer[Source] = cython.cast(
        cython.pointer[Source], calloc(count + 1, cython.sizeof(Source) + cython.sizeof(Single))
    )
    if sources == cython.NULL:
        raise MemoryError
    singles: cython.pointer[Single] = cython.cast(cython.pointer[Single], sources + count + 1)
    try:
        for number in range(count):
            name = names[number]
            if not isinstance(name, str):
                raise wrong_name(name)
            encoded: bytes = name.encode()
            value = values[name]
            kept.append(encoded)
            kept.append(value)
            sources[number].name = PyBytes_AS_STRING(encoded)
            sources[number].name_size = len(encoded)
            _take(cython.address(sources[number]), cython.address(singles[number]), value, kept)
        body = measure_row(sources, count, 0)
        if body > MAX_MESSAGE - 6:
            raise too_large(None, body + 6)
        record: bytes = PyBytes_FromStringAndSize(cython.NULL, field_size(body) if body else 0)
        put_row(cython.cast(Place, PyBytes_AS_STRING(record)), sources, count, 0, body)
    finally:
        free(sources)
    return record
