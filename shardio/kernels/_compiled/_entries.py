# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""One row of an Example measured and then written, from the first byte to the last.

A length stands before what it measures, so every part is measured twice: once for the size of the whole,
which keeps what is dear to measure again, and once when its own length is written.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.shardio.kernels._compiled._entries import Place, Source


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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def field_size(size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return what a length-delimited field with a one-byte tag takes."""
    return 1 + _varint_size(size) + size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _values_size(source: cython.pointer[Source], row: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Measure the values of one row: of numbers the packed bytes, of bytes the fields."""
    k: cython.Py_ssize_t
    size: cython.Py_ssize_t = 0
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_values(out: Place, source: cython.pointer[Source], row: cython.Py_ssize_t) -> Place:
    k: cython.Py_ssize_t
    size: cython.Py_ssize_t
    first: cython.Py_ssize_t = source.first[row]
    if source.kind == 2:
        size = 4 * (source.last[row] - first)
        memcpy(out, source.floats + 4 * first, size)
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_entry(
    out: Place, source: cython.pointer[Source], row: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> Place:
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def measure_row(
    sources: cython.pointer[Source], count: cython.Py_ssize_t, row: cython.Py_ssize_t
) -> cython.Py_ssize_t:
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_row(
    out: Place,
    sources: cython.pointer[Source],
    count: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    body: cython.Py_ssize_t,
) -> Place:
    """Write one record; `body` is what its entries take, and without entries there is nothing to write."""
    number: cython.Py_ssize_t
    if body == 0:
        return out
    out = _put_head(out, 0x0A, body)
    for number in range(count):
        if sources[number].sizes[row] >= 0:
            out = _put_entry(out, cython.address(sources[number]), row, sources[number].sizes[row])
    return out
