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
    r0=uint64_t,
    r1=uint64_t,
    p0=uint64_t,
    p1=uint64_t,
    # Pointers, because a view is as large as what is worked out for a window. NULL is a network, not a table.
    table=cython.pointer[cython.const[int64_t]],
    words=cython.pointer[cython.const[uint64_t]],
)

# Strands, and what is kept of them between two questions; see `InterleavingState`.
Kept = cython.struct(
    starts=cython.pointer[cython.const[int64_t]],
    rows=cython.pointer[cython.const[int64_t]],
    moved=cython.pointer[cython.const[int64_t]],
    states=cython.pointer[int64_t],
    orders=cython.pointer[uint32_t],
    width=int64_t,
    question=int64_t,
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _assign_strands(
    part: cython.const[int64_t][:, ::1],
    shape: cython.pointer[Shape],
    edges: cython.const[int64_t][::1],
    latest: int64_t[::1],
    strand_order: uint32_t[:, ::1],
    strands: cython.pointer[int64_t],
    rounds: cython.pointer[int64_t],
) -> cython.void:
    """Put the strand that each row of the parts is read from, and its round."""
    number: cython.Py_ssize_t
    k: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t
    at: int64_t
    for number in range(part.shape[0]):
        lane: int64_t = part[number, 0]
        place: int64_t = part[number, 1]
        stop: int64_t = part[number, 2]
        round_number: int64_t = place // shape.strands
        slot: int64_t = place - round_number * shape.strands
        order: cython.pointer[uint32_t] = cython.address(strand_order[lane, 0])
        while place < stop:
            if latest[lane] != round_number:
                at = edges[lane] + round_number * shape.strands
                latest[lane] = round_number
                _order_strands(shape, at, min(shape.strands, edges[lane + 1] - at), order)
            count = min(shape.strands - slot, stop - place)
            for at in range(count):
                strands[k + at] = lane * shape.strands + order[slot + at]
                rounds[k + at] = round_number
            k += count
            place += count
            round_number += 1
            slot = 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _assign_windows(
    shape: cython.pointer[Shape],
    kept: cython.pointer[Kept],
    strands: cython.pointer[int64_t],
    rounds: cython.pointer[int64_t],
    windows: int64_t[:, ::1],
) -> cython.Py_ssize_t:
    """Replace strand and round of each row by its window and its row there; return how many windows."""
    total: cython.Py_ssize_t = windows.shape[1]
    found: cython.Py_ssize_t = 0
    k: cython.Py_ssize_t
    for k in range(total):
        if k + 24 < total:
            _prefetch(kept, strands[k + 24], strands[k + 12], rounds[k + 12])
        strand: int64_t = strands[k]
        state: cython.pointer[int64_t] = kept.states + 8 * strand
        order: cython.pointer[uint32_t] = kept.orders + strand * kept.width
        if shape.m == 1:
            _open_row(kept, strand, rounds[k], state)
        elif rounds[k] < state[FROM] or rounds[k] >= state[TO]:
            _open(shape, rounds[k], kept.starts[strand], kept.rows[strand], kept.moved[strand], state, order)
        if state[QUESTION] != kept.question:
            state[QUESTION] = kept.question
            state[NUMBER] = found
            windows[0, found] = strand
            windows[1, found] = state[FIRST]
            windows[2, found] = state[COUNT]
            windows[3, found] = state[POSITION]
            found += 1
        strands[k] = state[NUMBER]
        at: int64_t = rounds[k] - state[FROM]
        rounds[k] = order[at] if state[COUNT] > 1 and shape.shuffled else at
    return found


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _prefetch(
    kept: cython.pointer[Kept], later: int64_t, strand: int64_t, round_number: int64_t
) -> cython.void:
    """Ask for what is kept of strands before it is their turn: together it is larger than the cache."""
    SHARDIO_PREFETCH(kept.states + 8 * later)
    if kept.width > 1:
        at: int64_t = round_number - kept.states[8 * strand + FROM]
        if 0 <= at < kept.width:
            SHARDIO_PREFETCH(kept.orders + strand * kept.width + at)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _open_row(
    kept: cython.pointer[Kept], strand: int64_t, round_number: int64_t, state: cython.pointer[int64_t]
) -> cython.void:
    """Note a row that is a window by itself; the numbers of such chunks are looked up all at once."""
    at: int64_t = round_number + kept.moved[strand]
    at += kept.starts[strand] - (kept.rows[strand] if at >= kept.rows[strand] else 0)
    if state[QUESTION] != kept.question or state[FIRST] != at:
        state[QUESTION] = 0
        state[FIRST] = state[POSITION] = at
        state[FROM] = round_number
        state[TO] = round_number + 1
        state[COUNT] = 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number_chunks(
    shape: cython.pointer[Shape], words: cython.const[uint64_t][::1], chunks: int64_t[::1]
) -> cython.void:
    """Replace places in the order of chunks by the numbers of the chunks there."""
    number: cython.Py_ssize_t
    if shape.table == cython.NULL:
        _permute(chunks, words, shape.bits, shape.high, shape.chunks)
        return
    for number in range(chunks.shape[0]):
        chunks[number] = shape.table[chunks[number]]


def _check_state(shape, held):
    """Refuse what was not made by `InterleavingState.from_shape`: else the loops would leave their arrays."""
    strands, lanes, width = shape.starts.size, shape.edges.size - 1, held.orders.shape[1]
    if (
        shape.rows.size != strands
        or shape.moved.size != strands
        or shape.network.words.size != 8
        or strands != lanes * shape.strands
        or held.state.shape != (strands, 8)
        or held.orders.shape[0] != (strands if width > 1 else 0)
        or width < min(shape.window, int(shape.rows.max(initial=0)))
        or held.round.size != lanes
        or held.strand_order.shape != (lanes, shape.strands)
        or not (
            shape.table.size == shape.chunks or (not shape.table.size and 1 <= shape.network.low_bits < 63)
        )
    ):
        raise ValueError("what is held was made for another shape")


@cython.cfunc
def _read_shape(shape, table: cython.const[int64_t][::1], words: cython.const[uint64_t][::1]) -> Shape:
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
        int(shape.rounds[0]),
        int(shape.rounds[1]),
        int(shape.places[0]),
        int(shape.places[1]),
        cython.NULL,
        cython.address(words[0]),
    )
    if table.shape[0]:
        form.table = cython.address(table[0])
    return form


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
    words: cython.const[uint64_t][::1] = shape.network.words
    state: int64_t[:, ::1] = held.state
    orders: uint32_t[:, ::1] = held.orders
    latest: int64_t[::1] = held.round
    strand_order: uint32_t[:, ::1] = held.strand_order
    total: int64_t = _count(part, edges)
    if total < 0:
        as_parts(parts, shape.edges)
    _check_state(shape, held)
    held.questions[0] += 1
    form: Shape = _read_shape(shape, shape.table, words)
    columns = np.empty((2, total), np.int64)
    # Every row may need a window of its own.
    windows_ = np.empty((4, total), np.int64)
    if not total:
        return Interleaved(columns[0], columns[1], *windows_)
    which: int64_t[::1] = columns[0]
    rows: int64_t[::1] = columns[1]
    windows: int64_t[:, ::1] = windows_
    # Pointers, because a view's strides would be looked up for every row.
    kept: Kept = Kept(
        cython.address(starts[0]),
        cython.address(lengths[0]),
        cython.address(moved[0]),
        cython.address(state[0, 0]),
        cython.NULL,
        orders.shape[1],
        held.questions[0],
    )
    if kept.width > 1:
        kept.orders = cython.address(orders[0, 0])
    found: cython.Py_ssize_t
    with cython.nogil:
        _assign_strands(
            part,
            cython.address(form),
            edges,
            latest,
            strand_order,
            cython.address(which[0]),
            cython.address(rows[0]),
        )
        found = _assign_windows(
            cython.address(form),
            cython.address(kept),
            cython.address(which[0]),
            cython.address(rows[0]),
            windows,
        )
        if form.m == 1 and form.shuffled:
            _number_chunks(cython.address(form), words, windows[3, :found])
    return Interleaved(columns[0], columns[1], *windows_[:, :found])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _order_strands(
    shape: cython.pointer[Shape], first: int64_t, count: int64_t, out: cython.pointer[uint32_t]
) -> cython.void:
    """Put the order of the strands in a round."""
    k: cython.Py_ssize_t
    if shape.shuffled:
        shardio_shuffle(shape.r0, shape.r1, first, count, out)
        return
    for k in range(count):
        out[k] = k
