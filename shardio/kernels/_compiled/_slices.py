# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records out of buffers, as bytes objects or in one array."""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.cpython.list import PyList_New, PyList_SET_ITEM
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.libc.stdint import int64_t, uint32_t
from cython.cimports.libc.string import memcpy
from cython.cimports.shardio.kernels._compiled._frame import FRAME, HEAD, Bytes
from cython.cimports.shardio.kernels._compiled._memory import address_of, raise_trim_threshold
from cython.cimports.shardio.kernels._compiled._prefetch import SHARDIO_PREFETCH

from shardio.kernels._arguments import (
    as_bounds,
    as_bytes,
    as_frame_tables,
    as_out,
    as_pairs,
    as_parts,
    as_rows,
    as_sources,
    as_tables,
    frame_of_no_part,
    row_outside,
)

COMPILED = cython.compiled

Ends = cython.typedef(cython.pointer(cython.const[uint32_t]))

# Rows of so many bytes and more are a group of steps; of those several are made, delivered and freed in
# turn, by several threads, each with memory of its own. More than this malloc does not keep, and larger
# groups are of large records.
LEAST = cython.declare(int64_t, 1 << 20)
GROUPS = cython.declare(int64_t, 4)
MOST = cython.declare(int64_t, (32 << 20) - (64 << 10))
kept = cython.declare(int64_t, 0)

# How many rows ahead of the one that is copied memory is asked for.
AHEAD = cython.declare(cython.Py_ssize_t, 6)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def lie_inside(
    starts: cython.const[int64_t][::1], stops: cython.const[int64_t][::1], size: cython.Py_ssize_t
) -> cython.bint:
    """Tell whether every `[start, stop)` is inside `size` bytes."""
    k: cython.Py_ssize_t
    for k in range(starts.shape[0]):  # noqa: SIM110 (a generator would be a Python object)
        if starts[k] < 0 or starts[k] > stops[k] or stops[k] > size:
            return False
    return True


def checked_bounds(starts, stops, size):
    """Do what `as_bounds` does, and leave it to say what is wrong."""
    first, last = as_pairs(starts, stops)
    if not lie_inside(first, last, size):
        return as_bounds(first, last, size)
    return first, last


def slice_records(buffer, starts, stops):
    """Copy the ranges `[starts[i], stops[i])` of any contiguous buffer out as a list of bytes.

    Ranges may overlap and come in any order.

    Raises:
        IndexError: a range leaves the buffer.
    """
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    first: cython.const[int64_t][::1]
    last: cython.const[int64_t][::1]
    first, last = checked_bounds(starts, stops, data.shape[0])
    count: cython.Py_ssize_t = first.shape[0]
    row: cython.Py_ssize_t
    records: list = [None] * count
    source: cython.p_char = cython.cast(cython.p_char, cython.address(data[0]))  # only read where a range is
    for row in range(count):
        records[row] = PyBytes_FromStringAndSize(source + first[row], last[row] - first[row])
    return records


def gather_fixed(buffer, starts, length, out):
    """Copy records of equal length to the rows of `out`, which must not overlap the buffer.

    Args:
        buffer: any contiguous buffer.
        starts: int64[n], where the records begin; in any order, with repeats.
        length: bytes of every record.
        out: writable uint8[n, length] in C order.

    Raises:
        IndexError: a record leaves the buffer.
        ValueError: `out` has another shape or dtype.
    """
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    first: cython.const[int64_t][::1] = as_rows(starts, length, out, data.shape[0])
    size: cython.Py_ssize_t = length
    row: cython.Py_ssize_t
    if not out.size:
        return
    rows: cython.uchar[:, ::1] = out
    with cython.nogil:
        for row in range(first.shape[0]):
            memcpy(cython.address(rows[row, 0]), cython.address(data[0]) + first[row], size)


def gather(buffer, starts, stops):
    """Copy the ranges `[starts[i], stops[i])` one after another.

    Returns:
        values: uint8[total]; record i is `values[offsets[i]:offsets[i + 1]]`.
        offsets: int64[n + 1], the first 0.

    Raises:
        IndexError: a range leaves the buffer.
    """
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    first: cython.const[int64_t][::1]
    last: cython.const[int64_t][::1]
    first, last = checked_bounds(starts, stops, data.shape[0])
    row: cython.Py_ssize_t
    offsets = np.empty(first.shape[0] + 1, np.int64)
    ends: int64_t[::1] = offsets
    ends[0] = 0
    with cython.nogil:
        for row in range(first.shape[0]):
            ends[row + 1] = ends[row] + last[row] - first[row]
    values = np.empty(ends[first.shape[0]], np.uint8)
    out: cython.uchar[::1] = values
    if values.size:
        with cython.nogil:
            for row in range(first.shape[0]):
                memcpy(
                    cython.address(out[0]) + ends[row],
                    cython.address(data[0]) + first[row],
                    last[row] - first[row],
                )
    return values, offsets


def gather_from(buffers, which, starts, stops):
    """Copy ranges of several buffers one after another.

    Range i is `[starts[i], stops[i])` of `buffers[which[i]]`.

    Returns:
        values: uint8[total]; record i is `values[offsets[i]:offsets[i + 1]]`.
        offsets: int64[n + 1], the first 0.

    Raises:
        IndexError: there is no such buffer, or a range leaves it.
    """
    # The views keep the memory behind the addresses alive until the end of the call.
    views, number, begins, ends_ = as_sources(buffers, which, starts, stops)
    addresses: cython.const[int64_t][::1] = np.array(
        [view.__array_interface__["data"][0] for view in views], np.int64
    )
    sources: cython.const[int64_t][::1] = number
    first: cython.const[int64_t][::1] = begins
    last: cython.const[int64_t][::1] = ends_
    row: cython.Py_ssize_t
    offsets = np.empty(first.shape[0] + 1, np.int64)
    ends: int64_t[::1] = offsets
    ends[0] = 0
    with cython.nogil:
        for row in range(first.shape[0]):
            ends[row + 1] = ends[row] + last[row] - first[row]
    values = np.empty(ends[first.shape[0]], np.uint8)
    out: cython.uchar[::1] = values
    if values.size:
        with cython.nogil:
            for row in range(first.shape[0]):
                memcpy(
                    cython.address(out[0]) + ends[row],
                    cython.cast(Bytes, addresses[sources[row]]) + first[row],
                    last[row] - first[row],
                )
    return values, offsets


def gather_into(buffer, starts, stops, out):
    """Copy the ranges `[starts[i], stops[i])` one after another to `out`, uint8, which they fill.

    Raises:
        IndexError: a range leaves the buffer.
        ValueError: `out` has another size.
    """
    data: cython.const[cython.uchar][::1] = as_bytes(buffer)
    first: cython.const[int64_t][::1]
    last: cython.const[int64_t][::1]
    first, last = checked_bounds(starts, stops, data.shape[0])
    row: cython.Py_ssize_t
    total: int64_t = 0
    for row in range(first.shape[0]):
        total += last[row] - first[row]
    filled: cython.uchar[::1] = as_out(out, total)
    source: Bytes = cython.address(data[0]) if data.shape[0] else cython.NULL
    if not total:
        return
    to: cython.p_uchar = cython.address(filled[0])
    with cython.nogil:
        for row in range(first.shape[0]):
            memcpy(to, source + first[row], last[row] - first[row])
            to += last[row] - first[row]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_rows(
    memory: cython.const[int64_t][:, ::1],
    which: cython.const[int64_t][::1],
    rows: cython.const[int64_t][::1],
    begins: int64_t[::1],
    lengths: int64_t[::1],
) -> cython.Py_ssize_t:
    """Find where rows are in memory, and how long they are; return the first that is nowhere, or -1."""
    count: cython.Py_ssize_t = which.shape[0]
    k: cython.Py_ssize_t
    ahead: cython.Py_ssize_t
    source: int64_t
    row: int64_t
    ends: Ends
    for k in range(count):
        if k + AHEAD < count:
            ahead = k + AHEAD
            source = which[ahead]
            if 0 <= source < memory.shape[0]:
                SHARDIO_PREFETCH(cython.cast(Ends, memory[source, 2]) + rows[ahead])
        source = which[k]
        row = rows[k]
        if source < 0 or source >= memory.shape[0] or row < 0 or row >= memory[source, 3]:
            return k
        ends = cython.cast(Ends, memory[source, 2])
        if ends[row] > ends[row + 1] or cython.cast(int64_t, ends[row + 1]) > memory[source, 1]:
            return k
        begins[k] = memory[source, 0] + cython.cast(int64_t, ends[row])
        lengths[k] = cython.cast(int64_t, ends[row + 1]) - cython.cast(int64_t, ends[row])
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy_rows(
    begins: cython.const[int64_t][::1],
    lengths: cython.const[int64_t][::1],
    targets: cython.const[int64_t][::1],
) -> cython.void:
    count: cython.Py_ssize_t = begins.shape[0]
    k: cython.Py_ssize_t
    for k in range(count):
        if k + AHEAD < count:
            # Rows come from all over memory: the first lines of each are asked for before it is its turn.
            SHARDIO_PREFETCH(cython.cast(Bytes, begins[k + AHEAD]))
            SHARDIO_PREFETCH(cython.cast(Bytes, begins[k + AHEAD]) + min(64, lengths[k + AHEAD]))
        memcpy(cython.cast(cython.p_uchar, targets[k]), cython.cast(Bytes, begins[k]), lengths[k])


@cython.cfunc
def _expect(total: int64_t):
    """Let malloc keep the memory of groups of so many bytes."""
    global kept  # noqa: PLW0603 - malloc is one for the process, too
    size: int64_t = min(GROUPS * total, MOST)
    if LEAST <= total <= MOST and size > kept:
        kept = size
        raise_trim_threshold(size)


def _places_of(views, ends):
    """Return of each buffer its address and its size, and those of its table, int64[buffers, 4]."""
    memory = np.empty((len(views), 4), np.int64)
    places: int64_t[:, ::1] = memory
    k: cython.Py_ssize_t
    for k in range(len(views)):
        view, table = views[k], ends[k]
        places[k, 0] = address_of(view)
        places[k, 1] = view.size
        places[k, 2] = address_of(table)
        places[k, 3] = table.size - 1
    return memory


def _located(buffers, tables, which, rows):
    """Return the address and the length of each row, int64; and what keeps the memory in its place."""
    views, ends, number, row = as_tables(buffers, tables, which, rows)
    memory = _places_of(views, ends)
    begins, lengths = np.empty_like(number), np.empty_like(number)
    wrong: cython.Py_ssize_t = _find_rows(memory, number, row, begins, lengths)
    if wrong >= 0:
        raise row_outside(wrong, int(number[wrong]), int(row[wrong]))
    return begins, lengths, (views, ends)


def gather_rows(buffers, tables, which, rows):
    """Copy rows of several buffers one after another.

    Row r of buffer k is its bytes `[tables[k][r], tables[k][r + 1])`; what is copied is row `rows[i]` of
    buffer `which[i]`.

    Args:
        buffers: any contiguous buffers.
        tables: of each, uint32[its rows + 1].
        which, rows: int64[n].

    Returns:
        values: uint8[total]; record i is `values[offsets[i]:offsets[i + 1]]`.
        offsets: int64[n + 1], the first 0.

    Raises:
        IndexError: there is no such buffer or row, or the table leads out of the buffer; names the first one.
    """
    begins, lengths, held = _located(buffers, tables, which, rows)
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[lengths.size])
    _expect(total)
    values = np.empty(total, np.uint8)
    targets = offsets[: lengths.size] + (values.ctypes.data if values.size else 0)
    first: cython.const[int64_t][::1] = begins
    size: cython.const[int64_t][::1] = lengths
    to: cython.const[int64_t][::1] = targets
    with cython.nogil:
        _copy_rows(first, size, to)
    del held
    return values, offsets


def slice_rows(buffers, tables, which, rows):
    """Return the rows that `gather_rows` copies as a list of bytes."""
    begins, lengths, held = _located(buffers, tables, which, rows)
    _expect(int(lengths.sum()))
    first: cython.const[int64_t][::1] = begins
    size: cython.const[int64_t][::1] = lengths
    targets = np.empty_like(begins)
    to: int64_t[::1] = targets
    k: cython.Py_ssize_t
    records: list = PyList_New(size.shape[0])
    for k in range(size.shape[0]):
        record = PyBytes_FromStringAndSize(cython.NULL, size[k])
        to[k] = cython.cast(int64_t, PyBytes_AS_STRING(record))
        # The list takes a reference of its own, and every place of it is filled once.
        Py_INCREF(record)
        PyList_SET_ITEM(records, k, record)
    # Nothing else knows the new objects yet, so they are filled without the interpreter's lock.
    with cython.nogil:
        _copy_rows(first, size, to)
    del held
    return records


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measure_frames(
    memory: cython.const[int64_t][:, ::1], part: cython.const[int64_t][::1], sizes: int64_t[:, ::1]
) -> cython.Py_ssize_t:
    """Count the payloads of each part, and their bytes; return the first frame that is nowhere, or -1."""
    buffer: cython.Py_ssize_t
    row: cython.Py_ssize_t
    k: cython.Py_ssize_t = 0
    ends: Ends
    own: int64_t
    for buffer in range(memory.shape[0]):
        ends = cython.cast(Ends, memory[buffer, 2])
        for row in range(memory[buffer, 3]):
            own = part[k]
            if own < 0 or own >= sizes.shape[0] or cython.cast(int64_t, ends[row + 1]) > memory[buffer, 1]:
                return k
            if cython.cast(int64_t, ends[row]) + FRAME > cython.cast(int64_t, ends[row + 1]):
                return k
            sizes[own, 0] += 1
            sizes[own, 1] += cython.cast(int64_t, ends[row + 1]) - cython.cast(int64_t, ends[row]) - FRAME
            k += 1
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _deal(
    memory: cython.const[int64_t][:, ::1], part: cython.const[int64_t][::1], outs: int64_t[:, ::1]
) -> cython.void:
    """Copy payloads apart.

    Of each part `outs` has the addresses of its bytes and of its table, and how much of both is full.
    """
    buffer: cython.Py_ssize_t
    row: cython.Py_ssize_t
    k: cython.Py_ssize_t = 0
    ends: Ends
    data: Bytes
    own: int64_t
    size: int64_t
    for buffer in range(memory.shape[0]):
        data = cython.cast(Bytes, memory[buffer, 0])
        ends = cython.cast(Ends, memory[buffer, 2])
        for row in range(memory[buffer, 3]):
            own = part[k]
            size = cython.cast(int64_t, ends[row + 1]) - cython.cast(int64_t, ends[row]) - FRAME
            memcpy(cython.cast(cython.p_uchar, outs[own, 0] + outs[own, 2]), data + ends[row] + HEAD, size)
            outs[own, 2] += size
            outs[own, 3] += 1
            cython.cast(cython.pointer(uint32_t), outs[own, 1])[outs[own, 3]] = cython.cast(
                uint32_t, outs[own, 2]
            )
            k += 1


def partition_frames(buffers, tables, part, outs):
    """Copy the payloads of TFRECORD frames apart, each behind those of its part that came before.

    Frame r of buffer k is its bytes `[tables[k][r], tables[k][r + 1])`.

    Args:
        buffers: any contiguous buffers.
        tables: of each, uint32[its frames + 1].
        part: int64[n], of each frame of all buffers, one after another, the number of its part.
        outs: of each part, uint8 array for its payloads, just as large.

    Returns:
        Of each part, uint32[its frames + 1]: where each payload begins in `outs`, and where the last stops.

    Raises:
        IndexError: a table leads out of its buffer, or has no room for a frame, or there is no such part;
            names the first one.
        ValueError: an array of `outs` has not the size of its payloads, or there are too few or many.
    """
    views, ends, numbers = as_frame_tables(buffers, tables, part)
    memory = _places_of(views, ends)
    sizes = np.zeros((len(outs), 2), np.int64)
    wrong: cython.Py_ssize_t = _measure_frames(memory, numbers, sizes)
    if wrong >= 0:
        frames = np.cumsum([0, *(table.size - 1 for table in ends)])
        buffer = int(np.searchsorted(frames, wrong, side="right")) - 1
        raise frame_of_no_part(buffer, wrong - int(frames[buffer]), int(numbers[wrong]))
    as_parts(outs, sizes[:, 1])
    found = [np.zeros(many + 1, np.uint32) for many in sizes[:, 0].tolist()]
    targets = np.zeros((len(outs), 4), np.int64)
    places: int64_t[:, ::1] = targets
    k: cython.Py_ssize_t
    for k in range(len(found)):
        places[k, 0] = address_of(outs[k]) if outs[k].size else 0
        places[k, 1] = address_of(found[k])
    first: cython.const[int64_t][:, ::1] = memory
    number: cython.const[int64_t][::1] = numbers
    with cython.nogil:
        _deal(first, number, places)
    del views
    return found
