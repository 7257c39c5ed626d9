# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# Permutations of random words, and rows of interleaved orders.

import numpy as np
from libc.stdint cimport int64_t, uint32_t, uint64_t
from shardio.kernels._compiled._philox cimport shardio_permuted, shardio_permuted_four, shardio_place, shardio_shuffle
from shardio.kernels._compiled._prefetch cimport SHARDIO_PREFETCH

from shardio.kernels._arguments import as_ranges
from shardio.kernels._interleaving import Interleaved

# Columns of `InterleavingState.state`.
cdef Py_ssize_t FROM = 0
cdef Py_ssize_t TO = 1
cdef Py_ssize_t FIRST = 2
cdef Py_ssize_t COUNT = 3
cdef Py_ssize_t POSITION = 4
cdef Py_ssize_t QUESTION = 5
cdef Py_ssize_t NUMBER = 6

cdef struct Shape:
    int64_t m
    int64_t w
    int64_t strands
    int64_t chunks
    int64_t short
    int64_t gap
    int64_t gap_from
    bint shuffled
    int bits
    uint64_t high
    uint64_t r0
    uint64_t r1
    uint64_t p0
    uint64_t p1
    const int64_t* table
    const uint64_t* words

# Strands, and what is kept of them between two questions; see `InterleavingState`.
cdef struct Kept:
    const int64_t* starts
    const int64_t* rows
    const int64_t* moved
    int64_t* states
    uint32_t* orders
    int64_t width
    int64_t question


# Return a permutation for each range of places of a stream, one after another.
#
# Every place of the stream has a word of its own, the word of that number of Philox-4x64-10 under the key.
# The permutation of n places that begin at place s is made by Fisher and Yates' exchanges: for i = n - 1
# down to 1 entry i changes places with entry `word(s + i) * (i + 1) >> 64`.
#
# Args:
#     words: the key, uint64[2].
#     starts: int64[n], first place of each range, at least 0.
#     counts: int64[n], places of each range, 0 to 2**32 - 1.
#
# Returns:
#     uint32[sum of counts]: each range's permutation of 0 .. count - 1.
def shuffle_ranges(words, starts, counts):
    key, starts, counts = as_ranges(words, starts, counts)
    cdef uint64_t k0 = int(key[0])
    cdef uint64_t k1 = int(key[1])
    cdef const int64_t[::1] first = starts
    cdef const int64_t[::1] many = counts
    found = np.empty(int(counts.sum()), np.uint32)
    cdef uint32_t[::1] out = found
    cdef Py_ssize_t number, at = 0
    if out.shape[0]:
        with nogil:
            for number in range(many.shape[0]):
                if many[number]:
                    shardio_shuffle(k0, k1, first[number], many[number], &out[at])
                at += many[number]
    return found


cdef void _permute(int64_t[::1] values, const uint64_t[::1] words, int bits, uint64_t high, uint64_t n) noexcept nogil:
    cdef Py_ssize_t count = values.shape[0]
    cdef Py_ssize_t k
    for k in range(0, count - 3, 4):
        shardio_permuted_four(&values[k], &words[0], bits, high, n)
    for k in range(count - count % 4, count):
        values[k] = shardio_permuted(values[k], &words[0], bits, high, n)


# Return the numbers at places of a permutation, or the places of numbers, int64 of the same shape.
#
# Of `l = low_bits` and `b = high`, a number is `low + high * 2**l`. Round i of the network's eight takes
# word i: an even one changes `low` to `low ^ mix(high, word) >> 64 - l`, an odd one adds
# `(mix(low, word) >> 32) * b >> 32` to `high`, modulo b. What comes out at n or above goes in again.
#
# Args:
#     values: int64 in [0, n).
#     network: see `Network`.
#     forward: from places to numbers; else back.
def permute(values, network, *, forward=True):
    out = np.array(values, np.int64, order="C").reshape(-1)
    cdef int64_t[::1] found = out
    cdef const uint64_t[::1] words = np.ascontiguousarray(network.words, np.uint64)
    cdef uint64_t n = network.n
    cdef int bits = network.low_bits
    cdef uint64_t high = network.high
    cdef Py_ssize_t k
    if words.shape[0] != 8 or not 1 <= bits < 63 or (out.size and not 0 <= out.min() <= out.max() < n):
        raise IndexError(f"expected numbers in [0, {n}) and a network of eight words")
    if forward:
        with nogil:
            _permute(found, words, bits, high, n)
    else:
        with nogil:
            for k in range(found.shape[0]):
                found[k] = shardio_place(found[k], &words[0], bits, high, n)
    return out.reshape(np.shape(values))


# Return how many rows parts have; -1 where one is none of a lane.
cdef int64_t _count(const int64_t[:, ::1] part, const int64_t[::1] edges) noexcept nogil:
    cdef Py_ssize_t number
    cdef int64_t lane, total = 0
    for number in range(part.shape[0]):
        lane = part[number, 0]
        if lane < 0 or lane >= edges.shape[0] - 1 or part[number, 1] < 0 or part[number, 1] > part[number, 2]:
            return -1
        if part[number, 2] > edges[lane + 1] - edges[lane]:
            return -1
        total += part[number, 2] - part[number, 1]
    return total


# Note the window from which a strand reads in a round, and its permutation.
cdef void _open(
        Shape* shape, int64_t round_number, int64_t start, int64_t length, int64_t moved, int64_t* state,
        uint32_t* order) noexcept nogil:
    cdef int64_t at = round_number + moved
    cdef bint before = at >= length  # the rows before the place that the strand began with
    at += start - (length if before else 0)
    cdef int64_t virtual = at + (shape.gap if shape.gap > 0 and at >= shape.gap_from else 0)
    cdef int64_t chunk = virtual // shape.m
    cdef int64_t within = virtual - chunk * shape.m
    # A window ends with its run of w rows, with its chunk, with its strand, or where the strand began.
    cdef int64_t first = within - within % shape.w if shape.w < shape.m else 0
    cdef int64_t base = at - within
    cdef int64_t low = max(base + first, start if before else start + moved)
    cdef int64_t stop = min(first + shape.w, shape.m)
    if chunk == shape.short:
        stop = min(stop, shape.m - shape.gap)
    cdef int64_t high = min(base + stop, start + moved if before else start + length)
    state[FROM] = round_number - (at - low)
    state[TO] = state[FROM] + high - low
    state[FIRST] = low
    state[COUNT] = high - low
    state[QUESTION] = 0
    if shape.shuffled:
        if shape.table != NULL:
            chunk = shape.table[chunk]
        else:
            chunk = shardio_permuted(chunk, shape.words, shape.bits, shape.high, shape.chunks)
    state[POSITION] = low + chunk * shape.m - base
    if high - low > 1 and shape.shuffled:
        shardio_shuffle(shape.p0, shape.p1, low, high - low, order)


# Put the strand that each row of the parts is read from, and its round.
cdef void _assign_strands(
        const int64_t[:, ::1] part, Shape* shape, const int64_t[::1] edges, int64_t[::1] latest, uint32_t[:,
        ::1] strand_order, int64_t* strands, int64_t* rounds) noexcept nogil:
    cdef int64_t lane, place, stop, round_number, slot
    cdef uint32_t* order
    cdef Py_ssize_t number, k = 0, count
    cdef int64_t at
    for number in range(part.shape[0]):
        lane = part[number, 0]
        place = part[number, 1]
        stop = part[number, 2]
        round_number = place // shape.strands
        slot = place - round_number * shape.strands
        order = &strand_order[lane, 0]
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


# Replace strand and round of each row by its window and its row there; return how many windows.
cdef Py_ssize_t _assign_windows(
        Shape* shape, Kept* kept, int64_t* strands, int64_t* rounds, int64_t[:, ::1] windows) noexcept nogil:
    cdef int64_t strand
    cdef int64_t* state
    cdef uint32_t* order
    cdef int64_t at
    cdef Py_ssize_t total = windows.shape[1]
    cdef Py_ssize_t found = 0, k
    for k in range(total):
        if k + 24 < total:
            _prefetch(kept, strands[k + 24], strands[k + 12], rounds[k + 12])
        strand = strands[k]
        state = kept.states + 8 * strand
        order = kept.orders + strand * kept.width
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
        at = rounds[k] - state[FROM]
        rounds[k] = order[at] if state[COUNT] > 1 and shape.shuffled else at
    return found


# Ask for what is kept of strands before it is their turn: together it is larger than the cache.
cdef inline void _prefetch(Kept* kept, int64_t later, int64_t strand, int64_t round_number) noexcept nogil:
    cdef int64_t at
    SHARDIO_PREFETCH(kept.states + 8 * later)
    if kept.width > 1:
        at = round_number - kept.states[8 * strand + FROM]
        if 0 <= at < kept.width:
            SHARDIO_PREFETCH(kept.orders + strand * kept.width + at)


# Note a row that is a window by itself; the numbers of such chunks are looked up all at once.
cdef inline void _open_row(Kept* kept, int64_t strand, int64_t round_number, int64_t* state) noexcept nogil:
    cdef int64_t at = round_number + kept.moved[strand]
    at += kept.starts[strand] - (kept.rows[strand] if at >= kept.rows[strand] else 0)
    if state[QUESTION] != kept.question or state[FIRST] != at:
        state[QUESTION] = 0
        state[FIRST] = state[POSITION] = at
        state[FROM] = round_number
        state[TO] = round_number + 1
        state[COUNT] = 1


# Replace places in the order of chunks by the numbers of the chunks there.
cdef void _number_chunks(Shape* shape, const uint64_t[::1] words, int64_t[::1] chunks) noexcept nogil:
    cdef Py_ssize_t number
    if shape.table == NULL:
        _permute(chunks, words, shape.bits, shape.high, shape.chunks)
        return
    for number in range(chunks.shape[0]):
        chunks[number] = shape.table[chunks[number]]


# Refuse what was not made by `InterleavingState.from_shape`: else the loops would leave their arrays.
def _check_state(shape, held):
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


cdef Shape _read_shape(shape, const int64_t[::1] table, const uint64_t[::1] words):
    cdef Shape form = Shape(
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
        NULL,
        &words[0],
    )
    if table.shape[0]:
        form.table = &table[0]
    return form


# Return where the rows of parts of lanes are, one part after another.
#
# Args:
#     shape: of the order.
#     parts: int64[n, 3] of (lane, start, stop): places [start, stop) of a lane.
#     held: what may be kept for the next question, made for this shape; one thread at a time.
#
# Raises:
#     IndexError: there is no such lane or place.
def interleave(shape, parts, held):
    given = np.ascontiguousarray(parts, np.int64)
    if given.ndim != 2 or given.shape[1] != 3:
        raise ValueError(f"parts: expected (lane, start, stop) each, found an array of shape {given.shape}")
    cdef const int64_t[:, ::1] part = given
    cdef const int64_t[::1] edges = shape.edges
    cdef const int64_t[::1] starts = shape.starts
    cdef const int64_t[::1] lengths = shape.rows
    cdef const int64_t[::1] moved = shape.moved
    cdef const uint64_t[::1] words = shape.network.words
    cdef int64_t[:, ::1] state = held.state
    cdef uint32_t[:, ::1] orders = held.orders
    cdef int64_t[::1] latest = held.round
    cdef uint32_t[:, ::1] strand_order = held.strand_order
    cdef int64_t total = _count(part, edges)
    if total < 0:
        raise IndexError(f"one of these parts (lane, start, stop) is not of a lane: {given[:3].tolist()}")
    _check_state(shape, held)
    held.questions[0] += 1
    cdef Shape form = _read_shape(shape, shape.table, words)
    columns = np.empty((2, total), np.int64)
    # Every row may need a window of its own.
    windows_ = np.empty((4, total), np.int64)
    if not total:
        return Interleaved(columns[0], columns[1], *windows_)
    cdef int64_t[::1] which = columns[0]
    cdef int64_t[::1] rows = columns[1]
    cdef int64_t[:, ::1] windows = windows_
    # Pointers, because a view's strides would be looked up for every row.
    cdef Kept kept = Kept(
        &starts[0],
        &lengths[0],
        &moved[0],
        &state[0, 0],
        NULL,
        orders.shape[1],
        held.questions[0],
    )
    if kept.width > 1:
        kept.orders = &orders[0, 0]
    cdef Py_ssize_t found
    with nogil:
        _assign_strands(
            part,
            &form,
            edges,
            latest,
            strand_order,
            &which[0],
            &rows[0],
        )
        found = _assign_windows(
            &form,
            &kept,
            &which[0],
            &rows[0],
            windows,
        )
        if form.m == 1 and form.shuffled:
            _number_chunks(&form, words, windows[3, :found])
    return Interleaved(columns[0], columns[1], *windows_[:, :found])


# Put the order of the strands in a round.
cdef void _order_strands(Shape* shape, int64_t first, int64_t count, uint32_t* out) noexcept nogil:
    cdef Py_ssize_t k
    if shape.shuffled:
        shardio_shuffle(shape.r0, shape.r1, first, count, out)
        return
    for k in range(count):
        out[k] = k
