# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Many system calls in one call, compiled; `OpenFiles` calls them, and says what they take and return.

Thousands of pieces of local files are read for a batch or a window of small records. Each `os.pread` gives up
the interpreter's lock and asks for it back, for which a thread waits that shares it with others; here it is
given up once for all.

Raises:
    ImportError: this was not compiled here.
"""

from __future__ import annotations

import cython
import numpy as np

if not cython.compiled:
    message = "this was not compiled here"
    raise ImportError(message)

from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.errno import EINTR, errno
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t
from cython.cimports.posix.fcntl import open as open_path
from cython.cimports.posix.stat import fstat, struct_stat
from cython.cimports.posix.unistd import close, pread
from cython.cimports.shardio.kernels._compiled._columns import frame_parts_fit
from cython.cimports.shardio.kernels._compiled._crc import shardio_crc_begin
from cython.cimports.shardio.kernels._compiled._frame import HEAD, TAIL

shardio_crc_begin()  # fills the tables of this module

# Ranges that are looked at before the system is asked for all: where it has these, it has nearly all.
PROBES = cython.declare(cython.Py_ssize_t, 64)


def read_ranges(numbers, starts, stops, out):
    descriptors: cython.const[int32_t][::1] = np.ascontiguousarray(numbers, np.int32)
    begins: cython.const[int64_t][::1] = np.ascontiguousarray(starts, np.int64)
    ends: cython.const[int64_t][::1] = np.ascontiguousarray(stops, np.int64)
    data: uint8_t[::1] = out
    count: cython.Py_ssize_t = descriptors.shape[0]
    room: cython.Py_ssize_t = data.shape[0]
    at: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t
    found: cython.Py_ssize_t
    k: cython.Py_ssize_t
    code: cython.int = 0
    fits: cython.bint = begins.shape[0] == count and ends.shape[0] == count
    ended: cython.bint = False
    if fits:
        with cython.nogil:
            for k in range(count):
                left = ends[k] - begins[k]
                if begins[k] < 0 or left < 0 or left > room - at:
                    fits = False
                    break
                while left > 0:
                    found = pread(descriptors[k], cython.address(data[at]), left, ends[k] - left)
                    if found > 0:
                        at += found
                        left -= found
                    elif found == 0:
                        ended = True
                        break
                    elif errno != EINTR:
                        code = errno
                        break
                if ended or code:
                    break
    if not fits:
        msg = f"ranges need 0 <= starts <= stops, and {room} bytes must hold them all"
        raise ValueError(msg)
    return at, code


def advise_ranges(numbers, starts, stops):
    descriptors: cython.const[int32_t][::1] = np.ascontiguousarray(numbers, np.int32)
    begins: cython.const[int64_t][::1] = np.ascontiguousarray(starts, np.int64)
    ends: cython.const[int64_t][::1] = np.ascontiguousarray(stops, np.int64)
    count: cython.Py_ssize_t = min(descriptors.shape[0], begins.shape[0], ends.shape[0])
    probes: cython.Py_ssize_t = min(count, PROBES)
    probe: cython.Py_ssize_t
    k: cython.Py_ssize_t
    missing: cython.bint = False
    with cython.nogil:
        # Of what is in the system's cache already, asking costs a sixth of what reading it does.
        for probe in range(probes):
            k = probe * count // probes
            if not shardio_is_cached(descriptors[k], begins[k]):
                missing = True
                break
        if missing:
            for k in range(count):
                shardio_will_need(descriptors[k], begins[k], ends[k] - begins[k])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_part(
    descriptor: cython.int, start: int64_t, to: cython.p_uchar, length: int64_t, code: cython.p_int
) -> int64_t:
    """Return how many bytes were read, fewer where the file ended or there is an error."""
    done: int64_t = 0
    found: cython.Py_ssize_t
    while done < length:
        found = pread(descriptor, to + done, length - done, start + done)
        if found > 0:
            done += found
        elif found == 0:
            break
        elif errno != EINTR:
            code[0] = errno
            break
    return done


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_frame(
    descriptor: cython.int,
    start: int64_t,
    head: cython.p_uchar,
    payload: cython.p_uchar,
    length: int64_t,
    tail: cython.p_uchar,
    code: cython.p_int,
) -> int64_t:
    """Put the three parts of a frame where they belong; return as `_read_part`."""
    parts: Part[3]
    parts[0].base, parts[0].length = head, HEAD
    parts[1].base, parts[1].length = payload, length
    parts[2].base, parts[2].length = tail, TAIL
    done: int64_t = read_parts(descriptor, parts, 3, start)
    if done == HEAD + length + TAIL:
        return done
    # One call returns at most 2 GiB, and less where a signal came in between.
    done = _read_part(descriptor, start, head, HEAD, code)
    if done == HEAD:
        done += _read_part(descriptor, start + HEAD, payload, length, code)
    if done == HEAD + length:
        done += _read_part(descriptor, start + HEAD + length, tail, TAIL, code)
    return done


@cython.cfunc
def _read_frames(
    numbers: cython.const[int32_t][::1],
    frames: cython.const[int64_t][:, ::1],
    targets: cython.const[int64_t][::1],
    fitting: uint8_t[::1],
):
    """Read frames, their payloads to addresses; return how many, bytes of the one that failed, the error."""
    head: cython.uchar[12]
    tail: cython.uchar[4]
    to: cython.p_uchar
    length: int64_t
    found: int64_t = 0
    count: cython.Py_ssize_t = 0
    code: cython.int = 0
    with cython.nogil:
        while count < frames.shape[0]:
            to, length = cython.cast(cython.p_uchar, targets[count]), frames[count, 2]
            found = _read_frame(
                numbers[frames[count, 0]], frames[count, 1], head, to, length, tail, cython.address(code)
            )
            if found < HEAD + length + TAIL:
                break
            if frames[count, 3]:
                fitting[count] = frame_parts_fit(head, to, tail, length)
            count += 1
    return count, found, code


@cython.cfunc
def _checked(numbers, frames):
    """Return int64 [n, 4], frames of the files."""
    rows = np.ascontiguousarray(frames, np.int64).reshape(-1, 4)
    bounds: cython.const[int64_t][:, ::1] = rows
    files: cython.Py_ssize_t = len(numbers)
    k: cython.Py_ssize_t
    for k in range(bounds.shape[0]):
        if bounds[k, 0] < 0 or bounds[k, 0] >= files or bounds[k, 1] < 0 or bounds[k, 2] < 0:
            msg = f"frame {k} needs a file, 0 <= start, 0 <= length"
            raise ValueError(msg)
    return rows


def read_frames(numbers, frames, out):
    descriptors = np.ascontiguousarray(numbers, np.int32)
    rows = _checked(descriptors, frames)
    data: uint8_t[::1] = out
    targets = np.zeros(len(rows), np.int64)
    np.cumsum(rows[:-1, 2], out=targets[1:])
    if (targets[-1:] + rows[-1:, 2]).sum() != data.shape[0]:
        msg = f"{data.shape[0]} bytes are not those of the payloads that fill them"
        raise ValueError(msg)
    if data.shape[0]:
        targets += cython.cast(int64_t, cython.address(data[0]))
    right = np.ones(len(rows), np.bool_)
    return right, *_read_frames(descriptors, rows, targets, right.view(np.uint8))


def read_records(numbers, frames):
    descriptors = np.ascontiguousarray(numbers, np.int32)
    rows = _checked(descriptors, frames)
    bounds: cython.const[int64_t][:, ::1] = rows
    count: cython.Py_ssize_t = bounds.shape[0]
    places = np.empty(count, np.int64)
    targets: int64_t[::1] = places
    records: list = [None] * count
    k: cython.Py_ssize_t
    for k in range(count):
        # What is in it is filled in below, before anybody sees it; an empty one has no place.
        record = PyBytes_FromStringAndSize(cython.NULL, bounds[k, 2])
        targets[k] = cython.cast(int64_t, PyBytes_AS_STRING(record))
        records[k] = record
    right = np.ones(count, np.bool_)
    return records, right, *_read_frames(descriptors, rows, places, right.view(np.uint8))


def open_files(paths, flags):
    numbers = np.full(len(paths), -1, np.int32)
    known = np.zeros((len(paths), 2), np.uint64)
    descriptors: int32_t[::1] = numbers
    names: cython.const[int64_t][::1]
    held = [np.frombuffer(path + b"\0", np.uint8) for path in paths]
    names = np.array([each.__array_interface__["data"][0] for each in held], np.int64)
    identities: cython.ulonglong[:, ::1] = known
    how: cython.int = flags
    info: struct_stat
    k: cython.Py_ssize_t
    code: cython.int = 0
    with cython.nogil:
        for k in range(names.shape[0]):
            descriptors[k] = open_path(cython.cast(cython.p_char, names[k]), how)
            if descriptors[k] < 0 or fstat(descriptors[k], cython.address(info)) < 0:
                code = errno
                break
            identities[k, 0] = info.st_dev
            identities[k, 1] = info.st_ino
    return numbers, known, code


def close_files(numbers):
    descriptors: cython.const[int32_t][::1] = np.ascontiguousarray(numbers, np.int32)
    k: cython.Py_ssize_t
    with cython.nogil:
        for k in range(descriptors.shape[0]):
            if descriptors[k] >= 0:
                close(descriptors[k])
