# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Permutations of random words, and rows of interleaved orders."""

from __future__ import annotations

import cython
import numpy as np
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.shardio.kernels._compiled._philox import (
    shardio_permuted,
    shardio_permuted_four,
    shardio_place,
    shardio_shuffle,
)
from cython.cimports.shardio.kernels._compiled._prefetch import SHARDIO_PREFETCH

from shardio.kernels._arguments import as_ranges
from shardio.kernels._interleaving import Interleaved, as_parts

COMPILED = cython.compiled

# Columns of `InterleavingState.state`.
FROM = cython.declare(cython.Py_ssize_t, 0)
TO = cython.declare(cython.Py_ssize_t, 1)
FIRST = cython.declare(cython.Py_ssize_t, 2)
COUNT = cython.declare(cython.Py_ssize_t, 3)
POSITION = cython.declare(cython.Py_ssize_t, 4)
QUESTION = cython.declare(cython.Py_ssize_t, 5)
NUMBER = cython.declare(cython.Py_ssize_t, 6)

Shape = cython.struct(
    m=int64_t,
    w=int64_t,
    strands=int64_t,
    chunks=int64_t,
    short=int64_t,
    gap=int64_t,
    gap_from=int64_t,
    shuffled=cython.bint,
    bits=cython.int,
    high=uint64_t,
    p0=uint64_t,
    p1=uint64_t,
    # Pointers, because a view is as large as what is worked out for a window. NULL is a network, not a table.
    table=cython.pointer[cython.const[int64_t]],
    words=cython.pointer[cython.const[uint64_t]],
)


def shuffle_ranges(words, starts, counts):
    """Return a permutation for each range of places of a stream, one after another.

    Every place of the stream has a word of its own, the word of that number of Philox-4x64-10 under the key.
    The permutation of n places that begin at place s is made by Fisher and Yates' exchanges: for i = n - 1
    down to 1 entry i changes places with entry `word(s + i) * (i + 1) >> 64`.

    Args:
        words: the key, uint64[2].
        starts: int64[n], first place of each range, at least 0.
        counts: int64[n], places of each range, 0 to 2**32 - 1.

    Returns:
        uint32[sum of counts]: each range's permutation of 0 .. count - 1.
    """
    key, starts, counts = as_ranges(words, starts, counts)
    k0: uint64_t = int(key[0])
    k1: uint64_t = int(key[1])
    first: cython.const[int64_t][::1] = starts
    many: cython.const[int64_t][::1] = counts
    found = np.empty(int(counts.sum()), np.uint32)
    out: uint32_t[::1] = found
    number: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    if out.shape[0]:
        with cython.nogil:
            for number in range(many.shape[0]):
                if many[number]:
                    shardio_shuffle(k0, k1, first[number], many[number], cython.address(out[at]))
                at += many[number]
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _permute(
    values: int64_t[::1], words: cython.const[uint64_t][::1], bits: cython.int, high: uint64_t, n: uint64_t
) -> cython.void:
    count: cython.Py_ssize_t = values.shape[0]
    k: cython.Py_ssize_t
    for k in range(0, count - 3, 4):
        shardio_permuted_four(cython.address(values[k]), cython.address(words[0]), bits, high, n)
    for k in range(count - count % 4, count):
        values[k] = shardio_permuted(values[k], cython.address(words[0]), bits, high, n)


def permute(values, network, *, forward=True):
    """Return the numbers at places of a permutation, or the places of numbers, int64 of the same shape.

    Of `l = low_bits` and `b = high`, a number is `low + high * 2**l`. Round i of the network's eight takes
    word i: an even one changes `low` to `low ^ mix(high, word) >> 64 - l`, an odd one adds
    `(mix(low, word) >> 32) * b >> 32` to `high`, modulo b. What comes out at n or above goes in again.

    Args:
        values: int64 in [0, n).
        network: see `Network`.
        forward: from places to numbers; else back.
    """
    out = np.array(values, np.int64, order="C").reshape(-1)
    found: int64_t[::1] = out
    words: cython.const[uint64_t][::1] = np.ascontiguousarray(network.words, np.uint64)
    n: uint64_t = network.n
    bits: cython.int = network.low_bits
    high: uint64_t = network.high
    k: cython.Py_ssize_t
    if words.shape[0] != 8 or not 1 <= bits < 63 or (out.size and not 0 <= out.min() <= out.max() < n):
        raise IndexError(f"expected numbers in [0, {n}) and a network of eight words")
    if forward:
        with cython.nogil:
            _permute(found, words, bits, high, n)
    else:
        with cython.nogil:
            for k in range(found.shape[0]):
                found[k] = shardio_place(found[k], cython.address(words[0]), bits, high, n)
    return out.reshape(np.shape(values))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count(part: cython.const[int64_t][:, ::1], edges: cython.const[int64_t][::1]) -> int64_t:
    """Return how many rows parts have; -1 where one is none of a lane."""
    number: cython.Py_ssize_t
    lane: int64_t
    total: int64_t = 0
    for number in range(part.shape[0]):
        lane = part[number, 0]
        if lane < 0 or lane >= edges.shape[0] - 1 or part[number, 1] < 0 or part[number, 1] > part[number, 2]:
            return -1
        if part[number, 2] > edges[lane + 1] - edges[lane]:
            return -1
        total += part[number, 2] - part[number, 1]
    return total


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _open(
    shape: cython.pointer[Shape],
    round_number: int64_t,
    start: int64_t,
    length: int64_t,
    moved: int64_t,
    state: cython.pointer[int64_t],
    order: cython.pointer[uint32_t],
) -> cython.void:
    """Note the window from which a strand reads in a round, and its permutation."""
    at: int64_t = round_number + moved
    before: cython.bint = at >= length  # the rows before the place that the strand began with
    at += start - (length if before else 0)
    virtual: int64_t = at + (shape.gap if shape.gap > 0 and at >= shape.gap_from else 0)
    chunk: int64_t = virtual // shape.m
    within: int64_t = virtual - chunk * shape.m
    # A window ends with its run of w rows, with its chunk, with its strand, or where the strand began.
    first: int64_t = within - within % shape.w if shape.w < shape.m else 0
    base: int64_t = at - within
    low: int64_t = max(base + first, start if before else start + moved)
    stop: int64_t = min(first + shape.w, shape.m)
    if chunk == shape.short:
        stop = min(stop, shape.m - shape.gap)
    high: int64_t = min(base + stop, start + moved if before else start + length)
    state[FROM] = round_number - (at - low)
    state[TO] = state[FROM] + high - low
    state[FIRST] = low
    state[COUNT] = high - low
    state[QUESTION] = 0
    if shape.shuffled:
        if shape.table != cython.NULL:
            chunk = shape.table[chunk]
        else:
            chunk = shardio_permuted(chunk, shape.words, shape.bits, shape.high, shape.chunks)
    state[POSITION] = low + chunk * shape.m - base
    if high - low > 1 and shape.shuffled:
        shardio_shuffle(shape.p0, shape.p1, low, high - low, order)


def interleave(shape, parts, held):
    """Return where the rows of parts of lanes are, one part after another.

    Args:
        shape: of the order.
        parts: int64[n, 3] of (lane, start, stop): places [start, stop) of a lane.
        held: what may be kept for the next question, made for this shape; one thread at a time.

    Raises:
        IndexError: there is no such lane or place.
    """
    given = np.ascontiguousarray(parts, np.int64)
    if given.ndim != 2 or given.shape[1] != 3:
        as_parts(parts, shape.edges)
    part: cython.const[int64_t][:, ::1] = given
    edges: cython.const[int64_t][::1] = shape.edges
    starts: cython.const[int64_t][::1] = shape.starts
    lengths: cython.const[int64_t][::1] = shape.rows
    moved: cython.const[int64_t][::1] = shape.moved
    table: cython.const[int64_t][::1] = shape.table
    words: cython.const[uint64_t][::1] = shape.network.words
    state: int64_t[:, ::1] = held.state
    orders: uint32_t[:, ::1] = held.orders
    latest: int64_t[::1] = held.round
    strand_order: uint32_t[:, ::1] = held.strand_order
    total: int64_t = _count(part, edges)
    if total < 0:
        as_parts(parts, shape.edges)
    # Of one shape, made by `InterleavingState.from_shape`: else the loops below would leave their arrays.
    width: cython.Py_ssize_t = held.orders.shape[1]
    strands_ = shape.starts.size
    if (
        shape.rows.size != strands_
        or shape.moved.size != strands_
        or shape.network.words.size != 8
        or strands_ != (shape.edges.size - 1) * shape.strands
        or held.state.shape != (strands_, 8)
        or held.orders.shape[0] != (strands_ if width > 1 else 0)
        or width < min(shape.window, int(shape.rows.max(initial=0)))
        or held.round.size != shape.edges.size - 1
        or held.strand_order.shape != (shape.edges.size - 1, shape.strands)
        or not (
            shape.table.size == shape.chunks or (not shape.table.size and 1 <= shape.network.low_bits < 63)
        )
    ):
        raise ValueError("what is held was made for another shape")
    held.questions[0] += 1
    question: int64_t = held.questions[0]
    r0: uint64_t = int(shape.rounds[0])
    r1: uint64_t = int(shape.rounds[1])
    form: Shape = Shape(
        shape.chunk_rows,
        shape.window,
        shape.strands,
        shape.chunks,
        shape.short,
        shape.gap,
        shape.gap_from,
        shape.shuffled,
        shape.network.low_bits,
        shape.network.high,
        int(shape.places[0]),
        int(shape.places[1]),
        cython.NULL,
        cython.address(words[0]),
    )
    if table.shape[0]:
        form.table = cython.address(table[0])
    columns = np.empty((2, total), np.int64)
    which: int64_t[::1] = columns[0]
    rows: int64_t[::1] = columns[1]
    # Every row may need a window of its own.
    windows_ = np.empty((4, total), np.int64)
    windows: int64_t[:, ::1] = windows_
    # Pointers, because a view's strides would be looked up for every row.
    which_: cython.pointer[int64_t] = cython.NULL
    rows_: cython.pointer[int64_t] = cython.NULL
    if total:
        which_ = cython.address(which[0])
        rows_ = cython.address(rows[0])
    states: cython.pointer[int64_t] = cython.NULL
    if state.shape[0]:
        states = cython.address(state[0, 0])
    all_orders: cython.pointer[uint32_t] = cython.NULL
    if width > 1:
        all_orders = cython.address(orders[0, 0])
    lane: int64_t
    place: int64_t
    stop: int64_t
    round_number: int64_t
    slot: int64_t
    strand: int64_t
    at: int64_t
    number: cython.Py_ssize_t
    k: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t
    found: cython.Py_ssize_t = 0
    one: cython.pointer[int64_t]
    order: cython.pointer[uint32_t] = cython.NULL
    turns: cython.pointer[uint32_t]
    with cython.nogil:
        for number in range(part.shape[0]):
            lane = part[number, 0]
            place = part[number, 1]
            stop = part[number, 2]
            round_number = place // form.strands
            slot = place - round_number * form.strands
            turns = cython.address(strand_order[lane, 0])
            while place < stop:
                if latest[lane] != round_number:
                    at = edges[lane] + round_number * form.strands
                    latest[lane] = round_number
                    _order_strands(form.shuffled, r0, r1, at, min(form.strands, edges[lane + 1] - at), turns)
                count = min(form.strands - slot, stop - place)
                strand = lane * form.strands
                for at in range(count):
                    which_[k + at] = strand + turns[slot + at]
                    rows_[k + at] = round_number
                k += count
                place += count
                round_number += 1
                slot = 0
        for k in range(total):
            if k + 24 < total:
                # What is held of strands is larger than the cache: each is asked for before it is its turn.
                SHARDIO_PREFETCH(states + 8 * which_[k + 24])
                if width > 1:
                    strand = which_[k + 12]
                    at = rows_[k + 12] - states[8 * strand + FROM]
                    if 0 <= at < width:
                        SHARDIO_PREFETCH(all_orders + strand * width + at)
            strand = which_[k]
            round_number = rows_[k]
            one = states + 8 * strand
            order = all_orders + strand * width
            if form.m == 1:
                # Each row is a window, and the numbers of their chunks are looked up below, all at once.
                at = round_number + moved[strand]
                at += starts[strand] - (lengths[strand] if at >= lengths[strand] else 0)
                if one[QUESTION] != question or one[FIRST] != at:
                    one[QUESTION] = 0
                    one[FIRST] = one[POSITION] = at
                    one[FROM] = round_number
                    one[TO] = round_number + 1
                    one[COUNT] = 1
            elif round_number < one[FROM] or round_number >= one[TO]:
                _open(
                    cython.address(form),
                    round_number,
                    starts[strand],
                    lengths[strand],
                    moved[strand],
                    one,
                    order,
                )
            if one[QUESTION] != question:
                one[QUESTION] = question
                one[NUMBER] = found
                windows[0, found] = strand
                windows[1, found] = one[FIRST]
                windows[2, found] = one[COUNT]
                windows[3, found] = one[POSITION]
                found += 1
            which_[k] = one[NUMBER]
            at = round_number - one[FROM]
            rows_[k] = order[at] if one[COUNT] > 1 and form.shuffled else at
        if form.m == 1 and form.shuffled:
            if table.shape[0]:
                for number in range(found):
                    windows[3, number] = table[windows[3, number]]
            else:
                _permute(windows[3, :found], words, form.bits, form.high, form.chunks)
    return Interleaved(columns[0], columns[1], *windows_[:, :found])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _order_strands(
    shuffled: cython.bint,
    r0: uint64_t,
    r1: uint64_t,
    first: int64_t,
    count: int64_t,
    out: cython.pointer[uint32_t],
) -> cython.void:
    """Put the order of the strands in a round."""
    k: cython.Py_ssize_t
    if shuffled:
        shardio_shuffle(r0, r1, first, count, out)
        return
    for k in range(count):
        out[k] = k
